"""Figures about drafts without a second model: a match in a text, rounds along a text, layers, a shared cache, a limit.

No figure depends on colour alone: boxes and bars carry hatches and words, lines carry markers and dashes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from specdec_course.block_figures import LINES
from specdec_ref.economics import speedup
from specdec_ref.rows import Round

TARGET, DRAFT, ALARM, GREY = "#0072B2", "#E69F00", "#D55E00", "#555555"  # Okabe and Ito
PAPER = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.2}  # keeps a text on a hatch readable
TOKENS = {  # what a token of a text is: colour, hatch, word
    "other": ("#EEEEEE", "", "text"),
    "match": ("#56B4E9", "//", "an earlier match"),
    "suffix": ("#0072B2", "\\\\", "the last tokens of the text"),
    "source": ("#009E73", "..", "what followed the match"),
    "draft": ("#E69F00", "", "the draft, a copy"),
}
ROUNDS = {  # what became of a round: colour, hatch, word
    "accepted": ("#009E73", "", "some of the draft accepted"),
    "refused": ("#D55E00", "xx", "all of the draft refused"),
    "none": ("#BBBBBB", "--", "nothing proposed"),
}
SLOTS = {  # who wrote keys and values: colour, hatch, word
    "all": ("#0072B2", "", "by the whole target"),
    "kept": ("#E69F00", "//", "by the drafting layers"),
    "empty": ("#FFFFFF", "", "nothing yet"),
}


def draw_match(
    text: Sequence[str], match: range, suffix: range, source: range, draft: Sequence[str], width: int = 12
) -> Figure:
    """Draw a text in lines of boxes, with a match, the suffix that it equals, what followed, and the copied draft.

    Parameters
    ----------
    text : sequence of str
        Its tokens.
    match, suffix, source : range
        Places in the text. What is in two of them is drawn as the last of them.
    draft : sequence of str
        What is proposed: stands behind the text.
    width : int
        Boxes of a line.
    """
    kinds = ["other"] * len(text) + ["draft"] * len(draft)
    for name, places in (("match", match), ("source", source), ("suffix", suffix)):
        for place in places:
            kinds[place] = name
    lines = -(-len(kinds) // width)
    figure, axes = plt.subplots(figsize=(0.95 * width, 0.8 * lines + 0.9))
    for place, (token, kind) in enumerate(zip([*text, *draft], kinds, strict=True)):
        colour, hatch, _ = TOKENS[kind]
        column, line = place % width, place // width
        edge = "black" if kind == "draft" else "white"
        axes.add_patch(Rectangle((column, -line), 0.94, 0.7, facecolor=colour, hatch=hatch, edgecolor=edge, alpha=0.75))
        word = token.replace("\n", "⏎").replace(" ", "·")  # blanks are part of a token
        word = word if len(word) <= 9 else word[:8] + "…"
        axes.text(
            column + 0.47, 0.35 - line, word, ha="center", va="center", family="monospace", fontsize=9, bbox=PAPER
        )
    axes.set(xlim=(-0.1, width), ylim=(-lines + 0.7, 0.9))
    axes.axis("off")
    _legend(axes, TOKENS, ncols=5)
    return figure


def draw_along(panels: Mapping[str, Sequence[Round]], row: int = 0) -> Figure:
    """Draw what each round brought, along a text: a bar for each round, as wide and as high as its tokens.

    Parameters
    ----------
    panels : title -> rounds of one text
    row : int
        Which text of the batch.
    """
    figure, all_axes = plt.subplots(len(panels), 1, figsize=(9, 2.1 * len(panels) + 0.6), squeeze=False, sharey=True)
    for axes, (title, rounds) in zip(all_axes[:, 0], panels.items(), strict=True):
        place = 0
        for result in rounds:
            count = len(result.tokens[row])
            colour, hatch, _ = ROUNDS[outcome(result, row)]
            axes.bar(place, count, count, align="edge", color=colour, hatch=hatch, edgecolor="white")
            place += count
        axes.set(ylabel="tokens of\nthe round", title=title, xlim=(0, place))
        axes.axhline(1, color=GREY, linestyle=":")
        axes.spines[["top", "right"]].set_visible(False)
    all_axes[-1, 0].set_xlabel("place in the answer, tokens")
    _legend(all_axes[-1, 0], ROUNDS, ncols=3, below=0.38)
    figure.tight_layout()
    return figure


def outcome(result: Round, row: int = 0) -> str:
    """Return what became of a round's draft: "accepted" (some of it), "refused" or "none" (there was none)."""
    if not result.drafts[row]:
        return "none"
    return "accepted" if result.num_accepted[row] else "refused"


def draw_layers(panels: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Draw a number for each layer, a panel for each kind of number and a line for each model.

    Parameters
    ----------
    panels : title -> name of a model -> one number for each layer
    """
    figure, all_axes = plt.subplots(1, len(panels), figsize=(5.4 * len(panels), 3.6), squeeze=False)
    for axes, (title, curves) in zip(all_axes[0], panels.items(), strict=True):
        for (name, values), (colour, marker, dash) in zip(curves.items(), LINES, strict=False):
            axes.plot(values, color=colour, marker=marker, markersize=4, linestyle=dash, label=name)
        axes.set(xlabel="layer", title=title, ylim=(min(0.0, *(min(v) for v in curves.values())), 1.04))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=8)
    figure.tight_layout()
    return figure


def draw_shared_cache(num_layers: int, kept: Sequence[int], text: int, drafted: int) -> Figure:
    """Draw who wrote which slots of the target's cache, after drafting and after verification.

    Parameters
    ----------
    num_layers : int
        Of the target.
    kept : sequence of int
        The layers that draft.
    text, drafted : int
        Tokens in the cache before the round, and tokens that the draft steps fed.
    """
    figure, panels = plt.subplots(1, 2, figsize=(0.5 * (text + drafted) * 2 + 2, 0.45 * num_layers + 1.8))
    for axes, verified in zip(panels, (False, True), strict=True):
        for layer in range(num_layers):
            for slot in range(text + drafted):
                own = "kept" if layer in kept else "empty"
                colour, hatch, _ = SLOTS["all" if slot < text or verified else own]
                axes.add_patch(Rectangle((slot, layer), 0.94, 0.9, facecolor=colour, hatch=hatch, edgecolor="grey"))
        axes.axvline(text - 0.03, color="black", linewidth=2)
        axes.set(xlim=(-0.1, text + drafted), ylim=(-0.1, num_layers), xlabel="slot")
        axes.set_title("after verification" if verified else "after drafting")
        axes.set_xticks(np.arange(text + drafted) + 0.47, [str(slot) for slot in range(text + drafted)], fontsize=8)
        axes.set_yticks(np.arange(num_layers) + 0.45, [str(layer) for layer in range(num_layers)], fontsize=8)
        axes.spines[:].set_visible(False)
    panels[0].set_ylabel("layer")
    _legend(panels[0], SLOTS, ncols=3, below=0.22, anchor=1.05)
    return figure


def draw_limit(num_draft_tokens: Sequence[int], verify_cost: float, marks: Mapping[str, tuple[float, float]]) -> Figure:
    """Draw the most that layer skipping can gain, all drafts accepted, against the share of a step that a draft costs.

    Parameters
    ----------
    num_draft_tokens : sequence of int
        A line for each.
    verify_cost : float
        T_v / T_t.
    marks : name -> (share, speedup)
        Points to draw beside the lines.
    """
    figure, axes = plt.subplots(figsize=(7, 3.9))
    shares = np.linspace(0, 1, 101)
    for count, (colour, _, dash) in zip(num_draft_tokens, LINES[:1] + LINES[2:], strict=False):  # dashed is plain
        most = np.asarray(speedup(1.0, count, shares, verify_cost))
        axes.plot(shares, most, color=colour, linestyle=dash, label=f"all of K = {count} accepted")
    for (name, (share, gain)), marker in zip(marks.items(), "ovDs", strict=False):
        axes.plot(share, gain, marker, color="black", markersize=8, label=f"{name}: {gain:.2f}")
    axes.axhline(1, color=ALARM, linestyle="--", label="plain decoding")
    axes.set(xlabel="cost of a draft step, in target steps", ylabel="speedup", xlim=(0, 1.02), ylim=(0.5, 3))
    axes.set_title("A costly draft cannot win, however good it is")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8)
    return figure


def _legend(
    axes: Axes, looks: Mapping[str, tuple[str, str, str]], ncols: int, below: float = 0.0, anchor: float = 0.5
) -> None:
    patches = [Patch(facecolor=face, hatch=hatch, edgecolor="grey", label=word) for face, hatch, word in looks.values()]
    axes.legend(
        handles=patches, loc="upper center", bbox_to_anchor=(anchor, -below), ncols=ncols, fontsize=8, frameon=False
    )
