"""Bounds around a learner's code: how long it may run, and how much of what it prints is kept."""

from __future__ import annotations

import contextlib
import ctypes
import io
import signal
import sys
import threading
import warnings
from collections.abc import Iterator


class TimeIsUpError(BaseException):
    """Raised inside code that ran too long. Not an `Exception`: a learner's `except Exception` does not catch it."""


def time_limit(seconds: float) -> contextlib.AbstractContextManager[None]:
    """Raise `TimeIsUpError` in this thread once `seconds` have passed, again and again until the body is left.

    In the main thread of a Unix process a signal interrupts even a sleep. Elsewhere an endless loop is left at its
    next step of Python. A single long call into compiled code is not interrupted.
    """
    if sys.platform != "win32" and threading.current_thread() is threading.main_thread():
        return _by_signal(seconds)
    return _by_thread(seconds)


if sys.platform != "win32":

    @contextlib.contextmanager
    def _by_signal(seconds: float) -> Iterator[None]:
        def ring(*_: object) -> None:
            raise TimeIsUpError

        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, seconds, 0.2)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _by_thread(seconds: float) -> Iterator[None]:
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
