"""`specdec train layer-skip`: from the tiny target to a folder that drafts, and refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from specdec_course.cli import app
from specdec_ref import store

SMALL = ("train", "layer-skip", "--target", "tiny", "--texts", "2", "--tokens", "6", "--num-draft-tokens", "2")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_command_leaves_a_choice_of_layers_with_its_card(tmp_path: Path):
    options = ("--work", str(tmp_path / "work"), "--out", str(tmp_path / "models"))
    first = CliRunner().invoke(app, [*SMALL, *options])
    assert first.exit_code == 0, first.output
    assert "speedup, promised" in first.stdout
    folder = tmp_path / "models" / "tiny-layer-skip"
    store.check_folder(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["kind"] == "layer-skip"
    assert 1 <= len(config["shape"]["kept"]) < 4
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "greedy removal of layers" in card
    assert str(tmp_path) not in card
    again = CliRunner().invoke(app, [*SMALL, *options])  # all choices are in the journal
    assert again.stdout == first.stdout

    other = CliRunner().invoke(app, [*SMALL, "--seed", "7", *options])
    assert other.exit_code == 1
    assert "holds a search made otherwise" in other.output


def test_an_unknown_target_is_refused():
    result = CliRunner().invoke(app, ["train", "layer-skip", "--target", "huge"])
    assert result.exit_code == 1
    assert "choose smol or tiny" in result.output
