"""What a stored notebook must not hold: traces of the machine it was built on, and things that spoil its comparison."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from specdec_course.building.products import ROOT

DATA = re.compile(r"data:image/\w+;base64,[A-Za-z0-9+/=]+")
ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")

# A path of this machine, or one that looks like a path of some machine; the web's and the course's own are none.
HERE = [re.escape(str(path)) for path in (ROOT, Path.home(), Path(tempfile.gettempdir())) if len(path.parts) > 1]
PATH = re.compile(rf"(?<![\w.:/~-])(?:(?:{'|'.join(HERE)})\b|/(?:home|root|Users|tmp|private|opt|var)/\w|[A-Z]:\\\w)")

LEAST_COMPARED = 0.7  # of the cells with outputs: what is not compared may be wrong unnoticed
# nbval runs a cell with the first but does not compare it, and leaves out one with the second.
NOT_COMPARED = ("nbval-ignore-output", "nbval-skip")


def faults(notebook: Any) -> list[str]:
    """Return what is wrong with the outputs and metadata of a built notebook, each in words that name the cell."""
    found = [
        f"the notebook's metadata holds {name!r}" for name in ("widgets", "signature") if name in notebook.metadata
    ]
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            found += [f"cell {cell['id']} {fault}" for fault in _output_faults(output)]
    return found


def _output_faults(output: Any) -> list[str]:
    found = []
    text = _words(output)
    if output.output_type == "stream" and output.name == "stderr":
        found.append(f"writes to stderr, which nbgrader and nbval read as a failure: {output.text.strip()[-200:]}")
    if "image/svg+xml" in output.get("data", {}) or "<svg" in text:
        found.append("stores an SVG, whose ids change from run to run: show a PNG")
    if match := ADDRESS.search(text):
        found.append(f"prints the memory address {match[0]}, which changes from run to run")
    if match := PATH.search(text):
        found.append(f"prints the path {match[0]}…, which is of the machine it was built on")
    return found


def _words(output: Any) -> str:
    """Return all text of an output; pictures are none."""
    data = [str(value) for kind, value in output.get("data", {}).items() if kind not in ("image/png", "image/jpeg")]
    return DATA.sub("", "\n".join([output.get("text", ""), *output.get("traceback", []), *data]))


def is_executed(notebook: Any) -> bool:
    """Tell whether every code cell was run."""
    return all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")


def compared_share(notebook: Any) -> float:
    """Return the share of the cells with outputs whose outputs nbval compares; 1 where no cell has any."""
    shown = [cell for cell in notebook.cells if cell.get("outputs")]
    left_out = [cell for cell in shown if _is_left_out(cell)]
    return 1 - len(left_out) / len(shown) if shown else 1.0


def _is_left_out(cell: Any) -> bool:
    comments = cell.source.upper().replace("_", "-")
    tags = cell.metadata.get("tags", [])
    return any(tag in tags or f"# {tag.upper()}" in comments for tag in NOT_COMPARED)
