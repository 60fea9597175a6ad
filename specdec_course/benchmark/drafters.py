"""`specdec bench drafters`: every way to draft that a pair has, and plain decoding, in one run on the same prompts."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table

from specdec_course.benchmark.bench import bench, threads
from specdec_course.benchmark.options import Options
from specdec_course.benchmark.published import as_rows
from specdec_course.benchmark.report import Entry
from specdec_course.benchmark.tables import number
from specdec_ref.drafters.registry import DRAFTERS
from specdec_ref.pairs import Pair, load_pair

FIGURES = (
    "tokens_per_s",
    "num_draft_tokens",
    "emitted_per_round",
    "alpha",
    "draft_step_ms",
    "verify_ms",
    "predicted_speedup",
    "bill",
)


def bench_drafters(options: Options) -> dict[str, Any]:
    """Run every drafter that the pair has; `options.drafter` "all" means each one that is registered.

    Returns
    -------
    dict
        The report of `specdec bench pair`, without other engines, and `drafters`, `absent` and `published`.
    """
    threads(options)
    pair = load_pair(options.pair, dtype=options.dtype, device=options.device)
    wanted = tuple(DRAFTERS) if options.drafter in ("all", "best") else options.drafters
    names, absent = present(pair, wanted)
    if not names:
        raise ValueError(f"drafter={options.drafter!r}: {'; '.join(absent.values())}")
    report = bench([pair], replace(options, drafter=",".join(names)), [])
    return report | {"drafters": by_drafter(report["systems"]), "absent": absent, "published": as_rows()}


def present(pair: Pair, wanted: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """Return the drafters that the pair can be given, and of each other one why not."""
    names, absent = [], {}
    for name in wanted:
        try:
            pair.drafter(name)
            names.append(name)
        except ValueError as error:
            absent[name] = str(error)
    return names, absent


def by_drafter(systems: list[Entry]) -> dict[str, Any]:
    """Return, for each drafter, its figures by suite; `speedup` is over our plain loop in the same run."""
    found: dict[str, Any] = {}
    for system in systems:
        if system["method"] == "plain":
            continue
        by_suite = {
            suite: {"speedup": figures["measured_speedup"]} | {name: figures.get(name) for name in FIGURES}
            for suite, figures in system["results"].items()
        }
        for name in ("draft_step_ms", "verify_ms"):  # of all suites together: the median, since each has a K of its own
            known = [figures[name] for figures in by_suite.values() if figures[name] is not None]
            by_suite["all"][name] = statistics.median(known) if known else None
        found[system["method"]] = {
            "suites": by_suite,
            "extra_memory_bytes": system["weight_bytes"].get("draft", 0) + system["kv_bytes"].get("draft", 0),
        }
    return found


def show(report: dict[str, Any], console: Console) -> None:
    """Print a table of all drafters for each suite, the losses with their reasons, and the published figures."""
    machine, settings = report["machine"], report["settings"]
    console.print(
        f"{settings['target']}, {', '.join(settings['dtypes'])}, batch {settings['batch']}; {machine['processor']}, "
        f"threads: {machine['threads']}, torch {machine['torch']}"
    )
    for suite in (*settings["suites"], "all"):
        console.print(table(report["drafters"], suite))
    for line in (*losses(report["drafters"]), *(f"not run: {why}" for why in report["absent"].values())):
        console.print(line, markup=False, highlight=False)
    console.print(published_table(report["published"]))


def table(drafters: dict[str, Any], suite: str) -> Table:
    """Return one suite's figures, the fastest drafter first."""
    columns = ("", "speedup", "predicted", "tokens/s", "K", "per round", "alpha", "draft ms", "verify ms", "extra MB")
    found = Table(*columns, title=suite, title_justify="left")
    order = sorted(drafters, key=lambda name: -(drafters[name]["suites"][suite]["speedup"] or 0))
    for name in order:
        figures = drafters[name]["suites"][suite]
        found.add_row(
            name,
            number(figures["speedup"], 2),
            number(figures["predicted_speedup"], 2),
            number(figures["tokens_per_s"], 1),
            str(figures["num_draft_tokens"] or ""),
            number(figures["emitted_per_round"], 2),
            number(figures["alpha"], 2),
            number(figures["draft_step_ms"], 1),
            number(figures["verify_ms"], 1),
            number(drafters[name]["extra_memory_bytes"] / 1e6, 1),
        )
    return found


def losses(drafters: dict[str, Any]) -> list[str]:
    """Say of each drafter that is slower than plain decoding where its time goes."""
    return [
        f"SLOWER than plain: {name} on {suite}, {figures['speedup']:.2f}x, since {figures['bill']}."
        for name, entry in drafters.items()
        for suite, figures in entry["suites"].items()
        if figures["speedup"] is not None and figures["speedup"] < 1 and figures["bill"]
    ]


def published_table(rows: list[dict[str, str]]) -> Table:
    """Return the published figures as a table."""
    title = "published: other models on other machines, no promise for this one"
    found = Table("method", "speedup", "target", "hardware", "source", title=title, title_justify="left")
    for row in rows:
        found.add_row(*row.values())
    return found
