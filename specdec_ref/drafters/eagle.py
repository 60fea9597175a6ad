"""EAGLE drafts: a light head goes on from the target's last hidden state, with a cache of its own.

The head reads pairs: pair i is the feature of token i with token i+1. After n committed tokens the target has read n-1
of them, so there are n-1 features and n-1 pairs, and what the head makes of the last pair is the first draft token's
law. From there on it reads its own features.

Pairs of its own are guesses, even where their tokens were accepted. So after each round all of them are rolled back,
and the pairs of the accepted tokens are read again with the features that the target has computed for them meanwhile:
between two rounds the cache holds true features only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

import torch
from torch.nn import functional

from specdec_ref.cache import RowCache
from specdec_ref.device import upload
from specdec_ref.drafters.base import Draft, Drafter
from specdec_ref.drafters.branching import Shape, Step, draw_tree
from specdec_ref.drafters.chain import draw_chain, no_draft
from specdec_ref.heads.eagle import EagleHead, load_eagle
from specdec_ref.model import PREFILL_BLOCK, CachedLM, attention_mask, block_shape, pad
from specdec_ref.trees import Path

if TYPE_CHECKING:
    from specdec_ref.acceptance import Verification
    from specdec_ref.pairs import Pair
    from specdec_ref.rows import Rows

# Small on purpose: on a CPU each node costs arithmetic that nothing hides, and each level another read of the head.
TREE: tuple[Path, ...] = ((0,), (1,), (0, 0), (0, 1), (0, 0, 0))


def for_pair(pair: Pair) -> EagleDrafter:
    """Return the drafter of the EAGLE head trained for a pair's target."""
    return EagleDrafter(load_eagle(pair.head_folder("eagle"), pair.target, pair.target_folder))


def tree_for_pair(pair: Pair) -> EagleDrafter:
    """Return the same, drafting a small tree."""
    return EagleDrafter(load_eagle(pair.head_folder("eagle"), pair.target, pair.target_folder), TREE)


class EagleDrafter(Drafter):
    """Draft a chain or a tree with an EAGLE head, under the same sampling settings as the target.

    Parameters
    ----------
    head : EagleHead
        Made for the target; see `specdec_ref.heads.load_eagle`.
    paths : sequence of tuples of int, or None
        The nodes of a tree as ranks, shallow ones first; see `specdec_ref.trees`. None: a chain.

    Source
    ------
    Li et al. 2024 (arXiv 2401.15077), section 3.1, trees included.
    """

    wants_features = True

    def __init__(self, head: EagleHead, paths: Sequence[Path] | None = None) -> None:
        self.head = head
        self.shape = None if paths is None else Shape(paths)
        self.vocab_size = head.shape.target_vocab
        self.cache = RowCache(0, head.output.device)
        self.features = torch.empty(0)  # [B, P, D]: of tokens whose pairs the cache does not hold yet
        self.counts = torch.empty(0, dtype=torch.int64)  # [B], how many of them are real
        self.true_pairs = torch.empty(0, dtype=torch.int64)  # [B], pairs with features of the target

    def fresh(self, target: CachedLM, rows: Rows) -> Self:
        """Return a copy with an empty cache."""
        shape, device = self.head.shape, self.head.output.device
        if target.feature_width != shape.width or int(self.head.draft_to_target.max()) >= target.vocab_size:
            raise ValueError(
                f"the EAGLE head reads features of width {shape.width} and a vocabulary of {shape.target_vocab}; "
                f"{target.name} has {target.feature_width} and {target.vocab_size}"
            )
        if device != target.device:
            raise ValueError(f"the EAGLE head is on {device}, the target {target.name!r} on {target.device}")
        other = super().fresh(target, rows)
        other.cache = RowCache(len(rows), device)
        other.vocab_size = target.vocab_size
        return other

    @torch.inference_mode()
    def propose(self, rows: Rows, limits: Sequence[int]) -> Draft:
        """Draw up to `limits[b]` tokens per row, or a tree so deep; none where the target has read nothing yet."""
        feature = self._read_true_pairs(rows)  # [B, D]
        self.true_pairs = self.cache.lengths
        room = torch.where(self.true_pairs > 0, torch.tensor(limits), 0)
        counts = room if self.shape is None else self.shape.counts(room)
        if int(counts.max()) == 0:
            return no_draft(rows)
        logits = self._widen(self.head.logits(feature))
        if self.shape is None:
            return draw_chain(rows, counts, logits, self._chain_step(feature))
        return draw_tree(rows, self.shape, counts, logits, self._tree_step(self.shape, feature))

    def _chain_step(self, feature: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return what goes on from the last feature [B, D] with the token just drawn."""

        def step(tokens: torch.Tensor) -> torch.Tensor:
            nonlocal feature
            feature = self._read(feature[:, None], tokens, 1)[:, 0]
            return self._widen(self.head.logits(feature))

        return step

    def _tree_step(self, shape: Shape, feature: torch.Tensor) -> Step:
        """Return what goes on from the features of a level with the tokens of the next: each from its own parent's."""
        above, features = -1, feature[:, None]  # the first place of the level before, and its features [B, n, D]

        def step(tokens: torch.Tensor, before: int) -> torch.Tensor:
            nonlocal above, features
            count = before + tokens.shape[1]
            of_parents = features[:, [shape.parents[node] - above for node in range(before, count)]]
            features = self._read(of_parents, tokens, tokens.shape[1], shape.parents_of_first(count, len(tokens)))
            above = before
            return self._widen(self.head.logits(features))

        return step

    def commit(self, verification: Verification) -> None:
        """Forget the pairs with features of its own."""
        del verification
        self.cache.rollback(self.cache.lengths - self.true_pairs)

    def take_features(self, features: torch.Tensor, counts: torch.Tensor) -> None:
        """Keep the target's features for the next proposal, which will know the token after each."""
        self.features, self.counts = features, counts

    def select(self, keep: Sequence[int]) -> None:
        """Keep only these rows."""
        self.cache.select(keep)
        if len(self.counts):  # the first rows may leave before anything was read
            self.features = self.features[upload(keep, self.features.device)]
            self.counts = self.counts[list(keep)]

    def _read_true_pairs(self, rows: Rows) -> torch.Tensor:
        """Feed the pairs of the features at hand, and return what the head makes of each row's last one, [B, D]."""
        begun = [held + 1 for held in self.cache.lengths.tolist()]
        waiting = [
            tokens[start : start + count]
            for tokens, start, count in zip(rows.tokens, begun, self.counts.tolist(), strict=True)
        ]
        last = self.features.new_zeros(len(rows), self.head.shape.width)
        for start in range(0, int(self.counts.max()), PREFILL_BLOCK):
            tokens, counts = pad([line[start : start + PREFILL_BLOCK] for line in waiting])
            block = self.features[:, start : start + tokens.shape[1]]
            output = self._read(block, upload(tokens, rows.device), counts)  # [B, T, D]
            place = upload((counts - 1).clamp(min=0), rows.device)
            ends_here = upload(counts > 0, rows.device).bool()[:, None]
            last = torch.where(ends_here, output[torch.arange(len(rows), device=rows.device), place], last)
        return last

    def _read(
        self,
        features: torch.Tensor,
        tokens: torch.Tensor,
        counts: torch.Tensor | int,
        parents: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Feed a block of pairs, [B, T, D] and [B, T], of which `counts` are real; return the features after them.

        With `parents` [B, N] they are the last T nodes of a tree, whose other nodes the cache holds behind the text.
        """
        length, device = tokens.shape[1], tokens.device
        self.cache.begin_pass(length)
        nodes = length if parents is None else parents.shape[1]
        offsets, sees = (part[:, nodes - length :] for part in block_shape(len(tokens), nodes, parents))
        text = self.cache.lengths - (nodes - length)
        mask = attention_mask(text, sees, self.head.output.dtype, device)
        positions = upload(text[:, None] + offsets + 1, device)  # pair i holds token i+1

        def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            keys, values = self.cache.update(key, value, 0)
            return functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=True)

        output = self.head(features, tokens, positions, attend)
        self.cache.advance(counts)
        return output

    def _widen(self, logits: torch.Tensor) -> torch.Tensor:
        """Return logits over the target's ids, [..., V]; ids outside the draft vocabulary are never drawn."""
        wide = logits.new_full((*logits.shape[:-1], self.vocab_size), -torch.inf)
        return wide.index_copy_(-1, self.head.draft_to_target, logits)
