"""Every drafter that a pair of models can be given, by name.

A new drafter is one new file with a `for_pair` of its own, and one line here. No drafter knows of another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from specdec_ref.drafters import eagle, medusa, model, ngram
from specdec_ref.drafters.base import Drafter

if TYPE_CHECKING:
    from specdec_ref.pairs import Pair

DRAFTERS: dict[str, Callable[[Pair], Drafter]] = {
    "eagle": eagle.for_pair,
    "medusa": medusa.for_pair,
    "model": model.for_pair,
    "ngram": ngram.for_pair,
}


def make(name: str, pair: Pair) -> Drafter:
    """Return the drafter called `name` for the target of `pair`.

    Raises
    ------
    ValueError
        If there is no such drafter, or what it needs for this pair is not there.
    """
    if name not in DRAFTERS:
        raise ValueError(f"drafter={name!r} is not known; known are {', '.join(DRAFTERS)}")
    return DRAFTERS[name](pair)
