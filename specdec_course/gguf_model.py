"""Turn a llama-architecture GGUF file into a folder that transformers loads without GGUF code.

A GGUF file holds quantised weights, the hyperparameters and the tokenizer in one file. Three steps, one function each:
`weights` dequantises the tensors to float32 (Q4_1 and Q8_0 values are `scale * integer (+ minimum)`, most of which
float16 cannot hold), `config` reads the hyperparameters, `tokenizer` rebuilds the byte-level BPE.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGUFReader
    from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

Fields = dict[str, Any]

_OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL_TOKEN = 3  # the token type GGUF gives to special tokens


def convert(gguf_file: Path, folder: Path, advance: Callable[[int], object] = lambda count: None) -> None:
    """Write config, tokenizer, chat template and float32 safetensors of `gguf_file` into `folder`.

    `advance` is told the number of tensors done since the last call, for a progress bar.

    Raises
    ------
    ValueError
        Where the file is not a llama-architecture model with the SmolLM tokenizer, or holds a tensor of unknown name.
    """
    from gguf import GGUFReader
    from safetensors.numpy import save_file

    reader = GGUFReader(gguf_file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    for key, wanted in {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
    }.items():
        if fields.get(key) != wanted:
            raise ValueError(
                f"gguf_file {gguf_file} has {key} = {fields.get(key)!r}, and only {wanted!r} is known here"
            )
    tensors = weights(reader, fields, advance)
    model_config = config(fields, tied="lm_head.weight" not in tensors)
    model_config.save_pretrained(folder)
    generation_config(model_config).save_pretrained(folder)
    tokenizer(fields).save_pretrained(folder)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # it is written 0600, and a class may share one folder


def hf_name(name: str) -> str:
    """Translate a tensor name: `blk.3.attn_q.weight` becomes `model.layers.3.self_attn.q_proj.weight`."""
    if name in _OUTER_NAMES:
        return _OUTER_NAMES[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if match is None or match[2] not in _LAYER_NAMES:
        raise ValueError(f"GGUF tensor name {name!r} is not one of a llama model")
    return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.weight"


def unpermute(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Undo the row order that GGUF gives the query and key projections, [heads * head_size, hidden].

    llama.cpp rotates neighbouring pairs (0, 1), (2, 3), ... of a head; transformers rotates (0, h/2), (1, h/2 + 1), ...
    so the rows of each head were interleaved when the GGUF was written.
    """
    half = rows.shape[0] // num_heads // 2
    return rows.reshape(num_heads, half, 2, -1).swapaxes(1, 2).reshape(rows.shape)


def weights(reader: GGUFReader, fields: Fields, advance: Callable[[int], object]) -> dict[str, np.ndarray]:
    """Dequantise all tensors to float32, under their transformers names, [out, in] as `nn.Linear` has them."""
    import gguf
    import numpy as np

    heads = {
        ".attn_q.weight": fields["llama.attention.head_count"],
        ".attn_k.weight": fields["llama.attention.head_count_kv"],
    }
    tensors: dict[str, np.ndarray] = {}
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        num_heads = next((count for suffix, count in heads.items() if tensor.name.endswith(suffix)), None)
        if num_heads is not None:
            values = unpermute(values, num_heads)
        tensors[hf_name(tensor.name)] = np.ascontiguousarray(values, dtype=np.float32)
        advance(1)
    return tensors


def config(fields: Fields, *, tied: bool) -> LlamaConfig:
    """Read the hyperparameters; `tied` says that the LM head is the embedding matrix."""
    from transformers import LlamaConfig

    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=fields["llama.attention.head_count"],
        num_key_value_heads=fields["llama.attention.head_count_kv"],
        max_position_embeddings=fields["llama.context_length"],
        # GGUF stores these two in float32: 9.9999997e-06 was 1e-5.
        rms_norm_eps=float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        rope_parameters={"rope_type": "default", "rope_theta": float(f"{fields['llama.rope.freq_base']:.6g}")},
        bos_token_id=fields["tokenizer.ggml.bos_token_id"],
        eos_token_id=fields["tokenizer.ggml.eos_token_id"],
        pad_token_id=fields["tokenizer.ggml.padding_token_id"],
        tie_word_embeddings=tied,
        dtype="float32",
    )


def generation_config(model_config: LlamaConfig) -> GenerationConfig:
    """Give `generate` the start, end and padding ids; no sampling settings, so greedy by default."""
    from transformers import GenerationConfig

    return GenerationConfig(
        bos_token_id=model_config.bos_token_id,
        eos_token_id=model_config.eos_token_id,
        pad_token_id=model_config.pad_token_id,
    )


def tokenizer(fields: Fields) -> PreTrainedTokenizerFast:
    """Rebuild the byte-level BPE tokenizer of SmolLM2: every digit alone, then the GPT-2 split, then merges by rank."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    backend = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    types: list[int] = fields["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL_TOKEN]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    # The plain "fast" class keeps this pipeline as it is; a GPT-2 class would replace it by GPT-2's own.
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=tokens[fields["tokenizer.ggml.bos_token_id"]],
        eos_token=tokens[fields["tokenizer.ggml.eos_token_id"]],
        unk_token=tokens[fields["tokenizer.ggml.unknown_token_id"]],
        pad_token=tokens[fields["tokenizer.ggml.padding_token_id"]],
        chat_template=fields["tokenizer.chat_template"],
        model_max_length=fields["llama.context_length"],
        clean_up_tokenization_spaces=False,
    )
