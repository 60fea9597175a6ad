"""The solutions of a stage as functions, from the text that its notebooks are built from."""

from __future__ import annotations

import ast
from typing import Any

from specdec_course.building.products import ROOT


def solution_functions(folder: str) -> dict[str, Any]:
    """Return the functions that `source/FOLDER/exercise.py` defines, by name, with their answers; nothing else is run.

    They find one another, and the modules that the text imports whole.
    """
    tree = ast.parse((ROOT / "source" / folder / "exercise.py").read_text(encoding="utf-8"))
    wanted = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.Import)]
    names: dict[str, Any] = {}
    exec(compile(ast.Module(wanted, []), f"{folder}/exercise.py", "exec"), names)
    return names
