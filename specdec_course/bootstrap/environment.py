"""The course's own Python environment, `.venv`: made from requirements.lock, and left alone while it is up to date."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from specdec_course.bootstrap.console import StepError, child_environment, run_step
from specdec_course.bootstrap.problems import explain
from specdec_course.errors import CourseError

NEEDED_GB = 5.0  # the packages with a CPU build of torch, the downloads while they are unpacked, and the target model


@dataclass(frozen=True)
class Stamp:
    """What an environment was made from; kept in it, written last."""

    python: str
    folder: str  # an environment holds absolute paths, so it does not survive a move
    torch_index: str | None
    lock: str
    package: str

    def same_base(self, other: Stamp) -> bool:
        """Tell whether an environment with this stamp can be brought up to the other one in place."""
        return (self.python, self.folder, self.torch_index) == (other.python, other.folder, other.torch_index)


class Environment:
    """The environment of one copy of the course.

    Parameters
    ----------
    root : Path
        The course's folder.
    verbose : bool
        Show everything that pip prints.
    """

    def __init__(self, root: Path, verbose: bool = False) -> None:
        self.root, self.verbose = root, verbose
        self.folder = root / ".venv"
        self.python = self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        self.stamp_file = self.folder / "course-stamp.json"
        self.unfinished = self.folder / "course-unfinished"  # there while packages are being put in
        self.discarded = root / ".venv.discarded"

    def stamp(self) -> Stamp | None:
        """Read the stamp; None where there is no finished environment made by the course."""
        try:
            return Stamp(**json.loads(self.stamp_file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def wanted(self, torch_index: str | None) -> Stamp:
        """Return the stamp that an up-to-date environment has.

        Parameters
        ----------
        torch_index : str or None
            The package index to take torch from: an address, ``"default"`` for pip's own choice, or None to stay with
            the choice made before.
        """
        if torch_index is None:
            present = self.stamp()
            torch_index = present.torch_index if present else None
        return Stamp(
            python=f"{sys.version_info[0]}.{sys.version_info[1]}",
            folder=str(self.root),
            torch_index=None if torch_index == "default" else torch_index,
            lock=_digest(self.root / "requirements.lock"),
            package=_digest(self.root / "pyproject.toml"),
        )

    def is_ready(self, wanted: Stamp) -> bool:
        """Tell whether there is nothing to do: the stamp is the wanted one and the environment's Python starts."""
        return self.stamp() == wanted and not self.unfinished.exists() and self._python_works()

    def ensure(self, torch_index: str | None = None) -> None:
        """Make the environment, or bring it up to date; do nothing where it is.

        Raises
        ------
        CourseError
            It cannot be made. Nothing half-made is left: what was there before stays, or nothing does.
        """
        wanted = self.wanted(torch_index)
        if self.is_ready(wanted):
            return
        self._check_disk()
        present = self.stamp()
        if self.unfinished.exists() or (present and not (present.same_base(wanted) and self._python_works())):
            self.discard()
        made_here = present is not None or not self.folder.exists()
        self._check_foreign(wanted.python)
        try:
            self._install(wanted, made_here)
        except BaseException as error:
            untouched = isinstance(error, StepError) and not _began_to_install(error)
            if made_here and not (untouched and self.stamp()):
                self.discard()
            self.unfinished.unlink(missing_ok=True)
            raise

    def discard(self) -> None:
        """Remove the environment: first moved aside in one step, so that it is whole or gone."""
        shutil.rmtree(self.discarded, ignore_errors=True)
        if not self.folder.exists():
            return
        try:
            self.folder.replace(self.discarded)
        except OSError as error:
            raise CourseError(
                f"{self.folder} is in use ({error.strerror}): close JupyterLab and other programs that run from it, "
                "then run the same command again"
            ) from error
        shutil.rmtree(self.discarded, ignore_errors=True)

    def _install(self, wanted: Stamp, made_here: bool) -> None:
        """Do the steps; the stamp comes last. The mark lets the next run throw away what a killed one left."""
        new = not self.folder.exists()
        self.folder.mkdir(exist_ok=True)
        if made_here:
            self.unfinished.write_text("Packages are being installed: not usable yet.\n", encoding="utf-8")
        if new:
            base = getattr(sys, "_base_executable", None) or sys.executable
            self._step(f"making .venv with Python {wanted.python}", base, "-m", "venv", self.folder)
        # Byte code is made when a module is first used: for all of them at once it takes longer than everything else.
        pip = (self.python, "-m", "pip", "install", "--no-input", "--no-compile", "--progress-bar", "off")
        pip = (*pip, "--retries", "3")
        lock = self.root / "requirements.lock"
        if wanted.torch_index:
            pin = next(line for line in lock.read_text(encoding="utf-8").splitlines() if line.startswith("torch=="))
            from_index = (*pip, "--index-url", wanted.torch_index, "--no-deps", pin)
            self._step(f"installing torch from {wanted.torch_index}", *from_index)
            pip = (*pip, "--extra-index-url", wanted.torch_index)  # what that build of torch needs besides
        self._step("installing the packages of requirements.lock (some minutes)", *pip, "-r", lock)
        self._step("installing the course itself", *pip, "--no-deps", "--no-build-isolation", "-e", self.root)
        unfinished_stamp = self.stamp_file.with_suffix(".new")
        unfinished_stamp.write_text(json.dumps(asdict(wanted), indent=2) + "\n", encoding="utf-8")
        unfinished_stamp.replace(self.stamp_file)
        self.unfinished.unlink(missing_ok=True)

    def _step(self, title: str, *command: str | Path) -> None:
        run_step(title, command, cwd=self.root, verbose=self.verbose)

    def _python_works(self) -> bool:
        """Tell whether the environment's Python starts and finds the course (the base Python may have gone)."""
        command = [str(self.python), "-I", "-c", "import specdec_course"]
        try:
            return subprocess.run(command, env=child_environment(), capture_output=True).returncode == 0
        except OSError:
            return False

    def _check_disk(self) -> None:
        free = shutil.disk_usage(self.root).free / 1e9
        if free < NEEDED_GB and self.stamp() is None:
            raise CourseError(
                f"the disk of {self.root} has {free:.1f} GB free and the course needs {NEEDED_GB:.0f} GB: free some "
                "space or move the folder to another disk, then run the same command again"
            )

    def _check_foreign(self, python: str) -> None:
        """Refuse a `.venv` that somebody made for another Python; one that fits is completed, and never deleted."""
        if not self.folder.exists() or self.stamp():
            return
        command = [str(self.python), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        try:
            found = subprocess.run(command, env=child_environment(), capture_output=True, text=True).stdout.strip()
        except OSError:
            found = "no working Python"
        if found != python:
            raise CourseError(
                f"{self.folder} was not made by course.py and holds {found} where Python {python} is wanted: move it "
                "away, then run the same command again"
            )


def make_ready(environment: Environment, torch_index: str | None) -> None:
    """Bring the environment up to date, with every failure told in one sentence.

    Raises
    ------
    CourseError
        The environment cannot be made.
    """
    try:
        environment.ensure(torch_index)
    except StepError as error:
        raise CourseError(explain(error.lines, "the set-up of .venv")) from error
    except OSError as error:
        raise CourseError(explain([str(error)], "the set-up of .venv")) from error


def _began_to_install(error: StepError) -> bool:
    """Tell whether pip had begun to change installed packages, which it does only after all downloads."""
    return any(line.startswith("Installing collected packages") for line in error.lines)


def _digest(path: Path) -> str:
    """SHA-256 of a text file, the same whatever its line ends."""
    return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()
