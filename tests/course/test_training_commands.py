"""`specdec train smol-draft` and `specdec train tiny` at toy size: killed, taken up again, and refused in one line."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from specdec_course.cli import app
from specdec_course.training_runs import command_line
from specdec_ref import store
from specdec_ref.training.loop import CHECKPOINT
from tests.course.test_corpus import SMALL, home  # noqa: F401 - a fixture

ROOT = Path(__file__).parents[2]
TOY = "--width 32 --layers 1 --heads 2 --mlp 48 --epochs 4 --batch 4 --negatives 32 --save-every 5 --look-every 20"
DRAFT = ("smol-draft", *TOY.split(), "--prompts", "2", "--threads", "1")


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def corpus(home: Path) -> Path:  # noqa: F811 - the fixture
    train("corpus", *SMALL)
    return home / "corpus"


TINY = (
    "--epochs",
    "0.1",
    "--stories",
    "200",
    "--texts",
    "60",
    "--vocabulary",
    "300",
    "--prompts",
    "2",
    "--threads",
    "1",
)


def train(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["train", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_killed_smol_draft_goes_on_and_is_the_same_model(corpus: Path, tmp_path: Path):
    killed, whole = (tmp_path / name for name in ("killed", "whole"))
    folders = ("--work", killed / "work", "--out", killed / "models")
    command = [sys.executable, "-m", "specdec_course", "train", *DRAFT, *map(str, folders)]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    deadline = time.monotonic() + 120
    while not (killed / "work" / CHECKPOINT).exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert (killed / "work" / CHECKPOINT).exists()

    assert "alpha, decoding, greedy" in train(*DRAFT, *folders)
    train(*DRAFT, "--work", whole / "work", "--out", whole / "models")
    ours, theirs = (store.check_folder(folder / "models" / "smol-draft")["files"] for folder in (killed, whole))
    assert ours["model.safetensors"] == theirs["model.safetensors"]
    assert AutoModelForCausalLM.from_pretrained(killed / "models" / "smol-draft").config.hidden_size == 32

    result = CliRunner().invoke(app, ["train", *DRAFT, "--seed", "1", *map(str, folders)])
    assert result.exit_code == 1
    assert "holds a run made otherwise (another seed)" in result.output


def test_the_tiny_family_is_trained_by_one_command(tmp_path: Path):
    output = train("tiny", *TINY, "--work", tmp_path / "work", "--out", tmp_path / "models")
    for name in ("tiny-target", "tiny-draft", "tiny-micro"):
        store.check_folder(tmp_path / "models" / name)
        assert name in output


def test_without_teacher_text_the_command_says_what_to_run(home: Path):  # noqa: F811 - the fixture
    result = CliRunner().invoke(app, ["train", "smol-draft"])
    assert result.exit_code == 1
    assert "run `specdec train corpus` first" in result.output


def test_a_card_quotes_the_command_without_folders_of_this_machine(monkeypatch: pytest.MonkeyPatch):
    typed = ["x", "train", "smol-draft", "--epochs", "3", "--work", "/a b", "--out=/c", "--threads", "2", "--seed", "1"]
    monkeypatch.setattr(sys, "argv", typed)
    assert command_line() == "specdec train smol-draft --epochs 3 --seed 1"
