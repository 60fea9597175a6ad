"""What every drafter does: propose some tokens for each row, then hear how many were accepted."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch

from specdec_ref import trees
from specdec_ref.device import upload

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
        How many tokens each row really drafted. Of a tree these are its nodes.
    probs : Tensor [B, K, V], or None
        The law each token was really drawn from, after temperature and filters. None: the drafter is deterministic, so
        the law is a point mass on the token.
    healthy : Tensor [B, K] bool, or None
        Whether the drafter's own logits were a law at each token. None: nothing to doubt.
    parents : Tensor [B, K] int64 on the host, or None
        The draft is a tree: the parent of each node, -1 for a child of the text, else an earlier node (of padding too).
        None: a chain. A tree with `probs` was sampled, siblings in the order of their nodes and without replacement:
        the law of a node knows its elder siblings. A tree without was chosen in any way that looked at no uniforms.
    """

    tokens: torch.Tensor
    counts: torch.Tensor
    probs: torch.Tensor | None = None
    healthy: torch.Tensor | None = None
    parents: torch.Tensor | None = None

    @property
    def width(self) -> int:
        """K: columns of the draft."""
        return self.tokens.shape[1]

    def check(self, limits: Sequence[int], vocab_size: int) -> None:
        """Raise a ValueError if the draft breaks the contract in a way the host can see without waiting."""
        batch = len(limits)
        if self.tokens.dim() != 2 or len(self.tokens) != batch or tuple(self.counts.shape) != (batch,):
            raise ValueError(f"draft: tokens must be [{batch}, K] and counts [{batch}]")
        on_host = self.tokens.device.type == "cpu"
        if on_host and bool(((self.tokens < 0) | (self.tokens >= vocab_size)).any()):
            raise ValueError(f"draft: tokens {self.tokens.tolist()} must be ids of the target, 0..{vocab_size - 1}")
        if self.parents is not None:
            self._check_tree(self.parents, torch.tensor(limits))
        most = torch.tensor([self.width] * batch if self.parents is not None else limits).clamp(max=self.width)
        if bool(((self.counts < 0) | (self.counts > most)).any()):
            raise ValueError(f"draft: counts {self.counts.tolist()} must lie in 0..{most.tolist()}, limits and width")
        if self.probs is not None and tuple(self.probs.shape) != (batch, self.width, vocab_size):
            raise ValueError(
                f"draft: probs has shape {tuple(self.probs.shape)}; needed is {(batch, self.width, vocab_size)} "
                "(the target's vocabulary)"
            )

    def _check_tree(self, parents: torch.Tensor, limits: torch.Tensor) -> None:
        if parents.shape != self.tokens.shape:
            raise ValueError(f"draft: parents has shape {tuple(parents.shape)}, its tokens {tuple(self.tokens.shape)}")
        real = torch.arange(self.width) < self.counts[:, None]  # [B, K]
        deepest = (trees.depths(parents) * real).amax(1) if self.width else torch.zeros_like(limits)
        if bool((deepest > limits).any()):
            raise ValueError(f"draft: trees of depth {deepest.tolist()} are deeper than their limits {limits.tolist()}")

    def plausible(self, device: torch.device) -> torch.Tensor:
        """Tell, per row [B], whether every draft token could have been drawn from its law: q > 0 and not NaN.

        In a tree, two children of a node must also be different tokens.
        """
        sound = torch.ones(self.tokens.shape, dtype=torch.bool, device=device)  # [B, K]
        if self.probs is not None:
            sound = self.probs.gather(-1, self.tokens[..., None]).squeeze(-1) > 0
        if self.healthy is not None:
            sound = sound & self.healthy
        padding = torch.arange(self.width, device=device) >= self.counts.to(device, non_blocking=True)[:, None]
        sound = (sound | padding).all(1)
        if self.parents is not None:
            sound = sound & ~trees.twins(self.tokens, upload(self.parents, device), ~padding)
        return sound

    def refuse_implausible(self, plausible: list[int], original: Sequence[int]) -> None:
        """Raise a ValueError for the first row `plausible` found fault with; `original` gives its number."""
        if not all(plausible):
            row = original[plausible.index(0)]
            if self.parents is not None:
                raise ValueError(
                    f"draft: two children of a node of row {row} are the same token, or one comes from NaN or from a "
                    "law that gives it nothing"
                )
            raise ValueError(f"draft: a token of row {row} has probability 0 or NaN under the law it was drawn from")


class Drafter:
    """Base class. A drafter overrides `propose`, and what else it needs.

    One instance describes a drafter; `fresh` makes the working copy of one decoding run, so that two runs, or a run
    that was broken off, never share state.

    Attributes
    ----------
    wants_features : bool
        Whether `take_features` is to be called. Nobody else pays for them.
    """

    wants_features = False

    def fresh(self, target: CachedLM, rows: Rows) -> Self:
        """Return a copy with empty state for decoding `rows`.

        Parameters
        ----------
        target : CachedLM
            The working copy of the target, whose cache is empty now and belongs to the decoder: look, but leave it as
            it was found.
        rows : Rows
            The texts.

        Raises
        ------
        ValueError
            If the drafter cannot serve `target`.
        """
        del target, rows
        return copy.copy(self)

    def propose(self, rows: Rows, limits: Sequence[int]) -> Draft:
        """Propose at most `limits[b]` tokens after the text of each row; fewer, or none, is always allowed.

        A tree may have more nodes than that, but is at most so deep.
        """
        raise NotImplementedError

    def commit(self, verification: Verification) -> None:
        """Hear the verdict on the last proposal (host tensors), to forget refused tokens."""

    def take_features(self, features: torch.Tensor, counts: torch.Tensor) -> None:
        """Take the target's features of the text it has read since the last call: of the prompt, then of each round.

        Called only where `wants_features` is set, after `commit`. A feature is the target's last hidden state, which
        its output layer reads. The last committed token has none yet: the target has not read it.

        Parameters
        ----------
        features : Tensor [B, T, D]
            In the order of the text, right-padded.
        counts : Tensor [B] int64 on the host
            How many of them each row has.
        """

    def rewind(self, lengths: Sequence[int]) -> None:
        """Forget all tokens of each row after the first `lengths[b]`: who drafts with this drafter takes them back.

        Called only between two rounds, and only where this drafter serves inside of another one. A drafter that does
        not override this cannot serve there.
        """
        raise NotImplementedError

    def select(self, keep: Sequence[int]) -> None:
        """Keep only these rows: the others have finished."""
