"""Weights copied once into the layout that oneDNN multiplies from, kept beside the layers that own them.

torch has the two operators for its compiler; they are not promised to stay. So they are tried first against the plain
product, and where they are absent or wrong nothing is packed.
"""

from __future__ import annotations

from functools import cache
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn import functional

ROWS_IN_MIND = 8  # what the layout is chosen for; it serves any number of rows

# Beside the layers, not in them: copying or saving a model does not meet these tensors, and they go when a layer goes.
_packed: WeakKeyDictionary[nn.Module, tuple[tuple[int, int], torch.Tensor]] = WeakKeyDictionary()


def packed_linear(layer: nn.Linear, input: torch.Tensor) -> torch.Tensor | None:
    """Apply `layer` to `input` [..., in] with packed weights; None where that cannot be had.

    The first call packs, which takes as much memory as the weights. A weight that was changed since is packed again.
    Gradients do not pass through, so nothing is packed while they are recorded.
    """
    if torch.is_grad_enabled() or not operators_work():
        return None
    weight = layer.weight
    state = (weight.data_ptr(), 0 if weight.is_inference() else weight._version)
    held = _packed.get(layer)
    if held is None or held[0] != state:
        held = (state, torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS_IN_MIND))
        _packed[layer] = held
    return torch.ops.mkldnn._linear_pointwise(input, held[1], layer.bias, "none", [], "")


@cache
def operators_work() -> bool:
    """Try the operators on a small case against the plain product."""
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(5, 24, generator=generator), torch.randn(16, 24, generator=generator)
    bias = torch.randn(16, generator=generator)
    try:
        layout = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS_IN_MIND)
        product = torch.ops.mkldnn._linear_pointwise(x, layout, bias, "none", [], "")
    except (RuntimeError, AttributeError, NotImplementedError):  # absent, or not for this processor
        return False
    return bool(torch.allclose(product, functional.linear(x, weight, bias), rtol=1e-4, atol=1e-4))
