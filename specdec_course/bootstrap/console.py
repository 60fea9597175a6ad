"""Runs a long command and shows that it is alive: one line a step, with the time it takes."""

from __future__ import annotations

import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

QUIET_INTERVAL = 30.0  # seconds between signs of life where lines cannot be overwritten (a log file)
LIVE_INTERVAL = 0.5  # seconds between updates of the line in a terminal


class StepError(Exception):
    """A command failed.

    Parameters
    ----------
    lines : sequence of str
        Everything the command printed.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__(lines[-1] if lines else "no message")
        self.lines = list(lines)


def child_environment() -> dict[str, str]:
    """Return the environment for the course's own Python, freed of settings that point to another one."""
    hidden = {"PYTHONHOME", "PYTHONPATH", "PYTHONSAFEPATH", "__PYVENV_LAUNCHER__", "VIRTUAL_ENV"}
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    return {**kept, "PYTHONUTF8": "1", "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def run_step(title: str, command: Sequence[str | Path], cwd: Path, verbose: bool = False) -> list[str]:
    """Run a command, show its progress on stderr and collect what it prints.

    Parameters
    ----------
    title : str
        What is being done, for people.
    command : sequence of str or Path
        Program and arguments.
    cwd : Path
        Where it runs.
    verbose : bool
        Show every line of the command instead of a summary.

    Returns
    -------
    list of str
        The lines printed, stdout and stderr together.

    Raises
    ------
    StepError
        The command ended with a code other than 0.
    """
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=cwd,
        env=child_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    assert process.stdout is not None
    arriving: queue.Queue[str] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process.stdout, arriving), daemon=True)
    reader.start()
    shown = _Progress(title, verbose)
    try:
        while reader.is_alive() or not arriving.empty():
            try:
                shown.line(arriving.get(timeout=0.1))
            except queue.Empty:
                shown.tick()
        code = process.wait()
    except BaseException:
        process.kill()
        process.wait()
        shown.end("stopped")
        raise
    shown.end("failed" if code else "done")
    if code:
        raise StepError(shown.lines)
    return shown.lines


def _read(stream: IO[str], arriving: queue.Queue[str]) -> None:
    """Hand every line of a stream to the thread that shows progress."""
    for line in stream:
        arriving.put(line.rstrip())


class _Progress:
    """One line of progress: rewritten in a terminal, repeated now and then in a log file."""

    def __init__(self, title: str, verbose: bool) -> None:
        self.title, self.verbose, self.lines = title, verbose, list[str]()
        self.live = sys.stderr.isatty() and not verbose
        self.start = time.monotonic()
        self.due = self.start
        self.tick(first=True)

    def line(self, text: str) -> None:
        self.lines.append(text)
        if self.verbose:
            print(text, file=sys.stderr, flush=True)
        self.tick()

    def tick(self, first: bool = False) -> None:
        now = time.monotonic()
        if now < self.due:
            return
        self.due = now + (LIVE_INTERVAL if self.live else QUIET_INTERVAL)
        self._write("..." if first else f"... {now - self.start:.0f} s  {self._news()}")

    def end(self, word: str) -> None:
        self._write(f"{word} ({time.monotonic() - self.start:.0f} s)")
        if self.live:
            print(file=sys.stderr, flush=True)

    def _write(self, text: str) -> None:
        line = f"  {self.title} {text}"
        if self.live:
            width = shutil.get_terminal_size().columns - 1
            print("\r" + line[:width].ljust(width), end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def _news(self) -> str:
        """What the command does now; pip's own lines made short."""
        if any(line.startswith("Installing collected packages") for line in self.lines):
            return "all downloaded, unpacking"
        collected = [line.split()[1] for line in self.lines if line.startswith(("Collecting ", "Processing "))]
        if collected:
            name = re.split(r"[/\\]", collected[-1])[-1].removesuffix(".whl")
            return f"package {len(collected)}: {'-'.join(name.split('-')[:2])}"
        return self.lines[-1].strip() if self.lines else ""
