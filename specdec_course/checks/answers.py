"""Find in a notebook what an exercise needs: the cells that define the learner's function, and those they use.

Nothing is executed here. Cells are read as text; which of them belong to a function follows from the names that each
defines and uses, so that a slow or broken cell elsewhere does no harm.
"""

from __future__ import annotations

import ast
import builtins
import json
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specdec_course.errors import CourseError

_DEFINITION = re.compile(r"^(?:async\s+)?(?:def|class)\s+(\w+)", re.MULTILINE)
_CHECK = re.compile(r"""\bcheck\(\s*["']([\w.]+)["']""")


@dataclass(frozen=True)
class Cell:
    """One code cell: its number among all cells, its source without IPython's commands, and names."""

    number: int
    source: str
    defines: frozenset[str]
    uses: frozenset[str]
    problem: str | None = None  # why Python cannot read it


@dataclass(frozen=True)
class Answer:
    """What one check cell asks: an exercise, the expression of the learner's function, the sources to run before."""

    exercise: str
    expression: str
    sources: Sequence[tuple[str, str]] = field(default_factory=list)  # (name shown in messages, source)
    problem: str | None = None


def read_cells(path: Path) -> list[Cell]:
    """Return the code cells of a notebook.

    Raises
    ------
    CourseError
        If the file cannot be read as a notebook.
    """
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        cells = [(place, cell) for place, cell in enumerate(notebook["cells"], 1) if cell["cell_type"] == "code"]
        return [_cell(place, "".join(cell["source"])) for place, cell in cells]
    except OSError as error:
        raise CourseError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CourseError(f"{path} is not a readable notebook ({error}): open and save it in Jupyter") from error


def answers(path: Path, known: Container[str], wanted: Mapping[str, str]) -> list[Answer]:
    """Return the answers that the check cells of a notebook ask for, then those that have lost their check cell.

    Parameters
    ----------
    path : Path
        The notebook.
    known : container of str
        The exercises of the course; checks of others are left out.
    wanted : mapping of str to str
        The exercises that this notebook should answer, each with the name of its function.

    Raises
    ------
    CourseError
        If the file cannot be read as a notebook.
    """
    cells = read_cells(path)
    found: dict[str, Answer] = {}
    for place, cell in enumerate(cells):
        for exercise, expression in _checks(cell):
            if exercise in known:
                found[exercise] = _answer(exercise, expression, cells[: place + 1])
    for exercise, function in wanted.items():
        found.setdefault(exercise, _answer(exercise, function, cells))
    return list(found.values())


def answer_in_file(path: Path, exercise: str, function: str) -> Answer:
    """Return the answer that a plain file of Python gives: all of it is run.

    Raises
    ------
    CourseError
        If the file cannot be read.
    """
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CourseError(f"{path} cannot be read: {error}") from error
    problem = _cell(0, source).problem
    return Answer(exercise, function, [(path.name, source)], problem and f"{path.name} {problem}")


def _answer(exercise: str, expression: str, before: Sequence[Cell]) -> Answer:
    """Collect the cells above a check that its expression needs, each name from the last cell that defines it."""
    wanted = _names(ast.parse(expression, mode="eval"))[1]
    needed: dict[int, Cell] = {}
    queue = list(wanted)
    while queue:
        name = queue.pop()
        for cell in _definers(name, before):
            if cell.number not in needed:
                needed[cell.number] = cell
                queue += cell.uses
    chosen = [needed[number] for number in sorted(needed)]
    broken = next((cell for cell in chosen if cell.problem), None)
    sources = [(f"cell {cell.number}", cell.source) for cell in chosen]
    return Answer(exercise, expression, sources, broken and f"cell {broken.number} {broken.problem}")


def _definers(name: str, cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells that give `name` its value: the last that defines it, and earlier ones that it builds on."""
    found = [cell for cell in cells if name in cell.defines]
    last_fresh = next((place for place in range(len(found) - 1, -1, -1) if name not in found[place].uses), 0)
    return found[last_fresh:]


def _cell(number: int, raw: str) -> Cell:
    if raw.lstrip().startswith("%%"):
        return Cell(number, "", frozenset(), frozenset())
    source = "\n".join("" if line.lstrip().startswith(("%", "!", "?")) else line for line in raw.splitlines())
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        shown = (
            f" in line {line}: {source.splitlines()[line - 1].strip()}"
            if line and line <= source.count("\n") + 1
            else ""
        )
        problem = f"cannot be read as Python{shown}"
        return Cell(number, source, frozenset(_DEFINITION.findall(source)), frozenset(), problem)
    defines, uses = _names(tree)
    return Cell(number, source, frozenset(defines), frozenset(uses))


def _names(tree: ast.AST) -> tuple[set[str], set[str]]:
    """Return the names that code defines at its top level, and all names it may use from outside."""
    defines: set[str] = set()
    for node in _top_level(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defines.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            defines |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defines.add(node.id)
    loaded = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    changed = {
        node.target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    }
    return defines, (loaded | changed) - set(dir(builtins))


def _top_level(tree: ast.AST) -> list[ast.AST]:
    """Return all nodes outside of the bodies of functions and classes."""
    found: list[ast.AST] = []
    queue: list[ast.AST] = [tree]
    while queue:
        node = queue.pop()
        found.append(node)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            queue += ast.iter_child_nodes(node)
    return found


def _checks(cell: Cell) -> list[tuple[str, str]]:
    """Return (exercise, expression of the function) of each call of `check` in a cell."""
    if cell.problem:
        return [(name, "None") for name in _CHECK.findall(cell.source)]
    calls = [node for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Call)]
    found = []
    for call in calls:
        named = isinstance(call.func, ast.Name) and call.func.id == "check" and len(call.args) == 2
        first = call.args[0] if named else None
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            found.append((first.value, ast.unparse(call.args[1])))
    return found
