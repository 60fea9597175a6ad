"""Accept or correct: the rule that makes speculative decoding exact.

The draft drew token x from q. The target wants its text to follow p. So: keep x with probability min(1, p(x) / q(x)).
If it is refused, draw the replacement from what is missing, max(0, p - q), scaled to sum to one. The two parts add up
to p, whatever q is (Leviathan, Kalman and Matias 2023, theorem 1 in appendix A.1; Chen et al. 2023, theorem 1, with
the letters p and q the other way round).

Pure functions of (probabilities, draft, uniforms): nothing is drawn in secret, no input is changed in place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from specdec_ref.sampling import draw


@dataclass(frozen=True)
class Verification:
    """What one round decided, per row.

    Attributes
    ----------
    num_accepted : Tensor [B] int64
        Length of the accepted prefix of the draft: 0..K.
    next_token : Tensor [B] int64
        The token after that prefix: the correction of the first refused token, or the bonus if none was refused.
    """

    num_accepted: torch.Tensor
    next_token: torch.Tensor


def accept_probability(target_prob: torch.Tensor, draft_prob: torch.Tensor) -> torch.Tensor:
    """Return min(1, p(x) / q(x)) for drawn tokens x.

    Parameters
    ----------
    target_prob, draft_prob : Tensor, same shape
        p(x) and q(x) of the drawn tokens, not whole distributions. q(x) is positive: x was drawn from q.
    """
    return (target_prob / draft_prob).clamp(max=1.0)


def residual(target_probs: torch.Tensor, draft_probs: torch.Tensor, *, check: bool = True) -> torch.Tensor:
    """Return the law of the replacement, max(0, p - q) / sum(max(0, p - q)): the mass accepted drafts leave missing.

    Parameters
    ----------
    target_probs, draft_probs : Tensor [..., V]
        p and q. With q = 0 everywhere the residual is p itself: that is the bonus token's law.
    check : bool
        Raise for NaN. The decoder turns this off and checks once a round.

    Returns
    -------
    Tensor [..., V]. Where p and q are equal nothing is missing, a refusal has probability 0, and p itself is returned.

    Raises
    ------
    ValueError
        If an input holds NaN, or the shapes differ.
    """
    if target_probs.shape != draft_probs.shape:
        raise ValueError(
            f"draft_probs has shape {tuple(draft_probs.shape)}; target_probs has {tuple(target_probs.shape)}"
        )
    if check:
        _refuse_nan(target_probs=target_probs, draft_probs=draft_probs)
    missing = (target_probs - draft_probs).clamp(min=0.0)
    total = missing.sum(-1, keepdim=True)
    return torch.where(total == 0, target_probs, missing / total)


def verify_chain(
    target_probs: torch.Tensor,
    draft_tokens: torch.Tensor,
    draft_probs: torch.Tensor | None,
    accept_uniforms: torch.Tensor,
    correct_uniforms: torch.Tensor,
    num_drafted: torch.Tensor | None = None,
    *,
    check: bool = True,
) -> Verification:
    """Judge a chain of draft tokens: keep the accepted prefix, then correct the first refusal or add a bonus token.

    Parameters
    ----------
    target_probs : Tensor [B, K+1, V]
        Row i is the target's law of draft token i, given the prompt and draft tokens before i; row K is the bonus.
    draft_tokens : Tensor [B, K] int64
        K may be 0: then `next_token` is a plain draw from the target.
    draft_probs : Tensor [B, K, V], or None
        The law each draft token was really drawn from. None: a deterministic drafter, so q is a point mass.
    accept_uniforms : Tensor [B, K] in [0, 1)
        Draft token i passes if `accept_uniforms[i] < p / q`. Strictly: a token with p = 0 never passes.
    correct_uniforms : Tensor [B] in [0, 1)
        Draws `next_token`.
    num_drafted : Tensor [B] int64, or None
        How many tokens each row really drafted; later columns are padding (any valid id). None: all K.
    check : bool
        Raise for bad probabilities. The decoder turns this off and checks once a round.

    Returns
    -------
    Verification of num_accepted [B] and next_token [B].

    Raises
    ------
    ValueError
        If shapes do not fit, a probability is NaN, a token or length is out of range, or a draft token has q = 0 (it
        cannot have been drawn from q).

    Source
    ------
    Leviathan et al. 2023 (arXiv 2211.17192), algorithm 1; Chen et al. 2023 (arXiv 2302.01318), algorithm 2.
    """
    batch, width = draft_tokens.shape  # [B, K]
    _check_shapes(target_probs, draft_tokens, draft_probs, accept_uniforms, correct_uniforms, num_drafted)
    if check:
        _refuse_outside(0, target_probs.shape[-1] - 1, draft_tokens=draft_tokens)
        _refuse_outside(0, width, num_drafted=num_drafted)
    if num_drafted is None:
        num_drafted = torch.full((batch,), width, device=draft_tokens.device)
    drafted = torch.arange(width, device=draft_tokens.device) < num_drafted[:, None]  # [B, K]

    p = target_probs[:, :width].gather(-1, draft_tokens[..., None]).squeeze(-1)  # [B, K]: p of each draft token
    q = torch.ones_like(p)
    if draft_probs is not None:
        q = draft_probs.gather(-1, draft_tokens[..., None]).squeeze(-1)  # [B, K]
    if check:
        _refuse_nan(target_probs=target_probs, draft_probs=draft_probs)
        _refuse_impossible(q, drafted)

    accepted = (accept_uniforms < accept_probability(p, q)) & drafted
    # The leading run of ones, not their number: after the first refusal the rest of the draft is thrown away.
    num_accepted = accepted.long().cumprod(-1).sum(-1)  # [B]

    rows = torch.arange(batch, device=draft_tokens.device)
    p_next = target_probs[rows, num_accepted]  # [B, V]: the law of the token after the prefix
    q_next = _refused_draft_probs(draft_tokens, draft_probs, num_accepted, num_drafted, p_next)
    next_token = draw(residual(p_next, q_next, check=False), correct_uniforms)
    return Verification(num_accepted, next_token)


def _refused_draft_probs(
    draft_tokens: torch.Tensor,
    draft_probs: torch.Tensor | None,
    num_accepted: torch.Tensor,
    num_drafted: torch.Tensor,
    like: torch.Tensor,
) -> torch.Tensor:
    """Return q at the first refused token of each row, [B, V]; zero where all passed, which makes the residual p."""
    if draft_tokens.shape[1] == 0:
        return torch.zeros_like(like)
    rows = torch.arange(len(draft_tokens), device=draft_tokens.device)
    first_refused = num_accepted.clamp(max=draft_tokens.shape[1] - 1)
    if draft_probs is None:
        q = functional.one_hot(draft_tokens[rows, first_refused], like.shape[-1]).to(like.dtype)
    else:
        q = draft_probs[rows, first_refused].to(like.dtype)
    return torch.where((num_accepted < num_drafted)[:, None], q, 0.0)


def _refuse_nan(**named: torch.Tensor | None) -> None:
    for name, probs in named.items():
        if probs is not None and bool(probs.isnan().any()):
            row = tuple(probs.isnan().any(-1).nonzero()[0].tolist())
            raise ValueError(f"{name} holds NaN in row {row}")


def _refuse_outside(low: int, high: int, **named: torch.Tensor | None) -> None:
    for name, values in named.items():
        if values is not None and bool(((values < low) | (values > high)).any()):
            wrong = values[(values < low) | (values > high)][0].item()
            raise ValueError(f"{name} holds {wrong}, which is not in {low}..{high}")


def _refuse_impossible(q: torch.Tensor, drafted: torch.Tensor) -> None:
    impossible = drafted & ~(q > 0)
    if bool(impossible.any()):
        row, column = impossible.nonzero()[0].tolist()
        raise ValueError(
            f"draft_probs gives draft token {column} of row {row} probability {q[row, column].item()}: "
            "it cannot have been drawn from that law (was q filtered or tempered after the draw?)"
        )


def _check_shapes(
    target_probs: torch.Tensor,
    draft_tokens: torch.Tensor,
    draft_probs: torch.Tensor | None,
    accept_uniforms: torch.Tensor,
    correct_uniforms: torch.Tensor,
    num_drafted: torch.Tensor | None,
) -> None:
    batch, width = draft_tokens.shape
    vocab = target_probs.shape[-1]
    wanted = {
        "target_probs": (target_probs, (batch, width + 1, vocab)),
        "draft_probs": (draft_probs, (batch, width, vocab)),
        "accept_uniforms": (accept_uniforms, (batch, width)),
        "correct_uniforms": (correct_uniforms, (batch,)),
        "num_drafted": (num_drafted, (batch,)),
    }
    for name, (tensor, shape) in wanted.items():
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; {batch} rows of {width} drafts need {shape}")
