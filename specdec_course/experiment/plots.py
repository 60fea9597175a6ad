"""The figures of an experiment, each with its text for those who do not see it. Lines differ in more than colour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specdec_course.experiment.verdict import Measured, name, word
from specdec_ref.draft_shapes import expected_tokens_by_length

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")  # Okabe and Ito
MARKERS = ("o", "s", "^", "D", "v")
DASHES = {"short": ":", "long": "-"}


def speedups(cells: Sequence[Measured]) -> tuple[Figure, str]:
    """Draw the speedup against the batch, a panel for each text, a line for each temperature and length."""
    ran = [cell for cell in cells if "not_run" not in cell and cell["speedup"]["median"] is not None]
    figure, panels = _panels(ran, "Whole requests: how many times as fast with speculation")
    for text, axes in panels.items():
        temperatures = sorted({cell["temperature"] for cell in ran})
        for (temperature, length), line in _grouped(ran, text, ("temperature", "length")).items():
            batches = [cell["batch"] for cell in line]
            middle = [cell["speedup"]["median"] for cell in line]
            below = [cell["speedup"]["median"] - cell["speedup"]["low"] for cell in line]
            above = [cell["speedup"]["high"] - cell["speedup"]["median"] for cell in line]
            look = temperatures.index(temperature) % len(COLOURS)
            axes.errorbar(
                batches,
                middle,
                [below, above],
                color=COLOURS[look],
                marker=MARKERS[look],
                markerfacecolor="white" if length == "short" else COLOURS[look],
                linestyle=DASHES.get(length, "--"),
                capsize=3,
                label=f"T = {temperature:g}, {length}",
            )
        axes.axhline(1, color="black", linewidth=1)
        axes.annotate("as fast as without", (0.02, 1), xycoords=("axes fraction", "data"), va="bottom", fontsize=9)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted({cell["batch"] for cell in ran}), [str(n) for n in sorted({c["batch"] for c in ran})])
        axes.minorticks_off()
        axes.set(xlabel="texts decoded together (batch)", ylabel="speedup; below 1 a slowdown")
        axes.legend(fontsize=9)
    lines = [f"{name(cell)}: {cell['speedup']['median']:.2f}, {word(cell)}" for cell in ran]
    return figure, "Speedup of whole requests by batch, a panel for each text. " + "; ".join(lines) + "."


def survival(cells: Sequence[Measured]) -> tuple[Figure, str]:
    """Draw how often the first 1, 2, ... tokens of a draft are accepted, beside what one constant alpha would give."""
    chosen = _single_rows(cells)
    figure, panels = _panels(chosen, "How far a draft gets: the share of rounds in which so many tokens are accepted")
    parts = []
    for text, axes in panels.items():
        for number, cell in enumerate(one for one in chosen if one["text"] == text):
            curve, alpha = cell["on"]["survival"], cell["on"]["alpha"]
            places = list(range(1, len(curve) + 1))
            colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
            axes.plot(places, curve, color=colour, marker=marker, label=f"T = {cell['temperature']:g}, measured")
            if alpha is not None:
                constant = [alpha**place for place in places]
                axes.plot(places, constant, color=colour, linestyle="--", label=f"constant alpha {alpha:.2f}")
            tokens = expected_tokens_by_length(curve)[-1]
            shares = ", ".join(f"{share:.2f}" for share in curve)
            parts.append(f"{text}, T = {cell['temperature']:g}: {shares}, so {tokens:.2f} tokens from a full draft")
        axes.set(xlabel="draft tokens, from the first", ylabel="share of rounds with a draft", ylim=(0, 1.02))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if axes.lines:
            axes.legend(fontsize=9)
    return figure, "Measured survival by position at the smallest batch, long answers. " + "; ".join(parts) + "."


def accepted(cells: Sequence[Measured]) -> tuple[Figure, str]:
    """Draw the distribution of accepted tokens in a round, a panel for each text, bars for each temperature."""
    chosen = _single_rows(cells)
    figure, panels = _panels(chosen, "Accepted tokens in a round that had a draft")
    parts = []
    for text, axes in panels.items():
        members = [cell for cell in chosen if cell["text"] == text]
        for number, cell in enumerate(members):
            counts = cell["on"]["accepted_per_round"]
            total = sum(counts.values()) or 1
            width = 0.8 / len(members)
            places = [int(count) + (number - (len(members) - 1) / 2) * width for count in counts]
            shares = [value / total for value in counts.values()]
            hatch = ("", "//", "..", "xx", "--")[number % 5]
            label = f"T = {cell['temperature']:g}"
            colour = COLOURS[number % len(COLOURS)]
            axes.bar(places, shares, width, color=colour, hatch=hatch, edgecolor="white", label=label)
            listed = ", ".join(f"{count} in {share:.0%}" for count, share in zip(counts, shares, strict=True))
            parts.append(f"{text}, T = {cell['temperature']:g}: {listed or 'no round had a draft'}")
        axes.set(xlabel="accepted tokens", ylabel="share of rounds")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if axes.patches:
            axes.legend(fontsize=9)
    return figure, "Accepted tokens in a round, smallest batch, long answers. " + "; ".join(parts) + "."


def _panels(cells: Sequence[Measured], title: str) -> tuple[Figure, dict[str, Axes]]:
    texts = list(dict.fromkeys(cell["text"] for cell in cells))
    figure = Figure(figsize=(5.4 * max(1, len(texts)), 4.2), layout="constrained")
    figure.suptitle(title, fontsize=13)
    panels = {text: figure.add_subplot(1, len(texts), place + 1) for place, text in enumerate(texts)}
    for text, axes in panels.items():
        axes.set_title(text, loc="left", fontweight="bold")
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


def _grouped(cells: Sequence[Measured], text: str, keys: tuple[str, ...]) -> dict[tuple[Any, ...], list[Measured]]:
    found: dict[tuple[Any, ...], list[Measured]] = {}
    for cell in cells:
        if cell["text"] == text:
            found.setdefault(tuple(cell[key] for key in keys), []).append(cell)
    return found


def _single_rows(cells: Sequence[Measured]) -> list[Measured]:
    """Return the cells of the smallest batch and the longest answers: acceptance does not depend on the batch."""
    ran = [cell for cell in cells if "not_run" not in cell]
    batch = min((cell["batch"] for cell in ran), default=1)
    most = max((cell["max_new_tokens"] for cell in ran), default=0)
    return [cell for cell in ran if cell["batch"] == batch and cell["max_new_tokens"] == most]
