"""What came of it, in sentences: losses as plainly as gains, each with its reason."""

from __future__ import annotations

from typing import Any

from specdec_course.benchmark.report import fastest


def sentences(report: dict[str, Any]) -> list[str]:
    """Say what came of it, losses as plainly as gains."""
    batch, systems = report["settings"]["batch"], report["systems"]
    found = []
    for name in (*report["settings"]["suites"], "all"):
        best = fastest(systems, name, engine="specdec", spec=True, batch=batch)
        gain = report["ratios"]["spec_over_best_plain"][name]
        if best is None or gain is None:
            found.append(f"{name}: the answers were too short to measure a speed.")
            continue
        figures, word = best["results"][name], "faster" if gain >= 1 else "SLOWER"
        plain = fastest(systems, name, method="plain", batch=batch, engine=("specdec", "transformers"))
        line = f"{name}: {best['name']} is {word}: {gain:.2f} times the speed of the best plain decoder"
        line += f" ({plain['name']})" if plain else ""
        if figures.get("predicted_speedup") and figures.get("measured_speedup"):
            line += f"; over our own plain loop {figures['measured_speedup']:.2f}, its bill predicted "
            line += f"{figures['predicted_speedup']:.2f}"
        found.append(line + (f": {figures['bill']}." if "bill" in figures else "."))
    return found


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
