"""Try the checks themselves: every wrong answer must be refused and named, every right one must pass.

The answers are in `tests/course/mistakes`, apart from the checks: a judge sees what an answer does, never its name.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from specdec_course.checks import all_exercises, find_exercise
from specdec_course.checks.exercise import Exercise, Verdict
from specdec_course.checks.judge import judge
from specdec_course.checks.observe import observe
from specdec_course.errors import CourseError

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "course" / "mistakes"
SLOW = "too slow"  # takes the whole time limit, so it is tried with one seed only


@dataclass(frozen=True)
class Row:
    """How often one mistake was refused (`caught`), and how often its message named it (`named`)."""

    exercise: str
    mistake: str
    caught: int
    named: int


@dataclass(frozen=True)
class FalseAlarm:
    """A right answer that was refused."""

    exercise: str
    variant: str
    seed: int
    message: str


def answers_of(stage: str) -> ModuleType:
    """Load the wrong and right answers of a stage from its file.

    Raises
    ------
    CourseError
        If there is none: an installed package holds no tests.
    """
    path = FOLDER / f"stage_{stage}.py"
    if not path.is_file():
        raise CourseError(f"{path} is missing: `specdec mistakes` needs a clone of the repository")
    spec = importlib.util.spec_from_file_location(f"tests.course.mistakes.stage_{stage}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stages() -> list[str]:
    """Return the stages that have exercises."""
    return sorted({exercise.stage for exercise in all_exercises().values()})


def verdict_on(exercise: Exercise, function: Callable[..., Any], seed: int) -> Verdict:
    """Observe and judge, with the observation as JSON in between, as it travels between two processes."""
    return judge(exercise, json.loads(json.dumps(observe(exercise, function, seed), allow_nan=False)), seed)


def try_mutants(name: str, mutants: dict[str, Sequence[Callable[..., Any]]], seeds: int) -> Iterator[Row]:
    """Yield a row for each mistake of an exercise; where several functions make it, the worst of them counts."""
    exercise = find_exercise(name)
    for mistake, functions in mutants.items():
        rounds = 1 if mistake == SLOW else seeds
        counted = []
        for function in functions:
            verdicts = [verdict_on(exercise, function, seed) for seed in range(rounds)]
            caught = sum(verdict.status == "not yet" for verdict in verdicts)
            named = sum(one.mistake == mistake and mistake.lower() in one.message.lower() for one in verdicts)
            counted.append((caught * seeds // rounds, named * seeds // rounds))
        yield Row(name, mistake, min(one[0] for one in counted), min(one[1] for one in counted))


def try_correct(name: str, correct: dict[str, Callable[..., Any]], seeds: int) -> Iterator[FalseAlarm]:
    """Yield each refusal of a right answer to an exercise."""
    exercise = find_exercise(name)
    for variant, function in correct.items():
        for seed in range(seeds):
            verdict = verdict_on(exercise, function, seed)
            if verdict.status != "passed":
                yield FalseAlarm(name, variant, seed, verdict.message)


def as_json(rows: Sequence[Row]) -> str:
    """Return the rows as a JSON list."""
    return json.dumps([asdict(row) for row in rows], indent=1, ensure_ascii=False)
