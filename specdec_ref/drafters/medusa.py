"""Medusa drafts: several heads guess from one hidden state, and their guesses make a tree.

Head k's guess does not know what the guesses before it say. So the best chain is often wrong early, and it pays to
offer several: a tree of the likeliest guesses of each head, read by the target in ONE pass in which each node sees its
own ancestors only. Which ranks are combined is the tree's shape; (0, 2) is head 2's third guess after head 1's first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import torch

from specdec_ref.device import upload
from specdec_ref.drafters.base import Draft, Drafter
from specdec_ref.heads.medusa import MedusaHeads, load_medusa
from specdec_ref.model import CachedLM
from specdec_ref.sampling import healthy_rows
from specdec_ref.trees import Path, parents_of

if TYPE_CHECKING:
    from specdec_ref.pairs import Pair
    from specdec_ref.rows import Rows


# Small on purpose: the paper's trees hold up to 64 nodes, which a GPU verifies in the time of one; a CPU does not.
TREE: tuple[Path, ...] = ((0,), (1,), (2,), (0, 0))


def for_pair(pair: Pair) -> MedusaDrafter:
    """Return the drafter of the Medusa heads trained for a pair's target."""
    return MedusaDrafter(load_medusa(pair.head_folder("medusa"), pair.target, pair.target_folder))


class MedusaDrafter(Drafter):
    """Draft a tree from the target's last hidden state. The tree is deterministic, whatever the temperature.

    Parameters
    ----------
    heads : MedusaHeads
        Made for the target; see `specdec_ref.heads.load_medusa`.
    paths : sequence of tuples of int
        The tree's nodes as ranks, shallow ones first; see `specdec_ref.trees`. A path is at most as long as there are
        heads. A round with less room than that drafts the shallow nodes only.

    Source
    ------
    Cai et al. 2024 (arXiv 2401.10774), section 2.1.
    """

    wants_features = True

    def __init__(self, heads: MedusaHeads, paths: Sequence[Path] = TREE) -> None:
        self.heads = heads
        self.parents = parents_of(paths)
        self.depth = [len(path) for path in paths]
        self.rank = [path[-1] for path in paths]
        if not paths or max(self.depth) > heads.shape.heads:
            raise ValueError(f"paths are up to {max(self.depth, default=0)} long; there are {heads.shape.heads} heads")
        self.vocab_size = heads.shape.target_vocab
        self.feature = torch.empty(0)  # [B, D], of the last token that the target has read
        self.known = torch.empty(0, dtype=torch.bool)  # [B], whether there is one

    def fresh(self, target: CachedLM, rows: Rows) -> Self:
        """Return a copy that knows no text."""
        shape = self.heads.shape
        if target.feature_width != shape.width:
            raise ValueError(
                f"the Medusa heads read features of width {shape.width}; {target.name} has {target.feature_width}"
            )
        if self.heads.output.device != target.device:
            raise ValueError(
                f"the Medusa heads are on {self.heads.output.device}, the target {target.name!r} on {target.device}"
            )
        other = super().fresh(target, rows)
        other.vocab_size = target.vocab_size
        return other

    @torch.inference_mode()
    def propose(self, rows: Rows, limits: Sequence[int]) -> Draft:
        """Propose the tree, cut at depth `limits[b]`; nothing where the target has read nothing yet."""
        room = torch.where(self.known, torch.tensor(limits), 0)
        counts = (torch.tensor(self.depth) <= room[:, None]).sum(1)  # [B]; shallow nodes come first
        width = int(counts.max())
        parents = torch.tensor(self.parents[:width], dtype=torch.int64).expand(len(rows), -1)
        if width == 0:
            return Draft(upload(torch.zeros(len(rows), 0), rows.device), counts, parents=parents)
        used = max(self.depth[:width])
        logits = self.heads.logits(self.feature, used)[..., : self.vocab_size]  # [B, H, V]
        guesses = logits.topk(max(self.rank[:width]) + 1, dim=-1).indices  # [B, H, ranks]
        head, rank = (upload(values[:width], rows.device) for values in (self.depth, self.rank))
        tokens = guesses[:, head - 1, rank]  # [B, N]
        return Draft(tokens, counts, healthy=healthy_rows(logits)[:, head - 1], parents=parents)

    def take_features(self, features: torch.Tensor, counts: torch.Tensor) -> None:
        """Keep the feature of the last token that each row's target has read."""
        self.known = counts > 0
        if features.shape[1] == 0:
            self.feature = features.new_zeros(len(features), features.shape[2])
            return
        last = upload((counts - 1).clamp(min=0), features.device)
        self.feature = features[torch.arange(len(features), device=features.device), last]

    def select(self, keep: Sequence[int]) -> None:
        """Keep only these rows."""
        if len(self.known):  # the first rows may leave before anything was read
            self.feature, self.known = self.feature[upload(keep, self.feature.device)], self.known[list(keep)]
