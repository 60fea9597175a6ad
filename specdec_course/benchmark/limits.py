"""The roofline of the machine at hand beside passes of a real model: how T_v / T_t grows, and how it should."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from specdec_course.benchmark.machine import describe
from specdec_course.benchmark.systems import cache_bytes, weight_bytes
from specdec_course.pass_times import CONTEXT, pass_times, ratios
from specdec_ref.model import CachedLM
from specdec_ref.pairs import Pair
from specdec_ref.roofline import Hardware, ModelSize, break_even_batch, verify_cost
from specdec_ref.this_machine import measure_hardware

BATCHES, BLOCK_LENGTHS = (1, 4), (1, 2, 3, 5, 9)
MAX_BATCH = 1024  # the largest that is looked at
ALPHAS, DRAFT_TOKENS = (0.5, 0.7, 0.9), 4  # of the sentences about the batch at which drafts stop paying


def model_size(lm: CachedLM) -> ModelSize:
    """Return what the roofline needs of a loaded model.

    A pass multiplies with its linear layers alone. It reads all weights but an embedding of its own, of which it looks
    up a line for each token.
    """
    layers: list[Any] = [module for module in lm.model.modules() if hasattr(module, "in_features")]
    parameters = sum(layer.in_features * layer.out_features for layer in layers)
    read = weight_bytes(lm.model)
    embedding, head = cast(Any, lm.model.get_input_embeddings()), lm.model.get_output_embeddings()
    if head is not None and getattr(head, "weight", None) is not embedding.weight:
        read -= embedding.weight.nbytes
    return ModelSize(parameters, cache_bytes(lm, tokens=1, batch=1), read / parameters)


def limits(
    pair: Pair,
    *,
    batches: Sequence[int] = BATCHES,
    block_lengths: Sequence[int] = BLOCK_LENGTHS,
    turns: int = 5,
    hardware: Hardware | None = None,
) -> dict[str, Any]:
    """Measure the device that the pair is on, time passes of its target, and return both beside each other.

    `hardware` takes the place of the measurement.
    """
    found = hardware or measure_hardware(pair.target.device, pair.target.model.dtype)
    target, draft = model_size(pair.target), model_size(pair.draft)
    cells = []
    for batch in batches:
        seconds = pass_times({"target": pair.target}, block_lengths, batch_size=batch, turns=turns)["target"]
        for length, ratio in ratios(seconds).items():
            predicted = float(verify_cost(target, found, length - 1, batch, CONTEXT))
            cells.append(
                {
                    "batch": batch,
                    "tokens": length,
                    "seconds": seconds[length],
                    "measured": ratio,
                    "predicted": predicted,
                }
            )
    machine = describe(pair.target.device)
    return {
        "machine": machine,
        "device": machine["processor"] if pair.target.device.type == "cpu" else machine["device"],
        "target": pair.target.name,
        "draft": pair.draft.name,
        "dtype": pair.dtype,
        "bytes_per_s": found.bandwidth,
        "operations_per_s": found.peak,
        "operations_per_byte": found.ridge,
        "target_bytes": target.bytes,
        "floor_s": target.bytes / found.bandwidth,
        "passes": cells,
        "num_draft_tokens": DRAFT_TOKENS,
        "break_even_batch": {
            str(alpha): break_even_batch(alpha, DRAFT_TOKENS, target, draft, found, CONTEXT, MAX_BATCH)
            for alpha in ALPHAS
        },
    }


def sentences(report: dict[str, Any]) -> list[str]:
    """Say what was measured and what the roofline concludes."""
    step = next(cell["seconds"] for cell in report["passes"] if cell["batch"] == cell["tokens"] == 1)
    lines = [
        f"{report['device']} reads {report['bytes_per_s'] / 1e9:.1f} GB a second and does "
        f"{report['operations_per_s'] / 1e9:.0f} billion operations a second at {report['dtype']}: "
        f"{report['operations_per_byte']:.0f} for each byte.",
        f"{report['target']} has {report['target_bytes'] / 1e6:.0f} MB to read, so a pass takes at least "
        f"{1e3 * report['floor_s']:.1f} ms; over one token it took {1e3 * step:.1f} ms.",
    ]
    for alpha, batch in report["break_even_batch"].items():
        until = f"pays at every batch up to {MAX_BATCH}" if batch is None else f"no longer pays from batch {batch} on"
        lines.append(
            f"By the roofline, drafting {report['num_draft_tokens']} tokens with {report['draft']} at alpha {alpha} "
            f"{until}, for short texts."
        )
    return [*lines, "The roofline is a floor: where measured ratios lie above it, the measurement counts."]
