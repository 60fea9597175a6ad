"""Make verification cheap on a CPU: the right matrix product for a handful of rows, and smaller weights.

A pass over a few tokens should cost little more than a pass over one: both read every weight once. With `nn.Linear` it
often does not. It asks Intel's MKL for Y = X Wᵀ, and which number of rows is slow depends on the processor.

On one with AVX2, two rows already take 1.5 to 2 times as long as one. Asked for Yᵀ = W Xᵀ instead, the same numbers
with the operands' roles exchanged, MKL takes about as long as for one row. (A likely reason: MKL copies blocks of one
operand into a layout of its own before it multiplies, and here that operand is the small one. Our measurements fit this
in part only, so take it as a guess, and the times as the fact: `specdec bench kernels` shows them on your machine.)

From five rows on, oneDNN is faster still, given weights that were copied into its own layout ahead of time: see
`packed`. That takes the memory of the weights a second time. On a processor with AVX-512 it is the fastest for every
number of rows, one row included: an AMD EPYC took half as long for it as MKL did. So the plain loop gains as much as
verification there, and a comparison that leaves it out would flatter speculation.

So a `FastLinear` counts the rows of its input on each call: both decoders get the better product for their block. Its
parameters stay where they are, and `state_dict`, `deepcopy` and tied embeddings know nothing of all this.

The other way to read less is to store less. Weights in 16 or 8 bits are OTHER targets, so they are only ever had by
asking for their `dtype`. Both use operators of torch that are not promised to stay; each is tried on the shape at hand
first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from specdec_ref.attention import use_grouped_attention
from specdec_ref.packed import operators_work, packed_linear

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class Choice:
    """Which product was measured to be the fastest, by rows of the input; for the others, the stock.

    Attributes
    ----------
    packed_from : int
        Packed weights are used from so many rows on.
    exchanged, exchanged_unpacked : range
        Rows for which W Xᵀ is used; the second where weights cannot be packed.
    """

    packed_from: int
    exchanged: range
    exchanged_unpacked: range


CHOICES = {"AVX2": Choice(5, range(2, 5), range(2, 17)), "AVX512": Choice(1, range(0), range(0))}


@cache
def choice() -> Choice:
    """Return what is best on this processor; one we never measured is taken for an AVX2 one."""
    return CHOICES.get(torch.backends.cpu.get_cpu_capability(), CHOICES["AVX2"])


class FastLinear(nn.Linear):
    """An `nn.Linear` with the fastest product for the rows of its input. Equal to it up to float32 rounding."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Apply the layer to `input` [..., in]; the result is [..., out]."""
        rows = input.numel() // self.in_features
        if not rows or not _uses_mkl(input):
            return F.linear(input, self.weight, self.bias)
        best = choice()
        exchanged = best.exchanged
        if rows >= best.packed_from:
            packed = packed_linear(self, input)
            if packed is not None:
                return packed
            exchanged = best.exchanged_unpacked
        if rows not in exchanged:
            return F.linear(input, self.weight, self.bias)
        product = torch.mm(self.weight, input.reshape(rows, -1).t()).t().contiguous()  # [rows, out]
        if self.bias is not None:
            product = product + self.bias
        return product.view(*input.shape[:-1], self.out_features)


def _uses_mkl(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype == torch.float32 and torch.backends.mkl.is_available()


def fast_linear(model: Model) -> Model:
    """Turn every plain `nn.Linear` of `model` into a `FastLinear`, in place. Doing it twice changes nothing.

    Only the class changes: parameters, names and hooks stay. GPT-2's `Conv1D` stores W transposed and is left as it is.
    """
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = FastLinear
    return model


class HalfLinear(nn.Module):
    """Weights in 16 bits, everything else in float32; `weight` [out, in] is rounded to float16.

    The packed weights cannot be saved: `state_dict` says so.
    """

    kernel = "float16 weights"

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Apply the layer to `input` [..., in]; the result is [..., out]."""
        return torch.ops.quantized.linear_dynamic_fp16(input, self.packed)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        raise ValueError("model: its float16 weights are packed for running only; save the model it was made from")


class Int8Linear(nn.Module):
    """Weights in 8 bits with one scale per output; `weight` is [out, in].

    Inputs and results are rounded to bfloat16, for which alone torch has a fast product. The rest stays in float32.
    """

    kernel = "int8 weights"
    rounds_inputs = True  # to bfloat16: last digits that differ may round to neighbours, and the logits with them

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        scale = (weight.abs().amax(dim=1).clamp(min=1e-12) / 127).bfloat16()
        self.register_buffer("scale", scale)
        self.register_buffer("weight", (weight / scale[:, None].float()).round().clamp(-127, 127).to(torch.int8))
        self.register_buffer("bias", bias)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Apply the layer to `input` [..., in]; the result is [..., out]."""
        rounded = input.reshape(-1, self.in_features).bfloat16()
        product = torch.ops.aten._weight_int8pack_mm(rounded, self.weight, self.scale)
        product = product.view(*input.shape[:-1], self.out_features).to(input.dtype)
        return product if self.bias is None else product + self.bias

    @property
    def restored(self) -> torch.Tensor:
        """The weights [out, in] that the 8 bits stand for, in float32."""
        return cast(torch.Tensor, self.weight).float() * cast(torch.Tensor, self.scale)[:, None]


def half_weights(model: Model) -> Model:
    """Round all weights of `model` (on the CPU) to float16, in place, and compute in float32 with them."""
    model.float()
    for parameter in model.parameters():
        parameter.data = parameter.data.half().float()
    return _replace(model, HalfLinear, lambda weight: weight)


def int8_weights(model: Model) -> Model:
    """Round the weights of the linear layers of `model` (on the CPU) to 8 bits, in place."""
    return _replace(model.float(), Int8Linear, lambda weight: Int8Linear(weight, None).restored)


def _replace(model: Model, kind: type[nn.Module], rounded: Callable[[torch.Tensor], torch.Tensor]) -> Model:
    """Replace linear layers by `kind`; where its operator does not work, keep them with `rounded` weights."""
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) not in (nn.Linear, FastLinear, Conv1D):
                continue
            stored = cast(torch.Tensor, layer.weight).detach()
            weight = stored.t().contiguous() if isinstance(layer, Conv1D) else stored  # [out, in]
            bias = None if layer.bias is None else cast(torch.Tensor, layer.bias).detach()
            if _works(kind, *weight.shape):
                setattr(parent, name, kind(weight, bias))
            else:
                new = rounded(weight)  # a new tensor: a tied embedding keeps its own
                layer.weight = nn.Parameter(new.t().contiguous() if isinstance(layer, Conv1D) else new)
    return fast_linear(model)


@cache
def _works(kind: type[nn.Module], outputs: int, inputs: int) -> bool:
    """Try the operator behind `kind` on this shape, against the plain product with the weights it should be using."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(outputs, inputs, generator=generator).half().float()
    x = torch.randn(3, inputs, generator=generator)
    try:
        layer = kind(weight, None)
        expected = F.linear(x, layer.restored if isinstance(layer, Int8Linear) else weight)
        allowed = 1e-4 if kind is not Int8Linear else 2.0**-6 * inputs**0.5  # bfloat16 keeps 8 bits
        return bool(torch.allclose(layer(x), expected, rtol=1e-4, atol=allowed))
    except (RuntimeError, AttributeError, NotImplementedError):  # absent, or not for this processor
        return False


def prepare(model: Model, dtype: str) -> Model:
    """Give `model`, already where it will run, the kernels for `dtype`: the one entry for loaders.

    Parameters
    ----------
    model : Module
        Changed in place. For "int8", and for "float16" on a CPU, load it in float32: rounding once loses least.
    dtype : str
        "float32" or "bfloat16"; "float16", on a CPU with float32 arithmetic; "int8", on a CPU only.

    Raises
    ------
    ValueError
        If `dtype` is unknown, or int8 is asked for elsewhere than on a CPU.
    """
    if dtype not in ("float32", "bfloat16", "float16", "int8"):
        raise ValueError(f"dtype={dtype!r} is not known; known are float32, bfloat16, float16, int8")
    device = next(model.parameters()).device
    if device.type != "cpu":
        if dtype == "int8":
            raise ValueError(f"dtype='int8' runs on a CPU only, and the model is on {device}")
        return model  # a GPU's own kernels are made for few rows
    if isinstance(model, PreTrainedModel):
        use_grouped_attention(model)
    if dtype == "bfloat16":
        return model
    return {"float32": fast_linear, "float16": half_weights, "int8": int8_weights}[dtype](model)


def _names_of_products() -> str:
    best, packs = choice(), operators_work()
    few = best.exchanged if packs else best.exchanged_unpacked
    exchanged = f"W Xᵀ for {few.start} to {few.stop - 1} rows" if few else ""
    packed = "oneDNN" + (f" from {best.packed_from}" if best.packed_from > 1 else "") if packs else ""
    return ", ".join(filter(None, (exchanged, packed))) or "stock"


def kernel_name(model: nn.Module) -> str:
    """Tell which products the linear layers of `model` use, with counts, as "W Xᵀ for 2 to 4 rows (211 layers)"."""
    names: Counter[str] = Counter()
    for module in model.modules():
        if isinstance(module, HalfLinear | Int8Linear):
            names[module.kernel] += 1
        elif isinstance(module, FastLinear) and _uses_mkl(module.weight):
            names[_names_of_products()] += 1
        elif isinstance(module, nn.Linear | Conv1D):
            names["stock"] += 1
    return ", ".join(f"{name} ({count} layers)" for name, count in names.items()) or "no linear layers"
