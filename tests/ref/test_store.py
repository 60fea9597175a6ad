"""Where models live, and that a damaged folder is found and its file named."""

from __future__ import annotations

import json
from pathlib import Path

import platformdirs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_ref import store

FILES = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 5, "inner/tokenizer.json": "é".encode()}


def make_folder(folder: Path) -> Path:
    for name, content in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    store.write_manifest(folder, {"name": "a model"})
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "a módel")


def test_home_is_the_folder_that_specdec_home_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("SPECDEC_HOME", str(tmp_path / "with a space"))
    assert store.home() == tmp_path / "with a space"
    assert store.smol_folder() == tmp_path / "with a space" / "models" / "SmolLM2-135M-Instruct"


@pytest.mark.parametrize("empty", [None, ""])
def test_home_is_the_users_cache_folder_otherwise(monkeypatch: pytest.MonkeyPatch, empty: str | None):
    monkeypatch.delenv("SPECDEC_HOME", raising=False)
    if empty is not None:
        monkeypatch.setenv("SPECDEC_HOME", empty)
    assert store.home() == platformdirs.user_cache_path("specdec", appauthor=False)


def test_a_whole_folder_passes_and_gives_its_manifest(folder: Path):
    seen: list[int] = []
    manifest = store.check_folder(folder, seen.append)
    assert manifest["name"] == "a model"
    assert set(manifest["files"]) == set(FILES)
    assert sum(seen) == sum(map(len, FILES.values()))
    with store.checking(folder) as same:
        assert same == manifest


@settings(deadline=None)
@given(data=st.data())
def test_a_flipped_bit_anywhere_is_found_and_its_file_named(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
):
    folder = make_folder(tmp_path_factory.mktemp("model"))
    name = data.draw(st.sampled_from(sorted(FILES)))
    content = bytearray(FILES[name])
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"is damaged .*: run `specdec models fetch smol`") as caught:
        store.check_folder(folder)
    assert str(folder / name) in str(caught.value)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(folder: Path, name: str):
    (folder / name).unlink()
    for check in (store.check_folder, store.check_sizes):
        with pytest.raises(ValueError, match="is missing: run `specdec models fetch smol`") as caught:
            check(folder)
        assert str(folder / name) in str(caught.value)


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_named_without_reading_it(folder: Path, name: str):
    (folder / name).write_bytes(FILES[name][:-1])
    with pytest.raises(ValueError, match=f"is damaged .{len(FILES[name]) - 1} bytes, not {len(FILES[name])}") as caught:
        store.check_sizes(folder)
    assert str(folder / name) in str(caught.value)


def test_a_folder_without_manifest_is_not_finished_and_one_that_is_absent_says_so(folder: Path):
    (folder / store.MANIFEST).unlink()
    with pytest.raises(ValueError, match=r"is not finished .*: run `specdec models fetch smol`"):
        store.check_folder(folder)
    with pytest.raises(ValueError, match="is not there: run `specdec models fetch smol`"):
        store.check_folder(folder / "absent")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"files": []}', '{"files": {"a": 1}}', '{"files": {"a": {}}}', "3"]
)
def test_a_damaged_manifest_is_named(folder: Path, text: str):
    (folder / store.MANIFEST).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"manifest\.json is damaged: run `specdec models fetch smol`"):
        store.check_folder(folder)


def test_a_manifest_that_is_not_text_is_named(folder: Path):
    (folder / store.MANIFEST).write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
        store.check_folder(folder)


def test_checking_names_the_damaged_file_even_where_loading_it_fails_otherwise(folder: Path):
    (folder / "config.json").write_bytes(b"[]")
    with pytest.raises(ValueError, match=r"config\.json is damaged"), store.checking(folder):
        raise RuntimeError("some words about a header")


def test_checking_lets_an_error_of_a_whole_folder_through(folder: Path):
    with pytest.raises(RuntimeError, match="some words"), store.checking(folder):
        raise RuntimeError("some words")


def test_the_manifest_does_not_list_itself_and_is_the_same_when_written_again(folder: Path):
    before = (folder / store.MANIFEST).read_bytes()
    store.write_manifest(folder, {"name": "a model"})
    assert (folder / store.MANIFEST).read_bytes() == before
    assert store.MANIFEST not in json.loads(before)["files"]
