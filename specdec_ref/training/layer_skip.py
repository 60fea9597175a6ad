"""Which layers the target can draft without: a greedy search on a few texts that the target itself has written.

Begin with all layers. Again and again leave out the one that can best be spared, and go on while the best choice so far
is not long ago. What counts is the speedup that a choice promises along the texts: tokens per round over the bill of a
round, a draft step costing the share of the weights that it reads. No clock is asked, so the same seed finds the same
layers on any machine, and a search that was stopped goes on from its journal.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from specdec_ref.decode import collect, generate
from specdec_ref.device import upload
from specdec_ref.drafters.layer_skip import LayerChoice, keep_layers
from specdec_ref.model import CachedLM, pad
from specdec_ref.rows import Stop
from specdec_ref.sampling import GREEDY, SamplingSettings

JOURNAL = "search.json"
THRESHOLDS = (0.0, 0.2, 0.4, 0.6, 0.8)  # of `LayerChoice.stop_below`
OPENING = 12  # tokens of an opening that the target invents

Texts = Sequence[tuple[list[int], list[int]]]  # prompt, and the target's greedy answer
Journal = dict[str, dict[str, Any]]  # what was found for each choice of layers


@dataclass(frozen=True)
class SkipPlan:
    """How to search.

    Attributes
    ----------
    tokens : int
        Of each answer.
    num_draft_tokens : int
        The longest draft that is considered.
    verify_cost : float
        T_v / T_t, a target pass over a draft in units of one over a token.
    patience : int
        End once so many removals in a row have found nothing better.
    """

    tokens: int = 48
    num_draft_tokens: int = 4
    verify_cost: float = 1.1
    patience: int = 4


def invent_openings(target: CachedLM, begin: int, count: int, seed: int) -> list[list[int]]:
    """Let the target begin `count` texts at temperature 1: prompts for a model that answers none."""
    rounds = generate(
        target, [[begin]] * count, SamplingSettings(1.0), max_new_tokens=OPENING, seeds=range(seed, seed + count)
    )
    return [[begin, *text] for text in collect(rounds)]


def answer(target: CachedLM, prompts: Sequence[Sequence[int]], tokens: int, stop: Stop) -> Texts:
    """Let the target go on with each prompt, greedily."""
    answers = collect(generate(target, prompts, GREEDY, max_new_tokens=tokens, stop=stop))
    return [(list(prompt), text) for prompt, text in zip(prompts, answers, strict=True) if text]


class Judge:
    """Says what the target would draft with some of its layers at every place of the texts, and what that is worth.

    Parameters
    ----------
    target : CachedLM
        On plain modules, whose weights can be counted.
    texts : Texts
        What it has written.
    plan : SkipPlan
        Draft length and cost of verification.
    """

    def __init__(self, target: CachedLM, texts: Texts, plan: SkipPlan) -> None:
        self.plan, self.texts = plan, texts
        self.lm = target.fresh(len(texts))
        self.lm.prefill([(prompt + text)[:-1] for prompt, text in texts])
        self.held = self.lm.cache.lengths
        self.weights, self.rest = count_weights(target)

    def share(self, kept: Sequence[int]) -> float:
        """Return which share of the weights that a target step reads a draft step reads."""
        return (self.rest + sum(self.weights[layer] for layer in kept)) / (self.rest + sum(self.weights))

    def __call__(self, kept: Sequence[int]) -> dict[str, Any]:
        """Return the best speedup of these layers, and the draft length and threshold that it needs."""
        hits, sure = self.draft_everywhere(kept)
        found = [
            {"num_draft_tokens": count, "stop_below": stop_below, **self.bill(hits, sure, count, stop_below, kept)}
            for count in range(1, self.plan.num_draft_tokens + 1)
            for stop_below in THRESHOLDS
        ]
        return max(found, key=lambda one: one["speedup"])  # the first of equals

    @torch.inference_mode()
    def draft_everywhere(self, kept: Sequence[int]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return, for each text of n tokens: whether token j is what draft token k says there, and how sure it is.

        Both are [K, n]. Draft token k at token j belongs to the round that began k tokens earlier: it has read the
        whole target's keys up to there, and the kept layers' own from there on. One pass for each k serves all places.
        """
        thin = copy.copy(self.lm)
        thin.model = keep_layers(self.lm.model, kept)
        width = max(len(text) for _, text in self.texts)
        first = torch.tensor([len(prompt) - 1 for prompt, _ in self.texts])  # where the last prompt token stands
        read = [[*prompt[-1:], *text[:-1]] for prompt, text in self.texts]  # what is fed: each token's predecessor
        tokens = upload(pad(read)[0], thin.device)
        wanted = upload(pad([text for _, text in self.texts])[0], thin.device)
        column = torch.arange(width)
        place = first[:, None] + column  # [B, L]: where each fed token stands
        hits, sure = [], []
        try:
            for depth in range(self.plan.num_draft_tokens):
                slot = torch.arange(int(self.held.max()) + (depth + 1) * width)
                sees = slot < (place - depth)[..., None]  # the target's keys, up to where the round began
                for earlier in range(depth + 1):  # the draft's own, one from each pass
                    back = column - (depth - earlier)
                    own = self.held[:, None] + earlier * width + back  # [B, L]
                    sees |= (slot == own[..., None]) & (back >= 0)[:, None]
                lowest = torch.finfo(thin.model.dtype).min
                mask = torch.zeros((), dtype=thin.model.dtype).masked_fill(~sees, lowest)[:, None].to(thin.device)
                logits = thin.run(tokens, place, mask)[0]
                thin.cache.advance(width)
                hits.append(logits.argmax(-1) == wanted)
                sure.append((logits.amax(-1).float() - logits.float().logsumexp(-1)).exp())
        finally:
            thin.cache.lengths = self.held
        both = torch.stack(hits, 1).cpu().numpy(), torch.stack(sure, 1).cpu().numpy()  # [B, K, L]
        lengths = [len(text) for _, text in self.texts]
        cut = [[row[:, :length] for row, length in zip(values, lengths, strict=True)] for values in both]
        return cut[0], cut[1]

    def bill(
        self, hits: list[np.ndarray], sure: list[np.ndarray], count: int, stop_below: float, kept: Sequence[int]
    ) -> dict[str, float]:
        """Walk rounds along the texts and return their speedup and the tokens per round.

        A draft that has gone wrong goes on for as long as it would on the text's own words: an estimate.
        """
        emitted = rounds = drafted = 0
        for right, confident in zip(hits, sure, strict=True):
            place, length = 0, right.shape[1]
            while place < length:
                run, on_track = 0, True
                for k in range(min(count, length - place)):
                    on_track = on_track and bool(right[k, place + k])
                    run += on_track
                    drafted += 1
                    if confident[k, place + k] < stop_below:
                        break
                place += min(run + 1, length - place)
                rounds += 1
            emitted += length
        seconds = drafted * self.share(kept) + rounds * self.plan.verify_cost
        return {"speedup": emitted / seconds, "tokens_per_round": emitted / rounds}


def count_weights(target: CachedLM) -> tuple[list[int], int]:
    """Return the number of weights of each layer, and of what every step reads besides: the output layer."""
    number = int(target.model.config.get_text_config().num_hidden_layers)
    layers = next(
        module
        for module in cast(nn.Module, target.model).modules()
        if isinstance(module, nn.ModuleList) and len(module) == number
    )
    output = cast(nn.Module, target.model.get_output_embeddings())
    return [_size(layer) for layer in layers], _size(output)


def _size(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def search(
    judge: Callable[[Sequence[int]], dict[str, Any]],
    num_layers: int,
    plan: SkipPlan,
    journal: Journal,
    keep: Callable[[Journal], object],
) -> tuple[LayerChoice, list[dict[str, Any]]]:
    """Leave out one layer after the other.

    Parameters
    ----------
    judge : callable
        Says what a choice of layers is worth.
    num_layers : int
        Of the target.
    plan : SkipPlan
        When to end.
    journal, keep
        What is known already, and what puts it in a safe place after each choice.

    Returns
    -------
    The best choice that was met, and the best one of each size, from all layers but one downwards.
    """

    def worth(kept: tuple[int, ...]) -> dict[str, Any]:
        key = " ".join(map(str, kept))
        if key not in journal:
            journal[key] = {"kept": list(kept), **judge(kept)}
            keep(journal)
        return journal[key]

    if num_layers < 2:
        raise ValueError(f"num_layers={num_layers}: a target of one layer has none to leave out")
    kept, path, best = tuple(range(num_layers)), list[dict[str, Any]](), 0  # the number of the best on the path
    while len(kept) > 1 and len(path) <= best + plan.patience:
        fewer = [worth(kept[:index] + kept[index + 1 :]) for index in range(len(kept))]
        path.append(max(fewer, key=lambda one: one["speedup"]))  # the first of equals
        kept = tuple(path[-1]["kept"])
        if path[-1]["speedup"] > path[best]["speedup"]:
            best = len(path) - 1
    return LayerChoice(tuple(path[best]["kept"]), path[best]["stop_below"]), path


def open_journal(folder: Path, recipe: dict[str, Any]) -> tuple[Journal, Callable[[Journal], None]]:
    """Return what an earlier search in this folder found out, and what keeps the journal.

    Raises
    ------
    ValueError
        If the folder belongs to another recipe, or its journal is damaged.
    """
    path, recipe = folder / JOURNAL, json.loads(json.dumps(recipe))
    journal: Journal = {}
    if path.is_file():
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            theirs, journal = dict(stored["recipe"]), dict(stored["journal"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"the journal {path} is damaged ({error}): delete it and start anew") from error
        differing = sorted(key for key in {*theirs, *recipe} if theirs.get(key) != recipe.get(key))
        if differing:
            raise ValueError(
                f"the folder {folder} holds a search made otherwise (another {', '.join(differing)}): "
                "choose another folder, or delete this one"
            )

    def keep(journal: Journal) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(path.name + ".unfinished")
        text = json.dumps({"recipe": recipe, "journal": journal}, indent=1) + "\n"
        unfinished.write_text(text, encoding="utf-8", newline="\n")
        unfinished.replace(path)

    return journal, keep


def recipe_of(plan: SkipPlan, texts: Texts, weights: str, seed: int) -> dict[str, Any]:
    """Return all that a search depends on, as JSON."""
    return {"plan": asdict(plan), "texts": texts, "target": weights, "seed": seed}
