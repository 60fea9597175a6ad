"""Distillation: a small Llama learns the laws of a larger one along the larger one's own text.

The record holds the 16 likeliest tokens of each law. What is left, the tail, has a known mass but no known shape, so a
law is taken as 16 tokens and one bucket:

    KL(p | q) = sum over the 16 of p log(p / q)  +  tail(p) log(tail(p) / tail(q))  +  tail(p) KL inside the tail

The last term needs the shape. A token that was drawn from the tail is a sample of it, so where the label lies outside
the 16, `log(tail(q) / q(label))` is added: without bias where the text was drawn at temperature 1. The hard label is
used exactly where it says what the law does not.

Acceptance is `sum min(p, q) = 1 - TV(p, q)`, so the total variation, over the same 17 events, may be added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import LlamaForCausalLM

from specdec_ref.training.batches import Batch, Batches, fingerprint, hidden_states
from specdec_ref.training.corpus import Corpus
from specdec_ref.training.held_out import estimate
from specdec_ref.training.loop import History, Schedule, train
from specdec_ref.training.tell import Tell

_TINY = 1e-6  # a tail below this is rounding


def log_probabilities(
    hidden: torch.Tensor, head: torch.Tensor, wanted: torch.Tensor, num_negatives: int = 0, seed: int = 0
) -> torch.Tensor:
    """Return log q of some tokens at each position, without the logits of the whole vocabulary.

    The normaliser is a sum over all V tokens. Those wanted anywhere in the batch are summed exactly; of the others
    `num_negatives` are drawn evenly and stand for all, which estimates the sum without bias. With a vocabulary of
    49,152 and some 4,000 wanted ids this is a sixth of the work.

    Parameters
    ----------
    hidden : Tensor [N, D]
        Last hidden states.
    head : Tensor [V, D]
        The output layer.
    wanted : Tensor [N, W] int64
        Ids whose log q is asked for.
    num_negatives, seed : int
        How many others are drawn, and the luck. 0: the exact softmax.

    Returns
    -------
    Tensor [N, W] of natural logarithms.
    """
    ids = wanted.unique()
    others = torch.ones(len(head), dtype=torch.bool).index_fill(0, ids, False).nonzero()[:, 0]
    if not 0 < num_negatives < len(others):
        return (hidden @ head.T).log_softmax(-1).gather(1, wanted)
    luck = torch.Generator().manual_seed(seed)
    drawn = others[torch.randperm(len(others), generator=luck)[:num_negatives]]
    scores = hidden @ functional.embedding(torch.cat([ids, drawn]), head).T  # [N, C]
    each = torch.zeros(scores.shape[1])
    each[len(ids) :] = np.log(len(others) / num_negatives)  # one drawn token stands for so many
    return scores.gather(1, torch.searchsorted(ids, wanted)) - (scores + each).logsumexp(-1, keepdim=True)


def loss(
    model: LlamaForCausalLM, batch: Batch, *, tv_weight: float = 0.0, num_negatives: int = 0, seed: int = 0
) -> torch.Tensor:
    """Return the mean loss per token of the answers: KL plus `tv_weight` times TV, see the head of this file.

    Where the record holds no laws, it is the cross-entropy of the labels.
    """
    hidden, head = hidden_states(model, batch), model.lm_head.weight
    labels = batch.labels[:, None]
    if not len(batch.top_ids):
        return -log_probabilities(hidden, head, labels, num_negatives, seed).mean()
    log_q = log_probabilities(hidden, head, torch.cat([batch.top_ids, labels], 1), num_negatives, seed)
    log_top, log_label = log_q[:, :-1], log_q[:, -1]
    p, q = batch.log_p.exp(), log_top.exp()
    tail_p, tail_q = (1 - p.sum(1)).clamp(min=_TINY), (1 - q.sum(1)).clamp(min=_TINY)  # [N]
    kl = (p * (batch.log_p - log_top)).sum(1) + tail_p * (tail_p.log() - tail_q.log())
    from_tail = (batch.top_ids != labels).all(1)
    kl = kl + torch.where(from_tail, tail_q.log() - log_label, 0.0)
    tv = 1 - torch.minimum(p, q).sum(1) - torch.minimum(tail_p, tail_q)
    return (kl + tv_weight * tv).mean()


@dataclass(frozen=True)
class Plan:
    """How one student is trained. Together with the text and the untrained weights it decides the result.

    Attributes
    ----------
    epochs : float
        How often each answer is read.
    batch_size : int
        Answers in a batch.
    learning_rate, weight_decay : float
        See `Schedule`.
    tv_weight : float
        Share of the total variation in the loss.
    num_negatives : int
        Ids drawn to stand for the rest of the vocabulary; 0 sums over all of it.
    dropout : float
        See `dropping`.
    save_every, look_every, look_at : int
        Steps between checkpoints and between looks, and how many held-out answers a look reads.
    """

    epochs: float
    batch_size: int = 8
    learning_rate: float = 1.5e-3
    weight_decay: float = 0.05
    tv_weight: float = 1.0
    num_negatives: int = 0
    dropout: float = 0.0
    save_every: int = 200
    look_every: int = 500
    look_at: int = 64


@contextmanager
def dropping(model: LlamaForCausalLM, share: float) -> Iterator[None]:
    """Let `share` of the numbers that the embedding and each sublayer give be zero in training, at random.

    A text that is read several times is learned by heart sooner than it is understood; noise makes that harder.
    transformers' Llama has no dropout but in its attention weights.
    """

    def drop(module: nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
        return functional.dropout(output, share, training=model.training)

    ends = ("embed_tokens", "o_proj", "down_proj")
    hooks = [module.register_forward_hook(drop) for name, module in model.named_modules() if name.endswith(ends)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def distill(
    model: LlamaForCausalLM,
    train_corpus: Corpus,
    held_out: Corpus,
    plan: Plan,
    folder: Path,
    *,
    seed: int,
    recipe: Mapping[str, object],
    tell: Tell,
) -> History:
    """Teach a student the laws of a corpus, or its labels where it holds no laws. Stop it at any time; it goes on.

    Parameters
    ----------
    model : LlamaForCausalLM
        Untrained; changed in place.
    train_corpus, held_out : Corpus
        What it learns from, and what it is looked at with.
    plan : Plan
        How.
    folder : Path
        Of checkpoint and curve.
    seed : int
        Order of the answers, and which negatives are drawn.
    recipe : mapping
        What else the result depends on.
    tell : Tell
        Told of each step, with the folder's name.

    Returns
    -------
    History of losses and held-out estimates.

    Raises
    ------
    ValueError
        If there is no text on either side, or as `train`.
    """
    if not len(held_out):
        raise ValueError("held_out is empty: write more text, so that some of it can be kept from the training")
    batches = Batches(train_corpus, plan.batch_size, seed)
    steps = max(1, round(plan.epochs * len(batches)))
    schedule = Schedule(
        steps,
        learning_rate=plan.learning_rate,
        warmup_steps=min(100, max(1, steps // 10)),
        weight_decay=plan.weight_decay,
        save_every=plan.save_every,
        look_every=plan.look_every,
    )
    sample = held_out.take(range(min(plan.look_at, len(held_out))))

    def loss_of(step: int) -> torch.Tensor:
        # Each step has luck of its own, which does not depend on how often the run was stopped.
        luck = (seed << 32) + step
        torch.manual_seed(luck)  # the dropout draws from it
        return loss(model, batches[step], tv_weight=plan.tv_weight, num_negatives=plan.num_negatives, seed=luck)

    with dropping(model, plan.dropout), torch.random.fork_rng(devices=[]):  # the caller's luck is left alone
        return train(
            model,
            loss_of,
            schedule,
            folder,
            {**recipe, "plan": asdict(plan), "seed": seed, "text": fingerprint(train_corpus)},
            look=lambda: estimate(model, sample),
            advance=lambda done, value: tell(folder.name, done, steps, f"loss {value:.3f}"),
        )
