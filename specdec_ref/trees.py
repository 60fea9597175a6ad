"""The shape of a draft tree: which node hangs on which, and the checks that keep one wrong number from passing.

A tree is written as one row of nodes with the parent of each: -1 for a child of the text so far, else an earlier node.

        text -+- 0 -+- 2        parents  [-1, -1, 0, 0, 1]
              |     +- 3        depths   [ 1,  1, 2, 2, 2]
              +- 1 --- 4
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch

Path = tuple[int, ...]  # ranks of the guesses on the way to a node: (0, 2) is the third guess after the first


def depths(parents: torch.Tensor) -> torch.Tensor:
    """Return the depth of each node, [B, N] from 1, for parents [B, N] on the host.

    Raises
    ------
    ValueError
        If a parent does not come before its child.
    """
    found = torch.zeros_like(parents)
    rows = torch.arange(len(parents))
    for node in range(parents.shape[1]):
        parent = parents[:, node]
        if bool(((parent < -1) | (parent >= node)).any()):
            raise ValueError(f"parents: node {node} has parent {parent.tolist()}; a parent is -1 or an earlier node")
        found[:, node] = 1 + torch.where(parent >= 0, found[rows, parent.clamp(min=0)], 0)
    return found


def chain(batch: int, count: int) -> torch.Tensor:
    """Return the parents of a chain, [B, N]: each node hangs on the one before."""
    return torch.arange(-1, count - 1).expand(batch, -1)


def twins(tokens: torch.Tensor, parents: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """Tell, per row [B], whether two real nodes have the same parent and token. All arguments are [B, N]."""
    same = (tokens[:, :, None] == tokens[:, None]) & (parents[:, :, None] == parents[:, None])  # [B, N, N]
    both = real[:, :, None] & real[:, None]
    return (same & both).triu(1).any(2).any(1)


def ancestors(parents: torch.Tensor) -> torch.Tensor:
    """Return which nodes lie before each place of a tree, [B, N+1, N] bool: row 0 is the text, row i+1 is after node i.

    That is the node itself and its ancestors: what the law after it has read.
    """
    batch, count = parents.shape
    before = torch.zeros(batch, count + 1, count, dtype=torch.bool)
    rows = torch.arange(batch)
    for node in range(count):
        before[:, node + 1] = before[rows, parents[:, node] + 1]
        before[:, node + 1, node] = True
    return before


def full_tree(widths: Sequence[int]) -> tuple[Path, ...]:
    """Return the tree in which each node at depth d has `widths[d]` children: paths of ranks, shallow ones first."""
    if not widths or min(widths) < 1:
        raise ValueError(f"widths={tuple(widths)} must be numbers >= 1, at least one")
    return tuple(path for depth in range(1, len(widths) + 1) for path in product(*map(range, widths[:depth])))


def parents_of(paths: Sequence[Path]) -> list[int]:
    """Return the parent of each node of a tree given as paths.

    Raises
    ------
    ValueError
        If a path is empty or stands twice, its parent's path does not come before it, or a deeper one does.
    """
    place: dict[Path, int] = {(): -1}
    for node, path in enumerate(paths):
        if path in place:
            raise ValueError(f"paths: {path} {'stands twice' if path else 'is empty'}")
        if path[:-1] not in place:
            raise ValueError(f"paths: {path} comes before its parent {path[:-1]}")
        if node and len(path) < len(paths[node - 1]):
            raise ValueError(f"paths: {path} comes after a deeper one; shallow nodes come first")
        place[path] = node
    return [place[path[:-1]] for path in paths]
