"""A smaller language model drafts, one token after the other; `own_model` tells what its cache is fed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from specdec_ref.drafters.base import Draft
from specdec_ref.drafters.chain import draw_chain, no_draft
from specdec_ref.drafters.own_model import OwnModelDrafter
from specdec_ref.model import CachedLM

if TYPE_CHECKING:
    from specdec_ref.acceptance import Verification
    from specdec_ref.pairs import Pair
    from specdec_ref.rows import Rows


def for_pair(pair: Pair) -> ModelDrafter:
    """Return the drafter of a pair's own draft model."""
    return ModelDrafter(pair.draft)


class ModelDrafter(OwnModelDrafter):
    """Draft with `model`, under the same sampling settings as the target.

    Parameters
    ----------
    model : CachedLM
        The draft model. It must share the target's tokenizer; its vocabulary may be padded to another width.
    stop_below : float in [0, 1]
        A row's draft ends early with a token that was drawn from an unsure law; see `draw_chain`.

    Source
    ------
    Leviathan et al. 2023, section 2.1; Chen et al. 2023, section 3.
    """

    def __init__(self, model: CachedLM, stop_below: float = 0.0) -> None:
        if not 0 <= stop_below <= 1:
            raise ValueError(f"stop_below={stop_below!r} must be a probability, from 0 to 1")
        super().__init__(model)
        self.stop_below = stop_below
        self.committed = torch.empty(0, dtype=torch.int64)

    def propose(self, rows: Rows, limits: Sequence[int]) -> Draft:
        """Draw up to `limits[b]` tokens per row, each from the draft's law after the ones before it."""
        self.committed = torch.tensor(rows.lengths)
        room = self._room(rows)
        counts = torch.minimum(torch.tensor(limits), room)
        if int(counts.max()) == 0:
            return no_draft(rows)
        logits = self._fit(self._feed_committed(rows, (room > 0).tolist()))
        return draw_chain(
            rows,
            counts,
            logits,
            lambda tokens: self._fit(self.lm.extend(tokens)[:, -1]),
            stop_below=self.stop_below,
        )

    def commit(self, verification: Verification) -> None:
        """Roll the cache back to the committed text and the accepted drafts: min(held, n + a) tokens."""
        self.rewind((self.committed + verification.num_accepted).tolist())

    def rewind(self, lengths: Sequence[int]) -> None:
        """Forget all tokens after the first `lengths[b]`."""
        self.lm.rollback((self.lm.cache.lengths - torch.tensor(lengths)).clamp(min=0))
