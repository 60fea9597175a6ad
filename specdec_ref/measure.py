"""Measuring decoders honestly: prefill apart, waiting for the device, medians of single passes, totals of whole runs.

A speedup is a ratio of two totals from the same machine in the same minutes. A mean of ratios is not a speedup: it
lets a short text that gained much outvote a long one that gained little.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from specdec_ref.acceptance import Verification
from specdec_ref.device import synchronize, upload
from specdec_ref.drafters import Drafter
from specdec_ref.economics import estimate_alpha
from specdec_ref.model import CachedLM
from specdec_ref.rows import Round, Rows, Stop
from specdec_ref.sampling import SamplingSettings

Clock = Callable[[], float]  # seconds


@dataclass
class Run:
    """What one decoding run did, and how long it took. Filled by `timed`.

    Attributes
    ----------
    rounds : list of Round
        In order.
    seconds : list of float
        Time of each round. The first includes reading the prompt, so it is the time to the first token.
    """

    rounds: list[Round] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def new_tokens(self) -> int:
        """Tokens emitted over all rows."""
        return sum(len(tokens) for result in self.rounds for tokens in result.tokens)

    @property
    def drafted(self) -> int:
        """Tokens proposed over all rows and rounds."""
        return sum(sum(result.num_drafted) for result in self.rounds)

    @property
    def accepted(self) -> int:
        """Draft tokens accepted over all rows and rounds, as judged (before a text's end cut any off)."""
        return sum(sum(result.num_accepted) for result in self.rounds)

    @property
    def row_rounds(self) -> int:
        """Rounds summed over rows: how often a row got something."""
        return sum(sum(1 for tokens in result.tokens if tokens) for result in self.rounds)

    @property
    def emitted_per_round(self) -> float | None:
        """Tokens a row got per round; None if there was no round."""
        return self.new_tokens / self.row_rounds if self.row_rounds else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted; None without drafts. Not alpha: tokens after a refusal are never judged."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def alpha(self) -> float | None:
        """Accepted over judged, the estimate of alpha. None without drafts.

        For chains. Of the siblings in a tree one at most can be accepted: there, look at `emitted_per_round`.
        """
        if not self.drafted:
            return None
        counts = [(result.num_accepted, result.num_drafted) for result in self.rounds]
        return estimate_alpha([a for some, _ in counts for a in some], [d for _, some in counts for d in some])

    @property
    def decode_seconds(self) -> float:
        """Time of all rounds after the first: decoding, with the prompt's own work left out."""
        return sum(self.seconds[1:])

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens of those rounds over their time; None for a run of one round, which holds no such time."""
        tokens = sum(len(row) for result in self.rounds[1:] for row in result.tokens)
        return tokens / self.decode_seconds if self.decode_seconds > 0 else None


def timed(rounds: Iterable[Round], run: Run, device: torch.device, clock: Clock = time.perf_counter) -> Iterator[Round]:
    """Pass rounds through and record them in `run`. Time that the consumer spends, on printing say, is not counted."""
    iterator = iter(rounds)
    while True:
        start = clock()
        result = next(iterator, None)
        synchronize(device)
        if result is None:
            return
        run.seconds.append(clock() - start)
        run.rounds.append(result)
        yield result


def time_passes(
    lm: CachedLM,
    block_lengths: Sequence[int],
    *,
    context: int = 128,
    batch_size: int = 1,
    repeats: int = 7,
    clock: Clock = time.perf_counter,
) -> dict[int, float]:
    """Return the median seconds of one pass of `lm` for each block length, with `context` tokens in the cache.

    The lengths take turns, so that a slow minute of the machine slows all of them. One turn warms up.
    """
    lm = lm.fresh(batch_size)
    text = [token % lm.vocab_size for token in range(context)]
    lm.prefill([text] * batch_size)
    times: dict[int, list[float]] = {length: [] for length in block_lengths}
    for _ in range(repeats + 1):
        for length in times:
            block = upload([[token % lm.vocab_size for token in range(length)]] * batch_size, lm.device)
            synchronize(lm.device)
            start = clock()
            lm.extend(block)
            synchronize(lm.device)
            times[length].append(clock() - start)
            lm.rollback([length] * batch_size)
    return {length: statistics.median(values[1:]) for length, values in times.items()}


def time_draft_step(
    drafter: Drafter,
    target: CachedLM,
    prompts: Sequence[Sequence[int]],
    num_draft_tokens: int,
    settings: SamplingSettings,
    *,
    repeats: int = 7,
    clock: Clock = time.perf_counter,
) -> float | None:
    """Return the median seconds that `drafter` takes per draft token, over rounds in which all drafts are refused.

    None if it never proposes anything for these prompts.
    """
    count = len(prompts)
    rows = Rows(prompts, settings, repeats + 2, target.max_length, Stop(), range(count), target.device)
    lm = target.fresh(count)
    drafter = drafter.fresh(lm, rows)

    def read(texts: Sequence[Sequence[int]]) -> None:  # what the target would have done meanwhile
        if drafter.wants_features:
            drafter.take_features(lm.prefill_with_features(texts), torch.tensor([len(text) for text in texts]))
        else:
            lm.prefill(texts)

    read([tokens[:-1] for tokens in rows.tokens])
    times: list[float] = []
    for turn in range(repeats + 1):
        synchronize(target.device)
        start = clock()
        draft = drafter.propose(rows, [num_draft_tokens] * count)
        synchronize(target.device)
        if turn > 0 and draft.width:  # the first turn reads the prompts
            times.append((clock() - start) / draft.width)
        following = [rows.tokens[row][turn % rows.prompt_lengths[row]] for row in range(count)]
        nothing = torch.zeros(count, dtype=torch.int64)
        path = (
            None if draft.parents is None else torch.zeros(count, 1, dtype=torch.int64)
        )  # of a tree, and no node of it
        drafter.commit(Verification(nothing, torch.tensor(following), path))
        read([tokens[-1:] for tokens in rows.tokens])
        rows.commit([[token] for token in following], [[] for _ in following], [0 for _ in following])
    return statistics.median(times) if times else None


@dataclass(frozen=True)
class Bill:
    """What decoding must have cost, by counts of rounds and times of single steps. Seconds.

    Attributes
    ----------
    rounds, undrafted_rounds : int
        Rounds, and how many of them had no draft and paid a plain pass.
    plain_s : float
        As many plain steps as plain decoding needs for the same tokens.
    draft_s, verify_s : float
        All draft tokens, and all passes of the target.
    """

    rounds: int
    undrafted_rounds: int
    plain_s: float
    draft_s: float
    verify_s: float

    @property
    def speedup(self) -> float | None:
        """Plain time over speculative time: a ratio of totals. None for an empty bill."""
        return self.plain_s / (self.draft_s + self.verify_s) if self.rounds else None


def bill(runs: Iterable[Run], pass_seconds: dict[int, float], draft_step_s: float, *, skip_first: bool = True) -> Bill:
    """Add up, round by round, what `runs` cost: every round pays its drafts and its pass.

    Parameters
    ----------
    runs : iterable of Run
        Only their counts are used, never their times. Rounds without a draft pay a plain pass.
    pass_seconds : dict of int to float
        Seconds of a target pass by block length, for this batch size; lengths between two measured ones are
        interpolated.
    draft_step_s : float
        Seconds per draft token.
    skip_first : bool
        Leave out each run's first round, as `Run.tokens_per_s` does: it reads the prompt.
    """
    steps, widths = 0, []
    for run in runs:
        rounds = [result for result in run.rounds[skip_first:] if any(result.tokens)]
        widths += [max(result.num_drafted) for result in rounds]
        if rounds:
            steps += max(sum(len(result.tokens[row]) for result in rounds) for row in range(len(rounds[0].tokens)))
    verify_s = sum(interpolate(pass_seconds, 1 + width) for width in widths)
    plain_s = steps * pass_seconds[min(pass_seconds)]
    return Bill(len(widths), widths.count(0), plain_s, sum(widths) * draft_step_s, verify_s)


def predicted_speedup(run: Run, pass_seconds: dict[int, float], draft_step_s: float) -> float | None:
    """Return the speedup that the bill of all rounds of one run predicts; None for an empty run. See `bill`."""
    return bill([run], pass_seconds, draft_step_s, skip_first=False).speedup


def interpolate(seconds: dict[int, float], length: int) -> float:
    """Return the time at `length`, on straight lines between the measured lengths, flat beyond them."""
    known = sorted(seconds)
    below = max((n for n in known if n <= length), default=known[0])
    above = min((n for n in known if n >= length), default=known[-1])
    share = 0.0 if above == below else (length - below) / (above - below)
    return seconds[below] + share * (seconds[above] - seconds[below])
