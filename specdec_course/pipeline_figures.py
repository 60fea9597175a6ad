"""Figures about the whole pipeline: one round's timeline, two caches, three rates, a batch, and close calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike

from specdec_course.ledger import Entry
from specdec_ref.economics import expected_tokens
from specdec_ref.rows import Round

# Okabe and Ito's colours; hatches, markers and dashes say the same without colour.
TARGET, DRAFT, TEXT, ALARM = "#0072B2", "#E69F00", "#009E73", "#D55E00"


def draw_timeline(num_draft_tokens: int = 4, draft_step: float = 0.2) -> Figure:
    """Draw who works when in one round, beside plain decoding. Times are an illustration, in target passes."""
    figure, axes = plt.subplots(figsize=(10, 3.2))
    for place in range(num_draft_tokens + 1):
        _box(axes, place, 2.2, 1, TARGET, "", f"pass\n→ token {place + 1}")
    for place in range(num_draft_tokens):
        _box(axes, place * draft_step, 1.1, draft_step, DRAFT, "//", f"d{place + 1}")
    start = num_draft_tokens * draft_step
    _box(axes, start, 0, 1.1, TARGET, "", f"one pass over\nx, d1 … d{num_draft_tokens}")
    axes.annotate(
        "judge, correct,\nroll back", (start + 1.1, 0.4), (start + 1.5, 0.15), arrowprops={"arrowstyle": "<-"}
    )
    for height, name in ((2.2, "plain: target"), (1.1, "round: draft"), (0, "round: target")):
        axes.text(-0.1, height + 0.4, name, ha="right", va="center")
    axes.set(xlim=(-1.3, num_draft_tokens + 1.3), ylim=(-0.5, 3.3), title="One round, who works when (an illustration)")
    axes.set_xlabel("time, in target passes")
    axes.set_yticks([])
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    return figure


def _box(axes: Axes, left: float, bottom: float, width: float, colour: str, hatch: str, word: str) -> None:
    axes.add_patch(Rectangle((left, bottom), width, 0.8, facecolor=colour, hatch=hatch, edgecolor="white", alpha=0.6))
    paper = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
    axes.text(left + width / 2, bottom + 0.4, word, ha="center", va="center", fontsize=8, bbox=paper)


def draw_ledger(entries: Sequence[Entry], title: str) -> Figure:
    """Draw, round by round, how long the text is and what the two caches hold after it."""
    figure, axes = plt.subplots(figsize=(max(6.0, 0.9 * len(entries) + 2), 3.6))
    places = np.arange(len(entries))
    target, draft = [e.target_after for e in entries], [e.draft_after for e in entries]
    look = {"width": 0.38, "edgecolor": "white"}
    axes.bar(places - 0.2, target, color=TARGET, label="target's cache after the round", **look)
    axes.bar(places + 0.2, draft, color=DRAFT, hatch="//", label="draft's cache after the round", **look)
    text = [e.committed + e.accepted + 1 for e in entries]
    axes.step(places, text, where="mid", color=TEXT, marker="D", linewidth=2, label="text after the round")
    for place, entry in enumerate(entries):
        axes.text(place, text[place] + 0.35, f"{entry.accepted} of {entry.drafted}", ha="center", fontsize=8)
    low = min(*draft, *target)
    axes.set(xlabel="round (above: accepted of drafted)", ylabel="tokens", title=title)
    axes.set_ylim(max(0, low - 3), max(text) + 2)
    axes.set_xticks(places)
    axes.legend(loc="upper left", fontsize=8)
    return figure


def draw_rates(alpha: float, num_draft_tokens: int) -> Figure:
    """Draw three numbers that are often confused, against alpha, and mark them at one alpha."""
    grid = np.linspace(0, 1, 201)

    def three(value: ArrayLike) -> list[np.ndarray]:
        emitted = np.asarray(expected_tokens(value, num_draft_tokens))
        return [np.asarray(value, dtype=float), (emitted - 1) / num_draft_tokens, emitted / (num_draft_tokens + 1)]

    names = ("alpha: accepted / judged", "accepted / drafted", "emitted / (K+1)")
    styles = ((TARGET, "-", "o"), (ALARM, "--", "s"), (TEXT, "-.", "^"))
    figure, axes = plt.subplots(figsize=(7, 4))
    for name, (colour, dash, marker), curve, point in zip(names, styles, three(grid), three(alpha), strict=True):
        axes.plot(grid, curve, dash, color=colour, linewidth=2, label=name)
        axes.plot([alpha], [point], marker, color=colour, markersize=9)
        axes.annotate(f"{float(point):.3f}", (alpha, float(point)), xytext=(8, -10), textcoords="offset points")
    axes.set(xlabel="alpha", ylabel="share", title=f"The same rounds, three numbers (K = {num_draft_tokens})")
    axes.legend()
    axes.grid(alpha=0.3)
    return figure


def draw_batch(rounds: Sequence[Round], names: Sequence[str]) -> Figure:
    """Draw what each row of a batch got in each round: one segment a round, as long as its tokens."""
    figure, axes = plt.subplots(figsize=(10, 0.7 * len(names) + 1.4))
    for row, name in enumerate(names):
        left = 0
        for number, result in enumerate(rounds):
            count = len(result.tokens[row])
            if count:
                shade = DRAFT if number % 2 else TARGET
                _box(axes, left, row - 0.4, count, shade, "//" if number % 2 else "", str(count))
            left += count
        axes.text(-0.4, row, name, ha="right", va="center")
        axes.text(left + 0.3, row, f"{left} tokens", va="center", fontsize=8)
    longest = max(sum(len(result.tokens[row]) for result in rounds) for row in range(len(names)))
    axes.set(xlim=(0, longest * 1.15 + 1), ylim=(len(names) - 0.4, -0.6), xlabel="tokens of the row")
    axes.set_title("Each segment is one round of one row: rows advance by different amounts")
    axes.set_yticks([])
    return figure


def draw_close_calls(gaps: dict[str, Sequence[float]], noise: dict[str, float]) -> Figure:
    """Draw how far ahead the best token was at each position, and how much logits differ between two ways to compute.

    Parameters
    ----------
    gaps : dict of name to sequence of float
        Best logit minus second best, per position, one entry for each precision.
    noise : dict of name to float
        Largest difference of a logit between a pass over a block and passes over one token.
    """
    figure, panels = plt.subplots(1, len(gaps), figsize=(5.2 * len(gaps), 3.6), sharey=True)
    for axes, (name, values) in zip(cast(Sequence[Axes], np.atleast_1d(panels)), gaps.items(), strict=True):
        shown = np.maximum(values, 1e-7)  # a perfect tie still gets a place on a logarithmic axis
        close = shown <= noise[name]
        places = np.arange(len(shown))
        axes.semilogy(places[~close], shown[~close], "o", color=TARGET, label="a clear winner")
        axes.semilogy(places[close], shown[close], "X", color=ALARM, markersize=10, label="closer than the noise")
        axes.axhline(noise[name], color=DRAFT, linestyle="--", label="numerical noise")
        axes.set(title=name, xlabel="position in the text")
        axes.grid(alpha=0.3)
    first = np.atleast_1d(panels)[0]
    first.set_ylabel("best logit minus second best")
    figure.legend(*first.get_legend_handles_labels(), loc="lower center", ncols=3, fontsize=8)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    return figure
