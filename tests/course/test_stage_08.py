"""Stage 08: the solutions are the reference's EAGLE, the lesson's numbers hold, and the figures say what they show."""

from __future__ import annotations

import re

import jupytext
import pytest
import torch
from matplotlib import pyplot as plt
from torch import nn
from torch.nn import functional

from specdec_course import eagle_figures as figures
from specdec_course.building.products import ROOT
from specdec_course.checks import find_exercise
from specdec_course.checks.judge import judge
from specdec_course.checks.observe import observe
from specdec_course.checks.replay import picture_of
from specdec_course.checks.stage_08 import ToyHead
from specdec_course.eagle_training import along, read_stories, train_head
from specdec_ref import law
from specdec_ref.acceptance import accept_probability
from specdec_ref.decode import collect, generate, speculate
from specdec_ref.drafters import EagleDrafter
from specdec_ref.pairs import load_pair
from specdec_ref.sampling import GREEDY, SamplingSettings, draw, probabilities
from tests.course.solutions import solution_functions
from tests.ref.helpers import tiny_lm
from tests.ref.test_eagle_drafter import ODD, new_head

EXERCISES = ("8.1", "8.2", "8.3", "8.4", "8.5")
FOLDER = ROOT / "source" / "08_eagle"
TEXT = (FOLDER / "exercise.py").read_text(encoding="utf-8")
LESSON = (FOLDER / "lesson.py").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def solution():
    return solution_functions("08_eagle")


@pytest.fixture(scope="module")
def tiny():
    return load_pair("tiny", device="cpu")


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    yield
    plt.close("all")


def run_cell(beginning, **names):
    """Run the lesson's cell that holds `beginning`, and return its names."""
    cells = jupytext.reads(LESSON, fmt="py:percent").cells
    (cell,) = [cell for cell in cells if cell.cell_type == "code" and beginning in cell.source]
    names = {"torch": torch, **names}
    exec(cell.source, names)
    return names


# --- the solutions and the reference


@pytest.mark.parametrize("name", EXERCISES)
def test_the_solution_and_the_reference_agree_on_the_same_inputs(name, solution):
    exercise = find_exercise(name)
    for seed in range(3):
        verdict = judge(exercise, observe(exercise, solution[exercise.function], seed), seed)
        assert verdict.status == "passed", verdict.message


class Recording(EagleDrafter):
    """Notes what each round fed, forgot and was given."""

    def __init__(self, head):
        super().__init__(head)
        self.log = []

    def fresh(self, target, rows):
        other = super().fresh(target, rows)
        other.log = self.log
        return other

    def propose(self, rows, limits):
        held, count = int(self.cache.lengths[0]), int(self.counts[0])
        self.log.append({"last": rows.tokens[0][-1], "fed": (self.features[0, :count], rows.tokens[0][held + 1 :])})
        draft = super().propose(rows, limits)
        self.log[-1] |= {"draft": draft.tokens[0].tolist(), "held": int(self.cache.lengths[0])}
        return draft

    def commit(self, verification):
        super().commit(verification)
        accepted, following = int(verification.num_accepted[0]), int(verification.next_token[0])
        self.log[-1] |= {"accepted": accepted, "next": following}
        self.log[-1]["forgot"] = self.log[-1]["held"] - int(self.cache.lengths[0])


@torch.inference_mode()
def test_the_solution_s_pairs_are_those_that_the_reference_s_head_is_fed(solution):
    target, prompt = tiny_lm(), [5, 9, 2, 7, 7]
    head = new_head(target)
    head.feature_norm, head.token_norm = nn.Identity(), nn.Identity()
    seen = []
    head.fuse.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][0]))
    list(speculate(target, EagleDrafter(head), [prompt], GREEDY, num_draft_tokens=2, max_new_tokens=3))
    features = target.fresh(1).prefill_with_features([prompt[:-1]])[0]
    torch.testing.assert_close(seen[0], solution["head_inputs"](features, head.embedding, prompt))


def test_the_solution_draws_what_the_reference_draws(solution):
    source = torch.Generator().manual_seed(1)
    for _ in range(200):
        kept = torch.randperm(12, generator=source)[:5].sort().values
        logits = torch.randn(5, generator=source, dtype=torch.float64)
        top_k, uniform = int(torch.randint(1, 8, (), generator=source)), torch.rand((), generator=source).double()
        token, q = solution["draft_token"](logits, kept, 12, top_k, float(uniform))
        wide = torch.full((12,), -torch.inf, dtype=torch.float64).index_copy(0, kept, logits)
        wanted = probabilities(wide, SamplingSettings(1.0, top_k=top_k))
        torch.testing.assert_close(q, wanted)
        assert token == int(draw(wanted, uniform))


def test_drafts_from_a_small_vocabulary_leave_the_target_s_law_as_it_is(solution):
    """By counting every outcome, to rounding: the law of the first emitted token is p, whatever q lacks."""
    source = torch.Generator().manual_seed(2)
    table = torch.randn(5, 5, 5, generator=source, dtype=torch.float64).softmax(-1)
    logits = torch.randn(3, generator=source, dtype=torch.float64)
    _, q = solution["draft_token"](logits, torch.tensor([0, 2, 3]), 5, 2, 0.1)
    tokens = q.nonzero()  # [D, 1]
    drafts = law.Drafts(tokens, q[tokens[:, 0]], q.expand(len(tokens), 1, -1))
    emitted = law.round_law(table, drafts, (1, 4))
    torch.testing.assert_close(emitted[0] + emitted[1].sum(1), table[1, 4], atol=1e-12, rtol=0)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_solution_forgets_and_reads_what_the_reference_s_drafter_does(solution, count):
    target = tiny_lm()
    drafter, seen = Recording(new_head(target, ODD)), set()
    for prompt in ([5, 9, 2], [3, 1, 4, 1], [8, 8]):
        drafter.log.clear()
        list(speculate(target, drafter, [prompt], GREEDY, num_draft_tokens=count, max_new_tokens=25))
        for before, after in zip(drafter.log, drafter.log[1:], strict=False):
            features, tokens = after["fed"]
            padded = torch.cat([features, features.new_zeros(count + 1 - len(features), features.shape[1])])
            own = torch.zeros(len(before["draft"]), features.shape[1])
            said = [before[name] for name in ("last", "draft", "accepted", "next")]
            done = solution["after_round"](*said, own, padded)
            assert done["forget"] == before["forgot"]
            assert done["tokens"] == tokens
            torch.testing.assert_close(done["features"], features)
            seen.add(before["accepted"])
    assert 0 in seen


class Uncached:
    """A trained head as the exercise uses it, without a cache."""

    def __init__(self, head):
        self.head, self.features, self.tokens = head, torch.zeros(0, head.shape.width), []

    @torch.inference_mode()
    def read(self, features, tokens):
        self.features, self.tokens = torch.cat([self.features, features]), [*self.tokens, *tokens]

        def attend(query, key, value):
            return functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

        positions = torch.arange(1, len(self.tokens) + 1)[None]
        return self.head(self.features[None], torch.tensor([self.tokens]), positions, attend)[0, -len(tokens) :]

    def logits(self, feature):
        return self.head.logits(feature)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_solution_s_chain_is_the_reference_s_draft(solution, tiny, temperature):
    settings, prompt = SamplingSettings(temperature), tiny.tokenizer.encode("Once upon a time there was a shy fox")
    drafter = tiny.drafter("eagle")
    found = {}

    class Keeping(EagleDrafter):
        def propose(self, rows, limits):
            found["draft"] = super().propose(rows, limits)
            found["uniforms"] = rows.uniforms(1, 4)[0]  # of drafting
            return found["draft"]

    next(speculate(tiny.target, Keeping(drafter.head), [prompt], settings, num_draft_tokens=4, max_new_tokens=20))
    features = tiny.target.fresh(1).prefill_with_features([prompt[:-1]])[0]

    def pick(logits, uniform):
        wide = torch.full((tiny.target.vocab_size,), -torch.inf).index_copy(0, drafter.head.draft_to_target, logits)
        chosen = probabilities(wide, settings)
        return int(draw(chosen, uniform)), chosen

    tokens, laws = solution["draft_chain"](Uncached(drafter.head), features, prompt[1:], found["uniforms"], pick)
    assert tokens == found["draft"].tokens[0].tolist()
    if temperature:
        torch.testing.assert_close(torch.stack(laws), found["draft"].probs[0], atol=1e-5, rtol=0)


def test_the_solution_s_acceptance_is_what_the_rule_accepts_and_never_above_the_ceiling(solution):
    source = torch.Generator().manual_seed(4)
    for _ in range(50):
        kept = torch.randperm(9, generator=source)[:4].sort().values
        p = torch.randn(3, 9, generator=source, dtype=torch.float64).softmax(-1)
        logits = torch.randn(3, 4, generator=source, dtype=torch.float64)
        q = logits.softmax(-1)
        cost = solution["vocabulary_cost"](p, logits, kept)
        assert cost["alpha"] == pytest.approx(float((q * accept_probability(p[:, kept], q)).sum(-1).mean()))
        assert cost["alpha"] <= cost["ceiling"] + 1e-12
        perfect = solution["vocabulary_cost"](p, p[:, kept].log(), kept)  # q is p, cut and scaled: nothing does better
        assert perfect["alpha"] == pytest.approx(perfect["ceiling"])


def test_the_toy_head_reads_pairs_one_by_one_as_it_reads_them_together():
    features, tokens = torch.randn(3, 4, dtype=torch.float64), [1, 5, 2]
    together, apart = ToyHead(3), ToyHead(3)
    outputs = [apart.read(features[i : i + 1], tokens[i : i + 1])[0] for i in range(3)]
    torch.testing.assert_close(together.read(features, tokens), torch.stack(outputs))
    assert together.pairs == apart.pairs
    with pytest.raises(ValueError, match="a row a token"):
        together.read(features, tokens[:2])


def test_the_replay_of_a_clean_up_names_each_feature_by_where_it_comes_from():
    def keeps_own(last_token, draft_tokens, num_accepted, next_token, own_features, target_features):
        features = torch.cat([own_features[:num_accepted], target_features[num_accepted : num_accepted + 1]])
        forget, tokens = max(0, len(draft_tokens) - 1), [*draft_tokens[:num_accepted], next_token]
        return {"forget": forget, "features": features, "tokens": tokens}

    exercise = find_exercise("8.3")
    picture = picture_of(exercise, judge(exercise, observe(exercise, keeps_own)))
    assert re.fullmatch(r"right: forget \d, then read \(the target's feature 0; \d\).*", picture.lines[1])
    assert "own feature 0" in picture.lines[2]
    broken = picture_of(exercise, judge(exercise, observe(exercise, lambda *arguments: 1 / 0)))
    assert broken.lines[2] == "yours: ZeroDivisionError: division by zero"


# --- the lesson's numbers


def test_in_the_small_world_the_pair_knows_all_and_each_half_less():
    found = run_cell("small_world = {")["small_world"]
    assert found["both"] == pytest.approx(1)
    assert max(found["the feature"], found["the token"]) < 0.9


def test_of_the_lesson_s_four_ways_to_draw_and_judge_only_the_matching_ones_are_exact(capsys):
    run_cell("def emitted")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[1:]] == ["exact", "exact", "WRONG", "WRONG"]


def test_training_in_the_lesson_gives_a_head_that_drafts_and_notes_how_it_learned(tiny, tmp_path):
    assert read_stories(tiny, tmp_path, 60) > 3000
    trained = train_head(tiny, tmp_path, epochs=1, passes=1, look_every=3, say=False)
    assert trained.losses[-1] < trained.losses[0]
    assert [steps for steps, _ in trained.looks][-1] == len(trained.losses)
    prompt = tiny.tokenizer.encode("In the garden Ben found")
    plain = collect(generate(tiny.target, [prompt], GREEDY, max_new_tokens=12))
    rounds = speculate(tiny.target, EagleDrafter(trained.head), [prompt], GREEDY, max_new_tokens=12)
    assert collect(rounds) == plain


def test_hits_along_an_answer_are_those_of_drafting_from_each_of_its_places(tiny):
    prompt = tiny.tokenizer.encode("In the garden Ben found a silver key.")
    answer = collect(generate(tiny.target, [prompt], GREEDY, max_new_tokens=16))[0]
    head = tiny.drafter("eagle").head
    found = along(head, tiny.target, [prompt], [answer], 3)
    firsts = []
    for place in range(16):
        text = [*prompt, *answer[:place]]
        first = next(speculate(tiny.target, EagleDrafter(head), [text], GREEDY, num_draft_tokens=3, max_new_tokens=4))
        firsts.append(first.drafts[0][0] == answer[place])
    assert found[0]["hit"] == pytest.approx(sum(firsts) / 16)
    assert found[0]["fresh"] == pytest.approx(found[0]["hit"])  # the first token reads true features anyway
    assert all(one["away"] > 0 for one in found)


# --- figures


def test_the_bars_of_what_is_known_carry_their_numbers_and_differ_in_hatch():
    figure = figures.draw_knowledge({"one": {"the feature": 0.5, "the token": 0.25, "both": 1.0}})
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == ["0.50", "0.25", "1.00"]
    assert len({bar.get_hatch() for bar in axes.patches}) == 3


@pytest.mark.parametrize(("count", "accepted"), [(1, 0), (1, 1), (4, 0), (4, 2), (4, 4)])
def test_the_pairs_of_a_round_are_drawn_as_the_drafter_holds_them(count, accepted):
    (axes,) = figures.draw_pairs(5, count, accepted).axes
    words = [text.get_text() for text in axes.texts[:-2]]
    own = [word for word in words if word.startswith("g")]
    assert own == [f"g{place}" for place in range(4, 4 + count - 1)]
    drafting, after = words[: 2 * (4 + count - 1)], words[2 * (4 + count - 1) :]
    assert drafting[:8] == after[:8] == ["f0", "x1", "f1", "x2", "f2", "x3", "f3", "x4"]
    read_again = [word for i in range(accepted) for word in (f"f{4 + i}", f"d{i + 1}")]
    assert after[8:] == [*read_again, f"f{4 + accepted}", "next"]


def test_curves_differ_in_more_than_colour():
    runs = {name: [2.0] * 20 for name in "abc"}
    left, right = figures.draw_training(runs, {name: [(10, 0.1), (20, 0.5)] for name in runs}).axes
    chains = figures.draw_chain_quality({name: [0.9, 0.8] for name in runs}, "title").axes[0]
    assert len({line.get_linestyle() for line in left.lines}) == 3
    for axes in (right, chains):
        assert len({(line.get_marker(), line.get_linestyle()) for line in axes.lines}) == 3


def test_the_tree_of_words_fills_what_was_accepted():
    (axes,) = figures.draw_word_tree(["a", "b", "c"], [-1, -1, 0], [0, 2], "text").axes
    boxes = {text.get_text(): text.get_bbox_patch().get_linestyle() for text in axes.texts}
    assert {word: dash == "-" for word, dash in boxes.items()} == {"text": True, "a": True, "b": False, "c": True}
