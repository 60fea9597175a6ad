from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, GPT2Config, GPTNeoXConfig, LlamaConfig, OPTConfig

from specdec_ref import kernels, store
from specdec_ref.kernels import FastLinear, HalfLinear, Int8Linear

SMALL: dict[str, Any] = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
CONFIGS = {
    "llama": LlamaConfig(**SMALL, intermediate_size=48, num_key_value_heads=2),
    "llama with biases": LlamaConfig(**SMALL, intermediate_size=48, attention_bias=True, mlp_bias=True),
    "llama, tied": LlamaConfig(**SMALL, intermediate_size=48, tie_word_embeddings=True),
    "gpt2": GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4),
    "neox": GPTNeoXConfig(**SMALL, intermediate_size=48),
    "opt": OPTConfig(**SMALL, ffn_dim=48, word_embed_proj_dim=32, max_position_embeddings=64),
}


def make(name: str) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name]).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases start at zero, which would hide their loss
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


@torch.no_grad()
def logits(model: Any, batch: int, length: int) -> torch.Tensor:
    tokens = torch.arange(batch * length).view(batch, length) * 7 % 97
    return model(input_ids=tokens).logits


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("batch", "length"), [(1, 1), (1, 2), (1, 6), (2, 3), (1, 16), (1, 17), (4, 6)])
def test_fast_kernels_do_not_move_float32_logits(name: str, batch: int, length: int) -> None:
    model = make(name)
    before = logits(model, batch, length)
    after = logits(kernels.fast_linear(model), batch, length)
    assert after.shape == before.shape
    assert (after - before).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("processor", "packs", "exchanged", "packed"),
    [
        ("AVX2", True, [2, 3, 4], [5, 16, 17]),
        ("AVX2", False, [2, 3, 4, 5, 16], []),
        ("AVX512", True, [], [1, 2, 3, 4, 5, 16, 17]),
        ("AVX512", False, [], []),
    ],
)
def test_each_processor_takes_the_product_that_was_fastest_on_it(
    processor: str, packs: bool, exchanged: list[int], packed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, mm = kernels.fast_linear(nn.Linear(8, 5)), torch.mm
    taken: dict[str, list[int]] = {"exchanged": [], "packed": []}

    def pack(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor | None:
        if packs:
            taken["packed"].append(len(x))
        return F.linear(x, layer.weight, layer.bias) if packs else None

    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(kernels, "choice", lambda: kernels.CHOICES[processor])
    monkeypatch.setattr(kernels, "packed_linear", pack)
    monkeypatch.setattr(torch, "mm", lambda a, b: taken["exchanged"].append(b.shape[1]) or mm(a, b))
    for rows in (1, 2, 3, 4, 5, 16, 17):
        assert torch.allclose(layer(torch.ones(rows, 8)), F.linear(torch.ones(rows, 8), layer.weight, layer.bias))
    assert taken == {"exchanged": exchanged, "packed": packed}


def test_without_mkl_or_in_float64_the_result_is_the_stock_one_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = nn.Linear(8, 5), torch.randn(6, 8)
    stock, stock64 = layer(x), copy.deepcopy(layer).double()(x.double())
    kernels.fast_linear(layer)
    assert torch.equal(copy.deepcopy(layer).double()(x.double()), stock64)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert torch.equal(layer(x), stock)
    assert kernels.kernel_name(layer) == "stock (1 layers)"


def test_the_fast_layers_work_twice_copied_saved_and_tied() -> None:
    model = make("llama, tied")
    names = set(model.state_dict())
    fast = copy.deepcopy(kernels.fast_linear(kernels.fast_linear(model)))
    assert set(fast.state_dict()) == names
    assert fast.lm_head.weight is fast.get_input_embeddings().weight
    assert torch.equal(logits(fast, 1, 6), logits(model, 1, 6))


def test_a_subclass_of_linear_keeps_its_own_forward() -> None:
    class Doubling(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(input)

    assert type(kernels.fast_linear(nn.Sequential(Doubling(3, 3)))[0]) is Doubling


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("working", [True, False])
def test_float16_means_rounded_weights_and_float32_arithmetic(
    name: str, working: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounded = make(name)
    for parameter in rounded.parameters():
        parameter.data = parameter.data.half().float()
    if not working:
        monkeypatch.setattr(kernels, "_works", lambda *args: False)
    model = kernels.prepare(make(name), "float16")
    assert (logits(model, 2, 3) - logits(rounded, 2, 3)).abs().max() < 1e-4
    assert any(isinstance(module, HalfLinear) for module in model.modules()) is working or not _has("float16")


def _has(dtype: str) -> bool:
    return kernels._works(HalfLinear if dtype == "float16" else Int8Linear, 32, 32)


@pytest.mark.parametrize("name", CONFIGS)
def test_int8_without_its_operator_keeps_the_rounded_weights(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_operator = kernels.prepare(make(name), "int8")
    monkeypatch.setattr(kernels, "_works", lambda *args: False)
    without = kernels.prepare(make(name), "int8")
    # The operator also rounds its inputs and results to bfloat16, 8 bits.
    expected = logits(without, 2, 3)
    assert (logits(with_operator, 2, 3) - expected).abs().max() < 2.0**-5 * expected.abs().max()
    assert 1e-5 < (logits(without, 2, 3) - logits(make(name), 2, 3)).abs().max() < 1


def test_operators_that_are_absent_or_wrong_are_found_out() -> None:
    class Absent(nn.Module):
        def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
            torch.ops.aten.an_operator_of_a_future_release(weight)

    class Wrong(nn.Module):
        def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
            super().__init__()
            self.outputs = len(weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(x), self.outputs)

    assert not kernels._works(Absent, 4, 4)
    assert not kernels._works(Wrong, 4, 4)


def test_packed_float16_weights_copy_and_refuse_to_be_saved() -> None:
    if not _has("float16"):
        pytest.skip("no float16 operator on this processor")
    model = kernels.prepare(make("llama"), "float16")
    assert torch.equal(logits(copy.deepcopy(model), 1, 3), logits(model, 1, 3))
    with pytest.raises(ValueError, match="save the model it was made from"):
        model.state_dict()


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_a_row_hardly_depends_on_its_block(dtype: str) -> None:
    torch.manual_seed(0)
    layer = kernels.prepare(nn.Sequential(nn.Linear(64, 40)), dtype)
    x = torch.randn(9, 64)
    with torch.no_grad():
        alone = torch.cat([layer(row[None]) for row in x])
        assert (layer(x) - alone).abs().max() < 1e-5
        assert torch.equal(layer(x), layer(x))


def test_an_unknown_dtype_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="dtype='float8'"):
        kernels.prepare(nn.Linear(2, 2), "float8")


def test_bfloat16_stays_stock() -> None:
    assert type(kernels.prepare(nn.Linear(2, 2).bfloat16(), "bfloat16")) is nn.Linear


@pytest.mark.smol
def test_fast_kernels_do_not_move_the_logits_of_smollm2() -> None:
    folder = store.smol_folder()
    if not folder.is_dir():
        pytest.skip("SmolLM2 is not converted")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    before = [logits(model, 1, length) for length in (1, 2, 6, 16)]
    kernels.fast_linear(model)
    assert sum(isinstance(module, FastLinear) for module in model.modules()) == 30 * 7 + 1
    for length, old in zip((1, 2, 6, 16), before, strict=True):
        assert (logits(model, 1, length) - old).abs().max() < 1e-3
