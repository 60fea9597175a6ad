"""The report as a figure for a talk: bars of tokens per second, and a title that says what was found."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from specdec_course.benchmark.report import Entry, fastest

# Colours that stay apart for colour-blind eyes (Okabe and Ito); drafting systems are hatched as well.
COLOURS = {"specdec": "#0072B2", "transformers": "#999999", "llama.cpp": "#E69F00"}
LABELS = {"specdec": "this course", "transformers": "transformers", "llama.cpp": "llama.cpp (C++, 4-bit weights)"}


def draw(report: dict[str, Any]) -> Figure:
    """Draw one panel of horizontal bars for each suite, and one for all together."""
    suites, systems = report["settings"]["suites"], report["systems"]
    names = [*suites, "all"] if len(suites) > 1 else suites
    columns = 1 if len(names) == 1 else 3 if len(names) > 4 else 2  # five panels and the legend: a slide
    rows = -(-len(names) // columns)
    width, height = 5.2 * columns + 4.4, rows * (0.42 * len(systems) + 1.3) + 1.6
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for panel, name in zip(panels.flat, names, strict=False):
        _bars(panel, systems, name)
    for panel in panels.flat[len(names) :]:
        panel.axis("off")
    full = panels.size == len(names)
    if full:
        place = (0.5, 0.3 / height)
        _legend(figure, systems, loc="lower center", ncols=3 if columns == 1 else 5, bbox_to_anchor=place)
    else:
        _legend(panels.flat[-1], systems, loc="center")
    size = 21 if columns > 1 else 16  # points; a bold letter is about 0.65 of its size wide
    lines = wrap(title(report), int(width * 72 / (0.65 * size)))
    figure.suptitle("\n".join(lines), fontsize=size, fontweight="bold")
    figure.text(0.5, 0.008, caption(report), ha="center", va="bottom", fontsize=12, color="#444444")
    figure.tight_layout(rect=(0, 1.0 / height if full else 0.03, 1, 0.99))
    return figure


def _bars(axes: Axes, systems: list[Entry], name: str) -> None:
    speeds = [system["results"][name]["tokens_per_s"] or 0.0 for system in systems]
    places = range(len(systems))
    bars = axes.barh(places, speeds, color=[COLOURS[system["engine"]] for system in systems], height=0.74)
    for bar, system, speed in zip(bars, systems, speeds, strict=True):
        if system["method"] != "plain":
            bar.set_hatch("//")
            bar.set_edgecolor("white")
        length = system["results"][name].get("num_draft_tokens")
        axes.annotate(
            f" {speed:.1f}" + (f"  (K = {length})" if length else ""),
            (speed, bar.get_y() + bar.get_height() / 2),
            va="center",
            fontsize=13,
            fontweight="bold" if speed == max(speeds) else "normal",
        )
    axes.set_yticks(places, [system["name"] for system in systems], fontsize=13)
    axes.set_ylim(len(systems) - 0.4, -0.6)  # the first system on top
    axes.set_xlim(0, 1.3 * max(*speeds, 1e-9))
    axes.set_title("all suites together" if name == "all" else name, fontsize=16, loc="left", fontweight="bold")
    axes.set_xlabel("tokens per second (longer is faster)", fontsize=13)
    axes.tick_params(axis="x", labelsize=12)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(place: Any, systems: list[Entry], **where: Any) -> None:
    from matplotlib.patches import Patch

    engines = dict.fromkeys(system["engine"] for system in systems)
    patches = [Patch(facecolor=COLOURS[engine], label=LABELS[engine]) for engine in engines]
    patches += [Patch(facecolor="white", edgecolor="black", label="plain")]
    patches += [Patch(facecolor="white", edgecolor="black", hatch="//", label="speculative")]
    place.legend(handles=patches, fontsize=14, frameon=False, **where)


def title(report: dict[str, Any]) -> str:
    """Return the finding in one line."""
    gain = report["ratios"]["spec_over_best_plain"]["all"]
    if gain is None:
        return "Too short to measure a speed"
    suites = report["settings"]["suites"]
    where = suites[0] if len(suites) == 1 else "all suites"
    temperature = report["settings"]["temperature"]
    how = "greedy" if temperature == 0 else f"temperature {temperature:g}"
    if gain >= 1:
        return f"Speculation is {gain:.2f}x as fast as the best plain decoder ({where}, {how})"
    return f"Speculation is a loss here: {gain:.2f}x the speed of the best plain decoder ({where}, {how})"


def caption(report: dict[str, Any]) -> str:
    """Say what was run, and on what."""
    machine, settings = report["machine"], report["settings"]
    device = machine["processor"] if machine["device"] in ("cpu", "mps") else machine["device"]
    return (
        f"{settings['target']}, {', '.join(settings['dtypes'])}, batch {settings['batch']}; {device}, "
        f"threads: {machine['threads']}, torch {machine['torch']}"
    )


def alt_text(report: dict[str, Any]) -> str:
    """Return what the figure shows, for those who do not see it."""
    lines = [f"Horizontal bars of tokens per second. {title(report)}."]
    for name in (*report["settings"]["suites"], "all"):
        best, plain = fastest(report["systems"], name), fastest(report["systems"], name, method="plain")
        if best and plain:
            speeds = [one["results"][name]["tokens_per_s"] for one in (best, plain)]
            lines.append(
                f"{name}: {best['name']} is fastest with {speeds[0]:.1f}, the fastest plain decoder is {plain['name']} "
                f"with {speeds[1]:.1f}."
            )
    return " ".join(lines)


def save(report: dict[str, Any], path: Path) -> None:
    """Write the figure as a PNG that carries its text as a description."""
    draw(report).savefig(path, format="png", dpi=110, metadata={"Description": alt_text(report)})
