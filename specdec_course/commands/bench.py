"""`specdec bench`: what a pass of the target costs on this machine."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

app = typer.Typer(help="Measure on this machine.", no_args_is_help=True)

BLOCK_LENGTHS = (1, 2, 4, 6, 8, 16)
CONTEXT = 100  # tokens in the cache before each pass


@app.callback()
def _group() -> None:
    """Measure on this machine."""


@app.command()
def kernels(
    pair: Annotated[str, typer.Option(help='"smol", or "TARGET+DRAFT".')] = "smol",
    dtype: Annotated[str, typer.Option(help="Of the fast side: float32, bfloat16, float16 or int8.")] = "float32",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; all where not given.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed passes of each kind.")] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Time target passes over 1 to 16 tokens: float32 with stock linear layers, and this course's kernels for DTYPE."""
    import json

    from rich.console import Console
    from rich.table import Table

    report = measure_kernels(pair, dtype, threads, repeats)
    if as_json:
        typer.echo(json.dumps(report, ensure_ascii=True, indent=2))
        return
    table = Table("tokens", "stock ms", "fast ms", "fast / stock", "fast / fast over 1", title=report["kernel"])
    for i, length in enumerate(report["block_lengths"]):
        stock, fast = report["stock_ms"][i], report["fast_ms"][i]
        cells = (stock, fast, report["fast_over_stock"][i], fast / report["fast_ms"][0])
        table.add_row(str(length), *(f"{cell:.{1 if cell >= 10 else 2}f}" for cell in cells))
    Console().print(table)


def measure_kernels(pair: str, dtype: str, threads: int | None, repeats: int) -> dict[str, Any]:
    """Time stock float32 and the prepared model in turn, so that a busy machine slows both alike; return the report.

    Raises
    ------
    CourseError
        If the pair or dtype cannot be loaded.
    """
    import statistics
    import time

    import torch
    from rich.console import Console
    from rich.progress import track

    from specdec_course.errors import CourseError
    from specdec_ref import kernels
    from specdec_ref.pairs import load_pair

    if threads is not None:
        torch.set_num_threads(threads)
    try:
        fast, stock = load_pair(pair, dtype=dtype, device="cpu").target, load_pair(pair, device="cpu").target
    except ValueError as error:
        raise CourseError(str(error)) from error
    for module in stock.model.modules():
        if isinstance(module, kernels.FastLinear):
            cast(Any, module).__class__ = torch.nn.Linear
    text = torch.arange(CONTEXT + max(BLOCK_LENGTHS))[None] % fast.vocab_size
    sides = {"stock": stock.fresh(1), "fast": fast.fresh(1)}
    for side in sides.values():
        side.prefill(text[:, :CONTEXT].tolist())
    times: dict[tuple[str, int], list[float]] = {(name, length): [] for name in sides for length in BLOCK_LENGTHS}
    rounds = track(range(repeats + 1), "timing passes", console=Console(stderr=True), transient=True)
    for number in rounds:
        for length in BLOCK_LENGTHS:
            for name, side in sides.items():
                start = time.perf_counter()
                side.extend(text[:, CONTEXT : CONTEXT + length])
                seconds = time.perf_counter() - start
                side.rollback([length])
                if number > 0:  # the first round warms up
                    times[name, length].append(seconds)
    medians = {name: [1e3 * statistics.median(times[name, n]) for n in BLOCK_LENGTHS] for name in sides}
    return {
        "model": fast.name,
        "threads": torch.get_num_threads(),
        "dtype": dtype,
        "kernel": kernels.kernel_name(fast.model),
        "context_tokens": CONTEXT,
        "repeats": repeats,
        "block_lengths": list(BLOCK_LENGTHS),
        "stock_ms": medians["stock"],
        "fast_ms": medians["fast"],
        "fast_over_stock": [fast / stock for fast, stock in zip(medians["fast"], medians["stock"], strict=True)],
        "fast_6_over_fast_1": medians["fast"][BLOCK_LENGTHS.index(6)] / medians["fast"][0],
    }
