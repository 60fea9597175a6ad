"""A drafter that chooses its own length: exact, of one call only, and right about when to stop."""

import pytest
import torch

from specdec_ref.acceptance import Verification
from specdec_ref.decode import collect, generate, speculate
from specdec_ref.drafters import ModelDrafter, NgramDrafter
from specdec_ref.drafters.adaptive import AdaptiveDrafter
from specdec_ref.economics import best_num_draft_tokens
from specdec_ref.rows import Rows, Stop
from specdec_ref.sampling import GREEDY, SamplingSettings
from specdec_ref.table import table_lm

FLAT = {1: 1.0, 13: 1.0}  # a pass costs the same for any length
STEEP = {1: 1.0, 13: 13.0}


def table(seed):
    return table_lm(torch.randn(6, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2)


def drafted(target, draft, passes, cost, prompts=((1, 2),), tokens=60):
    drafter = AdaptiveDrafter(ModelDrafter(draft), passes, cost)
    rounds = speculate(target, drafter, prompts, GREEDY, num_draft_tokens=12, max_new_tokens=tokens)
    return [result.num_drafted[0] for result in rounds]


def test_greedy_text_is_that_of_the_plain_loop():
    target, prompts = table(1), [[1, 2], [3]]
    for inner in (ModelDrafter(table(2)), ModelDrafter(target), NgramDrafter()):
        drafter = AdaptiveDrafter(inner, FLAT, 0.1)
        rounds = speculate(target, drafter, prompts, GREEDY, num_draft_tokens=12, max_new_tokens=40)
        assert collect(rounds) == collect(generate(target, prompts, GREEDY, max_new_tokens=40))


def test_drafts_grow_where_everything_is_accepted_and_a_longer_pass_costs_nothing():
    lengths = drafted(table(1), table(1), FLAT, 0.05)
    assert lengths[-3] == 12 > lengths[0]


def test_where_drafting_cannot_pay_only_a_probe_is_sent_now_and_then():
    lengths = drafted(table(1), table(2), STEEP, 1.0, tokens=40)
    assert set(lengths) == {0, 1}
    assert lengths[:17].count(1) == 3  # rounds 0, 8 and 16


def test_the_length_is_the_one_that_economics_finds_best():
    rows = Rows([[1]], GREEDY, 9, 99, Stop(), [0], torch.device("cpu"))
    drafter = AdaptiveDrafter(NgramDrafter(), {1: 2.0, 13: 4.0}, 0.4, alpha=0.7).fresh(table(1), rows)
    costs = [1 + length / 12 for length in range(13)]
    assert drafter.num_draft_tokens(0) == int(best_num_draft_tokens(0.7, 0.2, costs, 12))


def test_what_one_call_learnt_leaves_no_mark_on_the_next():
    target, drafter = table(1), AdaptiveDrafter(ModelDrafter(table(2)), FLAT, 0.1)

    def decode(prompt):
        return list(
            speculate(target, drafter, [prompt], SamplingSettings(), num_draft_tokens=12, max_new_tokens=20, seeds=5)
        )

    first = decode([1, 2])
    decode([3, 4, 5])
    assert decode([1, 2]) == first


def test_a_row_chooses_by_its_own_acceptance_alone():
    target, draft = table(1), table(2)
    prompts = [[1, 2], [3, 4, 5], [2, 2]]

    def decode(batch, seeds):
        drafter = AdaptiveDrafter(ModelDrafter(draft), FLAT, 0.1)
        return list(
            speculate(target, drafter, batch, SamplingSettings(), num_draft_tokens=12, max_new_tokens=20, seeds=seeds)
        )

    together = [result.drafts[1] for result in decode(prompts, [0, 1, 2]) if result.tokens[1]]
    assert together == [result.drafts[0] for result in decode(prompts[1:2], [1])]


def test_alpha_is_counted_over_judged_tokens():
    rows = Rows([[1]], GREEDY, 9, 99, Stop(), [0], torch.device("cpu"))
    drafter = AdaptiveDrafter(NgramDrafter(), FLAT, 0.1, alpha=0.5).fresh(table(1), rows)
    drafter.drafted = [4]
    drafter.commit(Verification(torch.tensor([2]), torch.tensor([1])))
    assert drafter.judged[0] - 0.95 * 8 == pytest.approx(3)  # two accepted, one refused, the fourth never judged
    assert drafter.accepted[0] - 0.95 * 4 == pytest.approx(2)
