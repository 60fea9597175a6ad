"""Runs the cells of a notebook in a fresh kernel: offline, with a time limit, away from the learner's own files.

It runs in a process of its own, so that the operating system can block the network for it and all it starts.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellControlSignal, DeadKernelError

from specdec_course.building.products import ROOT
from specdec_course.errors import CourseError

CELL_TIMEOUT_S = 300
WIDGET = "application/vnd.jupyter.widget-view+json"
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def execute(notebook: Any, folder: Path, name: str, timeout_s: int = CELL_TIMEOUT_S) -> Any:
    """Return `notebook` with the outputs of its cells.

    Parameters
    ----------
    notebook : nbformat.NotebookNode
        What to run; it is not changed.
    folder : Path
        Where the kernel runs: the notebook's own folder, as in a reader's JupyterLab.
    name : str
        What to call the notebook in messages.
    timeout_s : int
        Seconds that one cell may take.

    Raises
    ------
    CourseError
        A cell fails or takes too long; the message names it and shows the error.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="specdec-build-", ignore_cleanup_errors=True) as scratch:
        before, after = Path(scratch) / "before.ipynb", Path(scratch) / "after.ipynb"
        before.write_text(nbformat.writes(notebook), encoding="utf-8", newline="\n")
        module = [sys.executable, "-m", "specdec_course.building.execution"]
        done = subprocess.run(
            [*blocked(), *module, str(before), str(after), str(timeout_s)],
            cwd=folder,
            env=environment(Path(scratch)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
        )
        if done.returncode:
            raise CourseError(f"{name}: {ANSI.sub('', done.stdout or done.stderr).strip()}")
        return nbformat.read(after, as_version=4)


def blocked() -> list[str]:
    """Return the start of a command line that blocks the network; empty where that was done already."""
    if os.environ.get("SPECDEC_NETWORK_BLOCKED") == "os":
        return []
    return [sys.executable, "-m", "specdec_course.bootstrap.block"]


def environment(scratch: Path) -> dict[str, str]:
    """Return the environment in which notebooks run: a progress file of their own, no model hub."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PYTHONUTF8": "1",
        "SPECDEC_PROGRESS": str(scratch / "progress.json"),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }


def main(before: str, after: str, timeout_s: str) -> int:
    """Run the notebook in the file `before` and write it to `after`; tell on stdout what went wrong."""
    notebook = nbformat.read(before, as_version=4)
    language = notebook.metadata["language_info"]
    client = NotebookClient(
        notebook,
        timeout=int(timeout_s),
        kernel_name="python3",
        startup_timeout=300,
        iopub_timeout=60,  # a busy machine is slow to hand over outputs, and none may be lost
        raise_on_iopub_timeout=True,
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,  # how a stream was cut into messages is chance
        extra_arguments=["--ext=specdec_course.building.offline"],
    )
    try:
        client.execute()
    except (CellControlSignal, DeadKernelError) as error:
        print(f"{_stopped_at(notebook)}: {error}")
        return 1
    # The kernel reports its exact Python; a reader's notebook should not change with it.
    notebook.metadata["language_info"] = language
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        output.get("data", {}).pop(WIDGET, None)  # without a kernel it is only an error message
    nbformat.write(notebook, after)
    return 0


def _stopped_at(notebook: Any) -> str:
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    failed = [c for c in code if c.execution_count is None or any(o.output_type == "error" for o in c.outputs)]
    return f"cell {failed[0]['id']}" if failed else "the notebook"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
