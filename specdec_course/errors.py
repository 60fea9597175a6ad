"""The one kind of error that a learner is meant to read."""

from __future__ import annotations


class CourseError(ValueError):
    """Something the user can put right.

    The message is one sentence: what was wrong, where, and what to do. The command line prints it as a single line on
    stderr and exits with code 1, without a traceback.
    """
