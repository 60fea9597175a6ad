"""The report on a terminal: one table for all suites together, one for each suite, and sentences."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from specdec_course.benchmark.report import Entry

TIE = 1e-3  # two logits nearer than this may change places by rounding


def show(report: dict[str, Any], console: Console) -> None:
    """Print everything a reader wants to see."""
    machine, settings = report["machine"], report["settings"]
    console.print(
        f"{settings['target']}, draft: {settings['draft']}; {', '.join(settings['dtypes'])}; "
        f"{machine['processor']}, threads: {machine['threads']}, torch {machine['torch']}, "
        f"transformers {machine['transformers']}"
    )
    names = [*settings["suites"], "all"] if len(settings["suites"]) > 1 else settings["suites"]
    for name in names:
        console.print(table(report["systems"], name))
    sizes, peak = memory(report)
    console.print(sizes)
    lines = [peak, *texts(report), *choices(report), *bills(report), *ratio_lines(report), *report["findings"]]
    for line in lines:  # what was found comes last: it stays in sight
        console.print(line, markup=False, highlight=False)


def table(systems: list[Entry], suite: str) -> Table:
    """Return the figures of one suite."""
    columns = (
        "",
        "tokens/s",
        "first token ms",
        "ms per token p50 / p95",
        "K",
        "per round",
        "alpha",
        "predicted, real",
    )
    found = Table(*columns, title=suite, title_justify="left")
    for system in systems:
        figures = system["results"][suite]
        gaps = figures["inter_token_ms"]
        found.add_row(
            system["name"],
            number(figures["tokens_per_s"], 1),
            number(figures["first_token_ms"], 0),
            f"{number(gaps['p50'], 0)} / {number(gaps['p95'], 0)}",
            str(figures.get("num_draft_tokens", "")),
            number(figures["emitted_per_round"], 2) if "emitted_per_round" in figures else "",
            number(figures["alpha"], 2) if "alpha" in figures else "",
            f"{number(figures['predicted_speedup'], 2)}, {number(figures['measured_speedup'], 2)}"
            if "predicted_speedup" in figures
            else "",
        )
    return found


def choices(report: dict[str, Any]) -> list[str]:
    """Say which draft length was chosen for each suite, and why."""
    lines = []
    for system in report["systems"]:
        reasons = [
            f"  {suite}: {figures['reason']}" for suite, figures in system["results"].items() if "reason" in figures
        ]
        if reasons:
            lines += [f"Best K of {system['name']}:", *reasons]
    return lines


def bills(report: dict[str, Any]) -> list[str]:
    """Show the times of single steps, and where a slower speculative decoder of ours lost its time."""
    lines = []
    for times in report["times"]:
        passes = ", ".join(f"{ms:.4g} ms over {length}" for length, ms in times["pass_ms"].items())
        drafts = ", ".join(f"{ms:.3g} ms by {name}" for name, ms in times["draft_step_ms"].items())
        lines.append(f"{times['dtype']}, batch {times['batch']}: a target pass takes {passes}; a draft token {drafts}.")
    for system in report["systems"]:
        for suite, figures in system["results"].items():
            gain = figures.get("measured_speedup")
            if gain is not None and gain < 1 and "bill" in figures:
                lines.append(f"SLOWER than plain: {system['name']} on {suite}, {gain:.2f}x, since {figures['bill']}.")
    return lines


def ratio_lines(report: dict[str, Any]) -> list[str]:
    """Print the ratios of totals."""
    lines = []
    for name, values in report["ratios"].items():
        if name == "spec_over_transformers_assisted_same_drafter":
            for drafter, by_suite in values.items():
                lines.append(_ratio_line(f"{name}[{drafter}]", by_suite))
        else:
            lines.append(_ratio_line(name, values))
    return lines


def _ratio_line(name: str, by_suite: dict[str, float | None]) -> str:
    return f"{name}: " + ", ".join(f"{suite} {number(value, 2)}" for suite, value in by_suite.items())


def memory(report: dict[str, Any]) -> tuple[Table, str]:
    """Return weights and caches of each system, computed, and a line on the peak of the process, measured."""
    title = "memory in MB, computed from shapes (packed copies: at most; keys and values: of the longest text)"
    found = Table("", "target", "packed copies", "draft", "keys, values", title=title, title_justify="left")
    for system in report["systems"]:
        sizes = [system["weight_bytes"].get(part) for part in ("target", "packed", "draft")]
        sizes.append(sum(system["kv_bytes"].values()) or None)
        found.add_row(system["name"], *("" if size is None else f"{size / 1e6:.1f}" for size in sizes))
    peak = report["process_peak_bytes"]
    if peak is None:
        return found, "The system does not tell the peak of the process."
    return found, f"The whole process, with all systems together, held {peak / 1e6:.0f} MB at its peak."


def texts(report: dict[str, Any]) -> list[str]:
    """Say whether greedy texts agree."""
    found = report["texts"]
    if found["equal"] is None:
        return ["Texts are not compared: only greedy float32 texts must be equal."]
    lines = [f"{found['equal']} of {found['compared']} greedy texts are those of our plain loop, token for token."]
    for one in found["differences"]:
        verdict = "a near tie" if one["top_two_gap"] <= TIE else "NOT a near tie"
        lines.append(
            f"{one['system']} on {one['suite']}, prompt {one['prompt']}: differs from token {one['position']} on; the "
            f"two largest logits lie {one['top_two_gap']:.2g} apart there: {verdict}."
        )
    return lines


def number(value: float | None, digits: int) -> str:
    """Return a number with so many decimals, more for small ones; a dash where it is unknown."""
    if value is None:
        return "-"
    return f"{value:.{digits}f}" if value == 0 or abs(value) >= 10**-digits else f"{value:.2g}"
