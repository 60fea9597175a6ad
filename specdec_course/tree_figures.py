"""Figures about Medusa heads and trees: hits of the heads, trees, what n nodes are worth, a training, drifting laws.

No figure depends on colour alone: lines carry markers and dashes, bars carry hatches and their numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from specdec_course.block_figures import LINES
from specdec_ref.draft_shapes import expected_tree_tokens
from specdec_ref.trees import Path, depths, parents_of

GREY = "#555555"
HATCHES = ("", "//", "..", "xx")
# Okabe and Ito's colours, each with a hatch and a word of its own.
NODES = {
    "text": ("#56B4E9", "", "last token of the text"),
    "path": ("#009E73", "//", "on the path of the text"),
    "off": ("#EEEEEE", "", "read for nothing"),
}


def draw_hits(shares: Sequence[Sequence[float]], title: str) -> Figure:
    """Draw how often the text's token is each head's first, second, ... guess.

    Parameters
    ----------
    shares : [H][R]
        Entry [h][r]: the share of places where guess r of head h + 1 is the text's token.
    """
    figure, axes = plt.subplots(figsize=(7, 3.6))
    ranks = len(shares[0])
    width = 0.8 / ranks
    for rank in range(ranks):
        colour, hatch = LINES[rank % len(LINES)][0], HATCHES[rank % len(HATCHES)]
        places = np.arange(len(shares)) + width * (rank - (ranks - 1) / 2)
        heights = [line[rank] for line in shares]
        word = ("first", "second", "third", "fourth")[rank]
        bars = axes.bar(
            places, heights, 0.92 * width, color=colour, hatch=hatch, edgecolor="white", label=f"{word} guess"
        )
        axes.bar_label(bars, fmt="%.2f", fontsize=8)
    axes.set_xticks(range(len(shares)), [f"head {number}" for number in range(1, len(shares) + 1)])
    axes.set(ylabel="share of places where it is right", ylim=(0, 1), title=title)
    _finish(axes)
    return figure


def draw_tree(
    words: Sequence[str], parents: Sequence[int], root: str, path: Sequence[int] = (), title: str = ""
) -> Figure:
    """Draw a tree of guesses from left to right, with the path that the text takes.

    Parameters
    ----------
    words : sequence of str, [N]
        The nodes' tokens, as text.
    parents : sequence of int, [N]
        As in `specdec_ref.trees`.
    root : str
        The last token of the text.
    path : sequence of int
        The accepted nodes.
    """
    import torch

    depth = [0, *depths(torch.tensor([list(parents)]))[0].tolist()]
    height = _heights(parents)
    lines = max(height) + 1
    figure, axes = plt.subplots(figsize=(2.1 * (max(depth) + 1) + 1, 0.44 * lines + 1.0))
    for node, parent in enumerate(parents):
        ends = [depth[parent + 1] + 0.62, depth[node + 1] + 0.02], [-height[parent + 1], -height[node + 1]]
        axes.plot(*ends, color="#009E73" if node in path else "#AAAAAA", linewidth=2.5 if node in path else 1)
    for place, word in enumerate([root, *words]):
        kind = "text" if place == 0 else "path" if place - 1 in path else "off"
        colour, hatch, _ = NODES[kind]
        box = FancyBboxPatch(
            (depth[place] + 0.02, -height[place] - 0.32), 0.6, 0.64, "round,pad=0.01", facecolor=colour, hatch=hatch,
            edgecolor=GREY,
        )  # fmt: skip
        axes.add_patch(box)
        paper = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.8}
        axes.text(
            depth[place] + 0.32,
            -height[place],
            word,
            ha="center",
            va="center",
            fontsize=9,
            family="monospace",
            bbox=paper,
        )
    axes.set(xlim=(-0.1, max(depth) + 0.8), ylim=(-lines + 0.4, 0.7), title=title)
    axes.set_xticks(
        [level + 0.32 for level in range(max(depth) + 1)], ["text", *(f"head {d}" for d in range(1, max(depth) + 1))]
    )
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    return figure


def _heights(parents: Sequence[int]) -> list[float]:
    """Return a line for each place, the text first: leaves below each other, a parent in the middle of its children."""
    heights = [0.0] * (len(parents) + 1)
    leaves = 0

    def settle(place: int) -> float:
        nonlocal leaves
        children = [node + 1 for node, parent in enumerate(parents) if parent + 1 == place]
        if children:
            across = [settle(child) for child in children]
            heights[place] = sum(across) / len(across)
        else:
            heights[place], leaves = float(leaves), leaves + 1
        return heights[place]

    settle(0)
    return heights


def worth_of(paths: Sequence[Path], shares: Sequence[Sequence[float]]) -> float:
    """Return the tokens that a round with this tree brings, if heads hit independently with these shares [H][R]."""
    return float(expected_tree_tokens(parents_of(paths), [shares[len(path) - 1][path[-1]] for path in paths]))


def likeliest_tree(shares: Sequence[Sequence[float]], num_nodes: int) -> list[Path]:
    """Return the nodes with the largest products of shares [H][R] along their paths, shallow ones first."""
    ranks = [range(len(line)) for line in shares]
    every = [path for depth in range(1, len(shares) + 1) for path in product(*ranks[:depth])]
    every.sort(key=lambda path: -math.prod(line[rank] for line, rank in zip(shares, path, strict=False)))
    return sorted(every[:num_nodes], key=lambda path: (len(path), path))


def draw_growth(curves: Mapping[str, Mapping[int, float]], title: str) -> Figure:
    """Draw tokens of a round against the number of nodes, a curve for each way to choose them."""
    figure, axes = plt.subplots(figsize=(7, 3.8))
    for (name, curve), (colour, marker, dash) in zip(curves.items(), LINES, strict=False):
        axes.plot(list(curve), list(curve.values()), color=colour, marker=marker, linestyle=dash, label=name)
    axes.set(xlabel="nodes of the tree", ylabel="tokens the text gets a round", title=title)
    axes.set_ylim(bottom=1)
    _finish(axes)
    return figure


def draw_training(losses: Sequence[float], looks: Mapping[int, float], marks: Mapping[str, float]) -> Figure:
    """Draw a short training: its loss at each step, and the tokens of a round on held-out text along the way.

    Parameters
    ----------
    losses : sequence of float
        Of each step.
    looks : steps done -> tokens of a round
    marks : name -> tokens of a round
        Drawn as dashed lines.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6))
    left.plot(range(1, len(losses) + 1), losses, color=LINES[0][0])
    left.set(xlabel="step", ylabel="loss", title="Training loss")
    left.set_ylim(bottom=0)
    right.plot(list(looks), list(looks.values()), color=LINES[2][0], marker="^", label="after so many steps")
    for (name, value), (colour, _, dash) in zip(marks.items(), (LINES[1], LINES[3]), strict=False):
        right.axhline(value, color=colour, linestyle=dash, label=f"{name}: {value:.2f}")
    right.set(xlabel="step", ylabel="tokens a round", title="Drafting on text that it has not seen")
    right.set_ylim(bottom=1)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    right.legend(fontsize=8)
    figure.tight_layout()
    return figure


def draw_laws(laws: Mapping[str, Sequence[float]], labels: Sequence[str], title: str) -> Figure:
    """Draw several laws of one token beside each other."""
    figure, axes = plt.subplots(figsize=(max(6.5, 1.4 * len(labels) + 1), 3.6))
    width = 0.84 / len(laws)
    for number, (name, law) in enumerate(laws.items()):
        places = np.arange(len(labels)) + width * (number - (len(laws) - 1) / 2)
        colour, hatch = LINES[number % len(LINES)][0], HATCHES[number % len(HATCHES)]
        bars = axes.bar(places, law, 0.94 * width, color=colour, hatch=hatch, edgecolor="white", label=name)
        axes.bar_label(bars, fmt="%.2f", fontsize=7)
    axes.set_xticks(range(len(labels)), labels)
    axes.set(ylabel="probability", title=title)
    axes.margins(y=0.12)
    _finish(axes)
    return figure


def _finish(axes: Axes) -> None:
    axes.grid(alpha=0.3, axis="y")
    axes.legend(fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
