"""`python -m specdec_course`: the `specdec` command, for when its script is not on the path."""

from __future__ import annotations

from specdec_course.cli import app

app(prog_name="specdec")
