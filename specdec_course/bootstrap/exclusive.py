"""Keeps two runs of `course.py` from setting up the same folder at the same time."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock that the system frees by itself when this process ends, however it ends.

    Parameters
    ----------
    path : Path
        The lock's file; made if absent, and left there.
    """
    with path.open("a+b") as file:
        waiting = False
        while not _try_lock(file.fileno()):
            if not waiting:
                print("  another course.py is setting up this folder: waiting for it ...", file=sys.stderr, flush=True)
                waiting = True
            time.sleep(0.5)
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        if os.name == "nt":
            import msvcrt

            os.lseek(descriptor, 0, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # pyright: ignore[reportAttributeAccessIssue]
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
