"""The recipe of layer skipping, from the target to a folder with a card. See `specdec_ref.training.layer_skip`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM

from specdec_ref import store
from specdec_ref.decode import speculate
from specdec_ref.drafters.layer_skip import LayerChoice, LayerSkipDrafter
from specdec_ref.heads import stored
from specdec_ref.heads.stored import Owner
from specdec_ref.measure import Run
from specdec_ref.model import CachedLM
from specdec_ref.rows import Stop
from specdec_ref.sampling import SamplingSettings
from specdec_ref.training import artefact
from specdec_ref.training.held_out import Figures
from specdec_ref.training.layer_skip import (
    Judge,
    SkipPlan,
    Texts,
    answer,
    invent_openings,
    open_journal,
    recipe_of,
    search,
)
from specdec_ref.training.tell import Tell

Prompts = Sequence[Sequence[int]]


def run(
    target_folder: Path,
    plan: SkipPlan,
    *,
    prompts: tuple[Prompts, Prompts] | None,
    count: int,
    seed: int,
    work: Path,
    out: Path,
    command: str,
    tell: Tell,
) -> Figures:
    """Search, measure and save; a search that was stopped goes on.

    Parameters
    ----------
    target_folder : Path
        Of the target, with its manifest.
    plan : SkipPlan
        How to search.
    prompts : two sequences of prompts, or None
        To search on and to measure on. None: the target invents `count` openings for each.
    count, seed : int
        How many openings, and of which luck.
    work, out : Path
        Folders of the journal, and of what is found.
    command, tell
        For the card; told of the progress.

    Returns
    -------
    dict: what the search promises, and what decoding of the other prompts gives.
    """
    store.check_folder(target_folder)
    name = str(store.read_manifest(target_folder).get("name", target_folder.name))
    owner = Owner(name, stored.weights_of(target_folder))
    model = AutoModelForCausalLM.from_pretrained(target_folder, dtype=torch.float32, use_safetensors=True)
    target = CachedLM(model, name=name)
    ends = model.generation_config.eos_token_id
    stop = Stop(tuple(ends) if isinstance(ends, list) else () if ends is None else (ends,))
    if prompts is None:
        begin = cast(int, model.config.bos_token_id)
        prompts = (
            invent_openings(target, begin, count, seed),
            invent_openings(target, begin, count, seed + count),
        )
    tell("answers", 0, 1, "the target writes what the search reads")
    texts = answer(target, prompts[0], plan.tokens, stop)
    tell("answers", 1, 1, "")
    number = int(model.config.num_hidden_layers)
    journal, keep = open_journal(work, recipe_of(plan, texts, owner.sha256, seed))

    def kept_safe(journal: dict[str, dict[str, Any]]) -> None:
        keep(journal)
        best = max(one["speedup"] for one in journal.values())
        tell("choices", len(journal), number * (number + 1) // 2 - 1, f"best {best:.3f}x")

    judge = Judge(target, texts, plan)
    choice, path = search(judge, number, plan, journal, kept_safe)
    best = max(path, key=lambda one: one["speedup"])
    figures: Figures = {
        "share of the weights that a draft step reads": judge.share(choice.kept),
        "tokens per round, promised": best["tokens_per_round"],
        "speedup, promised": best["speedup"],
    }
    figures |= _decode(target, choice, best["num_draft_tokens"], prompts[1], plan, stop)
    _save(out, owner, choice, path, _card(out.name, owner, texts, plan, choice, best, command, seed, figures))
    return figures


def _decode(
    target: CachedLM, choice: LayerChoice, num_draft_tokens: int, prompts: Prompts, plan: SkipPlan, stop: Stop
) -> Figures:
    figures: Figures = {}
    for name, temperature in (("greedy", 0.0), ("T=1", 1.0)):
        done = Run()
        done.rounds += speculate(
            target,
            LayerSkipDrafter(choice),
            prompts,
            SamplingSettings(temperature),
            num_draft_tokens=num_draft_tokens,
            max_new_tokens=plan.tokens,
            stop=stop,
        )
        figures[f"alpha, decoding, {name}"] = done.alpha
        figures[f"tokens per round, decoding, {name}"] = done.emitted_per_round
    return figures


def _save(out: Path, owner: Owner, choice: LayerChoice, path: list[dict[str, Any]], card: str) -> None:
    with artefact.replacing(out) as folder:
        folder.mkdir(parents=True)
        texts = {
            stored.CONFIG: stored.config_text("layer-skip", choice, owner),
            "README.md": card,
            "curve.json": json.dumps({"choices": path}) + "\n",
        }
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8", newline="\n")
        store.write_manifest(folder, {"name": out.name, "license": "Apache-2.0"})


def _card(
    name: str,
    owner: Owner,
    texts: Texts,
    plan: SkipPlan,
    choice: LayerChoice,
    best: dict[str, Any],
    command: str,
    seed: int,
    figures: Figures,
) -> str:
    table = "\n".join(
        f"| {what} | {'not measured' if value is None else f'{value:.3f}'} |" for what, value in figures.items()
    )
    number = best["num_draft_tokens"]
    what = (
        f"{len(choice.kept)} layers of {owner.name} that draft for the whole of it: "
        f"{', '.join(map(str, choice.kept))}. A draft has up to {number} token{'s' * (number > 1)} and ends with a "
        f"token whose law gave none of them {choice.stop_below:g} or more. There are no weights here; `config.json` "
        "holds the choice, and the SHA-256 of the weights it was made for."
    )
    recipe = (
        "- **Recipe**: greedy removal of layers; the speedup that is promised takes "
        f"{plan.verify_cost:g} target steps for a verification, and for a draft step the share of the weights that "
        f"it reads; {plan}."
    )
    return f"""---
license: apache-2.0
language: en
---
# {name}

{fill(what, 120, break_on_hyphens=False)}

- **Data**: {sum(len(text) for _, text in texts):,} tokens of {len(texts)} greedy answers that the target wrote.
{fill(recipe, 120, subsequent_indent="  ", break_on_hyphens=False)}
- **Command**: `{command}`
- **Seed**: {seed}
- **Licence**: Apache-2.0.

## Figures

| figure | value |
|---|---|
{table}

What is promised was estimated on the texts of the search; what was decoded, on other prompts. `curve.json` holds the
best choice of each size that was tried. A promise below 1 says that drafting so slows this target down.
"""
