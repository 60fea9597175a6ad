"""The map of the course as text: what was passed, what is left, what comes next, and what the own decoder achieved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specdec_course.checks import all_exercises
from specdec_course.checks.exercise import Exercise, stage_of
from specdec_course.checks.records import Record

ROOT = Path(__file__).resolve().parents[2]
_MARKS = {"passed": "✓", "not yet": "✗"}


def course_map(record: Record) -> str:
    """Return the map of a learner's record, one line for each exercise."""
    exercises = all_exercises()
    stages: dict[str, list[Exercise]] = {stage: [] for stage in sorted(stage_names())}
    for exercise in exercises.values():
        stages.setdefault(exercise.stage, []).append(exercise)
    lines: list[str] = []
    for stage, found in stages.items():
        earned, points = sum(_points(record, one) for one in found), sum(one.points for one in found)
        sums = f"{earned} of {points} points, {sum(one.minutes for one in found)} min" if found else "no points"
        lines.append(f"{stage} {stage_names().get(stage, ''):<34} {sums}")
        lines += [_line(record, one) for one in found]
        if record["logbook"].get(stage):
            lines.append(f"     logbook: {figures_text(record['logbook'][stage])}")
    earned = sum(_points(record, one) for one in exercises.values())
    lines += ["", f"{earned} of {sum(one.points for one in exercises.values())} points in all. {_next(record, stages)}"]
    return "\n".join(lines)


def stage_names() -> dict[str, str]:
    """Return the stages that have a lesson, by number, from the names of the notebooks."""
    found = (path.stem.partition("_") for path in sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")))
    return {stage: name.replace("_", " ") for stage, _, name in found}


def figures_text(figures: dict[str, Any]) -> str:
    """Return the entries of the logbook as words: "exact, alpha 0.62, tokens per round 2.8"."""
    parts = []
    for name, value in figures.items():
        words = name.replace("_", " ")
        if isinstance(value, bool):
            parts.append(words if value else f"not {words}")
        else:
            parts.append(f"{words} {value:.4g}" if isinstance(value, float) else f"{words} {value}")
    return ", ".join(parts)


def _points(record: Record, exercise: Exercise) -> int:
    return exercise.points if record["exercises"].get(exercise.id, {}).get("status") == "passed" else 0


def _line(record: Record, exercise: Exercise) -> str:
    mark = _MARKS.get(str(record["exercises"].get(exercise.id, {}).get("status")), "○")
    stars = "●" * exercise.difficulty + "○" * (5 - exercise.difficulty)
    points = f"{_points(record, exercise)}/{exercise.points}"
    return f"   {mark} {exercise.id:<5} {exercise.title:<40} {points:>5}  {stars}  {exercise.minutes:>3} min"


def _next(record: Record, stages: dict[str, list[Exercise]]) -> str:
    left = [one for found in stages.values() for one in found if not _points(record, one)]
    if not left:
        return "Everything is done."
    name = next((path.name for path in sorted((ROOT / "exercises").glob(f"{left[0].stage}_*.ipynb"))), "")
    where = f" in exercises/{name}" if name else ""
    return f"Next: {left[0].id} {left[0].title} ({left[0].minutes} min){where}"


def logbook_text(record: Record) -> str:
    """Return the whole logbook, a line for each stage."""
    entries = sorted(record["logbook"].items())
    return "\n".join(f"{stage_of(stage)}  {figures_text(figures)}" for stage, figures in entries)
