"""Is everything in place? A look at the environment before the first lesson, with a repair for whatever is wrong."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

SETUP = "run `python3 course.py setup` in the course's folder (Windows: `py course.py setup`), then restart the kernel"
OLDEST_PYTHON = (3, 11)
PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "scipy", "matplotlib", "ipywidgets")
FREE_GB = 1.0  # for outputs, caches and a second model


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes
    ----------
    name : str
        What was looked at.
    problem : str
        What is wrong; empty where all is well.
    repair : str
        What to do about it.
    """

    name: str
    problem: str = ""
    repair: str = ""

    def __str__(self) -> str:
        """Return one line, or one more with the repair."""
        if not self.problem:
            return f"ok       {self.name}"
        return f"NOT OK   {self.name}: {self.problem}\n         Repair: {self.repair}"


def check_up() -> bool:
    """Print what was found of Python, packages, SmolLM2, disk and record; return whether all is well."""
    findings = list(look())
    for finding in findings:
        print(finding)
    good = not any(finding.problem for finding in findings)
    print("Everything is in place." if good else "Do the repairs above, then run this cell again.")
    return good


def look() -> Iterator[Finding]:
    """Yield a finding for each thing the course needs. A broken thing never stops the others from being looked at."""
    for name, examine, repair in (
        ("Python 3.11 or newer", _python, "install Python 3.11 to 3.14 from python.org, then " + SETUP),
        ("the packages of the course", _packages, SETUP),
        ("SmolLM2, the language model", _model, "run `specdec models fetch smol` or `python3 course.py setup`"),
        ("room on the disk", _disk, "free some space, or let SPECDEC_HOME name a folder on another disk"),
        ("a place for your progress", _record, "let SPECDEC_PROGRESS name a file that you may write"),
    ):
        yield _finding(name, examine, repair)


def _finding(name: str, examine: Callable[[], None], repair: str) -> Finding:
    try:
        examine()
    except Exception as error:  # whatever is wrong is what we want to say
        return Finding(name, str(error) or type(error).__name__, repair)
    return Finding(name)


def _python() -> None:
    if sys.version_info[:2] < OLDEST_PYTHON:
        raise ValueError(f"this is Python {sys.version_info[0]}.{sys.version_info[1]}")


def _packages() -> None:
    for name in PACKAGES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ValueError(f"{name} cannot be loaded ({error})") from error


def _model() -> None:
    from specdec_ref import store

    store.check_sizes(store.smol_folder())


def _disk() -> None:
    from specdec_ref import store

    folder = store.home()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 1e9
    if free < FREE_GB:
        raise ValueError(f"{free:.1f} GB are free, {FREE_GB:g} GB are needed")


def _record() -> None:
    from specdec_course.checks.records import record_path

    path = record_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    trial = path.with_name(path.name + ".trial")
    trial.write_text("", encoding="utf-8", newline="\n")
    trial.unlink()
