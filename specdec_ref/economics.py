"""When it pays: closed forms for the tokens of a round, its bill, and the best draft length.

A round with K draft tokens emits E tokens and costs K draft steps and one verification pass. In units of one target
step, with c = T_d / T_t for a draft step and v = T_v / T_t for the pass:

    speedup = E / (K c + v)        E = 1 + alpha + ... + alpha^K

The assumption behind E: every judged token is accepted with the same chance alpha, whatever came before. Real
acceptance varies with the text, so a prediction is compared with a measurement, never put in its place.

Every function takes numbers or numpy arrays that broadcast, works in float64, and raises ValueError for values outside
their range. Source: Leviathan, Kalman and Matias 2023 (arXiv 2211.17192), section 3.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from specdec_ref.ranges import Floats, Integers, between, positive, whole


def expected_tokens(alpha: ArrayLike, num_draft_tokens: ArrayLike) -> Floats:
    """Return E, the tokens a round emits on average: accepted drafts and the correction or bonus. From 1 to K+1.

    Parameters
    ----------
    alpha : array_like in [0, 1]
        Chance that a judged draft token is accepted.
    num_draft_tokens : array_like of whole numbers >= 0
        K.

    Notes
    -----
    Equation 1 of the source, (1 - alpha^(K+1)) / (1 - alpha), is 0/0 at alpha = 1 and loses digits near it. With the
    chance of refusal x = 1 - alpha, 1 - (1 - x)^(K+1) = -expm1((K+1) log1p(-x)) loses none.
    """
    refusal, length = np.broadcast_arrays(1 - between(0, alpha, 1, "alpha"), whole(num_draft_tokens) + 1.0)
    with np.errstate(divide="ignore"):  # alpha = 0: log is -inf, and E is 1
        missing = -np.expm1(length * np.log1p(-refusal))
    return np.divide(missing, refusal, out=length.copy(), where=refusal > 0)[()]


def speedup(
    alpha: ArrayLike, num_draft_tokens: ArrayLike, draft_cost: ArrayLike, verify_cost: ArrayLike = 1.0
) -> Floats:
    """Return how many times faster than plain decoding a round emits its tokens. Below 1 it is a slowdown.

    Parameters
    ----------
    alpha, num_draft_tokens : array_like
        As in `expected_tokens`.
    draft_cost : array_like >= 0
        c: one draft step, in target steps. The draft takes K of them, one after another.
    verify_cost : array_like > 0
        v: one pass of the target over K+1 tokens, in target steps. 1 is the promise of the method, not a law.
    """
    draft = between(0, draft_cost, np.inf, "draft_cost")
    verify = positive(verify_cost, "verify_cost")
    return expected_tokens(alpha, num_draft_tokens) / (whole(num_draft_tokens) * draft + verify)


def operations(alpha: ArrayLike, num_draft_tokens: ArrayLike, draft_operations: ArrayLike = 0.0) -> Floats:
    """Return how many times more arithmetic an emitted token takes than in plain decoding (theorem 3.11). At least 1.

    `draft_operations` is the arithmetic of a draft step in target steps, not its time. Refused tokens were computed all
    the same: verification is more work, which pays only where the machine had arithmetic to spare.
    """
    draft = between(0, draft_operations, np.inf, "draft_operations")
    count = whole(num_draft_tokens)
    return (count * draft + count + 1) / expected_tokens(alpha, num_draft_tokens)


def best_num_draft_tokens(
    alpha: ArrayLike,
    draft_cost: ArrayLike,
    verify_cost: ArrayLike | Callable[[int], float] = 1.0,
    max_draft_tokens: int = 16,
) -> Integers:
    """Return the K in 0..max_draft_tokens with the largest speedup, the smallest if several tie. 0: do not speculate.

    Parameters
    ----------
    alpha, draft_cost : array_like
        As in `speedup`.
    verify_cost : number, array_like or callable
        v. A number: the same for every length. Otherwise it depends on the block length K+1: a function of it, or an
        array whose entry i is the pass over i+1 tokens, so of max_draft_tokens+1 entries.
    max_draft_tokens : int >= 0
        Longest draft considered.
    """
    lengths = np.arange(int(whole(max_draft_tokens, "max_draft_tokens")) + 1)  # K
    cost = [verify_cost(int(length) + 1) for length in lengths] if callable(verify_cost) else verify_cost
    verify = positive(cost, "verify_cost")
    if verify.ndim and verify.shape != lengths.shape:
        raise ValueError(f"verify_cost has shape {verify.shape}; block lengths 1..{len(lengths)} need {lengths.shape}")
    gain = np.asarray(speedup(np.expand_dims(alpha, -1), lengths, np.expand_dims(draft_cost, -1), verify))
    gain[..., 0] = 1.0  # K = 0 is plain decoding, whatever a pass over one token would cost here
    return gain.argmax(-1)


def break_even_alpha(num_draft_tokens: ArrayLike, draft_cost: ArrayLike, verify_cost: ArrayLike = 1.0) -> Floats:
    """Return the alpha above which a round is faster than plain decoding: where E(alpha) equals the bill, K c + v.

    Parameters
    ----------
    num_draft_tokens, draft_cost, verify_cost : array_like
        As in `speedup`.

    Returns
    -------
    float64
        0 where the bill is at most one target step, so that any alpha pays; NaN where it is above K+1, so that none
        does.
    """
    count = whole(num_draft_tokens)
    bill = count * between(0, draft_cost, np.inf, "draft_cost") + positive(verify_cost, "verify_cost")
    count = np.broadcast_to(count, bill.shape)
    low, high = np.zeros_like(bill), np.ones_like(bill)
    for _ in range(60):  # E rises with alpha, and 60 halvings of [0, 1] go below the spacing of float64
        middle = (low + high) / 2
        pays = expected_tokens(middle, count) >= bill
        low, high = np.where(pays, low, middle), np.where(pays, middle, high)
    return np.where(bill <= 1, 0.0, np.where(bill > count + 1, np.nan, high))[()]


def estimate_alpha(num_accepted: ArrayLike, num_drafted: ArrayLike) -> float:
    """Estimate alpha from the rounds of a trace: accepted tokens over judged tokens, both summed over all rounds.

    Parameters
    ----------
    num_accepted, num_drafted : array_like of whole numbers, same shape
        Of each round (any number of rows and rounds): tokens accepted, and tokens proposed.

    Returns
    -------
    float; NaN where no token was judged, because then nothing is known.

    Notes
    -----
    Dividing by the DRAFTED tokens is the classic mistake. After a refusal the rest of the draft is thrown away
    unjudged: it says nothing about alpha. A round judges its accepted tokens and, unless all passed, one more, which it
    refused. With alpha = 0.8 and K = 4 a round emits 3.3616 tokens on average and accepts 2.3616; 2.3616 / 4 is 0.5904,
    but it judges 2.952, and 2.3616 / 2.952 is 0.8. (The maximum-likelihood estimate under constant alpha.)
    """
    accepted, drafted = whole(num_accepted, "num_accepted"), whole(num_drafted, "num_drafted")
    if accepted.shape != drafted.shape:
        raise ValueError(f"num_accepted has shape {accepted.shape}; num_drafted has {drafted.shape}")
    if (accepted > drafted).any():
        raise ValueError(f"num_accepted={accepted[accepted > drafted][0]:g} is more than the tokens drafted that round")
    judged = accepted.sum() + (accepted < drafted).sum()
    return float(accepted.sum() / judged) if judged else float("nan")


def total_speedup(plain_s: ArrayLike, speculative_s: ArrayLike) -> float:
    """Return the speedup of a whole workload from its seconds per request: the ratio of totals.

    Never the mean of the ratios: 2 s -> 0.5 s and 20 s -> 18 s is 22 / 18.5 = 1.19 times, though the ratios, 4 and
    1.11, have mean 2.56. A user waits for seconds, not for ratios.
    """
    plain, speculative = positive(plain_s, "plain_s"), positive(speculative_s, "speculative_s")
    if plain.shape != speculative.shape or not plain.size:
        raise ValueError(
            f"plain_s has shape {plain.shape} and speculative_s {speculative.shape}: time the same requests"
        )
    return float(plain.sum() / speculative.sum())
