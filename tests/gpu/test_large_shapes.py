"""Rounds at the shapes of real 1B and 8B models, with random bfloat16 weights made on the device itself."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specdec_ref import kernels
from specdec_ref.decode import generate, speculate
from specdec_ref.drafters import ModelDrafter, NgramDrafter
from specdec_ref.model import CachedLM
from specdec_ref.sampling import SamplingSettings

pytestmark = pytest.mark.gpu

GIB = 2**30
SHAPES = {
    "1B": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    "8B": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": False,
    },
}
VOCAB = 128256


def random_lm(shape, device):
    config = LlamaConfig(vocab_size=VOCAB, max_position_embeddings=8192, dtype=torch.bfloat16, **SHAPES[shape])
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        torch.manual_seed(0)
        with device:
            model = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    return CachedLM(kernels.prepare(model, "bfloat16"), name=f"Llama of {shape} shape")


def need(gib):
    free, _ = torch.cuda.mem_get_info()
    if free < gib * GIB:
        pytest.skip(f"{gib} GiB of device memory are needed, {free / GIB:.0f} are free")


@pytest.fixture(scope="module")
def small(cuda):
    need(6)
    return random_lm("1B", cuda)


@pytest.fixture(scope="module")
def large(cuda):
    need(24)
    return random_lm("8B", cuda)


@pytest.mark.parametrize("shape", ["1B", "8B"])
@pytest.mark.parametrize("batch", [1, 4])
def test_rounds_run_and_wait_once(request, only_read_may_wait, shape, batch):
    target = request.getfixturevalue({"1B": "small", "8B": "large"}[shape])
    drafter = ModelDrafter(request.getfixturevalue("small"))
    prompts = [list(range(100, 100 + 7 * (row + 1))) for row in range(batch)]
    how = SamplingSettings(temperature=0.8, top_p=0.9)
    list(speculate(target, drafter, prompts, how, num_draft_tokens=4, max_new_tokens=8))  # loads the kernels
    torch.cuda.synchronize()
    only_read_may_wait.clear()
    torch.cuda.set_sync_debug_mode("error")
    rounds = list(speculate(target, drafter, prompts, how, num_draft_tokens=4, max_new_tokens=8))
    torch.cuda.set_sync_debug_mode("default")
    assert len(only_read_may_wait) == len(rounds)
    for row in range(batch):
        tokens = [token for result in rounds for token in result.tokens[row]]
        assert len(tokens) == 8
        assert all(0 <= token < VOCAB for token in tokens)


def test_the_8b_shape_drafts_ngrams_and_decodes_plainly(large):
    prompt = [5, 6, 7, 8, 5, 6]
    rounds = list(speculate(large, NgramDrafter(), [prompt], num_draft_tokens=3, max_new_tokens=5))
    assert rounds[0].drafts == [[7, 8, 5]]
    assert sum(len(r.tokens[0]) for r in generate(large, [prompt], max_new_tokens=5)) == 5
