"""Both loops: same text, one pass of the target a round, rows that know nothing of each other, nothing left behind."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_ref import device
from specdec_ref.decode import collect, generate, speculate
from specdec_ref.drafters import ModelDrafter, NgramDrafter
from specdec_ref.rows import Stop
from specdec_ref.sampling import GREEDY, Purpose, SamplingSettings, draw, probabilities, uniforms
from tests.ref.helpers import (
    PlannedDrafter,
    accepted_share,
    cycle_lm,
    greedy_text,
    position_lm,
    position_text,
    random_table_lm,
    reasons,
    scripted_drafter,
    spy,
    texts,
    tiny_lm,
    uncached,
)

pytestmark = pytest.mark.usefixtures("one_thread")

RAGGED = [[3], [1, 4, 1, 4, 1], [0, 2, 2, 1, 0, 2, 3, 3, 0, 2, 2]]
SETTINGS = {
    "plain": SamplingSettings(),
    "cold": SamplingSettings(temperature=0.6),
    "top-k": SamplingSettings(top_k=3),
    "top-p": SamplingSettings(top_p=0.8),
    "all": SamplingSettings(temperature=0.9, top_k=4, top_p=0.9, repetition_penalty=1.4),
}


def no_draft(text, number):
    return []


# --- greedy: the text of plain decoding


@pytest.mark.parametrize("num_draft_tokens", range(6))
@pytest.mark.parametrize("drafter", ["model", "n-gram", "self"])
def test_greedy_text_is_the_text_of_arithmetic_on_the_position_model(num_draft_tokens, drafter):
    """Positions that advance by one a round, or that rows share, show at once; a one-token prompt is among them."""
    target = position_lm(7)
    drafters = {
        "model": ModelDrafter(random_table_lm(7, 1)),
        "n-gram": NgramDrafter(),
        "self": ModelDrafter(position_lm(7)),
    }
    rounds = list(
        speculate(target, drafters[drafter], RAGGED, GREEDY, num_draft_tokens=num_draft_tokens, max_new_tokens=40)
    )
    wanted = [position_text(prompt, 40) for prompt in RAGGED]
    assert texts(rounds) == wanted
    assert collect(generate(target, RAGGED, GREEDY, max_new_tokens=40)) == wanted


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gpt2", "neox", "opt"])
def test_greedy_text_under_real_classes_is_that_of_decoding_from_scratch(name):
    target, prompts = tiny_lm(name), [[5], [1, 2, 3, 1, 2, 3, 1, 2], [60, 7, 7]]
    wanted = [greedy_text(target, prompt, 20) for prompt in prompts]
    assert collect(generate(target, prompts, GREEDY, max_new_tokens=20)) == wanted
    for drafter in (ModelDrafter(tiny_lm(name, 1)), ModelDrafter(target), NgramDrafter(min_ngram=1)):
        rounds = speculate(target, drafter, prompts, GREEDY, num_draft_tokens=4, max_new_tokens=20)
        assert collect(rounds) == wanted


# --- sampled: the same as a slow and obvious decoder that keeps no cache, one row, one law at a time


def slow_row(target, draft, prompt, how, num_draft_tokens, budget, seed):
    text, number = list(prompt), 0

    def law(lm, so_far):
        return probabilities(uncached(lm, so_far)[-1:], how, torch.tensor([so_far]))[0]

    def luck(purpose, position):
        key = (torch.tensor([value]) for value in (seed, number, position))
        return uniforms(*key, purpose)

    def pick(weights, uniform):
        return draw(weights[None], uniform).item()

    while len(text) - len(prompt) < budget:
        n, new = len(text), []
        drafted, laws = [], []
        for i in range(min(num_draft_tokens, budget - (n - len(prompt)) - 1)):
            laws.append(law(draft, text + drafted))
            drafted.append(pick(laws[-1], luck(Purpose.DRAFT, n + i)))
        for i, (token, q) in enumerate(zip(drafted, laws, strict=True)):
            p = law(target, text + drafted[:i])
            if luck(Purpose.ACCEPT, n + i) < p[token] / q[token]:
                new.append(token)
                continue
            missing = (p - q).clamp(min=0)
            new.append(pick(missing / missing.sum(), luck(Purpose.CORRECT, n)))
            break
        else:
            new.append(pick(law(target, text + drafted), luck(Purpose.CORRECT, n)))
        text, number = text + new, number + 1
    return text[len(prompt) :]


@pytest.mark.parametrize("how", SETTINGS)
@pytest.mark.parametrize("num_draft_tokens", [0, 1, 3, 5])
def test_sampled_text_equals_a_decoder_that_recomputes_everything(how, num_draft_tokens):
    """The history of the repetition penalty included: prompt, committed text and the drafts before; no refused one."""
    target, draft = random_table_lm(6, 0), random_table_lm(6, 1)
    seeds = [11, -5, 2**63 + 1]
    rounds = speculate(
        target,
        ModelDrafter(draft),
        RAGGED,
        SETTINGS[how],
        num_draft_tokens=num_draft_tokens,
        max_new_tokens=25,
        seeds=seeds,
    )
    folded = [11, -5, -(2**63) + 1]
    for row, text in enumerate(collect(rounds)):
        wanted = slow_row(target, draft, RAGGED[row], SETTINGS[how], num_draft_tokens, 25, folded[row])
        assert text == wanted, f"row {row}"


@pytest.mark.parametrize("how", SETTINGS)
def test_plain_decoding_equals_a_decoder_that_recomputes_everything(how):
    target = random_table_lm(6, 0)
    ours = collect(generate(target, RAGGED, SETTINGS[how], max_new_tokens=25, seeds=7))
    assert ours == [slow_row(target, target, prompt, SETTINGS[how], 0, 25, 7 + b) for b, prompt in enumerate(RAGGED)]


def test_refused_drafts_leave_no_trace_in_the_repetition_history():
    """Drafts of token 4 are refused over and over (p = 0); the text is that of plain decoding with the same penalty."""
    target = cycle_lm(5)
    how = SamplingSettings(temperature=0, repetition_penalty=1e9)
    wrong = PlannedDrafter(lambda text, number: [4, 4, 4])
    assert collect(speculate(target, wrong, [[0]], how, max_new_tokens=12)) == collect(
        generate(target, [[0]], how, max_new_tokens=12)
    )


# --- rows know nothing of each other


@settings(max_examples=25, deadline=None)
@given(
    order=st.permutations(range(6)),
    size=st.integers(1, 6),
    how=st.sampled_from(sorted(SETTINGS)),
    model=st.booleans(),
    num_draft_tokens=st.integers(0, 5),
)
def test_a_row_alone_and_in_any_batch_in_any_order_is_the_same_to_the_bit(order, size, how, model, num_draft_tokens):
    target = random_table_lm(37, 0)
    drafter = ModelDrafter(random_table_lm(37, 1)) if model else NgramDrafter(min_ngram=1)
    rng = random.Random(4)
    prompts = [[rng.randrange(37) for _ in range(rng.choice([1, 2, 9]))] * rng.choice([1, 3]) for _ in range(6)]
    chosen = order[:size]

    def run(rows):
        rounds = speculate(
            target,
            drafter,
            [prompts[row] for row in rows],
            SETTINGS[how],
            num_draft_tokens=num_draft_tokens,
            max_new_tokens=18,
            stop=Stop(token_ids=(5, 21)),
            seeds=[100 + row for row in rows],
        )
        rounds = list(rounds)
        return [
            (text, reason, [count[b] for count in counts if count[b] is not None])
            for b, (text, reason) in enumerate(zip(texts(rounds), reasons(rounds), strict=True))
            for counts in [[r.num_accepted if r.tokens[b] else [None] * len(rows) for r in rounds]]
        ]

    together = run(chosen)
    for place, row in enumerate(chosen):
        assert together[place] == run([row])[0]


def test_seeds_one_number_counts_up_none_is_fresh_and_the_global_generators_stay_untouched():
    target = random_table_lm(5, 0)
    before = torch.random.get_rng_state(), random.getstate()

    def run(prompts, seeds):
        return collect(generate(target, prompts, max_new_tokens=30, seeds=seeds))

    three = run([[1], [1], [1]], 5)
    assert three == run([[1], [1], [1]], [5, 6, 7])
    assert three[2] == run([[1]], 7)[0]
    assert len(set(map(tuple, three))) == 3, "rows with different seeds differ"
    assert run([[1]], None) != run([[1]], None)
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert random.getstate() == before[1]


# --- passes and reads


@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize("how", [GREEDY, SamplingSettings()], ids=["greedy", "sampled"])
@pytest.mark.parametrize("drafter", ["model", "n-gram"])
def test_one_target_pass_and_one_read_a_round_for_any_number_of_rows_and_none_for_finished_rows(batch, how, drafter):
    target = random_table_lm(9, 0)
    made = ModelDrafter(random_table_lm(9, 1)) if drafter == "model" else NgramDrafter(min_ngram=1)
    prompts = [[b + 1, 2, 3, 2, 3][: b + 2] for b in range(batch)]
    stop = Stop(token_ids=(4,))
    with spy(target) as shapes:
        rounds = speculate(target, made, prompts, how, num_draft_tokens=3, max_new_tokens=30, stop=stop)
        unfinished, passes, reads = batch, 1, device.host_reads  # one pass is the prefill
        for result in rounds:
            assert len(shapes) == passes + 1, "one pass of the target a round"
            assert shapes[-1][0] == unfinished, "finished rows are not computed"
            assert shapes[-1][1] == 1 + max(result.num_drafted), "the block is no wider than the longest draft"
            assert device.host_reads == reads + 1, "one read a round"
            passes, reads = len(shapes), device.host_reads
            unfinished -= sum(reason is not None for reason in result.finished)
    assert unfinished == 0
    assert len(shapes) == passes, "no pass after the last round"


def test_plain_decoding_runs_one_pass_and_one_read_a_token():
    target = random_table_lm(9, 0)
    with spy(target) as shapes:
        before = device.host_reads
        rounds = list(generate(target, [[1, 2], [3]], max_new_tokens=8))
    assert len(rounds) == 8
    assert shapes == [(2, 1)] + [(2, 1)] * 8
    assert device.host_reads - before == 8


def test_no_pass_at_all_where_nothing_may_be_written():
    target, draft = random_table_lm(9, 0, max_length=4), random_table_lm(9, 1)
    with spy(target) as shapes, spy(draft) as draft_shapes:
        full = [[1, 2, 3, 4]]
        for rounds in (
            generate(target, full, max_new_tokens=5),
            generate(target, [[1, 2]], max_new_tokens=0),
            speculate(target, ModelDrafter(draft), [[1, 2]], max_new_tokens=0),
            speculate(target, ModelDrafter(draft), full, max_new_tokens=5),
        ):
            assert texts(list(rounds)) == [[]]
    assert shapes == []
    assert draft_shapes == []


def test_a_draft_of_no_tokens_runs_no_draft_pass():
    target, draft = random_table_lm(9, 0), random_table_lm(9, 1)
    with spy(draft) as shapes:
        list(speculate(target, ModelDrafter(draft), [[1, 2]], num_draft_tokens=0, max_new_tokens=5))
        list(speculate(target, ModelDrafter(draft), [[1, 2]], num_draft_tokens=4, max_new_tokens=1))
    assert shapes == []


SORTS = ["sort", "argsort", "msort", "kthvalue", "topk"]


@pytest.mark.parametrize(
    ("how", "sorted_by"),
    [
        (GREEDY, set()),
        (SamplingSettings(), set()),
        (SamplingSettings(temperature=0.7, repetition_penalty=1.2), set()),
        (SamplingSettings(top_k=50), set()),  # the whole vocabulary
        (SamplingSettings(top_k=3), {"topk"}),
        (SamplingSettings(top_k=3, top_p=0.9), {"topk"}),
        (SamplingSettings(top_p=0.9), {"sort"}),
    ],
)
def test_the_vocabulary_is_sorted_only_where_top_p_asks_for_it(how, sorted_by, monkeypatch):
    used = set()
    target, drafter = random_table_lm(9, 0), ModelDrafter(random_table_lm(9, 1))
    for name in SORTS:
        for place in (torch.Tensor, torch):
            if hasattr(place, name):
                original = getattr(place, name)

                def counted(*args, name=name, original=original, **kwargs):
                    used.add(name)
                    return original(*args, **kwargs)

                monkeypatch.setattr(place, name, counted)
    list(speculate(target, drafter, [[1], [2]], how, max_new_tokens=6))
    list(generate(target, [[1], [2]], how, max_new_tokens=3))
    assert used == sorted_by


# --- acceptance


@pytest.mark.parametrize("model", ["table", "llama"])
@pytest.mark.parametrize("how", [GREEDY, SamplingSettings(), SETTINGS["all"]], ids=["greedy", "sampled", "filtered"])
def test_a_model_that_drafts_for_itself_has_every_draft_accepted_for_hundreds_of_tokens(model, how):
    """A drafter whose cache lacks the last drafted token after full acceptance keeps the text right and fails here."""
    target = tiny_lm("llama") if model == "llama" else random_table_lm(11, 3)
    rounds = list(
        speculate(target, ModelDrafter(target), [[1], [5, 6, 7]], how, num_draft_tokens=4, max_new_tokens=300)
    )
    assert accepted_share(rounds) == 1
    assert len(rounds) == 60


def test_a_script_decides_how_many_drafts_are_accepted():
    vocab, prompts, right = 7, [[2], [5, 6]], [0, 3, 4, 1, 2, 4, 0, 0, 4, 3]
    target = cycle_lm(vocab)
    for prompt in prompts:
        text = [*prompt, *((prompt[-1] + 1 + i) % vocab for i in range(200))]
        drafter = scripted_drafter(text, vocab, right)
        rounds = list(speculate(target, drafter, [prompt], GREEDY, num_draft_tokens=4, max_new_tokens=31))
        assert [r.num_accepted[0] for r in rounds] == right
        assert [len(r.tokens[0]) for r in rounds] == [a + 1 for a in right]
        assert [r.num_drafted[0] for r in rounds[:-1]] == [4] * 9
        assert texts(rounds)[0] == text[len(prompt) : len(prompt) + 31]


def test_the_first_draft_token_is_judged_like_any_other():
    """The target counts by one, the drafter by two: nothing is ever accepted, and the text is the target's."""
    target = cycle_lm(5, 1)
    rounds = list(speculate(target, ModelDrafter(cycle_lm(5, 2)), [[0]], GREEDY, max_new_tokens=25))
    assert accepted_share(rounds) == 0
    assert texts(rounds)[0] == [(i + 1) % 5 for i in range(25)]


def test_rows_accept_different_numbers_in_the_same_round():
    vocab = 7
    target = cycle_lm(vocab)

    def plan(text, number):
        right = [(text[-1] + 1 + i) % vocab for i in range(4)]
        good = (text[0] + number) % 5  # the row's own first token decides
        return right[:good] + [(token + 1) % vocab for token in right[good:]]

    prompts = [[0], [1], [2], [3, 3]]
    rounds = list(speculate(target, PlannedDrafter(plan), prompts, GREEDY, num_draft_tokens=4, max_new_tokens=40))
    assert rounds[0].num_accepted == [0, 1, 2, 3]
    assert rounds[1].num_accepted == [1, 2, 3, 4]
    assert texts(rounds) == [[(prompt[-1] + 1 + i) % vocab for i in range(40)] for prompt in prompts]


def test_a_drafter_may_propose_less_or_nothing_row_by_row():
    target = cycle_lm(7)
    drafter = PlannedDrafter(lambda text, number: [(text[-1] + 1 + i) % 7 for i in range((number + text[0]) % 4)])
    prompts = [[0], [1], [2]]
    rounds = list(speculate(target, drafter, prompts, GREEDY, num_draft_tokens=3, max_new_tokens=20))
    assert rounds[0].num_drafted == [0, 1, 2]
    assert texts(rounds) == [[(prompt[-1] + 1 + i) % 7 for i in range(20)] for prompt in prompts]


# --- nothing is left behind


def some_drafter(kind):
    return ModelDrafter(random_table_lm(9, 1)) if kind == "model" else NgramDrafter(min_ngram=1)


@pytest.mark.parametrize("kind", ["model", "n-gram"])
def test_first_and_third_of_three_calls_are_equal(kind):
    target, drafter = random_table_lm(9, 0), some_drafter(kind)

    def f(prompts):
        return list(speculate(target, drafter, prompts, max_new_tokens=20))

    x, y = [[1, 2, 3, 2, 3], [4]], [[8, 8, 8]]
    first = f(x)
    f(y)
    assert f(x) == first


@pytest.mark.parametrize("kind", ["model", "n-gram"])
def test_a_generator_closed_early_or_broken_off_by_an_error_leaves_target_and_drafter_usable(kind, monkeypatch):
    target, drafter = random_table_lm(9, 0), some_drafter(kind)

    def run():
        return speculate(target, drafter, [[1, 2, 3, 2, 3], [4]], max_new_tokens=20)

    wanted = list(run())
    early = run()
    next(early)
    early.close()
    assert list(run()) == wanted

    for failing in (0, 1, 3):
        calls = 0

        def breaks(*args, failing=failing):
            nonlocal calls
            calls += 1
            if calls > failing:
                raise RuntimeError("out of memory")

        handle = target.model.register_forward_pre_hook(breaks)
        with pytest.raises(RuntimeError, match="out of memory"):
            list(run())
        handle.remove()
        assert list(run()) == wanted


@pytest.mark.parametrize("kind", ["model", "n-gram"])
def test_two_generators_over_the_same_drafter_may_take_turns(kind):
    target, drafter = random_table_lm(9, 0), some_drafter(kind)

    def run(prompts):
        return speculate(target, drafter, prompts, max_new_tokens=20)

    x, y = [[1, 2, 3, 2, 3], [4]], [[8, 8, 8]]
    wanted = [list(run(x)), list(run(y))]
    one, other = run(x), run(y)
    turns = [[], []]
    for _ in range(40):
        for place, rounds in enumerate((one, other)):
            turns[place] += [result for result in [next(rounds, None)] if result is not None]
    assert turns == wanted


def test_arguments_are_not_changed():
    prompts, seeds = [[1, 2], [3]], [4, 5]
    list(speculate(random_table_lm(5, 0), NgramDrafter(), prompts, max_new_tokens=10, seeds=seeds))
    assert (prompts, seeds) == ([[1, 2], [3]], [4, 5])


def test_a_caller_who_changes_a_round_does_not_change_the_text():
    target = cycle_lm(5)
    new = []
    for result in speculate(target, ModelDrafter(target), [[0]], GREEDY, max_new_tokens=12):
        new += result.tokens[0]
        result.tokens[0].clear()
        for draft in result.drafts:
            draft.clear()
    assert new == [(i + 1) % 5 for i in range(12)]


def test_prompts_may_be_tensors():
    target = random_table_lm(5, 0)
    prompts = [[1, 2, 1, 2, 1], [3, 4, 3, 4, 3]]
    for drafter in (NgramDrafter(min_ngram=1), ModelDrafter(random_table_lm(5, 1))):
        wanted = list(speculate(target, drafter, prompts, max_new_tokens=10))
        assert list(speculate(target, drafter, torch.tensor(prompts), max_new_tokens=10)) == wanted
