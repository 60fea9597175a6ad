"""A ledger of both caches: what the target and its draft hold before and after each round of `speculate`.

The decoder is not changed and not asked. A drafter that takes notes sits where the drafter goes, and a target that
remembers its working copy sits where the target goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specdec_ref.acceptance import Verification
from specdec_ref.drafters import Draft, ModelDrafter
from specdec_ref.model import CachedLM
from specdec_ref.rows import Rows


@dataclass(frozen=True)
class Entry:
    """One round of one row, in tokens.

    Attributes
    ----------
    committed : int
        n, the length of the text before the round, prompt included.
    drafted, accepted : int
        Tokens proposed and accepted.
    fed : int
        Committed tokens that the draft had to read first, because its cache lacked them.
    target_before, target_after, draft_before, draft_after : int
        What the two caches held before the round, and after its rollback.
    """

    committed: int
    drafted: int
    accepted: int
    fed: int
    target_before: int
    target_after: int
    draft_before: int
    draft_after: int


class Ledger:
    """Take notes on row 0 of one run: `speculate(ledger.target, ledger.drafter, ...)`, then read `entries`.

    Parameters
    ----------
    target : CachedLM
        The target of the run.
    drafter : ModelDrafter
        The drafter of the run; a subclass keeps its own ways.
    """

    def __init__(self, target: CachedLM, drafter: ModelDrafter) -> None:
        self.entries: list[Entry] = []
        self.working: CachedLM = target  # the copy that the run fills; set when the run begins
        self.target = _RememberingLM(target, self)
        self.drafter = _NotingDrafter(drafter, self)


class _RememberingLM(CachedLM):
    """The same model; its working copy is known to the ledger."""

    def __init__(self, lm: CachedLM, ledger: Ledger) -> None:
        self.__dict__.update(lm.__dict__)
        self._ledger = ledger

    def fresh(self, batch_size: int) -> CachedLM:
        self._ledger.working = super().fresh(batch_size)
        return self._ledger.working


class _NotingDrafter(ModelDrafter):
    """The drafter it was given, behind a notebook."""

    def __init__(self, inner: ModelDrafter, ledger: Ledger) -> None:
        self.inner, self.ledger = inner, ledger
        self.notes: dict[str, Any] = {}

    def fresh(self, target: CachedLM, rows: Rows) -> _NotingDrafter:
        return _NotingDrafter(self.inner.fresh(target, rows), self.ledger)

    def propose(self, rows: Rows, limits: Sequence[int]) -> Draft:
        lengths: list[int] = []  # what the draft's cache held after each of its passes
        before = int(self.inner.lm.cache.lengths[0])
        advance = self.inner.lm.cache.advance

        def noted(counts: torch.Tensor | int) -> None:
            advance(counts)
            lengths.append(int(self.inner.lm.cache.lengths[0]))

        self.inner.lm.cache.advance = noted
        draft = self.inner.propose(rows, limits)
        self.inner.lm.cache.advance = advance
        # Each draft token but the first costs one more pass over one token; what was read before is the text.
        own = max(draft.width - 1, 0)
        self.notes = {
            "committed": rows.lengths[0],
            "drafted": int(draft.counts[0]),
            "fed": (lengths[-1] - before - own) if lengths else 0,
            "target_before": int(self.ledger.working.cache.lengths[0]),
            "draft_before": before,
        }
        return draft

    def commit(self, verification: Verification) -> None:
        self.inner.commit(verification)
        self.ledger.entries.append(
            Entry(
                **self.notes,
                accepted=int(verification.num_accepted[0]),
                target_after=int(self.ledger.working.cache.lengths[0]),
                draft_after=int(self.inner.lm.cache.lengths[0]),
            )
        )

    def select(self, keep: Sequence[int]) -> None:
        self.inner.select(keep)
