"""Carry the learner's own functions into a later stage: each that passes its check, the solution's where one does not.

The check runs in a process of its own. Then the source of the learner's cells is run here: nothing is unpickled.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from specdec_course.checks import all_exercises
from specdec_course.checks.answers import Answer, answers
from specdec_course.checks.exercise import Exercise, stage_of
from specdec_course.checks.limits import captured
from specdec_course.checks.runner import check_answers
from specdec_course.checks.sources import execute, new_module
from specdec_course.errors import CourseError

ROOT = Path(__file__).resolve().parents[2]


class Carried:
    """The functions of a stage as attributes. `yours` and `from_solution` hold their names."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.yours: list[str] = []
        self.from_solution: dict[str, str] = {}  # name of a function, and why it is not the learner's

    def __getattr__(self, name: str) -> Any:
        """Say in words which function is not there."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"stage {self.stage} has no exercise whose function is {name!r}")

    def __repr__(self) -> str:
        """Return which functions are whose, a line for each side."""
        lines = [f"Stage {self.stage}, yours: {', '.join(self.yours) or 'none'}"]
        if self.from_solution:
            others = ", ".join(f"{name} ({why})" for name, why in self.from_solution.items())
            lines.append(f"Stage {self.stage}, from the solution: {others}")
        return "\n".join(lines)


def carry(stage: str) -> Carried:
    """Return the functions of an earlier stage, the learner's own where they pass their checks; print which are whose.

    Parameters
    ----------
    stage : str
        Its number, such as "02". The learner's notebook is looked for beside the one that asks, then in `exercises/`.

    Returns
    -------
    Carried
        With an attribute for each exercise's function: ``carry("02").accept_token``.

    Raises
    ------
    CourseError
        If the stage has no exercises, or a function is neither the learner's nor in the solution.
    """
    stage = stage_of(stage)
    exercises = {one.id: one for one in all_exercises().values() if one.stage == stage}
    if not exercises:
        raise CourseError(f"stage {stage!r} has no exercises to carry functions from")
    own, solution = _own_notebook(stage), _first(ROOT / "solutions", stage)
    carried = _carry(stage, own, _changed_at(own), solution, _changed_at(solution))
    print(carried)
    return carried


@functools.cache
def _carry(stage: str, own: Path | None, _: int, solution: Path | None, __: int) -> Carried:
    """Do the work, once for each state of the two notebooks."""
    exercises = {one.id: one for one in all_exercises().values() if one.stage == stage}
    carried = Carried(stage)
    passed: list[Answer] = []
    reasons = dict.fromkeys(exercises, "there is no notebook of yours")
    if own is not None:
        for answer, verdict in check_answers(_answers(own, exercises), own.parent):
            reasons[answer.exercise] = verdict.status
            passed += [answer] if verdict.status == "passed" else []
    _run(passed, f"your stage {stage}", exercises, carried)
    carried.yours = [exercises[answer.exercise].function for answer in passed]
    missing = {name: one for name, one in exercises.items() if one.function not in carried.yours}
    if missing and solution is not None:
        found = [answer for answer in _answers(solution, exercises) if answer.exercise in missing]
        _run(found, f"solution of stage {stage}", exercises, carried)
    carried.from_solution = {one.function: reasons[name] for name, one in missing.items()}
    for function in carried.from_solution:
        if function not in vars(carried):
            raise CourseError(f"{function} of stage {stage} is in neither your notebook nor the solution's")
    return carried


def _run(found: list[Answer], label: str, exercises: dict[str, Exercise], carried: Carried) -> None:
    """Run the cells of all answers, each once and in their order, and take the functions."""
    module = new_module(label.replace(" ", "_"))
    module.__dict__.update(display=lambda *_, **__: None)
    cells = dict(pair for answer in found for pair in answer.sources)
    for cell, source in sorted(cells.items(), key=lambda pair: int(pair[0].split()[1])):
        with captured():
            try:
                execute(f"{label}, {cell}", source, module.__dict__)
            except Exception:  # a cell that also tries things out; the check saw that the functions work
                continue
    for answer in found:
        function = eval(answer.expression, module.__dict__)
        setattr(carried, exercises[answer.exercise].function, function)


def _answers(path: Path, exercises: dict[str, Exercise]) -> list[Answer]:
    return answers(path, exercises, {name: one.function for name, one in exercises.items()})


def _own_notebook(stage: str) -> Path | None:
    beside = _first(Path.cwd(), stage)
    has_answers = beside is not None and bool(answers(beside, all_exercises(), {}))
    return beside if has_answers else _first(ROOT / "exercises", stage)


def _first(folder: Path, stage: str) -> Path | None:
    return next(iter(sorted(folder.resolve().glob(f"{stage}_*.ipynb"))), None)


def _changed_at(path: Path | None) -> int:
    return path.stat().st_mtime_ns if path else 0
