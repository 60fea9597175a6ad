"""`specdec hint`: one more hint for an exercise."""

from __future__ import annotations

from typing import Annotated

import typer


def hint(exercise: Annotated[str, typer.Argument(help="The exercise, such as 2.1.")]) -> None:
    """Print one more hint for an exercise each time; there are three."""
    from specdec_course.checks.notebook import hint as give_hint

    give_hint(exercise)
