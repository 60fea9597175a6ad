"""Medusa: several heads on one hidden state, each for a token further ahead.

The target's output layer reads the feature f_t and gives the law of the next token, x_{t+1}. Head k reads the same f_t
and guesses the token k places later: head 1 guesses x_{t+2}, the token AFTER the next one, head 2 guesses x_{t+3}. So
one pass of the target brings a token and a guess at each of those after it. No guess knows what the others say: that
is why they are weak, and why a tree of several guesses pays.

A head is one residual layer, f + SiLU(W f + b), in front of the target's own output layer. With W = 0 and b = 0 it is
that output layer, which is how its training begins. In the paper each head also learns an output layer of its own, a
copy of the target's at first; here that would be 28 million weights a head.

Source
------
Cai et al. 2024, "Medusa" (arXiv 2401.10774), section 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel

from specdec_ref.heads import stored
from specdec_ref.model import CachedLM


@dataclass(frozen=True)
class MedusaShape:
    """Sizes: the target's width D and vocabulary, and the number of heads H."""

    width: int
    target_vocab: int
    heads: int


class MedusaHeads(nn.Module):
    """H residual layers. The output layer is borrowed from the target."""

    output: torch.Tensor  # [V, D], the target's

    def __init__(self, shape: MedusaShape) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList(nn.Linear(shape.width, shape.width) for _ in range(shape.heads))
        for weight in self.parameters():
            nn.init.zeros_(weight)
        self.register_buffer("output", torch.empty(0), persistent=False)
        self.lent: tuple[nn.Module, ...] = ()  # the target's output layer; in a tuple, so that it is not saved as ours

    def borrow(self, target: PreTrainedModel) -> None:
        """Take the target's output layer."""
        self.output = stored.output_layer(target)
        self.lent = (cast(nn.Module, target.get_output_embeddings()),)

    def guess(self, number: int, features: torch.Tensor) -> torch.Tensor:
        """Return what head `number` (from 1) hands to the output layer, [..., D]."""
        return features + functional.silu(self.layers[number - 1](features))

    def logits(self, features: torch.Tensor, used: int | None = None) -> torch.Tensor:
        """Return logits [..., H, V] of the first `used` heads, or all, for features [..., D].

        Entry k - 1 is head k's guess at the token k places after the next one.
        """
        count = self.shape.heads if used is None else used
        hidden = torch.stack([self.guess(number, features) for number in range(1, count + 1)], dim=-2)  # [..., H, D]
        return self.lent[0](hidden)


def load_medusa(folder: Path, target: CachedLM, target_folder: Path) -> MedusaHeads:
    """Load Medusa heads for a target, ready to draft.

    Parameters
    ----------
    folder : Path
        Of the heads.
    target, target_folder : CachedLM and Path
        The target, and the folder that it was loaded from.

    Raises
    ------
    ValueError
        If a file is missing or damaged, or the heads were made for another target.
    """
    heads = stored.load(folder, "medusa", target, target_folder, lambda shape: MedusaHeads(MedusaShape(**shape)))
    heads.borrow(target.model)
    return heads
