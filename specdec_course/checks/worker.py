"""The process that runs a learner's code: reads jobs, observes, and writes one line of JSON for each.

Started by `specdec_course.checks.runner`. What the learner's code prints, exits or breaks stays in here.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from specdec_course.checks.limits import TimeIsUpError, captured, time_limit
from specdec_course.checks.sources import execute, new_module

CELLS_S = 60.0  # for the cells that define a function; the limit of its calls is the exercise's own


def main() -> None:
    """Answer all jobs of stdin, one after another."""
    jobs = json.loads(sys.stdin.buffer.read().decode("utf-8"))
    with os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n") as channel:
        sys.path.append(str(Path.cwd()))  # helper files beside the notebook, after everything else
        from specdec_course.checks import find_exercise
        from specdec_course.checks.observe import observe

        _answer_nothing()
        _tell(channel, {"ready": True})
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nowhere, number)
        for job in jobs:
            _tell(channel, {"start": job["exercise"]})
            found = _find(job)
            if "function" in found:
                exercise = find_exercise(job["exercise"])
                found = {"observation": observe(exercise, found["function"], job["seed"])}
            _tell(channel, {"done": job["exercise"], **found})


def _answer_nothing() -> None:
    """Silence the course's own questions: a cell may ask them beside defining a function."""
    import specdec_course

    for name in ("check", "hint", "progress", "replay", "quiz", "logbook"):
        setattr(specdec_course, name, lambda *_, **__: None)


def _find(job: dict[str, Any]) -> dict[str, Any]:
    """Run the sources of a job and return its function, or the problem in words."""
    module = new_module("learner")
    module.__dict__.update(display=lambda *_, **__: None, get_ipython=lambda: None)
    problem: dict[str, Any] = {}
    for name, source in job["sources"]:
        problem = _run(name, source, module.__dict__) or problem
    try:
        with captured(), time_limit(5.0):
            return {"function": eval(job["expression"], module.__dict__)}
    except NameError as error:
        return problem or {"problem": f"{error.name or job['expression']} is not defined.", "type": "NameError"}
    except BaseException as error:
        return problem or {"problem": f"{job['expression']}: {_words(error)}", "type": type(error).__name__}


def _run(name: str, source: str, namespace: dict[str, Any]) -> dict[str, Any] | None:
    try:
        with captured(), time_limit(CELLS_S):
            execute(name, source, namespace)
    except TimeIsUpError:
        return {"problem": f"{name} had not ended after {CELLS_S:g} seconds.", "type": "TimeIsUp"}
    except BaseException as error:  # `exit()` included
        return {"problem": f"{name} stopped with {_words(error)}", "type": type(error).__name__}
    return None


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}"


def _tell(channel: Any, message: dict[str, Any]) -> None:
    channel.write(json.dumps(message, allow_nan=False) + "\n")
    channel.flush()


if __name__ == "__main__":
    main()
