"""`specdec lock`: for maintainers, makes or checks requirements.lock."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parents[2]


def lock(
    check: Annotated[bool, typer.Option("--check", help="Resolve the lock for every system, change nothing.")] = False,
    record: Annotated[Path | None, typer.Option(help="With --check: keep the result in this file.")] = None,
    upgrade: Annotated[bool, typer.Option("--upgrade", help="Take the newest versions allowed.")] = False,
) -> None:
    """Make requirements.lock from pyproject.toml, for every system at once (needs the network)."""
    from specdec_course.lock import check_lock, make_lock, record_check

    if check and record:
        print("checking that the lock resolves on every system ...", file=sys.stderr, flush=True)
        record_check(ROOT, record)
    elif check:
        for combination in check_lock(ROOT):
            print(f"resolved: {combination}")
    else:
        (ROOT / "requirements.lock").write_text(make_lock(ROOT, upgrade), encoding="utf-8", newline="\n")
        print("wrote requirements.lock")
