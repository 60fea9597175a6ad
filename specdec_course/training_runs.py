"""What `specdec train smol-draft` and `specdec train tiny` share: progress bars, and figures on the screen."""

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
    options = {"--shards", "--work", "--out", "--threads"}
    kept = [
        word
        for before, word in zip(["", *words], words, strict=False)
        if word.split("=")[0] not in options and before not in options
    ]
    return shlex.join(kept)


def show(title: str, figures: Mapping[str, float | None], folder: Path) -> None:
    """Print held-out figures and where the model is."""
    typer.echo(f"{title}: {folder}")
    for name, value in figures.items():
        typer.echo(f"  {name:28} {'not measured' if value is None else f'{value:.3f}'}")
