"""Building a notebook, and telling without executing anything whether a stored one is what its text would build."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import nbformat

from specdec_course.building.execution import CELL_TIMEOUT_S, execute
from specdec_course.building.notebooks import make_notebook, to_text
from specdec_course.building.products import Product
from specdec_course.building.stored import faults, is_executed
from specdec_course.errors import CourseError


def build(
    product: Product,
    points: Mapping[str, float] | None = None,
    run_cells: bool = True,
    force: bool = False,
    timeout_s: int = CELL_TIMEOUT_S,
) -> bool:
    """Write the notebook of `product`, unless what is there is up to date.

    Parameters
    ----------
    product : Product
        What to make.
    points : mapping of str to float, optional
        Points of each exercise; by default those of the course's checks.
    run_cells : bool
        Run the cells of lessons and solutions in a fresh kernel. Otherwise they are stored without outputs.
    force : bool
        Build again what is up to date, for instance because the code behind the cells has changed.
    timeout_s : int
        Seconds that one cell may take.

    Returns
    -------
    bool
        Whether the notebook was written.

    Raises
    ------
    CourseError
        The text breaks a rule, a cell fails, or an output must not be stored; the notebook is left as it was.
    """
    if not force and difference(product, points) is None:
        stored = nbformat.read(product.goal, as_version=4)
        if not (product.is_executed and run_cells) or is_executed(stored):
            return False
    notebook = make_notebook(product, points)
    if product.is_executed and run_cells:
        notebook = execute(notebook, product.goal.parent, product.name, timeout_s)
    wrong = faults(notebook)
    if wrong:
        raise CourseError(f"{product.name}: {'; '.join(wrong)}")
    product.goal.parent.mkdir(parents=True, exist_ok=True)
    product.goal.write_text(to_text(notebook), encoding="utf-8", newline="\n")
    return True


def difference(product: Product, points: Mapping[str, float] | None = None) -> str | None:
    """Return in words how the stored notebook differs from what its text would build, or None. Nothing is executed."""
    if not product.goal.is_file():
        return f"{product.name} is missing"
    text = product.goal.read_bytes().decode("utf-8", errors="replace")
    wanted = json.loads(to_text(make_notebook(product, points)))
    try:
        stored = json.loads(text)
        if stored["metadata"].get("specdec") != wanted["metadata"]["specdec"]:
            return (
                f"{product.name} was built from another version of {product.source.parent.name}/{product.source.name}"
            )
        bare = _without_outputs(stored) if product.is_executed else stored
        for ours, theirs in zip(bare["cells"], wanted["cells"], strict=False):
            if ours != theirs:
                return f"cell {theirs['id']} of {product.name} was edited by hand"
        if bare != wanted:
            return f"{product.name} has cells or metadata that its source does not have"
        if text != nbformat.writes(nbformat.from_dict(json.loads(text))) + "\n":
            return f"{product.name} was saved by another program"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{product.name} is not a notebook"
    return None


def _without_outputs(notebook: Any) -> Any:
    cells = [
        {**cell, "outputs": [], "execution_count": None} if cell["cell_type"] == "code" else cell
        for cell in notebook["cells"]
    ]
    return {**notebook, "cells": cells}
