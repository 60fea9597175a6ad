"""The roofline: how long a pass takes at least, from bytes and operations alone, and up to which batch drafts pay.

A pass reads all weights and the keys and values of its rows once, however many tokens it judges, and calculates for
each of its tokens. Both go on at the same time, so the longer one counts:

    time = max((model_bytes + kv_bytes) / bandwidth, flops_per_token * tokens_in_pass / peak)

It is a floor. Left out: starting hundreds of small operations, activations, the attention's own arithmetic (small while
texts are short), and links between several devices. So it tells how times GROW, and a measurement tells what they are.
Sources: Williams, Waterman and Patterson 2009 (Roofline, Communications of the ACM 52(4)); for decoding, Pope et al.
2022 (arXiv 2211.05102), section 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from specdec_ref.economics import speedup
from specdec_ref.ranges import Floats, between, positive, whole


@dataclass(frozen=True)
class Hardware:
    """One device, as the roofline sees it.

    Attributes
    ----------
    bandwidth : float
        Bytes per second from its memory.
    peak : float
        Operations per second of its matrix units at the model's dtype; a multiplication with its addition is two.
    memory : float or None
        Bytes of memory; None where nobody said.
    """

    name: str
    bandwidth: float
    peak: float
    memory: float | None = None

    @property
    def ridge(self) -> float:
        """Operations per byte at which calculating takes as long as reading."""
        return self.peak / self.bandwidth


PRESETS = {
    "a100": Hardware("A100 80GB SXM", 2039e9, 312e12, 80e9),
    "h100": Hardware("H100 SXM", 3350e9, 989e12, 80e9),
    "h200": Hardware("H200 SXM", 4800e9, 989e12, 141e9),
    "l4": Hardware("L4", 300e9, 121e12, 24e9),
    "rtx4090": Hardware("RTX 4090", 1008e9, 165e12, 24e9),
}
"""Limits that NVIDIA states, for bfloat16 without sparsity (its sheets often print twice that, with sparsity).

A100, H100, H200 and L4: their data sheets. RTX 4090: appendix A of the Ada architecture paper, products added up in
float32. Real programs stay below both limits.
"""


@dataclass(frozen=True)
class ModelSize:
    """What the roofline needs of a model.

    Attributes
    ----------
    parameters : float
        Weights; each is read once a pass and takes two operations a token.
    kv_bytes_per_token : float
        Bytes of keys and values of one token of text, over all layers: 2 * layers * KV heads * head size * bytes.
    bytes_per_weight : float
        2 for bfloat16, 4 for float32, 1 for int8.
    """

    parameters: float
    kv_bytes_per_token: float = 0.0
    bytes_per_weight: float = 2.0

    @property
    def bytes(self) -> float:
        """Bytes of the weights."""
        return self.parameters * self.bytes_per_weight

    @property
    def flops_per_token(self) -> float:
        """Operations per token, the attention's own left out."""
        return 2 * self.parameters


def step_time(
    model_bytes: ArrayLike,
    flops_per_token: ArrayLike,
    kv_bytes: ArrayLike,
    tokens_in_pass: ArrayLike,
    hardware: Hardware,
) -> Floats:
    """Return the least seconds of one pass.

    Parameters
    ----------
    model_bytes, kv_bytes : array_like >= 0
        Bytes of the weights, and of the keys and values of all rows. Both are read once a pass.
    flops_per_token : array_like >= 0
        Operations for each token.
    tokens_in_pass : array_like of whole numbers
        Of all rows together: B for a plain step, B (K+1) for a verification.
    """
    read = between(0, model_bytes, np.inf, "model_bytes") + between(0, kv_bytes, np.inf, "kv_bytes")
    tokens = whole(tokens_in_pass, "tokens_in_pass")
    calculate = between(0, flops_per_token, np.inf, "flops_per_token") * tokens
    return np.maximum(read / hardware.bandwidth, calculate / hardware.peak)[()]


def pass_time(
    model: ModelSize, hardware: Hardware, batch: ArrayLike, block_length: ArrayLike = 1, context: ArrayLike = 0
) -> Floats:
    """Return the least seconds of a pass over `block_length` tokens in each of `batch` rows of `context` tokens."""
    rows = whole(batch, "batch")
    kv_bytes = rows * whole(context, "context") * model.kv_bytes_per_token
    return step_time(model.bytes, model.flops_per_token, kv_bytes, rows * whole(block_length, "block_length"), hardware)


def verify_cost(
    target: ModelSize, hardware: Hardware, num_draft_tokens: ArrayLike, batch: ArrayLike = 1, context: ArrayLike = 0
) -> Floats:
    """Return v = T_v / T_t by the roofline: the pass over K+1 tokens of each row, in plain steps of the same batch.

    1 while memory decides, then growing with (K+1) B; at most K+1.
    """
    verify = pass_time(target, hardware, batch, whole(num_draft_tokens) + 1, context)
    return verify / pass_time(target, hardware, batch, 1, context)


def draft_cost(
    target: ModelSize, draft: ModelSize, hardware: Hardware, batch: ArrayLike = 1, context: ArrayLike = 0
) -> Floats:
    """Return c = T_d / T_t by the roofline, for a draft model on the same device with as long a cache."""
    return pass_time(draft, hardware, batch, 1, context) / pass_time(target, hardware, batch, 1, context)


def roofline_speedup(
    alpha: ArrayLike,
    num_draft_tokens: ArrayLike,
    target: ModelSize,
    draft: ModelSize,
    hardware: Hardware,
    batch: ArrayLike = 1,
    context: ArrayLike = 0,
) -> Floats:
    """Return the speedup of a round that the roofline predicts; arrays broadcast.

    Assumed beside the roofline: constant alpha, and rows that all stay in the batch for as long as any of them.
    """
    cost = draft_cost(target, draft, hardware, batch, context)
    return speedup(alpha, num_draft_tokens, cost, verify_cost(target, hardware, num_draft_tokens, batch, context))


def break_even_batch(
    alpha: float,
    num_draft_tokens: int,
    target: ModelSize,
    draft: ModelSize,
    hardware: Hardware,
    context: int = 0,
    max_batch: int = 4096,
) -> int | None:
    """Return the smallest batch at which speculation no longer pays; None if it pays up to `max_batch`.

    Long texts are the reason for None: their keys and values are read once a pass, too, so memory goes on deciding.
    """
    batch = np.arange(1, int(positive(max_batch, "max_batch")) + 1)
    gain = roofline_speedup(alpha, num_draft_tokens, target, draft, hardware, batch, context)
    losing = np.flatnonzero(gain <= 1)
    return int(batch[losing[0]]) if losing.size else None


def rows_that_fit(hardware: Hardware, context: float, target: ModelSize, draft: ModelSize | None = None) -> int:
    """Return how many texts of `context` tokens fit beside the weights; with a draft model, beside both models.

    Nothing is kept for activations and other programs.

    Raises
    ------
    ValueError
        If the hardware does not say its memory, or keys and values take none.
    """
    models = [target] if draft is None else [target, draft]
    row = float(positive(context, "context")) * sum(model.kv_bytes_per_token for model in models)
    if hardware.memory is None or row == 0:
        raise ValueError(
            f"hardware={hardware.name!r} with memory={hardware.memory} and {row:g} bytes a text: rows need both numbers"
        )
    return max(0, int((hardware.memory - sum(model.bytes for model in models)) / row))
