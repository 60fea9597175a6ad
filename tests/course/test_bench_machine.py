"""The roofline beside real passes: what is counted of a model, and what the command says."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from specdec_course.benchmark import limits
from specdec_course.cli import build_app
from specdec_ref.roofline import Hardware, ModelSize
from tests.course.toy_pair import toy_pair


@pytest.fixture(scope="module")
def pair():
    return toy_pair()


def test_a_model_is_counted_by_its_linear_layers_and_the_bytes_it_reads(pair):
    """The toy: two layers of 4 attention and 3 feed-forward matrices, a head, an embedding that is only looked up."""
    linears = 2 * (32 * 32 * 2 + 2 * 32 * 16 + 3 * 32 * 64) + 256 * 32
    size = limits.model_size(pair.target)
    assert size.parameters == linears
    assert linears * 4 <= size.bytes < linears * 4 * 1.02  # the norms, and no embedding
    assert size.kv_bytes_per_token == 2 * 2 * 2 * 8 * 4  # keys and values, layers, KV heads, head size, float32
    assert limits.model_size(pair.draft).parameters < size.parameters


def test_measured_and_predicted_ratios_stand_beside_each_other(pair):
    slow = Hardware("a slow reader", bandwidth=1e6, peak=1e6)
    report = limits.limits(pair, batches=(1, 2), block_lengths=(1, 3), turns=1, hardware=slow)
    cells = {(cell["batch"], cell["tokens"]): cell for cell in report["passes"]}
    assert set(cells) == {(1, 1), (1, 3), (2, 1), (2, 3)}
    assert all(cells[batch, 1]["measured"] == cells[batch, 1]["predicted"] == 1 for batch in (1, 2))
    assert cells[1, 3]["predicted"] == pytest.approx(6 / 4, rel=0.3)  # two operations a token, four bytes a weight
    assert set(report["break_even_batch"]) == {"0.5", "0.7", "0.9"}
    assert any("at least" in line for line in limits.sentences(report))


def test_the_command_prints_json(pair, monkeypatch):
    monkeypatch.setattr("specdec_ref.pairs.load_pair", lambda name, **_: pair)
    fake = Hardware("made up", 1e9, 1e10)
    monkeypatch.setattr(limits, "measure_hardware", lambda *_: fake)
    found = CliRunner().invoke(build_app(), ["bench", "machine", "--pair", "toy", "--turns", "1", "--json"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["operations_per_byte"] == 10


def test_numbers_of_a_published_model_by_hand():
    """Llama 3.1 8B in bfloat16: 131,072 bytes of keys and values a token, 16 GB of weights."""
    assert ModelSize(8.03e9, 2 * 32 * 8 * 128 * 2).kv_bytes_per_token == 131_072
