"""Packed weights: the plain product, packed anew when a weight changes, invisible to copies, and dispensable."""

import copy
import gc

import pytest
import torch
from torch import nn
from torch.nn import functional

from specdec_ref import kernels, packed
from specdec_ref.packed import operators_work, packed_linear

needs_operators = pytest.mark.skipif(not operators_work(), reason="no packed product on this processor")


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@needs_operators
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 24), (1, 7, 24), (2, 3, 24)])
def test_the_result_is_that_of_the_plain_product(bias, shape):
    layer, x = nn.Linear(24, 10, bias=bias), torch.randn(*shape)
    assert torch.allclose(packed_linear(layer, x), functional.linear(x, layer.weight, layer.bias), atol=1e-5)


@needs_operators
def test_a_changed_or_replaced_weight_is_packed_again():
    layer, x = nn.Linear(24, 10), torch.randn(6, 24)
    packed_linear(layer, x)
    layer.weight.mul_(2.0)
    assert torch.allclose(packed_linear(layer, x), functional.linear(x, layer.weight, layer.bias), atol=1e-5)
    layer.weight = nn.Parameter(torch.randn(10, 24))
    assert torch.allclose(packed_linear(layer, x), functional.linear(x, layer.weight, layer.bias), atol=1e-5)


@needs_operators
def test_copies_and_saved_weights_do_not_see_it_and_it_goes_with_its_layer():
    gc.collect()
    before = len(packed._packed)
    layer = kernels.fast_linear(nn.Linear(24, 10))
    layer(torch.randn(6, 24))
    assert len(packed._packed) == before + 1
    assert set(layer.state_dict()) == {"weight", "bias"}
    twin = copy.deepcopy(layer)
    twin.weight.zero_()
    assert torch.allclose(twin(torch.ones(6, 24)), twin.bias.expand(6, -1))
    del layer, twin
    gc.collect()
    assert len(packed._packed) == before


def test_gradients_still_flow_because_nothing_is_packed_while_they_are_recorded():
    layer, x = kernels.fast_linear(nn.Linear(24, 10)), torch.randn(20, 24)
    with torch.enable_grad():
        assert packed_linear(layer, x) is None
        layer(x).sum().backward()
    assert layer.weight.grad is not None


@pytest.mark.parametrize("rows", [1, 2, 4, 5, 16, 17, 64])
def test_without_the_operators_every_block_length_still_works(rows, monkeypatch):
    monkeypatch.setattr(packed, "operators_work", lambda: False)
    layer, x = nn.Linear(24, 10), torch.randn(rows, 24)
    expected = layer(x)
    assert packed_linear(layer, x) is None
    assert torch.allclose(kernels.fast_linear(layer)(x), expected, atol=1e-5)
