"""`specdec progress`: the map of the course."""

from __future__ import annotations


def progress() -> None:
    """Show what you have passed, what is left and what comes next."""
    from specdec_course.checks.notebook import progress as show_progress

    show_progress()
