"""What every drafter does: propose some tokens for each row, then hear how many were accepted."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch

if TYPE_CHECKING:
    from specdec_ref.acceptance import Verification
    from specdec_ref.model import CachedLM
    from specdec_ref.rows import Rows


@dataclass(frozen=True)
class Draft:
    """Proposed tokens for a batch of rows.

    Attributes
    ----------
    tokens : Tensor [B, K] int64, on the rows' device
        Right-padded with any valid id. K is the longest draft of the batch and may be 0.
    counts : Tensor [B] int64, on the host
        How many tokens each row really drafted.
    probs : Tensor [B, K, V], or None
        The law each token was really drawn from, after temperature and filters. None: the drafter is deterministic, so
        the law is a point mass on the token.
    healthy : Tensor [B, K] bool, or None
        Whether the drafter's own logits were a law at each token. None: nothing to doubt.
    """

    tokens: torch.Tensor
    counts: torch.Tensor
    probs: torch.Tensor | None = None
    healthy: torch.Tensor | None = None

    @property
    def width(self) -> int:
        """K: columns of the draft."""
        return self.tokens.shape[1]

    def check(self, limits: Sequence[int], vocab_size: int) -> None:
        """Raise a ValueError if the draft breaks the contract in a way the host can see without waiting."""
        batch = len(limits)
        if self.tokens.dim() != 2 or len(self.tokens) != batch or tuple(self.counts.shape) != (batch,):
            raise ValueError(f"draft: tokens must be [{batch}, K] and counts [{batch}]")
        most = torch.tensor(limits).clamp(max=self.width)
        if bool(((self.counts < 0) | (self.counts > most)).any()):
            raise ValueError(f"draft: counts {self.counts.tolist()} must lie in 0..{most.tolist()}, limits and width")
        if self.probs is not None and tuple(self.probs.shape) != (batch, self.width, vocab_size):
            raise ValueError(
                f"draft: probs has shape {tuple(self.probs.shape)}; needed is {(batch, self.width, vocab_size)} "
                "(the target's vocabulary)"
            )

    def plausible(self, device: torch.device) -> torch.Tensor:
        """Tell, per row [B], whether every draft token could have been drawn from its law: q > 0 and not NaN."""
        sound = torch.ones(self.tokens.shape, dtype=torch.bool, device=device)  # [B, K]
        if self.probs is not None:
            sound = self.probs.gather(-1, self.tokens[..., None]).squeeze(-1) > 0
        if self.healthy is not None:
            sound = sound & self.healthy
        padding = torch.arange(self.width, device=device) >= self.counts.to(device, non_blocking=True)[:, None]
        return (sound | padding).all(1)

    def refuse_implausible(self, plausible: list[int], original: Sequence[int]) -> None:
        """Raise a ValueError for the first row `plausible` found fault with; `original` gives its number."""
        if not all(plausible):
            row = original[plausible.index(0)]
            raise ValueError(f"draft: a token of row {row} has probability 0 or NaN under the law it was drawn from")


class Drafter:
    """Base class. A drafter overrides `propose`, and what else it needs.

    One instance describes a drafter; `fresh` makes the working copy of one decoding run, so that two runs, or a run
    that was broken off, never share state.
    """

    def fresh(self, target: CachedLM, rows: Rows) -> Self:
        """Return a copy with empty state for decoding `rows`.

        Raises
        ------
        ValueError
            If the drafter cannot serve `target`.
        """
        del target, rows
        return copy.copy(self)

    def propose(self, rows: Rows, limits: Sequence[int]) -> Draft:
        """Propose at most `limits[b]` tokens after the text of each row; fewer, or none, is always allowed."""
        raise NotImplementedError

    def commit(self, verification: Verification) -> None:
        """Hear the verdict on the last proposal (host tensors), to forget refused tokens."""

    def select(self, keep: Sequence[int]) -> None:
        """Keep only these rows: the others have finished."""
