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

from specdec_ref import trees
from specdec_ref.device import upload
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
    path : Tensor [B, D] int64, or None
        For a tree of depth D: the accepted nodes in order, padded with 0. None: a chain, whose path is 0, 1, 2, ...
    """

    num_accepted: torch.Tensor
    next_token: torch.Tensor
    path: torch.Tensor | None = None


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


def verify_tree(
    target_probs: torch.Tensor,
    draft_tokens: torch.Tensor,
    parents: torch.Tensor,
    uniforms: torch.Tensor,
    num_drafted: torch.Tensor | None = None,
    *,
    check: bool = True,
) -> Verification:
    """Judge a tree of draft tokens: sample the target at each node, and descend while the draw is a child.

    The draw is the target's own, so the text follows p whatever the tree holds; the tree only decides how many draws
    one pass can serve. This is exact for any tree that was chosen without looking at the uniforms. (For a chain it
    accepts a token with probability p, as `verify_chain` does for a deterministic draft.)

    Parameters
    ----------
    target_probs : Tensor [B, N+1, V]
        Row 0 is the target's law after the text, row i+1 its law after node i.
    draft_tokens : Tensor [B, N] int64
        The nodes. N may be 0: then `next_token` is a plain draw from the target.
    parents : Tensor [B, N] int64 on the host
        The parent of each node: -1 for a child of the text, else an earlier node.
    uniforms : Tensor [B, D+1] in [0, 1)
        One number for the draw at each depth; D is the depth of the deepest node (0 without nodes).
    num_drafted : Tensor [B] int64, or None
        How many nodes each row really has; later ones are padding. None: all N.
    check : bool
        Raise for bad probabilities, tokens and twins. The decoder turns this off and checks once a round.

    Returns
    -------
    Verification of num_accepted [B], next_token [B] and path [B, D].

    Raises
    ------
    ValueError
        If shapes do not fit, a parent does not come before its child, two children of a node are the same token, a
        probability is NaN, or a token or length is out of range.

    Source
    ------
    Tree attention: Miao et al. 2024, "SpecInfer" (arXiv 2305.09781); Cai et al. 2024, "Medusa" (arXiv 2401.10774).
    """
    batch, count = draft_tokens.shape
    device = draft_tokens.device
    depth = trees.depths(parents)  # [B, N], and refuses parents after children
    deepest = int(depth.max()) if depth.numel() else 0
    _check_tree_shapes(target_probs, draft_tokens, parents, uniforms, num_drafted, deepest)
    if num_drafted is None:
        num_drafted = torch.full((batch,), count, device=device)
    drafted = torch.arange(count, device=device) < num_drafted[:, None]  # [B, N]
    parents = upload(parents, device)
    if check:
        _refuse_outside(0, target_probs.shape[-1] - 1, draft_tokens=draft_tokens)
        _refuse_outside(0, count, num_drafted=num_drafted)
        _refuse_nan(target_probs=target_probs)
        if bool((twin := trees.twins(draft_tokens, parents, drafted)).any()):
            raise ValueError(f"draft_tokens: row {int(twin.nonzero()[0])} has two children of a node with one token")

    rows = torch.arange(batch, device=device)
    place = torch.full((batch,), -1, device=device)  # the node each row has come to; -1 is the text
    path = torch.zeros(batch, deepest, dtype=torch.int64, device=device)
    num_accepted = torch.zeros(batch, dtype=torch.int64, device=device)
    next_token = draw(target_probs[:, 0], uniforms[:, 0])
    for level in range(deepest):
        is_next = drafted & (parents == place[:, None]) & (draft_tokens == next_token[:, None])  # [B, N]: one at most
        goes_on = is_next.any(1) & (num_accepted == level)
        place = torch.where(goes_on, is_next.long().argmax(1), place)
        path[:, level] = torch.where(goes_on, place, 0)
        num_accepted = num_accepted + goes_on
        drawn = draw(target_probs[rows, place + 1], uniforms[:, level + 1])
        next_token = torch.where(goes_on, drawn, next_token)
    return Verification(num_accepted, next_token, path)


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


def _check_tree_shapes(
    target_probs: torch.Tensor,
    draft_tokens: torch.Tensor,
    parents: torch.Tensor,
    uniforms: torch.Tensor,
    num_drafted: torch.Tensor | None,
    deepest: int,
) -> None:
    batch, count = draft_tokens.shape
    wanted = {
        "target_probs": (target_probs, (batch, count + 1, target_probs.shape[-1])),
        "parents": (parents, (batch, count)),
        "uniforms": (uniforms, (batch, deepest + 1)),
        "num_drafted": (num_drafted, (batch,)),
    }
    for name, (tensor, shape) in wanted.items():
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}; "
                f"{batch} trees of {count} nodes and depth {deepest} need {shape}"
            )
