"""Train an EAGLE head for the tiny target inside a lesson: the recipe of `specdec train eagle`, on few texts.

The command learns from text that the target wrote, which takes minutes. Here the target only reads: new stories of the
grammar that it once learned from. One pass over them gives its laws and its features. From there on everything is the
command's own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.utils import logging

from specdec_ref.heads import EagleHead, load_eagle, stored
from specdec_ref.model import CachedLM
from specdec_ref.pairs import Pair
from specdec_ref.training.answering import laws
from specdec_ref.training.eagle import EaglePlan, conditional, unroll
from specdec_ref.training.ground import Place
from specdec_ref.training.heads import run_eagle
from specdec_ref.training.stories import story
from specdec_ref.training.tiny_text import encode

_BATCH = 20  # texts that are read side by side


@dataclass(frozen=True)
class Trained:
    """A head, and what its training looked like.

    Attributes
    ----------
    head : EagleHead
        As it is stored, ready to draft.
    losses : list of float
        Of each step.
    looks : list of (steps done, alpha)
        Acceptance of the first draft token at temperature 1, on stories that were held out; a lower bound.
    """

    head: EagleHead
    losses: list[float]
    looks: list[tuple[int, float]]


def read_stories(pair: Pair, folder: Path, num_stories: int) -> int:
    """Let the target read new stories and keep its laws, as the recipe wants them; return the number of tokens.

    Parameters
    ----------
    pair : Pair
        The tiny one: the stories are in its vocabulary.
    folder : Path
        Receives the text.
    num_stories : int
        About one in twenty is held out.
    """
    text = encode([story(number, seed=8) for number in range(num_stories)], pair.tokenizer)
    text = replace(text, temperatures=np.ones_like(text.temperatures))  # drawn by the grammar's luck, none is greedy
    prompts, answers = ([line.tolist() for line in lines] for lines in (text.prompts(), text.answers()))
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for start in range(0, num_stories, _BATCH):
        found += laws(pair.target, prompts[start : start + _BATCH], answers[start : start + _BATCH])
    weights = stored.weights_of(pair.target_folder)
    text.with_laws(found).save(folder / "text" / "shard-00000.npz", {"weights": weights})
    return len(text.tokens)


def train_head(
    pair: Pair, folder: Path, *, epochs: float, passes: int, look_every: int = 30, say: bool = True
) -> Trained:
    """Train a head on the stories in a folder, as `specdec train eagle --target tiny --dtype float32` does.

    Parameters
    ----------
    pair, folder
        As for `read_stories`.
    epochs : float
        How often each story is read.
    passes : int
        Draft tokens that training unrolls.
    look_every : int
        Steps between looks at the held-out stories.
    say : bool
        Print the loss now and then.
    """

    def tell(name: str, done: int, total: int, remark: str) -> None:
        if say and name != "features" and (done % look_every == 0 or done == total):
            print(f"step {done:4} of {total}: {remark}")

    work = folder / f"work-{passes}"
    out = folder / f"tiny-eagle-{passes}"
    place = Place(pair.target_folder, folder / "text", folder / "features", work, out, None, "the lesson", tell)
    plan = EaglePlan(
        epochs, learning_rate=2e-3, num_passes=passes, dtype="float32", save_every=10**6, look_every=look_every
    )
    logging.disable_progress_bar()  # in a notebook it would be stored as an error message
    run_eagle(place, plan, mlp=128, vocabulary=1536, kv_heads=1)
    curve = json.loads((work / "curve.json").read_text(encoding="utf-8"))
    looks = [(one["step"], one["alpha_low"]) for one in curve["looks"]]
    return Trained(load_eagle(out, pair.target, pair.target_folder), curve["losses"], looks)


@torch.inference_mode()
def along(
    head: EagleHead, target: CachedLM, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], num: int
) -> list[dict[str, Any]]:
    """Draft `num` tokens from every place of greedy answers at once, and compare with what the target did.

    Returns
    -------
    list of dict, one for each draft token 1 .. num
        `hit`: how often it is the answer's own token, given that those before it were. `fresh`: how often a draft that
        began at the same places with true features would have been right. `away`: the distance there between the
        feature that the head predicted and the target's, as a share of the latter's size.
    """
    walks: list[np.ndarray] = []
    fresh: list[list[bool]] = [[] for _ in range(num)]
    away: list[list[float]] = [[] for _ in range(num)]
    for prompt, answer in zip(prompts, answers, strict=True):
        tokens = torch.tensor([[*prompt, *answer]], device=target.device)
        features = target.fresh(1).prefill_with_features(tokens.tolist())
        start, length = len(prompt) - 2, len(answer)  # the pair whose output is the law of the answer's first token
        outputs = [out[0, start : start + length] for out in unroll(head, features, tokens, num)]  # [n, D] each
        guesses = [head.draft_to_target[head.logits(out).argmax(-1)] for out in outputs]
        hits = np.array([(guess == tokens[0, len(prompt) :]).tolist() for guess in guesses])  # [num, n]
        walks.append(hits)
        true = features[0, start + 1 : start + 1 + length]
        for number, out in enumerate(outputs):
            distances = ((out - true).norm(dim=-1) / true.norm(dim=-1)).tolist()
            for place in range(number, length):
                if hits[range(number), range(place - number, place)].all():  # the tokens before it were right
                    fresh[number].append(bool(hits[0, place]))
                    away[number].append(distances[place])
    return [
        {"hit": conditional(walks, m + 1), "fresh": float(np.mean(fresh[m])), "away": float(np.mean(away[m]))}
        for m in range(num)
    ]
