"""`specdec lock`: for maintainers, makes or checks requirements.lock."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parents[2]


def lock(
    check: Annotated[bool, typer.Option("--check", help="Resolve the lock for every system, change nothing.")] = False,
    upgrade: Annotated[bool, typer.Option("--upgrade", help="Take the newest versions allowed.")] = False,
) -> None:
    """Make requirements.lock from pyproject.toml, for every system at once (needs the network)."""
    from specdec_course.lock import check_lock, make_lock

    if check:
        for combination in check_lock(ROOT):
            print(f"resolved: {combination}")
    else:
        (ROOT / "requirements.lock").write_text(make_lock(ROOT, upgrade), encoding="utf-8", newline="\n")
        print("wrote requirements.lock")
