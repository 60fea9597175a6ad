"""How good a draft is on prompts that no training saw: estimated from recorded laws, and measured by decoding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import LlamaForCausalLM

from specdec_ref.decode import speculate
from specdec_ref.drafters import ModelDrafter
from specdec_ref.measure import Run
from specdec_ref.model import CachedLM
from specdec_ref.rows import Stop
from specdec_ref.sampling import SamplingSettings
from specdec_ref.training.batches import Batches, hidden_states
from specdec_ref.training.corpus import Corpus
from specdec_ref.training.tell import Tell

Figures = dict[str, float | None]  # by name; None where there was nothing to measure


@torch.inference_mode()
def estimate(model: LlamaForCausalLM, corpus: Corpus, batch_size: int = 4) -> Figures:
    """Estimate the acceptance of a draft from recorded laws, without running the target.

    Returns
    -------
    dict
        `alpha_greedy`: on greedy answers, how often the likeliest token is the target's. `alpha_low`, `alpha_high`: on
        answers drawn at temperature 1, bounds of the mean of sum min(p, q); they differ by what the tail may hold.
        `cross_entropy`: of the labels of all answers, in nats. None where there is no such answer.
    """
    batches = Batches(corpus, batch_size, seed=0)
    order = np.argsort(corpus.prompt_lengths + corpus.lengths, kind="stable")
    found: dict[str, list[torch.Tensor]] = {"greedy": [], "low": [], "high": [], "nats": []}
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        batch = batches.gather(chosen)
        log_q = model.lm_head(hidden_states(model, batch)).log_softmax(-1)  # [N, V]
        found["nats"].append(-log_q.gather(1, batch.labels[:, None])[:, 0])
        if not len(batch.top_ids):
            continue
        temperatures = torch.from_numpy(corpus.temperatures[chosen])[batch.rows]
        p, q = batch.log_p.exp(), log_q.gather(1, batch.top_ids).exp()
        common = torch.minimum(p, q).sum(1)
        tail = torch.minimum(1 - p.sum(1), 1 - q.sum(1)).clamp(min=0)
        found["greedy"].append((log_q.argmax(1) == batch.top_ids[:, 0])[temperatures == 0].float())
        found["low"].append(common[temperatures == 1])
        found["high"].append((common + tail)[temperatures == 1])
    means = {name: _mean(parts) for name, parts in found.items()}
    return {
        "alpha_greedy": means["greedy"],
        "alpha_low": means["low"],
        "alpha_high": means["high"],
        "cross_entropy": means["nats"],
    }


def _mean(parts: list[torch.Tensor]) -> float | None:
    values = torch.cat(parts) if parts else torch.empty(0)
    return float(values.mean()) if len(values) else None


def measure(
    target: CachedLM,
    draft: CachedLM,
    prompts: Sequence[Sequence[int]],
    *,
    temperature: float,
    stop: Stop,
    num_draft_tokens: int = 4,
    max_new_tokens: int = 64,
    batch_size: int = 8,
) -> Run:
    """Decode prompts speculatively and return what happened: `Run.alpha` and `Run.emitted_per_round` are wanted.

    The k-th prompt has the seed k. No time is measured.
    """
    run = Run()
    for start in range(0, len(prompts), batch_size):
        run.rounds += speculate(
            target,
            ModelDrafter(draft),
            prompts[start : start + batch_size],
            SamplingSettings(temperature),
            num_draft_tokens=num_draft_tokens,
            max_new_tokens=max_new_tokens,
            stop=stop,
            seeds=start,
        )
    return run


def decode_both(
    target: CachedLM, draft: CachedLM, prompts: Sequence[Sequence[int]], stop: Stop, max_new_tokens: int, tell: Tell
) -> Figures:
    """Measure alpha and tokens per round, greedily and at temperature 1, with K=4."""
    figures: Figures = {}
    for done, (name, temperature) in enumerate((("greedy", 0.0), ("T=1", 1.0))):
        tell("decode", done, 2, name)
        found = measure(target, draft, prompts, temperature=temperature, stop=stop, max_new_tokens=max_new_tokens)
        figures[f"alpha, decoding, {name}"] = found.alpha
        figures[f"tokens per round, K=4, {name}"] = found.emitted_per_round
    tell("decode", 2, 2, "")
    return figures
