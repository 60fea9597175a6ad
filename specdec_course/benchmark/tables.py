"""The report on a terminal: one table for all suites together, one for each suite, and sentences."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from specdec_course.benchmark.report import Entry, fastest

TIE = 1e-3  # two logits nearer than this may change places by rounding


def show(report: dict[str, Any], console: Console) -> None:
    """Print everything a reader wants to see."""
    machine, settings = report["machine"], report["settings"]
    console.print(
        f"{settings['target']}, draft: {settings['draft']}; {', '.join(settings['dtypes'])}; "
        f"{machine['processor']}, {machine['threads']} threads, torch {machine['torch']}, "
        f"transformers {machine['transformers']}"
    )
    names = [*settings["suites"], "all"] if len(settings["suites"]) > 1 else settings["suites"]
    for name in names:
        console.print(table(report["systems"], name))
    for line in [*choices(report), *bills(report), *report["findings"], *ratio_lines(report), *memory(report)]:
        console.print(line, markup=False)
    for line in texts(report):
        console.print(line, markup=False)


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
    """Say which draft length was chosen, and why."""
    return [
        f"{system['name']}, {suite}: {figures['reason']}."
        for system in report["systems"]
        for suite, figures in system["results"].items()
        if "reason" in figures
    ]


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


def memory(report: dict[str, Any]) -> list[str]:
    """Print weights and caches, computed, and the peak of the process, measured."""
    lines = []
    for system in report["systems"]:
        weights = ", ".join(f"{who} {size / 1e6:.1f} MB" for who, size in system["weight_bytes"].items())
        caches = ", ".join(f"{who} {size / 1e6:.1f} MB" for who, size in system["kv_bytes"].items())
        lines.append(f"{system['name']}: weights {weights}" + (f"; keys and values {caches}" if caches else ""))
    peak = report["process_peak_bytes"]
    lines.append("Weights, keys and values are computed from shapes, for the longest text; packed copies at most.")
    if peak is not None:
        lines.append(f"The whole process, with all systems together, held {peak / 1e6:.0f} MB at its peak.")
    return lines


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


def dtype_verdict(report: dict[str, Any]) -> list[str]:
    """Say which combination of dtype and method wins."""
    lines = []
    for suite in (*report["settings"]["suites"], "all"):
        best, plain = fastest(report["systems"], suite), fastest(report["systems"], suite, method="plain")
        if best is None or plain is None:
            continue
        speeds = [one["results"][suite]["tokens_per_s"] for one in (best, plain)]
        lines.append(
            f"{suite}: {best['name']} wins with {speeds[0]:.1f} tokens/s; the fastest plain decoder is {plain['name']} "
            f"with {speeds[1]:.1f}, so the gain over it is {speeds[0] / speeds[1]:.2f}."
        )
    return [*lines, "Another dtype is another target: its texts need not be those of float32."]


def number(value: float | None, digits: int) -> str:
    """Return a number with so many decimals, more for small ones; a dash where it is unknown."""
    if value is None:
        return "-"
    return f"{value:.{digits}f}" if value == 0 or abs(value) >= 10**-digits else f"{value:.2g}"
