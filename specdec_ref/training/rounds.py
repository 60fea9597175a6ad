"""Tokens per round without decoding: on greedy text a draft token is accepted exactly where it is the text's own.

So the rounds can be walked along a text that is already there. With the hits of every draft token at every place
known, which takes one pass over each text, a round begins where the last one ended and emits its leading hits and one
token more. It is what decoding these prompts greedily would give, up to numerical ties.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import LlamaForCausalLM

from specdec_ref.training.batches import Batch, Batches, hidden_states
from specdec_ref.training.corpus import Corpus


def tokens_per_round(hits: Sequence[np.ndarray]) -> float | None:
    """Walk rounds along each text and return the tokens that a round emits on average; None without texts.

    Parameters
    ----------
    hits : sequence of arrays [K, n] bool
        For an answer of n tokens: `hits[k, j]` tells whether token j is what draft token k (counted from 0) says
        there, in a round in which all draft tokens before it were right.
    """
    emitted = rounds = 0
    for answer in hits:
        width, length = answer.shape
        place = 0
        while place < length:
            run = 0
            while run < width and place + run < length and answer[run, place + run]:
                run += 1
            place += min(run + 1, length - place)
            rounds += 1
        emitted += length
    return emitted / rounds if rounds else None


def per_answer(flat: torch.Tensor, batch: Batch) -> list[np.ndarray]:
    """Cut hits [K, N] at the tokens of a batch into its answers."""
    ends = torch.bincount(batch.rows, minlength=len(batch.tokens)).cumsum(0)[:-1]
    return np.split(flat.numpy(), ends.tolist(), axis=1)


@torch.inference_mode()
def draft_hits(model: LlamaForCausalLM, corpus: Corpus, num_draft_tokens: int, batch_size: int = 4) -> list[np.ndarray]:
    """Return the hits of a draft model along a greedy corpus, as `tokens_per_round` wants them."""
    found: list[np.ndarray] = []
    if not len(corpus):
        return found
    batches = Batches(corpus, batch_size, seed=0)
    for start in range(0, len(corpus), batch_size):
        batch = batches.gather(np.arange(start, min(start + batch_size, len(corpus))))
        hit = model.lm_head(hidden_states(model, batch)).argmax(-1) == batch.labels  # [N]
        found += per_answer(hit.expand(num_draft_tokens, -1), batch)
    return found
