"""When one constant alpha is not enough: acceptance by position, trees, and drafts that are drafted themselves.

Each function replaces one assumption of `economics`:

- by position: the chance of a draft token differs from place to place (the first is often the easiest), so the measured
  survival curve S_1 >= S_2 >= ... takes the place of alpha, alpha^2, ...
- trees: several guesses stand at one place, and at most one of them is accepted;
- staged: the draft model does not pay a step for each token, for a smaller model drafts for it.

Arrays are float64; values outside their range raise ValueError with the argument's name.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specdec_ref.ranges import Floats, between, positive, whole

ROUNDING = 1e-9  # a sum of chances may exceed 1 by this much


def survival_curve(num_accepted: ArrayLike, num_drafted: ArrayLike) -> NDArray[np.float64]:
    """Return S, [longest draft]: entry i is the chance that at least i+1 draft tokens of a round are accepted.

    Parameters
    ----------
    num_accepted, num_drafted : array_like of whole numbers, same shape
        Of each round: tokens accepted, and tokens proposed. Rounds without a draft say nothing and are left out.

    Notes
    -----
    A round with a draft of 2 tokens cannot tell whether a third would have passed, so it must not count as a failure
    there. Each place has its own chance, accepted over judged, and S is their running product: the estimate of Kaplan
    and Meier (1958) for lifetimes that were watched for different times. Assumed: a short draft is short for reasons
    that have nothing to do with the tokens it left out. Where all drafts are equally long this is a plain share.
    """
    accepted, drafted = whole(num_accepted, "num_accepted"), whole(num_drafted, "num_drafted")
    if accepted.shape != drafted.shape:
        raise ValueError(f"num_accepted has shape {accepted.shape}; num_drafted has {drafted.shape}")
    if (accepted > drafted).any():
        raise ValueError(f"num_accepted={accepted[accepted > drafted][0]:g} is more than the tokens drafted that round")
    places = np.arange(1, int(drafted.max(initial=0)) + 1)
    accepted, drafted = accepted.reshape(-1, 1), drafted.reshape(-1, 1)
    passed = (accepted >= places).sum(0)
    judged = ((drafted >= places) & (accepted >= places - 1)).sum(0)  # reached, and there was a token to judge
    chances = np.divide(passed, judged, out=np.zeros(len(places)), where=judged > 0)
    return np.cumprod(chances, dtype=np.float64)


def expected_tokens_by_length(survival: ArrayLike) -> NDArray[np.float64]:
    """Return E for each draft length K = 0..n from a survival curve [n]: [n+1], 1 + S_1 + ... + S_K.

    With S_i = alpha^i these are the values of `economics.expected_tokens`.
    """
    curve = between(0, survival, 1, "survival")
    if curve.ndim != 1:
        raise ValueError(f"survival has shape {curve.shape}; one curve is [n]")
    if (np.diff(curve) > ROUNDING).any():
        raise ValueError(f"survival={curve.tolist()} rises: i tokens pass at least as often as i+1 do")
    return np.concatenate([[1.0], 1 + np.cumsum(curve)])


def speedup_by_length(
    survival: ArrayLike, draft_cost: float, verify_cost: ArrayLike = 1.0, plain_cost: float = 1.0
) -> NDArray[np.float64]:
    """Return the speedup for each draft length K = 0..n from a survival curve [n]: [n+1]. Its argmax is the best K.

    Parameters
    ----------
    draft_cost, verify_cost, plain_cost : number >= 0; number > 0 or array_like [n+1]; number > 0
        One draft step, the pass over K+1 tokens, and one plain step, in the same unit. An array's entry K is the pass
        over K+1 tokens. Entry 0 of the answer is 1: K = 0 is plain decoding.
    """
    tokens = expected_tokens_by_length(survival)
    verify = positive(verify_cost, "verify_cost")
    if verify.ndim and verify.shape != tokens.shape:
        raise ValueError(
            f"verify_cost has shape {verify.shape}; draft lengths 0..{len(tokens) - 1} need {tokens.shape}"
        )
    drafting = np.arange(len(tokens)) * between(0, draft_cost, np.inf, "draft_cost")
    gain = tokens * positive(plain_cost, "plain_cost") / (drafting + verify)
    gain[0] = 1.0
    return gain


def expected_tree_tokens(parents: Sequence[int], chances: ArrayLike) -> Floats:
    """Return the tokens that a round with a draft tree emits on average: the expected accepted depth, plus 1.

    Parameters
    ----------
    parents : sequence of int, N nodes
        As in `trees`: -1 for a child of the text, else an earlier node.
    chances : array_like [..., N]
        Chance that a node is accepted once its parent was. Of siblings at most one is accepted, so theirs add up to at
        most 1.

    Notes
    -----
    A node counts where its whole path is accepted. The accepted depth is the number of such nodes, so its mean is the
    sum of the path chances, and no independence between places is assumed beyond "given its parent". For a chain with
    chance alpha everywhere this is E of `economics.expected_tokens`. Source: Cai et al. 2024 (Medusa, arXiv
    2401.10774), section 2.3.3.
    """
    chance = between(0, chances, 1, "chances")
    if chance.ndim == 0 or chance.shape[-1] != len(parents):
        raise ValueError(
            f"chances has shape {chance.shape}; a tree of {len(parents)} nodes needs [..., {len(parents)}]"
        )
    paths = np.ones((*chance.shape[:-1], len(parents) + 1))  # the last entry is the text: parent -1
    siblings = np.zeros_like(paths)
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise ValueError(f"parents: node {node} has parent {parent}; a parent is -1 or an earlier node")
        paths[..., node] = paths[..., parent] * chance[..., node]
        siblings[..., parent] += chance[..., node]
    if (siblings > 1 + ROUNDING).any():
        raise ValueError(f"chances of siblings add up to {siblings.max():g}; at most one of them is accepted")
    return paths.sum(-1)[()]


def staged_draft_cost(
    inner_alpha: ArrayLike,
    num_draft_tokens: int,
    inner_draft_tokens: int,
    draft_cost: ArrayLike,
    inner_cost: ArrayLike,
    draft_verify_cost: ArrayLike = 1.0,
) -> Floats:
    """Return the cost of one draft token, in target steps, where a smaller model drafts for the draft model.

    Put it in the place of `draft_cost` in `economics.speedup`: the draft's law is the same, so alpha is too.

    Parameters
    ----------
    inner_alpha : array_like in [0, 1]
        Chance that the draft model accepts a judged token of the smaller one, the same everywhere.
    num_draft_tokens, inner_draft_tokens : int
        K for the target, and the most that the smaller model drafts at a time for the draft model.
    draft_cost, inner_cost : array_like >= 0
        One step of the draft model and one of the smaller model, in target steps.
    draft_verify_cost : array_like > 0
        The draft model's pass over a block, in ITS steps.

    Notes
    -----
    Exact under these assumptions: an inner round with r tokens still to draft proposes min(inner_draft_tokens, r-1), so
    that nothing is drafted for the bin; the last token alone takes a plain step of the draft model. The cost C(r) is
    its own round's cost plus the average of C(r - emitted), a recursion made for this course; the idea of staged drafts
    is that of cascade speculative drafting (Chen et al. 2023, arXiv 2312.11462).
    """
    alpha = between(0, inner_alpha, 1, "inner_alpha")
    step, inner = between(0, draft_cost, np.inf, "draft_cost"), between(0, inner_cost, np.inf, "inner_cost")
    block = step * positive(draft_verify_cost, "draft_verify_cost")
    length, most = int(whole(num_draft_tokens)), int(whole(inner_draft_tokens, "inner_draft_tokens"))
    if length == 0:
        raise ValueError("num_draft_tokens=0 drafts nothing, so a draft token has no cost")
    costs = [np.zeros(np.broadcast_shapes(alpha.shape, inner.shape, block.shape))]  # C(0), C(1), ...
    for left in range(1, length + 1):
        count = min(most, left - 1)
        total = count * inner + (block if count else step)
        for accepted in range(count + 1):
            chance = alpha**accepted * (1 - alpha if accepted < count else 1.0)
            total = total + chance * costs[left - accepted - 1]
        costs.append(total)
    return (costs[length] / length)[()]
