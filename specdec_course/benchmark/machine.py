"""What the figures were measured on: enough to compare machines, nothing that names one."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

import torch
import transformers


def describe(device: torch.device) -> dict[str, Any]:
    """Return processor, cores, system and versions."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
    }


def processor() -> str:
    """Return the processor's model name, as well as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def peak_memory() -> int | None:
    """Return the most memory this process ever held, in bytes, as the system counts it; None where it does not tell."""
    if sys.platform == "win32":
        import psutil  # comes with ipykernel

        return int(psutil.Process().memory_info().peak_wset)
    try:
        import resource
    except ImportError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
