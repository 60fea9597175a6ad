"""What every drafter with a language model of its own shares: that model's cache, and its vocabulary.

Its cache never holds the last committed token, and after a round in which every draft was accepted it also lacks the
last draft token: that one was drawn but never fed. So the rule is simply to feed whatever is committed and not in the
cache. That is the whole prompt at first, then one token a round, or two after full acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import torch
from torch.nn import functional

from specdec_ref.drafters.base import Drafter
from specdec_ref.drafters.chain import feed_missing
from specdec_ref.model import CachedLM

if TYPE_CHECKING:
    from specdec_ref.rows import Rows


class OwnModelDrafter(Drafter):
    """Base class of drafters that read the text with a model of their own.

    Parameters
    ----------
    model : CachedLM
        The draft model. It must share the target's tokenizer; its vocabulary may be padded to another width.
    """

    def __init__(self, model: CachedLM) -> None:
        self.model = model
        self.lm = model
        self.vocab_size = model.vocab_size

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

    def select(self, keep: Sequence[int]) -> None:
        """Keep only these rows of the cache."""
        self.lm.select(keep)

    def _room(self, rows: Rows) -> torch.Tensor:
        """Return how many tokens may be drafted after each text, [B]: the last one fed is the last but one drafted."""
        return (self.lm.max_length + 1 - torch.tensor(rows.lengths)).clamp(min=0)

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
