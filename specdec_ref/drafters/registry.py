"""Every drafter that a pair of models can be given, by name.

A new drafter is one new file with a `for_pair` of its own, and one line here. No drafter knows of another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from specdec_ref import store
from specdec_ref.drafters import candidates, eagle, layer_skip, medusa, model, ngram, other_tokenizer, staged
from specdec_ref.drafters.base import Drafter

if TYPE_CHECKING:
    from specdec_ref.pairs import Pair

DRAFTERS: dict[str, Callable[[Pair], Drafter]] = {
    "candidates": candidates.for_pair,
    "eagle": eagle.for_pair,
    "eagle-tree": eagle.tree_for_pair,
    "layer-skip": layer_skip.for_pair,
    "medusa": medusa.for_pair,
    "model": model.for_pair,
    "ngram": ngram.for_pair,
    "other-tokenizer": other_tokenizer.reencoding_for_pair,
    "shared-tokens": other_tokenizer.shared_tokens_for_pair,
    "staged": lambda pair: staged.for_pair(pair, _smallest(pair)),
}


def _smallest(pair: Pair) -> Drafter:
    """Return who drafts for a pair's draft model: a model of a third size where there is one, else the text itself."""
    from specdec_ref.pairs import OURS, load_trained

    name = f"{pair.name}-micro"
    if pair.name in OURS and store.trained_folder(name).is_dir():
        return model.ModelDrafter(load_trained(name, pair.target.device)[0])
    return ngram.for_pair(pair)


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
