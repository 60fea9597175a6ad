"""Both loops on an accelerator: the text of the CPU, one read a round, and no other wait for the device."""

from __future__ import annotations

import pytest
import torch

from specdec_ref.decode import generate, speculate
from specdec_ref.drafters import ModelDrafter, NgramDrafter
from specdec_ref.model import CachedLM
from specdec_ref.rows import Stop
from specdec_ref.sampling import GREEDY, SamplingSettings
from specdec_ref.table import table_lm
from tests.ref.helpers import random_table, texts, tiny_model

pytestmark = pytest.mark.gpu

PROMPTS = [[5], [1, 2, 3, 1, 2, 3, 1, 2], [60, 7, 7], list(range(40))]
SETTINGS = {
    "greedy": GREEDY,
    "sampled": SamplingSettings(),
    "filtered": SamplingSettings(temperature=0.8, top_k=20, top_p=0.9, repetition_penalty=1.2),
    "top-p alone": SamplingSettings(top_p=0.8),
}


def lm(name, seed, device, dtype=torch.float32):
    return CachedLM(tiny_model(name, seed, dtype).to(device), name=name)


def drafter(kind, name, device, dtype=torch.float32):
    return ModelDrafter(lm(name, 1, device, dtype)) if kind == "model" else NgramDrafter(min_ngram=1)


@pytest.mark.parametrize("name", ["llama", "gpt2", "neox"])
@pytest.mark.parametrize("kind", ["model", "n-gram"])
def test_greedy_float32_text_is_that_of_the_cpu(cuda, name, kind):
    """Random weights of this size leave gaps far above float32 rounding; TF32 products would not do."""
    assert not torch.backends.cuda.matmul.allow_tf32
    written = []
    for device in (torch.device("cpu"), cuda):
        target = lm(name, 0, device)
        rounds = speculate(target, drafter(kind, name, device), PROMPTS, GREEDY, num_draft_tokens=4, max_new_tokens=24)
        written.append(texts(list(rounds)))
        written.append(texts(list(generate(target, PROMPTS, GREEDY, max_new_tokens=24))))
    assert written[0] == written[1] == written[2] == written[3]


@pytest.mark.parametrize("how", SETTINGS)
@pytest.mark.parametrize("kind", ["model", "n-gram"])
def test_text_of_table_models_is_that_of_the_cpu_also_when_sampled(cuda, how, kind):
    """Table laws are float64 and uniforms a hash of integers: the same numbers on both devices, up to 1e-15."""
    prompts = [[1], [2, 3, 2, 3, 2], [4, 4]]
    written = []
    for device in (torch.device("cpu"), cuda):
        target, draft = (
            CachedLM(table_lm(random_table(9, seed)).model.to(device), name=f"table {seed}") for seed in (0, 1)
        )
        made = ModelDrafter(draft) if kind == "model" else NgramDrafter(min_ngram=1)
        written.append(texts(list(speculate(target, made, prompts, SETTINGS[how], max_new_tokens=40, seeds=9))))
    assert written[0] == written[1]


@pytest.mark.parametrize("how", SETTINGS)
@pytest.mark.parametrize("kind", ["model", "n-gram"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_round_waits_once_for_any_number_of_rows(cuda, only_read_may_wait, how, kind, name):
    target, made = lm(name, 0, cuda, torch.bfloat16), drafter(kind, name, cuda, torch.bfloat16)
    stop = Stop(token_ids=(3, 9))

    def run(seeds):
        return speculate(
            target, made, PROMPTS, SETTINGS[how], num_draft_tokens=4, max_new_tokens=30, stop=stop, seeds=seeds
        )

    list(run(0))  # the first use of a kernel may wait for it to be loaded
    torch.cuda.synchronize()
    only_read_may_wait.clear()
    torch.cuda.set_sync_debug_mode("error")
    rounds = list(run(0))
    torch.cuda.set_sync_debug_mode("default")
    assert len(only_read_may_wait) == len(rounds)


@pytest.mark.parametrize("how", SETTINGS)
def test_plain_decoding_waits_once_a_token(cuda, only_read_may_wait, how):
    target = lm("llama", 0, cuda, torch.bfloat16)
    list(generate(target, PROMPTS, SETTINGS[how], max_new_tokens=3))
    torch.cuda.synchronize()
    only_read_may_wait.clear()
    torch.cuda.set_sync_debug_mode("error")
    rounds = list(generate(target, PROMPTS, SETTINGS[how], max_new_tokens=12))
    torch.cuda.set_sync_debug_mode("default")
    assert len(only_read_may_wait) == len(rounds) == 12


def test_the_guard_itself_catches_a_hidden_wait(cuda, only_read_may_wait):
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="synchroniz"):
        torch.ones(1, device=cuda).item()
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_self_draft_is_accepted_nearly_always(cuda, dtype):
    """In half precision a block and a single step round differently, so a few near ties may be refused."""
    target = lm("llama", 0, cuda, dtype)
    rounds = list(speculate(target, ModelDrafter(target), [[1, 2, 3]], GREEDY, num_draft_tokens=4, max_new_tokens=200))
    share = sum(r.num_accepted[0] for r in rounds) / sum(r.num_drafted[0] for r in rounds)
    assert share == 1 if dtype == torch.float32 else share > 0.8
