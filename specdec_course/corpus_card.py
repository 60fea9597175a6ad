"""The data card that `specdec train corpus --export` writes beside the ids."""

from __future__ import annotations

import numpy as np

from specdec_ref.training.corpus import Corpus

_CARD = """---
license: apache-2.0
language: en
---
# Teacher text of SmolLM2-135M-Instruct

{answers:,} answers, {tokens:,} tokens, that the target of this course wrote to prompts of ours. It is made to
train drafts on. The text is the model's: it is often wrong, sometimes nonsense, and tells nothing about the world.

## How it was made

- **Model**: SmolLM2-135M-Instruct (HuggingFaceTB, Apache-2.0), on a CPU,
  {arithmetic},
  dequantised from a Q4_1 GGUF file (4-bit weights). These are not the weights that HuggingFaceTB published: the text
  shows what the dequantised model says. SHA-256 of its `model.safetensors`: `{model_sha256}`.
- **Prompts**: composed of templates and words written for this course (`specdec_ref/training/prompt_parts.py`), put
  into the model's chat template with its default system line. No outside text is in them.
- **Sampling**: a third of the prompts each is answered greedily, at temperature 0.7 and at temperature 1, with no other
  filter. The temperature, the seed of the luck and the split are functions of the prompt alone. An answer ends with the
  end-of-text token, which is kept, or after {max_new_tokens} tokens.
- **Command**: {command}.
  It can be stopped and started again. The same command gives the same text up to the rounding of {dtype}:
  another processor or another batch may turn a token, and with it the rest of that answer.

## What is in it

| file | answers | tokens of answers | tokens of prompts |
|---|---|---|---|
| `train.npz` | {train_row} |
| `held-out.npz` (5 % of the prompts: no training may see them) | {held_out_row} |

| kind | answers | tokens | mean length |
|---|---|---|---|
{kinds}

| temperature | answers | tokens | shorter than the cap |
|---|---|---|---|
{temperatures}

Prompts that differ in a few words may be on different sides of the split: held-out figures tell how a draft does on new
prompts of the same kinds, not on other kinds of text.

Each file holds arrays of NumPy: `prompt_ids`, `kinds`, `temperatures`, `held_out`, `prompt_lengths`, `lengths` (one
entry for each answer), and the token ids of all prompts (`prompt_tokens`) and all answers (`tokens`) one after another,
cut by those lengths. `specdec_ref.training.corpus.load` reads them.

## The laws

The work also records, before each token, the 16 likeliest tokens of the target and their log-probabilities (at
temperature 1). That is {laws_mb:.0f} MB and stays in the user's cache. Whoever has only this folder gets them back,
without writing any text anew, with `specdec train corpus --rebuild`.
"""


def card(train: Corpus, held_out: Corpus, recipe: dict[str, object], seed: int) -> str:
    """Return the card, in Markdown, for the two halves of a corpus."""
    both = [train, held_out]
    kinds = np.concatenate([half.kinds for half in both])
    temperatures = np.concatenate([half.temperatures for half in both])
    lengths = np.concatenate([half.lengths for half in both])
    tokens, cap = int(lengths.sum()), recipe["max_new_tokens"]
    return _CARD.format(
        answers=len(lengths),
        tokens=tokens,
        command=_command(tokens // 10_000 * 10_000, str(recipe["dtype"]), seed),
        laws_mb=tokens * 64 / 1e6,
        kinds="\n".join(
            f"| {kind} | {len(found):,} | {found.sum():,} | {found.mean():.0f} |"
            for kind in np.unique(kinds)
            for found in [lengths[kinds == kind]]
        ),
        temperatures="\n".join(
            f"| {value:.1f} | {len(found):,} | {found.sum():,} | {(found < cap).mean():.0%} |"
            for value in np.unique(temperatures)
            for found in [lengths[temperatures == value]]
        ),
        train_row=_row(train),
        held_out_row=_row(held_out),
        model_sha256=recipe["model_sha256"],
        dtype=recipe["dtype"],
        arithmetic={
            "float32": "float32",
            "bfloat16": "bfloat16 (the output layer in float32)",
            "bfloat16 and float32": "partly in bfloat16 (the output layer in float32) and partly in float32",
        }[str(recipe["dtype"])],
        max_new_tokens=cap,
    )


def _command(goal: int, dtype: str, seed: int) -> str:
    options = f" --seed {seed}" if seed else ""
    if dtype == "bfloat16":
        options += " --dtype bfloat16"
    if dtype != "bfloat16 and float32":
        return f"`specdec train corpus --tokens {goal}{options}`, then `specdec train corpus --export{options}`"
    first, more = f"specdec train corpus{options} --dtype bfloat16", f"specdec train corpus{options} --extend"
    return f"`{first}` and its `--export`; later `{more} --tokens {goal}` and `{more} --export`"


def _row(half: Corpus) -> str:
    return f"{len(half):,} | {len(half.tokens):,} | {len(half.prompt_tokens):,}"
