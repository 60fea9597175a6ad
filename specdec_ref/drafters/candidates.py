"""A smaller language model drafts a tree: several candidates for one place, so that a refusal is not the end.

Where the draft model is unsure, its second choice often is the target's first. A tree carries both, and one pass of the
target reads both. What it costs is a wider pass on either side, so it pays where a pass is cheap in its width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from specdec_ref.drafters.base import Draft
from specdec_ref.drafters.branching import Shape, draw_tree
from specdec_ref.drafters.chain import no_draft
from specdec_ref.drafters.own_model import OwnModelDrafter
from specdec_ref.model import CachedLM
from specdec_ref.trees import Path, full_tree

if TYPE_CHECKING:
    from specdec_ref.acceptance import Verification
    from specdec_ref.pairs import Pair
    from specdec_ref.rows import Rows


def for_pair(pair: Pair) -> CandidatesDrafter:
    """Return a drafter of two candidates for the next token, each with a draft after it."""
    return CandidatesDrafter(pair.draft)


class CandidatesDrafter(OwnModelDrafter):
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
        super().__init__(model)
        self.shape = Shape(paths)
        self.start = torch.empty(0, dtype=torch.int64)  # [B], what the cache held before the tree
        self.read = 0  # nodes it has read

    def propose(self, rows: Rows, limits: Sequence[int]) -> Draft:
        """Draw the tree, cut at depth `limits[b]`."""
        room = self._room(rows)
        counts = self.shape.counts(torch.minimum(torch.tensor(limits), room))
        self.start, self.read = self.lm.cache.lengths, 0
        if int(counts.max()) == 0:
            return no_draft(rows)
        logits = self._fit(self._feed_committed(rows, (room > 0).tolist()))
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
