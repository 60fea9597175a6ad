"""Where tensors live, and the one door through which numbers come back to Python.

On an accelerator Python runs ahead of the device: it queues work and does not wait. Reading a number back makes it
wait for everything queued, so a decoder should read once a round and never once a token. Every read of this package
goes through `read`, which counts, so that a test can hold the decoder to that promise.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

host_reads = 0  # how often `read` was called in this process


def best_device(name: str | None = None) -> torch.device:
    """Return the named device, or the best one present: CUDA, then Apple's MPS, then the CPU.

    Raises
    ------
    ValueError
        If the named device is not present on this machine.
    """
    present = ["cpu"]
    if torch.backends.mps.is_available():
        present.insert(0, "mps")
    if torch.cuda.is_available():
        present.insert(0, "cuda")
    if name is None:
        return torch.device(present[0])
    if name.split(":")[0] not in present:
        raise ValueError(f"device={name!r} is not present on this machine; present: {', '.join(present)}")
    return torch.device(name)


def read(tensor: torch.Tensor) -> torch.Tensor:
    """Copy `tensor` to the host. On an accelerator this waits for the device: call it once a round."""
    global host_reads
    host_reads += 1
    return tensor.cpu()


def upload(values: torch.Tensor | Sequence, device: torch.device) -> torch.Tensor:
    """Copy integers from the host to `device` without waiting for it. Returns int64."""
    return torch.as_tensor(values, dtype=torch.int64).to(device, non_blocking=True)


def exact_dtype(device: torch.device) -> torch.dtype:
    """Return the widest float of the device: float64, or float32 on MPS, which has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def synchronize(device: torch.device) -> None:
    """Wait until `device` has done all queued work, so that a clock read next means something. For measuring only."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
