"""The experiment at toy size: measured end to end, killed and resumed, and a verdict that follows from its numbers."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from specdec_course.cli import build_app
from specdec_course.errors import CourseError
from specdec_course.experiment import cell as cells_module
from specdec_course.experiment import plan as plan_module
from specdec_course.experiment import run as run_module
from specdec_course.experiment.cell import draft_figures, ratios
from specdec_course.experiment.csv_file import as_csv
from specdec_course.experiment.page import page
from specdec_course.experiment.plan import QUICK, Plan
from specdec_course.experiment.run import run_experiment, write
from specdec_course.experiment.verdict import decide, name, where, word
from specdec_ref.measure import Run
from specdec_ref.rows import Round
from tests.course.toy_pair import toy_pair

FEW = {"texts": ("story",), "lengths": {"long": 6}, "candidates": (2,)}
SMALL = Plan(**{**QUICK, "pair": "toy", "drafter": "model", **FEW})  # four cells


@pytest.fixture(scope="module")
def pair():
    return toy_pair()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("experiment with spaces")


@pytest.fixture(scope="module")
def found(pair, folder):
    return run_experiment(SMALL, pair, folder)


# --- what is measured


def test_the_full_plan_crosses_texts_lengths_temperatures_and_batches():
    cells = Plan().cells
    assert len({cell.name for cell in cells}) == len(cells) == 2 * 2 * 3 * 4
    assert {cell.batch for cell in cells} == {1, 2, 4, 8}
    assert {cell.temperature for cell in cells} == {0.0, 0.7, 1.0}


def test_every_cell_records_both_sides(found):
    assert len(found["cells"]) == 4
    for cell in found["cells"]:
        for side in ("off", "on"):
            figures = cell[side]
            assert figures["new_tokens"] == 6 * cell["batch"]
            assert figures["seconds"] > 0
            assert figures["first_token_ms"] > 0
            assert figures["inter_token_ms"]["p50"] <= figures["inter_token_ms"]["p95"]
            assert figures["latency_ms"]["p50"] <= figures["latency_ms"]["p95"]
            hours = figures["new_tokens"] / figures["seconds"] * 3600 / 1e6
            assert figures["cost_per_million_tokens"] == pytest.approx(1 / hours)
        assert cell["speedup"]["low"] <= cell["speedup"]["median"] <= cell["speedup"]["high"]
        assert cell["num_draft_tokens"] == 2
        assert cell["on"]["memory"]["target_weights"] == cell["off"]["memory"]["target_weights"] > 0
        assert cell["on"]["memory"]["draft_weights"] == 0  # the toy draft is the target's first layer, shared
        assert 0 < cell["on"]["memory"]["draft_kv"] < cell["on"]["memory"]["target_kv"]
        assert "draft_kv" not in cell["off"]["memory"]
        assert cell["on"]["target_step_ms"] > 0 < cell["on"]["verify_ms"]


def test_a_cell_counts_its_rounds_once(found):
    for cell in found["cells"]:
        on = cell["on"]
        counts = {int(count): rounds for count, rounds in on["accepted_per_round"].items()}
        assert sum(counts.values()) + on["rounds_without_draft"] == on["row_rounds"]
        assert sum(count * rounds for count, rounds in counts.items()) == on["accepted"]
        assert on["survival"] == sorted(on["survival"], reverse=True)


def test_greedy_texts_are_compared_and_equal_and_sampled_ones_are_not_compared(found):
    for cell in found["cells"]:
        if cell["temperature"] == 0:
            assert cell["texts"] == {"compared": 2 * cell["batch"], "equal": 2 * cell["batch"], "differences": []}
        else:
            assert cell["texts"] is None


def test_on_and_off_take_turns_and_the_order_alternates(pair, monkeypatch):
    orders = []

    def watching(systems, *arguments, real=cells_module.measure):
        orders.append([system.method for system in systems])
        return real(systems, *arguments)

    monkeypatch.setattr(cells_module, "measure", watching)
    cells_module.measure_cell(SMALL.cells[0], SMALL, pair, lambda what, share: None)
    assert orders == [["plain", "model"], ["model", "plain"]]


def test_the_shares_told_to_the_progress_bar_add_up_to_one_cell(pair):
    told = []
    cells_module.measure_cell(SMALL.cells[0], SMALL, pair, lambda what, share: told.append(share))
    assert sum(told) == pytest.approx(1)


def test_transformers_takes_part_and_says_which_cells_it_cannot_run(pair, tmp_path):
    plan = Plan(**{**QUICK, "pair": "toy", "engine": "transformers", "texts": ("story",), "temperatures": (0.0,)})
    one, two = [cell for cell in plan.cells if cell.length == "long"]
    assert (one.batch, two.batch) == (1, 2)
    measured = cells_module.measure_cell(one, plan, pair, lambda what, share: None)
    assert measured["texts"]["equal"] == measured["texts"]["compared"] == 2
    refused = cells_module.measure_cell(two, plan, pair, lambda what, share: None)
    assert "one text at a time" in refused["not_run"]
    verdict = decide([measured, refused])
    assert verdict["not_run"] == ["story, long, T = 0, batch 2: " + refused["not_run"]]


def run(*rounds):
    """A run of one row: (seconds, drafted, accepted) of each round."""
    drafts = [[[7] * drafted] for _, drafted, _ in rounds]
    tokens = [[[7] * (accepted + 1)] for _, _, accepted in rounds]
    return Run(
        [Round(new, draft, [one[2]], [None]) for new, draft, one in zip(tokens, drafts, rounds, strict=True)],
        [seconds for seconds, _, _ in rounds],
    )


def test_a_speedup_is_a_ratio_of_totals():
    """[30] 2 s -> .5 s and 20 s -> 18 s is 1.19, not 2.56."""
    plain, spec = [run((2, 0, 0)), run((20, 0, 0))], [run((0.5, 0, 0)), run((18, 0, 0))]
    assert ratios([plain], [spec], prompts_too=True)["median"] == pytest.approx(22 / 18.5)


def test_prompts_count_for_whole_requests_and_not_for_decoding():
    plain, spec = [run((10, 0, 0), (1, 0, 0), (1, 0, 0))], [run((10, 0, 0), (1, 1, 1))]
    assert ratios([plain], [spec], prompts_too=True)["median"] == pytest.approx(12 / 11)
    assert ratios([plain], [spec], prompts_too=False)["median"] == pytest.approx(2)
    assert ratios([[run((1, 0, 0))]], [[run((1, 0, 0))]], prompts_too=False)["median"] is None


def test_the_range_is_that_of_the_repetitions():
    plain = [[run((2, 0, 0))]] * 3
    spec = [[run((seconds, 0, 0))] for seconds in (1, 2, 4)]
    assert ratios(plain, spec, prompts_too=True) == {"median": 1.0, "low": 0.5, "high": 2.0}


def test_rounds_without_a_draft_are_counted_apart():
    figures = draft_figures([[run((1, 0, 0), (1, 2, 2), (1, 2, 0), (1, 2, 1))]])
    assert figures["rounds_without_draft"] == 1
    assert figures["accepted_per_round"] == {"0": 1, "1": 1, "2": 1}
    assert figures["survival"] == pytest.approx([2 / 3, 1 / 3])


# --- killed and resumed


def test_a_killed_run_keeps_its_cells_and_goes_on(pair, tmp_path, monkeypatch):
    measured = []

    def counting(cell, *arguments, real=run_module.measure_cell):
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(cell.name)
        return real(cell, *arguments)

    monkeypatch.setattr(run_module, "measure_cell", counting)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(SMALL, pair, tmp_path)
    kept = {path.name: path.read_bytes() for path in (tmp_path / "cells").glob("*.json")}
    assert len(kept) == 2
    (tmp_path / "cells" / "half.unfinished").write_text("{", encoding="utf-8")  # as a kill within a write leaves it

    monkeypatch.setattr(run_module, "measure_cell", lambda cell, *_: measured.append(cell.name) or whole(cell))
    monkeypatch.setattr(run_module, "decide", lambda cells: {})
    found = run_experiment(SMALL, pair, tmp_path)
    assert measured == [cell.name for cell in SMALL.cells]  # each once
    assert len(found["cells"]) == 4
    assert {path.name: path.read_bytes() for path in (tmp_path / "cells").glob("*.json")}.items() >= kept.items()


def whole(cell):
    return {"made": cell.name}


def test_a_finished_experiment_is_read_and_not_measured_again(found, pair, folder, monkeypatch):
    monkeypatch.setattr(run_module, "measure_cell", None)
    again = run_experiment(SMALL, pair, folder)
    assert again["cells"] == json.loads(json.dumps(found["cells"]))
    assert again["verdict"] == found["verdict"]


def test_a_damaged_cell_is_measured_again(found, pair, folder, monkeypatch):
    path = folder / "cells" / f"{SMALL.cells[3].name}.json"
    before = path.read_bytes()
    path.write_bytes(before[:40])
    monkeypatch.setattr(run_module, "measure_cell", lambda *_: json.loads(before))
    assert run_experiment(SMALL, pair, folder)["cells"] == json.loads(json.dumps(found["cells"]))
    assert json.loads(path.read_bytes()) == json.loads(before)


def test_a_folder_holds_one_experiment(found, pair, folder, monkeypatch):
    other = Plan(**{**SMALL.as_json(), "repeats": 7})
    with pytest.raises(CourseError, match="another repeats"):
        run_experiment(other, pair, folder)
    monkeypatch.setattr(run_module, "describe", lambda device: {"processor": "another", "load_average": None})
    with pytest.raises(CourseError, match="another machine processor"):
        run_experiment(SMALL, pair, folder)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"engine": "mine"}, "engine='mine'"),
        ({"drafter": "oracle"}, "drafter='oracle'"),
        ({"drafter": "medusa"}, "drafter='medusa'"),  # a tree: it has no survival by position
        ({"drafter": "eagle", "engine": "transformers"}, "for engine='transformers'"),
        ({"repeats": 0}, "repeats=0"),
        ({"prompts": 99}, "prompts=99"),
        ({"price_per_hour": 0}, "price_per_hour=0"),
        ({"candidates": (0,)}, "must hold draft lengths"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(changes, named):
    with pytest.raises(ValueError, match=re.escape(named)):
        Plan(**changes)


# --- the verdict


def made(text="story", length="long", temperature=0.0, batch=1, speedup=(1.5, 1.4, 1.6), tokens=500, **changes):
    ratio = dict(zip(("median", "low", "high"), speedup, strict=True))
    side = {"new_tokens": tokens, "decode_s": 8.0, "seconds": 10.0}
    return {
        "text": text,
        "length": length,
        "max_new_tokens": 100,
        "temperature": temperature,
        "batch": batch,
        "speedup": ratio,
        "round_cost": 1.7,
        "off": side,
        "on": side | {"emitted_per_round": 2.4},
        "texts": None,
    } | changes


@pytest.mark.parametrize(
    ("speedup", "said"),
    [
        ((1.5, 1.4, 1.6), "faster"),
        ((1.5, 0.9, 1.6), "no clear gain"),
        ((1.01, 1.005, 1.015), "no clear gain"),
        ((0.97, 0.9, 1.02), "no clear gain"),
        ((0.881, 0.87, 0.89), "SLOWER"),
        ((None, None, None), "no clear gain"),
    ],
)
def test_a_word_follows_from_the_median_and_the_range(speedup, said):
    assert word(made(speedup=speedup)) == said


GRID = [
    made(text, length, temperature, batch)
    for text, length, temperature, batch in itertools.product(
        ("code-edit", "story"), ("short", "long"), (0.0, 1.0), (1, 2)
    )
]


@given(st.sets(st.integers(0, len(GRID) - 1), min_size=1))
@settings(derandomize=True, deadline=None, max_examples=50)
def test_where_names_exactly_the_chosen_cells(chosen):
    said = where([GRID[number] for number in sorted(chosen)], GRID)
    values = {
        "all of code-edit": ("text", "code-edit"),
        "all of story": ("text", "story"),
        "all of short answers": ("length", "short"),
        "all of long answers": ("length", "long"),
        "all of T = 0": ("temperature", 0.0),
        "all of T = 1": ("temperature", 1.0),
        "all of batch 1": ("batch", 1),
        "all of batch 2": ("batch", 2),
    }
    meant = {number for number, cell in enumerate(GRID) if f"({name(cell)})" in said}
    for words, (factor, value) in values.items():
        if words in said:
            meant |= {number for number, cell in enumerate(GRID) if cell[factor] == value}
    assert meant == chosen


def test_the_sentence_enables_what_gained_and_says_why_not_the_rest():
    losing = {"speedup": (0.7, 0.6, 0.8), "round_cost": 2.9}
    verdict = decide([made(batch=1), made(batch=8, **losing)])
    assert verdict["sentence"].startswith("Enable for (story, long, T = 0, batch 1), because there a round emits 2.40")
    assert "not for (story, long, T = 0, batch 8)" in verdict["sentence"]
    assert "costs 2.90 plain steps" in verdict["sentence"]
    assert verdict["enable"] == ["story, long, T = 0, batch 1"]
    (line,) = verdict["losing"]
    assert line.startswith("story, long, T = 0, batch 8: SLOWER, 0.70 times the speed (0.60 to 0.80)")


def test_the_sentence_where_all_gain_where_none_does_and_where_nothing_ran():
    assert decide([made(), made(batch=2)])["sentence"].startswith("Enable for everything that was measured")
    assert decide([made(speedup=(0.5, 0.4, 0.6))])["sentence"].startswith("Do not enable for anything")
    assert decide([{**made(), "not_run": "no"}])["sentence"] == "Nothing could be measured."


def test_cells_of_few_tokens_carry_a_caution():
    assert "no more than 12 tokens" in decide([made(tokens=12), made(batch=2)])["caution"]
    assert decide([made()])["caution"] is None


def test_texts_that_differ_are_said_with_their_gap():
    wrong = {"compared": 8, "equal": 7, "differences": [{"top_two_gap": 0.25}]}
    assert "1 of 8 greedy texts DIFFER" in decide([made(texts=wrong)])["texts"]
    assert "0.25 apart" in decide([made(texts=wrong)])["texts"]


# --- what is written


class Reader(HTMLParser):
    """Collects what a page refers to."""

    def __init__(self):
        super().__init__()
        self.tags, self.images, self.links = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        values = dict(attrs)
        if tag == "img":
            self.images.append(values)
        self.links += [value for key, value in values.items() if key in ("src", "href")]


@pytest.fixture(scope="module")
def html(found):
    return page(found)


def test_the_page_needs_nothing_from_outside_and_every_figure_has_its_text(html):
    reader = Reader()
    reader.feed(html)
    assert len(reader.images) == 3
    assert all(len(image["alt"]) > 100 for image in reader.images)
    assert all(link.startswith("data:image/png;base64,") for link in reader.links)
    assert "script" not in reader.tags
    assert not re.search(r"https?://|@import|url\(", html)


def test_the_page_shows_the_verdict_first_and_every_losing_cell(found, html):
    assert html.index(found["verdict"]["sentence"][:40]) < html.index("<table")
    assert html.count('<th scope="col">text</th>') == 4
    for line in found["verdict"]["losing"]:
        assert line in html
    assert "too few to decide by" in html


def test_every_text_in_the_page_is_escaped(found):
    nasty = {**found, "cells": [], "settings": {**found["settings"], "target": "<script>alert(1)</script>"}}
    assert "<script>" not in page(nasty)
    assert "&lt;script&gt;" in page(nasty)


def test_the_csv_has_a_line_for_each_cell_and_unrounded_numbers(found):
    lines = list(csv.DictReader(io.StringIO(as_csv(found["cells"]))))
    assert len(lines) == 4
    for line, cell in zip(lines, found["cells"], strict=True):
        assert line["verdict"] == word(cell)
        assert float(line["speedup.median"]) == cell["speedup"]["median"]
        assert float(line["on.inter_token_ms.p95"]) == cell["on"]["inter_token_ms"]["p95"]
        assert [float(value) for value in line["on.survival"].split()] == cell["on"]["survival"]


def test_files_are_written_whole_or_not_at_all(tmp_path, monkeypatch):
    write(tmp_path / "a.json", {"first": 1})
    with pytest.raises(TypeError):
        write(tmp_path / "a.json", {"second": object()})
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"first": 1}


def test_the_command_writes_three_files_and_says_the_verdict(tmp_path, monkeypatch):
    few = {"texts": ("story",), "lengths": {"long": 4}}
    monkeypatch.setattr(plan_module, "QUICK", QUICK | few)
    monkeypatch.setattr("specdec_ref.pairs.load_pair", lambda name, **_: toy_pair(name))
    few_settings = ["--quick", "--k", "2", "--temperatures", "0", "--batches", "1"]
    arguments = ["experiment", "--pair", "tiny", "--drafter", "ngram", *few_settings, "--out", str(tmp_path)]
    found = CliRunner().invoke(build_app(), arguments)
    assert found.exit_code == 0, found.output
    assert "too few to decide by" in found.stdout
    assert {path.name for path in tmp_path.iterdir()} == {
        "plan.json",
        "cells",
        "experiment.json",
        "cells.csv",
        "report.html",
    }
    stored = json.loads((tmp_path / "experiment.json").read_text(encoding="utf-8"))
    assert [stored["settings"][one] for one in ("candidates", "temperatures", "batches")] == [[2], [0.0], [1]]
    assert stored["verdict"]["sentence"] in found.stdout


def test_the_command_refuses_bad_input_in_one_line(tmp_path):
    for wrong in (["--engine", "mine"], ["--k", "auto"], ["--batches", "1;2"], ["--drafter", "oracle"]):
        found = CliRunner().invoke(build_app(), ["experiment", "--out", str(tmp_path / "x"), *wrong])
        assert found.exit_code == 1
        assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(("drafter", "words"), [("model", "small"), ("ngram", "n-gram matches"), ("eagle", "eagle")])
def test_the_page_names_who_drafted(drafter, words):
    from specdec_course.experiment.page import _drafter

    assert _drafter({"drafter": drafter, "draft": "small"}) == words
