"""Run a learner's function on the cases of an exercise and write down what it did, as plain data.

This half knows no right answers and never imports `specdec_ref`.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import linecache
import random
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from specdec_course.checks.exercise import Case, Exercise, Luck, Made
from specdec_course.checks.limits import TimeIsUpError, captured, time_limit
from specdec_course.checks.plain import Plain, encode

_PACKAGE = str(Path(__file__).resolve().parents[1])
_LIBRARIES = (_PACKAGE, sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["purelib"], "<frozen", "<string>")
_MAX_ROUNDS = 10_000  # items taken from a generator


def observe(exercise: Exercise, function: Any, seed: int = 0) -> Plain:
    """Return what `function` did on the cases of `exercise`: a dict that JSON can carry.

    Keys: `callable`, `signature` (what is wrong with it, or None), `cases` (one entry each, see `observe_case`; fewer
    where time ran out), `stopped` (None, or "time"), `global_random` (whether a global random generator was used),
    `printed`.
    """
    seen: Plain = {"callable": callable(function), "signature": None, "cases": [], "stopped": None, "printed": ""}
    seen["global_random"] = False
    if not callable(function):
        return {**seen, "type": type(function).__name__}
    cases = exercise.cases(seed)
    if exercise.drive is None:
        seen["signature"] = _signature_problem(function, cases[0])
    if seen["signature"]:
        return seen
    random_before = _global_random()
    with captured() as printed:
        try:
            with time_limit(exercise.seconds):
                for case in cases:
                    seen["cases"].append(observe_case(exercise, function, case))
        except TimeIsUpError:
            seen["stopped"] = "time"
    seen["global_random"] = not _same_random(random_before, _global_random())
    return {**seen, "printed": printed.getvalue()}


def uses_global_random(exercise: Exercise, function: Callable[..., Any], cases: Sequence[Case]) -> bool:
    """Whether the cases disturb a global random generator."""
    before = _global_random()
    for case in cases:
        observe_case(exercise, function, case)
    return not _same_random(before, _global_random())


def observe_case(exercise: Exercise, function: Callable[..., Any], case: Case) -> Plain:
    """Return what one call did.

    Keys: `value` (encoded; for a case with repeats the list of values), `error` (None, or type, names of its bases,
    message, the learner's line), `changed` (names of arguments that were changed), `drawn` (names of the generators
    drawn from), `none` (whether a call returned None).
    """
    arguments = {
        name: value.make() if isinstance(value, Made) else _copy(value) for name, value in case.arguments.items()
    }
    generators = {name: value.get_state() for name, value in arguments.items() if isinstance(value, torch.Generator)}
    watched, returned = _watched(function)
    seen: Plain = {"value": {"kind": "none"}, "error": None}
    try:
        results = [_drive(exercise, watched, arguments) for _ in range(case.repeats or 1)]
        seen["value"] = encode(results if case.repeats else results[0])
    except TimeIsUpError:
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # `exit()` too is an answer of the learner's
        seen["error"] = _describe(error)
    seen["none"] = bool(returned)
    seen["changed"] = [name for name, value in case.arguments.items() if not _unchanged(value, arguments[name])]
    seen["drawn"] = [name for name, state in generators.items() if not torch.equal(state, arguments[name].get_state())]
    return seen


def _drive(exercise: Exercise, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    arguments = {name: value.draw() if isinstance(value, Luck) else value for name, value in arguments.items()}
    if exercise.drive is not None:
        return exercise.drive(function, arguments)
    value = function(*arguments.values())
    if isinstance(value, Iterator):
        return list(itertools.islice(value, _MAX_ROUNDS))
    return value


def _watched(function: Callable[..., Any]) -> tuple[Callable[..., Any], list[None]]:
    """Wrap a function so that a None it returned is known even where `drive` fails on it; classes stay as they are."""
    returned: list[None] = []
    if isinstance(function, type):
        return function, returned

    def call(*positional: Any, **named: Any) -> Any:
        value = function(*positional, **named)
        if value is None:
            returned.append(value)
        return value

    return call, returned


def _signature_problem(function: Callable[..., Any], case: Case) -> str | None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some callables of compiled code have none
        return None
    try:
        signature.bind(*case.arguments.values())
    except TypeError:
        return f"{getattr(function, '__name__', 'your function')}{signature}"
    return None


def _copy(value: Any) -> Any:
    return value.clone() if type(value) is torch.Tensor else copy.deepcopy(value)


def _unchanged(before: Any, after: Any) -> bool:
    if isinstance(before, Made):
        return True
    if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
        same_form = (before.shape, before.dtype) == (after.shape, after.dtype)
        if same_form and torch.equal(before, after):
            return True
    try:
        return encode(before) == encode(after)
    except ValueError:  # grown beyond all bounds
        return False


def _global_random() -> tuple[torch.Tensor, Any, Any]:
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def _same_random(before: tuple[torch.Tensor, Any, Any], after: tuple[torch.Tensor, Any, Any]) -> bool:
    numpy_same = before[1][2] == after[1][2] and np.array_equal(before[1][1], after[1][1])
    return torch.equal(before[0], after[0]) and numpy_same and before[2] == after[2]


def _describe(error: BaseException) -> Plain:
    number, line = _own_line(error.__traceback__)
    return {
        "type": type(error).__name__,
        "bases": [base.__name__ for base in type(error).__mro__],
        "message": str(error)[:500],
        "line_number": number,
        "line": line,
    }


def _own_line(trace: TracebackType | None) -> tuple[int, str]:
    """Return number and text of the innermost line that is the learner's."""
    found = 0, ""
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith(_LIBRARIES) and "site-packages" not in name:
            found = trace.tb_lineno, linecache.getline(name, trace.tb_lineno, trace.tb_frame.f_globals).strip()
        trace = trace.tb_next
    return found
