"""`CachedLM` under transformers' own classes: the same logits in one block, step by step and without a cache.

Models that a cache of rows cannot serve are refused by name before any token.
"""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from specdec_ref import kernels
from specdec_ref.model import CachedLM, block_shape, pad
from specdec_ref.table import table_lm
from tests.ref.helpers import CONFIGS, SIZES, position_lm, random_table_lm, spy, tiny_lm, tiny_model, uncached

pytestmark = pytest.mark.usefixtures("one_thread")

FAMILIES = list(CONFIGS)


def close(ours, wanted):
    torch.testing.assert_close(ours, wanted, atol=1e-10, rtol=0)


# --- block = step by step = uncached


@pytest.mark.parametrize("name", FAMILIES)
def test_one_block_equals_single_steps_equals_no_cache_at_all(name):
    base = tiny_lm(name)
    text = torch.randint(0, 64, (24,), generator=torch.Generator().manual_seed(3)).tolist()
    wanted = uncached(base, text)
    block = base.fresh(1).extend(torch.tensor([text]))[0]
    close(block, wanted)
    steps = base.fresh(1)
    close(torch.cat([steps.extend(torch.tensor([[token]]))[0] for token in text]), wanted)


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_any_way_to_cut_a_text_into_blocks_gives_the_same_logits(name, data):
    base = tiny_lm(name)
    text = data.draw(st.lists(st.integers(0, 63), min_size=1, max_size=12))
    lm, parts, left = base.fresh(1), [], list(text)
    while left:
        size = data.draw(st.integers(1, len(left)))
        parts.append(lm.extend(torch.tensor([left[:size]]))[0])
        left = left[size:]
    close(torch.cat(parts), uncached(base, text))


@pytest.mark.parametrize("name", FAMILIES)
def test_ragged_prefill_then_a_block_equals_solo_runs(name):
    base = tiny_lm(name)
    prompts = [[1, 2, 3, 4, 5], [], [7], [9, 8]]
    lm = base.fresh(4)
    lm.prefill(prompts)
    assert lm.cache.lengths.tolist() == [5, 0, 1, 2]
    blocks = [[10, 11], [12, 13], [14, 15], [16, 17]]
    logits = lm.extend(torch.tensor(blocks))
    for row, (prompt, block) in enumerate(zip(prompts, blocks, strict=True)):
        close(logits[row], uncached(base, prompt + block)[-2:])


def test_a_prefill_of_empty_texts_runs_no_pass():
    base = tiny_lm("llama")
    with spy(base) as shapes:
        base.fresh(2).prefill([[], []])
    assert shapes == []


def test_last_only_returns_the_logits_of_the_last_column():
    base = tiny_lm("llama")
    text = [3, 1, 4, 1, 5]
    close(base.fresh(1).extend(torch.tensor([text]), last_only=True)[0], uncached(base, text)[-1:])


def test_a_block_up_to_the_last_position_of_the_context_beside_a_shorter_row():
    """The padding of the longer row points past the last position: no reason to stumble over a table of positions."""
    for name in ("gpt2", "opt", "llama"):
        config = {"n_positions": 16} if name == "gpt2" else {"max_position_embeddings": 16}
        base = tiny_lm(name, **config)
        assert base.max_length == 16
        lm = base.fresh(2)
        long = list(range(15))
        lm.prefill([long, [1]])
        logits = lm.extend(torch.tensor([[15, 0, 0, 0], [2, 3, 4, 5]]), torch.tensor([1, 4]))
        close(logits[0, 0], uncached(base, [*long, 15])[-1])
        close(logits[1], uncached(base, [1, 2, 3, 4, 5])[-4:])


def test_fresh_shares_weights_and_no_text():
    base = tiny_lm("llama")
    one, other = base.fresh(1), base.fresh(2)
    assert one.model is other.model
    one.extend(torch.tensor([[1, 2, 3]]))
    assert other.cache.lengths.tolist() == [0, 0]
    close(other.extend(torch.tensor([[5], [6]]))[1, 0], uncached(base, [6])[-1])


def test_logits_of_padded_vocabulary_entries_are_cut_off():
    model = tiny_model("llama")
    assert CachedLM(model, vocab_size=50).fresh(1).extend(torch.tensor([[1, 2]])).shape == (1, 2, 50)
    for wrong in (0, -1, 65):
        with pytest.raises(ValueError, match=f"vocab_size={wrong} of toy must lie in 1..64"):
            CachedLM(model, vocab_size=wrong, name="toy")


def test_helpers_that_other_tests_trust():
    """The position model and the table models are held to the same rule as the real ones."""
    for base in (position_lm(7), random_table_lm(5)):
        text = [1, 4, 2, 0, 3, 3]
        lm = base.fresh(2)
        lm.prefill([text[:2], text[:4]])
        close(lm.extend(torch.tensor([text[2:4], text[4:]]))[1], uncached(base, text)[-2:])


def test_shapes_of_blocks_and_padding():
    padded, counts = pad([[1, 2, 3], [], [4]], value=-1)
    assert padded.tolist() == [[1, 2, 3], [-1, -1, -1], [4, -1, -1]]
    assert counts.tolist() == [3, 0, 1]
    assert pad([[], []])[0].shape == (2, 0)
    depth, sees = block_shape(1, 6, torch.tensor([[-1, 0, 0, 1, 1, 2]]))
    assert depth.tolist() == [[0, 1, 1, 2, 2, 2]]
    assert [row.nonzero().flatten().tolist() for row in sees[0]] == [
        [0],
        [0, 1],
        [0, 2],
        [0, 1, 3],
        [0, 1, 4],
        [0, 2, 5],
    ]


# --- models that are refused

SMALL = {name: size for name, size in SIZES.items() if name != "initializer_range"}
HEADS = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
REFUSED = {
    "mistral": ("MistralConfig", SMALL | {"sliding_window": 8}, "sliding window of 8 tokens"),
    "qwen2 with a window": (
        "Qwen2Config",
        SMALL | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
        "sliding_attention",
    ),
    "gemma2": ("Gemma2Config", SMALL | {"head_dim": 8, "sliding_window": 8}, "sliding_attention"),
    "gemma3": ("Gemma3TextConfig", SMALL | {"head_dim": 8, "sliding_window": 8}, "sliding_attention"),
    "llama4": (
        "Llama4TextConfig",
        SMALL | {"head_dim": 8, "intermediate_size_mlp": 32, "num_local_experts": 1},
        "chunked_attention",
    ),
    "mamba": (
        "MambaConfig",
        {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
        "attention",
    ),
    "jamba": (
        "JambaConfig",
        SMALL | {"num_experts": 2, "use_mamba_kernels": False, "attn_layer_period": 2, "attn_layer_offset": 1},
        "attention",
    ),
    "recurrent gemma": ("RecurrentGemmaConfig", SMALL | {"head_dim": 8}, "attention"),
    "rwkv": (
        "RwkvConfig",
        {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32},
        "recurrent",
    ),
    "bloom": ("BloomConfig", {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4}, "ALiBi"),
    "mpt": ("MptConfig", {"vocab_size": 64, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}, "ALiBi"),
    "falcon with alibi": ("FalconConfig", HEADS | {"alibi": True}, "ALiBi"),
    "gpt-neo with local layers": (
        "GPTNeoConfig",
        {
            "vocab_size": 64,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
            "max_position_embeddings": 64,
        },
        "local window of 4 tokens",
    ),
    "t5": (
        "T5Config",
        {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 4},
        "position ids",
    ),
    "bert, which looks both ways": ("BertConfig", HEADS | {"intermediate_size": 64}, "differ from uncached"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_rows_cannot_serve_is_refused_by_name(name):
    config_name, sizes, reason = REFUSED[name]
    auto = transformers.AutoModelForSeq2SeqLM if name == "t5" else transformers.AutoModelForCausalLM
    torch.manual_seed(0)
    model = auto.from_config(getattr(transformers, config_name)(**sizes))
    with pytest.raises(ValueError, match=reason) as caught:
        CachedLM(model, name=f"the {name} model")
    assert str(caught.value).startswith(f"model 'the {name} model' cannot be used here: ")


ALSO_SERVED = {
    "mistral without a window": ("MistralConfig", SMALL | {"sliding_window": None}),
    "falcon with rotary positions": ("FalconConfig", HEADS | {"alibi": False}),
    "gpt-neo, all global": (
        "GPTNeoConfig",
        {
            "vocab_size": 64,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global"], 2]],
            "max_position_embeddings": 64,
        },
    ),
    "deepseek: keys and values of different sizes": (
        "DeepseekV3Config",
        SMALL
        | {
            "num_key_value_heads": 4,
            "moe_intermediate_size": 16,
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "q_lora_rank": 16,
            "kv_lora_rank": 8,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 4,
            "v_head_dim": 8,
            "first_k_dense_replace": 1,
        },
    ),
}


@pytest.mark.parametrize("name", ALSO_SERVED)
def test_full_attention_models_of_other_families_are_served(name):
    config_name, sizes = ALSO_SERVED[name]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, config_name)(**sizes)).eval()
    base = CachedLM(model)
    lm = base.fresh(2)
    lm.prefill([[1, 2, 3], [4]])
    logits = lm.extend(torch.tensor([[5, 6], [7, 8]]))
    torch.testing.assert_close(logits[0], uncached(base, [1, 2, 3, 5, 6])[-2:], atol=1e-6, rtol=0)
    torch.testing.assert_close(logits[1], uncached(base, [4, 7, 8])[-2:], atol=1e-6, rtol=0)


# --- the self-test itself: models that accept all arguments and lie


def liar(change):
    """A Llama that treats the arguments of a cached pass as `change` says."""

    class Liar(LlamaForCausalLM):
        def forward(self, input_ids=None, attention_mask=None, position_ids=None, cache=None, use_cache=None, **kwargs):
            arguments = {"attention_mask": attention_mask, "position_ids": position_ids, "cache": cache}
            if cache is not None:
                change(arguments)
            return super().forward(input_ids, use_cache=use_cache, **arguments, **kwargs)

    return Liar


def ignores_positions(arguments):
    positions = arguments["position_ids"]
    arguments["position_ids"] = torch.arange(positions.shape[1]).expand_as(positions)


def counts_positions_for_all_rows_alike(arguments):
    arguments["position_ids"] = arguments["position_ids"][:1].expand_as(arguments["position_ids"])


def numbers_positions_by_index_in_the_block(arguments):
    positions = arguments["position_ids"]
    arguments["position_ids"] = positions[:, :1] + torch.arange(positions.shape[1])


def ignores_the_mask(arguments):
    arguments["attention_mask"] = torch.zeros_like(arguments["attention_mask"])


def sees_all_earlier_tokens_of_the_block(arguments):
    mask = arguments["attention_mask"].clone()
    length = mask.shape[2]
    mask[..., -length:] = torch.full((length, length), torch.finfo(mask.dtype).min).triu(1)
    arguments["attention_mask"] = mask


def forgets_its_cache(arguments):
    arguments["cache"] = copy.copy(arguments["cache"])
    arguments["cache"].keys, arguments["cache"].values = [], []


LIES = [
    ignores_positions,
    counts_positions_for_all_rows_alike,
    numbers_positions_by_index_in_the_block,
    ignores_the_mask,
    sees_all_earlier_tokens_of_the_block,
    forgets_its_cache,
]


@pytest.mark.parametrize("change", LIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_self_test_catches_a_model_that(change, dtype):
    honest = tiny_model("llama", dtype=dtype)
    CachedLM(honest)
    lying = liar(change)(honest.config).to(dtype)
    lying.load_state_dict(honest.state_dict())
    with pytest.raises(ValueError, match="model 'Liar' cannot be used here: cached logits differ"):
        CachedLM(lying)


def test_a_model_that_rounds_its_inputs_may_differ_by_that_rounding(monkeypatch):
    """Which digits round the other way depends on the processor, so the measured difference is set here."""
    monkeypatch.setattr("specdec_ref.model._self_test", lambda lm: 0.006)
    CachedLM(kernels.prepare(tiny_model("llama"), "int8"))
    CachedLM(tiny_model("llama", dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="cached logits differ"):
        CachedLM(tiny_model("llama"))


def test_a_model_that_stops_in_the_self_test_is_refused_by_name():
    def stumbles(arguments):
        raise RuntimeError("no such kernel")

    with pytest.raises(
        ValueError, match="'Liar' cannot be used here: the self-test stopped with RuntimeError: no such"
    ):
        CachedLM(liar(stumbles)(tiny_model("llama").config))


def test_a_model_of_nan_is_refused():
    model = tiny_model("llama")
    model.lm_head.weight.data.fill_(torch.nan)
    with pytest.raises(ValueError, match="model 'broken' cannot be used here"):
        CachedLM(model, name="broken")


@pytest.mark.parametrize("logits", [torch.zeros(4, 4), torch.eye(4).log(), torch.eye(2).roll(1).log()])
def test_tables_with_equal_logits_or_impossible_tokens_pass_the_self_test(logits):
    """0 / 0 and -inf - -inf are no difference."""
    assert table_lm(logits.double()).vocab_size == len(logits)


def test_rotary_positions_that_change_past_their_original_length_are_used_up_to_it():
    """A long row of the batch would otherwise turn the keys of a short one."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    sizes = SMALL | {"original_max_position_embeddings": 16, "pad_token_id": 0, "eos_token_id": 1}
    config = transformers.Phi3Config(**sizes, sliding_window=None, rope_parameters=rope)
    lm = CachedLM(transformers.AutoModelForCausalLM.from_config(config))
    assert lm.max_length == 16
    assert tiny_lm("llama").max_length == 512
