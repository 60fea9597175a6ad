"""Training of Medusa heads: each feature of the target, and the laws of the tokens further on.

Head k reads the feature at t and guesses token t+1+k. The text's token there is one sample of the truth; the target's
law there, recorded with the text, is the mean of what such samples would say, so it teaches the same with less noise.
(What head k can know at best is the mean of those laws over all ways the text may take in between.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from specdec_ref.heads.medusa import MedusaHeads
from specdec_ref.training.buckets import bucket_loss
from specdec_ref.training.corpus import Corpus
from specdec_ref.training.distill import log_probabilities
from specdec_ref.training.features import FeatureBatch, FeatureBatches, Features
from specdec_ref.training.held_out import Figures
from specdec_ref.training.rounds import per_answer, tokens_per_round

TREE = (3, 2, 1)  # how many guesses of each head a small tree holds: 3 + 6 + 6 nodes


@dataclass(frozen=True)
class MedusaPlan:
    """How Medusa heads are trained.

    Attributes
    ----------
    epochs : float
        How often each answer is read.
    batch_size, learning_rate, weight_decay
        See `Schedule`; a batch is so many answers.
    head_decay : float
        How much less each head counts than the one before (the paper has 0.8).
    tv_weight : float
        Share of the total variation.
    num_negatives : int
        Ids drawn to stand for the rest of the vocabulary; 0 sums over all of it.
    dtype : str
        Of the matrix products: "bfloat16" or "float32".
    save_every, look_every, look_at : int
        Steps between checkpoints and between looks, and how many held-out answers a look reads.
    """

    epochs: float
    batch_size: int = 4
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    head_decay: float = 0.8
    tv_weight: float = 0.0
    num_negatives: int = 2048
    dtype: str = "bfloat16"
    save_every: int = 200
    look_every: int = 500
    look_at: int = 64


def loss(heads: MedusaHeads, batch: FeatureBatch, plan: MedusaPlan, seed: int) -> torch.Tensor:
    """Return the mean loss per guess, weighted by `head_decay`; `seed` draws the negatives."""
    hidden: list[torch.Tensor] = []
    kept: list[torch.Tensor] = []
    with torch.autocast("cpu", torch.bfloat16, enabled=plan.dtype == "bfloat16"):
        for number in range(1, heads.shape.heads + 1):
            kept.append((batch.columns >= number).nonzero()[:, 0])  # a law at column c is guessed from column c - k
            features = batch.features[batch.rows[kept[-1]], batch.columns[kept[-1]] - number]
            hidden.append(heads.guess(number, features).float())
        places = torch.cat(kept)  # [M], all guesses of all heads
        labels, top_ids = batch.labels[places, None], batch.top_ids[places]
        wanted = torch.cat([top_ids, labels], 1)
        log_q = log_probabilities(torch.cat(hidden), heads.output, wanted, plan.num_negatives, seed)
    known = torch.ones_like(top_ids, dtype=torch.bool)
    outside = (top_ids != labels).all(1)
    each = bucket_loss(batch.log_p[places], log_q[:, :-1], known, log_q[:, -1], outside, plan.tv_weight)
    weight = torch.cat([torch.full((len(one),), plan.head_decay**number) for number, one in enumerate(kept)])
    return (weight * each).sum() / weight.sum()


@torch.inference_mode()
def estimate(heads: MedusaHeads, corpus: Corpus, features: Features, batch_size: int = 4) -> Figures:
    """Measure heads along held-out text.

    Returns
    -------
    dict
        `head k, top-1` and `top-3`: how often the text's token is head k's likeliest, or among its three likeliest, on
        all answers; `head k, top-1, greedy`: on greedy ones. `tokens per round, ..., greedy`: see `rounds`; a chain of
        all heads, and the tree in which each guess of a head is followed by all guesses of the next.
    """
    batches = FeatureBatches(corpus, features, batch_size, seed=0)
    order = np.argsort(corpus.prompt_lengths + corpus.lengths, kind="stable")
    count = heads.shape.heads
    places: list[list[torch.Tensor]] = [[] for _ in range(count)]
    greedy: list[list[torch.Tensor]] = [[] for _ in range(count)]
    chain: list[np.ndarray] = []
    tree: list[np.ndarray] = []
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        batch = batches.gather(chosen)
        temperatures = torch.from_numpy(corpus.temperatures[chosen])
        ranks: list[torch.Tensor] = []  # of the text's token among each head's guesses, from 0; [N] each
        for number in range(1, count + 1):
            reached = batch.columns >= number
            before = (batch.columns - number).clamp(min=0)
            logits = torch.nn.functional.linear(heads.guess(number, batch.features[batch.rows, before]), heads.output)
            rank = (logits > logits.gather(1, batch.labels[:, None])).sum(1)
            ranks.append(torch.where(reached, rank, logits.shape[1]))
            places[number - 1].append(rank[reached])
            greedy[number - 1].append(rank[reached & (temperatures[batch.rows] == 0)])
        widths = torch.tensor(TREE + (1,) * count)[:count, None]
        stacked = torch.stack(ranks)  # [H, N]
        for hits, walks in ((stacked < 1, chain), (stacked < widths, tree)):
            cut = per_answer(hits, batch)
            walks += [hit for hit, temperature in zip(cut, temperatures.tolist(), strict=True) if temperature == 0]
    figures: Figures = {}
    for number, (everywhere, on_greedy) in enumerate(zip(places, greedy, strict=True), start=1):
        figures[f"head {number}, top-1"] = _share(everywhere, 1)
        figures[f"head {number}, top-3"] = _share(everywhere, 3)
        figures[f"head {number}, top-1, greedy"] = _share(on_greedy, 1)
    shown = "x".join(map(str, TREE[:count]))
    return figures | {
        f"tokens per round, chain of {count}, greedy": tokens_per_round(chain),
        f"tokens per round, tree of {shown}, greedy": tokens_per_round([hits[: len(TREE)] for hits in tree]),
    }


def _share(ranks: list[torch.Tensor], below: int) -> float | None:
    values = torch.cat(ranks) if ranks else torch.empty(0)
    return float((values < below).float().mean()) if len(values) else None
