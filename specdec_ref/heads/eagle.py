"""EAGLE: draft features, not tokens.

The target's last hidden state says more about the next token but one than the next token's name does. So one decoder
layer reads pairs, the target's feature at position t and the token that came after it, and predicts the feature at
t+1. The target's own output layer turns that into a law:

    pair t      (f_t ; x_{t+1})  ->  g_{t+1} ~ f_{t+1}  ->  law of x_{t+2}

A draft then goes on with its own features: (g_{t+1} ; drafted x_{t+2}) -> g_{t+2}, and so on. The token in the pair is
what a feature lacks: f_t knows the law of x_{t+1}, not which token was drawn from it.

Nearly all of a small model is its output layer. This head has none of its own: it borrows the rows of the target's for
the commonest tokens, the draft vocabulary, and never drafts another token.

Source
------
Li et al. 2024, "EAGLE" (arXiv 2401.15077), section 3; the reduced vocabulary and training on own features follow
EAGLE-3 (Li et al. 2025, arXiv 2503.01840).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel

from specdec_ref.heads import stored
from specdec_ref.kernels import fast_linear
from specdec_ref.model import CachedLM

# Given queries [B, H, T, d], keys and values [B, G, T, d] of new pairs: what each query reads, [B, H, T, d].
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class EagleShape:
    """Sizes: the target's width D and vocabulary, the draft vocabulary R, attention heads, width of the MLP."""

    width: int
    target_vocab: int
    draft_vocab: int
    heads: int
    kv_heads: int
    mlp: int
    rope_theta: float = 10_000.0

    def __post_init__(self) -> None:
        """Refuse sizes that do not divide."""
        if self.width % (2 * self.heads) or self.heads % self.kv_heads:
            raise ValueError(
                f"width={self.width} must be a multiple of twice heads={self.heads}, "
                f"and heads a multiple of kv_heads={self.kv_heads}"
            )


class Norm(nn.Module):
    """Divide by the root mean square, in the precision of the weight (Zhang and Sennrich 2019, arXiv 1910.07467)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x` [..., D] at size 1, times the weight."""
        x = x.to(self.weight.dtype)
        return self.weight * x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()


class EagleHead(nn.Module):
    """One decoder layer over (feature ; next token). Its weights are its own; embedding and output rows are borrowed.

    Attributes
    ----------
    draft_to_target : Tensor [R] int64
        The target's id of each draft id.
    """

    draft_to_target: torch.Tensor
    embedding: torch.Tensor  # [V, D], the target's
    output: torch.Tensor  # [R, D], rows of the target's output layer

    def __init__(self, shape: EagleShape) -> None:
        super().__init__()
        self.shape = shape
        width, head_dim = shape.width, shape.width // shape.heads
        self.feature_norm, self.token_norm = Norm(width), Norm(width)
        self.fuse = nn.Linear(2 * width, width, bias=False)
        self.attention_norm, self.mlp_norm, self.norm = Norm(width), Norm(width), Norm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, shape.kv_heads * head_dim, bias=False)
        self.value = nn.Linear(width, shape.kv_heads * head_dim, bias=False)
        self.read = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, shape.mlp, bias=False)
        self.up = nn.Linear(width, shape.mlp, bias=False)
        self.down = nn.Linear(shape.mlp, width, bias=False)
        self.register_buffer("draft_to_target", torch.zeros(shape.draft_vocab, dtype=torch.int64))
        self.register_buffer("embedding", torch.empty(0), persistent=False)
        self.register_buffer("output", torch.empty(0), persistent=False)
        self.lent: tuple[nn.Linear, ...] = ()  # `output` as a layer; in a tuple, so that it is not saved as ours

    def borrow(self, target: PreTrainedModel) -> None:
        """Take embedding and output rows from the target. Call it once `draft_to_target` is known."""
        self.embedding = stored.input_embedding(target)
        self.output = stored.output_layer(target)[self.draft_to_target]
        layer = nn.Linear(*self.output.shape[::-1], bias=False, device="meta")
        layer.weight = nn.Parameter(self.output, requires_grad=False)
        self.lent = (fast_linear(layer),)

    def forward(
        self, features: torch.Tensor, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """Predict the next feature for each pair.

        Parameters
        ----------
        features : Tensor [B, T, D]
            The target's, or this head's own.
        tokens : Tensor [B, T] int64
            The token after each of them, as the target's id.
        positions : Tensor [B or 1, T] int64
            Where that token stands in the text.
        attend : callable
            Stores the new keys and values, and attends: how far a pair sees is the caller's business.

        Returns
        -------
        Tensor [B, T, D]
        """
        tokens_in = self.token_norm(functional.embedding(tokens, self.embedding))
        pairs = torch.cat([self.feature_norm(features), tokens_in], dim=-1)  # [B, T, 2D]
        x = self.fuse(pairs).to(self.norm.weight.dtype)  # [B, T, D]
        seen = self.attention_norm(x)
        angles = rotary_angles(positions, self.shape.width // self.shape.heads, self.shape.rope_theta)
        queries, keys, values = (self._split(layer(seen)) for layer in (self.query, self.key, self.value))
        attended = attend(rotate(queries, angles), rotate(keys, angles), values)  # [B, H, T, d]
        x = x + self.read(attended.transpose(1, 2).flatten(2))
        seen = self.mlp_norm(x)
        x = x + self.down(functional.silu(self.gate(seen)) * self.up(seen))
        return self.norm(x)

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        """Cut [B, T, heads * d] into heads, [B, heads, T, d]."""
        return x.unflatten(-1, (-1, self.shape.width // self.shape.heads)).transpose(1, 2)

    def logits(self, features: torch.Tensor) -> torch.Tensor:
        """Return logits [..., R] over the draft vocabulary for features [..., D]."""
        return self.lent[0](features)


def rotary_angles(positions: torch.Tensor, head_dim: int, theta: float) -> torch.Tensor:
    """Return the angle of each pair of numbers, [B or 1, 1, T, d/2] (Su et al. 2021, arXiv 2104.09864)."""
    exponents = torch.arange(0, head_dim, 2, device=positions.device) / head_dim
    return (positions[..., None] * theta**-exponents)[:, None]


def rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Turn queries or keys [B, heads, T, d] by their angles: the first half of d is paired with the second."""
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def load_eagle(folder: Path, target: CachedLM, target_folder: Path) -> EagleHead:
    """Load an EAGLE head for a target, ready to draft.

    Parameters
    ----------
    folder : Path
        Of the head.
    target, target_folder : CachedLM and Path
        The target, and the folder that it was loaded from.

    Raises
    ------
    ValueError
        If a file is missing or damaged, or the head was made for another target.
    """
    head = stored.load(folder, "eagle", target, target_folder, lambda shape: EagleHead(EagleShape(**shape)))
    head.borrow(target.model)
    return head
