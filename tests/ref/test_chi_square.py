"""The law of the text that the real batched sampler writes, by counting thousands of rows.

Each row of a batch has a seed of its own, so rows are independent draws. At every output position the tokens of all
rows are counted and compared with the target's exact law there (chi-square; cells that expect fewer than 5 are pooled).
A test fails if any position has a p-value below FALSE_ALARM / positions: for a right sampler with fresh seeds, at most
once in a million runs. The seeds are fixed, so the outcome is too. The same test must reject a wrong rule.
"""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from specdec_ref import decode
from specdec_ref.acceptance import Verification, verify_chain
from specdec_ref.decode import generate, speculate
from specdec_ref.drafters import ModelDrafter, NgramDrafter
from specdec_ref.sampling import SamplingSettings, draw, probabilities
from specdec_ref.table import table_lm
from tests.ref.helpers import random_table, texts

pytestmark = pytest.mark.usefixtures("one_thread")

FALSE_ALARM = 1e-6
SMALL = random_table(16, 5, scale=1.5, dtype=torch.float32)
# The text 1 3 occurred before, and what followed it there is likely: an n-gram draft has something to copy.
PROMPT = [1, 3, int(SMALL[1, 3].argmax()), 1, 3]
SETTINGS = {
    "plain": SamplingSettings(),
    "filtered": SamplingSettings(temperature=0.8, top_k=10, top_p=0.9),
}


def laws_by_position(table, how, prompt, length):
    """The exact law of each new token, float64 [length, V], from logits [V, V, V] or [V, V]."""
    vocab = table.shape[-1]
    following = probabilities(table.double().reshape(-1, vocab, vocab), how)  # [V or 1, V, V]
    if len(following) == 1:
        state, laws = torch.zeros(vocab, dtype=torch.float64), []
        state[prompt[-1]] = 1
        for _ in range(length):
            state = state @ following[0]
            laws.append(state)
        return torch.stack(laws)
    pairs, laws = torch.zeros(vocab, vocab, dtype=torch.float64), []
    pairs[prompt[-2], prompt[-1]] = 1
    for _ in range(length):
        pairs = torch.einsum("ab,abc->bc", pairs, following)
        laws.append(pairs.sum(0))
    return torch.stack(laws)


def p_value(tokens, law):
    """Chi-square of counted tokens against a law, rare cells pooled. A token that the law forbids: 0."""
    counts = torch.bincount(tokens, minlength=len(law)).double()
    if counts[law == 0].any():
        return 0.0
    counts, expected = counts[law > 0], law[law > 0] * len(tokens)
    order = expected.argsort(descending=True)
    counts, expected = counts[order], expected[order]
    common = int((expected >= 5).sum())
    rare = expected[common:].sum()
    if rare > 0:  # one pool; if it is itself too small, the last common cell joins it
        common -= int(rare < 5)
        counts = torch.cat([counts[:common], counts[common:].sum()[None]])
        expected = torch.cat([expected[:common], expected[common:].sum()[None]])
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return float(stats.chi2.sf(statistic, len(counts) - 1))


def p_values(written, laws):
    tokens = torch.tensor(written)  # [rows, positions]
    return [p_value(tokens[:, place], law) for place, law in enumerate(laws)]


def run(table, drafter, how, num_draft_tokens, rows, length, seeds=0):
    prompts, budget = [PROMPT] * rows, {"max_new_tokens": length, "seeds": seeds}
    target = table_lm(table)
    rounds = (
        generate(target, prompts, how, **budget)
        if drafter is None
        else speculate(target, drafter, prompts, how, num_draft_tokens=num_draft_tokens, **budget)
    )
    return texts(list(rounds))


def drafter_for(kind, table):
    reversed_target = table.flip(-1)  # likes best what the target likes least
    return {"model": ModelDrafter(table_lm(reversed_target)), "n-gram": NgramDrafter(min_ngram=1), "none": None}[kind]


def wrong_rule(*args, **kwargs):
    """The replacement is drawn from p instead of the residual."""
    right = verify_chain(*args, **kwargs)
    target_probs, correct_uniforms = args[0], args[4]
    p = target_probs[torch.arange(len(target_probs)), right.num_accepted]
    return Verification(right.num_accepted, draw(p, correct_uniforms))


CASES = [(kind, k, how) for kind, k in (("model", 1), ("model", 4), ("n-gram", 3), ("none", 0)) for how in SETTINGS]


@pytest.mark.parametrize(("kind", "num_draft_tokens", "how"), CASES)
def test_every_position_follows_the_target_with_16_tokens_and_the_reversed_target_as_draft(kind, num_draft_tokens, how):
    written = run(SMALL, drafter_for(kind, SMALL), SETTINGS[how], num_draft_tokens, rows=4000, length=6)
    found = p_values(written, laws_by_position(SMALL, SETTINGS[how], PROMPT, 6))
    assert min(found) > FALSE_ALARM / 6, found


@pytest.mark.parametrize(("kind", "num_draft_tokens", "how"), [case for case in CASES if case[0] != "none"])
def test_the_same_test_rejects_replacements_drawn_from_p(kind, num_draft_tokens, how, monkeypatch):
    monkeypatch.setattr(decode, "verify_chain", wrong_rule)
    written = run(SMALL, drafter_for(kind, SMALL), SETTINGS[how], num_draft_tokens, rows=4000, length=6)
    found = p_values(written, laws_by_position(SMALL, SETTINGS[how], PROMPT, 6))
    assert min(found) < FALSE_ALARM / 6, found


def test_pairs_of_neighbours_follow_the_target_too():
    """Each token by itself can have the right law while the text has not."""
    written = run(SMALL, drafter_for("model", SMALL), SETTINGS["plain"], 3, rows=12000, length=4, seeds=10**6)
    following = probabilities(SMALL.double(), SETTINGS["plain"])
    pairs = torch.zeros(16, 16, dtype=torch.float64)
    pairs[PROMPT[-2], PROMPT[-1]] = 1
    found = []
    tokens = torch.tensor(written)
    for place in range(4):
        pairs = torch.einsum("ab,abc->bc", pairs, following)
        if place:
            found.append(p_value(tokens[:, place - 1] * 16 + tokens[:, place], pairs.flatten()))
    assert min(found) > FALSE_ALARM / 3, found


def large_table():
    generator = torch.Generator().manual_seed(6)
    return 2.0 * torch.randn(1000, 1000, generator=generator)


@pytest.mark.parametrize("wrong", [False, True], ids=["right rule", "wrong rule"])
def test_every_position_follows_the_target_with_1000_tokens(wrong, monkeypatch):
    table = large_table()
    if wrong:
        monkeypatch.setattr(decode, "verify_chain", wrong_rule)
    written = run(table, drafter_for("model", table), SETTINGS["plain"], 3, rows=6000, length=4)
    found = p_values(written, laws_by_position(table, SETTINGS["plain"], PROMPT, 4))
    assert (min(found) > FALSE_ALARM / 4) is not wrong, found
