"""`specdec check`: check a learner's notebooks from the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def check(
    what: Annotated[
        str, typer.Argument(help="A stage (02), an exercise (2.1), a notebook, or a folder of notebooks.")
    ] = "",
    function: Annotated[Path | None, typer.Option(help="Judge the function in this Python file instead.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Check exercises as their notebooks do, by default all of `exercises/`; exit code 0 only when all pass."""
    import json

    from specdec_course.checks import terminal

    files: list[str] = []

    def tell(result: terminal.Result) -> None:
        if as_json:
            return
        if result.file not in files:
            files.append(result.file)
            typer.echo(result.file)
        typer.echo(result.text())

    results = terminal.run(what, function, tell)
    if as_json:
        typer.echo(json.dumps(terminal.as_json(results), indent=2, ensure_ascii=False))
    else:
        typer.echo(terminal.summary(results))
    if not all(result.verdict.status == "passed" for result in results):
        raise typer.Exit(code=1)
