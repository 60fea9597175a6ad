"""The learner's own record: one JSON file with what was passed, how often a check failed, hints taken, the logbook.

`SPECDEC_PROGRESS` names the file; otherwise it lies in the user's data folder. It is written whole or not at all. A
file that cannot be read is set aside under another name, never lost, and the learner is told.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock
import platformdirs

_SECTIONS = ("exercises", "hints", "quizzes", "logbook")
Record = dict[str, dict[str, Any]]


def record_path() -> Path:
    """Find the file: `SPECDEC_PROGRESS` where set, else `progress.json` in the user's data folder."""
    chosen = os.environ.get("SPECDEC_PROGRESS")
    return Path(chosen).expanduser() if chosen else platformdirs.user_data_path("specdec", False) / "progress.json"


def read(tell: Callable[[str], object] = print) -> Record:
    """Return the record; an empty one where none is there. `tell` hears of a damaged file that was set aside."""
    path = record_path()
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, dict) or not all(isinstance(record.get(name, {}), dict) for name in _SECTIONS):
            raise ValueError("not a record")
        entries = [entry for name in ("exercises", "logbook") for entry in record.get(name, {}).values()]
        if not all(isinstance(entry, dict) for entry in entries):
            raise ValueError("not a record")
    except FileNotFoundError:
        record = {}
    except OSError as error:
        tell(f"Your progress could not be read: {error}")
        record = {}
    except ValueError:
        record = {}
        aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
        with contextlib.suppress(OSError):
            path.replace(aside)
            tell(f"Your progress file was damaged. It was set aside as {aside.name}, and a new one was begun.")
    return {name: record.get(name, {}) for name in _SECTIONS}


@contextlib.contextmanager
def changing(tell: Callable[[str], object] = print) -> Iterator[Record]:
    """Give the record to the body, and write it back; where that is impossible, `tell` hears it and all goes on."""
    path = record_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock: Any = filelock.FileLock(path.with_name(path.name + ".lock"), timeout=5)
        lock.acquire()
    except (OSError, filelock.Timeout) as error:
        tell(f"Your progress could not be saved: {error}")
        yield {name: {} for name in _SECTIONS}
        return
    try:
        record = read(tell)
        yield record
        unfinished = path.with_name(f"{path.name}.{os.getpid()}.new")
        try:
            unfinished.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8", newline="\n")
            unfinished.replace(path)
        except OSError as error:
            tell(f"Your progress could not be saved: {error}")
    finally:
        lock.release()
