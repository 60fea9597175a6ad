"""A tiny copy of the course for tests of `course.py`: real venv, real pip, but packages of a few bytes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Stands in for specdec_course.__main__: says what it was asked for.
MAIN = """
import sys
import tiny_wheel
print("specdec", *sys.argv[1:], file=sys.stderr)
"""

WHEEL_TEXT = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"

# A build backend in one file, so that the editable installation downloads nothing.
BACKEND = """
import pathlib, zipfile

WHEEL_TEXT = {wheel_text!r}

def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    name, info = "specdec-0.1-py3-none-any.whl", "specdec-0.1.dist-info/"
    with zipfile.ZipFile(pathlib.Path(wheel_directory) / name, "w") as wheel:
        wheel.writestr("specdec.pth", str(pathlib.Path.cwd()) + "\\n")
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: specdec\\nVersion: 0.1\\n")
        wheel.writestr(info + "WHEEL", WHEEL_TEXT)
        wheel.writestr(info + "RECORD", "")
    return name
"""

PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""


class CourseFolder:
    """A copy of `course.py` with its bootstrap, whose lock holds one tiny wheel."""

    def __init__(self, parent: Path) -> None:
        self.root = parent / "a course" / "für Übung"
        package = self.root / "specdec_course"
        package.mkdir(parents=True)
        shutil.copy(ROOT / "course.py", self.root)
        shutil.copytree(
            ROOT / "specdec_course" / "bootstrap", package / "bootstrap", ignore=shutil.ignore_patterns("__pycache__")
        )
        shutil.copy(ROOT / "specdec_course" / "errors.py", package)
        (package / "__init__.py").touch()
        (self.root / "backend.py").write_text(BACKEND.replace("{wheel_text!r}", repr(WHEEL_TEXT)), encoding="utf-8")
        (self.root / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
        self.write_first_state()
        self.wheels = parent / "wheels"
        self.wheels.mkdir()
        make_wheel(self.wheels, "1.0")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PIP_")},
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "PIP_NO_CACHE_DIR": "1",
        }

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    def write_first_state(self) -> None:
        """What tests change."""
        self.lock("tiny-wheel==1.0")
        (self.root / "specdec_course" / "__main__.py").write_text(MAIN, encoding="utf-8")

    def lock(self, text: str) -> None:
        (self.root / "requirements.lock").write_text(text + "\n", encoding="utf-8")

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """`course.py ARGUMENTS`, from another folder."""
        return subprocess.run(self.command(*arguments), **self.options(environment), timeout=120)

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """The same, without waiting for its end, in a process group of its own that hears Ctrl-C.

        A run of the tests that a script put in the background ignores SIGINT, and its children would inherit that.
        """
        hear = None if os.name == "nt" else lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
        options = self.options(environment)
        return subprocess.Popen(self.command(*arguments), start_new_session=True, preexec_fn=hear, **options)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, str(self.root / "course.py"), *arguments]

    def options(self, environment: dict[str, str]) -> dict:
        return {
            "cwd": self.root.parent.parent,
            "env": {**self.environment, **environment},
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            "encoding": "utf-8",
        }


def make_wheel(folder: Path, version: str) -> Path:
    """A wheel of one empty module."""
    info = f"tiny_wheel-{version}.dist-info/"
    path = folder / f"tiny_wheel-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("tiny_wheel.py", f"VERSION = {version!r}\n")
        wheel.writestr(info + "METADATA", f"Metadata-Version: 2.1\nName: tiny-wheel\nVersion: {version}\n")
        wheel.writestr(
            info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(info + "RECORD", "")
    return path
