"""New texts enter a running batch: `RowCache.put`, judged by the logits that follow."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specdec_ref.cache import BLOCK
from specdec_ref.model import CachedLM

A, B, C = [5, 6, 7, 8], [9, 10], [11, 12, 13]


@pytest.fixture(scope="module")
def lm() -> CachedLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4 * BLOCK,
    )
    return CachedLM(LlamaForCausalLM(config))


def filled(lm: CachedLM, *texts: list[int]) -> CachedLM:
    one = lm.fresh(len(texts))
    one.prefill(texts)
    return one


def next_logits(batch: CachedLM, token: int = 3) -> torch.Tensor:
    return batch.extend(torch.full((len(batch.cache.lengths), 1), token))[:, -1]


def test_texts_take_the_rows_named_and_leave_the_other_rows_alone(lm: CachedLM):
    batch = filled(lm, A, B, A)
    batch.cache.put([2, 1], filled(lm, B, C).cache)
    assert batch.cache.lengths.tolist() == [4, 3, 2]
    torch.testing.assert_close(next_logits(batch), next_logits(filled(lm, A, C, B)))


def test_an_empty_cache_can_be_filled_row_by_row(lm: CachedLM):
    batch = lm.fresh(2)
    batch.cache.put([1], filled(lm, A).cache)
    batch.cache.put([0], filled(lm, B).cache)
    torch.testing.assert_close(next_logits(batch), next_logits(filled(lm, B, A)))


def test_an_empty_text_can_take_a_row(lm: CachedLM):
    batch = filled(lm, A, B)
    batch.cache.put([0], lm.fresh(1).cache)
    torch.testing.assert_close(next_logits(batch), next_logits(filled(lm, [], B)))


def test_a_text_longer_than_the_room_makes_room_for_all_rows(lm: CachedLM):
    long = [number % 40 for number in range(BLOCK + 5)]
    batch = filled(lm, A, B)
    batch.cache.put([1], filled(lm, long).cache)
    torch.testing.assert_close(next_logits(batch), next_logits(filled(lm, A, long)))


def test_the_cache_that_was_put_in_stays_its_own(lm: CachedLM):
    batch, other = filled(lm, A, B), filled(lm, C)
    batch.cache.put([0], other.cache)
    next_logits(batch)
    assert other.cache.lengths.tolist() == [3]
    torch.testing.assert_close(next_logits(other), next_logits(filled(lm, C)))


def test_a_row_for_each_text_is_needed(lm: CachedLM):
    with pytest.raises(ValueError, match="rows names 1 rows; the other cache has 2"):
        filled(lm, A, B).cache.put([0], filled(lm, B, C).cache)
