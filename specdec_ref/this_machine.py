"""The two numbers of the roofline for the device at hand, measured: bytes and operations per second."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from specdec_ref.device import synchronize
from specdec_ref.measure import Clock
from specdec_ref.roofline import Hardware

MATRIX_BYTES = 2**28  # far more than any processor's own cache holds
COLUMNS = 4096
SIDES = {"cpu": (512, 1024, 2048)}  # of square matrices; else the larger ones below
LARGE_SIDES = (4096, 8192)


def measure_hardware(
    device: torch.device,
    dtype: torch.dtype,
    *,
    name: str = "this machine",
    repeats: int = 8,
    matrix_bytes: int = MATRIX_BYTES,
    sides: tuple[int, ...] | None = None,
    clock: Clock = time.perf_counter,
) -> Hardware:
    """Return what `device` reaches with plain products at `dtype`.

    The bandwidth is that of a matrix times a vector, which needs all of a large block of memory and hardly any
    arithmetic; the peak is the best of some square products. The quickest of `repeats` counts: other programs can make
    a product slower, never faster. Both are what torch reaches, not what the data sheet promises.
    """
    rows = max(1, matrix_bytes // (COLUMNS * dtype.itemsize))
    matrix = torch.ones(rows, COLUMNS, dtype=dtype, device=device)
    bandwidth = matrix.nbytes / _quickest(lambda: torch.mv(matrix, matrix[0]), device, repeats, clock)
    peak = 0.0
    for side in sides or SIDES.get(device.type, LARGE_SIDES):
        square = torch.randn(side, side, dtype=torch.float32, device=device).to(dtype)
        seconds = _quickest(lambda square=square: square @ square, device, repeats, clock)
        peak = max(peak, 2 * side**3 / seconds)
    return Hardware(name, bandwidth, peak)


def _quickest(work: Callable[[], object], device: torch.device, repeats: int, clock: Clock) -> float:
    best = math.inf
    for turn in range(repeats + 1):
        synchronize(device)
        start = clock()
        work()
        synchronize(device)
        seconds = clock() - start
        if turn > 0:  # the first one warms up
            best = min(best, seconds)
    return best
