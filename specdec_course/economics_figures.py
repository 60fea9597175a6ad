"""Figures about when speculation pays: tokens of a round, bills, survival, predictions, answers, batches, temperature.

No figure depends on colour alone: lines carry markers and dashes, bars carry hatches and their numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specdec_course.block_figures import LINES
from specdec_ref.economics import expected_tokens, speedup

TARGET, DRAFT, ALARM, GREY = "#0072B2", "#E69F00", "#D55E00", "#555555"  # Okabe and Ito
PAPER = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5}  # keeps a text on a hatch readable


def draw_tokens(alphas: Sequence[float], longest: int = 12) -> Figure:
    """Draw E against K: a curve for each alpha, and the most that a round can bring."""
    figure, axes = plt.subplots(figsize=(7, 4))
    lengths = np.arange(longest + 1)
    axes.plot(lengths, lengths + 1, color=GREY, linestyle="--", label="all accepted: K + 1")
    for alpha, (colour, marker, dash) in zip(alphas, LINES, strict=False):
        emitted = np.asarray(expected_tokens(alpha, lengths))
        axes.plot(lengths, emitted, color=colour, marker=marker, linestyle=dash, label=f"alpha = {alpha:g}")
        axes.annotate(f"{emitted[-1]:.2f}", (longest, emitted[-1]), (6, -3), textcoords="offset points", fontsize=9)
    axes.set(xlabel="K, tokens drafted a round", ylabel="E, tokens the text gets", ylim=(0, longest * 0.85))
    axes.set_title("Longer drafts bring less and less")
    _finish(axes)
    return figure


def draw_bills(bills: Mapping[str, tuple[float, int, float, float]]) -> Figure:
    """Draw what a round costs beside what plain decoding of its tokens costs, both in target steps.

    Parameters
    ----------
    bills : name -> (alpha, K, T_d / T_t, T_v / T_t)
    """
    figure, axes = plt.subplots(figsize=(9, 1.15 * len(bills) + 1.2))
    for place, (alpha, count, draft, verify) in enumerate(bills.values()):
        emitted, gain = float(expected_tokens(alpha, count)), float(speedup(alpha, count, draft, verify))
        axes.barh(place - 0.2, emitted, 0.36, color="#BBBBBB", label="plain: E target steps" if place == 0 else None)
        axes.text(emitted / 2, place - 0.2, f"E = {emitted:.2f}", va="center", ha="center", fontsize=8, bbox=PAPER)
        parts = ((count * draft, DRAFT, "//", "K draft steps"), (verify, TARGET, "", "one pass of the target"))
        left = 0.0
        for width, colour, hatch, label in parts:
            label = label if place == 0 else None
            axes.barh(place + 0.2, width, 0.36, left, color=colour, hatch=hatch, edgecolor="white", label=label)
            if width > 0.15:
                axes.text(
                    left + width / 2, place + 0.2, f"{width:.2f}", va="center", ha="center", fontsize=8, bbox=PAPER
                )
            left += width
        word = "faster" if gain > 1 else "SLOWER"
        axes.text(max(left, emitted) + 0.08, place, f"{gain:.2f}x, {word}", va="center", fontsize=10)
    axes.set_yticks(range(len(bills)), list(bills))
    axes.invert_yaxis()
    axes.set(xlabel="time, in target steps", xlim=(0, axes.get_xlim()[1] * 1.25), title="The bill of a round")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, frameon=False)
    return figure


def draw_survival(curves: Mapping[str, Sequence[float]], title: str) -> Figure:
    """Draw the chance that at least i draft tokens of a round pass, for i = 1, 2, ...; each curve starts at 1."""
    figure, axes = plt.subplots(figsize=(7, 3.8))
    for (name, curve), (colour, marker, dash) in zip(curves.items(), LINES, strict=False):
        axes.plot([1, *curve], color=colour, marker=marker, linestyle=dash, label=name)
    axes.set(xlabel="i, draft tokens", ylabel="share of rounds with at least i accepted", ylim=(0, 1.05), title=title)
    axes.set_xticks(range(1 + max(len(curve) for curve in curves.values())))
    _finish(axes)
    return figure


def draw_agreement(speedups: Mapping[str, tuple[float, float]]) -> Figure:
    """Draw predicted beside measured speedups, and the line where nothing is gained.

    Parameters
    ----------
    speedups : name -> (predicted, measured)
    """
    figure, axes = plt.subplots(figsize=(max(6.0, 1.9 * len(speedups)), 3.8))
    places = np.arange(len(speedups))
    for shift, (name, colour, hatch) in enumerate((("predicted", "#56B4E9", "//"), ("measured", TARGET, ""))):
        heights = [pair[shift] for pair in speedups.values()]
        bars = axes.bar(places + 0.4 * shift - 0.2, heights, 0.38, color=colour, hatch=hatch, label=name)
        axes.bar_label(bars, fmt="%.2f", fontsize=9)
    axes.axhline(1, color=ALARM, linestyle="--", label="plain decoding")
    axes.set_xticks(places, list(speedups), fontsize=9)
    axes.set(ylabel="speedup of decoding", title="Below the dashed line speculation loses")
    axes.margins(y=0.15)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def draw_requests(lengths: Sequence[int], curves: Mapping[str, Sequence[float]], limit: float) -> Figure:
    """Draw the speedup of whole requests against the length of the answer, and that of decoding alone."""
    figure, axes = plt.subplots(figsize=(7, 3.8))
    for (name, curve), (colour, marker, dash) in zip(curves.items(), LINES, strict=False):
        axes.plot(lengths, curve, color=colour, marker=marker, linestyle=dash, label=name)
    axes.axhline(limit, color=GREY, linestyle=":", label=f"decoding alone: {limit:.2f}")
    axes.axhline(1, color=ALARM, linestyle="--", label="plain decoding")
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.set(xlabel="tokens of the answer", ylabel="speedup of the whole request", ylim=(0, 1.15 * limit))
    axes.set_title("Short answers to long prompts gain little")
    _finish(axes)
    return figure


def draw_batches(panels: Mapping[str, Mapping[str, Mapping[int, float]]], marks: Mapping[str, float]) -> Figure:
    """Draw quantities against the number of texts decoded at once, a panel each.

    Parameters
    ----------
    panels : title -> name of a curve -> batch size -> value
    marks : title -> value
        Where a panel gets a dashed line.
    """
    figure, axes_of = plt.subplots(1, len(panels), figsize=(5.2 * len(panels), 3.9), squeeze=False)
    for axes, (title, curves) in zip(axes_of[0], panels.items(), strict=True):
        for (name, curve), (colour, marker, dash) in zip(curves.items(), LINES, strict=False):
            axes.plot(list(curve), list(curve.values()), color=colour, marker=marker, linestyle=dash, label=name)
        axes.axhline(marks[title], color=ALARM, linestyle="--")
        axes.set_xscale("log", base=2)
        sizes = sorted({size for curve in curves.values() for size in curve})
        axes.set_xticks(sizes, [str(size) for size in sizes], fontsize=8)
        axes.set(xlabel="B, texts at once", title=title)
        axes.set_ylim(bottom=0)
        _finish(axes)
    figure.tight_layout()
    return figure


def draw_temperatures(curves: Mapping[str, Mapping[float, float]]) -> Figure:
    """Draw alpha against temperature, a curve for each pair."""
    figure, axes = plt.subplots(figsize=(7, 3.8))
    for (name, curve), (colour, marker, dash) in zip(curves.items(), LINES, strict=False):
        axes.plot(list(curve), list(curve.values()), color=colour, marker=marker, linestyle=dash, label=name)
    axes.set(xlabel="temperature of both models", ylabel="alpha", ylim=(0, 1.05), title="Alpha against temperature")
    _finish(axes)
    return figure


def _finish(axes: Axes) -> None:
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
