"""Bounds around a learner's code: how long it may run, and how much of what it prints is kept."""

from __future__ import annotations

import contextlib
import ctypes
import io
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator

PATIENCE = 4
_AGAIN_S = 0.2


class TimeIsUpError(BaseException):
    """Raised inside code that ran too long. Not an `Exception`: a learner's `except Exception` does not catch it."""


def time_limit(seconds: float) -> contextlib.AbstractContextManager[None]:
    """Raise `TimeIsUpError` in this thread once time is up, again and again until the body is left.

    Time is up when the process has used `seconds` of a processor, and not before so many seconds have passed; or when
    `PATIENCE` times as many have passed. So a busy machine does not make a good answer late, and a sleep ends too.

    In the main thread of a Unix process a signal interrupts even a sleep. Elsewhere an endless loop is left at its
    next step of Python. A single long call into compiled code is not interrupted.
    """
    if sys.platform != "win32" and threading.current_thread() is threading.main_thread():
        return _by_signal(seconds)
    return _by_thread(seconds)


class _Clock:
    """Started when it is made."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.wall, self.used = seconds, time.monotonic(), time.process_time()

    def is_up(self) -> bool:
        passed, used = time.monotonic() - self.wall, time.process_time() - self.used
        return passed >= self.seconds and (used >= self.seconds or passed >= PATIENCE * self.seconds)


if sys.platform != "win32":

    @contextlib.contextmanager
    def _by_signal(seconds: float) -> Iterator[None]:
        clock = _Clock(seconds)

        def ring(*_: object) -> None:
            if clock.is_up():
                raise TimeIsUpError

        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _by_thread(seconds: float) -> Iterator[None]:
    thread = ctypes.c_ulong(threading.get_ident())
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    done, guard, clock = threading.Event(), threading.Lock(), _Clock(seconds)

    def watch() -> None:
        wait = seconds
        while not done.wait(wait):
            with guard:
                if clock.is_up() and not done.is_set():
                    raise_in(thread, ctypes.py_object(TimeIsUpError))
            wait = _AGAIN_S

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
