"""Check answers in a process of their own: whatever one of them does, it costs that one question and no other.

The process is started anew after one that ended, hung or said too much. What it says is JSON and is read with
suspicion; it is judged here.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from specdec_course.checks import find_exercise
from specdec_course.checks.answers import Answer
from specdec_course.checks.exercise import Verdict
from specdec_course.checks.judge import NOT_ATTEMPTED, judge, not_yet
from specdec_course.checks.limits import PATIENCE
from specdec_course.checks.worker import CELLS_S
from specdec_course.errors import CourseError

ROOT = Path(__file__).resolve().parents[2]
START_S = 180.0  # importing torch on a busy machine
MAX_LINE = 16 << 20  # bytes of one observation
_GRACE_S = 30.0


def check_answers(answers: Sequence[Answer], folder: Path, seed: int = 0) -> Iterator[tuple[Answer, Verdict]]:
    """Yield each answer with its verdict, in order.

    Parameters
    ----------
    answers : sequence of Answer
    folder : Path
        Where the learner's code runs: the folder of the notebook.
    seed : int
        Of the cases.

    Raises
    ------
    CourseError
        If no process can be started at all; nothing that an answer does raises.
    """
    left = list(answers)
    while left:
        if left[0].problem:
            yield left[0], _not_readable(left.pop(0))
            continue
        readable = [answer for answer in left if not answer.problem]
        with _Worker(readable, folder, seed) as worker:
            while left:
                answer = left.pop(0)
                if answer.problem:
                    yield answer, _not_readable(answer)
                    continue
                verdict = worker.verdict(answer)
                yield answer, verdict
                if worker.is_lost:
                    break


def _not_readable(answer: Answer) -> Verdict:
    return not_yet(find_exercise(answer.exercise), "cannot be read as Python", _sentence(f"{answer.problem}."))


def _sentence(text: str) -> str:
    return f"C{text[1:]}" if text.startswith("cell ") else text  # names of functions and files stay as they are


class _Worker:
    """One process and the jobs that were given to it."""

    def __init__(self, answers: Sequence[Answer], folder: Path, seed: int) -> None:
        self.seed, self.is_lost = seed, False
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process is)
        search = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "specdec_course.checks.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": search, "PYTHONUTF8": "1", "MPLBACKEND": "Agg"},
            start_new_session=True,
        )
        self.lines: queue.Queue[bytes] = queue.Queue(maxsize=4)
        assert self.process.stdin is not None and self.process.stdout is not None
        jobs = [
            {"exercise": a.exercise, "expression": a.expression, "sources": a.sources, "seed": seed} for a in answers
        ]
        with contextlib.suppress(OSError):
            self.process.stdin.write(json.dumps(jobs).encode("utf-8"))
            self.process.stdin.close()
        threading.Thread(target=_read, args=(self.process.stdout, self.lines), daemon=True).start()
        if self._message(START_S) != {"ready": True}:
            self.errors.seek(0)
            said = self.errors.read().decode("utf-8", "replace").strip().splitlines() or ["it said nothing"]
            self.close()
            raise CourseError(f"the process that runs answers did not start: {said[-1]}")

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process and what it started."""
        with contextlib.suppress(OSError):
            if sys.platform == "win32":
                self.process.kill()
            else:
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.errors.close()

    def verdict(self, answer: Answer) -> Verdict:
        """Wait for the observation of the next answer and judge it; `is_lost` is set where the process is no more."""
        exercise = find_exercise(answer.exercise)
        started = self._message(_GRACE_S)
        told = (
            self._message(2 * CELLS_S + PATIENCE * exercise.seconds + _GRACE_S)
            if isinstance(started, dict)
            else started
        )
        if isinstance(told, dict) and started == {"start": exercise.id} and told.get("done") == exercise.id:
            if "observation" in told:
                return judge(exercise, told["observation"], self.seed)
            problem = str(told.get("problem", "The answer could not be read."))
            if told.get("type") == "NotImplementedError":
                return Verdict(exercise.id, NOT_ATTEMPTED, headline=problem)
            return not_yet(exercise, None, _sentence(problem))
        self.is_lost = True
        what = told if isinstance(told, str) else "Something was said that is no observation."
        return not_yet(exercise, "broke its process", what, why="The other exercises were checked all the same.")

    def _message(self, seconds: float) -> Any:
        """Return the next message, or a sentence that says why there is none."""
        try:
            line = self.lines.get(timeout=seconds)
        except queue.Empty:
            return "There was no answer in time, and the process had to be ended: does a loop never end?"
        if not line:
            return "The whole process ended: does your code call exit or quit?"
        if len(line) >= MAX_LINE:
            return "The answer was too large to be read."
        try:
            return json.loads(line)
        except ValueError:
            return "Something was said that is no observation."


def _read(stream: IO[bytes], lines: queue.Queue[bytes]) -> None:
    """Put lines into the queue, at most `MAX_LINE` bytes of each; an empty one says that there are no more."""
    with contextlib.suppress(OSError, ValueError):
        while line := stream.readline(MAX_LINE):
            lines.put(line)
            if len(line) >= MAX_LINE:
                break
    lines.put(b"")
