"""Figures about one text in two tokenizers: strips of tokens over the same letters, and a law cut to what is shared.

No figure depends on colour alone: kinds of tokens carry hatches and words, bars carry hatches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

# Okabe and Ito's colours, each with a hatch of its own.
KINDS = {
    "kept": ("#56B4E9", "", "kept as it is"),
    "again": ("#E69F00", "//", "encoded again"),
    "new": ("#009E73", "..", "new"),
    "dropped": ("#DDDDDD", "xx", "dropped"),
    "plain": ("#EEEEEE", "", ""),
}
PAPER = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0}  # keeps a token on a hatch readable
LETTER = 0.19  # width of a letter, inches


@dataclass(frozen=True)
class Strip:
    """A row of tokens.

    Parameters
    ----------
    name : str
        Written in front of it.
    tokens : sequence of (str, str)
        What each one spells, and its kind, one of `KINDS`.
    begin : int
        The letter at which the first one begins.
    """

    name: str
    tokens: Sequence[tuple[str, str]]
    begin: int = 0

    @property
    def starts(self) -> list[int]:
        """Where each token begins."""
        lengths = [len(said) for said, _ in self.tokens]
        return [self.begin + sum(lengths[:place]) for place in range(len(lengths))]

    @property
    def end(self) -> int:
        """Where the last token ends."""
        return self.begin + sum(len(said) for said, _ in self.tokens)


def plain_strip(name: str, tokens: Sequence[str], begin: int = 0) -> Strip:
    """Return a strip whose tokens are all alike."""
    return Strip(name, [(said, "plain") for said in tokens], begin)


def common_starts(one: Sequence[str], other: Sequence[str]) -> list[int]:
    """Return the letters at which a token of both begins."""
    return sorted(set(plain_strip("", one).starts) & set(plain_strip("", other).starts))


def draw_strips(strips: Sequence[Strip], title: str, joints: Sequence[int] = ()) -> Figure:
    """Draw rows of tokens over the same letters, with a dashed line at each letter of `joints`."""
    width = max(strip.end for strip in strips)
    figure, axes = plt.subplots(figsize=(LETTER * width + 2.2, 0.62 * len(strips) + 1.1))
    for row, strip in enumerate(strips):
        axes.text(-0.6, row + 0.4, strip.name, ha="right", va="center", fontsize=9)
        for start, (said, kind) in zip(strip.starts, strip.tokens, strict=True):
            colour, hatch, _ = KINDS[kind]
            axes.add_patch(Rectangle((start, row), len(said), 0.8, facecolor=colour, hatch=hatch, edgecolor="#777777"))
            axes.text(
                start + len(said) / 2,
                row + 0.4,
                said.replace(" ", "·"),
                ha="center",
                va="center",
                family="monospace",
                fontsize=9,
                bbox=None if kind == "plain" else PAPER,
            )
    for joint in joints:
        axes.plot([joint, joint], [-0.15, len(strips) - 0.05], color="#D55E00", linestyle="--", linewidth=1.2)
    axes.set(xlim=(-0.1, width + 0.1), ylim=(len(strips), -0.3))
    axes.set_title(title, fontsize=11)
    axes.axis("off")
    _kinds_below(figure, strips, bool(joints))
    return figure


def _kinds_below(figure: Figure, strips: Sequence[Strip], joints: bool) -> None:
    """Say which kind of token is which, and what the dashed lines are."""
    used = {kind for strip in strips for _, kind in strip.tokens}
    handles: list[Artist] = [
        Rectangle((0, 0), 1, 1, facecolor=colour, hatch=hatch, edgecolor="#777777", label=word)
        for kind, (colour, hatch, word) in KINDS.items()
        if kind in used and word
    ]
    if joints:
        handles.append(Line2D([], [], color="#D55E00", linestyle="--", label="a token of both begins here"))
    if handles:
        figure.legend(handles=handles, loc="lower center", ncols=len(handles), fontsize=8, frameon=False)


def draw_restriction(words: Sequence[str], target: Sequence[float], draft: Sequence[float | None]) -> Figure:
    """Draw a target's law, a draft's law, and the draft's law on what both have, scaled; over the same words.

    Parameters
    ----------
    words : sequence of str
        What the target's tokens spell, and then what only the draft has.
    target, draft : sequence of float
        One number for each word; None in `draft` where the draft has no such token, 0 in `target` for what only the
        draft has.
    """
    places = np.arange(len(words))
    own = np.array([value or 0.0 for value in draft])
    shared = np.array([value is not None and wanted > 0 for value, wanted in zip(draft, target, strict=True)])
    cut = np.where(shared, own, 0.0)
    bars = (
        ("p, the target", np.asarray(target), "#0072B2", ""),
        ("the draft's own law", own, "#BBBBBB", "xx"),
        ("q: shared tokens only, scaled", cut / cut.sum(), "#E69F00", "//"),
    )
    figure, axes = plt.subplots(figsize=(1.35 * len(words) + 1.5, 3.6))
    for shift, (name, heights, colour, hatch) in enumerate(bars):
        at = places + 0.28 * (shift - 1)
        axes.bar(at, heights, 0.26, color=colour, hatch=hatch, edgecolor="white", label=name)
    marks = [
        f"{word}\n{'both' if both else 'target only' if value is None else 'draft only'}"
        for word, both, value in zip(words, shared, draft, strict=True)
    ]
    axes.set_xticks(places, marks, fontsize=9)
    axes.set(ylabel="probability", title="What only one of them has is never drafted")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8)
    return figure
