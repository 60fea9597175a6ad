"""A model that knows one text by heart: the token after n tokens is the text's own, whatever they were.

Two of these, each with the text in its own tokens, agree about everything. What a drafter between them loses is the
fault of the bridge alone. And whoever cuts the text another way than it was learnt loses the place at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional
from transformers import Cache, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from specdec_ref.model import CachedLM
from specdec_ref.table import TableConfig


class ByHeartModel(PreTrainedModel):
    """The logits after n tokens have one peak, at `text[n]`; after the last one, at the last one again."""

    config_class = TableConfig

    def __init__(self, text: Sequence[int], vocab_size: int) -> None:
        super().__init__(TableConfig(vocab_size=vocab_size, max_position_embeddings=len(text)))
        following = torch.tensor([*text[1:], text[-1]], dtype=torch.float64)
        self.following = torch.nn.Parameter(following, requires_grad=False)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
    ) -> CausalLMOutputWithPast:
        """Return logits [B, T, V] for tokens [B, T]."""
        del attention_mask, use_cache
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        if cache is not None:
            states = input_ids[:, None, :, None].double()  # so that the cache counts
            cache.update(states, states, 0)
        wanted = self.following[position_ids].long()
        return CausalLMOutputWithPast(logits=20.0 * functional.one_hot(wanted, self.config.vocab_size).float())


def by_heart_lm(text: Sequence[int], vocab_size: int) -> CachedLM:
    """Return a `CachedLM` that writes `text`, a list of ids below `vocab_size`."""
    return CachedLM(ByHeartModel(text, vocab_size), name="by heart")
