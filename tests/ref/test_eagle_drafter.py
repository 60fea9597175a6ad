"""The EAGLE drafter: the text is the target's, the cache holds true features only, and q is what was drawn from."""

from __future__ import annotations

import pytest
import torch
from scipy import stats
from transformers import LlamaConfig, LlamaForCausalLM

from specdec_ref import kernels
from specdec_ref.acceptance import Verification
from specdec_ref.decode import collect, generate, speculate
from specdec_ref.drafters import Draft, EagleDrafter
from specdec_ref.heads import EagleHead, EagleShape
from specdec_ref.heads.stored import output_layer
from specdec_ref.kernels import HalfLinear, Int8Linear
from specdec_ref.model import CachedLM
from specdec_ref.rows import Rows, Stop
from specdec_ref.sampling import GREEDY, SamplingSettings
from specdec_ref.training.eagle import unroll
from tests.ref.helpers import CONFIGS, VOCAB, random_table_lm, tiny_lm, uncached

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = [[5, 9, 2], [7], [1, 2, 3, 4, 5, 6, 7, 8], [40, 41]]
ODD = list(range(1, VOCAB, 2))


def new_head(target: CachedLM, ids: list[int] | None = None, seed: int = 0) -> EagleHead:
    """A random head in float64, which agrees with the target by chance only."""
    kept = torch.tensor(ids if ids is not None else list(range(VOCAB)))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = EagleHead(EagleShape(32, VOCAB, len(kept), heads=4, kv_heads=2, mlp=16)).double()
    head.draft_to_target.copy_(kept)
    head.borrow(target.model)
    return head.eval()


class Spy(EagleDrafter):
    """Remembers its proposals and what was decided."""

    def __init__(self, head: EagleHead) -> None:
        super().__init__(head)
        self.seen: list[tuple[list[list[int]], Draft]] = []
        self.held: list[list[int]] = []

    def propose(self, rows: Rows, limits: list[int]) -> Draft:  # pyright: ignore[reportIncompatibleMethodOverride]
        draft = super().propose(rows, limits)
        self.seen.append(([list(tokens) for tokens in rows.tokens], draft))
        return draft

    def commit(self, verification: Verification) -> None:
        super().commit(verification)
        self.held.append(self.cache.lengths.tolist())


# The target's side of it


@torch.inference_mode()
@pytest.mark.parametrize("name", list(CONFIGS))
def test_a_feature_is_what_the_output_layer_reads(name: str):
    lm = tiny_lm(name).fresh(2)
    features = lm.prefill_with_features([[3, 1, 4, 1], [5, 9]])
    logits, more = lm.extend_with_features(torch.tensor([[2, 6], [5, 3]]))
    layer = lm.model.get_output_embeddings()
    torch.testing.assert_close(layer(more), logits)  # pyright: ignore[reportCallIssue, reportOptionalCall]
    for row, text in enumerate(([3, 1, 4, 1, 2, 6], [5, 9, 5, 3])):
        alone = uncached(lm, text)
        torch.testing.assert_close(layer(features[row, : len(text) - 2]), alone[:-2])  # pyright: ignore
        torch.testing.assert_close(logits[row], alone[-2:])


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_a_head_borrows_the_output_layer_of_a_target_whatever_its_weights_are_stored_as(dtype: str):
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        tie_word_embeddings=True,
    )
    model = kernels.prepare(LlamaForCausalLM(config).eval(), dtype)
    assert torch.equal(output_layer(model), model.get_input_embeddings().weight)
    head = new_head(CachedLM(model), ODD)
    assert torch.equal(head.output, output_layer(model)[ODD])
    model.config.tie_word_embeddings = False  # then nothing says that the embedding will do
    if type(model.get_output_embeddings()) in (HalfLinear, Int8Linear):
        with pytest.raises(ValueError, match="in few bits only: load it in another dtype"):
            output_layer(model)


def test_features_of_a_long_prompt_come_in_one_piece(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("specdec_ref.model.PREFILL_BLOCK", 3)
    cut = tiny_lm().fresh(2).prefill_with_features([[3, 1, 4, 1, 5, 9, 2], [6, 5]])
    monkeypatch.setattr("specdec_ref.model.PREFILL_BLOCK", 100)
    whole = tiny_lm().fresh(2).prefill_with_features([[3, 1, 4, 1, 5, 9, 2], [6, 5]])
    torch.testing.assert_close(cut[0], whole[0])
    torch.testing.assert_close(cut[1, :2], whole[1, :2])


# Drafting


@pytest.mark.parametrize("ids", [None, ODD], ids=["whole vocabulary", "half of it"])
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1], [[7], [8]]], ids=["ragged", "one row", "one token"])
def test_greedy_text_is_the_targets_own(ids: list[int] | None, prompts: list[list[int]]):
    target = tiny_lm()
    plain = collect(generate(target, prompts, GREEDY, max_new_tokens=30, stop=Stop((11,))))
    drafter = EagleDrafter(new_head(target, ids))
    rounds = list(speculate(target, drafter, prompts, GREEDY, num_draft_tokens=4, max_new_tokens=30, stop=Stop((11,))))
    assert collect(rounds) == plain
    assert sum(map(sum, (one.num_drafted for one in rounds))) > 0


def test_a_draft_is_the_chain_that_training_unrolls():
    """Each token of each draft follows from the target's features of the whole text, in one pass without any cache."""
    target = tiny_lm()
    head = new_head(target, ODD)
    spy = Spy(head)
    spy.fresh = lambda target, rows: _keep(spy, EagleDrafter.fresh(spy, target, rows))  # the working copy is looked at
    list(speculate(target, spy, PROMPTS, GREEDY, num_draft_tokens=3, max_new_tokens=12))
    checked = 0
    for texts, draft in spy.seen:
        for row, text in enumerate(texts):
            count = int(draft.counts[row])
            if count < 3:
                assert len(text) == 1 or count >= 0
            if count == 0:
                continue
            drafted = draft.tokens[row, :count].tolist()
            whole = torch.tensor([[*text, *drafted]])
            with torch.no_grad():
                body = target.model.base_model(input_ids=torch.tensor([text]), use_cache=False).last_hidden_state
                # Features after the committed text are never read by these passes at these places.
                features = torch.cat([body, torch.zeros(1, count, 32, dtype=torch.float64)], dim=1)
                passes = unroll(head, features, whole, count)
                for number in range(count):
                    # Pass m at pair n-2+m-1: its round began at pair n-2, the last with a feature the target had.
                    logits = head.logits(passes[number][0, len(text) - 2 + number])
                    assert int(head.draft_to_target[logits.argmax()]) == drafted[number]
                    checked += 1
    assert checked > 30


def _keep(spy: Spy, copy: EagleDrafter) -> EagleDrafter:
    assert isinstance(copy, Spy)
    copy.seen, copy.held = spy.seen, spy.held
    return copy


def test_between_rounds_the_cache_holds_a_pair_for_each_token_that_the_target_has_read():
    target, spy = tiny_lm(), Spy(new_head(tiny_lm()))
    spy.fresh = lambda target, rows: _keep(spy, EagleDrafter.fresh(spy, target, rows))
    list(speculate(target, spy, PROMPTS, GREEDY, num_draft_tokens=4, max_new_tokens=12))
    for (texts, _), held in zip(spy.seen, spy.held, strict=True):
        assert held == [len(text) - 1 for text in texts]


def test_nothing_is_drafted_outside_the_draft_vocabulary_and_q_says_so():
    target, spy = tiny_lm(), Spy(new_head(tiny_lm(), ODD))
    spy.fresh = lambda target, rows: _keep(spy, EagleDrafter.fresh(spy, target, rows))
    list(speculate(target, spy, PROMPTS, SamplingSettings(1.0), num_draft_tokens=3, max_new_tokens=12))
    even = torch.arange(0, VOCAB, 2)
    for _, draft in spy.seen:
        if draft.width == 0:
            continue
        assert draft.probs is not None
        assert draft.probs.shape[-1] == VOCAB
        assert float(draft.probs[..., even].sum()) == 0
        torch.testing.assert_close(draft.probs.sum(-1), torch.ones_like(draft.probs.sum(-1)))
        assert (draft.tokens % 2 == 1)[torch.arange(draft.width) < draft.counts[:, None]].all()


def test_a_row_does_not_depend_on_the_rows_beside_it():
    target, drafter = tiny_lm(), EagleDrafter(new_head(tiny_lm(), ODD))
    options = {"num_draft_tokens": 3, "max_new_tokens": 15}
    settings = SamplingSettings(0.9, top_p=0.95, repetition_penalty=1.1)
    together = collect(speculate(target, drafter, PROMPTS, settings, seeds=[1, 2, 3, 4], **options))
    alone = [
        collect(speculate(target, drafter, [prompt], settings, seeds=[seed], **options))[0]
        for seed, prompt in enumerate(PROMPTS, start=1)
    ]
    assert together == alone


def test_sampled_text_follows_the_targets_law():
    """Chi-square on the first two new tokens of 4,000 rows; a true decoder fails once in a million runs."""
    target, count = tiny_lm(), 4000
    drafter = EagleDrafter(new_head(tiny_lm(), ODD, seed=3))
    settings = SamplingSettings(1.0, top_k=3)
    found = collect(
        speculate(target, drafter, [[5, 9, 2]] * count, settings, num_draft_tokens=2, max_new_tokens=2, seeds=0)
    )
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
    observed = [seen[pair] for pair in expected if pair not in rare] + [sum(seen[pair] for pair in rare)] * bool(rare)
    wanted = [expected[pair] for pair in expected if pair not in rare] + [sum(expected[pair] for pair in rare)] * bool(
        rare
    )
    assert stats.chisquare(observed, wanted).pvalue > 1e-6


def test_a_head_that_knows_the_next_feature_has_every_draft_accepted():
    """A target whose next token follows from its last feature alone, and a head that hands that feature on."""
    target = tiny_lm()

    class Oracle(EagleHead):
        def forward(self, features, tokens, positions, attend):  # pyright: ignore[reportIncompatibleMethodOverride]
            keys = torch.zeros(*tokens.shape[:1], 2, tokens.shape[1], 8, dtype=torch.float64)
            attend(torch.zeros(len(tokens), 4, tokens.shape[1], 8, dtype=torch.float64), keys, keys)
            return self.answers[positions + 1]

    head = Oracle(EagleShape(32, VOCAB, VOCAB, heads=4, kv_heads=2, mlp=16)).double()
    head.draft_to_target.copy_(torch.arange(VOCAB))
    head.borrow(target.model)
    prompt = [5, 9, 2]
    text = collect(generate(target, [prompt], GREEDY, max_new_tokens=40))[0]
    whole = torch.tensor([[*prompt, *text]])
    states = target.model.base_model(input_ids=whole, use_cache=False).last_hidden_state[0].detach()
    head.answers = torch.cat([states[:1], states])  # at position i + 1 lies the feature of token i
    rounds = list(speculate(target, EagleDrafter(head), [prompt], GREEDY, num_draft_tokens=4, max_new_tokens=40))
    assert collect(rounds)[0] == text
    assert all(one.num_accepted == one.num_drafted for one in rounds)
    assert len(rounds) == 8


def test_a_head_of_another_width_and_a_target_without_features_are_refused():
    head = new_head(tiny_lm())
    for target in (random_table_lm(), tiny_lm("llama", hidden_size=64)):
        with pytest.raises(ValueError, match=r"the EAGLE head reads features of width 32"):
            speculate(target, EagleDrafter(head), [[1, 2]])


def test_two_runs_share_nothing():
    target, drafter = tiny_lm(), EagleDrafter(new_head(tiny_lm()))
    first = collect(speculate(target, drafter, PROMPTS, GREEDY, max_new_tokens=9))
    broken_off = speculate(target, drafter, [[9, 9, 9]], GREEDY, max_new_tokens=9)
    next(broken_off)
    assert collect(speculate(target, drafter, PROMPTS, GREEDY, max_new_tokens=9)) == first


def test_the_heads_parameters_get_no_gradient_while_drafting():
    target, head = tiny_lm(), new_head(tiny_lm())
    assert isinstance(target.model, LlamaForCausalLM)
    list(speculate(target, EagleDrafter(head), PROMPTS, GREEDY, max_new_tokens=5))
    assert all(weight.grad is None for weight in head.parameters())
