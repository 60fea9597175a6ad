"""The bill of a round, recorded and measured, and published figures: nothing is typed by hand, nothing is hidden."""

import json

import pytest
from matplotlib import pyplot as plt

from specdec_course import method_figures as figures
from specdec_course.benchmark.systems import models_of, weight_bytes
from specdec_course.errors import CourseError
from specdec_ref.pairs import load_pair

SUITES = ("chat", "story")


@pytest.fixture(scope="module")
def tiny():
    return load_pair("tiny")


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    yield
    plt.close("all")


def one_suite(speedup):
    return {
        "speedup": speedup,
        "num_draft_tokens": 3,
        "emitted_per_round": 1.75,
        "draft_step_ms": 2.5,
        "verify_ms": 50.0,
    }


@pytest.fixture
def path(tmp_path):
    drafters = {
        name: {"suites": {suite: one_suite(gain) for suite in (*SUITES, "all")}, "extra_memory_bytes": 7_000_000}
        for name, gain in (("model", 1.5), ("ngram", 0.8))
    }
    report = {
        "machine": {"processor": "a processor", "threads": 2},
        "settings": {"target": "a target", "dtypes": ["float32"], "suites": list(SUITES)},
        "drafters": drafters,
    }
    path = tmp_path / "drafters.json"
    path.write_text(json.dumps(report), encoding="utf-8")
    return path


def test_the_recorded_table_shows_each_drafter_with_its_machine_and_what_was_trained(path):
    text = figures.recorded(["model", "ngram", "medusa"], path)
    assert "a processor" in text and "2 threads" in text
    assert "1.50" in text and "0.80" in text  # a loss is printed as it is
    assert "not in this run" in text
    assert "n-gram: nothing is trained" in text and "draft model: trained for" in text


def test_the_figure_draws_a_bar_for_each_drafter_and_suite_and_its_text_says_the_numbers(path):
    figure, alt = figures.draw_methods(["model", "ngram", "medusa"], new=["ngram"], path=path)
    assert len(figure.axes[0].patches) == 2 * 3
    assert "draft model 1.50 over all" in alt and "n-gram 0.80 over all" in alt and "Medusa" not in alt


@pytest.mark.parametrize("content", [None, "{", "[]", '{"drafters": {}}'])
def test_a_missing_or_damaged_report_is_told_with_what_to_do(tmp_path, content):
    path = tmp_path / "drafters.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(CourseError, match="bench drafters"):
        figures.recorded(["model"], path)


def test_published_figures_carry_their_source_and_are_labelled_as_others():
    text = figures.published(["EAGLE", "layer skipping"])
    assert text.startswith("Published: other models on other machines")
    assert "arXiv 2401.15077" in text and "arXiv 2309.08168" in text and "Chinchilla" not in text
    with pytest.raises(ValueError, match="methods='eagel'"):
        figures.published(["eagel"])


@pytest.mark.parametrize("name", ["model", "ngram", "eagle", "medusa", "layer-skip", "staged", "candidates"])
def test_every_way_to_draft_tells_what_was_trained_for_it(name):
    assert "trained" in figures.training_cost(name)


def test_the_bill_is_measured_on_the_machine_at_hand(tiny):
    lines = figures.measured_here(tiny, ["model", "ngram"]).splitlines()
    assert [line[:22].strip() for line in lines[:4]] == ["", "plain", "draft model", "n-gram"]
    assert all(len(line.split()) >= 7 for line in lines[1:4])
    assert "times as long" in lines[-2]


def test_memory_of_a_drafter_counts_what_it_adds_and_nothing_that_it_shares(tiny):
    target = tiny.target.model
    assert models_of(tiny.drafter("ngram")) == []
    names = ("layer-skip", "model", "staged", "eagle")
    extra = {name: weight_bytes(target, *models_of(tiny.drafter(name))) - weight_bytes(target) for name in names}
    assert extra["layer-skip"] == 0  # its layers are the target's own
    assert extra["model"] == weight_bytes(tiny.draft.model)
    assert extra["staged"] > extra["model"]  # the draft's own draft is on the bill too
    assert 0 < extra["eagle"] < weight_bytes(target)


def test_the_readme_tells_what_its_reports_hold():
    text = (figures.ROOT / "README.md").read_text(encoding="utf-8")
    drafters = figures.report()["drafters"]
    gains = {name: entry["suites"]["all"]["speedup"] for name, entry in drafters.items()}
    assert max(gains, key=lambda name: gains[name]) == "eagle-tree"
    assert f"{gains['eagle-tree']:.2f} times plain decoding" in text and f"lost, with {gains['layer-skip']:.2f}" in text
    pair = json.loads((figures.ROOT / "docs" / "benchmarks" / "smol.json").read_text(encoding="utf-8"))
    same = pair["ratios"]["spec_over_transformers_assisted_same_drafter"]["model"]["all"]
    assert f"ours is {same:.2f} times as fast" in text
    assert f"is {pair['ratios']['spec_over_best_plain']['all']:.2f}x as fast as the best plain decoder" in text
