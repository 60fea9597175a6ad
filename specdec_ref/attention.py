"""Attention that reads shared keys and values where they lie.

In grouped-query attention (Ainslie et al. 2023, arXiv 2305.13245) several query heads share one head of keys and
values: three in SmolLM2. Given a mask and more than one query, transformers first copies the cache once for each query
head of a group. A plain step has one query and escapes that; verification does not, and pays for it most in batches.
torch's own attention can do without the copy.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "specdec_grouped"  # what transformers knows this attention by


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend with queries [B, H, T, D] to keys and values [B, H / groups, S, D]; returns [B, T, H, D].

    Everything but masked blocks is left to transformers' own `sdpa` attention.
    """
    if attention_mask is None or query.shape[2] == 1 or query.shape[1] == key.shape[1]:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    attended = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=options.get("scaling"), enable_gqa=True
    )
    return attended.transpose(1, 2).contiguous(), None


def use_grouped_attention(model: PreTrainedModel) -> None:
    """Make `model` attend this way, in place, if it attends by `sdpa` now."""
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(NAME)


AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
