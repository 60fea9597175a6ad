"""What models this machine has: the fetched target, and the trained weights in the repository's `models/` folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specdec_course.models import ABOUT
from specdec_ref import store

REPOSITORY_MODELS = Path(__file__).resolve().parents[1] / "models"


@dataclass(frozen=True)
class ModelRow:
    """One model, as `specdec models list` shows it; `problem` says what is wrong with one that is not whole."""

    name: str
    present: bool
    problem: str | None
    size_bytes: int
    license: str | None
    source: str | None
    folder: str


def model_rows(repository_models: Path = REPOSITORY_MODELS) -> list[ModelRow]:
    """List SmolLM2, fetched or not and checked in full, then every folder of `repository_models` with a config."""
    return [_smol_row(), *(_repository_row(path.parent) for path in sorted(repository_models.glob("*/config.json")))]


def _smol_row() -> ModelRow:
    folder = store.smol_folder()
    problem = None
    try:
        store.check_folder(folder)
    except ValueError as error:
        problem = str(error)
    size = store.total_size(folder)
    return ModelRow(ABOUT["name"], folder.is_dir(), problem, size, ABOUT["license"], ABOUT["source"], str(folder))


def _repository_row(folder: Path) -> ModelRow:
    card = _card_header(folder / "README.md")
    source = card.get("source") or card.get("base_model")
    return ModelRow(folder.name, True, None, store.total_size(folder), card.get("license"), source, str(folder))


def _card_header(card: Path) -> dict[str, str]:
    """Read the `key: value` lines between the two `---` lines that open a model card."""
    lines = card.read_text(encoding="utf-8").splitlines() if card.is_file() else []
    if not lines or lines[0] != "---" or "---" not in lines[1:]:
        return {}
    pairs = (line.partition(": ") for line in lines[1 : lines.index("---", 1)])
    return {key: value.strip().strip("\"'") for key, colon, value in pairs if colon}
