"""What a benchmark is asked to do, checked before any model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specdec_course.benchmark import suites
from specdec_ref import store
from specdec_ref.drafters.registry import DRAFTERS
from specdec_ref.sampling import SamplingSettings

CANDIDATES = (2, 3, 5, 8, 12)  # draft lengths that are tried where none are given
HEADS = ("eagle", "medusa")  # drafters that a pair has where the course trained a head for its target
Lengths = tuple[int, ...] | Literal["auto"]


@dataclass(frozen=True)
class Options:
    """The settings of one benchmark.

    Attributes
    ----------
    drafter : str
        Names with commas between them, such as "model,ngram"; "all": the draft model, n-gram and every head that the
        pair has; or "best": the one of these that was fastest on the tuning prompts.
    suite : str
        One of the suites, or "all".
    batch : int
        Texts decoded together. Above 1, batch 1 is measured beside it.
    lengths : tuple of int, or "auto"
        Draft lengths to try. "auto": our decoder chooses while it decodes; the others keep the default candidates.
    max_new_tokens, prompts, repeats : int
        Longest answer, measured prompts of each suite, and how often each is decoded.
    """

    pair: str = "smol"
    drafter: str = "all"
    suite: str = "all"
    batch: int = 1
    temperature: float = 0.0
    lengths: Lengths = CANDIDATES
    max_new_tokens: int = 128
    prompts: int = 4
    repeats: int = 1
    dtype: str = "float32"
    device: str | None = None
    threads: int | None = None
    peer: str | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        unknown = [name for name in self.drafters if name not in DRAFTERS]
        if unknown:
            raise ValueError(f"drafter={unknown[0]!r} is not known; known are {', '.join(DRAFTERS)}, best, all")
        if self.suite not in (*suites.NAMES, "all"):
            raise ValueError(f"suite={self.suite!r} is not known; known are {', '.join(suites.NAMES)}, all")
        if self.max_new_tokens < 2:
            raise ValueError(f"max_new_tokens={self.max_new_tokens} must be >= 2: the first token is no decoding time")
        if not 1 <= self.prompts <= suites.MEASURED:
            raise ValueError(f"prompts={self.prompts} must lie in 1..{suites.MEASURED}, what each suite holds")
        for name in ("batch", "repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be >= 1")
        if self.lengths != "auto" and (not self.lengths or min(self.lengths) < 1):
            raise ValueError(f"k={self.lengths} must hold draft lengths >= 1")
        if self.peer not in (None, "llama.cpp"):
            raise ValueError(f"peer={self.peer!r} is not known; the one known is llama.cpp")
        SamplingSettings(self.temperature)  # refuses a negative one

    @property
    def drafters(self) -> tuple[str, ...]:
        """The drafters that are tried."""
        if self.drafter not in ("all", "best"):
            return tuple(dict.fromkeys(name.strip() for name in self.drafter.split(",")))
        heads = [kind for kind in HEADS if store.trained_folder(f"{self.pair}-{kind}").is_dir()]
        return ("model", "ngram", *heads)

    @property
    def candidates(self) -> tuple[int, ...]:
        """Draft lengths to try, for a system whose length stays fixed while it decodes."""
        return CANDIDATES if self.lengths == "auto" else self.lengths

    @property
    def settings(self) -> SamplingSettings:
        """How logits become a law."""
        return SamplingSettings(self.temperature)

    @property
    def suite_names(self) -> tuple[str, ...]:
        """The suites that are run."""
        return suites.NAMES if self.suite == "all" else (self.suite,)


def parse_lengths(text: str) -> Lengths:
    """Read "auto" or a list like "2,4,8".

    Raises
    ------
    ValueError
        If it is neither.
    """
    if text == "auto":
        return "auto"
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise ValueError(f"k={text!r} must be auto, or draft lengths like 2,4,8") from None
