"""Makes the notebooks from their one text: `source/NN_name/lesson.py` becomes `notebooks/NN_name.ipynb`.

Built files are never edited by hand. Each records the hash of its source; `check` compares that hash and the cells, so
an edited notebook, or a source that was not built again, is found without executing anything.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient

from specdec_course.errors import CourseError

ROOT = Path(__file__).resolve().parents[1]
CELL_TIMEOUT_S = 600
METADATA = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}


def stages(root: Path = ROOT) -> list[Path]:
    """Return the folders of `source/` in order."""
    return sorted(path for path in (root / "source").iterdir() if (path / "lesson.py").is_file())


def make_notebook(lesson: Path) -> Any:
    """Return the notebook of a lesson without outputs: same source, same bytes."""
    text = lesson.read_text(encoding="utf-8")
    notebook = jupytext.reads(text, fmt="py:percent")
    notebook.metadata = nbformat.from_dict(
        {
            **METADATA,
            "language_info": {"name": "python"},
            "specdec": {"source_sha256": hashlib.sha256(text.encode("utf-8")).hexdigest()},
        }
    )
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    stage = lesson.parent.name.split("_")[0]
    for place, cell in enumerate(notebook.cells):
        cell["id"] = f"{stage}-lesson-{place:02d}"
    return notebook


def build(lesson: Path, goal: Path, execute: bool = True) -> None:
    """Write the notebook of `lesson` to `goal`, executed in a fresh kernel unless told otherwise.

    Raises
    ------
    CourseError
        If a cell fails; the message names the lesson and shows the error. `goal` is left as it was.
    """
    notebook = make_notebook(lesson)
    if execute:
        client = NotebookClient(notebook, timeout=CELL_TIMEOUT_S, kernel_name="python3", record_timing=False)
        try:
            client.execute(cwd=str(goal.parent))
        except Exception as error:
            raise CourseError(f"{lesson.parent.name}: {error}") from error
        # The kernel reports its exact Python; a reader's notebook should not change with it.
        notebook.metadata["language_info"] = nbformat.from_dict({"name": "python"})
    nbformat.validate(notebook)
    goal.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8", newline="\n")


def check(lesson: Path, goal: Path) -> str | None:
    """Return what differs between `goal` and what `lesson` would build, or None."""
    if not goal.is_file():
        return f"{goal.name} is missing"
    built, wanted = nbformat.read(goal, as_version=4), make_notebook(lesson)
    if built.metadata.get("specdec") != wanted.metadata["specdec"]:
        return f"{goal.name} was built from another version of {lesson.parent.name}/lesson.py"
    for ours, theirs in zip(built.cells, wanted.cells, strict=False):
        if (ours.cell_type, ours.source, ours["id"]) != (theirs.cell_type, theirs.source, theirs["id"]):
            return f"cell {theirs['id']} of {goal.name} was edited by hand"
    return None if len(built.cells) == len(wanted.cells) else f"{goal.name} has {len(built.cells)} cells"
