"""Training of an EAGLE head: on the target's features first, then on its own, as it will have to draft.

In its first step a draft reads true features only. In its second it reads the feature that it predicted itself, and
attends to true ones before. A head that was trained on true features alone has never seen such a thing, and its second
token suffers. So training unrolls the draft, for all places of a text at once:

    pass 1    pair i holds the target's feature i;    it sees pass 1 at 0..i
    pass 2    pair i holds what pass 1 gave at i-1;   it sees pass 1 at 0..i-1, and itself
    pass 3    pair i holds what pass 2 gave at i-1;   it sees pass 1 at 0..i-2, pass 2 at i-1, and itself

Pass m at pair i is exactly what draft token m of the round that began at pair i-m+1 computes, with a cache, when the
draft tokens before it were right. This is the "training-time test" of EAGLE-3 (Li et al. 2025, arXiv 2503.01840,
section 3), for a single layer; HASS (Zhang et al. 2025, arXiv 2408.15766) has the same idea. Measuring uses the same
passes: see `rounds`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch.nn import functional

from specdec_ref.heads.eagle import EagleHead
from specdec_ref.training.batches import fingerprint
from specdec_ref.training.buckets import bucket_loss
from specdec_ref.training.corpus import Corpus
from specdec_ref.training.features import FeatureBatch, FeatureBatches, Features
from specdec_ref.training.held_out import Figures
from specdec_ref.training.rounds import per_answer, tokens_per_round


@dataclass(frozen=True)
class EaglePlan:
    """How an EAGLE head is trained.

    Attributes
    ----------
    epochs : float
        How often each answer is read.
    batch_size, learning_rate, weight_decay
        See `Schedule`; a batch is so many answers.
    num_passes, pass_decay : int, float
        Draft tokens that are unrolled, and how much less each counts than the one before.
    tv_weight, feature_weight : float
        Shares of the total variation, and of the smooth L1 distance between predicted and true features.
    dtype : str
        Of the matrix products: "bfloat16" or "float32".
    save_every, look_every, look_at : int
        Steps between checkpoints and between looks, and how many held-out answers a look reads.
    """

    epochs: float
    batch_size: int = 8
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    num_passes: int = 3
    pass_decay: float = 0.8
    tv_weight: float = 1.0
    feature_weight: float = 0.1
    dtype: str = "bfloat16"
    save_every: int = 200
    look_every: int = 500
    look_at: int = 64


def unroll(head: EagleHead, features: torch.Tensor, tokens: torch.Tensor, num_passes: int) -> list[torch.Tensor]:
    """Draft `num_passes` tokens from every place of a text at once.

    Parameters
    ----------
    features : Tensor [B, T, D]
        The target's.
    tokens : Tensor [B, T] int64
        The text. Pair i is feature i with token i+1, so there are T-1 pairs.
    num_passes : int
        M.

    Returns
    -------
    list of M tensors [B, T-1, D]: entry m at i is the predicted feature i+1, and says what token i+2 may be. It means
    something from i = m on.
    """
    positions = torch.arange(1, tokens.shape[1])[None]  # of the pair's token
    keys: list[torch.Tensor] = []
    values: list[torch.Tensor] = []

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        groups = query.shape[1] // key.shape[1]
        keys.append(key.repeat_interleave(groups, dim=1))
        values.append(value.repeat_interleave(groups, dim=1))
        return attend_unrolled(query, keys, values)

    outputs: list[torch.Tensor] = []
    inputs = features[:, :-1]
    for _ in range(num_passes):
        outputs.append(head(inputs, tokens[:, 1:], positions, attend))
        inputs = moved(outputs[-1], 1)  # what was predicted at i-1 is the input at i
    return outputs


def attend_unrolled(query: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor]) -> torch.Tensor:
    """Attend from the pairs of the last pass, to what each of them sees of all passes so far.

    Of pass 1 that is everything before the round began; of each later pass it is one pair, so its score is one number
    and needs no matrix.

    Parameters
    ----------
    query : Tensor [B, H, T, d]
        Of the last pass.
    keys, values : list of M tensors [B, H, T, d]
        Of each pass.

    Returns
    -------
    Tensor [B, H, T, d]
    """
    length, back = query.shape[2], len(keys) - 1
    hidden = ~torch.ones(length, length, dtype=torch.bool).tril(-back)
    scores = (query @ keys[0].transpose(2, 3)).float().masked_fill(hidden, -torch.inf)  # [B, H, T, T]
    steps = [back - number for number in range(1, back + 1)]  # how far back the one pair of each later pass lies
    own = [(query * moved(key, step)).sum(-1, keepdim=True) for key, step in zip(keys[1:], steps, strict=True)]
    weights = (torch.cat([scores, *own], dim=-1) * query.shape[3] ** -0.5).softmax(-1).to(query.dtype)
    attended = weights[..., :length] @ values[0]
    for number, (value, step) in enumerate(zip(values[1:], steps, strict=True)):
        attended = attended + weights[..., length + number, None] * moved(value, step)
    return attended


def moved(x: torch.Tensor, step: int) -> torch.Tensor:
    """Move `x` [..., T, D] by `step` places towards the end; zeros come in, the last ones fall out."""
    return functional.pad(x[..., : x.shape[-2] - step, :], (0, 0, step, 0))


def loss(head: EagleHead, batch: FeatureBatch, target_to_draft: torch.Tensor, plan: EaglePlan) -> torch.Tensor:
    """Return the mean loss per predicted token, over the passes; see the head of this file and of `buckets`."""
    total, weights = torch.zeros(()), 0.0
    with torch.autocast("cpu", torch.bfloat16, enabled=plan.dtype == "bfloat16"):
        for number, outputs in enumerate(unroll(head, batch.features, batch.tokens, plan.num_passes), start=1):
            kept = batch.columns >= number  # [N]: a law at column c follows pair c-1
            rows, columns = batch.rows[kept], batch.columns[kept]
            predicted = outputs[rows, columns - 1]  # [N, D]
            log_q = head.logits(predicted).float().log_softmax(-1)  # [N, R]
            top, label = target_to_draft[batch.top_ids[kept]], target_to_draft[batch.labels[kept]]
            log_q = log_q.gather(1, torch.cat([top, label[:, None]], 1).clamp(min=0))  # [N, TOP + 1]
            laws = bucket_loss(
                batch.log_p[kept],
                log_q[:, :-1],
                top >= 0,
                log_q[:, -1],
                (batch.top_ids[kept] != batch.labels[kept, None]).all(1) & (label >= 0),
                plan.tv_weight,
            ).mean()
            away = functional.smooth_l1_loss(predicted.float(), batch.features[rows, columns])
            weight = plan.pass_decay ** (number - 1)
            total, weights = total + weight * (laws + plan.feature_weight * away), weights + weight
    return total / weights


def draft_vocabulary(corpus: Corpus, size: int, target_vocab: int) -> torch.Tensor:
    """Return the `size` commonest ids of the answers, in rising order: what the head can draft, [R] int64."""
    counts = np.bincount(corpus.tokens, minlength=target_vocab)
    commonest = np.argsort(-counts, kind="stable")[:size]
    return torch.from_numpy(np.sort(commonest))


def inverse(draft_to_target: torch.Tensor, target_vocab: int) -> torch.Tensor:
    """Return the draft id of each of the target's ids, -1 where there is none: [V] int64."""
    back = torch.full((target_vocab,), -1, dtype=torch.int64)
    back[draft_to_target] = torch.arange(len(draft_to_target))
    return back


@torch.inference_mode()
def estimate(
    head: EagleHead, corpus: Corpus, features: Features, num_draft_tokens: int = 4, batch_size: int = 4
) -> Figures:
    """Measure a head along held-out text.

    Returns
    -------
    dict
        `alpha_greedy`, `alpha_low`, `alpha_high`: of the first draft token, as in `held_out.estimate`. `alpha_greedy,
        token m`: how often draft token m is right on greedy text, given that those before it were.
        `tokens per round, K=4, greedy`: see `rounds`. None where there is no such text.
    """
    batches = FeatureBatches(corpus, features, batch_size, seed=0)
    order = np.argsort(corpus.prompt_lengths + corpus.lengths, kind="stable")
    back = inverse(head.draft_to_target, len(head.embedding))
    low: list[torch.Tensor] = []
    high: list[torch.Tensor] = []
    walks: list[np.ndarray] = []
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        batch = batches.gather(chosen)
        temperatures = torch.from_numpy(corpus.temperatures[chosen])
        hits: list[torch.Tensor] = []
        for number, outputs in enumerate(unroll(head, batch.features, batch.tokens, num_draft_tokens), start=1):
            logits = head.logits(outputs[batch.rows, (batch.columns - 1).clamp(min=0)])  # [N, R]
            hits.append((head.draft_to_target[logits.argmax(-1)] == batch.labels) & (batch.columns >= number))
            if number == 1:
                common, tail = _acceptance(logits, back, batch)
                at_one = (temperatures[batch.rows] == 1) & (batch.columns >= 1)
                low.append(common[at_one])
                high.append((common + tail)[at_one])
        cut = per_answer(torch.stack(hits), batch)
        walks += [hit for hit, temperature in zip(cut, temperatures.tolist(), strict=True) if temperature == 0]
    figures: Figures = {
        "alpha_greedy": conditional(walks, 1),
        "alpha_low": _mean(low),
        "alpha_high": _mean(high),
    }
    for number in range(2, num_draft_tokens + 1):
        figures[f"alpha_greedy, token {number}"] = conditional(walks, number)
    figures[f"tokens per round, K={num_draft_tokens}, greedy"] = tokens_per_round(walks)
    return figures


def _acceptance(
    logits: torch.Tensor, target_to_draft: torch.Tensor, batch: FeatureBatch
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sum min(p, q) over the recorded tokens, and the most that the others can add: [N] each."""
    top = target_to_draft[batch.top_ids]
    p, q = batch.log_p.exp(), logits.softmax(-1).gather(1, top.clamp(min=0)) * (top >= 0)
    return torch.minimum(p, q).sum(1), torch.minimum(1 - p.sum(1), 1 - q.sum(1)).clamp(min=0)


def conditional(walks: list[np.ndarray], number: int) -> float | None:
    """Return how often draft token `number` (from 1) hits after hits of all before it, over every place to begin."""
    reached = hit = 0
    for hits in walks:
        starts = hits.shape[1] - number + 1
        if starts > 0:
            before = np.all([hits[k, k : k + starts] for k in range(number - 1)], axis=0) | np.zeros(starts, bool)
            reached += int(before.sum())
            hit += int((before & hits[number - 1, number - 1 : number - 1 + starts]).sum())
    return hit / reached if reached else None


def _mean(parts: list[torch.Tensor]) -> float | None:
    values = torch.cat(parts) if parts else torch.empty(0)
    return float(values.mean()) if len(values) else None


def recipe_of(corpus: Corpus, head: EagleHead, plan: EaglePlan) -> Mapping[str, object]:
    """Return what a run depends on beside the target."""
    return {"shape": asdict(head.shape), "plan": asdict(plan), "text": fingerprint(corpus)}
