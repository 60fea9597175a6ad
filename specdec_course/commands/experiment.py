"""`specdec experiment`: should speculation be switched on here, and for what? The answer as JSON, CSV and a page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer


def experiment(
    out: Annotated[Path, typer.Option(help="Folder of the results. A run that was stopped goes on from it.")],
    pair: Annotated[str, typer.Option(help='"smol", "tiny", or "TARGET+DRAFT".')] = "smol",
    drafter: Annotated[
        str, typer.Option(help='Who drafts: "ngram", "model", "eagle", "layer-skip" or "staged".')
    ] = "ngram",
    engine: Annotated[str, typer.Option(help='"ours", or "transformers".')] = "ours",
    k: Annotated[str | None, typer.Option("--k", help='Draft lengths to try, like "2,4,8".')] = None,
    temperatures: Annotated[str | None, typer.Option(help='Like "0,0.7"; as users need them.')] = None,
    batches: Annotated[str | None, typer.Option(help='Texts decoded together, like "1,4".')] = None,
    prompts: Annotated[int | None, typer.Option(help="Measured prompts of each text.")] = None,
    repeats: Annotated[int | None, typer.Option(help="Repetitions; their range is shown.")] = None,
    price: Annotated[float, typer.Option(help="Price of this machine for an hour.")] = 1.0,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16, or int8 (another target).")] = "float32",
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps; the best one where not given.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; all where not given.")] = None,
    quick: Annotated[bool, typer.Option(help="A short look at the whole way: too few tokens for a decision.")] = False,
) -> None:
    """Answer the same prompts with speculation off and on, in many settings, and say for which of them to enable it."""
    from specdec_course.errors import CourseError
    from specdec_course.experiment.plan import QUICK, Plan

    try:
        chosen: dict[str, Any] = {
            "candidates": numbers("k", k, int),
            "temperatures": numbers("temperatures", temperatures, float),
            "batches": numbers("batches", batches, int),
            "prompts": prompts,
            "repeats": repeats,
        }
        settings = {name: value for name, value in chosen.items() if value is not None}
        plan = Plan(
            pair=pair,
            drafter=drafter,
            engine=engine,
            dtype=dtype,
            device=device,
            threads=threads,
            price_per_hour=price,
            **((QUICK if quick else {}) | settings),
        )
        verdict = run(plan, out)
    except ValueError as error:  # the library says what was wrong in one sentence; so does the command
        raise CourseError(str(error)) from error
    except KeyboardInterrupt:
        typer.echo("stopped; the same command goes on where it was", err=True)
        raise typer.Exit(code=130) from None
    for line in [*verdict["losing"], *verdict["not_run"], verdict["texts"], verdict["caution"], verdict["sentence"]]:
        if line:
            typer.echo(line)
    typer.echo(f"The report is {out / 'report.html'}; the numbers are in experiment.json and cells.csv beside it.")


def numbers(name: str, text: str | None, kind: Callable[[str], Any]) -> tuple[Any, ...] | None:
    """Read a list like "2,4,8"; None stays None. Raises ValueError if it is not one."""
    try:
        return None if text is None else tuple(sorted({kind(part) for part in text.split(",")}))
    except ValueError:
        raise ValueError(f"{name}={text!r} must be numbers with commas between them, like 1,2,4") from None


def run(plan: Any, folder: Path) -> dict[str, Any]:
    """Load the pair, run what is left, write the three files, and return the verdict."""
    import torch

    from specdec_course.experiment.csv_file import as_csv
    from specdec_course.experiment.page import page
    from specdec_course.experiment.run import run_experiment, write
    from specdec_ref.pairs import load_pair

    if plan.threads is not None:
        torch.set_num_threads(plan.threads)
    found = run_experiment(plan, load_pair(plan.pair, dtype=plan.dtype, device=plan.device), folder)
    write(folder / "experiment.json", found)
    (folder / "cells.csv").write_text(as_csv(found["cells"]), encoding="utf-8", newline="\n")
    (folder / "report.html").write_text(page(found), encoding="utf-8", newline="\n")
    return found["verdict"]
