"""Stage 02: the solutions decide as the reference does on the same numbers, and their texts follow the target's law."""

import re

import pytest
import torch
from matplotlib import pyplot as plt

from specdec_course import acceptance_figures as figures
from specdec_course.building.products import ROOT
from specdec_course.checks import find_exercise, find_question, laws
from specdec_course.checks.judge import judge
from specdec_course.checks.observe import observe
from specdec_course.widgets import red_blue
from specdec_ref.acceptance import Verification, residual, verify_chain
from specdec_ref.law import round_law, sampled_drafts, speculative_law, target_law
from tests.course.solutions import solution_functions

EXERCISES = ("2.1", "2.2", "2.3", "2.4", "2.5", "2.6")
FOLDER = ROOT / "source" / "02_accept_or_correct"


@pytest.fixture(scope="module")
def solution():
    return solution_functions("02_accept_or_correct")


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    yield
    plt.close("all")


def tables(seed, count=2, vocab=3):
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(count, vocab, vocab, vocab, generator=generator, dtype=torch.float64) ** 2 + 0.01
    return weights / weights.sum(-1, keepdim=True)


def random_block(seed, vocab=5):
    generator = torch.Generator().manual_seed(seed)
    width = 1 + seed % 4
    weights = torch.rand(2, width + 1, vocab, generator=generator, dtype=torch.float64) ** 2 + 0.01
    p, q = weights / weights.sum(-1, keepdim=True)
    tokens = torch.randint(vocab, (width,), generator=generator)
    numbers = torch.rand(width + 1, generator=generator, dtype=torch.float64)
    return p, q[:-1], tokens, numbers[:-1] ** 2, float(numbers[-1])


def reference_text(p, q, tokens, accept_uniforms, correct_uniform):
    uniforms = accept_uniforms[None], torch.tensor([correct_uniform], dtype=torch.float64)
    verdict = verify_chain(p[None], tokens[None], None if q is None else q[None], *uniforms)
    return [*tokens[: int(verdict.num_accepted)].tolist(), int(verdict.next_token)]


# --- solutions and reference


@pytest.mark.parametrize("name", EXERCISES)
def test_the_solution_passes_its_check_with_every_seed(name, solution):
    exercise = find_exercise(name)
    for seed in range(3):
        verdict = judge(exercise, observe(exercise, solution[exercise.function], seed), seed)
        assert verdict.status == "passed", verdict.message
        assert verdict.points == exercise.points


def test_the_solution_judges_random_blocks_as_the_reference_does_with_the_same_uniform_numbers(solution):
    lengths = set()
    for seed in range(60):
        block = random_block(seed)
        text = solution["judge_block"](*block)
        assert text == reference_text(*block)
        lengths.add(len(text))
    assert lengths == {1, 2, 3, 4, 5}


def test_one_step_of_the_solution_is_a_block_of_one_draft(solution):
    for seed in range(0, 80, 4):
        p, q, tokens, accept, correct = random_block(seed)
        step = solution["accept_or_correct"](p[0], q[0], int(tokens[0]), float(accept[0]), correct)
        assert step == reference_text(p, q, tokens, accept, correct)[0]
        assert torch.equal(solution["residual"](p[0], q[0]), residual(p[0], q[0]))


def test_the_argmax_draft_of_the_solution_is_the_reference_s_draft_without_a_law(solution):
    for seed in range(0, 80, 4):
        p, q, _, accept, correct = random_block(seed)
        token = q[0].argmax()[None]
        mine = solution["judge_argmax_draft"](p[0], q[0], float(accept[0]), correct)
        assert mine == reference_text(p, None, token, accept, correct)[0]


def test_texts_of_the_solution_have_the_target_s_law_to_rounding(solution):
    target, draft = tables(1)

    def verify(p, tokens, q, accept_uniforms, correct_uniforms, num_drafted=None):
        numbers = zip(p, q, tokens, accept_uniforms, correct_uniforms.tolist(), strict=True)
        texts = [solution["judge_block"](*row) for row in numbers]
        return Verification(torch.tensor([len(t) - 1 for t in texts]), torch.tensor([t[-1] for t in texts]))

    law = speculative_law(target, lambda text: sampled_drafts(draft, text, 2), (0, 1), 3, 1, verify=verify)
    assert float((law - target_law(target, (0, 1), 3)).abs().max()) < 1e-12


def test_the_acceptance_rate_of_the_solution_is_the_share_of_rounds_that_emit_two_tokens(solution):
    target, draft = tables(2)
    rates = solution["acceptance_rate"](target, draft)
    for a, b in ((0, 1), (2, 2), (1, 0)):
        _, two = round_law(target, sampled_drafts(draft, (a, b), 1), (a, b))
        assert float(rates[a, b]) == pytest.approx(float(two.sum()), abs=1e-12)


# --- words


def test_every_section_that_a_message_names_is_a_heading_of_the_lesson():
    headings = set(re.findall(r"^# #+ (.+)$", (FOLDER / "lesson.py").read_text(encoding="utf-8"), re.MULTILINE))
    for name in EXERCISES:
        exercise = find_exercise(name)
        sections = {exercise.section, *(mistake.section for mistake in exercise.mistakes if mistake.section)}
        assert sections <= headings, sections - headings


def test_the_table_of_exercises_says_what_the_checks_say():
    text = (FOLDER / "exercise.py").read_text(encoding="utf-8")
    for name in EXERCISES:
        one = find_exercise(name)
        assert f"| {name} {one.title} | {one.points} | {one.difficulty} of 5 | {one.minutes} |" in text
        assert f"## {name} {one.title}" in text
        assert f"*{one.points} points, difficulty {one.difficulty} of 5, {one.minutes} minutes*" in text


def test_every_concept_check_is_asked_and_explains_every_choice():
    text = (FOLDER / "exercise.py").read_text(encoding="utf-8")
    for name in ("2.a", "2.b", "2.c", "2.d"):
        assert f'quiz("{name}")' in text
        assert all(len(choice.explanation) > 20 for choice in find_question(name).choices)


# --- tools of the checks


def test_a_spread_of_uniform_numbers_counts_alike_whatever_the_order_of_the_pieces():
    probs = laws.law(0.25, 0.0, 0.5, 0.25)
    for order in ([0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]):
        arguments = {"probs": probs[order], "correct_uniform": laws.spread(4).make()}
        drawn = laws.for_each_uniform(laws.draw, arguments)
        assert sorted(order[place] for place in drawn) == [0, 2, 2, 3]


def test_forced_laws_leave_the_correction_no_choice():
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        p, q = laws.forced(generator)
        assert float(p.sum()) == pytest.approx(1)
        assert int((residual(p, q) > 0).sum()) == 1


def test_a_draw_never_gives_a_token_of_probability_0_nor_one_past_the_end():
    probs = laws.law(0.0, 0.3, 0.0, 0.7, 0.0)
    assert {laws.draw(probs, place / 1000) for place in range(1000)} == {1, 3}
    assert laws.draw(probs, 1 - 2**-53) == 3


# --- widget and figures


@pytest.mark.parametrize(("p", "q"), [(0.5, 0.8), (0.9, 0.3), (0.5, 0.5), (0.0, 1.0)])
def test_accepted_and_corrected_mass_fill_up_to_p(p, q):
    accepted, refused, corrected = red_blue.masses(p, q)
    assert [a + c for a, c in zip(accepted, corrected, strict=True)] == pytest.approx([p, 1 - p])
    assert sum(refused) == pytest.approx(sum(corrected))


def test_a_replacement_from_p_is_shown_to_give_65_and_35():
    accepted, _, corrected = red_blue.masses(0.5, 0.8, red_blue.WRONG)
    assert [a + c for a, c in zip(accepted, corrected, strict=True)] == pytest.approx([0.65, 0.35])
    assert "red with 0.65 and blue with 0.35" in red_blue.describe(0.5, 0.8, red_blue.WRONG)


def test_moving_a_slider_changes_the_picture_and_its_words(monkeypatch):
    shown = []
    monkeypatch.setattr(red_blue, "show_widget", lambda *parts: shown.append(parts))
    red_blue.explore()
    box, static, words = shown[0]
    target, draft, choice, view = box.children
    assert view.value == static
    assert words in static
    draft.value = 0.5
    assert "Refused: 0.00" in view.value
    assert f'alt="{red_blue.describe(0.5, 0.5)}"' in view.value
    target.value, choice.value = 0.2, red_blue.WRONG
    assert red_blue.describe(0.2, 0.5, red_blue.WRONG) in view.value


def test_the_block_s_figure_tells_what_each_row_was_used_for():
    refused = figures.draw_block(["a", "b", "c"], [0.5, 0.5, 0.5], [0.1, 0.9, 0.1], num_accepted=1)
    words = [text.get_text() for text in refused.axes[0].texts]
    assert "u = 0.90, min(1, p/q) = 0.50: refused, and the correction comes from this row" in words
    assert "u = 0.10, min(1, p/q) = 0.50: would pass, but stands after a refused token" in words
    assert "not used: no bonus" in words
    passed = figures.draw_block(["a"], [0.5], [0.1], num_accepted=1)
    assert "all passed: the bonus token comes from here" in [text.get_text() for text in passed.axes[0].texts]


def test_laws_that_miss_the_target_are_hatched():
    figure = figures.draw_laws([0.5, 0.5], {"right": [0.5, 0.5], "wrong": [0.65, 0.35]}, columns=2)
    hatches = [{bar.get_hatch() for bar in axes.patches} for axes in figure.axes]
    assert hatches == [{""}, {"xx"}]


def test_shares_and_overlap_are_drawn_with_names():
    shares = figures.draw_shares([10, 100], {"right": [0.4, 0.5], "wrong": [0.6, 0.65]}, wanted=0.5, reach=4.9)
    assert [text.get_text() for text in shares.axes[0].get_legend().get_texts()][1:] == ["right", "wrong"]
    overlap = figures.draw_overlap([0.5, 0.5], [0.8, 0.2])
    assert len(overlap.axes[0].get_legend().get_texts()) == 3
