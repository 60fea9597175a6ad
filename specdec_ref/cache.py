"""Keys and values with one length per row: rollback is a subtraction.

Rows of a batch accept different numbers of draft tokens, so after a round their texts have different lengths. Here
every row keeps its own length and writes at its own slot; what lies beyond a row's length is junk that no query is
shown and that the next write covers. Nothing is copied, padded again or zeroed (a zero key would still take softmax
mass).

        slot     0   1   2   3   4   5   6
        row 0  [ a   b   c   d   .   .   . ]   length 4
        row 1  [ a   b   .   .   .   .   . ]   length 2: the next token goes to slot 2
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import Cache

from specdec_ref.device import upload

BLOCK = 128  # storage grows by whole blocks of slots, so that it grows rarely


class RowCache(Cache):
    """A transformers cache in which every row has its own length.

    Parameters
    ----------
    batch_size : int
        Number of rows, B.
    device : torch.device
        Where the slot numbers are needed.

    Attributes
    ----------
    lengths : Tensor [B] int64, on the host
        How many slots of each row hold the row's text.

    Notes
    -----
    One pass is `begin_pass(T)`, then the model's own calls of `update`, then `advance`. Keys and values are stored as
    [B, slots, heads, head_dim], one pair per layer.
    """

    def __init__(self, batch_size: int, device: torch.device) -> None:
        super().__init__(layers=[])
        self.device = device
        self.lengths = torch.zeros(batch_size, dtype=torch.int64)
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self._end = 0  # slots the current pass can see: max(lengths) + T
        self._row = self._slot = torch.empty(0)

    def begin_pass(self, block_length: int) -> None:
        """Say that the next `update` of every layer brings `block_length` tokens per row."""
        slots = self.lengths[:, None] + torch.arange(block_length)  # [B, T]: each row's next free slots
        self._slot = upload(slots, self.device)
        self._row = upload(torch.arange(len(self.lengths))[:, None], self.device)  # [B, 1]
        self._end = int(self.lengths.max()) + block_length

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store a block's keys and values, [B, heads, T, head_dim], and return all that the pass may look at."""
        return (
            self._write(self.keys, layer_idx, key_states),
            self._write(self.values, layer_idx, value_states),
        )

    def _write(self, store: list[torch.Tensor], layer: int, states: torch.Tensor) -> torch.Tensor:
        states = states.transpose(1, 2)  # [B, T, heads, head_dim]
        self._make_room(store, layer, self._end, states)
        store[layer][self._row, self._slot] = states
        return store[layer][:, : self._end].transpose(1, 2)

    def _make_room(self, store: list[torch.Tensor], layer: int, end: int, like: torch.Tensor) -> None:
        """Give a layer at least `end` slots per row, for states like these: [any, any, heads, head_dim]."""
        while len(store) <= layer:
            store.append(like.new_empty(len(self.lengths), 0, *like.shape[2:]))
        held = store[layer].shape[1]
        if held < end:
            grown = like.new_zeros(len(self.lengths), -(-end // BLOCK) * BLOCK, *like.shape[2:])
            grown[:, :held] = store[layer]
            store[layer] = grown

    def advance(self, counts: torch.Tensor | int) -> None:
        """After a pass: the first `counts` ([B], or one number for all) of the block's tokens belong to the text."""
        self.lengths = self.lengths + counts

    def rollback(self, counts: torch.Tensor | Sequence[int]) -> None:
        """Forget the last `counts` [B] tokens of each row. Only the lengths change.

        Raises
        ------
        ValueError
            If a count is negative or more than the row holds.
        """
        removed = torch.as_tensor(counts, dtype=torch.int64)
        if removed.shape != self.lengths.shape:
            raise ValueError(f"counts has shape {tuple(removed.shape)}; the cache has {len(self.lengths)} rows")
        bad = (removed < 0) | (removed > self.lengths)
        if bool(bad.any()):
            row = int(bad.nonzero()[0])
            raise ValueError(
                f"counts[{row}]={int(removed[row])}: row {row} holds {int(self.lengths[row])} tokens, "
                "so 0 to that many can be removed"
            )
        self.lengths = self.lengths - removed

    @torch.inference_mode()
    def keep_path(self, start: torch.Tensor | Sequence[int], path: torch.Tensor, counts: Sequence[int]) -> None:
        """Keep one path of a tree that was written from slot `start` on, and drop the other nodes.

        Parameters
        ----------
        start : [B]
            Each row's length before the tree was written.
        path : Tensor [B, D] int64
            Node numbers of the accepted path, in order; node i lies in slot start + i. Ascending in each row.
        counts : [B]
            How many entries of each row of `path` count; the rest is padding.
        """
        start = torch.as_tensor(start, dtype=torch.int64)
        source = upload(start[:, None] + path, self.device)  # [B, D]
        goal = upload(start[:, None] + torch.arange(path.shape[1]), self.device)
        row = upload(torch.arange(len(start))[:, None], self.device)
        for store in (self.keys, self.values):
            for layer in store:
                layer[row, goal] = layer[row, source]  # the right-hand side is a copy, so overlap is no danger
        self.lengths = start + torch.as_tensor(counts, dtype=torch.int64)

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order: finished rows leave the batch."""
        self.lengths = self.lengths[list(rows)]
        index = upload(rows, self.device)
        for store in (self.keys, self.values):
            store[:] = [layer.index_select(0, index) for layer in store]

    @torch.inference_mode()
    def put(self, rows: Sequence[int], other: RowCache) -> None:
        """Let the texts of `other` take these rows: new texts enter a running batch, and its other rows stay untouched.

        Raises
        ------
        ValueError
            If `other` does not hold one text for each entry of `rows`.
        """
        if len(rows) != len(other.lengths):
            raise ValueError(f"rows names {len(rows)} rows; the other cache has {len(other.lengths)}")
        end = int(other.lengths.max()) if len(rows) else 0
        index = upload(rows, self.device)
        for mine, theirs in ((self.keys, other.keys), (self.values, other.values)):
            for layer, states in enumerate(theirs):
                self._make_room(mine, layer, end, states)
                mine[layer][index, :end] = states[:, :end]
        self.lengths = self.lengths.index_copy(0, torch.as_tensor(rows, dtype=torch.int64), other.lengths)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the longest row's length. Part of transformers' cache interface."""
        return int(self.lengths.max())
