"""The systems with their figures, suite by suite and over all, and the ratios of their totals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec_course.benchmark.figures import (
    Figures,
    bill_figures,
    combined_prediction,
    count_figures,
    speed_figures,
)
from specdec_course.benchmark.run import Key, Tuning
from specdec_course.benchmark.systems import System, Times
from specdec_ref.measure import Run

Entry = dict[str, Any]


def entries(
    systems: Sequence[System],
    suite_names: Sequence[str],
    tuning: dict[Key, Tuning],
    measured: dict[Key, list[Run]],
    times: dict[tuple[str, int], Times],
) -> list[Entry]:
    """Return one entry for each system, with its figures for each suite and for "all".

    Parameters
    ----------
    times : mapping
        Of (dtype, batch size), for our own systems.
    """
    found = []
    for system in systems:
        plain = next((one for one in systems if one.method == "plain" and _alike(one, system)), None)
        results: dict[str, Figures] = {}
        for name in suite_names:
            runs, tuned = measured[system.name, name], tuning.get((system.name, name))
            results[name] = speed_figures(runs)
            if tuned is None:
                continue
            adaptive = {"num_draft_tokens": "auto", "reason": "chosen in each round from the acceptance so far"}
            fixed = {"num_draft_tokens": tuned.best, "reason": tuned.reason}
            tried = {str(length): speed for length, speed in tuned.speeds.items()}
            results[name] |= count_figures(runs) | (adaptive if system.adaptive else fixed) | {"tuning": tried}
            if system.engine == "specdec" and plain is not None:
                gain = ratio(results[name], speed_figures(measured[plain.name, name]))
                results[name] |= bill_figures(tuned, times[system.dtype, system.batch], system.method, gain)
        results["all"] = _all(system, suite_names, results, measured, plain)
        found.append(
            {
                "name": system.name,
                "engine": system.engine,
                "method": system.method,
                "layers": system.layers,
                "dtype": system.dtype,
                "batch": system.batch,
                "weight_bytes": dict(system.weights),
                "results": results,
            }
        )
    return found


def _alike(first: System, second: System) -> bool:
    return (first.engine, first.dtype, first.batch) == (second.engine, second.dtype, second.batch)


def _all(
    system: System,
    suite_names: Sequence[str],
    results: dict[str, Figures],
    measured: dict[Key, list[Run]],
    plain: System | None,
) -> Figures:
    """Return the figures over all suites together: seconds and tokens are added first."""
    runs = [run for name in suite_names for run in measured[system.name, name]]
    found = speed_figures(runs)
    if system.method == "plain":
        return found
    found |= count_figures(runs)
    if system.engine == "specdec" and plain is not None:
        gain = ratio(found, speed_figures([run for name in suite_names for run in measured[plain.name, name]]))
        predicted = combined_prediction(
            [(results[name]["decode_tokens"], results[name]["predicted_speedup"]) for name in suite_names]
        )
        found["measured_speedup"], found["predicted_speedup"] = gain, predicted
        found["measured_over_predicted"] = gain / predicted if gain and predicted else None
    return found


def ratio(ours: Figures, theirs: Figures) -> float | None:
    """Return how many times more tokens per second; None where one of them is unknown."""
    speeds = ours["tokens_per_s"], theirs["tokens_per_s"]
    return speeds[0] / speeds[1] if speeds[0] and speeds[1] else None


def fastest(systems: Sequence[Entry], suite: str, **wanted: Any) -> Entry | None:
    """Return the fastest system with these values (a tuple: one of them); None if there is none.

    `spec=True` means any that drafts, `spec=False` any that does not.
    """
    spec = wanted.pop("spec", None)
    allowed = {key: value if isinstance(value, tuple) else (value,) for key, value in wanted.items()}
    chosen = [
        one
        for one in systems
        if all(one[key] in values for key, values in allowed.items())
        and (spec is None or (one["method"] != "plain") == spec)
        and one["results"][suite]["tokens_per_s"]
    ]
    return max(chosen, key=lambda one: one["results"][suite]["tokens_per_s"], default=None)


def ratios(systems: Sequence[Entry], suite_names: Sequence[str], batch: int) -> dict[str, Any]:
    """Return the ratios the benchmark is about, each by suite and for "all".

    `spec_over_best_plain`: our fastest speculative decoder over the fastest plain one, ours or transformers', at the
    same batch size. `spec_over_transformers_assisted`: at batch 1, over the fastest that transformers can do with a
    draft, whichever draft and layers; `..._same_drafter` compares drafter by drafter. `measured_over_predicted`: of our
    fastest. `batch_over_batch_1`: of our fastest at each batch size.
    """
    own = [one for one in systems if one["engine"] in ("specdec", "transformers")]

    def over(suite: str, ours: dict[str, Any], theirs: dict[str, Any]) -> float | None:
        first = fastest(own, suite, engine="specdec", spec=True, **ours)
        second = fastest(own, suite, **theirs)
        return ratio(first["results"][suite], second["results"][suite]) if first and second else None

    def predicted(suite: str) -> float | None:
        best = fastest(own, suite, engine="specdec", spec=True, batch=batch)
        return best["results"][suite].get("measured_over_predicted") if best else None

    names = (*suite_names, "all")
    assisted = {"engine": "transformers", "batch": 1}
    drafters = sorted({one["method"] for one in own if one["method"] != "plain"})
    found: dict[str, Any] = {
        "spec_over_best_plain": {name: over(name, {"batch": batch}, {"spec": False, "batch": batch}) for name in names},
        "spec_over_transformers_assisted": {
            name: over(name, {"batch": 1}, {"spec": True, **assisted}) for name in names
        },
        "spec_over_transformers_assisted_same_drafter": {
            drafter: {
                name: over(name, {"batch": 1, "method": drafter}, {"method": drafter, **assisted}) for name in names
            }
            for drafter in drafters
        },
        "measured_over_predicted": {name: predicted(name) for name in names},
    }
    if batch > 1:
        one = {"engine": "specdec", "spec": True, "batch": 1}
        found["batch_over_batch_1"] = {name: over(name, {"batch": batch}, one) for name in names}
    return found
