"""A smaller language model drafts, one token after the other, with a cache of its own.

Its cache never holds the last committed token, and after a round in which every draft was accepted it also lacks the
last draft token: that one was drawn but never fed. So the rule is simply to feed whatever is committed and not in the
cache. That is the whole prompt at first, then one token a round, or two after full acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import torch
from torch.nn import functional

from specdec_ref.drafters.base import Draft, Drafter
from specdec_ref.drafters.chain import draw_chain, feed_missing, no_draft
from specdec_ref.model import CachedLM

if TYPE_CHECKING:
    from specdec_ref.acceptance import Verification
    from specdec_ref.pairs import Pair
    from specdec_ref.rows import Rows


def for_pair(pair: Pair) -> ModelDrafter:
    """Return the drafter of a pair's own draft model."""
    return ModelDrafter(pair.draft)


class ModelDrafter(Drafter):
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
        self.model = model
        self.stop_below = stop_below
        self.lm = model
        self.vocab_size = model.vocab_size
        self.committed = torch.empty(0, dtype=torch.int64)

    def fresh(self, target: CachedLM, rows: Rows) -> Self:
        """Return a copy with an empty cache, drafting in the target's vocabulary. Both models must share a device."""
        if self.model.device != target.device:
            raise ValueError(
                f"draft model {self.model.name!r} is on {self.model.device}, "
                f"the target {target.name!r} on {target.device}"
            )
        other = super().fresh(target, rows)
        other.lm = self.model.fresh(len(rows))
        other.vocab_size = target.vocab_size
        return other

    def propose(self, rows: Rows, limits: Sequence[int]) -> Draft:
        """Draw up to `limits[b]` tokens per row, each from the draft's law after the ones before it."""
        self.committed = torch.tensor(rows.lengths)
        # The last token fed is the last but one drafted, so a text of n tokens leaves room for max_length - n + 1
        # drafts.
        room = (self.lm.max_length + 1 - self.committed).clamp(min=0)
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

    def select(self, keep: Sequence[int]) -> None:
        """Keep only these rows of the cache."""
        self.lm.select(keep)

    def _feed_committed(self, rows: Rows, fits: Sequence[bool]) -> torch.Tensor:
        """Feed what is committed and not in the cache, and return the logits after it, [B, V]."""
        # An id the draft lacks is fed as its last one: a guess made after it costs acceptance, never correctness.
        last_id = self.lm.vocab_size - 1
        texts = [[min(token, last_id) for token in tokens] for tokens in rows.tokens]
        return feed_missing(self.lm, texts, fits)

    def _fit(self, logits: torch.Tensor) -> torch.Tensor:
        """Cut or extend logits to the target's vocabulary: ids the draft lacks are never drafted."""
        missing = self.vocab_size - logits.shape[-1]
        return functional.pad(logits, (0, missing), value=-torch.inf) if missing > 0 else logits[..., : self.vocab_size]
