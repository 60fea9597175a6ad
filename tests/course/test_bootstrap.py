"""`course.py`: sets everything up once, survives interruptions, and tells every failure in one sentence."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest

from specdec_course.bootstrap import environment
from specdec_course.bootstrap import main as main_module
from specdec_course.bootstrap.console import StepError
from specdec_course.bootstrap.environment import Environment, make_ready
from specdec_course.bootstrap.main import check_machine, main, parse
from specdec_course.bootstrap.problems import explain
from specdec_course.errors import CourseError
from tests.course.folder_of_its_own import ROOT, CourseFolder, make_wheel


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> CourseFolder:
    return CourseFolder(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def made(shared: CourseFolder) -> CourseFolder:
    """A course folder that is set up: made once, and brought back to its first state for each test."""
    shared.write_first_state()
    done = shared.run("setup")
    assert done.returncode == 0, done.stderr
    return shared


@pytest.fixture
def fresh(tmp_path: Path) -> CourseFolder:
    return CourseFolder(tmp_path)


def one_sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The last line of stderr, after checking that there is no traceback and nothing half-made is told as done."""
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("course.py: ") and line.endswith(".")
    return line


# What is made, and what is left alone


def test_setup_works_in_a_folder_with_spaces_and_umlauts_from_anywhere(made: CourseFolder) -> None:
    assert (made.venv / "course-stamp.json").exists()
    assert not (made.venv / "course-unfinished").exists()


def test_a_command_gets_its_arguments_and_stdout_stays_its_own(made: CourseFolder) -> None:
    done = made.run("demo", "--json", "--prompt", "two words")
    assert done.returncode == 0
    assert "specdec models fetch smol" in done.stderr
    assert "specdec demo --json --prompt two words" in done.stderr
    assert done.stdout == ""


def test_nothing_to_do_takes_under_three_seconds_and_no_network(made: CourseFolder) -> None:
    before = (made.venv / "course-stamp.json").stat().st_mtime_ns
    start = time.monotonic()
    done = made.run("setup", PIP_FIND_LINKS="")
    assert time.monotonic() - start < 3
    assert done.returncode == 0 and "installing" not in done.stderr
    assert (made.venv / "course-stamp.json").stat().st_mtime_ns == before


@pytest.mark.skipif(os.name == "nt", reason="a process group is killed in another way on Windows")
def test_an_installation_killed_half_way_is_found_and_made_anew(fresh: CourseFolder) -> None:
    running = fresh.start("setup")
    wait_for((fresh.venv / "pyvenv.cfg").exists)
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate()
    assert (fresh.venv / "course-unfinished").exists()
    leftover = fresh.venv / "leftover"
    leftover.touch()
    done = fresh.run("setup")
    assert done.returncode == 0, done.stderr
    assert not leftover.exists() and not (fresh.root / ".venv.discarded").exists()


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is sent in another way on Windows")
def test_ctrl_c_leaves_nothing_half_made(fresh: CourseFolder) -> None:
    running = fresh.start("setup")
    wait_for((fresh.venv / "pyvenv.cfg").exists)
    running.send_signal(signal.SIGINT)
    stderr = running.communicate(timeout=30)[1]
    assert running.returncode == 1 and "stopped; run the same command again" in stderr
    assert not fresh.venv.exists()


def test_a_changed_lock_is_installed_into_the_same_environment(made: CourseFolder) -> None:
    kept = made.venv / "kept"
    kept.touch()
    make_wheel(made.wheels, "2.0")
    made.lock("tiny-wheel==2.0")
    assert made.run("setup").returncode == 0
    assert kept.exists()


def test_an_update_that_fails_before_it_begins_leaves_the_environment_for_a_better_day(made: CourseFolder) -> None:
    made.lock("tiny-wheel==3.0")
    assert "no tiny-wheel==3.0 for this Python and system" in one_sentence(made.run("setup"))
    assert made.venv.exists() and not (made.venv / "course-unfinished").exists()


def test_an_environment_made_by_somebody_else_is_never_deleted(fresh: CourseFolder) -> None:
    fresh.venv.mkdir()
    (fresh.venv / "precious").touch()
    assert "was not made by course.py" in one_sentence(fresh.run("setup"))
    assert (fresh.venv / "precious").exists()


def test_the_chosen_index_for_torch_is_remembered(tmp_path: Path) -> None:
    made = stub_environment(tmp_path)
    make_ready(made, "https://example.org/cpu")
    torch_step, lock_step, _ = made.steps[-3:]
    assert "--index-url" in torch_step and torch_step[-1] == "torch==2.13.0"
    assert "--extra-index-url" in lock_step
    number = len(made.steps)
    make_ready(made, None)
    assert len(made.steps) == number, "asked without the option, the same environment is up to date"
    make_ready(made, "default")
    assert not any("example.org" in part for step in made.steps[number:] for part in step)


def test_repair_makes_the_environment_anew_from_the_same_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = stub_environment(tmp_path)
    make_ready(made, "https://example.org/cpu")
    (made.folder / "kept").touch()
    monkeypatch.setattr(main_module, "Environment", lambda root, verbose: made)
    monkeypatch.setattr(main_module.subprocess, "call", lambda *args, **kwargs: 0)
    main_module.set_up(tmp_path, None, verbose=False, repair=True)
    stamp = made.stamp()
    assert stamp and stamp.torch_index == "https://example.org/cpu"
    assert not (made.folder / "kept").exists()


# What goes wrong


def test_no_network_is_told(made: CourseFolder) -> None:
    made.lock("tiny-wheel==4.0")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # free again below: nobody listens there
    done = made.run("setup", PIP_NO_INDEX="0", PIP_FIND_LINKS="", PIP_INDEX_URL=f"http://127.0.0.1:{port}/simple")
    assert "the package index cannot be reached" in one_sentence(done)


def test_a_broken_download_is_told(made: CourseFolder) -> None:
    made.lock("tiny-wheel==5.0")
    wheel = make_wheel(made.wheels, "5.0")
    wheel.write_bytes(wheel.read_bytes()[:200])
    assert "a download came broken" in one_sentence(made.run("setup"))


def test_a_target_model_that_cannot_be_fetched_stops_the_command(made: CourseFolder) -> None:
    (made.root / "specdec_course" / "__main__.py").write_text("raise SystemExit(1)\n", encoding="utf-8")
    assert "the target model could not be made ready" in one_sentence(made.run("demo"))


@pytest.mark.parametrize("printed", ["ERROR: Connection refused", "Installing collected packages: a, b\nNo space left"])
def test_a_new_environment_that_fails_is_removed(tmp_path: Path, printed: str) -> None:
    made = stub_environment(tmp_path)
    made.failure = StepError(printed.splitlines())
    with pytest.raises(CourseError):
        make_ready(made, None)
    assert not made.folder.exists() and not made.discarded.exists()


def test_an_update_that_fails_half_way_is_removed(tmp_path: Path) -> None:
    made = stub_environment(tmp_path)
    make_ready(made, None)
    made.lock("torch==2.13.1")
    made.failure = StepError(["Installing collected packages: torch", "ERROR: No space left on device"])
    with pytest.raises(CourseError, match="the disk is full"):
        make_ready(made, None)
    assert not made.folder.exists()


def test_a_moved_folder_gets_a_new_environment(tmp_path: Path) -> None:
    """An environment is full of absolute paths."""
    (tmp_path / "before").mkdir()
    made = stub_environment(tmp_path / "before")
    make_ready(made, None)
    (made.folder / "kept").touch()
    moved = StubEnvironment((tmp_path / "before").rename(tmp_path / "after"))
    make_ready(moved, None)
    assert moved.steps and not (moved.folder / "kept").exists()


def test_a_full_disk_is_told_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(environment.shutil, "disk_usage", lambda path: usage(10**12, 10**12, 1_200_000_000))
    made = stub_environment(tmp_path)
    with pytest.raises(CourseError, match=r"1\.2 GB free and the course needs 5 GB"):
        make_ready(made, None)
    assert not made.folder.exists()


def test_a_disk_that_fills_up_on_the_way_is_told(tmp_path: Path) -> None:
    made = stub_environment(tmp_path)
    made.failure = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(CourseError, match="the disk is full"):
        make_ready(made, None)
    assert not made.folder.exists()


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full"),
        ("OSError: [WinError 112] There is not enough space on the disk", "disk is full"),
        ("The virtual environment was not created successfully because ensurepip is not available.", "python3-venv"),
        ("pip._vendor.urllib3.exceptions.NameResolutionError: getaddrinfo failed", "cannot be reached"),
        ("ReadTimeoutError: HTTPSConnectionPool(host='pypi.org'): Read timed out.", "cannot be reached"),
        ("SSLError(SSLCertVerificationError(1, 'CERTIFICATE_VERIFY_FAILED'))", "was not trusted"),
        ("ProtocolError('Connection broken: IncompleteRead(10 bytes read, 9 more expected)')", "came broken"),
        ("ERROR: Wheel 'torch' located at /tmp/torch.whl is invalid.", "came broken"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", "came broken"),
        ("ERROR: [WinError 5] Access is denied: 'C:\\\\x'", "could not be written"),
        ("ERROR: No matching distribution found for torch==2.13.0", "no torch==2.13.0 for this Python"),
        ("ERROR: Something new", "failed: Something new (add --verbose"),
    ],
)
def test_every_known_failure_becomes_one_sentence(printed: str, told: str) -> None:
    sentence = explain(["Collecting torch", printed], "the set-up")
    assert told in sentence and "\n" not in sentence


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.8", "3.10"])
def test_an_old_python_gets_a_sentence_not_a_syntax_error(version: str) -> None:
    python = find_python(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    done = subprocess.run([python, str(ROOT / "course.py"), "learn"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"course.py: this is Python {version}, and the course needs Python 3.11 to 3.14")


def test_course_py_is_readable_to_old_pythons() -> None:
    """Syntax of its day only, so that the check of the version is reached; `compile` can go back to 3.4 alone."""
    import ast

    source = (ROOT / "course.py").read_text(encoding="utf-8")
    assert source.isascii()
    ast.parse(source, feature_version=(3, 4))
    assert not any(isinstance(node, ast.JoinedStr) for node in ast.walk(ast.parse(source)))
    assert "from __future__" not in source


def find_python(version: str) -> str | None:
    """That Python itself; a version manager's stand-in on the path may point to none."""
    managed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for candidate in [*map(str, managed), shutil.which(f"python{version}")]:
        if candidate and subprocess.run([candidate, "--version"], capture_output=True).returncode == 0:
            return candidate
    return None


@pytest.mark.parametrize(("system", "machine", "largest"), [("darwin", "x86_64", 2**63), ("win32", "x86", 2**31 - 1)])
def test_machines_without_a_pytorch_are_refused(system: str, machine: str, largest: int) -> None:
    with pytest.raises(CourseError, match="PyTorch"):
        check_machine(system, machine, largest)


def test_own_options_stand_anywhere_and_the_rest_keeps_its_order() -> None:
    options, rest = parse(["test", "tests/ref", "-k", "law", "--torch-index", "https://x", "-x", "--maxfail=2"])
    assert (options.command, options.torch_index) == ("test", "https://x")
    assert rest == ["tests/ref", "-k", "law", "-x", "--maxfail=2"]
    assert parse(["learn", "--no-browser"])[1] == ["--no-browser"]
    assert parse(["demo", "--help"])[1] == ["--help"]


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(str(ROOT), ["lern"])
    assert "lern" in capsys.readouterr().err


# The blocked network


def test_the_operating_system_lets_nothing_out_but_loopback() -> None:
    """By the C-level socket, which the tests' own guard does not see."""
    import _socket

    if os.environ.get("SPECDEC_NETWORK_BLOCKED") != "os":
        pytest.skip("the operating system does not block the network in this run (`course.py test` does, where it can)")
    start = time.monotonic()
    for family, address in ((socket.AF_INET, ("192.0.2.1", 443)), (socket.AF_INET, ("8.8.8.8", 53))):
        out = _socket.socket(family, socket.SOCK_STREAM)
        with pytest.raises(OSError):
            out.connect(address)
    assert time.monotonic() - start < 1
    assert_loopback_works()


@pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")
def test_a_blocked_command_has_loopback_and_nothing_else() -> None:
    script = "import os, _socket; from tests.course.test_bootstrap import *; assert_loopback_works()\n"
    script += "print(os.environ['SPECDEC_NETWORK_BLOCKED'], os.environ['HF_HUB_OFFLINE'])\n"
    script += "print(_socket.socket().connect_ex(('192.0.2.1', 443)) != 0)\nraise SystemExit(7)"
    command = [sys.executable, "-m", "specdec_course.bootstrap.block", sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 7, done.stderr
    if "only a guard in Python" in done.stderr:
        pytest.skip("this system refuses network namespaces")
    assert done.stdout.split() == ["os", "1", "True"]


def assert_loopback_works() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), timeout=5):
        pass


# Helpers


class StubEnvironment(Environment):
    """Writes down the steps instead of doing them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.steps = list[list[str]]()
        self.failure: Exception | None = None

    def _step(self, title: str, *command: str | Path) -> None:
        self.steps.append([str(part) for part in command])
        if self.failure:
            raise self.failure

    def _python_works(self) -> bool:
        return True

    def lock(self, text: str) -> None:
        (self.root / "requirements.lock").write_text(text + "\n", encoding="utf-8")


def stub_environment(root: Path) -> StubEnvironment:
    made = StubEnvironment(root)
    made.lock("torch==2.13.0")
    (root / "pyproject.toml").touch()
    return made


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)
