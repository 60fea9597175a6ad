"""`specdec train`: the recipes that made the weights in `models/`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Make the training text and train the draft models.", no_args_is_help=True)


@app.callback()
def _train() -> None:
    """Keep `corpus` a sub-command even while it is the only one."""


@app.command()
def corpus(
    tokens: Annotated[int, typer.Option(min=1, help="How many tokens of answers the folder shall hold.")] = 1_000_000,
    batch: Annotated[int, typer.Option(min=1, help="Answers written side by side.")] = 48,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 256,
    out: Annotated[Path | None, typer.Option(help="Folder of the wide record. Default: `corpus` in the cache.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads. Default: all cores.")] = None,
    seed: Annotated[int, typer.Option(help="Which prompts are composed, and in which order.")] = 0,
    shard_tokens: Annotated[int, typer.Option(min=1, help="A shard is written each time so many are ready.")] = 20_000,
    export: Annotated[bool, typer.Option("--export", help="Only gather the ids into the repository.")] = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Make the wide record again from those ids.")] = False,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the ids. Default: data/corpus in the repository.")
    ] = None,
) -> None:
    """Let SmolLM2 answer several thousand prompts, and keep its words and its 16 likeliest tokens at each of them.

    Takes hours. Stop it at any time: the same command goes on where the last shard ended.
    """
    from specdec_course.errors import CourseError
    from specdec_course.teacher import TeacherText, stop_gently
    from specdec_ref import store

    if export and rebuild:
        raise CourseError("--export writes the ids that --rebuild reads: ask for one of them")
    work = TeacherText(
        shards_folder=out or store.home() / "corpus",
        ids_folder=data or Path(__file__).parents[2] / "data" / "corpus",
        batch_size=batch,
        max_new_tokens=max_new_tokens,
        tokens_per_shard=shard_tokens,
        seed=seed,
        threads=threads,
    )
    stop_gently()
    try:
        if export:
            for path in work.export():
                typer.echo(f"{path}: {path.stat().st_size / 1e6:.2f} MB")
        elif rebuild:
            work.rebuild()
        else:
            work.write(tokens)
    except ValueError as error:
        raise CourseError(str(error)) from error
