"""The rules that tests/conftest.py puts on every test are themselves kept: each in a small run of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SKIPPED = "import pytest\n@pytest.mark.smol\ndef test_real(): pytest.skip('no model')\n"
PASSED = "import pytest\n@pytest.mark.smol\ndef test_real(): pass\n"
ABSENT = "def test_other(): pass\n"
REACHES_OUT = """
import socket

def test_swallows_the_error():
    try:
        socket.create_connection(("192.0.2.1", 80), timeout=1)
    except OSError:
        pass
"""
STAYS_HOME = """
import socket

def test_loopback():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        pass
"""


def run(folder: Path, test: str, require_smol: bool = False) -> subprocess.CompletedProcess[str]:
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = smol\n", encoding="utf-8")
    (folder / "test_it.py").write_text(test, encoding="utf-8")
    environment = {**os.environ, "SPECDEC_REQUIRE_SMOL": "1" if require_smol else "0"}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8")


@pytest.mark.parametrize(
    ("test", "require_smol", "told"),
    [
        (SKIPPED, True, "tests on SmolLM2 were skipped"),
        (ABSENT, True, "no test on SmolLM2 was run"),
        (PASSED, True, None),
    ],
)
def test_a_run_that_must_include_the_real_model_fails_without_it(
    tmp_path: Path, test: str, require_smol: bool, told: str | None
) -> None:
    done = run(tmp_path, test, require_smol)
    assert done.returncode == (1 if told else 0), done.stdout
    assert told is None or told in done.stdout


def test_a_skipped_real_model_is_fine_where_it_is_not_required(tmp_path: Path) -> None:
    assert run(tmp_path, SKIPPED).returncode == 0


def test_reaching_for_the_network_fails_a_test_even_if_it_swallows_the_error(tmp_path: Path) -> None:
    done = run(tmp_path, REACHES_OUT)
    assert done.returncode == 1
    assert "tried to connect to ('192.0.2.1', 80)" in done.stdout


def test_loopback_is_allowed(tmp_path: Path) -> None:
    assert run(tmp_path, STAYS_HOME).returncode == 0
