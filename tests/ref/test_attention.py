"""Grouped attention gives what transformers' own attention gives, to every kind of caller."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from specdec_ref.attention import NAME, use_grouped_attention
from specdec_ref.kernels import prepare
from specdec_ref.model import CachedLM


def llama(key_value_heads=2):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=key_value_heads,
        initializer_range=0.3,
        eos_token_id=None,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("key_value_heads", [1, 2, 6])
def test_blocks_of_ragged_rows_give_the_logits_of_stock_attention(key_value_heads):
    stock, grouped = CachedLM(llama(key_value_heads)), llama(key_value_heads)
    use_grouped_attention(grouped)
    assert grouped.config._attn_implementation == NAME
    results = []
    for lm in (stock, CachedLM(grouped)):
        lm = lm.fresh(2)
        lm.prefill([[1, 2, 3, 4, 5], [6, 7]])
        results.append(lm.extend(torch.tensor([[8, 9, 10], [11, 12, 13]])))
    assert torch.allclose(*results, atol=1e-5)


def test_transformers_own_generate_and_uncached_passes_are_unchanged():
    stock, grouped = llama(), llama()
    use_grouped_attention(grouped)
    tokens = torch.tensor([[1, 2, 3, 4]])
    padded, mask = torch.tensor([[0, 0, 1, 2], [3, 4, 5, 6]]), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    with torch.no_grad():
        assert torch.allclose(stock(tokens).logits, grouped(tokens).logits, atol=1e-5)
        both = [model(padded, attention_mask=mask).logits[:, -1] for model in (stock, grouped)]
    assert torch.allclose(*both, atol=1e-5)
    texts = [model.generate(tokens, max_new_tokens=8, do_sample=False, pad_token_id=0) for model in (stock, grouped)]
    assert torch.equal(*texts)


def test_prepare_uses_it_on_a_cpu_and_leaves_other_attentions_alone():
    assert prepare(llama(), "float32").config._attn_implementation == NAME
    eager = llama()
    eager.set_attn_implementation("eager")
    assert prepare(eager, "float32").config._attn_implementation == "eager"
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=32, n_layer=1, n_head=4, n_positions=64))
    CachedLM(prepare(gpt2, "float32"))  # and the self-test still passes
