"""What `specdec check` does: find the notebooks, check their answers, and say what came out."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_course.checks import all_exercises, find_exercise
from specdec_course.checks.answers import Answer, answer_in_file, answers
from specdec_course.checks.exercise import Verdict, stage_of
from specdec_course.checks.messages import heading
from specdec_course.checks.notebook import remember
from specdec_course.checks.runner import check_answers
from specdec_course.errors import CourseError

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Result:
    """A verdict and where the answer stands."""

    file: str
    verdict: Verdict

    @property
    def possible(self) -> int:
        """The points of the exercise."""
        return find_exercise(self.verdict.exercise).points

    def text(self) -> str:
        """Heading and message, for the terminal."""
        message = textwrap.indent(self.verdict.message, "    ")
        title = f"{heading(self.verdict, self.possible)}  ({find_exercise(self.verdict.exercise).title})"
        return f"{title}\n{message}" if message else title


def run(what: str, function: Path | None, tell: Callable[[Result], object]) -> list[Result]:
    """Check what the command line names.

    Parameters
    ----------
    what : str
        A stage, an exercise, a notebook, a folder, or nothing: all of `exercises/`.
    function : Path, optional
        A Python file with the function of the exercise `what`.
    tell : callable
        Hears each result as soon as it is there.

    Raises
    ------
    CourseError
        If there is no such exercise, notebook or folder, or nothing in it to check.
    """
    if function is not None:
        exercise = find_exercise(what)
        answer = answer_in_file(function, exercise.id, exercise.function)
        return _check_all([answer], function, tell, own=False)
    if what in all_exercises():
        path = _notebook_of(stage_of(what))
        chosen = [answer for answer in _answers(path) if answer.exercise == what]
        return _check_all(chosen, path, tell, own=True)
    results: list[Result] = []
    for path in _notebooks(what):
        own = path.resolve().parent == ROOT / "exercises"
        results += _check_all(_answers(path), path, tell, own)
    if not results:
        raise CourseError(f"there is nothing to check in {what or 'exercises'}: no notebook there has a check cell")
    return results


def _check_all(found: Sequence[Answer], path: Path, tell: Callable[[Result], object], own: bool) -> list[Result]:
    results: list[Result] = []
    for _, verdict in check_answers(found, path.resolve().parent):
        results.append(Result(path.as_posix(), verdict))
        tell(results[-1])
        if own:
            remember(verdict)
    return results


def _answers(path: Path) -> list[Answer]:
    """Return the answers to all exercises of the notebook's stage, also where their check cell was lost."""
    named = re.match(r"\d\d(?=_)", path.name)
    wanted = {one.id: one.function for one in all_exercises().values() if named and one.stage == named[0]}
    return answers(path, all_exercises(), wanted)


def _notebooks(what: str) -> list[Path]:
    if re.fullmatch(r"\d{1,2}", what):
        return [_notebook_of(what.zfill(2))]
    path = Path(what) if what else ROOT / "exercises"
    if not path.exists() and what in ("exercises", "solutions"):
        path = ROOT / what
    if path.is_dir():
        return sorted(path.glob("*.ipynb"))
    if not path.is_file():
        known = ", ".join(all_exercises())
        raise CourseError(f"there is no notebook, folder, stage or exercise {what!r} (the exercises are {known})")
    return [path]


def _notebook_of(stage: str) -> Path:
    found = sorted((ROOT / "exercises").glob(f"{stage}_*.ipynb"))
    if not found:
        raise CourseError(f"there is no notebook of stage {stage} in {ROOT / 'exercises'}")
    return found[0]


def summary(results: Sequence[Result]) -> str:
    """Return the last line: points, and how many exercises have which status."""
    states = [result.verdict.status for result in results]
    counted = [f"{states.count(state)} {state}" for state in ("passed", "not yet", "not attempted") if state in states]
    return f"{_earned(results)} of {_possible(results)} points: {', '.join(counted)}"


def as_json(results: Sequence[Result]) -> dict[str, Any]:
    """Return all of it as plain data."""
    return {
        "points": _earned(results),
        "possible": _possible(results),
        "passed": all(result.verdict.status == "passed" for result in results),
        "exercises": [
            {
                "exercise": result.verdict.exercise,
                "title": find_exercise(result.verdict.exercise).title,
                "file": result.file,
                "status": result.verdict.status,
                "points": result.verdict.points,
                "possible": result.possible,
                "mistake": result.verdict.mistake,
                "message": result.verdict.message,
            }
            for result in results
        ],
    }


def _earned(results: Sequence[Result]) -> int:
    return sum(result.verdict.points for result in results)


def _possible(results: Sequence[Result]) -> int:
    return sum(result.possible for result in results)
