"""What a pass costs by its length and its rows, on this device; and such curves as were recorded on others.

A curve gets into `data/pass_times/` in one way only: `specdec passes --record`, run on the device it is named after.
"""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from specdec_course.errors import CourseError
from specdec_ref.measure import Clock, time_passes
from specdec_ref.model import CachedLM

FOLDER = Path(__file__).resolve().parents[1] / "data" / "pass_times"
CONTEXT = 64  # tokens of each row in the cache before the pass


def pass_times(
    targets: Mapping[str, CachedLM],
    block_lengths: Sequence[int],
    *,
    batch_size: int = 1,
    turns: int = 3,
    clock: Clock = time.perf_counter,
) -> dict[str, dict[int, float]]:
    """Return the seconds of the quickest pass: name -> block length -> seconds.

    Parameters
    ----------
    targets : name -> CachedLM
        They take turns, so that a slow minute of the machine slows all of them. Their caches are not touched.
    block_lengths : sequence of int
        Tokens per row in a pass, at most `CONTEXT`.
    batch_size : int
        Rows, B.
    turns : int
        Timed passes of each kind. The quickest counts: other programs can make a pass slower, never faster.
    """
    best: dict[str, dict[int, float]] = {name: dict.fromkeys(block_lengths, math.inf) for name in targets}
    for _ in range(turns):
        for name, target in targets.items():
            times = time_passes(target, block_lengths, context=CONTEXT, batch_size=batch_size, repeats=1, clock=clock)
            best[name] = {length: min(best[name][length], seconds) for length, seconds in times.items()}
    return best


def ratios(seconds: dict[int, float]) -> dict[int, float]:
    """Return T_v / T_t by block length, from the seconds of passes of one batch size."""
    return {length: value / seconds[1] for length, value in seconds.items()}


def device_name(device: torch.device) -> str:
    """Return the name of the GPU, or of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine() or device.type


def record(target: CachedLM, dtype: str, folder: Path = FOLDER, repeats: int = 21) -> Path:
    """Measure on the device that `target` is on, and write the curves to a file named after it.

    Raises
    ------
    CourseError
        If the device is no accelerator: every reader measures their own CPU.
    """
    if target.device.type == "cpu":
        raise CourseError("curves are recorded on a GPU only, and the model is on a CPU: use a machine with a GPU")
    times = {
        batch: time_passes(target, (1, 2, 4, 6, 9, 17), context=CONTEXT, batch_size=batch, repeats=repeats)
        for batch in (1, 4, 16, 64)
    }
    name = device_name(target.device)
    report = {
        "device": name,
        "model": target.name,
        "dtype": dtype,
        "torch": torch.__version__,
        "context_tokens": CONTEXT,
        "repeats": repeats,
        "seconds": times,
    }
    folder.mkdir(parents=True, exist_ok=True)
    goal = folder / f"{''.join(c if c.isalnum() else '-' for c in name).lower()}-{dtype}.json"
    goal.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8", newline="\n")
    return goal


def recorded(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Return all recorded curves, as `record` wrote them; `seconds` is batch size -> block length -> seconds.

    Raises
    ------
    CourseError
        If a file of the folder cannot be read; the message names it.
    """
    reports = []
    for path in sorted(folder.glob("*.json")):
        try:
            report = json.loads(path.read_text(encoding="utf-8"))
            # JSON knows only text as keys.
            report["seconds"] = {
                int(batch): {int(length): float(value) for length, value in times.items()}
                for batch, times in report["seconds"].items()
            }
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise CourseError(f"{path.name} holds no recorded curve ({error}): record it again or delete it") from error
        reports.append(report)
    return reports
