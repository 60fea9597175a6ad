"""Stage 05: the solutions are the reference's economics, and explorer and figures tell the same numbers."""

import math
import random
import re

import jupytext
import pytest
from matplotlib import pyplot as plt

from specdec_course import economics_figures as figures
from specdec_course.building.products import ROOT
from specdec_course.checks import find_exercise
from specdec_course.checks.judge import judge
from specdec_course.checks.observe import observe
from specdec_course.widgets import economics as explorer
from specdec_course.widgets.economics import MAX_DRAFT_TOKENS, Setting
from specdec_ref import economics, totals
from specdec_ref.measure import Run
from specdec_ref.rows import Round
from tests.course.solutions import solution_functions

EXERCISES = ("5.1", "5.2", "5.3", "5.4", "5.5")
FOLDER = ROOT / "source" / "05_when_it_pays"
TEXT = (FOLDER / "exercise.py").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def solution():
    return solution_functions("05_when_it_pays")


@pytest.fixture(scope="module")
def service():
    """What the cell of the made-up service defines, by name."""
    cells = jupytext.reads(TEXT, fmt="py:percent").cells
    (cell,) = [cell for cell in cells if cell.source.startswith("from specdec_ref.economics import")]
    names = {}
    exec(cell.source, names)
    return names


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    yield
    plt.close("all")


# --- the solutions and the reference


@pytest.mark.parametrize("name", EXERCISES)
def test_the_solution_and_the_reference_agree_on_the_same_inputs(name, solution):
    exercise = find_exercise(name)
    for seed in range(3):
        verdict = judge(exercise, observe(exercise, solution[exercise.function], seed), seed)
        assert verdict.status == "passed", verdict.message


def test_the_solution_s_tokens_and_speedups_are_those_of_the_reference(solution):
    source = random.Random(0)
    for _ in range(200):
        alpha, count = source.choice((source.random(), 0.0, 1.0, 1 - 1e-12)), source.randint(0, 12)
        emitted = float(economics.expected_tokens(alpha, count))
        assert solution["expected_tokens"](alpha, count) == pytest.approx(emitted, rel=1e-12)
        step, draft, verify = (source.uniform(0.01, 1) for _ in range(3))
        wanted = float(economics.speedup(alpha, count, draft / step, verify / step))
        assert solution["speedup"](alpha, count, step, draft, verify) == pytest.approx(wanted, rel=1e-12)


def test_the_bills_of_the_lesson_come_out_as_they_are_known(solution):
    assert solution["expected_tokens"](0.8, 5) == pytest.approx(3.68928)
    assert solution["expected_tokens"](1.0, 5) == 6
    found = [solution["speedup"](*one) for one in ((0.8, 5, 1, 0.1, 1), (0.8, 5, 1, 0.1, 2), (0.5, 4, 1, 0.3, 1))]
    assert [round(gain, 3) for gain in found] == [2.460, 1.476, 0.881]


def test_the_solution_s_best_length_is_that_of_the_reference(solution):
    source = random.Random(1)
    for _ in range(100):
        alpha, step, draft = source.random(), source.uniform(0.01, 1), source.uniform(0, 0.5)
        passes = [step, *(step * source.uniform(1, 4) for _ in range(source.randint(1, 10)))]
        ratios = [seconds / step for seconds in passes]
        wanted = economics.best_num_draft_tokens(alpha, draft / step, ratios, max_draft_tokens=len(passes) - 1)
        assert solution["best_num_draft_tokens"](alpha, draft, passes) == wanted


def test_the_solution_reads_alpha_from_a_trace_as_a_run_of_the_reference_does(solution):
    source = random.Random(2)
    for _ in range(50):
        traces = [[(n, source.randint(0, n)) for n in (source.randint(0, 5) for _ in range(8))] for _ in range(3)]
        runs = [Run([Round([[1] * (a + 1)], [[0] * d], [a], [None]) for d, a in trace]) for trace in traces]
        wanted = totals.Totals(runs).counts.alpha
        assert solution["estimate_alpha"](traces) == pytest.approx(wanted)
    assert math.isnan(solution["estimate_alpha"]([[(0, 0)]]))


def test_the_solution_reads_an_experiment_by_totals_and_keeps_the_prompt_apart(solution):
    times = {"a": ((1.0, 2.0), (1.5, 0.5)), "b": ((1.0, 20.0), (4.0, 18.0))}
    records = [
        {"prompt": name, "speculation": on, "prompt_s": side[0], "decode_s": side[1]}
        for name, sides in times.items()
        for on, side in enumerate(sides)
    ]
    found = solution["read_experiment"]([*records, {**records[0], "prompt": "c", "decode_s": 99.0}])
    assert found["decode_speedup"] == pytest.approx(economics.total_speedup([2, 20], [0.5, 18]))
    assert found["request_speedup"] == pytest.approx(economics.total_speedup([3, 21], [2, 22]))
    assert found["slower"] == ["b"]


# --- words


def test_the_written_recommendation_has_four_points_a_rubric_and_an_answer_with_the_numbers_of_the_records(service):
    _, marked, rest = TEXT.partition("# %% [markdown] manual_points=4\n")
    assert marked
    assert len(re.findall(r"^# [1-4]\. \*\*", TEXT, re.MULTILINE)) == 4
    answer = rest.split("END SOLUTION")[0]
    seconds = {
        f"{record[name]:.2f}"
        for texts_at_once in (1, 16)
        for record in service["experiment"](texts_at_once)
        for name in ("prompt_s", "decode_s")
    }
    named = set(re.findall(r"\d+\.\d\d", answer))
    assert len(named) >= 10
    assert named <= seconds


def test_the_kinds_of_the_made_up_service_are_all_of_its_requests(service):
    assert sum(share for *_, share in service["KINDS"].values()) == pytest.approx(1)


# --- the explorer


def test_the_explorer_says_what_the_reference_computes():
    found = explorer.worth(Setting(0.8, 5, 0.1, 1.0))
    assert (found.emitted, found.cost, found.gain) == pytest.approx((3.68928, 1.5, 3.68928 / 1.5))
    assert found.best == economics.best_num_draft_tokens(0.8, 0.1, 1.0, MAX_DRAFT_TOKENS) == 6
    edge = explorer.worth(Setting(found.break_even, 5, 0.1, 1.0))
    assert edge.gain == pytest.approx(1)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (Setting(0.8, 5, 0.1, 1.0), "2.46 times as fast as plain decoding"),
        (Setting(0.8, 5, 0.1, 2.0), "1.48 times as fast as plain decoding"),
        (Setting(0.5, 4, 0.3, 1.0), "slower than plain decoding, 0.88 times its speed"),
        (Setting(0.9, 1, 0.5, 4.0), "no alpha is enough to break even"),
        (Setting(0.9, 3, 0.0, 1.0), "any alpha breaks even"),
        (Setting(0.3, 3, 0.9, 2.0), "The best K is 0: do not speculate."),
        (Setting(0.9, 0, 0.1, 1.5), "K = 0 is plain decoding"),
    ],
)
def test_the_explorer_tells_gains_losses_and_edges_in_words(setting, words):
    assert words in explorer.describe(setting)


def test_the_explorer_marks_the_chosen_and_the_best_length_and_the_break_even_line():
    left, right = explorer.draw(Setting(0.5, 4, 0.3, 1.0)).axes
    chosen, best = left.lines[2], left.lines[3]
    assert (chosen.get_xdata()[0], chosen.get_ydata()[0]) == (4, pytest.approx(0.881, abs=5e-4))
    assert (best.get_xdata()[0], best.get_label()) == (1, "best K = 1")
    assert list(left.lines[1].get_ydata()) == [1, 1]
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["break-even: 1", "best K of each alpha"]


@pytest.mark.parametrize(
    "setting", [(0.0, 0, 0.0, 1.0), (1.0, MAX_DRAFT_TOKENS, 0.0, 1.0), (0.0, MAX_DRAFT_TOKENS, 1.0, 6.0)]
)
def test_the_explorer_draws_the_corners_of_its_sliders(setting):
    setting = Setting(*setting)
    assert explorer.draw(setting).axes
    assert "nan" not in explorer.describe(setting)


def test_moving_a_slider_changes_the_picture_and_its_words(monkeypatch):
    shown = []
    monkeypatch.setattr(explorer, "show_widget", lambda *parts: shown.append(parts))
    explorer.explore()
    box, static, words = shown[0]
    alpha, count, draft, verify, view = box.children
    assert view.value == static
    assert words in static
    assert f'alt="{words}"' in static
    verify.value = 2.0
    assert "1.48 times as fast" in view.value
    alpha.value, count.value, draft.value = 0.5, 4, 0.3
    assert f'alt="{explorer.describe(Setting(0.5, 4, 0.3, 2.0))}"' in view.value


# --- figures


def test_the_bills_show_a_slowdown_as_one():
    figure = figures.draw_bills({"good": (0.8, 5, 0.1, 1.0), "bad": (0.5, 4, 0.3, 1.0)})
    words = [text.get_text() for text in figure.axes[0].texts]
    assert "2.46x, faster" in words
    assert "0.88x, SLOWER" in words


def test_predicted_and_measured_stand_beside_each_other_with_the_line_of_plain_decoding():
    figure = figures.draw_agreement({"code": (1.9, 1.8), "story": (0.9, 0.8)})
    (axes,) = figure.axes
    assert [bar.get_height() for bar in axes.patches] == [1.9, 0.9, 1.8, 0.8]
    assert "plain decoding" in [text.get_text() for text in axes.get_legend().get_texts()]


def test_lines_of_a_figure_differ_in_more_than_colour():
    curves = {name: {1: 1.0, 4: 2.0} for name in ("a", "b", "c")}
    drawn = [
        figures.draw_tokens([0.5, 0.7, 0.9]).axes[0].lines[1:],
        figures.draw_survival({name: [0.9, 0.5] for name in curves}, "title").axes[0].lines,
        figures.draw_requests([1, 4], {name: list(c.values()) for name, c in curves.items()}, 2.0).axes[0].lines[:3],
        figures.draw_batches({"one": curves}, {"one": 1.0}).axes[0].lines[:3],
        figures.draw_temperatures(curves).axes[0].lines,
    ]
    for lines in drawn:
        looks = {(line.get_marker(), line.get_linestyle()) for line in lines}
        assert len(looks) == len(lines) >= 3


def test_a_survival_curve_starts_with_all_rounds():
    (line,) = figures.draw_survival({"one": [0.5, 0.25]}, "title").axes[0].lines
    assert list(line.get_ydata()) == [1, 0.5, 0.25]
