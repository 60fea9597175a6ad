"""EAGLE trees: each node is what its own path alone would give, siblings do not see one another, the text is exact."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from specdec_ref.decode import collect, generate, speculate
from specdec_ref.drafters import Draft, Drafter, EagleDrafter
from specdec_ref.drafters.eagle import TREE
from specdec_ref.rows import Rows, Stop
from specdec_ref.sampling import GREEDY, SamplingSettings, probabilities
from specdec_ref.training.eagle import unroll
from specdec_ref.trees import ancestors, full_tree
from tests.ref.helpers import VOCAB, Watched, tiny_lm, uncached
from tests.ref.test_eagle_drafter import ODD, new_head

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = [[5, 9, 2], [7], [1, 2, 3, 4, 5, 6, 7, 8], [40, 41]]


class Listening(Watched):
    """A watched drafter that hands features on."""

    wants_features = True

    def fresh(self, target, rows):
        other = Listening(self.inner.fresh(target, rows), self.listener)
        self.listener("fresh", other.inner, rows)
        return other

    def take_features(self, features, counts):
        self.inner.take_features(features, counts)


@pytest.mark.parametrize("ids", [None, ODD], ids=["whole vocabulary", "half of it"])
@pytest.mark.parametrize("batch", [1, 2, 3, 4])
def test_greedy_text_is_the_targets_own(ids: list[int] | None, batch: int):
    target, prompts, options = tiny_lm(), PROMPTS[:batch], {"max_new_tokens": 20, "stop": Stop((11,))}
    plain = collect(generate(target, prompts, GREEDY, **options))
    drafter = EagleDrafter(new_head(target, ids), TREE)
    rounds = list(speculate(target, drafter, prompts, GREEDY, num_draft_tokens=4, **options))
    assert collect(rounds) == plain
    assert max(max(map(len, one.drafts)) for one in rounds) == len(TREE)


@torch.inference_mode()
def path_alone(head, target, text: list[int], path: list[int]) -> torch.Tensor:
    """Logits [V] after text and path: features of the target for the text, the head's own for the path, no cache."""
    body = target.model.base_model(input_ids=torch.tensor([text]), use_cache=False).last_hidden_state
    features = torch.cat([body, torch.zeros(1, len(path) + 1, 32, dtype=torch.float64)], dim=1)
    whole = torch.tensor([[*text, *path, 0]])
    logits = head.logits(unroll(head, features, whole, len(path) + 1)[len(path)][0, len(text) - 2 + len(path)])
    wide = torch.full((VOCAB,), -torch.inf, dtype=torch.float64)
    return wide.index_copy(0, head.draft_to_target, logits)


@pytest.mark.parametrize("how", [GREEDY, SamplingSettings(0.8), SamplingSettings(1.0, top_k=2, repetition_penalty=1.3)])
def test_each_node_follows_from_its_own_path_alone(how: SamplingSettings):
    """Over several rounds: what was accepted is read again with the target's features, and refused nodes leave none."""
    target, head = tiny_lm(), new_head(tiny_lm(), ODD)
    rows, checked = list[Rows](), 0

    def look(event: str, inner: Drafter, value: object) -> None:
        nonlocal checked
        if isinstance(value, Rows):
            rows.append(value)
        if event == "commit":
            assert isinstance(inner, EagleDrafter)
            assert inner.cache.lengths.tolist() == [length - 1 for length in rows[0].lengths]
        if not isinstance(value, Draft) or value.parents is None:
            return
        before = ancestors(value.parents)
        for row, text in enumerate(rows[0].tokens):
            tokens, hung = value.tokens[row].tolist(), value.parents[row].tolist()
            for node in range(int(value.counts[row])):
                path = [tokens[i] for i in before[row, hung[node] + 1].nonzero()[:, 0].tolist()]
                elder = [tokens[i] for i in range(node) if hung[i] == hung[node]]
                logits = path_alone(head, target, text, path)
                if how.greedy:
                    assert tokens[node] == int(logits.topk(len(elder) + 1).indices[-1])
                else:
                    assert value.probs is not None
                    law = probabilities(logits[None], how, torch.tensor([text + path]))[0].clone()
                    law[elder] = 0
                    if float(law.sum()) > 0:  # else the law is used up, and any other token stands in
                        torch.testing.assert_close(
                            value.probs[row, node], law / law.sum(), atol=1e-6, rtol=0
                        )  # angles are float32
                checked += 1

    drafter = Listening(EagleDrafter(head, full_tree((2, 2, 1))), look)
    list(speculate(target, drafter, PROMPTS[:2], how, num_draft_tokens=3, max_new_tokens=7))
    assert checked > 50


def test_sampled_text_follows_the_targets_law():
    """Chi-square on the first two new tokens of 3,000 rows; a true decoder fails once in a million runs."""
    target, count, settings = tiny_lm(), 3000, SamplingSettings(1.0, top_k=3)
    drafter = EagleDrafter(new_head(tiny_lm(), ODD, seed=3), full_tree((2, 1)))
    prompts = [[5, 9, 2]] * count
    found = collect(speculate(target, drafter, prompts, settings, num_draft_tokens=2, max_new_tokens=2, seeds=0))
    expected: dict[tuple[int, int], float] = {}
    first = uncached(target, [5, 9, 2])[-1].topk(3)
    for a, p in zip(first.indices.tolist(), first.values.softmax(-1).tolist(), strict=True):
        second = uncached(target, [5, 9, 2, a])[-1].topk(3)
        for b, q in zip(second.indices.tolist(), second.values.softmax(-1).tolist(), strict=True):
            expected[a, b] = p * q * count
    seen = dict.fromkeys(expected, 0)
    for a, b in found:
        seen[a, b] += 1  # a pair that the law excludes is a KeyError
    rare = [pair for pair in expected if expected[pair] < 5]
    often = [pair for pair in expected if pair not in rare]
    observed = [*(seen[pair] for pair in often), sum(seen[pair] for pair in rare)]
    wanted = [*(expected[pair] for pair in often), sum(expected[pair] for pair in rare)]
    keep = slice(None) if rare else slice(-1)
    assert stats.chisquare(observed[keep], wanted[keep]).pvalue > 1e-6


def test_a_row_does_not_depend_on_the_rows_beside_it():
    target, drafter = tiny_lm(), EagleDrafter(new_head(tiny_lm(), ODD), TREE)
    options = {"num_draft_tokens": 3, "max_new_tokens": 10}
    settings = SamplingSettings(0.9, top_p=0.95, repetition_penalty=1.1)
    together = collect(speculate(target, drafter, PROMPTS, settings, seeds=[1, 2, 3, 4], **options))
    alone = [
        collect(speculate(target, drafter, [prompt], settings, seeds=[seed], **options))[0]
        for seed, prompt in enumerate(PROMPTS, start=1)
    ]
    assert together == alone
