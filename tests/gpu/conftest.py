"""Tests on an accelerator. Without one they are skipped, and say so."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session")
def cuda():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    return torch.device("cuda")


@pytest.fixture
def only_read_may_wait(cuda, monkeypatch):
    """Once the test sets the mode to "error", any wait for the device is one, but in `specdec_ref.device.read`.

    Returns the list of its calls.
    """
    from specdec_ref import device

    calls = []
    original = device.read

    def read(tensor):
        calls.append(tuple(tensor.shape))
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("default")
        try:
            return original(tensor)
        finally:
            torch.cuda.set_sync_debug_mode(mode)

    monkeypatch.setattr(device, "read", read)
    try:
        yield calls
    finally:
        torch.cuda.set_sync_debug_mode("default")
