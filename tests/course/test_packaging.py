"""pyproject.toml, requirements.lock and environment.yml say the same, on every system."""

from __future__ import annotations

import ast
import json
import sys
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from specdec_course import lock as locking

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WANTED = [Requirement(line) for line in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]]
PINS = locking.parse((ROOT / "requirements.lock").read_text(encoding="utf-8"))
TARGETS = [(system, python) for system in locking.SYSTEMS for python in locking.PYTHONS]


def pinned(environment: dict[str, str]) -> dict[str, str]:
    """Name and version of each pin that holds in an environment."""
    held = [pin for pin in PINS if pin.marker is None or pin.marker.evaluate(environment)]
    return {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in held}


def test_every_pin_is_one_exact_version() -> None:
    for pin in PINS:
        (specifier,) = pin.specifier
        assert specifier.operator == "==" and "*" not in specifier.version, str(pin)
        assert pin.url is None, str(pin)


def test_torch_is_pinned_to_the_release_the_kernels_were_measured_on() -> None:
    assert "torch==2.13.0" in [str(pin) for pin in PINS]


def test_the_cuda_libraries_are_not_in_the_lock() -> None:
    assert not [str(pin) for pin in PINS if pin.name.startswith(locking.CUDA_ONLY)]


@pytest.mark.parametrize(("system", "python"), TARGETS)
def test_lock_meets_every_requirement_of_every_pin(system: str, python: str) -> None:
    """Walks from pyproject.toml through the requirements of each package, with that system's markers."""
    environment = locking.marker_environment(system, python)
    versions = pinned(environment)
    reached, waiting = set[str](), list(WANTED)
    asked = set[tuple[str, tuple[str, ...]]]()
    while waiting:
        requirement = waiting.pop()
        name, extras = canonicalize_name(requirement.name), tuple(sorted(requirement.extras))
        if requirement.name.startswith(locking.CUDA_ONLY):
            continue
        assert name in versions, f"{requirement} is not in the lock for {system}, Python {python}"
        assert requirement.specifier.contains(versions[name], prereleases=True), (
            f"{requirement} against {versions[name]}"
        )
        reached.add(name)
        if (name, extras) not in asked:
            asked.add((name, extras))
            waiting += requirements_of(name, extras, environment)
    assert reached == set(versions), f"pinned but not needed: {set(versions) - reached}"


def requirements_of(name: str, extras: tuple[str, ...], environment: dict[str, str]) -> list[Requirement]:
    """What a package needs there."""
    choices = [{**environment, "extra": extra} for extra in ("", *extras)]
    return [
        one
        for one in all_requirements(name)
        if one.marker is None or any(one.marker.evaluate(choice) for choice in choices)
    ]


@cache
def all_requirements(name: str) -> list[Requirement]:
    """As the installed package declares them; those for other systems only are not installed, and need nothing."""
    try:
        return [Requirement(line) for line in metadata.requires(name) or []]
    except metadata.PackageNotFoundError:
        assert name in {"appnope", "colorama", "pywinpty", "overrides", "pexpect", "ptyprocess"}, name
        return []


def test_what_is_installed_is_what_is_locked() -> None:
    """A test run means something only for the locked versions."""
    present = {name: metadata.version(name) for name in pinned(current_environment())}
    assert {name: version.split("+")[0] for name, version in present.items()} == pinned(current_environment())


def current_environment() -> dict[str, str]:
    from packaging.markers import default_environment

    return {**default_environment(), "extra": ""}  # type: ignore[dict-item]


def test_lock_resolves_on_windows_macos_and_linux() -> None:
    """A resolver's dry run on each system, done by `course.py test` before it blocks the network."""
    record = ROOT / ".venv" / "lock-check.json"
    found = json.loads(record.read_text(encoding="utf-8")) if record.exists() else None
    if found is None or found["lock"] != locking.lock_digest(ROOT):
        pytest.skip("no dry run of this lock yet: `python3 course.py test` makes it where there is a network")
    assert found["error"] is None
    assert len(found["resolved"]) == 2 * len(locking.SYSTEMS)


def test_conda_environment_takes_the_lock_and_the_same_pythons() -> None:
    yaml = pytest.importorskip("yaml")
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    python, pip, through_pip = environment["dependencies"]
    assert SpecifierSet(python.removeprefix("python")) == SpecifierSet(PROJECT["requires-python"])
    assert pip == "pip"
    assert through_pip == {"pip": ["-r requirements.lock", "-e ."]}


def test_course_py_lock_and_metadata_agree_on_the_pythons() -> None:
    tree = ast.parse((ROOT / "course.py").read_text(encoding="utf-8"))
    (bounds,) = [node.value for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)]
    oldest, newest = ast.literal_eval(bounds)
    pythons = [tuple(int(part) for part in python.split(".")) for python in locking.PYTHONS]
    assert (oldest, newest) == (pythons[0], pythons[-1])
    supported = SpecifierSet(PROJECT["requires-python"])
    assert all(python in supported for python in locking.PYTHONS)
    assert f"3.{oldest[1] - 1}" not in supported and f"3.{newest[1] + 1}" not in supported


def test_every_dependency_says_why_it_is_there() -> None:
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    names = tuple(f'    "{requirement.name}' for requirement in WANTED)
    assert [line for line in lines if line.startswith(names) and "  # " not in line] == []


def test_bootstrap_uses_the_standard_library_alone() -> None:
    files = [ROOT / "course.py", *(ROOT / "specdec_course" / "bootstrap").glob("*.py")]
    files += [ROOT / "specdec_course" / "__init__.py", ROOT / "specdec_course" / "errors.py"]
    allowed = ("specdec_course.bootstrap", "specdec_course.errors")
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        tree.body = [node for node in tree.body if not _is_for_types_only(node)]
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            strangers = [name for name in names if name.split(".")[0] not in sys.stdlib_module_names]
            assert [name for name in strangers if not name.startswith(allowed)] == [], file


def _is_for_types_only(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
