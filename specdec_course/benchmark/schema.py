"""The form of the report, as a JSON Schema (draft 2020-12). `specdec bench schema` prints it.

A number that a run does not determine is null, never 0.
"""

from __future__ import annotations

from typing import Any

VERSION = 1

NUMBER = {"type": ["number", "null"]}
COUNT = {"type": "integer", "minimum": 0}
TEXT = {"type": "string"}


def described(form: dict[str, Any], description: str) -> dict[str, Any]:
    """Return a form with its meaning."""
    return {**form, "description": description}


def record(properties: dict[str, Any], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the form of an object with exactly these properties, all needed but the optional ones."""
    needed = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}


def mapping(values: dict[str, Any], needed: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the form of an object with any names."""
    return {"type": "object", "additionalProperties": values, "required": list(needed)}


QUANTILES = record({"p50": NUMBER, "p95": NUMBER})

# Of one system on one suite, or on "all". Totals over prompts; the median of repetitions for each prompt.
FIGURES = {
    "new_tokens": described(COUNT, "tokens of all rounds"),
    "decode_tokens": described(COUNT, "tokens of all rounds but the first of each run, which reads the prompt"),
    "decode_s": described(NUMBER, "seconds of those rounds"),
    "tokens_per_s": described(NUMBER, "decode_tokens / decode_s: tokens of all rows of the batch"),
    "first_token_ms": described(NUMBER, "median time to the first token, the prompt's own work included"),
    "inter_token_ms": described(QUANTILES, "time per token; tokens of one round each count as its equal share"),
    "arrival_gap_ms": described(QUANTILES, "wait between arrivals; tokens of one round arrive together"),
}
# Of systems with a drafter.
COUNTS = {
    "emitted_per_round": described(NUMBER, "tokens a row gets per round"),
    "alpha": described(NUMBER, "accepted over judged draft tokens; not accepted over drafted"),
    "drafted": described(COUNT, "draft tokens proposed"),
    "accepted": described(COUNT, "draft tokens accepted"),
}
CHOICE = {
    "num_draft_tokens": described({"type": ["integer", "string"]}, 'K, or "auto"'),
    "reason": described(TEXT, "why this K"),
    "tuning": described(mapping(NUMBER), "tokens/s on the tuning prompts, by K"),
}
# Of our own systems with a drafter.
BILL = {
    "target_step_ms": described(NUMBER, "T_t: a target pass over one token"),
    "draft_step_ms": described(NUMBER, "T_d: one draft token"),
    "verify_ms": described(NUMBER, "T_v: a target pass over K+1 tokens"),
    "predicted_speedup": described(NUMBER, "bill of the tuning prompts' rounds, at the times of single steps"),
    "measured_speedup": described(NUMBER, "tokens/s over those of our plain loop in this run"),
    "measured_over_predicted": NUMBER,
    "bill": described(TEXT, "where the time of a round goes, by that bill"),
}

SYSTEM = record(
    {
        "name": described(TEXT, "unique in a report"),
        "engine": {"enum": ["specdec", "transformers", "llama.cpp"]},
        "method": described(TEXT, "plain, or who drafts: model, ngram, eagle, medusa, ..."),
        "layers": described(TEXT, "linear layers: fast (this course's), stock (torch's), C++ (a peer's own)"),
        "dtype": TEXT,
        "batch": {"type": "integer", "minimum": 1},
        "weight_bytes": described(mapping(COUNT), "of target and draft, computed from their tensors"),
        "kv_bytes": described(mapping(COUNT), "of keys and values at the longest text, computed from the shapes"),
        "results": described(
            mapping(record(FIGURES | COUNTS | CHOICE | BILL, optional=(*COUNTS, *CHOICE, *BILL)), needed=("all",)),
            "by suite, and for all suites together",
        ),
    }
)

# Of one drafter on one suite, in the summary that `specdec bench drafters` adds.
DRAFTER = record(
    {
        "speedup": described(NUMBER, "over our plain loop in this run: a ratio of total tokens/s"),
        "tokens_per_s": NUMBER,
        "num_draft_tokens": {"type": ["integer", "string", "null"]},
        "emitted_per_round": NUMBER,
        "alpha": NUMBER,
        "draft_step_ms": described(NUMBER, "per draft token"),
        "verify_ms": NUMBER,
        "predicted_speedup": NUMBER,
        "bill": {"type": ["string", "null"]},
    }
)

BY_SUITE = mapping(NUMBER, needed=("all",))

SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Report of specdec bench pair, specdec bench dtypes and specdec bench drafters",
    **record(
        {
            "schema_version": {"const": VERSION},
            "machine": record(
                {
                    "processor": TEXT,
                    "cores": {"type": ["integer", "null"]},
                    "threads": {"type": "integer"},
                    "device": TEXT,
                    "system": TEXT,
                    "python": TEXT,
                    "torch": TEXT,
                    "transformers": TEXT,
                    "load_average": described(
                        {"type": ["array", "null"], "items": {"type": "number"}},
                        "runnable processes over 1, 5 and 15 minutes, at the end; null where the system does not tell",
                    ),
                }
            ),
            "settings": mapping(
                {}, needed=("pair", "target", "draft", "dtypes", "suites", "batch", "temperature", "k")
            ),
            "times": {
                "type": "array",
                "items": record(
                    {
                        "dtype": TEXT,
                        "batch": {"type": "integer", "minimum": 1},
                        "context_tokens": COUNT,
                        "pass_ms": described(mapping(NUMBER), "of a target pass, by block length"),
                        "draft_step_ms": described(mapping(NUMBER), "of a draft token, by drafter"),
                    }
                ),
            },
            "systems": {"type": "array", "items": SYSTEM},
            "ratios": described(
                record(
                    {
                        "spec_over_best_plain": BY_SUITE,
                        "spec_over_transformers_assisted": BY_SUITE,
                        "spec_over_transformers_assisted_same_drafter": mapping(BY_SUITE),
                        "measured_over_predicted": BY_SUITE,
                        "batch_over_batch_1": BY_SUITE,
                    },
                    optional=("batch_over_batch_1",),
                ),
                "ratios of total tokens/s, by suite and for all; null where one side was not run",
            ),
            "texts": record(
                {
                    "compared": described(COUNT, "greedy float32 texts compared with those of our plain loop"),
                    "equal": described({"type": ["integer", "null"]}, "how many are the same, token for token"),
                    "differences": {
                        "type": "array",
                        "items": record(
                            {
                                "system": TEXT,
                                "suite": TEXT,
                                "prompt": COUNT,
                                "position": COUNT,
                                "top_two_gap": described(NUMBER, "of the two largest logits at the first difference"),
                            }
                        ),
                    },
                }
            ),
            "process_peak_bytes": described(
                {"type": ["integer", "null"]}, "most memory of the whole process, all systems together"
            ),
            "findings": {"type": "array", "items": TEXT},
            "drafters": described(
                mapping(record({"suites": mapping(DRAFTER, needed=("all",)), "extra_memory_bytes": COUNT})),
                "of specdec bench drafters: each drafter's figures by suite",
            ),
            "absent": described(mapping(TEXT), "drafters that the pair cannot be given, and why"),
            "published": described({"type": "array", "items": mapping(TEXT)}, "other models on other machines"),
        },
        optional=("drafters", "absent", "published"),
    ),
}
