"""`specdec train eagle` and `specdec train medusa` at toy size: killed, taken up again, and refused in one line."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specdec_course.cli import app
from specdec_ref import store
from specdec_ref.heads import load_eagle, load_medusa
from specdec_ref.training import artefact
from specdec_ref.training.loop import CHECKPOINT
from tests.course.test_corpus import home  # noqa: F401 - a fixture
from tests.course.test_training_commands import TINY, corpus, same_threads, train  # noqa: F401 - fixtures

ROOT = Path(__file__).parents[2]
SMALL = "--epochs 3 --batch 4 --learning-rate 0.01 --save-every 5 --look-every 20 --dtype float32 --threads 1"
EAGLE = ("eagle", *SMALL.split(), "--mlp", "32", "--vocabulary", "40", "--passes", "2")
MEDUSA = ("medusa", *SMALL.split(), "--heads", "2", "--negatives", "32")


def test_a_killed_eagle_goes_on_and_medusa_reads_the_same_features(corpus: Path, tmp_path: Path):  # noqa: F811
    killed, whole = (tmp_path / name for name in ("killed", "whole"))
    folders = ("--work", killed / "work", "--out", killed / "models")
    command = [sys.executable, "-m", "specdec_course", "train", *EAGLE, *map(str, folders)]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    deadline = time.monotonic() + 240
    while not (killed / "work" / CHECKPOINT).exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert (killed / "work" / CHECKPOINT).exists()

    assert "tokens per round, K=4, greedy" in train(*EAGLE, *folders)
    train(*EAGLE, "--work", whole / "work", "--out", whole / "models")
    ours, theirs = (store.check_folder(folder / "models" / "smol-eagle")["files"] for folder in (killed, whole))
    assert ours["model.safetensors"] == theirs["model.safetensors"]

    kept = {path: path.stat().st_mtime_ns for path in (store.home() / "training" / "features-smol").iterdir()}
    assert "head 1, top-1" in train(*MEDUSA, "--work", whole / "medusa", "--out", whole / "models")
    assert kept == {path: path.stat().st_mtime_ns for path in kept}

    target = artefact.load(store.smol_folder())
    assert load_eagle(whole / "models" / "smol-eagle", target, store.smol_folder()).shape.draft_vocab <= 40
    assert load_medusa(whole / "models" / "smol-medusa", target, store.smol_folder()).shape.heads == 2
    card = (whole / "models" / "smol-eagle" / "README.md").read_text(encoding="utf-8")
    assert str(tmp_path) not in card

    result = CliRunner().invoke(app, ["train", *EAGLE, "--seed", "1", *map(str, folders)])
    assert result.exit_code == 1
    assert "holds a run made otherwise (another seed)" in result.output


def test_heads_of_the_tiny_target_are_trained_on_its_own_text(corpus: Path, tmp_path: Path):  # noqa: F811
    work, out = store.home() / "training" / "tiny", tmp_path / "models"
    train("tiny", *TINY, "--work", work, "--out", out)
    short = ("--target", "tiny", "--out", out, "--epochs", "0.5", "--dtype", "float32", "--threads", "1")
    assert "for comparison, tiny-draft: tokens per round" in train("eagle", *short)
    train("medusa", *short)
    target = artefact.load(out / "tiny-target")
    load_eagle(out / "tiny-eagle", target, out / "tiny-target")
    load_medusa(out / "tiny-medusa", target, out / "tiny-target")
    size = sum(store.total_size(out / name) for name in ("tiny-eagle", "tiny-medusa"))
    assert size < 1_250_000


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "large"], "--target large: choose smol or tiny"),
        (["--dtype", "float8"], "--dtype float8: choose float32 or bfloat16"),
        (["--target", "tiny", "--out", "nowhere"], "run `specdec train tiny` first"),
        ([], "run `specdec train corpus` first"),
    ],
)
def test_what_is_missing_or_unknown_is_said_in_one_line(
    home: Path,  # noqa: F811 - the fixture
    kind: str,
    arguments: list[str],
    message: str,
):
    result = CliRunner().invoke(app, ["train", kind, *arguments])
    assert result.exit_code == 1
    assert message in " ".join(result.output.split())
