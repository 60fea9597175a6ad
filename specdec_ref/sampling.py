"""From logits to a distribution, and from a distribution and one uniform number to a token.

This is the only place in the package where logits become probabilities. The target's p and the draft's q both come
from `probabilities`, with the same settings, so that "the distribution a token was really drawn from" is never
in doubt.

All randomness is an argument. `draw` is a pure function of probabilities and uniforms; `uniforms` is a pure function of
a key. No generator has state, so a row's text does not depend on its batch, and any round can be replayed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from numbers import Integral

import torch

from specdec_ref.device import exact_dtype


@dataclass(frozen=True)
class SamplingSettings:
    """How logits become a distribution, in the order transformers applies them.

    Parameters
    ----------
    temperature : float
        Divides the logits. 0 means greedy: all mass on the largest logit (the lowest index, if several tie).
    top_k : int or None
        Keep the `top_k` largest logits, and any that tie with the last of them. None keeps all.
    top_p : float
        Keep the smallest set of most likely tokens whose mass reaches `top_p`; the token that crosses it is kept. On a
        CPU a large vocabulary takes milliseconds a row to sort; with `top_k` as well, it is not sorted.
    repetition_penalty : float
        Divides positive and multiplies negative logits of tokens already in the history (Keskar et al. 2019, CTRL,
        section 4.1). 1 does nothing.

    Raises
    ------
    ValueError
        If a value is out of range; the message names it.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what has no meaning, before any token is drawn."""
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise ValueError(f"temperature={self.temperature!r} must be a finite number >= 0 (0 means greedy)")
        if self.top_k is not None and not (isinstance(self.top_k, Integral) and self.top_k >= 1):
            raise ValueError(f"top_k={self.top_k!r} must be a whole number >= 1, or None to keep every token")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p!r} must lie in (0, 1]; 1 keeps every token")
        if not (self.repetition_penalty > 0 and math.isfinite(self.repetition_penalty)):
            raise ValueError(f"repetition_penalty={self.repetition_penalty!r} must be a finite number > 0 (1 is none)")

    @property
    def greedy(self) -> bool:
        """True when every distribution is one-hot, so that drawing needs no luck."""
        return self.temperature == 0


GREEDY = SamplingSettings(temperature=0.0)


def probabilities(
    logits: torch.Tensor,
    settings: SamplingSettings,
    history: torch.Tensor | None = None,
    *,
    check: bool = True,
) -> torch.Tensor:
    """Turn logits into the distribution that tokens are drawn from.

    Parameters
    ----------
    logits : Tensor [..., V]
        Half precision is promoted to float32; float32 and float64 stay as they are. -inf forbids a token.
    settings : SamplingSettings
        Temperature, top-k, top-p and repetition penalty.
    history : Tensor [..., N] of token ids, or None
        The tokens the repetition penalty looks at; -1 is padding. Unused when the penalty is 1.
    check : bool
        Raise for rows without a distribution. The decoder turns this off on its fast path and asks `healthy_rows`
        once a round instead, because raising means waiting for the device.

    Returns
    -------
    Tensor [..., V], float32 or float64; every row sums to 1. At least one token survives every filter.

    Raises
    ------
    ValueError
        If a row holds NaN or +inf, or only -inf; the message names the row.
    """
    if logits.dtype not in (torch.float32, torch.float64):
        logits = logits.float()
    if check:
        _raise_for_bad_rows(healthy_rows(logits))
    if settings.repetition_penalty != 1 and history is not None:
        logits = _penalised(logits, settings.repetition_penalty, history)
    if settings.greedy:
        best = logits.argmax(-1, keepdim=True)  # the first of equals
        return torch.zeros_like(logits).scatter_(-1, best, 1.0)

    # Subtract the maximum first: then no temperature, however small, can overflow, and the best token keeps exp(0) = 1.
    smallest = torch.finfo(logits.dtype).tiny
    scaled = (logits - logits.amax(-1, keepdim=True)) / max(settings.temperature, smallest)
    if settings.top_k is not None and settings.top_k < logits.shape[-1]:
        kth_best = scaled.topk(settings.top_k, dim=-1).values[..., -1:]
        scaled = scaled.masked_fill(scaled < kth_best, -torch.inf)
    probs = scaled.softmax(-1)
    return probs if settings.top_p == 1 else _nucleus(probs, settings)


def _nucleus(probs: torch.Tensor, settings: SamplingSettings) -> torch.Tensor:
    """Keep the most likely tokens until their mass reaches top_p, the crossing token included, and renormalise."""
    # Sorting 49,152 numbers takes milliseconds; after a top-k filter only a few can be non-zero.
    if settings.top_k is not None and settings.top_k < probs.shape[-1]:
        largest = probs.topk(settings.top_k, dim=-1).values
    else:
        largest = probs.sort(dim=-1, descending=True).values
    wide = largest.to(exact_dtype(probs.device))
    keep = wide.cumsum(-1) - wide < settings.top_p  # the mass of all better tokens has not reached it yet
    keep[..., 0] = True  # the best token survives any top_p
    # Of equal tokens `topk` returns any. So take from it only the smallest value kept, and of the tokens that have just
    # this value keep the first few, as many as top_p has room for.
    floor = torch.where(keep, largest, torch.inf).amin(-1, keepdim=True)
    mass_above = (wide * (largest > floor)).sum(-1, keepdim=True)
    room = ((settings.top_p - mass_above) / floor).ceil().clamp(min=1)
    tied = probs == floor
    kept = probs * ((probs > floor) | (tied & (tied.cumsum(-1, dtype=torch.int32) <= room)))
    return kept / kept.sum(-1, keepdim=True)


def _penalised(logits: torch.Tensor, penalty: float, history: torch.Tensor) -> torch.Tensor:
    """Make the tokens of `history` less likely, however often they occur. The input is not changed."""
    width = logits.shape[-1]
    # Padding (-1), and ids this vocabulary does not have, are counted in one extra column that is then cut off.
    ids = torch.where((history >= 0) & (history < width), history, width)
    seen = torch.zeros(*logits.shape[:-1], width + 1, dtype=torch.bool, device=logits.device)
    seen = seen.scatter(-1, ids, True)[..., :width]
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def healthy_rows(logits: torch.Tensor) -> torch.Tensor:
    """Tell which rows of logits [..., V] have a distribution: no NaN, no +inf, not all -inf. Returns bool [...]."""
    return logits.amax(-1).isfinite()  # amax carries NaN and +inf through, and is -inf only if all are


def _raise_for_bad_rows(healthy: torch.Tensor) -> None:
    if not bool(healthy.all()):
        row = tuple((~healthy).nonzero()[0].tolist())
        where = f"row {row[0] if len(row) == 1 else row}" if row else "the only row"
        raise ValueError(f"logits: {where} has no distribution (it holds NaN or +inf, or nothing but -inf)")


def draw(probs: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Draw one token per row by inverting the cumulative distribution.

    The unit interval is cut into pieces as long as the probabilities; the token is the piece that `uniforms` falls in.
    The sum runs in float64: over 49,152 float32 terms the total drifts by more than the rare tokens weigh.

    Parameters
    ----------
    probs : Tensor [..., V]
        Need not sum to exactly 1; rows are scaled by their total.
    uniforms : Tensor [...]
        One number in [0, 1) per row.

    Returns
    -------
    Tensor [...] int64; never a token of probability 0.
    """
    if probs.shape[:-1] != uniforms.shape:
        raise ValueError(f"uniforms has shape {tuple(uniforms.shape)}; probs needs {tuple(probs.shape[:-1])}")
    wide = exact_dtype(probs.device)
    cdf = probs.to(wide).cumsum(-1)  # [..., V]
    total = cdf[..., -1:]
    # The point must lie below the total, or the last token would be picked even when its probability is 0.
    point = torch.minimum(uniforms.to(wide).unsqueeze(-1) * total, total.nextafter(torch.zeros_like(total)))
    # The first index whose cdf exceeds the point: there the cdf has just risen, so that token has mass.
    token = torch.searchsorted(cdf.contiguous(), point.contiguous(), right=True).squeeze(-1)
    return token.clamp(max=probs.shape[-1] - 1)  # only a NaN row could need this; `healthy_rows` reports it


class Purpose(IntEnum):
    """What a uniform number is for. Part of its key, so that no number serves twice."""

    DRAFT = 1
    ACCEPT = 2
    CORRECT = 3


def uniforms(row_seeds: torch.Tensor, rounds: torch.Tensor, positions: torch.Tensor, purpose: Purpose) -> torch.Tensor:
    """Return the uniform numbers that belong to these keys: a hash of the key, not the next state of a generator.

    Parameters
    ----------
    row_seeds, rounds : Tensor [B] int64
        The row's seed, and how many rounds that row has had. A position drafted again after a rejection is a new round.
    positions : Tensor [B] or [B, T] int64
        Absolute position in the row's text of the token the number is used for.
    purpose : Purpose
        Draft, accept or correct.

    Returns
    -------
    Tensor like `positions`, in [0, 1): float64 (float32 on MPS). The global generators are not touched.

    Notes
    -----
    Counter-based generation: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3". The mixing function is
    the finaliser of SplitMix64 (Steele, Lea, Flood 2014, section 4), applied once for each part of the key.
    """
    shape = (-1,) + (1,) * (positions.dim() - 1)
    state = _mix(row_seeds.view(shape))
    for part in (rounds.view(shape), positions, torch.full_like(positions, int(purpose))):
        state = _mix(state ^ part)
    if exact_dtype(positions.device) == torch.float32:
        return _shift(state, 40).float() * 2.0**-24
    return _shift(state, 11).double() * 2.0**-53


def inner_seeds(row_seeds: Sequence[int]) -> list[int]:
    """Return other seeds, one for each: for a decoder inside of a drafter, whose numbers must not be the outer ones."""
    return _mix(_mix(torch.tensor(row_seeds, dtype=torch.int64)) ^ _INNER).tolist()


_INNER = 0x5370_6563_4465_6331  # any number that is no round, position or purpose


def _mix(x: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finaliser: flips about half of the output bits for any change of the input. int64 wraps around."""
    x = x + -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as a signed number
    x = (x ^ _shift(x, 30)) * -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
    x = (x ^ _shift(x, 27)) * -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB
    return x ^ _shift(x, 31)


def _shift(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift right and fill with zeros; torch's own shift of a signed number copies the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
