"""Figures about one verification pass: who sees whom, which row judges which draft, and what a pass costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

# Okabe and Ito's colours, each with a hatch, so that nothing hangs on colour alone.
CELLS = {
    "text": ("#56B4E9", "", "sees: earlier text"),
    "block": ("#009E73", "//", "sees: block, up to itself"),
    "later": ("#FFFFFF", "", "hidden: later in the block"),
    "junk": ("#DDDDDD", "xx", "hidden: not this row's"),
}
LINES = [("#0072B2", "o", "-"), ("#D55E00", "s", "--"), ("#009E73", "^", "-."), ("#CC79A7", "D", ":")]


def draw_mask(lengths: Sequence[int], block_length: int) -> Figure:
    """Draw which slots each token of a block sees, one panel per row of the batch.

    Parameters
    ----------
    lengths : sequence of int, [B]
        Tokens of each row in the cache before the pass.
    block_length : int
        Tokens of the block, T.
    """
    slots = max(lengths) + block_length
    figure, panels = plt.subplots(1, len(lengths), figsize=(0.55 * slots * len(lengths) + 2, 0.55 * block_length + 1.8))
    for row, (axes, length) in enumerate(zip([panels] if len(lengths) == 1 else panels, lengths, strict=True)):
        for t in range(block_length):
            for slot in range(slots):
                _cell(axes, slot, t, _kind(slot, length, t, block_length))
        axes.set(
            xlim=(0, slots), ylim=(block_length, 0), xlabel="slot", title=f"row {row}: {length} tokens in the cache"
        )
        axes.set_xticks([slot + 0.5 for slot in range(slots)], [str(slot) for slot in range(slots)])
        axes.set_yticks(
            [t + 0.5 for t in range(block_length)], [f"token at position {length + t}" for t in range(block_length)]
        )
        axes.set_aspect("equal")
    patches = [Rectangle((0, 0), 1, 1, facecolor=c, hatch=h, edgecolor="grey") for c, h, _ in CELLS.values()]
    figure.legend(patches, [word for _, _, word in CELLS.values()], loc="lower center", ncols=4, fontsize=8)
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    return figure


def _kind(slot: int, length: int, t: int, block_length: int) -> str:
    if slot < length:
        return "text"
    if slot <= length + t:
        return "block"
    return "later" if slot < length + block_length else "junk"


def _cell(axes: Axes, column: int, line: int, kind: str) -> None:
    colour, hatch, _ = CELLS[kind]
    axes.add_patch(Rectangle((column, line), 1, 1, facecolor=colour, hatch=hatch, edgecolor="grey", linewidth=0.6))


def draw_judges(block: Sequence[str], wanted: Sequence[str], num_accepted: int) -> Figure:
    """Draw a block with the row of logits above each token, and the draft that each row judges.

    Parameters
    ----------
    block : sequence of str, [1+K]
        The last token of the text, then the K drafts.
    wanted : sequence of str, [1+K]
        What each row of logits wants next.
    num_accepted : int
        How many drafts pass.
    """
    last = len(block) - 1
    figure, axes = plt.subplots(figsize=(2.1 * len(block) + 1, 3.2))
    for i, (token, want) in enumerate(zip(block, wanted, strict=True)):
        used = i <= num_accepted
        axes.add_patch(Rectangle((i, 0), 0.7, 0.6, facecolor="#56B4E9" if i == 0 else "#DDDDDD", edgecolor="black"))
        axes.text(i + 0.35, 0.3, token, ha="center", va="center", family="monospace", fontsize=13)
        axes.text(i + 0.35, -0.2, "last token" if i == 0 else f"draft {i}", ha="center", va="center", fontsize=9)
        colour, hatch = ("#009E73", "//") if i < num_accepted else ("#E69F00", "") if used else ("#FFFFFF", "")
        axes.add_patch(Rectangle((i, 1.5), 0.7, 0.6, facecolor=colour, hatch=hatch, edgecolor="black", alpha=0.8))
        paper = {"facecolor": "white", "edgecolor": "none", "alpha": 0.9, "pad": 1.5}
        axes.text(i + 0.35, 1.8, want, ha="center", va="center", family="monospace", fontsize=13, bbox=paper)
        if i < num_accepted:
            verdict = "agrees"
        elif i == num_accepted:
            verdict = "bonus" if i == last else "correction"
        else:
            verdict = "unused"
        axes.text(i + 0.35, 2.32, f"row {i}: {verdict}", ha="center", va="center", fontsize=9)
        axes.annotate("", (i + 0.35, 1.46), (i + 0.35, 0.64), arrowprops={"arrowstyle": "->", "color": "grey"})
        if i < last:
            style = {"arrowstyle": "->", "color": "#D55E00", "linestyle": "--"}
            axes.annotate("", (i + 1.2, 0.64), (i + 0.55, 1.46), arrowprops=style)
            axes.text(i + 0.97, 1.08, "judges", fontsize=8, color="#B04A00", ha="left", va="center")
    axes.set(xlim=(-0.1, last + 1), ylim=(-0.4, 2.6))
    axes.axis("off")
    return figure


def draw_costs(panels: Mapping[str, Mapping[str, Mapping[int, float]]]) -> Figure:
    """Plot the cost of a pass against its length, in passes over one token: T_v / T_t.

    Parameters
    ----------
    panels : title -> label of a curve -> block length -> ratio
    """
    figure, axes_of = plt.subplots(1, len(panels), figsize=(5.2 * len(panels), 3.8), sharey=True, squeeze=False)
    for axes, (title, curves) in zip(axes_of[0], panels.items(), strict=True):
        for (label, curve), (colour, marker, line) in zip(curves.items(), LINES, strict=False):
            axes.plot(list(curve), list(curve.values()), color=colour, marker=marker, linestyle=line, label=label)
        longest = max(max(curve) for curve in curves.values())
        axes.plot([1, longest], [1, 1], color="black", linewidth=0.8, label="as cheap as one token")
        axes.set(title=title, xlabel="tokens per row in the pass, 1 + K")
        axes.legend(fontsize=8)
    highest = max(ratio for curves in panels.values() for curve in curves.values() for ratio in curve.values())
    axes_of[0][0].set(ylabel="time / time of one token", ylim=(0, 1.1 * highest))  # shared by all panels
    figure.tight_layout()
    return figure
