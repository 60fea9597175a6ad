"""The shipped verifier emits exactly the target's law; every wrong rule is caught, with the size of its mistake.

No sampling noise anywhere: laws are counted, not estimated. `EXACT` is rounding; `CAUGHT` is far above it.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from specdec_ref.law import (
    Drafts,
    fixed_draft,
    round_law,
    sampled_drafts,
    speculative_law,
    target_law,
    text_law,
)
from specdec_ref.sampling import GREEDY, SamplingSettings, probabilities
from tests.ref import wrong_rules as wrong

EXACT = 1e-12
CAUGHT = 1e-3
TEXT = (0, 1)
PAIR_B = ([0.5, 0.3, 0.2], [0.2, 0.5, 0.3])
PAIR_C = ([0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1])
RED_BLUE = ([0.5, 0.5], [0.8, 0.2])

every_size = pytest.mark.parametrize(("vocab", "num_draft_tokens"), [(v, k) for v in (3, 4, 5) for k in (1, 2, 3)])


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def random_logits(vocab, seed):
    return 2 * torch.randn(vocab, vocab, vocab, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def random_table(vocab, seed):
    return random_logits(vocab, seed).softmax(-1)


def flat(law):
    """A table model that has the same law after any text."""
    law = torch.tensor(law, dtype=torch.float64)
    return law.expand(len(law), len(law), len(law)).contiguous()


def sampled(table, num_draft_tokens):
    return partial(sampled_drafts, table, num_draft_tokens=num_draft_tokens)


def difference(table, drafter, length, rounds=1, text=TEXT, **rule):
    """Largest difference, over all texts of that length, between the speculative and the target's own probability."""
    law = speculative_law(table, drafter, text, length, rounds, **rule)
    assert law.shape == (len(table),) * length
    assert float(law.sum()) == pytest.approx(1, abs=EXACT)
    return float((law - target_law(table, text, length)).abs().max())


def one_token(pair, verify, drafter=None, **rule):
    """The law of the first token a wrong rule emits, drafting one token on a standard pair."""
    p, q = map(flat, pair)
    rule = {"thresholds": wrong.thresholds, "verify": verify} | rule
    return speculative_law(p, drafter or sampled(q, 1), TEXT, 1, 1, **{k: v for k, v in rule.items() if v is not None})


# --- the measuring instrument itself


def test_target_law_is_the_product_of_the_rows_on_the_way():
    table = random_table(3, 0)
    law = target_law(table, (2, 0), 4)
    assert float(law[1, 2, 2, 0]) == pytest.approx(
        float(table[2, 0, 1] * table[0, 1, 2] * table[1, 2, 2] * table[2, 2, 0]), abs=1e-15
    )
    assert float(law.sum()) == pytest.approx(1, abs=EXACT)
    assert float(target_law(table, (2, 0), 0)) == 1


def test_drafts_are_all_sequences_of_positive_probability():
    drafts = sampled_drafts(flat([0.75, 0.0, 0.25]), TEXT, 2)
    assert drafts.tokens.tolist() == [[0, 0], [0, 2], [2, 0], [2, 2]]
    assert drafts.weights.tolist() == [0.5625, 0.1875, 0.1875, 0.0625]


def test_a_round_emits_one_to_k_plus_one_tokens_with_known_probabilities():
    """Red/blue: half of 0.8 and all of 0.2 is accepted, so 0.7 of the rounds emit K+1 = 2 tokens."""
    p, q = map(flat, RED_BLUE)
    one, two = round_law(p, sampled_drafts(q, TEXT, 1), TEXT)
    assert one.tolist() == pytest.approx([0.0, 0.3])
    assert float(two.sum()) == pytest.approx(0.7)
    assert two.flatten().tolist() == pytest.approx([0.25, 0.25, 0.1, 0.1])


def test_the_outcome_is_constant_in_every_cell():
    """The same law wherever in its cell each accept uniform lies: the cuts are complete."""
    table, drafter = random_table(4, 1), sampled(random_table(4, 2), 2)
    laws = [speculative_law(table, drafter, TEXT, 3, 1, at=at) for at in (0.0, 0.1, 0.5, 0.999)]
    assert all(float((law - laws[0]).abs().max()) < EXACT for law in laws)


def test_the_joint_law_is_compared_not_only_each_token():
    """Texts 00 and 11 against four equal texts: every token is uniform in both, and the difference is 0.25."""
    coin = flat([0.5, 0.5])
    copies = [torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64) / 2]
    law = text_law(coin, lambda text: copies, TEXT, 2, rounds=1)
    assert law.sum(0).tolist() == law.sum(1).tolist() == [0.5, 0.5]
    assert float((law - target_law(coin, TEXT, 2)).abs().max()) == 0.25


# --- the shipped verifier


@every_size
@pytest.mark.parametrize("rounds", ["one round, then the target", "rounds to the end"])
def test_a_sampled_draft_leaves_the_target_law_unchanged(vocab, num_draft_tokens, rounds):
    length = num_draft_tokens + 1
    drafter = sampled(random_table(vocab, vocab + 10), num_draft_tokens)
    rounds = 1 if rounds.startswith("one") else length
    assert difference(random_table(vocab, vocab), drafter, length, rounds) < EXACT


def test_several_rounds_are_exact_beyond_the_length_of_one():
    assert difference(random_table(3, 0), sampled(random_table(3, 1), 2), length=6, rounds=6) < EXACT


@every_size
def test_a_deterministic_draft_leaves_the_target_law_unchanged(vocab, num_draft_tokens):
    """Every possible copied draft, tokens the target never writes included."""
    table = probabilities(random_logits(vocab, 3), SamplingSettings(top_k=vocab - 1))
    for first in range(vocab):
        tokens = tuple((first + 2 * step) % vocab for step in range(num_draft_tokens))
        drafter = lambda text, tokens=tokens: fixed_draft(tokens)  # noqa: E731
        assert difference(table, drafter, num_draft_tokens + 1) < EXACT
        assert difference(table, drafter, num_draft_tokens + 1, rounds=num_draft_tokens + 1) < EXACT


def test_a_deterministic_draft_on_pair_b_is_accepted_with_its_own_probability():
    """[26] Draft token 1 of B: accepted with 0.3; refused, the replacement follows [5/7, 0, 2/7]."""
    p = flat(PAIR_B[0])
    one, two = round_law(p, fixed_draft((1,)), TEXT)
    assert float(two.sum()) == pytest.approx(0.3)
    assert (one / one.sum()).tolist() == pytest.approx([5 / 7, 0, 2 / 7])


def test_disjoint_supports_accept_nothing_and_stay_exact():
    p, q = flat([0.6, 0.4, 0.0, 0.0]), flat([0.0, 0.0, 0.5, 0.5])
    one, *longer = round_law(p, sampled_drafts(q, TEXT, 3), TEXT)
    assert one.tolist() == pytest.approx([0.6, 0.4, 0, 0])
    assert sum(float(law.sum()) for law in longer) == 0
    assert difference(p, sampled(q, 3), 4, rounds=4) < EXACT


@pytest.mark.parametrize("num_draft_tokens", [1, 2, 3])
def test_a_draft_equal_to_the_target_is_always_accepted(num_draft_tokens):
    table = random_table(4, 5)
    emitted = round_law(table, sampled_drafts(table, TEXT, num_draft_tokens), TEXT)
    assert [float(law.sum()) for law in emitted[:-1]] == [0] * num_draft_tokens
    assert difference(table, sampled(table, num_draft_tokens), num_draft_tokens + 1) < EXACT


@pytest.mark.parametrize(
    "how",
    [
        SamplingSettings(temperature=0.7),
        SamplingSettings(temperature=1.6, top_k=2),
        SamplingSettings(top_k=3, top_p=0.8),
        SamplingSettings(temperature=0.9, top_p=0.6),
        GREEDY,
    ],
    ids=["temperature", "top-k", "top-k and top-p", "top-p", "greedy"],
)
@pytest.mark.parametrize("num_draft_tokens", [1, 2, 3])
def test_filters_on_both_models_keep_the_filtered_target_law(how, num_draft_tokens):
    """Filtered laws have different supports: some drafts are impossible for the target, and the other way round."""
    p, q = (probabilities(random_logits(4, seed), how) for seed in (7, 8))
    assert difference(p, sampled(q, num_draft_tokens), num_draft_tokens + 1) < EXACT
    assert difference(p, sampled(q, num_draft_tokens), num_draft_tokens + 1, rounds=num_draft_tokens + 1) < EXACT


def test_the_models_may_use_different_settings():
    """p sampled at temperature 1, q greedy or flattened: the draft's settings never reach the text."""
    p = random_table(4, 9)
    for how in (GREEDY, SamplingSettings(temperature=3), SamplingSettings(top_k=1), SamplingSettings(top_p=0.3)):
        assert difference(p, sampled(probabilities(random_logits(4, 10), how), 2), 3, rounds=3) < EXACT


def test_padded_vocabularies_keep_the_law_on_the_real_ids():
    """[22] Three real ids in rows of width 5: the padding, forbidden with -inf, is never written, whoever drafts."""
    real = [random_logits(3, seed) for seed in (30, 31)]
    padded = [functional.pad(logits, (0, 2), value=-torch.inf) for logits in real]
    padded = [
        functional.pad(logits, (0, 0, 0, 2, 0, 2), value=0.0) for logits in padded
    ]  # rows after padding: never met
    how = SamplingSettings(0.8, top_k=4, top_p=0.95)
    p, q = (probabilities(logits, how) for logits in padded)
    law = speculative_law(p, sampled(q, 2), TEXT, 3, 3)
    expected = target_law(probabilities(real[0], how), TEXT, 3)
    assert torch.allclose(law[:3, :3, :3], expected, rtol=0, atol=EXACT)
    assert float(law.sum()) == pytest.approx(float(law[:3, :3, :3].sum()), abs=EXACT)


def ragged(text, *, table, num_draft_tokens, stop):
    """Drafts that stop early: at a length that depends on the text, or after a token the drafter was unsure of."""
    drafts = sampled_drafts(table, text, num_draft_tokens)
    if stop == "by the text":
        lengths = torch.full_like(drafts.tokens[:, 0], sum(text) % (num_draft_tokens + 1))
    else:  # the token after a 0 is not drafted; the 0 itself stays
        keeps_going = functional.pad((drafts.tokens != 0).long(), (1, 0), value=1)[:, :-1]
        lengths = keeps_going.cumprod(-1).sum(-1)
    return Drafts(drafts.tokens, drafts.weights, drafts.probs, lengths)


@pytest.mark.parametrize("stop", ["by the text", "after a token"])
@pytest.mark.parametrize("num_draft_tokens", [1, 2, 3])
def test_short_drafts_are_exact(stop, num_draft_tokens):
    table, draft = random_table(4, 11), random_table(4, 12)
    drafter = partial(ragged, table=draft, num_draft_tokens=num_draft_tokens, stop=stop)
    for text in ((0, 0), (0, 1), (1, 1), (3, 0)):  # lengths 0, 1, 2, 3 by the text
        assert difference(table, drafter, num_draft_tokens + 1, num_draft_tokens + 1, text) < EXACT


def test_an_empty_draft_emits_one_token_of_the_target():
    table = random_table(4, 13)
    (only,) = round_law(table, fixed_draft(()), TEXT)
    assert torch.allclose(only, table[0, 1], rtol=0, atol=EXACT)


@given(st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_pair_of_laws_is_exact(data):
    """Laws made of small whole numbers: zeros, ties, equal and opposite rows are common among them."""
    vocab = data.draw(st.integers(2, 3), "vocab")
    counts = st.lists(st.integers(0, 3), min_size=vocab, max_size=vocab).filter(any)
    rows = st.lists(counts, min_size=2 * vocab * vocab, max_size=2 * vocab * vocab)
    both = torch.tensor(data.draw(rows, "counts"), dtype=torch.float64).reshape(2, vocab, vocab, vocab)
    p, q = both / both.sum(-1, keepdim=True)
    num_draft_tokens = data.draw(st.integers(1, 2), "num_draft_tokens")
    assert difference(p, sampled(q, num_draft_tokens), num_draft_tokens + 1, rounds=num_draft_tokens + 1) < EXACT


# --- wrong rules: each must be caught, and by the amount that is known


@pytest.mark.parametrize(
    ("rule", "pair", "law"),
    [
        (wrong.replacement_from_p, PAIR_B, [0.35, 0.39, 0.26]),
        (wrong.replacement_from_p, RED_BLUE, [0.65, 0.35]),
        (wrong.softmax_residual, PAIR_B, [0.3209, 0.3896, 0.2896]),
        (wrong.first_never_judged, PAIR_B, PAIR_B[1]),
        (wrong.first_never_judged, PAIR_C, PAIR_C[1]),
        (wrong.one_uniform_for_draft_and_accept, PAIR_B, [0.6, 0.4, 0.0]),
    ],
)
def test_a_wrong_rule_emits_this_law(rule, pair, law):
    assert one_token(pair, rule).tolist() == pytest.approx(law, abs=5e-5)
    assert one_token(pair, None).tolist() == pytest.approx(pair[0], abs=EXACT)


RULES_OF_ONE_ROW = [
    wrong.replacement_from_p,
    wrong.softmax_residual,
    wrong.softmax_scaled_residual,
    wrong.first_never_judged,
    wrong.p_and_q_swapped,
    wrong.one_uniform_for_draft_and_accept,
]
RULES_OF_SEVERAL_ROWS = [
    wrong.sum_of_mask,
    wrong.bonus_from_last_draft_row,
    wrong.bonus_from_residual,
    wrong.rows_shifted,
]


@pytest.mark.parametrize("pair", [PAIR_B, PAIR_C], ids=["B", "C"])
@pytest.mark.parametrize("rule", RULES_OF_ONE_ROW, ids=lambda rule: rule.__name__)
def test_a_wrong_rule_is_caught_on_the_standard_pairs(rule, pair):
    law = one_token(pair, rule)
    assert float((law - torch.tensor(pair[0])).abs().max()) > CAUGHT


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rule", RULES_OF_ONE_ROW + RULES_OF_SEVERAL_ROWS, ids=lambda rule: rule.__name__)
def test_a_wrong_rule_is_caught_on_any_random_tables(rule, seed):
    p, q = random_table(3, 20 + seed), random_table(3, 40 + seed)
    assert difference(p, sampled(q, 2), 3, rounds=1, verify=rule, thresholds=wrong.thresholds) > CAUGHT
    assert difference(p, sampled(q, 2), 3, rounds=1, thresholds=wrong.thresholds) < EXACT


def test_filtered_draft_judged_by_the_raw_law_is_caught():
    """[1] A drafter limited to its two best tokens reports the law before that filter."""
    p, raw = flat([0.3, 0.3, 0.25, 0.15]), flat([0.4, 0.3, 0.2, 0.1])
    filtered = probabilities(raw.log(), SamplingSettings(top_k=2))
    fault = partial(wrong.drafted_from_filtered_judged_by_raw, raw, filtered, num_draft_tokens=1)
    law = speculative_law(p, fault, TEXT, 1, 1)
    assert law.tolist() == pytest.approx([0.4286, 0.4286, 0.0714, 0.0714], abs=5e-5)
    assert difference(p, sampled(filtered, 1), 1) < EXACT


def test_tempered_draft_judged_by_the_raw_law_is_caught():
    """[1] The same with a temperature on one side only."""
    p, logits = random_table(4, 14), random_logits(4, 15)
    cold = probabilities(logits, SamplingSettings(temperature=0.5))
    fault = partial(wrong.drafted_from_filtered_judged_by_raw, logits.softmax(-1), cold, num_draft_tokens=2)
    assert difference(p, fault, 3) > CAUGHT
    assert difference(p, sampled(cold, 2), 3) < EXACT


def test_argmax_draft_reported_as_sampled_is_caught():
    """[2] A deterministic draft needs a point mass, or it is refused too rarely."""
    p, q = map(flat, PAIR_B)
    fault = partial(wrong.argmax_reported_as_sampled, q, num_draft_tokens=1)
    assert speculative_law(p, fault, TEXT, 1, 1).tolist() == pytest.approx([0.4, 0.6, 0.0], abs=EXACT)
    assert difference(p, lambda text: fixed_draft((1,)), 1) < EXACT


def test_residual_without_mass_is_caught():
    """[5] p equal to q: the fault meets NaN, the shipped rule is exact."""
    table = random_table(3, 16)
    with pytest.raises(RuntimeError, match="nan"):
        difference(table, sampled(table, 2), 3, verify=wrong.residual_without_fallback)
    assert difference(table, sampled(table, 2), 3) < EXACT


def test_accepting_a_token_the_target_never_writes_is_caught():
    """[6] On the lower edge of its cell, u = 0 = p/q: `<=` accepts and emits a text of probability 0."""
    pair = ([0.7, 0.3, 0.0], [0.2, 0.2, 0.6])
    assert float(one_token(pair, wrong.accepts_impossible, thresholds=None, at=0.0)[2]) == pytest.approx(0.6)
    assert one_token(pair, None, thresholds=None, at=0.0).tolist() == pytest.approx(pair[0], abs=EXACT)


def test_the_first_draft_token_is_judged():
    """[8] Target writes x+1, drafter always x+2: nothing is accepted and the text is the target's, in any round."""
    vocab, last = 5, torch.arange(5)
    target = functional.one_hot((last + 1) % vocab, vocab).double().expand(vocab, vocab, vocab).contiguous()
    drafter = lambda text: fixed_draft(tuple((text[-1] + 2 + step) % vocab for step in range(3)))  # noqa: E731
    law = speculative_law(target, drafter, (4, 0), 4, 4)
    assert float(law[1, 2, 3, 4]) == 1
    assert float(round_law(target, drafter((4, 0)), (4, 0))[0].sum()) == 1
    faulty = speculative_law(target, drafter, (4, 0), 4, 4, wrong.first_never_judged)
    assert float(faulty[1, 2, 3, 4]) == 0


def test_roles_swapped_writes_the_law_of_the_draft():
    """[9] Looks fluent, and follows q to the last digit: only a comparison with p finds it."""
    p, q = random_table(4, 17), random_table(4, 18)
    swapped = speculative_law(q, sampled(p, 2), TEXT, 3, 3)
    assert float((swapped - target_law(q, TEXT, 3)).abs().max()) < EXACT
    assert float((swapped - target_law(p, TEXT, 3)).abs().max()) > CAUGHT


def test_dropping_a_token_after_looking_at_it_is_caught():
    table, draft = random_table(4, 19), random_table(4, 21)
    fault = partial(wrong.unlikely_tokens_dropped, draft, num_draft_tokens=2, floor=0.3)
    assert difference(table, fault, 3) > CAUGHT


def test_padding_judged_as_a_draft_is_caught():
    """Padding is token 0, chosen by nobody, under a q that says it was sampled."""
    table, draft = random_table(3, 22), random_table(3, 23)

    def drafter(text):
        drafts = sampled_drafts(draft, text, 1)
        padded = functional.pad(drafts.tokens, (0, 1))
        probs = draft[torch.tensor(text[-1]), padded[:, 0]]
        assert drafts.probs is not None
        return Drafts(
            padded, drafts.weights, torch.stack([drafts.probs[:, 0], probs], 1), torch.ones(len(padded)).long()
        )

    assert difference(table, drafter, 3, rounds=3) < EXACT
    assert difference(table, drafter, 3, rounds=3, verify=wrong.length_ignored) > CAUGHT
