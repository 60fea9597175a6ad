"""Stage 10: the solutions are the reference's bridge and law, on the same texts, and the figures tell what was cut."""

import random
import re

import pytest
import torch
from matplotlib import pyplot as plt

from specdec_course import tokenizer_figures as figures
from specdec_course.building.products import ROOT
from specdec_course.by_heart import by_heart_lm
from specdec_course.checks import find_exercise
from specdec_course.checks.exercise import Case
from specdec_course.checks.judge import judge
from specdec_course.checks.observe import observe
from specdec_course.checks.replay import picture_of
from specdec_course.checks.stage_10 import DRAFT_TOY, TARGET_TOY
from specdec_course.translated_drafts import Pieces, TranslatedDrafts
from specdec_ref.decode import collect, generate, speculate
from specdec_ref.drafters import ModelDrafter, ReencodingDrafter, SharedTokensDrafter
from specdec_ref.drafters.two_tokenizers import Bridge
from specdec_ref.law import sampled_drafts, speculative_law, target_law
from specdec_ref.rows import Stop
from specdec_ref.sampling import GREEDY, SamplingSettings, probabilities
from tests.course.solutions import solution_functions
from tests.ref.helpers import accepted_share, random_table, script_lm
from tests.ref.test_other_tokenizer import STORY, WORDS, lms, prompts, spellings, tokenizers

EXERCISES = ("10.1", "10.2", "10.3", "10.4", "10.5")
FOLDER = ROOT / "source" / "10_other_tokenizers"
TEXT = (FOLDER / "exercise.py").read_text(encoding="utf-8")
LESSON = (FOLDER / "lesson.py").read_text(encoding="utf-8")
MINE = solution_functions("10_other_tokenizers")


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny models are quicker on one thread, and two tests at once do not fight for cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    plt.close("all")


def my_bridge():
    """A drafter over the solution's functions, between the tokenizers of the reference's tests."""
    target, draft = spellings()
    names = ("whole_characters", "rejoin", "translate")
    return TranslatedDrafts(lms()[1], draft, target, *(MINE[name] for name in names))


# --- the solutions and the reference


@pytest.mark.parametrize("name", EXERCISES)
def test_the_solution_and_the_reference_agree_on_the_same_inputs(name):
    exercise = find_exercise(name)
    for seed in range(3):
        verdict = judge(exercise, observe(exercise, MINE[exercise.function], seed), seed)
        assert verdict.status == "passed", verdict.message


def test_the_solution_hands_on_the_characters_that_the_bridge_hands_on():
    target, draft = spellings()
    text = target.encode(STORY.encode())
    for count in range(len(text) + 1):
        bridge = Bridge(target, draft)
        bridge.update(text[:count])
        found = MINE["whole_characters"](list(target.spell(text[:count])))
        assert found == (bridge.text.decode(), list(bridge.pending))


@pytest.mark.parametrize("lookbehind", [1, 3, 10])
def test_the_solution_cuts_a_growing_text_as_the_bridge_does(lookbehind):
    target, draft = spellings()
    pieces, tokens = Pieces(draft), target.encode(WORDS.encode())
    bridge, own = Bridge(target, draft, target_lookbehind=lookbehind), []
    for n in range(1, len(tokens) + 1):
        window = target.spell(tokens[max(0, n - 1 - lookbehind) : n - 1]).decode()
        own = MINE["rejoin"](own, window, target.bytes[tokens[n - 1]].decode(), pieces.encode)
        bridge.update(tokens[:n])
        assert [pieces.ids[piece] for piece in own] == bridge.ids[len(draft.prefix) :]


def test_the_solution_translates_as_the_bridge_does_wherever_a_token_begins_at_the_border():
    target, draft = spellings()
    pieces, compared = Pieces(target), 0
    for border in range(4, len(WORDS), 2):
        bridge = Bridge(target, draft)
        bridge.update([target.bytes.index(letter.encode()) for letter in WORDS[:border]])
        found = MINE["translate"](WORDS[:border], WORDS[border:], pieces.encode)
        if found:
            assert [pieces.ids[piece] for piece in found] == bridge.translate(draft.encode(WORDS[border:].encode()))
            compared += 1
    assert compared >= 10


def test_the_solution_finds_the_tokens_that_the_reference_shares():
    target, draft = lms()
    theirs, own = tokenizers()
    names = [one.convert_ids_to_tokens(list(range(len(one)))) for one in (own, theirs)]
    mine = MINE["shared_tokens"](*names, own.all_special_ids, theirs.all_special_ids)
    reference = SharedTokensDrafter(draft, own, theirs)
    assert [[i, token] for i, token in enumerate(mine) if token >= 0] == sorted(reference.shared.tolist())
    assert target.vocab_size == len(theirs)


def test_the_solution_s_law_is_the_one_that_the_reference_draws_from():
    theirs, own = tokenizers()
    reference = SharedTokensDrafter(lms()[1], own, theirs)
    to_target = [-1] * len(own)
    for mine, other in reference.shared.tolist():
        to_target[mine] = other
    logits = torch.randn(3, len(own), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wanted = probabilities(reference._restrict(logits), SamplingSettings())
    for law, right in zip(logits.softmax(-1), wanted, strict=True):
        found = MINE["restrict_law"](law, to_target, len(theirs))
        torch.testing.assert_close(found, right, atol=1e-15, rtol=1e-12)


def test_drafts_drawn_from_the_solution_s_law_leave_the_target_s_law_unchanged():
    """Four tokens of the target, five of the draft model; three are shared."""
    target, foreign = random_table(4, 0).softmax(-1), random_table(5, 1).softmax(-1)
    to_target, as_own = [-1, 2, 0, -1, 3], torch.tensor([2, 0, 1, 4])
    q = torch.zeros(4, 4, 4, dtype=torch.float64)
    for a in range(4):
        for b in range(4):
            q[a, b] = MINE["restrict_law"](foreign[as_own[a], as_own[b]], to_target, 4)
    found = speculative_law(target, lambda text: sampled_drafts(q, text, 2), (0, 1), 3, 3)
    assert float((found - target_law(target, (0, 1), 3)).abs().max()) < 1e-12


# --- the learner's bridge with models


@pytest.mark.parametrize("prompt", range(4))
def test_greedy_text_over_the_solution_s_bridge_is_the_target_s_own(prompt):
    """Of random models, whose texts hold broken characters everywhere."""
    target, options = lms()[0], {"max_new_tokens": 20, "stop": Stop((0,))}
    plain = collect(generate(target, prompts()[prompt : prompt + 1], GREEDY, **options))
    rounds = speculate(target, my_bridge(), prompts()[prompt : prompt + 1], GREEDY, num_draft_tokens=4, **options)
    assert collect(rounds) == plain


@pytest.mark.parametrize("words", [WORDS, STORY + " " + WORDS])
def test_over_the_solution_s_bridge_two_models_that_write_one_text_agree_as_over_the_reference_s(words):
    theirs, own = spellings()
    ids = theirs.encode(words.encode())
    target = script_lm([*ids, 0], len(theirs.bytes))
    draft = script_lm([*own.prefix, *own.encode(words.encode()), 0], len(own.bytes))
    found = {}
    bridge = my_bridge()
    bridge.lm = draft
    for name, drafter in (("mine", bridge), ("reference", ReencodingDrafter(draft, *reversed(tokenizers())))):
        rounds = list(speculate(target, drafter, [ids[:2]], GREEDY, num_draft_tokens=5, stop=Stop((0,))))
        assert collect(rounds) == [[*ids[2:], 0]]
        found[name] = sum(sum(one.num_accepted) for one in rounds), accepted_share(rounds)
    assert found["mine"][1] > 0.8
    assert found["mine"][0] >= 0.9 * found["reference"][0]


def test_the_learner_s_bridge_serves_one_text_at_a_time():
    target = lms()[0]
    with pytest.raises(ValueError, match="2 texts at once"):
        speculate(target, my_bridge(), prompts()[:2], GREEDY)


# --- models that know a text by heart


def test_a_model_that_knows_a_text_by_heart_writes_it_with_and_without_a_draft():
    text = [3, 1, 4, 1, 5, 9, 2, 6]
    lm = by_heart_lm(text, 10)
    assert collect(generate(lm, [text[:2]], GREEDY, max_new_tokens=6)) == [text[2:]]
    rounds = list(speculate(lm, ModelDrafter(lm), [text[:2]], GREEDY, num_draft_tokens=3, max_new_tokens=6))
    assert collect(rounds) == [text[2:]]
    assert accepted_share(rounds) == 1


@pytest.mark.parametrize("kind", [ReencodingDrafter, SharedTokensDrafter])
def test_between_two_models_that_know_one_text_little_is_lost(kind):
    """As in the lesson, between the two small tokenizers of these tests."""
    theirs, own = spellings()
    ids, mine = theirs.encode(WORDS.encode()), [*own.prefix, *own.encode(WORDS.encode())]
    drafter = kind(by_heart_lm(mine, len(own.bytes)), *reversed(tokenizers()))
    target, budget = by_heart_lm(ids, len(theirs.bytes)), len(ids) - 3
    rounds = list(speculate(target, drafter, [ids[:3]], GREEDY, num_draft_tokens=4, max_new_tokens=budget))
    assert collect(rounds) == [ids[3:]]
    assert sum(sum(one.num_accepted) for one in rounds) > 0


# --- the toy tokenizers of the checks


def test_the_toy_tokenizers_spell_what_they_are_given():
    source = random.Random(0)
    for _ in range(50):
        text = " " + "".join(source.choice("the squirrelhedgogandrsi ") for _ in range(12))
        for toy in (DRAFT_TOY, TARGET_TOY):
            assert "".join(toy.encode(text)) == text
    assert TARGET_TOY.encode("dener")[0].startswith(" ")
    assert DRAFT_TOY.encode("irrel") == ["irrel"]


def test_a_failed_bridge_is_replayed_as_strips():
    for name, wrong in (("10.2", lambda own, *_: own), ("10.3", lambda window, written, encode: [])):
        exercise = find_exercise(name)
        verdict = judge(exercise, observe(exercise, wrong, 0), 0)
        lines = "\n".join(picture_of(exercise, verdict).lines)
        assert "right" in lines
        assert "|" in lines
    boom = judge(find_exercise("10.3"), observe(find_exercise("10.3"), lambda *_: 1 // 0, 0), 0)
    assert "ZeroDivisionError" in "\n".join(picture_of(find_exercise("10.3"), boom).lines)


# --- words


def test_no_case_of_the_bridge_can_be_told_right_without_its_window():
    """Among the cases are windows inside of a token, old tokens cut oddly, and borders inside of a token."""
    rejoin, translate = find_exercise("10.2"), find_exercise("10.3")
    for seed in range(5):
        cases = rejoin.cases(seed)
        assert any(not_at_a_start(case) for case in cases)
        assert any("".join(case["own"]) and DRAFT_TOY.encode("".join(case["own"])) != case["own"] for case in cases)
        drawn = [(case["window"], case["written"]) for case in translate.cases(seed)]
        answers = [translate.reference(*one, TARGET_TOY.encode) for one in drawn]
        assert [] in answers
        assert sum(bool(answer) for answer in answers) > 5


def not_at_a_start(case: Case) -> bool:
    begin = len("".join(case["own"])) - len(case["window"])
    return begin not in {len("".join(case["own"][:i])) for i in range(len(case["own"]) + 1)}


def test_the_numbers_of_the_lesson_s_example_come_out_of_the_solution():
    p = torch.tensor([0.35, 0.25, 0.05, 0.15, 0.20], dtype=torch.float64)
    draft = torch.tensor([0.25, 0.20, 0.05, 0.10, 0.40], dtype=torch.float64)  # fox, owl, bear, sat, hedgehog
    q = MINE["restrict_law"](draft, [0, 1, 3, 4, -1], 5)
    assert q.tolist() == pytest.approx([0.25 / 0.6, 0.2 / 0.6, 0.0, 0.05 / 0.6, 0.1 / 0.6])
    assert float(torch.minimum(p, q).sum()) == pytest.approx(0.85)
    assert float(p[q > 0].sum()) == pytest.approx(0.95)


def test_the_exercise_s_own_example_is_right():
    assert MINE["rejoin"]([" the", " squ"], " squ", "irrel", DRAFT_TOY.encode) == [" the", " squirrel"]
    for held, split in {
        b"hi": ("hi", []),
        b"a\xc3": ("a", [0xC3]),
        b"a\xc3\xbc": ("aü", []),
        b"a\xff": ("a\ufffd", []),
    }.items():
        assert MINE["whole_characters"](list(held)) == split


# --- figures


def test_strips_lie_over_the_letters_that_they_spell():
    strip = figures.plain_strip("one", [" the", " fox"], begin=3)
    assert (strip.starts, strip.end) == ([3, 7], 11)
    assert figures.common_starts([" the", " fo", "x"], [" th", "e", " fox"]) == [0, 4]
    figure = figures.draw_strips(
        [strip, figures.Strip("two", [(" the", "kept"), (" fox", "new")])], "title", joints=[4]
    )
    boxes = [(patch.get_x(), patch.get_width()) for patch in figure.axes[0].patches]
    assert boxes == [(3, 4), (7, 4), (0, 4), (4, 4)]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["kept as it is", "new", "a token of both begins here"]


def test_kinds_of_tokens_differ_in_more_than_colour():
    marked = [(hatch, word) for kind, (_, hatch, word) in figures.KINDS.items() if kind != "plain"]
    assert len(set(marked)) == len(marked)
    assert len({hatch for hatch, _ in marked}) == len(marked)


def test_the_restricted_law_in_the_figure_is_scaled_and_has_nothing_outside():
    figure = figures.draw_restriction(["a", "b", "c"], [0.5, 0.5, 0.0], [0.2, None, 0.8])
    heights = [[bar.get_height() for bar in bars] for bars in figure.axes[0].containers]
    assert heights == [[0.5, 0.5, 0.0], [0.2, 0.0, 0.8], [1.0, 0.0, 0.0]]
    labels = [text.get_text() for text in figure.axes[0].get_xticklabels()]
    assert labels == ["a\nboth", "b\ntarget only", "c\ndraft only"]


def test_every_figure_of_the_lesson_has_a_text():
    shown = re.findall(r"^show\(", LESSON, re.MULTILINE)
    assert len(shown) >= 4
    assert len(re.findall(r"\balt=", LESSON)) >= len(shown)
