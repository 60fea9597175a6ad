"""The command line of `course.py`: each command does all the set-up, then its own thing."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from pathlib import Path

from specdec_course.bootstrap.console import child_environment
from specdec_course.bootstrap.environment import Environment, make_ready
from specdec_course.bootstrap.exclusive import exclusive
from specdec_course.bootstrap.problems import explain
from specdec_course.errors import CourseError

STDERR = 2

# Files and sizes; loading checks the contents too. Quicker than `specdec models fetch`, which reads 540 MB.
MODEL_IS_THERE = "from specdec_ref import store; store.check_sizes(store.smol_folder())"
FIRST_LESSON = "notebooks/00_start_here.ipynb"

EPILOG = """\
commands:
  learn   open the first lesson in JupyterLab; --no-browser prints the address instead
  demo    decode speculatively in the terminal; further arguments go to `specdec demo` (try: demo --help)
  test    run the tests with the network blocked; further arguments go to pytest
  setup   only make everything ready

Each command first makes .venv from requirements.lock and fetches the language model, once: some minutes and about
3 GB. After that it starts at once.
"""


def main(root: str, arguments: list[str]) -> int:
    """Run one command of `course.py`.

    Parameters
    ----------
    root : str
        The course's folder.
    arguments : list of str
        The command line, without the program's name.

    Returns
    -------
    int
        The exit code: that of the command, or 1 where the set-up fails.
    """
    options, rest = parse(arguments)
    folder = Path(root).resolve()
    try:
        check_machine(sys.platform, platform.machine(), sys.maxsize)
        python = set_up(folder, options.torch_index, options.verbose, options.repair)
        return COMMANDS[options.command](folder, python, rest)
    except CourseError as error:
        print(f"course.py: {error}.", file=sys.stderr)
    except OSError as error:
        print(f"course.py: {explain([str(error)], 'the set-up')}.", file=sys.stderr)
    except KeyboardInterrupt:
        print("\ncourse.py: stopped; run the same command again to go on.", file=sys.stderr)
    return 1


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Split the command line into course.py's own options and what belongs to the command.

    Parameters
    ----------
    arguments : list of str
        The command line, without the program's name.

    Returns
    -------
    tuple of argparse.Namespace and list of str
        Own options, with ``command``, and the rest, in its order. Own options stand before or after the command.
    """
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_argument(
        "--torch-index",
        metavar="URL",
        help="take torch from this package index, for example https://download.pytorch.org/whl/cpu for the small CPU "
        "build, and remember it; `default` goes back to pip's own index",
    )
    options.add_argument("--repair", action="store_true", help="make .venv anew and check every byte of the model")
    options.add_argument("--verbose", action="store_true", help="show everything that pip prints")
    parser = argparse.ArgumentParser(
        prog="course.py",
        parents=[options],
        description="Speculative decoding, the course: sets everything up, then does one thing.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("command", choices=list(COMMANDS))
    found, rest = options.parse_known_args(arguments)
    chosen = parser.parse_args(rest[:1])
    if chosen.command == "setup" and rest[1:]:
        parser.error(f"setup takes no {rest[1]!r}")
    found.command = chosen.command
    return found, rest[1:]


def check_machine(system: str, machine: str, largest: int) -> None:
    """Refuse machines that PyTorch is not built for.

    Raises
    ------
    CourseError
        A 32-bit Python, or a Mac with an Intel processor.
    """
    if largest < 2**32:
        raise CourseError(
            "this is a 32-bit Python and PyTorch needs a 64-bit one: install that and run course.py with it"
        )
    if system == "darwin" and machine == "x86_64":
        raise CourseError(
            "PyTorch is no longer built for Intel Macs, nor for an Intel Python on Apple silicon: use a Python for "
            "Apple silicon, Linux or Windows"
        )


def set_up(root: Path, torch_index: str | None, verbose: bool, repair: bool = False) -> Path:
    """Make the environment and fetch the target model, as far as they are not there.

    Parameters
    ----------
    root : Path
        The course's folder.
    torch_index : str or None
        Where torch comes from, see `Environment.wanted`.
    verbose : bool
        Show everything that pip prints.
    repair : bool
        Make the environment anew, and check every byte of the model instead of its files' sizes.

    Returns
    -------
    Path
        The environment's Python.

    Raises
    ------
    CourseError
        Either cannot be had.
    """
    environment = Environment(root, verbose)
    with exclusive(root / ".course-lock"):
        if repair and environment.stamp():
            torch_index = torch_index or environment.wanted(None).torch_index
            environment.discard()
        if not environment.is_ready(environment.wanted(torch_index)):
            print(f"Setting up the course in {root} (once; some minutes, about 3 GB)", file=sys.stderr, flush=True)
        make_ready(environment, torch_index)
        if not repair and _run_quietly([environment.python, "-c", MODEL_IS_THERE], root):
            return environment.python
        fetch = [environment.python, "-m", "specdec_course", "models", "fetch", "smol"]
        # To stderr, so that stdout holds nothing but what the command itself prints (`demo --json`).
        if subprocess.call(fetch, cwd=root, env=child_environment(), stdout=STDERR):
            raise CourseError("the target model could not be made ready, see the line above")
    return environment.python


def learn(root: Path, python: Path, rest: list[str]) -> int:
    """Open JupyterLab on the first lesson."""
    as_root = ["--allow-root"] if getattr(os, "geteuid", lambda: 1)() == 0 else []  # containers know no other user
    quiet = [
        "--log-level=WARN",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    print("Opening JupyterLab. To stop it: Ctrl-C here, twice.", file=sys.stderr, flush=True)
    place = [f"--ServerApp.root_dir={root}", f"--LabApp.default_url=/lab/tree/{FIRST_LESSON}"]
    return _run(root, [str(python), "-m", "jupyterlab", *place, *quiet, *as_root, *rest])


def demo(root: Path, python: Path, rest: list[str]) -> int:
    """Run `specdec demo`."""
    return _run(root, [str(python), "-m", "specdec_course", "demo", *rest])


def test(root: Path, python: Path, rest: list[str]) -> int:
    """Run the tests with the network blocked, after the one check that needs it: the lock on other systems."""
    checked = [
        str(python),
        "-m",
        "specdec_course",
        "lock",
        "--check",
        "--record",
        str(root / ".venv" / "lock-check.json"),
    ]
    _run(root, checked)
    blocked = [str(python), "-m", "specdec_course.bootstrap.block"]
    return _run(root, [*blocked, str(python), "-m", "pytest", *rest])


def setup(root: Path, python: Path, rest: list[str]) -> int:
    """Say that everything is ready."""
    print("Everything is ready: python3 course.py learn", file=sys.stderr)
    return 0


COMMANDS = {"learn": learn, "demo": demo, "test": test, "setup": setup}


def _run_quietly(command: list[str | Path], root: Path) -> bool:
    """Tell whether a command ends well."""
    return subprocess.run(command, cwd=root, env=child_environment(), capture_output=True).returncode == 0


def _run(root: Path, command: list[str]) -> int:
    """Run a command that owns the terminal; Ctrl-C is its affair."""
    process = subprocess.Popen(command, cwd=root, env=child_environment())
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue
