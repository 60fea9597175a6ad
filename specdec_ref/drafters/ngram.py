"""The text drafts for itself: find where its last words occurred before, and propose what followed them there.

No model and no training. It pays where text repeats: editing code, summarising, quoting; and costs next to nothing
where it does not, because without a match nothing is proposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from specdec_ref.device import upload
from specdec_ref.drafters.base import Draft, Drafter
from specdec_ref.model import CachedLM, pad

if TYPE_CHECKING:
    from specdec_ref.pairs import Pair
    from specdec_ref.rows import Rows


def for_pair(pair: Pair) -> NgramDrafter:
    """Return a drafter that needs nothing of a pair."""
    del pair
    return NgramDrafter()


class NgramDrafter(Drafter):
    """Propose the continuation of an earlier occurrence of the text's last n tokens.

    The longest n is tried first; among equally long matches the newest wins. Prompt and generated text are searched.
    The draft is deterministic, so its law is a point mass.

    Parameters
    ----------
    max_ngram, min_ngram : int
        Longest and shortest suffix to look for; 1 <= min_ngram <= max_ngram.

    Source
    ------
    Saxena 2023, "Prompt lookup decoding"; Yang et al. 2023 (arXiv 2304.04487), "Inference with reference".
    """

    def __init__(self, max_ngram: int = 3, min_ngram: int = 1) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(
                f"min_ngram={min_ngram} and max_ngram={max_ngram} must satisfy 1 <= min_ngram <= max_ngram"
            )
        self.max_ngram, self.min_ngram = max_ngram, min_ngram
        self.indexes: list[SuffixIndex] = []

    def fresh(self, target: CachedLM, rows: Rows) -> Self:
        """Return a copy with an empty index for every row."""
        other = super().fresh(target, rows)
        other.indexes = [SuffixIndex(self.max_ngram, self.min_ngram) for _ in range(len(rows))]
        return other

    def propose(self, rows: Rows, limits: Sequence[int]) -> Draft:
        """Copy up to `limits[b]` tokens from behind the match; nothing where nothing matches."""
        drafts = [
            index.continuation(tokens, limit)
            for index, tokens, limit in zip(self.indexes, rows.tokens, limits, strict=True)
        ]
        tokens, counts = pad(drafts)
        return Draft(upload(tokens, rows.device), counts)

    def rewind(self, lengths: Sequence[int]) -> None:
        """Begin the index of each row that has seen more than `lengths[b]` tokens anew."""
        for row, (index, length) in enumerate(zip(self.indexes, lengths, strict=True)):
            if index.seen > length:
                self.indexes[row] = SuffixIndex(self.max_ngram, self.min_ngram)

    def select(self, keep: Sequence[int]) -> None:
        """Keep only these rows' indexes."""
        self.indexes = [self.indexes[row] for row in keep]


class SuffixIndex:
    """Where each n-gram of one growing text was last followed by something. A round costs as much as its new tokens."""

    def __init__(self, max_ngram: int, min_ngram: int) -> None:
        self.sizes = range(max_ngram, min_ngram - 1, -1)  # longest first
        self.follower: dict[tuple[int, ...], int] = {}  # n-gram -> position of the token after its newest occurrence
        self.seen = 0

    def continuation(self, tokens: list[int], limit: int) -> list[int]:
        """Return up to `limit` tokens that followed the newest earlier occurrence of the longest matching suffix."""
        for position in range(max(self.seen, 1), len(tokens)):  # an n-gram is known once a token follows it
            for size in self.sizes:
                if size <= position:
                    self.follower[tuple(tokens[position - size : position])] = position
        self.seen = len(tokens)
        for size in self.sizes:
            start = self.follower.get(tuple(tokens[-size:])) if size <= len(tokens) else None
            if start is not None:
                return tokens[start : start + limit]
        return []
