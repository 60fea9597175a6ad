"""`specdec build`: make the notebooks from `source/`, or check that they are up to date."""

from __future__ import annotations

from typing import Annotated

import typer


def build(
    check: Annotated[bool, typer.Option("--check", help="Compare only; change and execute nothing.")] = False,
    stage: Annotated[str | None, typer.Option(help="Only the stage with this number, as 00.")] = None,
    execute: Annotated[bool, typer.Option("--execute/--no-execute", help="Run the cells.")] = True,
) -> None:
    """Build the notebooks from their sources."""
    from specdec_course import build as builder
    from specdec_course.errors import CourseError

    chosen = [path for path in builder.stages() if stage is None or path.name.split("_")[0] == stage]
    if not chosen:
        raise CourseError(f"there is no stage {stage!r} in source/")
    problems = []
    for folder in chosen:
        lesson, goal = folder / "lesson.py", builder.ROOT / "notebooks" / f"{folder.name}.ipynb"
        if check:
            problems.append(builder.check(lesson, goal))
        else:
            builder.build(lesson, goal, execute)
            typer.echo(f"built {goal.relative_to(builder.ROOT).as_posix()}")
    found = [problem for problem in problems if problem]
    if found:
        raise CourseError("; ".join(found) + ": run `specdec build`")
