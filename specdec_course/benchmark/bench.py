"""The whole benchmark, from the loaded pair to the report."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from specdec_course.benchmark import suites
from specdec_course.benchmark.assembly import assemble
from specdec_course.benchmark.hugging_face import transformers_systems
from specdec_course.benchmark.llama_engine import llama_cpp_systems
from specdec_course.benchmark.options import Options
from specdec_course.benchmark.run import Key, Tell, Texts, Tuning, groups, measure, tune, warm_up, work
from specdec_course.benchmark.systems import System, Times, our_systems
from specdec_ref.measure import Run, time_draft_step, time_passes
from specdec_ref.pairs import Pair, load_pair
from specdec_ref.totals import Totals

DRAFT_STEPS = 4  # draft tokens in each round in which a draft step is timed
TREE_NODES = (16, 24)  # a pass over a whole draft tree is longer than any chain that is tried


def bench_pair(options: Options) -> dict[str, Any]:
    """Load the pair, run everything, and return the report (`specdec_course.benchmark.schema` describes it)."""
    threads(options)
    pair = load_pair(options.pair, dtype=options.dtype, device=options.device)
    with tempfile.TemporaryDirectory() as folder:
        peers = llama_cpp_systems(pair, options, Path(folder)) if options.peer else []
        return bench([pair], options, [*transformers_systems(pair, options), *peers])


def bench_dtypes(options: Options, dtypes: Sequence[str]) -> dict[str, Any]:
    """Run our plain and speculative loops with each dtype side by side, and return a report of the same form."""
    threads(options)
    pairs = [load_pair(options.pair, dtype=dtype, device=options.device) for dtype in dtypes]
    return bench(pairs, options, [])


def threads(options: Options) -> None:
    """Set the number of CPU threads, where one was asked for."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)


def bench(pairs: Sequence[Pair], options: Options, others: Sequence[System]) -> dict[str, Any]:
    """Run our systems on each pair, and `others` beside them.

    The pairs share tokenizer and prompts; they differ in dtype.
    """
    loaded = [suites.load(name) for name in options.suite_names]
    texts = [
        Texts(
            suite.name,
            [suites.encode(pairs[0], prompt) for prompt in suite.measured[: options.prompts]],
            [suites.encode(pairs[0], prompt) for prompt in suite.tuning],
        )
        for suite in loaded
    ]
    batches = sorted({1, options.batch})
    with progress_bar() as bar:
        task = bar.add_task("timing single passes", total=None)
        times = {(pair.dtype, batch): time_steps(pair, options, texts, batch) for pair in pairs for batch in batches}
        systems: list[System] = []
        for pair in pairs:
            label = f", {pair.dtype}" if len(pairs) > 1 else ""
            for batch in batches:
                systems += our_systems(pair, options, times[pair.dtype, batch], label)
        systems += others
        bar.update(task, total=work(systems, texts, options.max_new_tokens, options.repeats), completed=0)

        def tell(what: str, tokens: int) -> None:
            bar.update(task, description=what, advance=tokens)

        systems, tuning, measured = decode_all(systems, texts, options, tell)
    return assemble(pairs, options, texts, systems, tuning, measured, times)


def decode_all(
    systems: list[System], texts: list[Texts], options: Options, tell: Tell
) -> tuple[list[System], dict[Key, Tuning], dict[Key, list[Run]]]:
    """Warm up, tune and measure. With drafter "best", our slower drafters leave before the measurement."""
    warm_up(systems, texts[0], options.max_new_tokens, tell)
    tuning = tune(systems, texts, options.max_new_tokens, tell)
    if options.drafter == "best":
        systems = keep_best(systems, tuning, [suite.name for suite in texts])
    measured = measure(systems, texts, tuning, options.max_new_tokens, options.repeats, tell)
    return systems, tuning, measured


def keep_best(systems: list[System], tuning: dict[Key, Tuning], names: Sequence[str]) -> list[System]:
    """Keep, of our own speculative systems of each dtype and batch size, the fastest on all tuning prompts together."""

    def speed(system: System) -> float:
        tuned = [tuning[system.name, name] for name in names]
        return Totals([run for one in tuned for run in one.runs[one.best]]).tokens_per_s or 0.0

    best: dict[tuple[str, int], System] = {}
    for system in systems:
        if system.engine == "specdec" and system.method != "plain":
            kind = (system.dtype, system.batch)
            best[kind] = max(best.get(kind, system), system, key=speed)
    return [one for one in systems if one.engine != "specdec" or one.method == "plain" or one in best.values()]


def time_steps(pair: Pair, options: Options, texts: Sequence[Texts], batch: int) -> Times:
    """Time single passes and draft steps on the tuning prompts, in the middle of an answer."""
    prompts = [prompt for suite in texts for prompt in suite.tuning]
    trees = TREE_NODES if set(options.drafters) - {"model", "ngram"} else ()
    lengths = sorted({1, *(1 + count for count in (*options.candidates, *trees))})
    middle = sum(map(len, prompts)) // len(prompts) + options.max_new_tokens // 2
    context = min(middle, pair.target.max_length - lengths[-1])
    passes = time_passes(pair.target, lengths, context=context, batch_size=batch)
    batched = groups(prompts, batch)[0]
    draft_step = {
        name: time_draft_step(pair.drafter(name), pair.target, batched, DRAFT_STEPS, options.settings) or 0.0
        for name in options.drafters
    }
    return Times(batch, context, passes, draft_step)


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Show a bar on stderr, with the time left, that leaves no trace when done."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, speed_estimate_period=300) as bar:
        yield bar
