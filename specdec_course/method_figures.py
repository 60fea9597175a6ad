"""Every way to draft beside the others: the bill of a round measured here, the recorded run, and published figures.

The recorded run is the report of `specdec bench drafters --pair smol --suite all --json docs/benchmarks/drafters.json`.
Nothing here is typed by hand: where that file is missing, these functions say so.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from specdec_course.benchmark import suites
from specdec_course.benchmark.published import PUBLISHED
from specdec_course.benchmark.run import alternating
from specdec_course.benchmark.systems import WORDS, draft_bytes, record
from specdec_course.errors import CourseError
from specdec_ref.decode import generate, speculate
from specdec_ref.measure import Run, time_draft_step, time_passes
from specdec_ref.pairs import Pair
from specdec_ref.rows import Stop
from specdec_ref.sampling import SamplingSettings
from specdec_ref.totals import Totals

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "docs" / "benchmarks" / "drafters.json"
NEW, OLD, ALARM = "#0072B2", "#BBBBBB", "#D55E00"  # Okabe and Ito
NUM_DRAFT_TOKENS = 3
NEW_TOKENS = 40


def measured_here(pair: Pair, names: Sequence[str], num_draft_tokens: int = NUM_DRAFT_TOKENS) -> str:
    """Decode two held-out prompts plainly and with each drafter, in turns, and return the bill of a round as a table.

    Parameters
    ----------
    pair : Pair
        Its target decodes greedily.
    names : sequence of str
        Drafters, by their names in the registry.
    num_draft_tokens : int
        K; for trees, how deep they are.
    """
    prompts = [suites.encode(pair, suites.load(name).tuning[0]) for name in ("chat", "code-edit")]
    drafters = {name: pair.drafter(name) for name in names}
    runs: dict[str, list[Run]] = {name: [] for name in ("plain", *names)}
    stop, settings = Stop(token_ids=pair.eos_token_ids), SamplingSettings(0.0)
    for turn, prompt in enumerate((prompts[0], *prompts)):  # the first one warms up
        budget = NEW_TOKENS if turn else 6
        for name in alternating(list(runs), turn):
            if name == "plain":
                rounds = generate(pair.target, [prompt], settings, max_new_tokens=budget, stop=stop)
            else:
                rounds = speculate(
                    pair.target,
                    drafters[name],
                    [prompt],
                    settings,
                    num_draft_tokens=num_draft_tokens,
                    max_new_tokens=budget,
                    stop=stop,
                )
            run = record(rounds, pair.target)
            if turn:
                runs[name].append(run)
    plain = Totals(runs["plain"]).tokens_per_s or 0.0
    passes = time_passes(pair.target, tuple(range(1, 18, 4)), repeats=3)
    lines = [_line("", "tokens a round", "drafted", "ms drafting", "ms a round", "extra MB", "speedup")]
    lines.append(_line("plain", "1.00", "0.0", "0.0", f"{1e3 / plain:.1f}" if plain else "", "0", "1.00"))
    for name, drafter in drafters.items():
        step = time_draft_step(drafter, pair.target, prompts[1:], num_draft_tokens, settings, repeats=3) or 0.0
        lines.append(_measured_line(name, runs[name], step, draft_bytes(pair, drafter).get("draft", 0), plain))
    longest = max(passes)
    lines.append(f"A pass of the target over {longest} tokens takes {passes[longest] / passes[1]:.2f} times as long as")
    lines.append("one over a single token.")
    return "\n".join(lines)


def _measured_line(name: str, runs: Sequence[Run], step: float, extra: int, plain: float) -> str:
    totals = Totals(runs)
    rounds = sum(len(run.rounds) - 1 for run in runs)
    drafted = sum(sum(result.num_drafted) for run in runs for result in run.rounds[1:])
    if not rounds or not plain:
        return _line(name, "no round", "", "", "", "", "")
    return _line(
        WORDS.get(name, name),
        f"{totals.decode_tokens / rounds:.2f}",
        f"{drafted / rounds:.1f}",
        f"{1e3 * step * drafted / rounds:.1f}",
        f"{1e3 * totals.decode_seconds / rounds:.1f}",
        f"{extra / 1e6:.0f}",
        f"{(totals.tokens_per_s or 0.0) / plain:.2f}",
    )


def _line(name: str, *cells: str) -> str:
    return f"{name:<22}" + "".join(f"{cell:>15}" for cell in cells).rstrip()


def report(path: Path = RECORDED) -> dict[str, Any]:
    """Read the recorded run.

    Raises
    ------
    CourseError
        If there is none, or it cannot be read.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        _ = found["drafters"], found["machine"]["processor"], found["settings"]["target"]
        return found
    except FileNotFoundError:
        raise CourseError(
            f"{path.name} is not there: `specdec bench drafters --pair smol --suite all --json {path}` records it"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CourseError(f"{path} cannot be read as a report of `specdec bench drafters`: {error}") from error


def recorded(names: Sequence[str], path: Path = RECORDED) -> str:
    """Return the recorded bill of a round over all suites for these drafters, and on what it was measured."""
    found = report(path)
    machine, settings = found["machine"], found["settings"]
    lines = [
        f"Recorded: {settings['target']}, {', '.join(settings['dtypes'])}, on {machine['processor']}, "
        f"{machine['threads']} threads.",
        _line("", "tokens a round", "K", "ms per draft", "ms a check", "extra MB", "speedup"),
    ]
    for name in names:
        entry = found["drafters"].get(name)
        if entry is None:
            lines.append(_line(WORDS.get(name, name), "not in this run"))
            continue
        all_suites, extra = entry["suites"]["all"], entry["extra_memory_bytes"]
        cells = [_number(all_suites[key], 2) for key in ("emitted_per_round",)]
        cells.append(_lengths(entry["suites"]))
        cells += [_number(all_suites[key], 1) for key in ("draft_step_ms", "verify_ms")]
        lines.append(_line(WORDS.get(name, name), *cells, f"{extra / 1e6:.0f}", _number(all_suites["speedup"], 2)))
    lines += [f"{WORDS.get(name, name)}: {training_cost(name)}" for name in names]
    return "\n".join(lines)


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _lengths(by_suite: dict[str, Any]) -> str:
    """Return the draft lengths of the suites, "2-5"."""
    found = sorted({figures["num_draft_tokens"] for figures in by_suite.values() if figures["num_draft_tokens"]})
    return "" if not found else "-".join(str(value) for value in dict.fromkeys((found[0], found[-1])))


def training_cost(name: str, pair: str = "smol") -> str:
    """Tell what was trained for a drafter, from the record beside its weights."""
    folders = {
        "model": f"{pair}-draft",
        "candidates": f"{pair}-draft",
        "eagle": f"{pair}-eagle",
        "eagle-tree": f"{pair}-eagle",
        "medusa": f"{pair}-medusa",
        "other-tokenizer": "tiny-draft",
        "shared-tokens": "tiny-draft",
    }
    if name == "ngram":
        return "nothing is trained"
    if name == "layer-skip":
        return "nothing is trained; its layers are searched for"
    if name == "staged":
        return f"its draft model is that of {pair}; n-gram lookup, where nothing is trained, drafts for it"
    if name not in folders:
        raise ValueError(f"name={name!r} is not a drafter of this course")
    curve = json.loads((ROOT / "models" / folders[name] / "curve.json").read_text(encoding="utf-8"))
    steps = curve["recipe"]["schedule"]["steps"]
    batch = curve["recipe"]["plan"]["batch_size"]
    return f"trained for {steps:,} steps of {batch} texts (models/{folders[name]})"


def draw_methods(names: Sequence[str], new: Sequence[str] = (), path: Path = RECORDED) -> tuple[Figure, str]:
    """Draw the speedup of each drafter on each kind of prompt, from the recorded run, and return the alt text too.

    Parameters
    ----------
    names : sequence of str
        Drafters, by their names in the registry; one that is not in the run is left out.
    new : sequence of str
        Those that stand out.
    """
    found = report(path)
    shown = [name for name in names if name in found["drafters"]]
    kinds = [*found["settings"]["suites"], "all"]
    figure, axes = plt.subplots(figsize=(8.5, 4))
    width = 0.8 / max(1, len(shown))
    parts = []
    hatches = ("", "//", "..", "xx", "--", "\\\\", "++", "oo", "**", "||")
    for place, name in enumerate(shown):
        heights = [found["drafters"][name]["suites"][kind]["speedup"] or 0.0 for kind in kinds]
        lefts = np.arange(len(kinds)) + (place - (len(shown) - 1) / 2) * width
        colour, label = NEW if name in new else OLD, WORDS.get(name, name)
        bars = axes.bar(
            lefts, heights, width, color=colour, hatch=hatches[place % len(hatches)], edgecolor="white", label=label
        )
        for number in axes.bar_label(bars, fmt="%.2f", fontsize=7, rotation=90, padding=2):
            number.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.3})  # readable across the line at 1
        parts.append(f"{label} {heights[-1]:.2f} over all, from {min(heights):.2f} to {max(heights):.2f}")
    axes.axhline(1, color=ALARM, linestyle="--", linewidth=1, label="plain decoding")
    axes.set_xticks(range(len(kinds)), kinds)
    axes.set(ylabel="speedup over plain decoding", title="One run, one machine, the same prompts")
    axes.margins(y=0.22)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=4, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    alt = (
        f"Bars of the speedup over plain decoding on {', '.join(kinds)}, one for each way to draft, with a line at 1. "
        + "; ".join(parts)
        + "."
    )
    return figure, alt


def published(methods: Sequence[str] = ()) -> str:
    """Return published speedups of these methods, or of all, as a table.

    Raises
    ------
    ValueError
        If a method has no published figure here.
    """
    known = {one.method for one in PUBLISHED}
    unknown = [method for method in methods if method not in known]
    if unknown:
        raise ValueError(f"methods={unknown[0]!r} has no published figure here; there are {', '.join(sorted(known))}")
    lines = ["Published: other models on other machines, no promise for yours."]
    for one in PUBLISHED:
        if not methods or one.method in methods:
            lines.append(f"{one.method:<15}{one.speedup:<12}{one.target}; {one.hardware}; {one.source}")
    return "\n".join(lines)
