"""Stage 06: the solutions are the reference's drafters and verdicts, and lesson and figures tell their numbers."""

import random

import pytest
import torch
from matplotlib import pyplot as plt

from specdec_course import lookup_figures as figures
from specdec_course.building.products import ROOT
from specdec_course.checks import find_exercise
from specdec_course.checks.judge import judge
from specdec_course.checks.laws import draw as inverse
from specdec_course.checks.observe import observe
from specdec_course.method_figures import report
from specdec_ref.acceptance import Verification, verify_chain
from specdec_ref.decode import collect, generate, speculate
from specdec_ref.drafters import LayerChoice, LayerSkipDrafter, NgramDrafter
from specdec_ref.drafters.chain import draw_chain
from specdec_ref.drafters.ngram import SuffixIndex
from specdec_ref.economics import speedup
from specdec_ref.law import fixed_draft, speculative_law, target_law
from specdec_ref.pairs import load_pair
from specdec_ref.rows import Round, Rows, Stop
from specdec_ref.sampling import GREEDY, Purpose, SamplingSettings
from specdec_ref.training.layer_skip import SkipPlan, search
from tests.course.solutions import solution_functions

EXERCISES = ("6.1", "6.2", "6.3", "6.4", "6.5")
FOLDER = ROOT / "source" / "06_no_second_model"
TEXT = (FOLDER / "exercise.py").read_text(encoding="utf-8")
LESSON = (FOLDER / "lesson.py").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def solution():
    return solution_functions("06_no_second_model")


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    yield
    plt.close("all")


def random_texts(count, seed=0):
    source = random.Random(seed)
    for _ in range(count):
        yield [source.randrange(source.randint(1, 6)) for _ in range(source.randint(1, 20))], source


# --- the solutions and the reference


@pytest.mark.parametrize("name", EXERCISES)
def test_the_solution_and_the_check_agree(name, solution):
    exercise = find_exercise(name)
    for seed in range(3):
        verdict = judge(exercise, observe(exercise, solution[exercise.function], seed), seed)
        assert verdict.status == "passed", verdict.message


def test_the_solution_copies_what_the_reference_copies(solution):
    for text, source in random_texts(300):
        longest, limit = source.randint(1, 4), source.randint(0, 5)
        wanted = SuffixIndex(longest, 1).continuation(list(text), limit)
        assert solution["copy_draft"](text, limit, longest) == wanted


def test_the_solution_s_index_is_that_of_the_reference_after_every_round(solution):
    for text, source in random_texts(100, seed=1):
        reference, mine, seen = SuffixIndex(3, 1), {}, 0
        while seen < len(text):
            upto = min(len(text), seen + source.randint(1, 4))
            reference.continuation(text[:upto], 1)
            solution["index_new"](mine, text[:upto], seen, 3)
            seen = upto
            assert mine == reference.follower


def test_the_solution_judges_a_copy_as_the_reference_does_with_the_same_numbers(solution):
    source = torch.Generator().manual_seed(2)
    for _ in range(200):
        count, vocab = (int(torch.randint(*span, (), generator=source)) for span in ((0, 5), (2, 6)))
        p = torch.randn(count + 1, vocab, generator=source, dtype=torch.float64).softmax(-1)
        tokens = torch.randint(vocab, (1, count), generator=source)
        accept, correct = (torch.rand(1, size, generator=source, dtype=torch.float64) for size in (count, 1))
        verdict = verify_chain(p[None], tokens, None, accept, correct[0])
        wanted = [*tokens[0, : verdict.num_accepted[0]].tolist(), int(verdict.next_token[0])]
        assert solution["judge_copy"](p, tokens[0].tolist(), accept[0], float(correct[0, 0])) == wanted


def test_the_law_of_the_solution_s_texts_is_the_target_s_to_the_last_digit(solution):
    table = torch.randn(3, 3, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64).softmax(-1)

    def verify(target_probs, draft_tokens, draft_probs, accept_uniforms, correct_uniforms, num_drafted=None, **_):
        assert draft_probs is None
        rows = [
            solution["judge_copy"](p, tokens.tolist(), accept, float(correct))
            for p, tokens, accept, correct in zip(
                target_probs, draft_tokens, accept_uniforms, correct_uniforms, strict=True
            )
        ]
        return Verification(torch.tensor([len(row) - 1 for row in rows]), torch.tensor([row[-1] for row in rows]))

    law = speculative_law(table, lambda text: fixed_draft(text[-2:]), (0, 1), length=2, rounds=2, verify=verify)
    torch.testing.assert_close(law, target_law(table, (0, 1), 2), atol=1e-12, rtol=0)


def test_the_solution_finds_the_layers_that_the_reference_s_search_finds(solution):
    source = random.Random(4)
    for _ in range(50):
        number = source.randint(2, 6)
        sets = [tuple(i for i in range(number) if mask >> i & 1) for mask in range(1, 2**number)]
        worth = {kept: source.random() for kept in sets}
        choice, _ = search(
            lambda kept, worth=worth: {"speedup": worth[tuple(kept)], "stop_below": 0.0},
            number,
            SkipPlan(patience=number),
            {},
            lambda journal: None,
        )
        assert solution["choose_layers"](worth, number) == list(choice.kept)


@pytest.mark.parametrize("stop_below", [0.0, 0.4, 0.6])
def test_the_solution_s_draft_ends_where_the_reference_s_chain_ends(stop_below, solution):
    table = (2 * torch.randn(5, 5, generator=torch.Generator().manual_seed(5), dtype=torch.float64)).softmax(-1)
    for seed in range(20):
        rows = Rows([[0, seed % 5]], SamplingSettings(1.0), 9, 512, Stop(), [seed], torch.device("cpu"))
        first = table[seed % 5].log()[None]
        chain = draw_chain(rows, torch.tensor([4]), first, lambda t: table[t[:, 0]].log(), stop_below=stop_below)
        mine = solution["draft_until_unsure"](
            lambda tokens, last=seed % 5: table[tokens[-1] if tokens else last],
            lambda law, uniform: inverse(law, float(uniform)),
            rows.uniforms(Purpose.DRAFT, 4)[0],
            stop_below,
        )
        assert mine == chain.tokens[0, : int(chain.counts[0])].tolist()


# --- what the lesson says


def test_a_drawn_token_that_is_dropped_changes_the_law_as_the_lesson_says():
    p, q = torch.tensor([0.2, 0.4, 0.4]), torch.tensor([0.4, 0.4, 0.2])
    kept = torch.minimum(p, q) * torch.tensor([1.0, 1.0, 0.0])  # token 2 is dropped: a plain draw instead
    refused = (q - torch.minimum(p, q)).sum() * torch.tensor([0.0, 0.0, 1.0])
    torch.testing.assert_close(kept + refused + q[2] * p, torch.tensor([0.24, 0.48, 0.28]))
    assert any(".24/.48/.28" in mistake.why for mistake in find_exercise("6.5").mistakes)


def test_with_one_layer_of_thirty_left_out_drafts_that_are_never_refused_gain_next_to_nothing():
    layer = 2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536
    share = 1 - layer / (30 * layer + 49152 * 576)
    assert share == pytest.approx(0.974, abs=5e-4)
    assert float(speedup(1.0, 3, share, 1.1)) < 1 < float(speedup(1.0, 5, share, 1.1)) < 1.01
    assert float(speedup(1.0, 1000, share, 1.1)) < 1 / share < 1.03
    assert max(float(speedup(0.95, count, share, 1.1)) for count in range(1, 30)) < 1


def test_the_recorded_run_is_as_the_lesson_reads_it():
    drafters = report()["drafters"]
    ngram, skip, model = (drafters[name]["suites"] for name in ("ngram", "layer-skip", "model"))
    assert all(ngram[suite]["speedup"] > 1 > skip[suite]["speedup"] for suite in ngram)
    assert max(ngram, key=lambda suite: ngram[suite]["speedup"]) == "code-edit"
    assert skip["all"]["emitted_per_round"] > ngram["all"]["emitted_per_round"]
    assert skip["all"]["draft_step_ms"] > 0.9 * skip["all"]["verify_ms"]
    assert model["all"]["speedup"] > ngram["all"]["speedup"]
    assert [drafters[name]["extra_memory_bytes"] > 0 for name in ("model", "ngram", "layer-skip")] == [
        True,
        False,
        False,
    ]


def test_tiny_stories_are_those_of_plain_decoding_for_both_drafters():
    pair = load_pair("tiny")
    prompt = pair.tokenizer.encode("Once upon a time there was a fox.")
    plain = collect(generate(pair.target, [prompt], GREEDY, max_new_tokens=24))
    for drafter in (NgramDrafter(), LayerSkipDrafter(LayerChoice((0,), 0.6))):
        assert collect(speculate(pair.target, drafter, [prompt], GREEDY, max_new_tokens=24)) == plain


# --- figures


def round_of(drafted, accepted):
    return Round([[1] * (accepted + 1)], [[0] * drafted], [accepted], [None])


def test_a_round_is_told_by_what_became_of_its_draft():
    assert [figures.outcome(round_of(*one)) for one in ((0, 0), (3, 0), (3, 2))] == ["none", "refused", "accepted"]


def test_rounds_along_a_text_are_as_wide_as_their_tokens_and_follow_one_another():
    rounds = [round_of(0, 0), round_of(4, 4), round_of(3, 0)]
    (axes,) = figures.draw_along({"text": rounds}).axes
    bars = [bar for bar in axes.patches if bar.get_height() > 0]
    assert [(bar.get_x(), bar.get_width(), bar.get_height()) for bar in bars] == [(0, 1, 1), (1, 5, 5), (6, 1, 1)]
    assert len({bar.get_hatch() for bar in bars}) == 3


def test_a_match_shows_each_token_once_and_the_copy_behind_the_text():
    words = ["a", "b", "c", "a", "b"]
    (axes,) = figures.draw_match(words, range(2), range(3, 5), range(2, 4), ["c", "a"], width=4).axes
    assert [text.get_text() for text in axes.texts] == [*words, "c", "a"]
    hatches = [box.get_hatch() for box in axes.patches]
    assert hatches[0] == hatches[1]
    assert hatches[3] == hatches[4] == "\\\\"  # the suffix, though place 3 also follows the match


def test_a_shared_cache_is_empty_in_skipped_layers_until_the_target_verifies():
    before, after = figures.draw_shared_cache(3, kept=(0, 2), text=2, drafted=1).axes
    white = [box.get_facecolor()[:3] == (1, 1, 1) for box in before.patches]
    assert sum(white) == 1
    assert not any(box.get_facecolor()[:3] == (1, 1, 1) for box in after.patches)


def test_the_limit_of_layer_skipping_falls_below_plain_decoding_and_lines_differ_in_more_than_colour():
    figure = figures.draw_limit([1, 3, 5], 1.1, {"one": (0.974, 0.9), "two": (0.5, 1.3)})
    lines = figure.axes[0].lines[:3]
    assert len({line.get_linestyle() for line in lines}) == 3
    assert all(line.get_ydata()[0] > 1 > line.get_ydata()[-1] for line in lines)
    marks = figure.axes[0].lines[3:5]
    assert len({line.get_marker() for line in marks}) == 2


def test_layers_are_drawn_with_a_line_for_each_model():
    left, right = figures.draw_layers({"first": {"a": [0.5, 0.9], "b": [0.2]}, "second": {"a": [1.0, -0.1]}}).axes
    assert [len(line.get_xdata()) for line in left.lines] == [2, 1]
    assert right.get_ylim()[0] <= -0.1
