"""The figures of one system on one suite: from totals, never from means of ratios."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec_course.benchmark.run import Tuning
from specdec_course.benchmark.systems import Times
from specdec_ref.measure import Bill, Run, bill, interpolate
from specdec_ref.totals import Totals, percentile

Figures = dict[str, Any]


def speed_figures(runs: Sequence[Run]) -> Figures:
    """Return what every system has: speed, time to the first token, and how long a reader waits."""
    totals = Totals(runs)
    gaps, arrivals = totals.token_gaps(), totals.arrival_gaps()
    return {
        "new_tokens": totals.counts.new_tokens,
        "decode_tokens": totals.decode_tokens,
        "decode_s": totals.decode_seconds,
        "tokens_per_s": totals.tokens_per_s,
        "first_token_ms": milliseconds(totals.first_token_s),
        "inter_token_ms": {"p50": milliseconds(percentile(gaps, 0.5)), "p95": milliseconds(percentile(gaps, 0.95))},
        "arrival_gap_ms": {
            "p50": milliseconds(percentile(arrivals, 0.5)),
            "p95": milliseconds(percentile(arrivals, 0.95)),
        },
    }


def count_figures(runs: Sequence[Run]) -> Figures:
    """Return what the rounds of a speculative system show."""
    counts = Totals(runs).counts
    return {
        "emitted_per_round": counts.emitted_per_round,
        "alpha": counts.alpha,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
    }


def bill_figures(tuning: Tuning, times: Times, drafter: str, measured_speedup: float | None) -> Figures:
    """Return the times of single steps, and the speedup predicted from OTHER prompts beside the measured one."""
    step = times.passes[1]
    expected = bill(tuning.runs[tuning.best], times.passes, times.draft_step[drafter])
    predicted = expected.speedup
    return {
        "target_step_ms": milliseconds(step),
        "draft_step_ms": milliseconds(times.draft_step[drafter]),
        "verify_ms": milliseconds(interpolate(times.passes, 1 + tuning.best)),
        "predicted_speedup": predicted,
        "measured_speedup": measured_speedup,
        "measured_over_predicted": measured_speedup / predicted if measured_speedup and predicted else None,
        "bill": describe(expected, step),
    }


def describe(expected: Bill, step: float) -> str:
    """Say where the time of a round goes, in target steps."""
    if not expected.rounds:
        return "no round after the first: nothing to bill"
    emitted, drafting, passes = (
        seconds / step / expected.rounds for seconds in (expected.plain_s, expected.draft_s, expected.verify_s)
    )
    without = f"; {expected.undrafted_rounds / expected.rounds:.0%} of rounds had no draft"
    return (
        f"a round emits {emitted:.2f} tokens and costs {drafting + passes:.2f} target steps, "
        f"{drafting:.2f} for drafting and {passes:.2f} for the pass{without if expected.undrafted_rounds else ''}"
    )


def combined_prediction(parts: Sequence[tuple[int, float | None]]) -> float | None:
    """Return the speedup over several suites from each one's measured tokens and predicted speedup.

    Seconds are added: suite i needs tokens_i / speedup_i plain steps. None where a suite has no prediction.
    """
    total = sum(tokens for tokens, _ in parts)
    if not total or any(not speedup for tokens, speedup in parts if tokens):
        return None
    return total / sum(tokens / speedup for tokens, speedup in parts if tokens and speedup)


def milliseconds(seconds: float | None) -> float | None:
    """Return milliseconds; None stays None."""
    return None if seconds is None else 1e3 * seconds
