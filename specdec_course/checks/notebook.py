"""What a learner calls in a notebook: `check`, `hint`, `progress`, `logbook`."""

from __future__ import annotations

import math
from typing import Any

from specdec_course.checks import find_exercise, records
from specdec_course.checks.course_map import course_map, logbook_text
from specdec_course.checks.exercise import Exercise, Verdict, stage_of
from specdec_course.checks.front_end import show_html
from specdec_course.checks.judge import judge
from specdec_course.checks.messages import as_html, as_text, heading
from specdec_course.checks.observe import observe
from specdec_course.errors import CourseError

FAILURES_BEFORE_HINT = 3
last_failure: list[Verdict] = []  # what `replay` draws


def check(name: str, function: Any) -> int:
    """Check the learner's answer to an exercise, say what came out, and return the points earned.

    Parameters
    ----------
    name : str
        The exercise's id, such as "2.1".
    function : callable
        The learner's function.

    Returns
    -------
    int
        As the last expression of a cell this is what nbgrader reads as the score.

    Raises
    ------
    CourseError
        If there is no such exercise. Nothing that the learner's function does raises anything.
    """
    exercise = find_exercise(name)
    verdict = judge(exercise, observe(exercise, function))
    last_failure[:] = [verdict] if verdict.status == "not yet" else []
    _say(exercise, verdict, remember(verdict))
    return verdict.points


def _say(exercise: Exercise, verdict: Verdict, failures: int) -> None:
    text = "\n".join(line for line in (heading(verdict, exercise.points), as_text(verdict)) if line)
    if verdict.status != "not yet":
        print(text)
        return
    more = "Draw it: replay()" if verdict.replay else ""
    if failures >= FAILURES_BEFORE_HINT:
        more += f"{'. ' if more else ''}Stuck? hint({exercise.id!r}) helps a little."
    show_html(as_html(verdict, exercise.points, more), "\n".join(line for line in (text, more) if line))


def remember(verdict: Verdict) -> int:
    """Write the verdict down and return how often the check has failed since it last passed."""
    with records.changing() as record:
        entry = record["exercises"].setdefault(verdict.exercise, {})
        if verdict.status == "passed":
            entry.update(status="passed", points=verdict.points, failures=0)
        elif verdict.status == "not yet":
            entry["failures"] = int(entry.get("failures", 0)) + 1
            entry.setdefault("status", "not yet")
        return int(entry.get("failures", 0))


def hint(name: str) -> None:
    """Print one more hint for an exercise each time; after the third, all three again.

    Raises
    ------
    CourseError
        If there is no such exercise.
    """
    exercise = find_exercise(name)
    with records.changing() as record:
        shown = min(int(record["hints"].get(name, 0)) + 1, 3)
        again = record["hints"].get(name) == 3
        record["hints"][name] = shown
    for number in range(1, 4) if again else [shown]:
        print(f"Hint {number} of 3 for {name}: {exercise.hints[number - 1]}")


def progress() -> None:
    """Print the map of the course: stages, exercises, points, minutes, the logbook and what comes next."""
    print(course_map(records.read()))


def logbook(stage: str | None = None, **figures: Any) -> None:
    """Keep what the learner's own decoder achieved in a stage; without arguments, print all that was kept.

    Parameters
    ----------
    stage : str
        Its number, such as "04".
    **figures : bool, int, float or str
        For example ``exact=True, alpha=0.62, tokens_per_round=2.8``. New values replace those of the same name.

    Raises
    ------
    CourseError
        If a figure is not one plain value.
    """
    if stage is None:
        print(logbook_text(records.read()) or "The logbook is empty.")
        return
    plain = {name: _plain_figure(name, value) for name, value in figures.items()}
    with records.changing() as record:
        record["logbook"].setdefault(stage_of(stage), {}).update(plain)
    print(f"Written into the logbook of stage {stage_of(stage)}: {', '.join(plain)}.")


def _plain_figure(name: str, value: Any) -> bool | int | float | str:
    value = value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value
    if not isinstance(value, bool | int | float | str) or (isinstance(value, float) and not math.isfinite(value)):
        raise CourseError(f"the logbook cannot keep {name}={value!r}: give one number, text, True or False")
    return value
