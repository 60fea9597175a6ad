"""The order of things: warm up, tune every draft length on other prompts, then measure, systems taking turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from specdec_course.benchmark.systems import Prompts, System
from specdec_ref.measure import Run
from specdec_ref.totals import Totals, median_run

WARM_UP_TOKENS = 12
TUNING_TOKENS = 64  # at most, of each tuning prompt and draft length
T = TypeVar("T")
Key = tuple[str, str]  # system, suite
Tell = Callable[[str, int], None]  # what runs now, and how many tokens of work are done with it


@dataclass(frozen=True)
class Texts:
    """The encoded prompts of a suite."""

    name: str
    measured: Prompts
    tuning: Prompts


@dataclass(frozen=True)
class Tuning:
    """What the tuning prompts showed of one system in one suite.

    Attributes
    ----------
    runs : mapping of int to list of Run
        By draft length, one run for each group of prompts.
    best : int
        The draft length with the most tokens per second.
    """

    runs: dict[int, list[Run]]
    best: int

    @property
    def speeds(self) -> dict[int, float]:
        """Tokens per second by draft length; 0 where all answers ended in the first round."""
        return {length: Totals(runs).tokens_per_s or 0.0 for length, runs in self.runs.items()}

    @property
    def reason(self) -> str:
        """Why this draft length, in words."""
        others = sorted(((speed, k) for k, speed in self.speeds.items() if k != self.best), reverse=True)
        text = f"K = {self.best} gave {self.speeds[self.best]:.1f} tokens/s on the tuning prompts"
        if others:
            return text + ", against " + ", ".join(f"{speed:.1f} at {k}" for speed, k in others)
        return text + ", the only length tried"


def groups(prompts: Prompts, batch: int) -> list[Prompts]:
    """Cut prompts into full batches; where they do not suffice, the first ones come again."""
    count = -(-len(prompts) // batch)
    return [[prompts[(batch * i + row) % len(prompts)] for row in range(batch)] for i in range(count)]


def work(systems: Sequence[System], suites: Sequence[Texts], max_new_tokens: int, repeats: int) -> int:
    """Return the tokens of work that `warm_up`, `tune` and `measure` will tell of, for a progress bar."""
    tuned, tuning_tokens = [one for one in systems if one.method != "plain"], min(TUNING_TOKENS, max_new_tokens)
    total = min(WARM_UP_TOKENS, max_new_tokens) * sum(system.batch for system in systems)
    for suite in suites:
        for system in systems:
            total += len(groups(suite.measured, system.batch)) * system.batch * max_new_tokens * repeats
        for system in tuned:
            tries = len(groups(suite.tuning, system.batch)) * len(system.candidates)
            total += tries * system.batch * tuning_tokens
    return total


def warm_up(systems: Sequence[System], suite: Texts, max_new_tokens: int, tell: Tell) -> None:
    """Let every system decode a little, with its longest draft, so that nothing is set up within a measured run."""
    limit = min(WARM_UP_TOKENS, max_new_tokens)
    for system in systems:
        system.decode(groups(suite.tuning, system.batch)[0], max(system.candidates), limit)
        tell(f"warming up {system.name}", limit * system.batch)


def tune(systems: Sequence[System], suites: Sequence[Texts], max_new_tokens: int, tell: Tell) -> dict[Key, Tuning]:
    """Try every draft length of every speculative system on the tuning prompts, all at the same budget.

    Returns
    -------
    dict of (system, suite) to Tuning
        Systems without drafts are not in it.
    """
    limit = min(TUNING_TOKENS, max_new_tokens)
    found: dict[Key, dict[int, list[Run]]] = {}
    turn = 0
    for suite in suites:
        for number in range(max(len(groups(suite.tuning, system.batch)) for system in systems)):
            for system in alternating(systems, turn):
                batches = groups(suite.tuning, system.batch)
                if system.method == "plain" or number >= len(batches):
                    continue
                lengths = found.setdefault((system.name, suite.name), {k: [] for k in system.candidates})
                for length in alternating(system.candidates, turn):
                    lengths[length].append(system.decode(batches[number], length, limit))
                    tell(f"tuning {system.name} on {suite.name}", limit * system.batch)
            turn += 1
    return {key: Tuning(runs, best_length(runs)) for key, runs in found.items()}


def best_length(runs: dict[int, list[Run]]) -> int:
    """Return the draft length with the most tokens per second over all its runs; the shortest if several tie."""
    return max(sorted(runs), key=lambda length: Totals(runs[length]).tokens_per_s or 0.0)


def measure(
    systems: Sequence[System],
    suites: Sequence[Texts],
    tuning: dict[Key, Tuning],
    max_new_tokens: int,
    repeats: int,
    tell: Tell,
) -> dict[Key, list[Run]]:
    """Decode the measured prompts with every system at its best draft length.

    The systems take turns on each group of prompts, forwards and backwards, so that a slow minute of the machine does
    not fall on one of them.

    Returns
    -------
    dict of (system, suite) to list of Run
        One run for each group of prompts: the median one of its repetitions.
    """
    found: dict[tuple[str, str, int], list[Run]] = {}
    turn = 0
    for repeat in range(repeats):
        for suite in suites:
            for number in range(max(len(groups(suite.measured, system.batch)) for system in systems)):
                for system in alternating(systems, turn):
                    batches = groups(suite.measured, system.batch)
                    if number >= len(batches):
                        continue
                    chosen = tuning.get((system.name, suite.name))
                    run = system.decode(batches[number], chosen.best if chosen else 0, max_new_tokens)
                    found.setdefault((system.name, suite.name, number), []).append(run)
                    again = f", repetition {repeat + 1} of {repeats}" if repeats > 1 else ""
                    tell(f"measuring {system.name} on {suite.name}{again}", max_new_tokens * system.batch)
                turn += 1
    medians: dict[Key, list[Run]] = {}
    for (system, suite, _), runs in sorted(found.items()):
        medians.setdefault((system, suite), []).append(median_run(runs))
    return medians


def alternating(items: Sequence[T], turn: int) -> Sequence[T]:
    """Return the items in order on even turns, in reverse on odd ones."""
    return items if turn % 2 == 0 else items[::-1]
