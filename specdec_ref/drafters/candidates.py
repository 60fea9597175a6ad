"""A smaller language model drafts a tree: several candidates for one place, so that a refusal is not the end.

Where the draft model is unsure, its second choice often is the target's first. A tree carries both, and one pass of the
target reads both. What it costs is a wider pass on either side, so it pays where a pass is cheap in its width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import torch
from torch.nn import functional

from specdec_ref.drafters.base import Draft, Drafter
from specdec_ref.drafters.branching import Shape, draw_tree
from specdec_ref.drafters.chain import feed_missing, no_draft
from specdec_ref.model import CachedLM
from specdec_ref.trees import Path, full_tree

if TYPE_CHECKING:
    from specdec_ref.acceptance import Verification
    from specdec_ref.pairs import Pair
    from specdec_ref.rows import Rows


def for_pair(pair: Pair) -> CandidatesDrafter:
    """Return a drafter of two candidates for the next token, each with a draft after it."""
    return CandidatesDrafter(pair.draft)


class CandidatesDrafter(Drafter):
    """Draft a tree with `model`, under the same sampling settings as the target.

    Siblings are drawn without replacement; see `specdec_ref.siblings` for the rule that judges them.

    Parameters
    ----------
    model : CachedLM
        The draft model. It must share the target's tokenizer; its vocabulary may be padded to another width.
    paths : sequence of tuples of int
        The tree's nodes as ranks, shallow ones first; see `specdec_ref.trees`.
    """

    def __init__(self, model: CachedLM, paths: Sequence[Path] = full_tree((2, 1, 1))) -> None:
        self.model = self.lm = model
        self.shape = Shape(paths)
        self.vocab_size = model.vocab_size
        self.start = torch.empty(0, dtype=torch.int64)  # [B], what the cache held before the tree
        self.read = 0  # nodes it has read

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
        """Draw the tree, cut at depth `limits[b]`."""
        room = (self.lm.max_length + 1 - torch.tensor(rows.lengths)).clamp(min=0)
        counts = self.shape.counts(torch.minimum(torch.tensor(limits), room))
        self.start, self.read = self.lm.cache.lengths, 0
        if int(counts.max()) == 0:
            return no_draft(rows)
        last_id = self.lm.vocab_size - 1  # an id the draft lacks is fed as its last one: a guess like any other
        texts = [[min(token, last_id) for token in tokens] for tokens in rows.tokens]
        logits = self._fit(feed_missing(self.lm, texts, (room > 0).tolist()))
        self.start = self.lm.cache.lengths

        def step(tokens: torch.Tensor, before: int) -> torch.Tensor:
            self.read = before + tokens.shape[1]
            return self._fit(self.lm.extend(tokens, parents=self.shape.parents_of_first(self.read, len(rows))))

        return draw_tree(rows, self.shape, counts, logits, step)

    def commit(self, verification: Verification) -> None:
        """Keep the accepted nodes that were read, and drop the others."""
        if verification.path is None or self.read == 0:
            return
        counted = torch.arange(verification.path.shape[1]) < verification.num_accepted[:, None]
        counts = (counted & (verification.path < self.read)).sum(1)
        self.lm.cache.keep_path(self.start, verification.path.clamp(max=self.read - 1), counts.tolist())

    def select(self, keep: Sequence[int]) -> None:
        """Keep only these rows of the cache."""
        self.lm.select(keep)

    def _fit(self, logits: torch.Tensor) -> torch.Tensor:
        """Cut or extend logits to the target's vocabulary: ids the draft lacks are not known to it."""
        missing = self.vocab_size - logits.shape[-1]
        return functional.pad(logits, (0, missing), value=-torch.inf) if missing > 0 else logits[..., : self.vocab_size]
