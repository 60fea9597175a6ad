"""A target small enough to compute in your head, with a cache that refuses nonsense: for checks and for trying out.

It has the interface of `specdec_ref.model.CachedLM` as far as a verification round needs it, and nothing of its
insides: a learner's code is observed in a process where `specdec_ref` cannot be imported.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class ToyTarget:
    """After a text, the target's favourite is (last token + its position + the text's first token) modulo V.

    A token fed too often, left out, or left behind by a refused draft changes positions, and so the text.

    Parameters
    ----------
    texts : sequence of sequences of int, [B]
        What each row's cache holds, at least one token each.
    vocab_size : int
        V.

    Attributes
    ----------
    rows : list of list of int
        The tokens in the cache.
    passes : int
        How often `extend` was called.
    """

    def __init__(self, texts: Sequence[Sequence[int]], vocab_size: int = 7) -> None:
        self.rows = [list(text) for text in texts]
        self.vocab_size = vocab_size
        self.passes = 0

    @property
    def lengths(self) -> torch.Tensor:
        """Tokens of each row in the cache, [B] int64."""
        return torch.tensor([len(row) for row in self.rows])

    def extend(self, tokens: torch.Tensor) -> torch.Tensor:
        """Run one pass over a block [B, T], add it to the cache, and return logits [B, T, V], one row per token.

        Raises
        ------
        ValueError
            If `tokens` is not a block of token ids with one row for each row of the cache.
        """
        if tokens.dim() != 2 or len(tokens) != len(self.rows) or tokens.dtype != torch.int64:
            raise ValueError(
                f"tokens has shape {tuple(tokens.shape)} and {tokens.dtype}; needed are int64 and [{len(self.rows)}, T]"
            )
        self.passes += 1
        favourites = torch.empty_like(tokens)
        for b, block in enumerate(tokens.tolist()):
            for t, token in enumerate(block):
                self.rows[b].append(token)
                favourites[b, t] = self.favourite(self.rows[b])
        # The further from the favourite, going round, the less likely.
        return -((torch.arange(self.vocab_size) - favourites[..., None]) % self.vocab_size).float()

    def favourite(self, text: Sequence[int]) -> int:
        """Return the token that the target wants after `text`."""
        return (text[-1] + len(text) - 1 + text[0]) % self.vocab_size

    def rollback(self, counts: torch.Tensor | Sequence[int]) -> None:
        """Forget the last `counts` [B] tokens of each row.

        Raises
        ------
        ValueError
            If there is not one count per row, or a count is negative or more than the row holds.
        """
        removed = torch.as_tensor(counts).tolist()
        if not isinstance(removed, list) or len(removed) != len(self.rows):
            raise ValueError(f"counts={removed!r} must have one number for each of the {len(self.rows)} rows")
        for row, count in enumerate(removed):
            if not 0 <= count <= len(self.rows[row]):
                raise ValueError(f"counts[{row}]={count}: row {row} holds {len(self.rows[row])} tokens")
        self.rows = [row[: len(row) - count] for row, count in zip(self.rows, removed, strict=True)]
