"""One cell, measured: the same prompts with and without speculation, taking turns; everything a decision needs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from specdec_course.benchmark import suites
from specdec_course.benchmark.bench import time_steps
from specdec_course.benchmark.figures import bill_figures, count_figures, milliseconds, speed_figures
from specdec_course.benchmark.hugging_face import transformers_systems
from specdec_course.benchmark.run import Texts, alternating, measure, tune, warm_up, work
from specdec_course.benchmark.systems import System, cache_bytes, our_systems
from specdec_course.benchmark.texts import differences
from specdec_course.experiment.plan import Cell, Plan
from specdec_ref.costs import cost_per_million_tokens
from specdec_ref.draft_shapes import survival_curve
from specdec_ref.measure import Run
from specdec_ref.pairs import Pair
from specdec_ref.totals import Totals, median_run, percentile

Tell = Callable[[str, float], None]  # what runs now, and which share of the cell is done with it
Runs = Sequence[Sequence[Run]]  # by repetition, then by group of prompts


def not_possible(cell: Cell, plan: Plan) -> str | None:
    """Say why a cell cannot be measured; None where it can."""
    if plan.engine == "transformers" and cell.batch > 1:
        return "transformers' assisted generation takes one text at a time"
    return None


def measure_cell(cell: Cell, plan: Plan, pair: Pair, tell: Tell) -> dict[str, Any]:
    """Measure one cell and return it as plain values."""
    reason = not_possible(cell, plan)
    about = {
        "text": cell.text,
        "length": cell.length,
        "max_new_tokens": cell.max_new_tokens,
        "temperature": cell.temperature,
        "batch": cell.batch,
    }
    if reason is not None:
        return {**about, "not_run": reason}
    options, suite = plan.options(cell), suites.load(cell.text)
    texts = Texts(
        suite.name,
        [suites.encode(pair, prompt) for prompt in suite.measured[: plan.prompts]],
        [suites.encode(pair, prompt) for prompt in suite.tuning],
    )
    times = time_steps(pair, options, [texts], cell.batch)
    off, on = our_systems(pair, options, times) if plan.engine == "ours" else _of_transformers(pair, plan, cell)
    whole = work([off, on], [texts], cell.max_new_tokens, plan.repeats)

    def report(what: str, tokens: int) -> None:
        tell(f"{cell.words}: {what.split()[0]}", tokens / whole)

    warm_up([off, on], texts, cell.max_new_tokens, report)
    tuning = tune([off, on], [texts], cell.max_new_tokens, report)
    repeated = [  # whoever came second comes first the next time
        measure(alternating([off, on], turn), [texts], tuning, cell.max_new_tokens, 1, report)
        for turn in range(plan.repeats)
    ]
    plain, spec = ([found[side.name, texts.name] for found in repeated] for side in (off, on))
    tuned = tuning[on.name, texts.name]
    decoding = ratios(plain, spec, prompts_too=False)
    bill = bill_figures(tuned, times, plan.drafter, decoding["median"]) if plan.engine == "ours" else {}
    longest = max(map(len, texts.measured)) + cell.max_new_tokens
    return {
        **about,
        "num_draft_tokens": tuned.best,
        "off": side_figures(plain, plan) | {"memory": memory(off, pair, longest)},
        "on": side_figures(spec, plan) | draft_figures(spec) | bill | {"memory": memory(on, pair, longest)},
        "speedup": ratios(plain, spec, prompts_too=True),
        "decode_speedup": decoding,
        "round_cost": round_cost(plain, spec),
        "texts": _compare(pair, [off, on], texts, repeated)
        if cell.temperature == 0 and pair.dtype == "float32"
        else None,
    }


def _of_transformers(pair: Pair, plan: Plan, cell: Cell) -> list[System]:
    found = transformers_systems(pair, plan.options(cell))
    layers = found[-1].layers  # the fast ones, where there are two kinds
    return [one for one in found if one.layers == layers]


def side_figures(runs: Runs, plan: Plan) -> dict[str, Any]:
    """Return what a reader feels and an owner pays, on one side: medians over repetitions, totals over prompts."""
    seconds = statistics.median(sum(sum(run.seconds) for run in once) for once in runs)
    tokens = sum(run.new_tokens for run in runs[0])
    answers = [sum(run.seconds) for once in runs for run in once]  # all rows of a group start and are timed together
    return speed_figures([median_run(group) for group in zip(*runs, strict=True)]) | {
        "seconds": seconds,
        "latency_ms": {name: milliseconds(percentile(answers, share)) for name, share in (("p50", 0.5), ("p95", 0.95))},
        "all_tokens_per_s": tokens / seconds,
        "cost_per_million_tokens": float(cost_per_million_tokens(plan.price_per_hour, tokens / seconds)),
    }


def draft_figures(runs: Runs) -> dict[str, Any]:
    """Return what the rounds show: accepted tokens and their distribution, survival by position."""
    rounds = [result for run in runs[0] for result in run.rounds]  # seeds are the same in each repetition
    judged = [
        (accepted, drafted)
        for result in rounds
        for tokens, accepted, drafted in zip(result.tokens, result.num_accepted, result.num_drafted, strict=True)
        if tokens
    ]
    with_draft = [pair for pair in judged if pair[1]]
    histogram = Counter(accepted for accepted, _ in with_draft)
    counts = ([accepted for accepted, _ in with_draft], [drafted for _, drafted in with_draft])
    return count_figures(runs[0]) | {
        "row_rounds": len(judged),
        "rounds_without_draft": len(judged) - len(with_draft),
        "accepted_per_round": {str(count): histogram[count] for count in range(max(histogram, default=-1) + 1)},
        "survival": survival_curve(*counts).tolist(),
    }


def ratios(plain: Runs, spec: Runs, *, prompts_too: bool) -> dict[str, float | None]:
    """Return the speedup: seconds per token without over with, from totals; the median and the range over repetitions.

    Sampled answers need not be equally long on both sides, so time is counted per token. None where all answers ended
    in the first round, so that there is no decoding to speak of.
    """

    def per_token(once: Sequence[Run]) -> float:
        totals = Totals(once)
        if prompts_too:
            return sum(sum(run.seconds) for run in once) / totals.counts.new_tokens
        return totals.decode_seconds / totals.decode_tokens if totals.decode_tokens else 0.0

    times = [(per_token(off), per_token(on)) for off, on in zip(plain, spec, strict=True)]
    if any(not off or not on for off, on in times):
        return {"median": None, "low": None, "high": None}
    found = [off / on for off, on in times]
    return {"median": statistics.median(found), "low": min(found), "high": max(found)}


def round_cost(plain: Runs, spec: Runs) -> float | None:
    """Return what a round took, in plain steps of the same batch, prompts apart. None without a round after the first.

    Measured, so it holds everything: drafting, the pass, and the loop around them.
    """

    def seconds(once: Sequence[Run]) -> float | None:
        rounds = sum(1 for run in once for result in run.rounds[1:] if any(result.tokens))
        return Totals(once).decode_seconds / rounds if rounds else None

    costs = [(seconds(on), seconds(off)) for off, on in zip(plain, spec, strict=True)]
    known = [on / off for on, off in costs if on and off]
    return statistics.median(known) if known else None


def memory(system: System, pair: Pair, longest: int) -> dict[str, int]:
    """Return the bytes of weights and of keys and values, of both models apart, computed from their shapes."""
    found = {f"{name}_weights": size for name, size in system.weights.items()}
    found["target_kv"] = cache_bytes(pair.target, longest, system.batch)
    if system.method == "model":
        found["draft_kv"] = cache_bytes(pair.draft, longest, system.batch)
    return found


def _compare(pair: Pair, systems: list[System], texts: Texts, repeated: list[dict[Any, list[Run]]]) -> dict[str, Any]:
    """Compare greedy texts, which must be equal, over all repetitions."""
    found = [
        one for measured in repeated for one in differences(pair.target, systems, [texts], measured, systems[0].name)
    ]
    compared = sum(len(run.rounds[0].tokens) for measured in repeated for run in measured[systems[1].name, texts.name])
    return {"compared": compared, "equal": compared - len(found), "differences": found}
