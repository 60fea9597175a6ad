"""All cells, one after another. Each is written when it is done, so a run that was killed goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.progress import Progress, TaskID

from specdec_course.benchmark.bench import progress_bar
from specdec_course.benchmark.machine import describe, peak_memory
from specdec_course.benchmark.run import groups
from specdec_course.errors import CourseError
from specdec_course.experiment.cell import measure_cell
from specdec_course.experiment.plan import Cell, Plan
from specdec_course.experiment.verdict import decide
from specdec_ref.pairs import Pair

VERSION = 1


def run_experiment(plan: Plan, pair: Pair, folder: Path) -> dict[str, Any]:
    """Measure what `folder` does not hold yet, and return the whole experiment.

    Raises
    ------
    CourseError
        If the folder holds cells of another plan or machine.
    """
    begin(plan, pair, folder)
    cells: list[dict[str, Any]] = []
    with progress_bar() as bar:
        task = bar.add_task("", total=sum(_size(cell, plan) for cell in plan.cells))
        for cell in plan.cells:
            cells.append(_stored(folder, cell) or _measured(cell, plan, pair, folder, bar, task))
            done = sum(_size(one, plan) for one in plan.cells[: len(cells)])
            bar.update(task, completed=done)
    return {
        "schema_version": VERSION,
        "machine": describe(pair.target.device),
        "settings": plan.as_json() | {"target": pair.target.name, "draft": pair.draft.name},
        "process_peak_bytes": peak_memory(),
        "cells": cells,
        "verdict": decide(cells),
    }


def begin(plan: Plan, pair: Pair, folder: Path) -> None:
    """Make the folder and note in it what its cells belong to; refuse one that holds those of something else."""
    machine = describe(pair.target.device)
    del machine["load_average"]
    mine = {"settings": plan.as_json(), "machine": machine}
    path = folder / "plan.json"
    if path.exists():
        theirs = _read(path)
        differing = [f"{part} {name}" for part, values in mine.items() for name in values
                     if theirs is None or theirs.get(part, {}).get(name) != values[name]]  # fmt: skip
        if differing:
            raise CourseError(
                f"{folder} holds an experiment with another {differing[0].replace('settings ', '')}: "
                "give another folder, or the settings it was begun with"
            )
    else:
        (folder / "cells").mkdir(parents=True, exist_ok=True)
        write(path, mine)


def write(path: Path, value: Any) -> None:
    """Write JSON in one step: a killed run leaves the whole file or none."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8", newline="\n")
    unfinished.replace(path)


def _measured(cell: Cell, plan: Plan, pair: Pair, folder: Path, bar: Progress, task: TaskID) -> dict[str, Any]:
    def tell(what: str, share: float) -> None:
        bar.update(task, description=what, advance=share * _size(cell, plan))

    found = measure_cell(cell, plan, pair, tell)
    write(_path(folder, cell), found)
    return found


def _size(cell: Cell, plan: Plan) -> float:
    """Return the passes of a cell: the time left is told from them."""
    return len(groups([[0]] * plan.prompts, cell.batch)) * cell.max_new_tokens


def _path(folder: Path, cell: Cell) -> Path:
    return folder / "cells" / f"{cell.name}.json"


def _stored(folder: Path, cell: Cell) -> dict[str, Any] | None:
    path = _path(folder, cell)
    return _read(path) if path.exists() else None


def _read(path: Path) -> dict[str, Any] | None:
    """Return what a file holds; None where it is damaged, so that it is measured again."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
