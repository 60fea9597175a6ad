"""Which cells of an exercise are answered, graded or only read, and how nbgrader is told.

nbgrader reads a graded cell so: an error or anything on stderr is 0, a last expression that is a number is the points
earned, and *any other* outcome is full marks. So the last line of each check cell must be the bare call of `check`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from specdec_course.errors import CourseError

BEGIN, END = "BEGIN SOLUTION", "END SOLUTION"

Namer = Callable[[int], str]  # from a cell's place to words that say where it stands
Points = Callable[[str], float | None]  # from an exercise as "2.1" to its points


def course_points(exercise: str) -> float | None:
    """Return the points of an exercise of the course, None for one that has no check."""
    from specdec_course.checks import all_exercises

    found = all_exercises().get(exercise)
    return None if found is None else found.points


def mark(notebook: Any, stage: str, points: Points, name: Namer) -> None:
    """Give each cell of a solution its role, nbgrader's metadata and, where it is graded, an id that says what it is.

    Parameters
    ----------
    notebook : nbformat.NotebookNode
        Changed in place.
    stage : str
        The stage's number, as ``02``.
    points : callable
        Points of an exercise.
    name : callable
        Words for the place of a cell, for messages.

    Raises
    ------
    CourseError
        An answer that no check follows or that would fail as shipped, a check that nbgrader would misread, an
        exercise without points or checked twice.
    """
    waiting: list[tuple[int, Any]] = []  # answers since the last check
    above: set[str] = set()  # exercises and concept checks so far
    by_hand = 0
    for place, cell in enumerate(notebook.cells):
        exercise, quiz = checked_exercise(cell, name(place)), asked_quiz(cell)
        manual = cell.metadata.pop("manual_points", None)
        is_answer = _is_answer(cell, name(place))
        named = exercise or quiz
        if named:
            if named.partition(".")[0].zfill(2) != stage or named in above:
                raise CourseError(f"{name(place)} names {named!r}, which is of another stage or stands above already")
            above.add(named)
        if manual is not None:
            by_hand += 1
            _mark(cell, "manual", f"{stage}-manual-{by_hand}", grade=True, solution=True, points=manual)
        elif exercise:
            worth = points(exercise)
            if is_answer:
                raise CourseError(f"{name(place)} holds both an answer and its check: make two cells of it")
            if not worth or worth <= 0:
                raise CourseError(f"{name(place)} checks {exercise!r}, which has no points in specdec_course.checks")
            number = exercise.partition(".")[2]
            _mark(cell, "check", f"{stage}-check-{number}", exercise, grade=True, locked=True, points=worth)
            for turn, (_, answer) in enumerate(waiting):
                letter = chr(ord("a") + turn) if len(waiting) > 1 else ""
                _mark(answer, "answer", f"{stage}-answer-{number}{letter}", exercise, solution=True)
            waiting.clear()
        elif is_answer:
            waiting.append((place, cell))
        elif quiz:
            _mark(cell, "quiz", f"{stage}-quiz-{quiz.partition('.')[2]}", quiz, locked=True)
        else:
            _mark(cell, "text", cell["id"], locked=True)
    if waiting:
        raise CourseError(f"{name(waiting[0][0])} holds an answer that no check follows, so nothing would grade it")


def release(notebook: Any) -> Any:
    """Return the exercise of a solution, made by nbgrader's own steps: stubs for answers, locks, checksums."""
    from nbconvert.exporters.exporter import ResourcesDict
    from nbgrader.preprocessors import ClearOutput, ClearSolutions, ComputeChecksums, LockCells

    for step in (LockCells, ClearSolutions, ClearOutput, ComputeChecksums):
        notebook, _ = step().preprocess(notebook, ResourcesDict())
    return notebook


def checked_exercise(cell: Any, where: str = "a cell") -> str | None:
    """Return the exercise a cell checks, as ``2.1``; None where it checks none.

    Raises
    ------
    CourseError
        The call of `check` is not the last line, or a semicolon hides its value: nbgrader would give full marks.
    """
    body = _statements(cell)
    nodes = [node for statement in body for node in ast.walk(statement)]
    calls = [node for node in nodes if isinstance(node, ast.Call) and _is_call_of(node, "check")]
    if not calls:
        return None
    last = body[-1]
    if len(calls) > 1 or not isinstance(last, ast.Expr) or last.value is not calls[0]:
        raise CourseError(f"{where} calls check, but not alone and as its last line: nbgrader would misread the points")
    if cell.source.rstrip().endswith(";"):
        raise CourseError(f"{where} ends in a semicolon, which hides the points: take it away")
    exercise = _first_argument(calls[0])
    if exercise is None:
        raise CourseError(f'{where} calls check without naming the exercise in quotes, as check("2.1", function)')
    return exercise


def asked_quiz(cell: Any) -> str | None:
    """Return the concept check that a cell shows, as ``2.a``; None where it shows none."""
    for statement in _statements(cell):
        call = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(call, ast.Call) and _is_call_of(call, "quiz"):
            return _first_argument(call)
    return None


def _is_answer(cell: Any, where: str) -> bool:
    lines = cell.source.split("\n")
    marks = [line for line in lines if BEGIN in line or END in line]
    if [BEGIN in line for line in marks] != [True, False] * (len(marks) // 2):
        raise CourseError(f"{where} has a ### {BEGIN} without its ### {END}, or the other way round")
    if cell.cell_type == "code" and any(not line.startswith((" ", "\t")) for line in marks):
        raise CourseError(
            f"{where} has a solution outside of a function: its stub would stop the exercise before it is attempted"
        )
    return bool(marks)


def _mark(
    cell: Any,
    role: str,
    grade_id: str,
    exercise: str | None = None,
    *,
    grade: bool = False,
    solution: bool = False,
    locked: bool = False,
    points: float | None = None,
) -> None:
    cell["id"] = grade_id
    cell.metadata["specdec"] = {"role": role} | ({"exercise": exercise} if exercise else {})
    cell.metadata["nbgrader"] = {
        "schema_version": 3,
        "grade_id": grade_id,
        "grade": grade,
        "solution": solution,
        "locked": locked,
        "task": False,
    } | ({"points": points} if grade else {})


def _statements(cell: Any) -> list[ast.stmt]:
    if cell.cell_type != "code":
        return []
    try:
        return ast.parse(cell.source).body
    except SyntaxError:  # IPython's own syntax, as %timeit: no check cell has any
        return []


def _is_call_of(call: ast.Call, name: str) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == name


def _first_argument(call: ast.Call) -> str | None:
    first = call.args[0] if call.args else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None
