"""A chain of draft tokens, one after the other: what every drafter with laws of its own does.

The law handed in is the law each token was drawn from. So whatever decides how long the chain gets must not look at a
token and then drop it: a token that is drawn stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from specdec_ref.device import read, upload
from specdec_ref.drafters.base import Draft
from specdec_ref.model import CachedLM, pad
from specdec_ref.sampling import Purpose, draw, healthy_rows, probabilities

if TYPE_CHECKING:
    from specdec_ref.rows import Rows


def no_draft(rows: Rows) -> Draft:
    """Return the draft that proposes nothing."""
    return Draft(upload(torch.zeros(len(rows), 0), rows.device), torch.zeros(len(rows), dtype=torch.int64))


def draw_chain(
    rows: Rows,
    counts: torch.Tensor,
    logits: torch.Tensor,
    step: Callable[[torch.Tensor], torch.Tensor],
    *,
    stop_below: float = 0.0,
) -> Draft:
    """Draw tokens one after the other, each from the drafter's law after those before it.

    Parameters
    ----------
    rows : Rows
        The texts, with their settings and uniforms.
    counts : Tensor [B] int64 on the host
        How many tokens each row may draft; at least one of them is positive.
    logits : Tensor [B, V]
        For the first token, over the target's vocabulary.
    step : callable
        Given the tokens just drawn, [B, 1], returns the logits of the next ones, [B, V].
    stop_below : float
        A row's chain ends with a token whose law was not sure of anything: no token had so much probability. The token
        itself stays, so that q is what it was drawn from. 0 never stops, and never makes the host wait.

    Returns
    -------
    Draft; without `probs` if greedy, since a greedy law is a point mass.
    """
    width = int(counts.max())
    tokens = upload(torch.zeros(len(rows), 0), rows.device)  # [B, i] drafted so far
    laws: list[torch.Tensor] = []
    healthy: list[torch.Tensor] = []
    uniforms = rows.uniforms(Purpose.DRAFT, width)  # [B, K]
    for i in range(width):
        if i > 0:
            logits = step(tokens[:, -1:])
        healthy.append(healthy_rows(logits))
        history = rows.history(tokens)
        law = probabilities(logits, rows.settings, None if history is None else history[:, -1], check=False)
        tokens = torch.cat([tokens, draw(law, uniforms[:, i])[:, None]], dim=1)
        laws.append(law)
        if stop_below > 0:
            unsure = read(logits.softmax(-1).amax(-1) < stop_below)  # [B]; from the logits, since a greedy law is sure
            counts = torch.where(unsure, counts.clamp(max=i + 1), counts)
            if int(counts.max()) == i + 1:
                break
    probs = None if rows.settings.greedy else torch.stack(laws, dim=1)
    return Draft(tokens, counts, probs, torch.stack(healthy, dim=1))


def feed_missing(lm: CachedLM, texts: Sequence[Sequence[int]], fits: Sequence[bool]) -> torch.Tensor:
    """Feed what is written and not in the cache of `lm`, and return the logits after each text, [B, V].

    That is the whole prompt at first, then one token a round, or two after full acceptance. Rows that do not fit are
    left as they are; their logits mean nothing.
    """
    missing = [
        text[held:] if fit else [] for text, held, fit in zip(texts, lm.cache.lengths.tolist(), fits, strict=True)
    ]
    lm.prefill([tokens[:-2] for tokens in missing])
    tail, counts = pad([tokens[-2:] for tokens in missing])
    logits = lm.extend(upload(tail, lm.device), counts)  # [B, 1 or 2, V]
    last = upload((counts - 1).clamp(min=0), lm.device)
    return logits[torch.arange(len(texts), device=lm.device), last]
