"""What several runs amount to: totals over texts, medians over repetitions, and how long a reader waits.

Repeating a run gives its median; different texts are added up, seconds and tokens apart, and divided once at the end.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specdec_ref.measure import Run


def median_run(repeats: Sequence[Run]) -> Run:
    """Return the run with the median decoding time; of an even number the faster of the two in the middle.

    Raises
    ------
    ValueError
        If there is none.
    """
    if not repeats:
        raise ValueError("repeats is empty: there is no median of no runs")
    return sorted(repeats, key=lambda run: run.decode_seconds)[(len(repeats) - 1) // 2]


@dataclass(frozen=True)
class Totals:
    """One run for each text, taken together.

    Parameters
    ----------
    runs : sequence of Run
        Of different texts. Times of first rounds, which read the prompts, are kept apart everywhere.
    """

    runs: Sequence[Run]

    @property
    def counts(self) -> Run:
        """All rounds as one run, for what only counts: `alpha`, `emitted_per_round`, `new_tokens`, `drafted`."""
        return Run([result for run in self.runs for result in run.rounds])

    @property
    def decode_tokens(self) -> int:
        """Tokens of all rounds but the first of each run."""
        return sum(len(row) for run in self.runs for result in run.rounds[1:] for row in result.tokens)

    @property
    def decode_seconds(self) -> float:
        """Time of those rounds."""
        return sum(run.decode_seconds for run in self.runs)

    @property
    def tokens_per_s(self) -> float | None:
        """Their ratio, tokens of all rows: a ratio of totals. None where no run had a second round."""
        return self.decode_tokens / self.decode_seconds if self.decode_seconds > 0 else None

    @property
    def first_token_s(self) -> float | None:
        """Median time to the first token: reading the prompt, and the first round."""
        first = [run.seconds[0] for run in self.runs if run.seconds]
        return statistics.median(first) if first else None

    def arrival_gaps(self) -> list[float]:
        """Return the waits between arrivals, one for each round and row after the first: what a reader sees."""
        return [
            seconds
            for run in self.runs
            for result, seconds in zip(run.rounds[1:], run.seconds[1:], strict=True)
            for tokens in result.tokens
            if tokens
        ]

    def token_gaps(self) -> list[float]:
        """Return seconds per token: tokens of one round arrive together, and each counts as its share of the round."""
        return [
            seconds / len(tokens)
            for run in self.runs
            for result, seconds in zip(run.rounds[1:], run.seconds[1:], strict=True)
            for tokens in result.tokens
            for _ in tokens
        ]


def percentile(values: Iterable[float], share: float) -> float | None:
    """Return the smallest value that at least `share` (0 to 1) of all values do not exceed. None of no values."""
    ordered = sorted(values)
    if not 0 <= share <= 1:
        raise ValueError(f"share={share} must lie in 0..1")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None
