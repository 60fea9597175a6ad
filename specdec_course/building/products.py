"""Which notebooks the course consists of, and which text each is made from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from specdec_course.errors import CourseError

ROOT = Path(__file__).resolve().parents[2]

Kind = Literal["lesson", "exercise", "solution"]

# Where each kind of notebook goes, and the text it is made from.
FOLDERS: dict[Kind, str] = {"lesson": "notebooks", "exercise": "exercises", "solution": "solutions"}
TEXTS: dict[Kind, str] = {"lesson": "lesson.py", "exercise": "exercise.py", "solution": "exercise.py"}

STAGE_FOLDER = re.compile(r"\d\d_\w+")


@dataclass(frozen=True)
class Product:
    """One notebook of the course.

    Attributes
    ----------
    kind : str
        ``lesson``, ``exercise`` or ``solution``.
    source : Path
        The text it is made from.
    goal : Path
        The notebook.
    """

    kind: Kind
    source: Path
    goal: Path

    @property
    def stage(self) -> str:
        """The stage's number, as ``02``."""
        return self.source.parent.name[:2]

    @property
    def name(self) -> str:
        """The notebook's path within the course."""
        return f"{self.goal.parent.name}/{self.goal.name}"

    @property
    def text_name(self) -> str:
        """The path of the text within the course."""
        return f"source/{self.source.parent.name}/{self.source.name}"

    @property
    def is_executed(self) -> bool:
        """Whether the notebook is kept with its outputs."""
        return self.kind != "exercise"


def products(root: Path = ROOT, stage: str | None = None) -> list[Product]:
    """Return the notebooks of a course, stage by stage.

    Parameters
    ----------
    root : Path
        The course's folder, with `source/` in it.
    stage : str or None
        Only the stage with this number, as ``02`` or ``2``.

    Raises
    ------
    CourseError
        There is no such stage.
    """
    found = [
        Product(kind, folder / TEXTS[kind], root / FOLDERS[kind] / f"{folder.name}.ipynb")
        for folder in sorted((root / "source").iterdir())
        if STAGE_FOLDER.fullmatch(folder.name)
        for kind in FOLDERS
        if (folder / TEXTS[kind]).is_file()
    ]
    if stage is None:
        return found
    chosen = [product for product in found if product.stage == stage.zfill(2)]
    if not chosen:
        known = ", ".join(sorted({product.stage for product in found}))
        raise CourseError(f"there is no stage {stage!r} in source/: choose one of {known}")
    return chosen


def strays(root: Path = ROOT) -> list[Path]:
    """Return the notebooks that no text in `source/` builds: left over from a stage that was renamed or removed."""
    wanted = {product.goal for product in products(root)}
    return sorted(path for folder in FOLDERS.values() for path in (root / folder).glob("*.ipynb") if path not in wanted)
