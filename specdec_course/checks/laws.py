"""Small tools for exercises about laws: draw, residual, uniform numbers spread evenly, laws that leave no choice.

They know what stage 02 teaches and nothing of `specdec_ref`: cases and wrong rules are built from them in the process
that runs a learner's code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specdec_course.checks.exercise import Made


def law(*probs: float) -> torch.Tensor:
    """Return probabilities as a float64 tensor, [V]."""
    return torch.tensor(probs, dtype=torch.float64)


def draw(probs: torch.Tensor, uniform: float) -> int:
    """Return the token in whose piece of the unit interval `uniform` falls; `probs` [V] may need scaling."""
    cdf = probs.double().cumsum(-1)
    passed = (cdf <= uniform * cdf[-1]) & (cdf < cdf[-1])  # rounding must not lead past the last token with mass
    return int(passed.sum())


def residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Return max(0, p - q) scaled to sum to one, or p where nothing is missing."""
    missing = (p - q).clamp(min=0)
    return missing / missing.sum() if missing.sum() > 0 else p


def spread(number: int) -> Made:
    """Return `number` evenly spaced uniform numbers: `for_each_uniform` calls the function once with each of them.

    Where all thresholds of a law are multiples of 1/number, every way to cut the unit interval into pieces gives the
    same counts: the law is observed exactly, whatever the order in which somebody adds up the probabilities.
    """
    return Made(_Spread(number), f"each of {number} evenly spaced numbers in turn")


@dataclass(frozen=True)
class _Spread:
    """Makes the numbers of a spread; prints alike each time, as cases of the same seed should."""

    number: int

    def __call__(self) -> list[float]:
        return [(place + 0.5) / self.number for place in range(self.number)]


def for_each_uniform(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call once, or once for each number where `correct_uniform` is a `spread`: then return the sorted answers."""
    uniform = arguments["correct_uniform"]
    if not isinstance(uniform, list):
        return function(*arguments.values())
    answers = [function(*{**arguments, "correct_uniform": one}.values()) for one in uniform]
    return sorted(answers, key=_tokens)


def _tokens(answer: Any) -> list[int]:
    try:
        return [int(token) for token in (answer if isinstance(answer, Sequence) else [answer])]
    except (TypeError, ValueError, RuntimeError):  # no tokens at all: the check will say so
        return []


def forced(generator: torch.Generator, vocab: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random p and q [V] that leave the correction no choice: p wants more than q of one token only."""
    weights = torch.rand(vocab, generator=generator, dtype=torch.float64) + 0.1
    q = weights / weights.sum()
    share = 0.25 + 0.6 * torch.rand((), generator=generator, dtype=torch.float64)
    p = q * share
    p[int(torch.randint(vocab, (), generator=generator))] += 1 - share
    return p, q
