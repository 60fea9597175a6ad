"""A tree of draft tokens, level by level: what every drafter that proposes several candidates for one place does.

Each node of a level gets its children from the law after it. Greedily these are the likeliest tokens; else they are
drawn without replacement, each with the law it was really drawn from, given its elder siblings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from specdec_ref import trees
from specdec_ref.device import upload
from specdec_ref.drafters.base import Draft
from specdec_ref.sampling import Purpose, SamplingSettings, healthy_rows, probabilities
from specdec_ref.siblings import draw_siblings

if TYPE_CHECKING:
    from specdec_ref.rows import Rows

# Given the tokens of a level [B, n], and the number of nodes before it: the logits after each of them, [B, n, V].
Step = Callable[[torch.Tensor, int], torch.Tensor]


class Shape:
    """Which nodes a draft tree has.

    Parameters
    ----------
    paths : sequence of tuples of int
        Nodes as ranks, shallow ones first; see `specdec_ref.trees`. (0, 1) is the second child of the first child.

    Raises
    ------
    ValueError
        If the paths are no tree, or a child stands without its elder siblings before it.
    """

    def __init__(self, paths: Sequence[trees.Path]) -> None:
        if not paths:
            raise ValueError("paths is empty: a tree has at least one node")
        self.parents = trees.parents_of(paths)
        self.depth = [len(path) for path in paths]
        self.rank = [path[-1] for path in paths]
        for node, parent in enumerate(self.parents):
            elder = self.parents[:node].count(parent)
            if self.rank[node] != elder:
                raise ValueError(f"paths: {paths[node]} is child {elder} of its parent, not {self.rank[node]}")

    def parents_of_first(self, count: int, batch: int) -> torch.Tensor:
        """Return the parents of the first `count` nodes for each row, [B, count]."""
        return torch.tensor(self.parents[:count], dtype=torch.int64).expand(batch, -1)

    def counts(self, room: torch.Tensor) -> torch.Tensor:
        """Return how many nodes are not deeper than `room` [B]: shallow ones come first, so these are the first."""
        return (torch.tensor(self.depth) <= room[:, None]).sum(1)

    def levels(self, count: int) -> list[range]:
        """Return the nodes of each level, of the first `count` nodes."""
        return [
            range(self.depth.index(level), self.depth.index(level) + self.depth[:count].count(level))
            for level in range(1, max(self.depth[:count], default=0) + 1)
        ]


def draw_tree(rows: Rows, shape: Shape, counts: torch.Tensor, logits: torch.Tensor, step: Step) -> Draft:
    """Draw the first nodes of a tree.

    Parameters
    ----------
    rows : Rows
        The texts, with their settings and uniforms.
    shape : Shape
        Of the tree.
    counts : Tensor [B] int64 on the host
        How many nodes each row drafts; at least one of them is positive.
    logits : Tensor [B, V]
        After the text, over the target's vocabulary.
    step : callable
        Reads a level.

    Returns
    -------
    Draft with parents; without `probs` if greedy.
    """
    width = int(counts.max())
    parents = shape.parents_of_first(width, len(rows))
    uniforms = rows.uniforms(Purpose.DRAFT, width)  # [B, N]: a number for each node
    tokens = upload(torch.zeros(len(rows), 0), rows.device)  # [B, nodes so far]
    laws: list[torch.Tensor] = []
    healthy: list[torch.Tensor] = []
    above, after = [-1], logits[:, None]  # the places of the level before, and the logits after each, [B, n, V]
    for level in shape.levels(width):
        hung = sorted({shape.parents[node] for node in level})  # places that have children
        after = after[:, [above.index(place) for place in hung]]  # [B, P, V]
        history = rows.history(tokens, trees.ancestors(parents[:1, : tokens.shape[1]]))
        history = None if history is None else history[:, [place + 1 for place in hung]]
        number = 1 + max(shape.rank[node] for node in level)
        luck = uniforms.new_zeros(len(rows), len(hung), number)  # children that the tree lacks are drawn and left out
        place = [hung.index(shape.parents[node]) for node in level]
        rank = [shape.rank[node] for node in level]
        luck[:, place, rank] = uniforms[:, level.start : level.stop]
        children, q = _children(after, rows.settings, history, luck)  # [B, P, C] and [B, P, C, V]
        tokens = torch.cat([tokens, children[:, place, rank]], dim=1)
        healthy.append(healthy_rows(after)[:, place])
        if q is not None:
            laws.append(q[:, place, rank])
        if level.stop < width:
            above, after = list(level), step(tokens[:, level.start : level.stop], level.start)
    probs = torch.cat(laws, dim=1) if laws else None
    return Draft(tokens, counts, probs, torch.cat(healthy, dim=1), parents)


def _children(
    logits: torch.Tensor, settings: SamplingSettings, history: torch.Tensor | None, uniforms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the children of each place, [B, P, C], and the law each was drawn from, or None if nothing was drawn."""
    if not settings.greedy:
        return draw_siblings(probabilities(logits, settings, history, check=False), uniforms)
    # A greedy law knows one token only; the next best ones are those of the law at temperature 1.
    warm = SamplingSettings(1.0, repetition_penalty=settings.repetition_penalty)
    return probabilities(logits, warm, history, check=False).topk(uniforms.shape[-1], dim=-1).indices, None
