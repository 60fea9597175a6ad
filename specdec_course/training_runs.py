"""What the commands of `specdec train` share: progress bars, and figures on the screen."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from specdec_course.errors import CourseError
from specdec_course.teacher import stop_gently
from specdec_ref import store
from specdec_ref.training.ground import Place
from specdec_ref.training.tell import Tell

_LINE_EVERY = 300.0  # seconds between two lines of a log, where stderr is no terminal


class Bars:
    """One progress bar for each thing that a recipe does; where stderr is no terminal, a line now and then."""

    def __init__(self, console: Console, bars: Progress) -> None:
        self._console, self._bars = console, bars
        self._tasks: dict[str, TaskID] = {}
        self._said: dict[str, float] = {}

    def tell(self, name: str, done: int, total: int, remark: str) -> None:
        """Show how far a thing is."""
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=total, completed=done, remark=remark)
        self._bars.update(self._tasks[name], completed=done, remark=remark)
        now = time.monotonic()
        if not self._console.is_terminal and (done >= total or now - self._said.get(name, -_LINE_EVERY) > _LINE_EVERY):
            self._said[name] = now
            self._console.print(f"{time.strftime('%H:%M')} {name}: {done:,} of {total:,} {remark}", highlight=False)


@contextmanager
def running(threads: int | None) -> Iterator[Bars]:
    """Show bars on stderr while a recipe runs, and turn its errors into the course's own."""
    if threads is not None:
        torch.set_num_threads(threads)
    stop_gently()
    console = Console(stderr=True)
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[remark]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        speed_estimate_period=600,
        disable=not console.is_terminal,
    )
    try:
        with bars:
            yield Bars(console, bars)
    except ValueError as error:
        raise CourseError(str(error)) from error


def command_line() -> str:
    """Return what the user typed, as a model card quotes it: no folder of this machine is in it."""
    words = ["specdec", *sys.argv[1:]]
    options = {"--shards", "--features", "--work", "--out", "--threads"}
    kept = [
        word
        for before, word in zip(["", *words], words, strict=False)
        if word.split("=")[0] not in options and before not in options
    ]
    return shlex.join(kept)


def head_place(
    kind: str,
    target: str,
    dtype: str,
    shards: Path | None,
    features: Path | None,
    work: Path | None,
    out: Path | None,
    tell: Tell,
) -> Place:
    """Return what a recipe of heads reads and writes: folders that are not given lie in the cache and the repository.

    Raises
    ------
    CourseError
        If the target or dtype is unknown, or the target is not there.
    """
    if target not in ("smol", "tiny"):
        raise CourseError(f"--target {target}: choose smol or tiny")
    if dtype not in ("float32", "bfloat16"):
        raise CourseError(f"--dtype {dtype}: choose float32 or bfloat16")
    training, models = store.home() / "training", out or Path(__file__).parents[1] / "models"
    name = f"{target}-{kind}"
    folder = store.smol_folder() if target == "smol" else models / "tiny-target"
    if target == "tiny" and not folder.is_dir():
        raise CourseError(f"the model folder {folder} is not there: run `specdec train tiny` first")
    text = store.home() / "corpus" if target == "smol" else training / "tiny" / "tiny-target-text"
    return Place(
        target=folder,
        shards=shards or text,
        features=features or training / f"features-{target}",
        work=work or training / name,
        out=models / name,
        draft=models / f"{target}-draft",
        command=command_line(),
        tell=tell,
    )


def show(title: str, figures: Mapping[str, float | None], folder: Path) -> None:
    """Print held-out figures and where the model is."""
    typer.echo(f"{title}: {folder}")
    for name, value in figures.items():
        typer.echo(f"  {name:28} {'not measured' if value is None else f'{value:.3f}'}")
