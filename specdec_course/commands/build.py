"""`specdec build`: make the notebooks from `source/`, or check that they are up to date."""

from __future__ import annotations

from typing import Annotated

import typer


def build(
    check: Annotated[bool, typer.Option("--check", help="Compare only; change and execute nothing.")] = False,
    stage: Annotated[str | None, typer.Option(help="Only the stage with this number, as 02.")] = None,
    execute: Annotated[bool, typer.Option("--execute/--no-execute", help="Run the cells.")] = True,
    cell_timeout: Annotated[int, typer.Option(min=1, help="Seconds that one cell may take.")] = 300,
    force: Annotated[bool, typer.Option("--force", help="Build again what is up to date.")] = False,
) -> None:
    """Build the lessons, exercises and solutions from their sources."""
    import nbformat

    from specdec_course.building import up_to_date
    from specdec_course.building.products import products, strays
    from specdec_course.building.stored import LEAST_COMPARED, compared_share
    from specdec_course.errors import CourseError

    chosen = products(stage=stage)
    if check:
        found = [problem for product in chosen if (problem := up_to_date.difference(product))]
        if found:
            raise CourseError("; ".join(found) + ": run `specdec build`")
        left = [f"{path.parent.name}/{path.name}" for path in strays()]
        if left:
            raise CourseError(f"no text in source/ builds {', '.join(left)}: delete what is left over")
        typer.echo(f"{len(chosen)} notebooks are up to date")
        return
    for product in chosen:
        written = up_to_date.build(product, run_cells=execute, force=force, timeout_s=cell_timeout)
        typer.echo(f"built {product.name}" if written else f"{product.name} is up to date")
        share = compared_share(nbformat.read(product.goal, as_version=4))
        if share < LEAST_COMPARED:
            typer.echo(f"  nbval compares only {share:.0%} of its cells with outputs, of {LEAST_COMPARED:.0%} wanted")
