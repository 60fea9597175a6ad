"""Runs a stored notebook with nbval: in a copy, with the network blocked, away from anybody's progress."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass

from nbformat import from_dict

from specdec_course.building.execution import blocked, environment

CELL_TIMEOUT_S = 300


@dataclass
class Run:
    """What nbval said, and what each cell showed, by its id."""

    passed: bool
    text: str
    outputs: dict


def nbval(notebook, folder, mode="--nbval", threads=None):
    """Run the text of a notebook in a new folder below `folder`; the folder's name has a space.

    `threads` bounds what one pass of a model uses, where the environment does not say so already.
    """
    few = {"OMP_NUM_THREADS": str(threads)} if threads else {}
    copy = folder / "a folder" / "copy.ipynb"
    copy.parent.mkdir(parents=True)
    copy.write_text(notebook, encoding="utf-8", newline="\n")
    record = folder / "record.jsonl"
    options = ["-q", "-p", "no:cacheprovider", "-p", "tests.notebooks.recording", "--rootdir", str(copy.parent)]
    done = subprocess.run(
        [
            *[*blocked(), sys.executable, "-m", "pytest", mode],
            *[f"--nbval-cell-timeout={CELL_TIMEOUT_S}", "--nbval-kernel-startup-timeout=300"],
            *[*options, "-c", os.devnull, str(copy)],
        ],
        capture_output=True,
        encoding="utf-8",
        env={**few, **environment(folder), "SPECDEC_RECORD": str(record)},
        cwd=copy.parent,
        timeout=1800,
    )
    lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
    shown = {line["cell"]: [from_dict(output) for output in line["outputs"]] for line in map(json.loads, lines)}
    return Run(done.returncode == 0, (done.stdout + done.stderr)[-4000:], shown)
