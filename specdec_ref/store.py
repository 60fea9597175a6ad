"""Where models live on this machine, and whether a converted folder is whole.

A converted folder carries a `manifest.json`, written last, with the size and SHA-256 of each of its files. No manifest
means a conversion that never finished; a size or hash that differs means a damaged file, and the error names it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import platformdirs

MANIFEST = "manifest.json"
REMEDY = "run `specdec models fetch smol`"
_BLOCK = 1 << 20

Advance = Callable[[int], object]  # told the bytes of each block read, for a progress bar


def _ignore(count: int) -> None:
    """Stand in for the `Advance` of a caller who shows no progress."""


def home() -> Path:
    """Find the user's folder for this course: `SPECDEC_HOME` where set, else the system's cache folder."""
    chosen = os.environ.get("SPECDEC_HOME")
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("specdec", appauthor=False)


def smol_folder() -> Path:
    """Where the converted SmolLM2-135M-Instruct is, or will be."""
    return home() / "models" / "SmolLM2-135M-Instruct"


def trained_folder(name: str) -> Path:
    """Where a model that this course trained lies: `models/` beside the packages, part of the repository."""
    return Path(__file__).resolve().parents[1] / "models" / name


def _remedy(folder: Path) -> str:
    ours = trained_folder(folder.name) == folder.resolve()
    return f"restore it with `git checkout -- models/{folder.name}`" if ours else REMEDY


def sha256(path: Path, advance: Advance = _ignore) -> str:
    """SHA-256 of a file in hex; `advance` is told the bytes of each block read, for a progress bar."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            advance(len(block))
    return digest.hexdigest()


def write_manifest(folder: Path, about: dict[str, Any], advance: Advance = _ignore) -> None:
    """Record every file of `folder` (size in bytes, SHA-256) and `about` (name, source, licence) in its manifest."""
    files = {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": sha256(path, advance)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }
    text = json.dumps({**about, "files": files}, indent=2) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8", newline="\n")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a converted folder.

    Raises
    ------
    ValueError
        Where the folder is absent, its conversion did not finish, or the manifest itself is damaged.
    """
    path = folder / MANIFEST
    if not path.is_file():
        state = "is not finished (it has no manifest.json)" if folder.is_dir() else "is not there"
        raise ValueError(f"the model folder {folder} {state}: {_remedy(folder)}")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        for entry in manifest["files"].values():
            _ = int(entry["size"]), str(entry["sha256"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"the model file {path} is damaged: {_remedy(folder)}") from None
    return manifest


def check_folder(folder: Path, advance: Advance = _ignore) -> dict[str, Any]:
    """Check every file of a converted folder against its manifest, SHA-256 included, and return the manifest.

    Raises
    ------
    ValueError
        Naming the missing or damaged file, and the command that repairs it.
    """
    manifest = check_sizes(folder)
    _check_contents(folder, manifest, advance)
    return manifest


@contextmanager
def checking(folder: Path) -> Iterator[dict[str, Any]]:
    """Check a folder while the body loads it: sizes at once, SHA-256 in a second thread, joined at the end.

    A damaged file can also make the body itself fail, with some message about its format; the error that names the
    file is then raised in its place.

    Raises
    ------
    ValueError
        As `check_folder`.
    """
    manifest = check_sizes(folder)
    with ThreadPoolExecutor(max_workers=1) as pool:
        checked = pool.submit(_check_contents, folder, manifest)
        try:
            yield manifest
        finally:
            checked.result()


def check_sizes(folder: Path) -> dict[str, Any]:
    """Check that every file of the manifest is there with its size, reading none; return the manifest."""
    manifest = read_manifest(folder)
    for name, entry in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"the model file {path} is missing: {_remedy(folder)}")
        size = path.stat().st_size
        if size != entry["size"]:
            raise ValueError(f"the model file {path} is damaged ({size} bytes, not {entry['size']}): {_remedy(folder)}")
    return manifest


def _check_contents(folder: Path, manifest: dict[str, Any], advance: Advance = _ignore) -> None:
    for name, entry in manifest["files"].items():
        if sha256(folder / name, advance) != entry["sha256"]:
            raise ValueError(f"the model file {folder / name} is damaged (its SHA-256 differs): {_remedy(folder)}")


def total_size(folder: Path) -> int:
    """Bytes of all files under `folder`; a file that vanishes meanwhile counts nothing."""
    size = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            size += path.stat().st_size if path.is_file() else 0
    return size
