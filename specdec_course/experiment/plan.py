"""What an experiment is asked to do: one cell for each text, answer length, temperature and batch size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

from specdec_course.benchmark.options import Options

ENGINES = ("ours", "transformers")
DRAFTERS = {  # of each engine; those that draft a chain, since survival by position is asked for
    "ours": ("model", "ngram", "eagle", "layer-skip", "other-tokenizer", "shared-tokens", "staged"),
    "transformers": ("model", "ngram"),
}
TEXTS = {"code-edit": "predictable text (an edit of code)", "story": "free text (a story)"}  # suites of the benchmark


@dataclass(frozen=True)
class Cell:
    """One combination: everything that on and off have in common."""

    text: str
    length: str  # "short" or "long"
    max_new_tokens: int
    temperature: float
    batch: int

    @property
    def name(self) -> str:
        """The name of its file, the same on every system."""
        return f"{self.text}-{self.length}-t{self.temperature:g}-b{self.batch}".replace(".", "_")

    @property
    def words(self) -> str:
        """Its name for people."""
        return f"{self.text}, {self.length}, T = {self.temperature:g}, batch {self.batch}"


@dataclass(frozen=True)
class Plan:
    """The settings of one experiment; a folder holds cells of one plan only.

    Attributes
    ----------
    pair, drafter, engine : str
        "smol", "tiny" or "TARGET+DRAFT"; one of `DRAFTERS`; "ours" or "transformers".
    candidates : tuple of int
        Draft lengths that are tried on tuning prompts, apart from the measured ones; each cell uses its best.
    lengths : mapping of str to int
        Longest answers, in tokens. An answer also ends where the model ends it.
    prompts, repeats : int
        Measured prompts of each text, and how often each is answered with and without speculation.
    price_per_hour : float
        Of the machine, in any currency; 1 gives the cost in hours of this machine.
    """

    pair: str = "smol"
    drafter: str = "ngram"
    engine: str = "ours"
    candidates: tuple[int, ...] = (2, 4, 8)
    texts: tuple[str, ...] = tuple(TEXTS)
    lengths: Mapping[str, int] = field(default_factory=lambda: {"short": 24, "long": 128})
    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    batches: tuple[int, ...] = (1, 2, 4, 8)
    prompts: int = 4
    repeats: int = 3
    dtype: str = "float32"
    device: str | None = None
    threads: int | None = None
    price_per_hour: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what cannot be measured, before a model is loaded."""
        if self.engine not in ENGINES:
            raise ValueError(f"engine={self.engine!r} is not known; known are {', '.join(ENGINES)}")
        known = DRAFTERS[self.engine]
        if self.drafter not in known:
            raise ValueError(
                f"drafter={self.drafter!r} is not known for engine={self.engine!r}; known are {', '.join(known)}"
            )
        if not self.price_per_hour > 0:
            raise ValueError(f"price_per_hour={self.price_per_hour} must be more than 0")
        if self.repeats < 1:
            raise ValueError(f"repeats={self.repeats} must be >= 1")
        for cell in self.cells:
            self.options(cell)

    @property
    def cells(self) -> list[Cell]:
        """All combinations, in order."""
        combinations = product(self.texts, self.lengths.items(), self.temperatures, self.batches)
        return [Cell(text, name, most, temperature, batch) for text, (name, most), temperature, batch in combinations]

    def options(self, cell: Cell) -> Options:
        """Return a cell as settings of the benchmark, whose pieces do the measuring."""
        return Options(
            pair=self.pair,
            drafter=self.drafter,
            suite=cell.text,
            batch=cell.batch,
            temperature=cell.temperature,
            lengths=self.candidates,
            max_new_tokens=cell.max_new_tokens,
            prompts=self.prompts,
            dtype=self.dtype,
            device=self.device,
            threads=self.threads,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the settings as plain values, to be stored and compared."""
        found = asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


QUICK: dict[str, Any] = {  # a look at the whole way, in less than a minute with the tiny pair; no figures to keep
    "candidates": (3,),
    "lengths": {"short": 3, "long": 12},
    "temperatures": (0.0, 1.0),
    "batches": (1, 2),
    "prompts": 1,
    "repeats": 2,
}
