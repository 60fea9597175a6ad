"""The lock: one file of exact versions for every supported system, made and checked with uv's resolver."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.requirements import Requirement

from specdec_course.errors import CourseError

PYTHONS = ("3.11", "3.12", "3.13", "3.14")

# uv's name of each system that the pinned torch has wheels for, and what environment markers see there.
SYSTEMS = {
    "x86_64-manylinux_2_28": {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"},
    "aarch64-manylinux_2_28": {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "aarch64"},
    "aarch64-apple-darwin": {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64"},
    "x86_64-pc-windows-msvc": {"sys_platform": "win32", "platform_system": "Windows", "platform_machine": "AMD64"},
}

# What only the CUDA build of torch needs. Pip installs it with that build; a CPU build must not drag it along.
CUDA_ONLY = ("nvidia-", "cuda-", "triton")

# How uv says that it is the network that failed.
UNREACHABLE = ("error sending request", "dns error", "Connection refused", "Could not connect", "operation timed out")

HEADER = """\
# Exact versions of everything the course needs, for Linux, macOS (14 or later, Apple silicon) and Windows, Python 3.11
# to 3.14. Made by `specdec lock` from pyproject.toml: do not edit by hand.
# The CUDA libraries of torch are left out on purpose: pip adds them where the torch that is installed asks for them, so
# that the same lock serves CPU builds. No hashes for the same reason: each build of torch has its own.
"""


def parse(text: str) -> list[Requirement]:
    """Read the pins of a requirements file.

    Parameters
    ----------
    text : str
        Contents of the file; comments and empty lines are skipped.

    Returns
    -------
    list of Requirement
        One entry a line, in the file's order.
    """
    lines = (line.split(" #")[0].strip() for line in text.splitlines())
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def marker_environment(system: str, python: str) -> dict[str, str]:
    """Tell what environment markers evaluate to on another system.

    Parameters
    ----------
    system : str
        A key of `SYSTEMS`.
    python : str
        A version such as ``"3.12"``.

    Returns
    -------
    dict of str to str
        Values for ``Marker.evaluate``.
    """
    os_name = "nt" if SYSTEMS[system]["sys_platform"] == "win32" else "posix"
    return {
        **SYSTEMS[system],
        "os_name": os_name,
        "python_version": python,
        "python_full_version": f"{python}.9",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "extra": "",
    }


def make_lock(root: Path, upgrade: bool = False) -> str:
    """Resolve pyproject.toml for all systems at once.

    Parameters
    ----------
    root : Path
        The course's folder.
    upgrade : bool
        Take the newest versions that the ranges allow, instead of keeping the present pins where they still fit.

    Returns
    -------
    str
        The text of the new requirements.lock.

    Raises
    ------
    CourseError
        The ranges of pyproject.toml contradict one another, or the package index cannot be reached.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "requirements.txt"
        lock = root / "requirements.lock"
        if lock.exists() and not upgrade:
            output.write_text(lock.read_text(encoding="utf-8"), encoding="utf-8")  # uv keeps the pins it finds there
        _uv(
            *("pip", "compile", "--universal", "--fork-strategy", "fewest", "--python-version", PYTHONS[0]),
            *("--extra", "dev", "--no-annotate", "--no-header", "--only-binary", ":all:"),
            *("--output-file", str(output), str(root / "pyproject.toml")),
        )
        pins = parse(output.read_text(encoding="utf-8"))
    return HEADER + "".join(f"{pin}\n" for pin in pins if _belongs(pin))


class UnreachableError(CourseError):
    """The package index cannot be reached, so nothing is known about the lock."""


def check_lock(root: Path) -> list[str]:
    """Resolve requirements.lock for every system and the oldest and newest Python, without installing anything.

    A resolution succeeds only if each pin has a wheel for that system and each package's own requirements are met by
    the other pins.

    Parameters
    ----------
    root : Path
        The course's folder.

    Returns
    -------
    list of str
        The combinations that were resolved, for example ``"x86_64-pc-windows-msvc, Python 3.14"``.

    Raises
    ------
    CourseError
        A combination has no solution, or the package index cannot be reached.
    """
    resolved = []
    with tempfile.TemporaryDirectory() as folder:
        for system in SYSTEMS:
            for python in (PYTHONS[0], PYTHONS[-1]):
                _uv(
                    *("pip", "install", "--dry-run", "--only-binary", ":all:", "--target", folder),
                    *("--python-platform", system, "--python-version", python),
                    *("--requirement", str(root / "requirements.lock")),
                )
                resolved.append(f"{system}, Python {python}")
    return resolved


def record_check(root: Path, record: Path) -> None:
    """Check the lock once and keep the result, for tests that run without a network.

    Parameters
    ----------
    root : Path
        The course's folder.
    record : Path
        JSON file with ``lock`` (the SHA-256 of what was checked), ``resolved`` and ``error``. Left alone where it is
        about the present lock; not written where the index cannot be reached.
    """
    digest = lock_digest(root)
    if record.exists() and json.loads(record.read_text(encoding="utf-8"))["lock"] == digest:
        return
    resolved, complaint = [], None
    try:
        resolved = check_lock(root)
    except UnreachableError as error:
        print(f"note: {error}", file=sys.stderr)
        return
    except CourseError as error:
        complaint = str(error)
    found = {"lock": digest, "resolved": resolved, "error": complaint}
    record.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def lock_digest(root: Path) -> str:
    """Return the SHA-256 of the lock's text, the same whatever its line ends."""
    return hashlib.sha256((root / "requirements.lock").read_text(encoding="utf-8").encode()).hexdigest()


def _belongs(pin: Requirement) -> bool:
    """Tell whether a pin is wanted on at least one supported system, and not by torch's CUDA build alone."""
    if pin.name.startswith(CUDA_ONLY):
        return False
    environments = (marker_environment(system, python) for system in SYSTEMS for python in PYTHONS)
    return pin.marker is None or any(pin.marker.evaluate(environment) for environment in environments)


def _uv(*arguments: str) -> None:
    """Run uv and turn its complaint into one sentence."""
    environment = {**os.environ, "MACOSX_DEPLOYMENT_TARGET": "14.0"}  # the oldest macOS that torch 2.13 has wheels for
    command = [sys.executable, "-m", "uv", "--no-config", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, encoding="utf-8", errors="replace")
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if "error" in line or "cause" in line]
        complaint = " ".join(lines)[:600] or done.stderr.strip()[-600:]
        if any(sign in done.stderr for sign in UNREACHABLE):
            raise UnreachableError(f"the package index cannot be reached, so the lock was not resolved: {complaint}")
        raise CourseError(f"the lock could not be resolved: {complaint}")
