"""`specdec models`: fetch the target of the course, and list the models on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(help="Fetch and list the models of the course.", no_args_is_help=True)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="The model to fetch: smol.")],
    force: Annotated[bool, typer.Option("--force", help="Convert again, even where the model is whole.")] = False,
) -> None:
    """Download SmolLM2-135M-Instruct (93 MB) and convert it once (540 MB); does nothing where it is whole."""
    from specdec_course.errors import CourseError
    from specdec_course.models import fetch_smol

    if name != "smol":
        raise CourseError(f"there is no model {name!r} to fetch: the one that can be fetched is smol")
    typer.echo(f"SmolLM2-135M-Instruct is ready in {fetch_smol(force=force)}")


@app.command(name="list")
def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array and nothing else.")] = False,
) -> None:
    """Show each model: whether it is there and whole, its size on disk, licence, source and folder."""
    import dataclasses
    import json

    from rich.console import Console
    from rich.table import Table

    from specdec_course.model_list import model_rows

    rows = model_rows()
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(row) for row in rows], indent=2))
        return
    table = Table("model", "present", "size", "licence", "source", "folder")
    for column in table.columns:
        column.overflow = "fold"
    for row in rows:
        present = "yes" if row.problem is None else "damaged" if row.present else "no"
        size = f"{row.size_bytes / 1e6:.0f} MB" if row.present else "-"
        table.add_row(row.name, present, size, row.license or "unknown", row.source or "unknown", row.folder)
    console = Console()
    console.print(table)
    for row in rows:
        if row.problem is not None:
            console.print(row.problem, markup=False, highlight=False)
