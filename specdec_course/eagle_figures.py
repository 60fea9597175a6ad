"""Figures about drafting from features: what a feature knows, pairs and rollback, training, a tree of words.

No figure depends on colour alone: bars and boxes carry hatches and words, lines carry markers and dashes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from specdec_course.block_figures import LINES

PAPER = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5}  # keeps a text on a hatch readable
TRUE, OWN, AGAIN, GONE = (  # Okabe and Ito's colours, a hatch, and what it means
    ("#0072B2", "", "the target's feature"),
    ("#E69F00", "//", "the head's own guess"),
    ("#009E73", "..", "the target's feature, read after the verdict"),
    ("#FFFFFF", "", "empty again"),
)
_USED = (TRUE, OWN, AGAIN, GONE)


def draw_knowledge(alphas: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw how far a drafter gets that knows the feature, the token, or both: a group of bars for each world.

    Parameters
    ----------
    alphas : world -> (what is known -> acceptance rate)
    """
    looks = (("#56B4E9", ""), ("#E69F00", "//"), ("#009E73", ".."))
    figure, axes = plt.subplots(figsize=(7.5, 3.8))
    for place, known in enumerate(next(iter(alphas.values()))):
        heights = [found[known] for found in alphas.values()]
        spots = np.arange(len(alphas)) + 0.27 * (place - 1)
        colour, hatch = looks[place % 3]
        axes.bar(spots, heights, 0.25, color=colour, hatch=hatch, edgecolor="white", label=f"knows {known}")
        for spot, height in zip(spots, heights, strict=True):
            axes.text(spot, height + 0.02, f"{height:.2f}", ha="center", fontsize=9)
    axes.set_xticks(range(len(alphas)), list(alphas))
    axes.set(ylabel="alpha at temperature 1", ylim=(0, 1.28), title="What a guess of the token after the next is worth")
    axes.legend(fontsize=8, ncols=3, loc="upper center")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def draw_pairs(num_tokens: int, num_draft_tokens: int, num_accepted: int) -> Figure:
    """Draw the pairs in the head's cache while it drafts, and after the verdict.

    Parameters
    ----------
    num_tokens : int
        Committed tokens before the round.
    num_draft_tokens, num_accepted : int
        K, and how many of them the target accepts.
    """
    figure, axes = plt.subplots(figsize=(1.05 * (num_tokens + num_draft_tokens) + 2.6, 3.9))
    kept = num_tokens - 1
    while_drafting = [TRUE] * kept + [OWN] * (num_draft_tokens - 1)
    gone = max(0, num_draft_tokens - 2 - num_accepted)
    afterwards = [TRUE] * kept + [AGAIN] * (num_accepted + 1) + [GONE] * gone
    for height, pairs in ((2.2, while_drafting), (0, afterwards)):
        for place, look in enumerate(pairs):
            _pair(axes, place, height, look, num_tokens, num_accepted, after=height == 0)
    axes.text(-0.15, 2.9, "while drafting", ha="right", va="center")
    axes.text(-0.15, 0.7, "before the next\nproposal", ha="right", va="center")
    patches = [Rectangle((0, 0), 1, 1, facecolor=c, hatch=h, edgecolor="grey", alpha=0.7) for c, h, _ in _USED]
    axes.legend(patches, [word for *_, word in _USED], fontsize=8, ncols=2, loc="upper center", frameon=False)
    axes.set(xlim=(-2, num_tokens + num_draft_tokens - 1), ylim=(-0.3, 5))
    axes.set_title(f"Pairs in the head's cache: {num_accepted} of {num_draft_tokens} drafts accepted")
    axes.axis("off")
    return figure


def _pair(
    axes: Axes,
    place: int,
    height: float,
    look: tuple[str, str, str],
    num_tokens: int,
    num_accepted: int,
    after: bool,
) -> None:
    """Draw one box: the feature above, the token after it below."""
    colour, hatch, _ = look
    axes.add_patch(
        Rectangle(
            (place, height),
            0.9,
            1.4,
            facecolor=colour,
            hatch=hatch,
            edgecolor="grey",
            alpha=0.55 if look is not GONE else 1,
            linestyle="--" if look is GONE else "-",
        )
    )
    if look is GONE:
        return
    number = place + 1 - num_tokens  # 0 for the first drafted token
    token = f"x{place + 1}" if number < 0 else f"d{number + 1}"
    if after and number == num_accepted:
        token = "next"
    feature = f"g{place}" if look is OWN else f"f{place}"
    for share, word in ((1.05, feature), (0.4, token)):
        axes.text(place + 0.45, height + share, word, ha="center", va="center", fontsize=9, bbox=PAPER)


def draw_training(
    losses: Mapping[str, Sequence[float]], looks: Mapping[str, Sequence[tuple[int, float]]], smooth: int = 10
) -> Figure:
    """Draw loss (means over `smooth` steps) and held-out acceptance of each run, against steps."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
    for (name, values), (colour, marker, dash) in zip(losses.items(), LINES, strict=False):
        whole = np.array(values[: len(values) // smooth * smooth]).reshape(-1, smooth).mean(1)
        left.plot(smooth * (1 + np.arange(len(whole))), whole, color=colour, linestyle=dash, label=name)
        steps, alphas = zip(*looks[name], strict=True)
        right.plot(steps, alphas, color=colour, marker=marker, linestyle=dash, label=name)
    left.set(xlabel="step", ylabel="loss", title="It learns", yscale="log")
    right.set(xlabel="step", ylabel="alpha at temperature 1, at least", title="More is accepted", ylim=(0, 1))
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.tight_layout()
    return figure


def draw_chain_quality(curves: Mapping[str, Sequence[float]], title: str) -> Figure:
    """Draw how often draft token 1, 2, 3 ... is right, given that those before it were."""
    figure, axes = plt.subplots(figsize=(6.5, 3.6))
    for (name, values), (colour, marker, dash) in zip(curves.items(), LINES, strict=False):
        axes.plot(range(1, len(values) + 1), values, color=colour, marker=marker, linestyle=dash, label=name)
    axes.set(xlabel="draft token", ylabel="share that is right", title=title, ylim=(0, 1))
    axes.set_xticks(range(1, 1 + max(map(len, curves.values()))))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def draw_word_tree(words: Sequence[str], parents: Sequence[int], accepted: Sequence[int], root: str) -> Figure:
    """Draw a draft tree with its words; accepted nodes are filled, and joined by a thick line.

    Parameters
    ----------
    words, parents : sequences, one entry for each node
        The parent of a child of the text is -1.
    accepted : sequence of int
        Nodes on the accepted path.
    root : str
        The last committed token.
    """
    depth = [0] * len(words)
    for node, parent in enumerate(parents):
        depth[node] = 1 + (depth[parent] if parent >= 0 else 0)
    leaves = iter(range(len(words)))
    height: dict[int, float] = {}

    def settle(node: int) -> float:
        children = [child for child, parent in enumerate(parents) if parent == node]
        height[node] = float(np.mean([settle(child) for child in children])) if children else float(next(leaves))
        return height[node]

    settle(-1)
    figure, axes = plt.subplots(figsize=(2.1 * (max(depth) + 1), 0.5 * len(words) + 1.2))
    spots = {node: (depth[node] if node >= 0 else 0, -height[node]) for node in height}
    for node, parent in enumerate(parents):
        (x0, y0), (x1, y1) = spots[parent], spots[node]
        on_path = node in accepted
        colour, width = ("#009E73", 3) if on_path else ("#999999", 1)
        axes.plot([x0, x1], [y0, y1], color=colour, linewidth=width, zorder=1)
    for node, (x, y) in spots.items():
        word = root if node < 0 else words[node]
        kept = node < 0 or node in accepted
        box = {"boxstyle": "round", "facecolor": "#B7E4D4" if kept else "white", "edgecolor": "#555555"}
        box["linestyle"] = "-" if kept else "--"
        axes.text(x, y, word, ha="center", va="center", family="monospace", fontsize=10, bbox=box, zorder=2)
    axes.set(xlim=(-0.5, max(depth) + 0.5), title="One round of eagle-tree: filled words were accepted")
    axes.margins(y=0.2)
    axes.axis("off")
    return figure
