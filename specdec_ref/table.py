"""A language model you can see whole: a table that maps the last two tokens to the law of the next one.

Its laws can be written down, enumerated and compared with what a decoder emits, to the last digit. It is still a
transformers model that stores keys and values in a cache and finds its previous token by attention: whoever gets a
mask, a position or a rollback wrong gets wrong tokens here too.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import Cache, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from specdec_ref.model import CachedLM


class TableConfig(PretrainedConfig):
    """Sizes of a `TableModel`."""

    model_type = "specdec_table"

    def __init__(self, vocab_size: int = 4, max_position_embeddings: int = 4096, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        self.max_position_embeddings = max_position_embeddings
        self.num_hidden_layers = 1


class TableModel(PreTrainedModel):
    """Next-token logits are `table[previous token, last token]`. Before the first token the previous one counts as 0.

    Parameters
    ----------
    table : Tensor [V, V, V], float64 recommended
        Logits. A [V, V] table is a model whose next token depends on the last token alone.
    max_length : int
        Longest text.
    """

    config_class = TableConfig

    def __init__(self, table: torch.Tensor, max_length: int = 4096) -> None:
        vocab = table.shape[-1]
        super().__init__(TableConfig(vocab_size=vocab, max_position_embeddings=max_length))
        # [V, V, V], or [1, V, V] where the last token decides: 1,000 tokens need no thousand copies of a table.
        self.table = torch.nn.Parameter(table.reshape(-1, vocab, vocab).clone(), requires_grad=False)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
    ) -> CausalLMOutputWithPast:
        """Return logits [B, T, V] for tokens [B, T], as a transformers causal LM does."""
        del use_cache
        batch, length = input_ids.shape
        if position_ids is None:
            position_ids = torch.arange(length, device=input_ids.device).expand(batch, -1)
        # One head of size 1: the key is the token's position, the value is the token.
        keys = position_ids[:, None, :, None].to(self.table.dtype)
        values = input_ids[:, None, :, None].to(self.table.dtype)
        if cache is not None:
            keys, values = cache.update(keys, values, 0)
        visible = torch.ones(length, keys.shape[2], dtype=torch.bool, device=keys.device).tril()
        if attention_mask is not None:
            visible = attention_mask[:, 0] == 0  # [B, T, S]
        # Hard attention: of the visible slots, look at the one at the position just before mine.
        before = (keys[:, 0, :, 0][:, None] == position_ids[..., None] - 1) & visible  # [B, T, S]
        previous = (before * values[:, 0, :, 0][:, None]).sum(-1).long()  # [B, T]; 0 where there is none
        return CausalLMOutputWithPast(logits=self.table[previous % len(self.table), input_ids])


def table_lm(table: torch.Tensor, max_length: int = 4096, name: str = "table") -> CachedLM:
    """Return a `CachedLM` over a table of logits, [V, V] or [V, V, V]."""
    return CachedLM(TableModel(table, max_length), name=name)
