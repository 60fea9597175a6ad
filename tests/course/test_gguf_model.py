"""Converting a GGUF file: names, row order, quantised values, config and tokenizer, on a tiny llama."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from specdec_course import gguf_model
from tests.course.tiny_gguf import HEADS, SPECIAL, TEMPLATE, VOCABULARY, tiny_llama, write_gguf

F32 = gguf.GGMLQuantizationType.F32
Q4_1 = gguf.GGMLQuantizationType.Q4_1
Q8_0 = gguf.GGMLQuantizationType.Q8_0


@pytest.fixture(scope="module")
def original() -> LlamaForCausalLM:
    return tiny_llama()


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory, original: LlamaForCausalLM) -> Path:
    folder = tmp_path_factory.mktemp("converted")
    source = tmp_path_factory.mktemp("source") / "tiny.gguf"
    write_gguf(source, original, F32)
    gguf_model.convert(source, folder)
    return folder


def test_an_unquantised_model_comes_back_bit_for_bit(original: LlamaForCausalLM, converted: Path):
    model = AutoModelForCausalLM.from_pretrained(converted)
    state = model.state_dict()
    assert state.keys() == original.state_dict().keys()
    for name, tensor in original.state_dict().items():
        assert state[name].dtype == torch.float32
        assert torch.equal(state[name], tensor), name
    tokens = torch.arange(40)[None]  # [1, 40]
    with torch.inference_mode():
        assert torch.equal(model(tokens).logits, original(tokens).logits)


def test_the_config_keeps_every_number_of_the_original(original: LlamaForCausalLM, converted: Path):
    loaded = AutoModelForCausalLM.from_pretrained(converted).config.to_dict()
    names = (
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim"
    )
    names += (
        " max_position_embeddings rms_norm_eps rope_parameters tie_word_embeddings hidden_act attention_bias mlp_bias"
    )
    for name in names.split():
        assert loaded[name] == original.config.to_dict()[name], name
    assert [loaded[f"{kind}_token_id"] for kind in ("bos", "eos", "pad")] == [1, 2, 2]


@pytest.mark.parametrize("quantisation", [Q4_1, Q8_0])
def test_quantised_weights_become_exactly_scale_times_integer_plus_minimum(
    tmp_path: Path, original: LlamaForCausalLM, quantisation: gguf.GGMLQuantizationType
):
    write_gguf(tmp_path / "tiny.gguf", original, quantisation)
    gguf_model.convert(tmp_path / "tiny.gguf", tmp_path)
    state = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    name = "model.layers.1.mlp.down_proj.weight"
    rows = gguf.quantize(original.state_dict()[name].numpy(), quantisation)
    decode = decode_q4_1 if quantisation == Q4_1 else decode_q8_0
    assert np.array_equal(state[name].numpy(), np.stack([decode(row.tobytes()) for row in rows]))


def decode_q4_1(row: bytes) -> np.ndarray:
    """Blocks of 20 bytes: float16 scale and minimum, then 32 values of 4 bits, all low halves before all high ones."""
    values = []
    for block in (row[i : i + 20] for i in range(0, len(row), 20)):
        scale, minimum = np.frombuffer(block[:4], np.float16).astype(np.float32)
        nibbles = [byte & 15 for byte in block[4:]] + [byte >> 4 for byte in block[4:]]
        values += [scale * np.float32(nibble) + minimum for nibble in nibbles]
    return np.array(values, np.float32)


def decode_q8_0(row: bytes) -> np.ndarray:
    """Blocks of 34 bytes: float16 scale, then 32 signed bytes."""
    values = []
    for block in (row[i : i + 34] for i in range(0, len(row), 34)):
        scale = np.frombuffer(block[:2], np.float16).astype(np.float32)[0]
        values += [scale * np.float32(number) for number in np.frombuffer(block[2:], np.int8)]
    return np.array(values, np.float32)


@pytest.mark.parametrize("heads", HEADS.values())
def test_unpermute_puts_the_two_numbers_that_rotate_together_half_a_head_apart(heads: int):
    size = 16
    # llama.cpp's rows of a head: 0, 8, 1, 9, 2, 10, ... in the order of transformers
    interleaved = [head * size + (i // 2) + (i % 2) * size // 2 for head in range(heads) for i in range(size)]
    rows = np.array(interleaved)[:, None].repeat(3, axis=1)
    assert gguf_model.unpermute(rows, heads)[:, 0].tolist() == list(range(heads * size))


def test_the_folder_loads_without_a_warning(converted: Path, capfd: pytest.CaptureFixture[str]):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AutoModelForCausalLM.from_pretrained(converted)
        AutoTokenizer.from_pretrained(converted)
    output = "".join(capfd.readouterr())
    assert not [line for line in output.splitlines() if line.strip() and "Loading weights" not in line]


def test_the_tokenizer_has_the_vocabulary_special_tokens_and_template_of_the_file(converted: Path):
    tokenizer = AutoTokenizer.from_pretrained(converted)
    assert tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))) == VOCABULARY
    assert [tokenizer.unk_token, tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token] == [
        *SPECIAL,
        SPECIAL[2],
    ]
    assert tokenizer("   ").input_ids == [259, 3 + ord(" ")]
    assert tokenizer("<|im_start|>a<|im_end|>").input_ids == [1, 3 + ord("a"), 2]
    assert tokenizer.decode([1, 3 + ord("a"), 2], skip_special_tokens=True) == "a"
    assert tokenizer.chat_template == TEMPLATE
    assert tokenizer.apply_chat_template([{"content": "a"}])["input_ids"] == [1, 3 + ord("a"), 2]
    assert tokenizer.model_max_length == 128


def test_the_same_file_gives_the_same_bytes(tmp_path: Path, original: LlamaForCausalLM, converted: Path):
    write_gguf(tmp_path / "tiny.gguf", original, F32)
    again = tmp_path / "again"
    again.mkdir()
    gguf_model.convert(tmp_path / "tiny.gguf", again)
    files = {path.name: path.read_bytes() for path in converted.iterdir()}
    assert {path.name: path.read_bytes() for path in again.iterdir()} == files
    assert json.loads(files["config.json"])["dtype"] == "float32"


def test_a_file_with_another_tokenizer_is_refused_by_name(tmp_path: Path, original: LlamaForCausalLM):
    write_gguf(tmp_path / "tiny.gguf", original, F32, pre="llama-bpe")
    with pytest.raises(ValueError, match=r"tiny.gguf has tokenizer.ggml.pre = 'llama-bpe', and only 'smollm' is known"):
        gguf_model.convert(tmp_path / "tiny.gguf", tmp_path)


@pytest.mark.parametrize("name", ["blk.0.attn_q.bias", "blk.x.attn_q.weight", "rope_freqs.weight", "blk.0.ffn.weight"])
def test_a_tensor_of_unknown_name_is_refused_by_name(name: str):
    with pytest.raises(ValueError, match="is not one of a llama model") as caught:
        gguf_model.hf_name(name)
    assert repr(name) in str(caught.value)


def test_progress_counts_every_tensor_once(tmp_path: Path, original: LlamaForCausalLM):
    write_gguf(tmp_path / "tiny.gguf", original, F32)
    counts: list[int] = []
    gguf_model.convert(tmp_path / "tiny.gguf", tmp_path, counts.append)
    assert sum(counts) == 2 + 9 * original.config.num_hidden_layers
