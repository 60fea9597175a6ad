"""`specdec passes`: what a pass costs by its length and its rows on this device, to look at or to record."""

from __future__ import annotations

from typing import Annotated

import typer


def passes(
    pair: Annotated[str, typer.Option(help='"smol", or "TARGET+DRAFT".')] = "smol",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps; the best one where not given.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed passes of each kind.")] = 7,
    record: Annotated[bool, typer.Option("--record", help="Keep the curves for stage 03. On a GPU only.")] = False,
) -> None:
    """Time passes of the target over 1 to 9 tokens in 1 and 4 rows."""
    from rich.console import Console
    from rich.table import Table

    from specdec_course import pass_times
    from specdec_course.errors import CourseError
    from specdec_ref.pairs import load_pair

    try:
        target = load_pair(pair, dtype=dtype, device=device).target
    except ValueError as error:
        raise CourseError(str(error)) from error
    if record:
        typer.echo(f"recorded: {pass_times.record(target, dtype, repeats=max(repeats, 21)).name}")
        return
    table = Table("rows", "tokens per row", "ms", "T_v / T_t", title=pass_times.device_name(target.device))
    for batch in (1, 4):
        seconds = pass_times.pass_times({"target": target}, (1, 2, 4, 6, 9), batch_size=batch, turns=repeats)["target"]
        for length, ratio in pass_times.ratios(seconds).items():
            table.add_row(str(batch), str(length), f"{1e3 * seconds[length]:.1f}", f"{ratio:.2f}")
    Console().print(table)
