"""The economics of a round: drag alpha, K, T_d and T_v, and watch where speculation pays and which K is the best."""

from __future__ import annotations

import math
from typing import NamedTuple

import ipywidgets
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from specdec_course.figures import as_html
from specdec_course.widgets import show_widget
from specdec_ref.economics import best_num_draft_tokens, break_even_alpha, expected_tokens, speedup

MAX_DRAFT_TOKENS = 12
# Okabe and Ito's colours; markers and dashes say the same without colour.
LINE, CHOSEN, BEST, GREY = "#0072B2", "#D55E00", "#009E73", "#555555"


class Setting(NamedTuple):
    """Where the four sliders stand. T_d and T_v are in target steps, so T_t is 1."""

    alpha: float = 0.8
    num_draft_tokens: int = 5
    draft_cost: float = 0.1
    verify_cost: float = 1.0


class Worth(NamedTuple):
    """What a setting comes to.

    Attributes
    ----------
    emitted : float
        E, tokens of a round.
    cost : float
        K T_d + T_v, in target steps.
    gain : float
        Speedup over plain decoding. With K = 0 it is 1: plain decoding itself.
    best : int
        The K with the largest speedup, 0 where nothing pays.
    best_gain : float
        Its speedup.
    break_even : float
        The alpha above which the chosen K pays; NaN if no alpha is enough.
    """

    emitted: float
    cost: float
    gain: float
    best: int
    best_gain: float
    break_even: float


def worth(setting: Setting) -> Worth:
    """Return what the round of a setting brings, costs and is worth."""
    alpha, count, draft, verify = setting
    curve = gains(setting)
    best = int(best_num_draft_tokens(alpha, draft, verify, MAX_DRAFT_TOKENS))
    emitted, cost = (float(expected_tokens(alpha, count)), count * draft + verify) if count else (1.0, 1.0)
    break_even = float(break_even_alpha(count, draft, verify)) if count else 0.0
    return Worth(emitted, cost, float(curve[count]), best, float(curve[best]), break_even)


def gains(setting: Setting) -> np.ndarray:
    """Return the speedup for K = 0, 1, ..., `MAX_DRAFT_TOKENS`; K = 0 is plain decoding."""
    lengths = np.arange(MAX_DRAFT_TOKENS + 1)
    curve = np.array(speedup(setting.alpha, lengths, setting.draft_cost, setting.verify_cost))
    curve[0] = 1.0
    return curve


def describe(setting: Setting) -> str:
    """Say in words what the figure shows."""
    found = worth(setting)
    best = (
        f"The best K is {found.best}, with a speedup of {found.best_gain:.2f}."
        if found.best
        else "The best K is 0: do not speculate."
    )
    if not setting.num_draft_tokens:
        return f"K = 0 is plain decoding: one token for one target step. {best}"
    if found.gain >= 1:
        verdict = f"{found.gain:.2f} times as fast as plain decoding"
    else:
        verdict = f"slower than plain decoding, {found.gain:.2f} times its speed"
    if math.isnan(found.break_even):
        edge = "With this bill no alpha is enough to break even."
    elif found.break_even <= 0:
        edge = "With this bill any alpha breaks even."
    else:
        edge = f"It breaks even at alpha = {found.break_even:.2f}."
    return (
        f"With alpha = {setting.alpha:.2f}, K = {setting.num_draft_tokens}, T_d = {setting.draft_cost:.2f} T_t and "
        f"T_v = {setting.verify_cost:.2f} T_t a round brings {found.emitted:.2f} tokens and costs {found.cost:.2f} "
        f"target steps: {verdict}. {edge} {best}"
    )


def draw(setting: Setting) -> Figure:
    """Draw the speedup over K for this alpha, and over K and alpha as a map with its break-even line."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    _draw_curve(left, setting)
    _draw_map(right, setting)
    figure.tight_layout()
    return figure


def _draw_curve(axes: Axes, setting: Setting) -> None:
    curve, found = gains(setting), worth(setting)
    axes.plot(curve, color=LINE, marker=".", label=f"alpha = {setting.alpha:.2f}")
    axes.axhline(1, color=GREY, linestyle="--", label="break-even: plain decoding")
    axes.plot([setting.num_draft_tokens], [found.gain], "s", color=CHOSEN, markersize=11, label="your K")
    axes.plot([found.best], [found.best_gain], "*", color=BEST, markersize=16, label=f"best K = {found.best}")
    axes.set(xlabel="K, tokens drafted a round", ylabel="speedup", ylim=(0, max(2.0, 1.15 * curve.max())))
    axes.set_xticks(range(0, MAX_DRAFT_TOKENS + 1, 2))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_map(axes: Axes, setting: Setting) -> None:
    lengths, alphas = np.arange(1, MAX_DRAFT_TOKENS + 1), np.linspace(0, 1, 41)
    surface = np.asarray(speedup(alphas[:, None], lengths, setting.draft_cost, setting.verify_cost))
    levels = [0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 13]
    middle = TwoSlopeNorm(vcenter=1, vmin=0, vmax=6)  # white where nothing is gained or lost
    axes.contourf(lengths, alphas, surface, levels=[0, *levels], cmap="PuOr", norm=middle)
    lines = axes.contour(lengths, alphas, surface, levels=levels, colors="black", linewidths=0.6)
    axes.clabel(lines, fmt="%g", fontsize=8)
    if surface.min() < 1 < surface.max():
        axes.contour(lengths, alphas, surface, levels=[1], colors=CHOSEN, linewidths=3)
    axes.plot([], [], color=CHOSEN, linewidth=3, label="break-even: 1")
    best = np.asarray(best_num_draft_tokens(alphas, setting.draft_cost, setting.verify_cost, MAX_DRAFT_TOKENS))
    pays = best > 0
    axes.plot(best[pays], alphas[pays], color="black", linestyle=":", linewidth=2.5, label="best K of each alpha")
    if setting.num_draft_tokens:
        axes.plot(
            [setting.num_draft_tokens], [setting.alpha], "s", color=CHOSEN, markersize=11, markeredgecolor="white"
        )
    title = "speedup: orange loses, purple gains"
    axes.set(xlabel="K, tokens drafted a round", ylabel="alpha", title=title, xlim=(1, MAX_DRAFT_TOKENS))
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False)


def picture(setting: Setting) -> str:
    """Return the figure as HTML, with its description as the image's text and below it."""
    words = describe(setting)
    return f"{as_html(draw(setting), words)}<p>{words}</p>"


def explore(setting: Setting | None = None) -> None:
    """Show four sliders and the figure that follows them; without a kernel, the figure of `setting`."""
    setting = setting or Setting()
    look = {"style": {"description_width": "14em"}, "layout": ipywidgets.Layout(width="38em")}
    sliders = [
        ipywidgets.FloatSlider(setting.alpha, min=0, max=1, step=0.05, description="alpha", **look),
        ipywidgets.IntSlider(
            setting.num_draft_tokens, min=0, max=MAX_DRAFT_TOKENS, description="K, tokens drafted", **look
        ),
        ipywidgets.FloatSlider(
            setting.draft_cost, min=0, max=1, step=0.05, description="T_d, draft step / T_t", **look
        ),
        ipywidgets.FloatSlider(setting.verify_cost, min=1, max=6, step=0.1, description="T_v, the pass / T_t", **look),
    ]
    view = ipywidgets.HTML(picture(setting))

    def follow(change: object) -> None:
        view.value = picture(Setting(*(slider.value for slider in sliders)))

    for slider in sliders:
        slider.observe(follow, names="value")
    show_widget(ipywidgets.VBox([*sliders, view]), picture(setting), describe(setting))
