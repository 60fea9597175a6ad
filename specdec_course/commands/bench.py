"""`specdec bench`: what a pass of the target costs on this machine, and which decoder is fastest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
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


Drafter = Annotated[str, typer.Option(help='Who drafts: names with commas between them, "all", or the "best" of all.')]
Suite = Annotated[str, typer.Option(help="What is asked: chat, code-edit, story, summary, or all.")]
Lengths = Annotated[
    str, typer.Option("--k", help='Draft lengths to try, like "2,4,8"; "auto": ours chooses while it decodes.')
]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
MaxNewTokens = Annotated[int, typer.Option(help="Longest answer, in tokens.")]
Prompts = Annotated[int, typer.Option(help="Measured prompts of each suite.")]
Repeats = Annotated[int, typer.Option(help="How often each is decoded; the median counts.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; all where not given.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write the report here; `specdec bench schema` explains it.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Write a figure here, as a PNG.")]
Batch = Annotated[int, typer.Option(help="Texts decoded together; above 1, batch 1 is measured beside it.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16, float16, or int8 (another target).")]
Device = Annotated[str, typer.Option(help="cpu, cuda or mps.")]
K = "2,3,5,8,12"


@app.command()
def pair(
    pair: Annotated[str, typer.Option(help='"smol", or "TARGET+DRAFT".')] = "smol",
    drafter: Drafter = "all",
    suite: Suite = "all",
    batch: Batch = 1,
    temperature: Temperature = 0.0,
    k: Lengths = K,
    max_new_tokens: MaxNewTokens = 128,
    prompts: Prompts = 4,
    repeats: Repeats = 1,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    threads: Threads = None,
    peer: Annotated[
        str | None, typer.Option(help='"llama.cpp": the same model in a C++ engine, 4-bit weights.')
    ] = None,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """Compare our loops with transformers' generate and its assisted generation, side by side in one run."""
    arguments = _settings(locals())

    def run(options: Any) -> dict[str, Any]:
        from specdec_course.benchmark.bench import bench_pair

        return bench_pair(options)

    _benchmark(run, arguments, k, json, plot)


@app.command()
def drafters(
    pair: Annotated[str, typer.Option(help='"smol", "tiny", or "TARGET+DRAFT".')] = "smol",
    drafter: Annotated[
        str, typer.Option(help='Which, with commas between them; "all": every one the pair has.')
    ] = "all",
    suite: Suite = "all",
    batch: Batch = 1,
    temperature: Temperature = 0.0,
    k: Lengths = "2,4,6",
    max_new_tokens: MaxNewTokens = 128,
    prompts: Prompts = 4,
    repeats: Repeats = 1,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    threads: Threads = None,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """Compare every way to draft, and plain decoding, side by side in one run."""
    arguments = _settings(locals())

    def run(options: Any) -> dict[str, Any]:
        from specdec_course.benchmark.drafters import bench_drafters

        return bench_drafters(options)

    def show(report: dict[str, Any], console: Any) -> None:
        from specdec_course.benchmark import drafters as them

        them.show(report, console)

    _benchmark(run, arguments, k, json, plot, show)


@app.command()
def dtypes(
    dtypes: Annotated[str, typer.Argument(help="Which dtypes.")] = "float32,bfloat16,int8,float16",
    pair: Annotated[str, typer.Option(help='"smol", or "TARGET+DRAFT".')] = "smol",
    drafter: Drafter = "best",
    suite: Suite = "all",
    temperature: Temperature = 0.0,
    k: Lengths = K,
    max_new_tokens: MaxNewTokens = 128,
    prompts: Prompts = 4,
    repeats: Repeats = 1,
    threads: Threads = None,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """Compare plain and speculative decoding of the target in several dtypes, and say which combination wins here."""
    names = tuple(dict.fromkeys(name.strip() for name in dtypes.split(",")))
    arguments: dict[str, Any] = {
        "pair": pair,
        "drafter": drafter,
        "suite": suite,
        "temperature": temperature,
        "max_new_tokens": max_new_tokens,
        "prompts": prompts,
        "repeats": repeats,
        "device": "cpu",
        "threads": threads,
    }

    def run(options: Any) -> dict[str, Any]:
        from specdec_course.benchmark.bench import bench_dtypes

        return bench_dtypes(options, names)

    _benchmark(run, arguments, k, json, plot)


@app.command()
def machine(
    pair: Annotated[str, typer.Option(help='"smol", "tiny", or "TARGET+DRAFT".')] = "smol",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps; the best one where not given.")] = None,
    turns: Annotated[int, typer.Option(min=1, help="Timed passes of each kind; the quickest counts.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Measure this machine's two limits, bytes and operations per second, and what they predict for T_v / T_t."""
    import json

    from rich.console import Console
    from rich.table import Table

    from specdec_course.benchmark.limits import limits, sentences
    from specdec_course.errors import CourseError
    from specdec_ref.pairs import load_pair

    try:
        report = limits(load_pair(pair, dtype=dtype, device=device), turns=turns)
    except ValueError as error:
        raise CourseError(str(error)) from error
    if as_json:
        typer.echo(json.dumps(report, ensure_ascii=True, indent=2))
        return
    table = Table("rows", "tokens per row", "ms", "T_v / T_t measured", "by the roofline", title=report["device"])
    for cell in report["passes"]:
        numbers = (f"{1e3 * cell['seconds']:.1f}", f"{cell['measured']:.2f}", f"{cell['predicted']:.2f}")
        table.add_row(str(cell["batch"]), str(cell["tokens"]), *numbers)
    Console().print(table)
    for line in sentences(report):
        typer.echo(line)


@app.command()
def suites() -> None:
    """Choose the prompts of the benchmark anew, by their rule, and write them to `data/suites`."""
    from specdec_course.benchmark.suites import write

    for path in write():
        typer.echo(path)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the reports."""
    import json

    from specdec_course.benchmark.schema import SCHEMA

    typer.echo(json.dumps(SCHEMA, indent=2))


def _settings(options: dict[str, Any]) -> dict[str, Any]:
    """Return a command's options but those of its output and `k`: they are named as the fields of `Options`."""
    return {name: value for name, value in options.items() if name not in ("k", "json", "plot")}


def _benchmark(
    run: Callable[[Any], dict[str, Any]],
    arguments: dict[str, Any],
    lengths: str,
    json_file: Path | None,
    plot_file: Path | None,
    show: Callable[[dict[str, Any], Any], None] | None = None,
) -> None:
    """Run, print, and write what was asked for; what cannot be written is said before anything is measured."""
    import json

    from rich.console import Console

    from specdec_course.errors import CourseError

    for path in (json_file, plot_file):
        if path is not None and not path.resolve().parent.is_dir():
            raise CourseError(f"{path} cannot be written: there is no folder {path.resolve().parent}")
    try:
        from specdec_course.benchmark import plot, tables
        from specdec_course.benchmark.options import Options, parse_lengths

        options = Options(**arguments, lengths=parse_lengths(lengths))
        report = run(options)
        (show or tables.show)(report, Console())
        if json_file is not None:
            json_file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8", newline="\n")
        if plot_file is not None:
            plot.save(report, plot_file)
            typer.echo(f"Alternative text of {plot_file}: {plot.alt_text(report)}")
    except ValueError as error:  # the library says what was wrong in one sentence; so does the command
        raise CourseError(str(error)) from error
