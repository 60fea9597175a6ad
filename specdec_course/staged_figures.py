"""Figures about students and stages: what a small student covers, how it learns, three levels at work, and their bill.

No figure depends on colour alone: lines carry markers and dashes, bars carry hatches and their numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from specdec_course.block_figures import LINES
from specdec_ref.draft_shapes import staged_draft_cost

TARGET, DRAFT, MICRO, ALARM, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#555555"  # Okabe and Ito
LEVELS = {"target": (TARGET, ""), "draft": (DRAFT, "//"), "micro": (MICRO, "..")}
PAPER = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.0}  # keeps a text on a hatch readable


def draw_students(target_probs: Sequence[float], students: Mapping[str, Sequence[float]]) -> Figure:
    """Draw the law of a target as bars, and what a small student makes of it as a line: a panel for each student.

    Parameters
    ----------
    target_probs : sequence of float, [V]
    students : title -> law [V]
        What both have in common is filled.
    """
    figure, panels = plt.subplots(1, len(students), figsize=(3.6 * len(students), 3.1), sharey=True, squeeze=False)
    tokens = np.arange(len(target_probs))
    for axes, (title, law) in zip(panels[0], students.items(), strict=True):
        axes.bar(tokens, target_probs, 0.9, color="#DDDDDD", edgecolor="#777777", label="p, the target")
        both = np.minimum(target_probs, law)
        axes.bar(tokens, both, 0.9, color=MICRO, hatch="//", edgecolor="white", label="in both: accepted")
        axes.plot(tokens, law, color=ALARM, marker="s", markersize=3.5, linestyle="--", label="q, the student")
        axes.set(xlabel="token", title=title)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("probability")
    handles, names = panels[0][0].get_legend_handles_labels()
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    figure.legend(handles, names, loc="lower center", ncols=3, fontsize=9, frameon=False)
    return figure


def draw_curves(panels: Mapping[str, Mapping[str, Mapping[int, float]]]) -> Figure:
    """Draw acceptance on held-out text while students learn.

    Parameters
    ----------
    panels : title -> name of a loss -> steps done -> overlap
    """
    figure, axes_of = plt.subplots(1, len(panels), figsize=(5 * len(panels), 3.7), sharey=True, squeeze=False)
    for axes, (title, curves) in zip(axes_of[0], panels.items(), strict=True):
        for (name, curve), (colour, marker, dash) in zip(curves.items(), LINES, strict=False):
            axes.plot(list(curve), list(curve.values()), color=colour, marker=marker, linestyle=dash, label=name)
        axes.set(xlabel="steps", title=title)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, loc="best")
        axes.spines[["top", "right"]].set_visible(False)
    axes_of[0][0].set_ylabel("acceptance on held-out text")
    axes_of[0][0].set_ylim(bottom=0)
    figure.tight_layout()
    return figure


def draw_stages(
    inner: Sequence[tuple[int, int]], micro_step: float = 0.05, draft_step: float = 0.2, verify: float = 1.1
) -> Figure:
    """Draw who works when in one round with two models and with three. Times are an illustration, in target steps.

    Parameters
    ----------
    inner : sequence of (micro tokens, accepted)
        The inner rounds of one draft: each writes the accepted tokens and one of the draft model's own.
    """
    num_drafted = sum(accepted + 1 for _, accepted in inner)
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(10, 4.4), sharex=True)
    for token in range(num_drafted):
        _box(upper, token * draft_step, 0, draft_step, "draft", f"d{token + 1}")
    _box(upper, num_drafted * draft_step, 1, verify, "target", f"one pass over x, d1 … d{num_drafted}")
    left, written = 0.0, 0
    for count, accepted in inner:
        for _ in range(count):
            _box(lower, left, 0, micro_step, "micro", "")
            left += micro_step
        wide = draft_step * (1.15 if count else 1)
        first, last = written + 1, written + accepted + 1
        _box(lower, left, 1, wide, "draft", f"d{first}–d{last}" if last > first else f"d{first}")
        left, written = left + wide, last
    _box(lower, left, 2, verify, "target", f"one pass over x, d1 … d{num_drafted}")
    named = ((upper, "Two models", ("draft", "target")), (lower, "Three models", ("micro", "draft", "target")))
    for axes, title, lanes in named:
        axes.set(ylim=(-0.2, len(lanes)), title=title)
        axes.set_yticks(np.arange(len(lanes)) + 0.4, lanes)
        axes.spines[["top", "right"]].set_visible(False)
    lower.set(xlabel="time, in target steps (an illustration)", xlim=(-0.05, num_drafted * draft_step + verify + 0.1))
    figure.tight_layout()
    return figure


def _box(axes: Axes, left: float, bottom: float, width: float, level: str, word: str) -> None:
    colour, hatch = LEVELS[level]
    axes.add_patch(Rectangle((left, bottom), width, 0.8, facecolor=colour, hatch=hatch, edgecolor="white", alpha=0.65))
    if word:
        axes.text(left + width / 2, bottom + 0.4, word, ha="center", va="center", fontsize=8, bbox=PAPER)


def draw_bills(bills: Mapping[str, tuple[float, float, float, float]]) -> Figure:
    """Draw what a round costs, level by level, and what it gains.

    Parameters
    ----------
    bills : name -> (micro, draft, target, tokens)
        Seconds, or target steps, of each level in a round, and the tokens that the text gets.
    """
    figure, axes = plt.subplots(figsize=(9, 0.75 * len(bills) + 1.3))
    for place, (micro, draft, target, tokens) in enumerate(bills.values()):
        left = 0.0
        for (level, (colour, hatch)), width in zip(reversed(LEVELS.items()), (micro, draft, target), strict=True):
            label = level if place == 0 else None
            axes.barh(place, width, 0.6, left, color=colour, hatch=hatch, edgecolor="white", label=label)
            if width > 0.12:
                axes.text(left + width / 2, place, f"{width:.2f}", va="center", ha="center", fontsize=8, bbox=PAPER)
            left += width
        word = f"{left:.2f} for {tokens:.2f} tokens: {tokens / left:.2f}x" + (", SLOWER" if tokens < left else "")
        axes.text(left + 0.05, place, word, va="center", fontsize=9)
    axes.set_yticks(range(len(bills)), list(bills))
    axes.invert_yaxis()
    axes.set(xlabel="time of a round, in target steps", title="A third model can only save the draft's share")
    axes.set_xlim(0, axes.get_xlim()[1] * 1.45)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=3, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def draw_draft_cost(
    micro_steps: Sequence[float], num_draft_tokens: int, inner_draft_tokens: int, verify: float = 1.0
) -> Figure:
    """Draw the price of a draft token against the inner acceptance, in draft steps: below 1 the third model pays.

    Parameters
    ----------
    micro_steps : sequence of float
        T_m / T_d, a curve for each.
    num_draft_tokens, inner_draft_tokens : int
        K and k.
    verify : float
        The draft model's pass over a block, in its own steps.
    """
    figure, axes = plt.subplots(figsize=(7, 3.9))
    grid = np.linspace(0, 1, 11)
    for ratio, (colour, marker, dash) in zip(micro_steps, LINES, strict=False):
        cost = staged_draft_cost(grid, num_draft_tokens, inner_draft_tokens, 1.0, ratio, verify)
        axes.plot(grid, np.asarray(cost), color=colour, marker=marker, linestyle=dash, label=f"T_m = {ratio:g} T_d")
    axes.axhline(1, color=GREY, linewidth=2, linestyle=(0, (1, 1)), label="the draft alone")
    axes.set(xlabel="inner acceptance", ylabel="price of a draft token, in draft steps", ylim=(0, None))
    axes.set_title(f"Below the dotted line the third model pays (K = {num_draft_tokens}, k = {inner_draft_tokens})")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
