"""From the text of a stage to the cells of a notebook: the same text gives the same bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import jupytext
import nbformat

from specdec_course.building import graded
from specdec_course.building.products import Product
from specdec_course.errors import CourseError

# A neutral kernel: a reader's environment has one of this name, whatever else it has.
METADATA = {
    "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
    "language_info": {"name": "python"},
}


def make_notebook(product: Product, points: Mapping[str, float] | None = None) -> Any:
    """Return the notebook of `product`, not executed.

    Parameters
    ----------
    product : Product
        What to make.
    points : mapping of str to float, optional
        Points of each exercise, as ``{"2.1": 3}``; by default those of the course's checks.

    Returns
    -------
    nbformat.NotebookNode
        In format 4.5, with an id of its own for each cell.

    Raises
    ------
    CourseError
        The text breaks a rule; the message names the file and the cell.
    """
    text = product.source.read_text(encoding="utf-8")
    notebook: Any = jupytext.reads(text, fmt="py:percent")
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    record = {
        "source_sha256": hashlib.sha256(text.encode("utf-8")).hexdigest(),
        "kind": product.kind,
        "stage": product.stage,
    }
    notebook.metadata = nbformat.from_dict({**METADATA, "specdec": record})
    for place, cell in enumerate(notebook.cells):
        cell["id"] = f"{product.stage}-{'lesson' if product.kind == 'lesson' else 'exercise'}-{place:02d}"
        cell.metadata.pop("lines_to_next_cell", None)  # jupytext's note on blank lines in the text
        if cell.cell_type == "code" and not cell.source.strip():
            raise CourseError(f"{_place(product, place)} is an empty code cell: fill it or remove it")
    if product.kind == "lesson":
        return notebook
    look_up = graded.course_points if points is None else points.get
    graded.mark(notebook, product.stage, look_up, lambda place: _place(product, place))
    return graded.release(notebook) if product.kind == "exercise" else notebook


def to_text(notebook: Any) -> str:
    """Return a notebook as it is stored: valid, UTF-8, LF, one line end at its end."""
    nbformat.validate(notebook)
    return nbformat.writes(notebook) + "\n"


def _place(product: Product, place: int) -> str:
    return f"cell {place} of {product.text_name}"
