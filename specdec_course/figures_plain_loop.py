"""The figures of stage 01: how a token is chosen, and what a pass of the model waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import StrMethodFormatter

# Okabe and Ito, which stay apart for colour-blind eyes; each line also has a marker or dash of its own.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v")
HATCHES = ("", "//", "..", "xx", "--")
GREY = "#555555"


def draw_laws(words: Sequence[str], laws: Mapping[str, Sequence[float]], title: str) -> Figure:
    """Draw one panel of bars per law, all over the same words.

    Parameters
    ----------
    words : sequence of str
        The tokens, as text, in the order of the bars.
    laws : mapping of str to sequence of float
        Name of a panel, and the probability of each word in it.
    title : str
        Shown above the figure.
    """
    figure, panels = plt.subplots(1, len(laws), figsize=(3.2 * len(laws), 0.32 * len(words) + 1.4), sharey=True)
    places = np.arange(len(words))
    for number, (axes, (name, law)) in enumerate(zip(np.atleast_1d(panels), laws.items(), strict=True)):
        axes.barh(places, law, color=COLOURS[number % 5], hatch=HATCHES[number % 5], edgecolor="white")
        for place, chance in zip(places, law, strict=True):
            axes.text(chance + 0.02, place, f"{chance:.2f}", va="center", fontsize=9)
        axes.set(xlim=(0, 1.18), title=name, xlabel="probability")
        axes.spines[["top", "right"]].set_visible(False)
    first = np.atleast_1d(panels)[0]
    first.set_yticks(places, words, family="monospace")
    first.invert_yaxis()
    figure.suptitle(title)
    figure.tight_layout()
    return figure


def draw_interval(probs: Sequence[float], draws: Sequence[tuple[float, int]], title: str) -> Figure:
    """Draw the unit interval, cut into pieces as long as the probabilities, and where some uniform numbers fall.

    Parameters
    ----------
    probs : sequence of float
        Sum to 1; token i is the i-th piece.
    draws : sequence of (float, int)
        Uniform numbers, and the token each one picks.
    title : str
        Shown above the figure.
    """
    figure, axes = plt.subplots(figsize=(9, 2.6))
    left = 0.0
    for token, chance in enumerate(probs):
        axes.add_patch(
            Rectangle((left, 0), chance, 0.6, facecolor=COLOURS[token % 5], hatch=HATCHES[token % 5], edgecolor="white")
        )
        if chance > 0:
            paper = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2}
            axes.text(left + chance / 2, 0.3, f"token {token}\n{chance:g}", ha="center", va="center", bbox=paper)
        left += chance
    for point, token in draws:
        axes.annotate(
            f"u = {point:g}\ntoken {token}", (point, 0.6), (point, 0.95), ha="center", arrowprops={"arrowstyle": "->"}
        )
    axes.set(xlim=(-0.02, 1.02), ylim=(0, 1.5), title=title)
    edges = np.concatenate([[0.0], np.cumsum(probs)])
    axes.set_xticks(np.unique(edges.round(6)))
    axes.get_yaxis().set_visible(False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def draw_times(
    curves: Mapping[str, Mapping[int, float]],
    levels: Mapping[str, float],
    labels: tuple[str, str, str],
    log_time: bool = False,
) -> Figure:
    """Draw measured times in milliseconds over a count on a logarithmic axis.

    Parameters
    ----------
    curves : mapping of str to mapping of int to float
        Name of a line, and seconds by count.
    levels : mapping of str to float
        Name of a level line, and its seconds.
    labels : (str, str, str)
        Name of the horizontal axis, of the vertical axis, and title.
    log_time : bool
        Also the times on a logarithmic axis; a cost proportional to the count is then a straight line.
    """
    figure, axes = plt.subplots(figsize=(7.5, 4))
    for number, (name, curve) in enumerate(curves.items()):
        times = [1e3 * seconds for seconds in curve.values()]
        axes.plot(list(curve), times, marker=MARKERS[number], color=COLOURS[number], label=name)
    for number, (name, seconds) in enumerate(levels.items()):
        axes.axhline(1e3 * seconds, color=GREY, linestyle=("--", ":")[number % 2], label=name)
    counts = sorted({count for curve in curves.values() for count in curve})
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    if log_time:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    else:
        axes.set_ylim(bottom=0)
    axes.set(xlabel=labels[0], ylabel=labels[1], title=labels[2])
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def draw_roofline(
    bandwidth: float, peak: float, points: Mapping[str, Mapping[int, tuple[float, float]]], title: str
) -> Figure:
    """Draw the roof that memory and arithmetic set, and measured points under it.

    Parameters
    ----------
    bandwidth : float
        Bytes per second.
    peak : float
        Floating-point operations per second.
    points : mapping of str to mapping of int to (float, float)
        Name of a series; by tokens per pass, its operations per byte of weights and its operations per second.
    title : str
        Shown above the figure.

    Notes
    -----
    Williams, Waterman and Patterson 2009, "Roofline: an insightful visual performance model".
    """
    figure, axes = plt.subplots(figsize=(7.5, 4.6))
    ridge = peak / bandwidth
    work = [intensity for series in points.values() for intensity, _ in series.values()]
    left, right = min([*work, ridge]) / 2, max([*work, ridge]) * 3
    axes.plot([left, ridge], [left * bandwidth / 1e9, peak / 1e9], color=GREY, label="roof: the memory's")
    axes.plot([ridge, right], [peak / 1e9] * 2, color=GREY, linestyle="--", label="roof: the arithmetic's")
    for number, (name, series) in enumerate(points.items()):
        places = [(intensity, rate / 1e9) for intensity, rate in series.values()]
        axes.plot(*zip(*places, strict=True), marker=MARKERS[number], color=COLOURS[number], linestyle=":", label=name)
        for (intensity, rate), count in zip(places, series, strict=True):
            offset = (0, 8) if number == 0 else (0, -14)
            axes.annotate(str(count), (intensity, rate), offset, textcoords="offset points", ha="center", fontsize=8)
    axes.set(xscale="log", yscale="log", title=title, xlim=(left, right))
    axes.set(xlabel="operations per byte of weights read", ylabel="billions of operations per second")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.grid(alpha=0.3, which="both")
    axes.legend(loc="lower right")
    return figure
