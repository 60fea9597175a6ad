"""A pair of random Llamas of a few kilobytes over bytes: real code paths at the price of a second."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from specdec_ref import kernels
from specdec_ref.model import CachedLM
from specdec_ref.pairs import Pair


def toy_pair(name: str = "toy", dtype: str = "float32") -> Pair:
    """Return a target of two layers, a draft of its first one, and a tokenizer without a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        eos_token_id=None,
        bos_token_id=None,
    )
    model = kernels.prepare(LlamaForCausalLM(config), dtype)
    target = CachedLM(model, name="toy target")
    draft = CachedLM(first_layers(target.model, 1), name="toy draft")
    return Pair(name, target, draft, PreTrainedTokenizerFast(tokenizer_object=backend), dtype, Path("toy"))


def first_layers(model: PreTrainedModel, count: int) -> PreTrainedModel:
    """Return a Llama-style model that runs only the first `count` layers of `model`. All weights are shared."""
    short, body = copy.copy(model), copy.copy(model.model)
    short._modules = {**model._modules, "model": body}
    body._modules = {**model.model._modules, "layers": torch.nn.ModuleList(model.model.layers[:count])}
    short.config = body.config = copy.deepcopy(model.config)
    short.config.num_hidden_layers = count
    return short
