"""The `specdec` command: builds the root command from the modules of `specdec_course.commands`.

A module of that package is a sub-command of the same name (underscores become hyphens). It offers either ``app``, a
`typer.Typer` with sub-commands of its own, or a function called like the module, for a single command. Each module is
imported when the command line starts, so it imports torch and its like inside its functions only.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from specdec_course import commands
from specdec_course.errors import CourseError


class CourseGroup(TyperGroup):
    """The root command: prints a `CourseError` as one line on stderr and exits with code 1."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except CourseError as error:
            print(f"specdec: {error}", file=sys.stderr)
            raise typer.Exit(code=1) from error


def build_app() -> typer.Typer:
    """Make the root command with every sub-command found in `specdec_course.commands`.

    Returns
    -------
    typer.Typer
        The root application, ready to be called.
    """
    root = typer.Typer(
        name="specdec",
        cls=CourseGroup,
        help="Speculative decoding: the course's command line.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    root.callback()(_root)
    for module_info in sorted(pkgutil.iter_modules(commands.__path__), key=lambda found: found.name):
        module = importlib.import_module(f"{commands.__name__}.{module_info.name}")
        name = module_info.name.replace("_", "-")
        if hasattr(module, "app"):
            root.add_typer(module.app, name=name)
        elif hasattr(module, module_info.name):
            root.command(name)(getattr(module, module_info.name))
    return root


def _root() -> None:
    """Speculative decoding: the course's command line."""


app = build_app()
