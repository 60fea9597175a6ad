"""`specdec bench drafters`: every drafter beside plain decoding; the absent ones with their reason, losses as such."""

import io
import json

import jsonschema
import pytest
from rich.console import Console

from specdec_course.benchmark import drafters
from specdec_course.benchmark.options import Options
from specdec_course.benchmark.published import PUBLISHED
from specdec_course.benchmark.schema import SCHEMA
from specdec_ref.drafters.registry import DRAFTERS
from tests.course.toy_pair import toy_pair


@pytest.fixture(scope="module")
def report():
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(drafters, "load_pair", lambda name, dtype, device: toy_pair(name, dtype))
    options = Options(pair="toy", suite="story", prompts=1, max_new_tokens=6, lengths=(2,))
    yield drafters.bench_drafters(options)
    monkeypatch.undo()


def test_every_registered_drafter_is_measured_or_absent_with_a_reason(report):
    assert {*report["drafters"], *report["absent"]} == set(DRAFTERS)
    assert {"model", "ngram"} <= set(report["drafters"])
    assert "has no eagle head" in report["absent"]["eagle"]


def test_the_report_follows_the_schema_and_has_the_figures_by_drafter_and_suite(report):
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(report)))
    for entry in report["drafters"].values():
        assert set(entry["suites"]) == {"story", "all"}
        assert {"speedup", "emitted_per_round", "draft_step_ms", "verify_ms"} <= set(entry["suites"]["story"])
    assert report["drafters"]["model"]["extra_memory_bytes"] > report["drafters"]["ngram"]["extra_memory_bytes"] == 0


def test_a_loss_is_printed_as_a_loss_with_the_bill(report):
    slow = {"suites": {"story": {"speedup": 0.5, "bill": "a round emits 1.00 tokens and costs 2.00 target steps"}}}
    assert drafters.losses({"slow": slow}) == [
        "SLOWER than plain: slow on story, 0.50x, since a round emits 1.00 tokens and costs 2.00 target steps."
    ]


def test_the_tables_show_each_drafter_and_label_published_figures_as_others(report):
    console = Console(file=io.StringIO(), width=200)
    drafters.show(report, console)
    printed = console.file.getvalue()
    for name in report["drafters"]:
        assert name in printed
    assert "other models on other machines" in printed
    assert all(one.source in printed for one in PUBLISHED)
