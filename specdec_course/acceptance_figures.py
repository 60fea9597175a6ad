"""Figures about accepting and correcting: wrong laws beside the right one, shares of a colour, overlap, a judged block.

No figure depends on colour alone: bars carry a hatch and their number, lines a dash pattern and a name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from specdec_course.figures import LOOKS

PAPER = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5}  # keeps a text on a hatch readable


def draw_laws(target_probs: Sequence[float], laws: Mapping[str, Sequence[float]], columns: int = 3) -> Figure:
    """Draw laws as bars, a panel each, with the target's law as lines across them.

    Parameters
    ----------
    target_probs : sequence of float, [V]
        p, drawn as a line over each bar. Tokens are numbered from 0.
    laws : mapping of str to sequence of float, [V]
        What each rule emits, by the panel's title. A bar that misses its line is hatched as refused.
    columns : int
        Panels side by side.
    """
    rows = -(-len(laws) // columns)
    figure, panels = plt.subplots(rows, columns, figsize=(3.3 * columns, 2.4 * rows), sharey=True, squeeze=False)
    for axes in panels.flat[len(laws) :]:
        axes.axis("off")
    for axes, (name, law) in zip(panels.flat, laws.items(), strict=False):
        for token, (got, wanted) in enumerate(zip(law, target_probs, strict=True)):
            colour, hatch, _ = LOOKS["accepted" if abs(got - wanted) < 1e-9 else "refused"]
            axes.bar(token, got, 0.7, color=colour, hatch=hatch, edgecolor="white")
            axes.plot([token - 0.42, token + 0.42], [wanted, wanted], color="black", linewidth=2.5)
            axes.text(token, 0.03, f"{got:.3f}", ha="center", fontsize=9, bbox=PAPER)
        axes.set(xticks=range(len(law)), ylim=(0, max(max(law) for law in laws.values()) + 0.1))
        axes.set_title(name, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    return figure


def draw_shares(draws: Sequence[int], lines: Mapping[str, Sequence[float]], wanted: float, reach: float) -> Figure:
    """Draw how the share of one token settles as draws go on, with the band a right rule stays in.

    Parameters
    ----------
    draws : sequence of int, [N]
        How many draws were made at each point.
    lines : mapping of str to sequence of float, [N]
        The share among the draws so far, by the rule's name. Four at most.
    wanted : float
        The target's probability.
    reach : float
        Half the width of the band, in standard deviations of the share.
    """
    figure, axes = plt.subplots(figsize=(8, 3.4))
    spread = [reach * (wanted * (1 - wanted) / number) ** 0.5 for number in draws]
    band = [wanted - s for s in spread], [wanted + s for s in spread]
    axes.fill_between(draws, *band, color="#BBBBBB", alpha=0.5, label="a right rule stays in here")
    looks = [("#009E73", "-"), ("#D55E00", "--"), ("#0072B2", "-."), ("#CC79A7", ":")]
    for (name, shares), (colour, dash) in zip(lines.items(), looks, strict=False):
        axes.plot(draws, shares, dash, color=colour, label=name, linewidth=1.8)
    axes.axhline(wanted, color="black", linewidth=0.8)
    axes.set(xscale="log", xlabel="draws", ylabel="share of red", ylim=(wanted - 0.3, wanted + 0.3))
    axes.legend(fontsize=9, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def draw_overlap(target_probs: Sequence[float], draft_probs: Sequence[float]) -> Figure:
    """Draw p and q on top of each other: what they share is the acceptance rate.

    Parameters
    ----------
    target_probs, draft_probs : sequence of float, [V]
        p and q.
    """
    figure, axes = plt.subplots(figsize=(6.5, 3.2))
    pairs = list(zip(target_probs, draft_probs, strict=True))
    shared = [min(pair) for pair in pairs]
    parts = [
        ("accepted", "in both: min(p, q)", shared, [0.0] * len(pairs)),
        ("refused", "only in q", [q - low for (_, q), low in zip(pairs, shared, strict=True)], shared),
        ("correction", "only in p", [p - low for (p, _), low in zip(pairs, shared, strict=True)], shared),
    ]
    for kind, label, heights, floor in parts:
        colour, hatch, _ = LOOKS[kind]
        axes.bar(
            range(len(pairs)), heights, 0.8, bottom=floor, color=colour, hatch=hatch, edgecolor="white", label=label
        )
    axes.set(xlabel="token", ylabel="probability", xticks=range(len(pairs)))
    axes.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, 1.17), ncols=3, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def draw_block(tokens: Sequence[str], ratios: Sequence[float], uniforms: Sequence[float], num_accepted: int) -> Figure:
    """Draw a judged block: the K+1 rows of the target's pass, and what each was used for.

    Parameters
    ----------
    tokens : sequence of str, [K]
        The draft.
    ratios, uniforms : sequence of float, [K]
        min(1, p/q) of each draft token, and the uniform number it was judged with.
    num_accepted : int
        Length of the accepted prefix, 0..K.
    """
    figure, axes = plt.subplots(figsize=(9, 0.62 * (len(tokens) + 1) + 0.7))
    for row in range(len(tokens) + 1):
        kind, note = _use_of_row(row, tokens, ratios, uniforms, num_accepted)
        colour, hatch, _ = LOOKS[kind]
        axes.add_patch(Rectangle((0, -row), 1.6, 0.82, facecolor=colour, hatch=hatch, edgecolor="white", alpha=0.75))
        axes.text(-0.15, 0.41 - row, f"row {row}", ha="right", va="center", fontsize=11)
        name = tokens[row] if row < len(tokens) else "(no draft)"
        axes.text(0.8, 0.41 - row, name, ha="center", va="center", family="monospace", fontsize=11, bbox=PAPER)
        axes.text(1.8, 0.41 - row, note, ha="left", va="center", fontsize=10)
    axes.set(xlim=(-0.9, 8.2), ylim=(-len(tokens) - 0.1, 1.0))
    axes.axis("off")
    return figure


def _use_of_row(
    row: int, tokens: Sequence[str], ratios: Sequence[float], uniforms: Sequence[float], num_accepted: int
) -> tuple[str, str]:
    """Return the look of a row of the block, and its story."""
    if row == len(tokens):
        used = row == num_accepted
        return ("bonus", "all passed: the bonus token comes from here") if used else ("discarded", "not used: no bonus")
    verdict = f"u = {uniforms[row]:.2f}, min(1, p/q) = {ratios[row]:.2f}"
    passed = uniforms[row] < ratios[row]
    if row < num_accepted:
        return "accepted", f"{verdict}: accepted"
    if row == num_accepted:
        return "refused", f"{verdict}: refused, and the correction comes from this row"
    return "discarded", f"{verdict}: {'would pass' if passed else 'would fail'}, but stands after a refused token"
