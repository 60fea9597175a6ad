"""Runs the course: command line, build, checks, hints, progress, widgets and grading.

What a notebook uses is imported from here: ``from specdec_course import check, hint, progress``. Each name is loaded
when it is first asked for, so that the command line starts without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdec_course.checks.carry import carry as carry
    from specdec_course.checks.notebook import check as check
    from specdec_course.checks.notebook import hint as hint
    from specdec_course.checks.notebook import logbook as logbook
    from specdec_course.checks.notebook import progress as progress
    from specdec_course.checks.quiz import quiz as quiz
    from specdec_course.checks.replay import replay as replay

__all__ = ["carry", "check", "hint", "logbook", "progress", "quiz", "replay"]

_HOMES = {
    "carry": "carry",
    "check": "notebook",
    "hint": "notebook",
    "logbook": "notebook",
    "progress": "notebook",
    "quiz": "quiz",
    "replay": "replay",
}


def __getattr__(name: str) -> Any:
    """Load what a notebook asks for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"specdec_course.checks.{_HOMES[name]}"), name)
