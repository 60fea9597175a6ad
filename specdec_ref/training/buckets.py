"""The distance of a head's law from a recorded one: the 17 events of `distill`, over a smaller vocabulary.

A head that never drafts some tokens cannot be blamed for their probability. So the law it is compared with is the
target's, cut to the tokens it can draft; the loss of a position counts as much as the mass that is left.
"""

from __future__ import annotations

import torch

_TINY = 1e-6  # a tail below this is rounding


def bucket_loss(
    log_p: torch.Tensor,
    log_top: torch.Tensor,
    known: torch.Tensor,
    log_label: torch.Tensor,
    from_tail: torch.Tensor,
    tv_weight: float,
) -> torch.Tensor:
    """Return KL plus `tv_weight` times TV of each position, [N]; see the head of `distill`.

    Parameters
    ----------
    log_p, log_top : Tensor [N, TOP]
        Logarithms of the target's and the head's probabilities of the target's likeliest tokens.
    known : Tensor [N, TOP] bool
        Whether the head can draft them. Where not, `log_top` may be anything.
    log_label : Tensor [N]
        The head's log-probability of the token that came.
    from_tail : Tensor [N] bool
        Whether that token is none of the recorded ones, and one the head can draft.
    """
    mass = log_p.exp()
    p, q = mass * known, log_top.exp() * known
    tail_p = (1 - mass.sum(1)).clamp(min=_TINY)  # [N]; tokens that are not recorded are taken as ones it can draft
    tail_q = (1 - q.sum(1)).clamp(min=_TINY)
    left = p.sum(1) + tail_p  # what the head could get
    kl = (p * torch.where(known, log_p - log_top, 0.0)).sum(1) + tail_p * (tail_p.log() - tail_q.log())
    kl = kl - left * left.log() + torch.where(from_tail, tail_q.log() - log_label, 0.0)
    tv = 1 - torch.minimum(p, q).sum(1) - torch.minimum(tail_p, tail_q)
    return kl + tv_weight * tv
