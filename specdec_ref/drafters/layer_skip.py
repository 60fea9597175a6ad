"""The target drafts for itself, with some of its layers left out.

No second model, no training, and hardly any memory: a draft step runs the kept layers only, and these read the keys and
values that the whole target has stored for the text. What a draft step stores itself goes to the slots behind the text,
and verification, which runs all layers over the same tokens, writes the right values over it. So to forget a draft is
to set the lengths back.

It pays where many layers can be left out: in deep models. A small target loses too much with each of its few layers.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from specdec_ref import store
from specdec_ref.drafters.base import Draft, Drafter
from specdec_ref.drafters.chain import draw_chain, no_draft
from specdec_ref.heads import stored
from specdec_ref.model import CachedLM

if TYPE_CHECKING:
    from specdec_ref.pairs import Pair
    from specdec_ref.rows import Rows


@dataclass(frozen=True)
class LayerChoice:
    """What `specdec train layer-skip` finds out.

    Attributes
    ----------
    kept : tuple of int
        The layers that draft, ascending.
    stop_below : float
        A draft ends with a token whose law gave no token so much probability; 0 never does.
    """

    kept: tuple[int, ...]
    stop_below: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what is no choice of layers."""
        if not self.kept or list(self.kept) != sorted(set(self.kept)) or self.kept[0] < 0:
            raise ValueError(f"kept={self.kept} must be ascending numbers of layers, at least one")
        if not 0 <= self.stop_below <= 1:
            raise ValueError(f"stop_below={self.stop_below} must be in 0..1")


def for_pair(pair: Pair) -> LayerSkipDrafter:
    """Return the drafter with the layers that were found for a pair's target."""
    folder = pair.head_folder("layer-skip")
    with store.checking(folder):
        shape = stored.read_config(folder, "layer-skip", pair.target_folder)["shape"]
    return LayerSkipDrafter(LayerChoice(tuple(shape["kept"]), shape["stop_below"]))


class LayerSkipDrafter(Drafter):
    """Draft with some layers of the target, under the same sampling settings.

    Parameters
    ----------
    choice : LayerChoice
        Which ones, and when a draft ends early. That looks at a law and never at the token drawn from it; the token
        stays in the draft. (To drop a token for what it is would make q a law that nothing was drawn from.)

    Source
    ------
    Zhang et al. 2023, "Draft and verify" (arXiv 2309.08168), sections 3.1 and 3.3.
    """

    def __init__(self, choice: LayerChoice) -> None:
        self.choice = choice
        self.lm: CachedLM | None = None

    def fresh(self, target: CachedLM, rows: Rows) -> Self:
        """Return a copy that runs the kept layers of `target` on the cache of `target`."""
        other = super().fresh(target, rows)
        other.lm = copy.copy(target)  # the cache of both is one
        other.lm.model = keep_layers(target.model, self.choice.kept)
        return other

    def propose(self, rows: Rows, limits: Sequence[int]) -> Draft:
        """Draw up to `limits[b]` tokens per row, and leave the cache as it was found."""
        counts = torch.tensor(limits)
        if int(counts.max()) == 0:
            return no_draft(rows)
        lm = self.lm
        assert lm is not None  # `fresh` sees to it
        held = lm.cache.lengths
        if held.tolist() != [length - 1 for length in rows.lengths]:
            raise ValueError(
                f"target {lm.name!r} holds {held.tolist()} tokens of texts of {rows.lengths}: not all but one"
            )
        try:
            logits = lm.extend(rows.last_tokens())[:, -1]
            stop_below = self.choice.stop_below
            return draw_chain(rows, counts, logits, lambda tokens: lm.extend(tokens)[:, -1], stop_below=stop_below)
        finally:
            lm.rollback(lm.cache.lengths - held)


def keep_layers(model: PreTrainedModel, kept: Sequence[int]) -> PreTrainedModel:
    """Return a view of a model in which only these layers run. No weight is copied.

    Layers keep their numbers, by which they find their keys and values in a cache.

    Raises
    ------
    ValueError
        If the model has no list of layers, or not all of these.
    """
    number = int(getattr(model.config.get_text_config(), "num_hidden_layers", 0))
    for name, module in cast(nn.Module, model).named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == number:
            if not 0 <= min(kept) <= max(kept) < number:
                raise ValueError(f"kept={tuple(kept)} are not all layers of {type(model).__name__}, which has {number}")
            return _view(model, name.split("."), kept)
    raise ValueError(f"model {type(model).__name__} has no list of layers, so none can be skipped")


def _view(module: nn.Module, path: list[str], kept: Sequence[int]) -> PreTrainedModel:
    """Copy the modules on the way to the list of layers, sharing everything else, and shorten that list."""
    other = copy.copy(module)
    other._modules = dict(module._modules)
    child = module._modules[path[0]]
    assert child is not None
    if len(path) > 1:
        other._modules[path[0]] = _view(child, path[1:], kept)
    else:
        other._modules[path[0]] = nn.ModuleList(cast(nn.ModuleList, child)[layer] for layer in kept)
    return cast(PreTrainedModel, other)
