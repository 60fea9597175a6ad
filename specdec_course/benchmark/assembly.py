"""The whole report as one JSON object; `specdec_course.benchmark.schema` describes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import GenerationConfig

from specdec_course.benchmark.findings import dtype_verdict, sentences
from specdec_course.benchmark.hugging_face import NGRAM
from specdec_course.benchmark.machine import describe, peak_memory
from specdec_course.benchmark.options import Options
from specdec_course.benchmark.report import Entry, entries, ratios
from specdec_course.benchmark.run import Key, Texts, Tuning
from specdec_course.benchmark.schema import VERSION
from specdec_course.benchmark.systems import System, Times, cache_bytes
from specdec_course.benchmark.texts import differences
from specdec_ref.measure import Run
from specdec_ref.pairs import Pair


def assemble(
    pairs: Sequence[Pair],
    options: Options,
    texts: list[Texts],
    systems: list[System],
    tuning: dict[Key, Tuning],
    measured: dict[Key, list[Run]],
    times: dict[tuple[str, int], Times],
) -> dict[str, Any]:
    """Put the report together."""
    names = [suite.name for suite in texts]
    found = entries(systems, names, tuning, measured, times)
    add_caches(found, pairs, max(len(prompt) for suite in texts for prompt in suite.measured) + options.max_new_tokens)
    report: dict[str, Any] = {
        "schema_version": VERSION,
        "machine": describe(pairs[0].target.device),
        "settings": settings(pairs, options, texts),
        "times": [
            {
                "dtype": dtype,
                "batch": batch,
                "context_tokens": one.context,
                "pass_ms": {str(length): 1e3 * seconds for length, seconds in one.passes.items()},
                "draft_step_ms": {name: 1e3 * seconds for name, seconds in one.draft_step.items()},
            }
            for (dtype, batch), one in times.items()
        ],
        "systems": found,
        "ratios": ratios(found, names, options.batch),
        "texts": compare(pairs, options, texts, systems, measured),
        "process_peak_bytes": peak_memory(),
    }
    report["findings"] = sentences(report)
    if len(pairs) > 1:
        report["findings"] += dtype_verdict(report)
    return report


def settings(pairs: Sequence[Pair], options: Options, texts: Sequence[Texts]) -> dict[str, Any]:
    """Return what was asked for, and what transformers would do with an assistant if nobody told it otherwise."""
    defaults = GenerationConfig()._get_default_generation_params()
    return {
        "pair": pairs[0].name,
        "target": pairs[0].target.name,
        "draft": pairs[0].draft.name,
        "dtypes": [pair.dtype for pair in pairs],
        "drafters": list(options.drafters),
        "suites": [suite.name for suite in texts],
        "batch": options.batch,
        "temperature": options.temperature,
        "max_new_tokens": options.max_new_tokens,
        "prompts": options.prompts,
        "tuning_prompts": len(texts[0].tuning),
        "repeats": options.repeats,
        "k": options.lengths if options.lengths == "auto" else list(options.lengths),
        "peer": options.peer,
        "transformers_ngram": NGRAM,
        "transformers_defaults": {name: value for name, value in defaults.items() if "assistant" in name},
    }


def add_caches(found: Sequence[Entry], pairs: Sequence[Pair], longest: int) -> None:
    """Add to each system the bytes of keys and values at the longest text; none where the dtype is a peer's own."""
    by_dtype = {pair.dtype: pair for pair in pairs}
    for entry in found:
        pair, entry["kv_bytes"] = by_dtype.get(entry["dtype"]), {}
        if pair is not None:
            entry["kv_bytes"]["target"] = cache_bytes(pair.target, longest, entry["batch"])
        if pair is not None and entry["method"] == "model":
            entry["kv_bytes"]["draft"] = cache_bytes(pair.draft, longest, entry["batch"])


def compare(
    pairs: Sequence[Pair],
    options: Options,
    texts: list[Texts],
    systems: list[System],
    measured: dict[Key, list[Run]],
) -> dict[str, Any]:
    """Compare greedy float32 texts with those of our plain loop; other texts need not agree."""
    exact = [one for one in systems if one.dtype == "float32" and one.engine != "llama.cpp"]
    pair = next((pair for pair in pairs if pair.dtype == "float32"), None)
    if options.temperature != 0 or pair is None:
        return {"compared": 0, "equal": None, "differences": []}
    reference = next(one.name for one in exact if one.engine == "specdec" and one.method == "plain" and one.batch == 1)
    found = differences(pair.target, exact, texts, measured, reference)
    count = sum(len(run.rounds[0].tokens) for one in exact for suite in texts for run in measured[one.name, suite.name])
    return {"compared": count, "equal": count - len(found), "differences": found}
