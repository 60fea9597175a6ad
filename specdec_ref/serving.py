"""Many users on one machine: a discrete-event simulator of continuous batching, with speculation off, on, or adaptive.

Requests arrive at random times and wait until a row is free. The machine then works in rounds, as real servers do: it
reads the prompts of the rows that have just come, and all rows together take one plain step, or draft and take one
verification pass. A row that has its answer leaves, and the next request takes its place.

It plans past the machine at hand: times of passes come from the roofline, or from measured ones, and acceptance is one
constant alpha. What it leaves out (the network, prompts read in pieces, text that is dropped and read again) makes
real services slower, and not less varied. Everything random comes from one seed, and requests are the same for all
policies, so two policies differ by what they do and not by whom they meet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specdec_ref.economics import best_num_draft_tokens
from specdec_ref.ranges import between, positive, whole
from specdec_ref.roofline import Hardware, ModelSize, pass_time, rows_that_fit

Policy = Literal["off", "on", "adaptive"]
LengthLaw = Callable[[np.random.Generator, int], NDArray[np.int64]]  # how many tokens: (generator, requests) -> [N]


def fixed(length: int) -> LengthLaw:
    """Return the law by which all texts have `length` tokens."""
    return lambda rng, count: np.full(count, length, dtype=np.int64)


def lognormal(median: float, spread: float = 0.6, longest: int = 4096) -> LengthLaw:
    """Return a law with a long tail, as prompts and answers have: exp of a normal number, in 1..longest."""

    def law(rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        lengths = median * np.exp(spread * rng.standard_normal(count))
        return np.clip(np.rint(lengths), 1, longest).astype(np.int64)

    return law


@dataclass(frozen=True)
class Workload:
    """Who comes: Poisson arrivals, `rate` requests a second on average, and the lengths of what they ask and get."""

    rate: float
    prompts: LengthLaw
    answers: LengthLaw
    num_requests: int = 400
    alpha: float = 0.7

    def __post_init__(self) -> None:
        """Refuse what cannot be simulated."""
        positive(self.rate, "rate")
        positive(whole(self.num_requests, "num_requests"), "num_requests")
        between(0, self.alpha, 1, "alpha")


@dataclass(frozen=True)
class Server:
    """What the machine takes. Seconds.

    Attributes
    ----------
    pass_s : callable(rows, block length) -> seconds
        A pass of the target over that many tokens in each row.
    draft_s : callable(rows) -> seconds
        One draft token for each row.
    prompt_s : float
        Reading one prompt token with the target; `draft_prompt_s` with the draft model as well.
    max_rows, max_rows_with_draft : int
        How many texts fit into memory: alone, and beside the second model. "adaptive" holds it, too.
    """

    pass_s: Callable[[int, int], float]
    draft_s: Callable[[int], float]
    prompt_s: float
    max_rows: int
    draft_prompt_s: float = 0.0
    max_rows_with_draft: int | None = None

    def rows(self, policy: Policy) -> int:
        """Return how many texts fit under a policy."""
        if policy == "off" or self.max_rows_with_draft is None:
            return self.max_rows
        return self.max_rows_with_draft

    def best_length(self, rows: int, alpha: float, max_draft_tokens: int) -> int:
        """Return the draft length that pays most for a batch of `rows`; 0 where none pays."""
        plain = self.pass_s(rows, 1)
        verify = [self.pass_s(rows, length + 1) / plain for length in range(max_draft_tokens + 1)]
        return int(best_num_draft_tokens(alpha, self.draft_s(rows) / plain, verify, max_draft_tokens))


@dataclass(frozen=True)
class Served:
    """What happened. Arrays have one entry per request, in order of arrival; times are seconds from the start.

    Attributes
    ----------
    mean_present : float
        Requests in the house, waiting or being answered, averaged over time while the simulation ran.
    mean_rows : float
        Rows in a round, averaged over rounds.
    """

    arrival_s: NDArray[np.float64]
    first_token_s: NDArray[np.float64]
    finish_s: NDArray[np.float64]
    answer_tokens: NDArray[np.int64]
    mean_present: float
    mean_rows: float

    @property
    def latency_s(self) -> NDArray[np.float64]:
        """From arrival to the last token, [N]."""
        return self.finish_s - self.arrival_s

    def percentile(self, share: float) -> float:
        """Return the latency that `share` (0 to 1) of the requests do not exceed."""
        return float(np.quantile(self.latency_s, share))

    @property
    def tokens_per_s(self) -> float:
        """Answer tokens over the time until the last request left."""
        return float(self.answer_tokens.sum() / self.finish_s.max())


def simulate(workload: Workload, server: Server, policy: Policy, *, num_draft_tokens: int = 4, seed: int = 0) -> Served:
    """Play all requests through the machine and say what happened to each.

    Parameters
    ----------
    policy : "off", "on" or "adaptive"
        Plain steps; always `num_draft_tokens`; or, for each number of rows, the length up to `num_draft_tokens` that
        pays most at the workload's alpha, 0 included. All rows of a round draft equally many tokens.
    seed : int
        Of arrivals, lengths and acceptance.
    """
    if policy not in ("off", "on", "adaptive"):
        raise ValueError(f"policy={policy!r} is not known; known are off, on, adaptive")
    most, longest = server.rows(policy), int(whole(num_draft_tokens))
    if most < 1:
        raise ValueError(f"max_rows={most} leaves no room for a single text under policy {policy!r}")
    requests, luck = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])
    count = workload.num_requests
    arrival = np.cumsum(requests.exponential(1 / workload.rate, count))
    prompt, answer = workload.prompts(requests, count), workload.answers(requests, count)
    lengths: dict[int, int] = {}  # draft length by rows; the same for each round of so many rows

    first, finish, left = np.full(count, np.nan), np.full(count, np.nan), answer.copy()
    now, presence, rounds, row_rounds = 0.0, 0.0, 0, 0
    rows, waiting = np.empty(0, dtype=np.int64), 0  # requests being answered; the first one not let in
    while len(rows) or waiting < count:
        if not len(rows) and arrival[waiting] > now:
            now = float(arrival[waiting])  # nobody is there: wait for the next one
        begin = now
        entering = np.arange(waiting, min(int(np.searchsorted(arrival, now, "right")), waiting + most - len(rows)))
        waiting += len(entering)
        rows = np.concatenate([rows, entering])
        size = len(rows)
        if size not in lengths:
            adaptive = server.best_length(size, workload.alpha, longest) if policy == "adaptive" else longest
            lengths[size] = 0 if policy == "off" else adaptive
        drafts = lengths[size]
        read = server.prompt_s + (0 if policy == "off" else server.draft_prompt_s)
        now += read * float(prompt[entering].sum()) + drafts * (server.draft_s(size) if drafts else 0)
        now += server.pass_s(size, drafts + 1)
        left[rows] -= np.minimum(left[rows], 1 + _accepted(luck, workload.alpha, drafts, size))
        first[entering], done = now, rows[left[rows] == 0]
        finish[done] = now
        # Requests in the house from `begin` to `now`: all that have come and not left, and those who come meanwhile.
        come = np.searchsorted(arrival, [begin, now], "right")
        presence += (size + come[0] - waiting) * (now - begin) + float((now - arrival[come[0] : come[1]]).sum())
        rows = rows[left[rows] > 0]
        rounds, row_rounds = rounds + 1, row_rounds + size
    return Served(arrival, first, finish, answer, presence / now, row_rounds / rounds)


def _accepted(luck: np.random.Generator, alpha: float, drafts: int, rows: int) -> NDArray[np.int64]:
    """Draw how many of `drafts` tokens each row accepts: the leading run of successes with chance alpha."""
    return (luck.random((rows, drafts)) < alpha).cumprod(axis=1).sum(axis=1)


def roofline_server(target: ModelSize, draft: ModelSize, hardware: Hardware, context: int) -> Server:
    """Return a machine with the times and the memory that the roofline predicts, for texts of about `context` tokens.

    Prompts are read at the full speed of the arithmetic. Raises ValueError where the hardware does not say its memory.
    """
    return Server(
        pass_s=lambda rows, length: float(pass_time(target, hardware, rows, length, context)),
        draft_s=lambda rows: float(pass_time(draft, hardware, rows, 1, context)),
        prompt_s=target.flops_per_token / hardware.peak,
        draft_prompt_s=draft.flops_per_token / hardware.peak,
        max_rows=rows_that_fit(hardware, context, target),
        max_rows_with_draft=rows_that_fit(hardware, context, target, draft),
    )
