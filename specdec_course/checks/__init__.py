"""Exercises, and how answers to them are checked: observed in one process, judged in another or the same.

`exercise` is what the author of a stage fills in, `stage_NN` holds the exercises of a stage, `observe` runs a learner's
function and writes down plain data, `judge` compares that with the reference and says what is wrong.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from specdec_course.errors import CourseError

if TYPE_CHECKING:
    from specdec_course.checks.exercise import Exercise, Question

_Item = TypeVar("_Item", "Exercise", "Question")


@functools.cache
def all_exercises() -> dict[str, Exercise]:
    """Return every exercise by its id, in the order of the course: `EXERCISES` of the modules `stage_NN`."""
    return _sorted([exercise for module in _stages() for exercise in module.EXERCISES])


@functools.cache
def all_questions() -> dict[str, Question]:
    """Return every concept check by its id, in the order of the course: `QUESTIONS` of the modules `stage_NN`."""
    return _sorted([question for module in _stages() for question in getattr(module, "QUESTIONS", [])])


def find_exercise(name: str) -> Exercise:
    """Return the exercise with this id.

    Raises
    ------
    CourseError
        If there is none.
    """
    return _find(name, all_exercises(), "exercise")


def find_question(name: str) -> Question:
    """Return the concept check with this id.

    Raises
    ------
    CourseError
        If there is none.
    """
    return _find(name, all_questions(), "question")


def _stages() -> Iterator[ModuleType]:
    for found in sorted(pkgutil.iter_modules(__path__), key=lambda found: found.name):
        if re.fullmatch(r"stage_\d\d", found.name):
            yield importlib.import_module(f"{__name__}.{found.name}")


def _sorted(items: list[_Item]) -> dict[str, _Item]:
    by_id = {item.id: item for item in items}
    if len(by_id) < len(items):
        twice = next(item.id for item in items if by_id[item.id] is not item)
        raise ValueError(f"the id {twice} is used twice")
    return dict(sorted(by_id.items(), key=lambda pair: _order(pair[0])))


def _order(name: str) -> tuple[int, int, str]:
    stage, _, number = name.partition(".")
    return int(stage), int(number) if number.isdigit() else 0, number


def _find(name: str, known: dict[str, _Item], kind: str) -> _Item:
    if name not in known:
        raise CourseError(f"there is no {kind} {name!r}: choose one of {', '.join(known) or 'none yet'}")
    return known[name]
