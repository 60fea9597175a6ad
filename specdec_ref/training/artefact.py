"""A trained student as a folder that transformers can load: weights, tokenizer, card, checksums."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from specdec_ref import store
from specdec_ref.model import CachedLM

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama: width, layers, attention heads, width of the MLP, and the longest text it is used for."""

    width: int
    layers: int
    heads: int
    mlp: int
    context: int = 2048


@dataclass(frozen=True)
class Card:
    """What a model card says. Each value is Markdown.

    Attributes
    ----------
    what, data, recipe, command : str
        What the model is for, what it learned from, how, and what was typed.
    seed : int
        Of weights, order and luck.
    figures : mapping
        Held-out figures, by name.
    """

    what: str
    data: str
    recipe: str
    command: str
    seed: int
    figures: Mapping[str, float | None]

    def text(self, name: str, num_parameters: int) -> str:
        """Return the card."""
        figures = "\n".join(
            f"| {what} | {'not measured' if value is None else f'{value:.3f}'} |"
            for what, value in self.figures.items()
        )
        return f"""---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
language: en
---
# {name}

{self.what}

{num_parameters:,} parameters, stored as float16. `AutoModelForCausalLM.from_pretrained` loads them; the size and
SHA-256 of each file are in `manifest.json`.

- **Data**: {self.data}
- **Recipe**: {self.recipe}
- **Command**: `{self.command}`
- **Seed**: {self.seed}
- **Licence**: Apache-2.0. All text is the course's own, or was written by SmolLM2-135M-Instruct (Apache-2.0).

## Held-out figures

Measured with the stored weights, on prompts that no training saw.

| figure | value |
|---|---|
{figures}

`alpha` is the share of judged draft tokens that the target accepts. With "decoding" it was counted in real speculative
decoding, otherwise estimated from the target's recorded laws: `alpha_greedy` on greedy text; `alpha_low` and
`alpha_high` bound it at temperature 1, since a record holds the 16 likeliest tokens only. `cross_entropy` is in nats
per token. `curve.json` holds the training loss (means of 20 steps) and the held-out estimates along the way.
"""


def new_llama(tokenizer: PreTrainedTokenizerBase, vocab_size: int, shape: Shape, seed: int) -> LlamaForCausalLM:
    """Return an untrained Llama with tied embeddings; the tokenizer names the special tokens."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=shape.width,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.context,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=cast(int, tokenizer.bos_token_id),
        eos_token_id=cast(int, tokenizer.eos_token_id),
        pad_token_id=cast(int, tokenizer.pad_token_id),
    )
    with torch.random.fork_rng(devices=[]):  # the caller's luck is left alone
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def round_to_half(model: LlamaForCausalLM, name: str) -> CachedLM:
    """Round the weights as they will be stored, and return the model in float32, ready to decode."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.half())
    return CachedLM(model, name=name)


def save(model: LlamaForCausalLM, tokenizer_folder: Path, folder: Path, card: Card, curve: Path) -> None:
    """Write the folder beside its place, then put it there, so that a folder is the old one or the new one.

    Parameters
    ----------
    model : LlamaForCausalLM
        Stored as float16; not changed.
    tokenizer_folder : Path
        Where the tokenizer's files are copied from.
    folder : Path
        Its last part is the model's name.
    card : Card
        Becomes README.md.
    curve : Path
        The run's `curve.json`, kept with the model.
    """
    with replacing(folder) as unfinished:
        _write(model, tokenizer_folder, unfinished, folder.name, card, curve)


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Yield a path to write a folder to, beside its place; once the body is through, it takes the old one's place."""
    unfinished, old = (folder.with_name(f".{folder.name}.{state}") for state in ("unfinished", "old"))
    for left_over in (unfinished, old):
        shutil.rmtree(left_over, ignore_errors=True)
    yield unfinished
    if folder.exists():
        folder.replace(old)
    unfinished.replace(folder)
    shutil.rmtree(old, ignore_errors=True)


def _write(
    model: LlamaForCausalLM, tokenizer_folder: Path, unfinished: Path, name: str, card: Card, curve: Path
) -> None:
    stored = LlamaForCausalLM(model.config).half()
    stored.load_state_dict(model.state_dict())
    stored.generation_config = model.generation_config
    stored.save_pretrained(unfinished)
    for file in TOKENIZER_FILES:
        if (tokenizer_folder / file).is_file():
            shutil.copyfile(tokenizer_folder / file, unfinished / file)
    count = sum(weight.numel() for weight in model.parameters())
    (unfinished / "README.md").write_text(card.text(name, count), encoding="utf-8", newline="\n")
    (unfinished / "curve.json").write_text(short_curve(curve), encoding="utf-8", newline="\n")
    store.write_manifest(unfinished, {"name": name, "license": "Apache-2.0", "source": card.command})


def short_curve(curve: Path) -> str:
    """Return a curve with losses averaged over 20 steps each and rounded: small enough for a repository."""
    record: dict[str, Any] = json.loads(curve.read_text(encoding="utf-8"))
    losses = record["losses"]
    pieces = [losses[start : start + 20] for start in range(0, len(losses), 20)]
    record["losses"] = [round(sum(piece) / len(piece), 4) for piece in pieces]
    record["steps_per_loss"] = 20
    return json.dumps(record) + "\n"


def load(folder: Path) -> CachedLM:
    """Check a folder's checksums and return its model in float32, on the CPU.

    Raises
    ------
    ValueError
        If a file is missing or damaged.
    """
    with store.checking(folder):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, use_safetensors=True)
    return CachedLM(model, name=folder.name)
