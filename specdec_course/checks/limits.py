"""Bounds around a learner's code: how long it may run, and how much of what it prints is kept."""

from __future__ import annotations

import contextlib
import ctypes
import io
import threading
import warnings
from collections.abc import Iterator


class TimeIsUpError(BaseException):
    """Raised inside code that ran too long. Not an `Exception`: a learner's `except Exception` does not catch it."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeIsUpError` in this thread once `seconds` have passed, again and again until the body is left.

    Works in any thread and on every system, for code of Python: an endless loop is left at its next step. A single
    call into compiled code is not interrupted.
    """
    thread = ctypes.c_ulong(threading.get_ident())
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    done, guard = threading.Event(), threading.Lock()

    def watch() -> None:
        wait = seconds
        while not done.wait(wait):
            with guard:
                if not done.is_set():
                    raise_in(thread, ctypes.py_object(TimeIsUpError))
            wait = 0.2

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        with guard:
            done.set()
            raise_in(thread, None)  # takes back an exception that was sent and has not arrived
        watcher.join()


class _Kept(io.StringIO):
    """Keeps the first characters written to it and forgets the rest."""

    limit = 1000

    def write(self, text: str, /) -> int:
        room = self.limit - self.tell()
        super().write(text[: max(0, room)])
        return len(text)


@contextlib.contextmanager
def captured() -> Iterator[io.StringIO]:
    """Collect what Python code prints, to either stream, and silence warnings: nbgrader zeroes a cell with stderr."""
    kept = _Kept()
    with contextlib.redirect_stdout(kept), contextlib.redirect_stderr(kept), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield kept
