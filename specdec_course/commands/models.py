"""`specdec models`: fetch the target of the course, and list the models on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(help="Fetch and list the models of the course.", no_args_is_help=True)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="The model to fetch: smol.")],
    force: Annotated[bool, typer.Option(help="Convert again, even where the model is there and whole.")] = False,
) -> None:
    """Download SmolLM2-135M-Instruct (93 MB) and convert it once (540 MB); does nothing where it is there and whole."""
    from specdec_course.errors import CourseError
    from specdec_course.models import fetch_smol

    if name != "smol":
        raise CourseError(f"there is no model {name!r} to fetch: the one that can be fetched is smol")
    typer.echo(f"SmolLM2-135M-Instruct is ready in {fetch_smol(force=force)}")
