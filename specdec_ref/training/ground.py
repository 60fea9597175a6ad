"""What the recipes of all heads share: target and text, features, the loop, and a folder with a card."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from specdec_ref import store
from specdec_ref.heads import stored
from specdec_ref.heads.stored import Owner
from specdec_ref.training import artefact, corpus, features
from specdec_ref.training.batches import fingerprint
from specdec_ref.training.corpus import Corpus
from specdec_ref.training.features import Features
from specdec_ref.training.held_out import Figures
from specdec_ref.training.loop import Schedule, train
from specdec_ref.training.tell import Tell


@dataclass(frozen=True)
class Place:
    """What a recipe reads and writes.

    Attributes
    ----------
    target, shards : Path
        Folder of the target, and of its text with its laws.
    features, work, out : Path
        Folders of the features (heads share them), of checkpoint and curve, and of the finished head.
    draft : Path or None
        Folder of a draft model, whose tokens per round are put on an EAGLE head's card beside its own.
    command : str
        For the card.
    tell : Tell
        Told of the progress.
    """

    target: Path
    shards: Path
    features: Path
    work: Path
    out: Path
    draft: Path | None
    command: str
    tell: Tell


@dataclass(frozen=True)
class Text:
    """One side of the split, with features."""

    corpus: Corpus
    features: Features


@dataclass(frozen=True)
class Ground:
    """What both recipes stand on: the target, the SHA-256 of its weights, and its text with features."""

    target: PreTrainedModel
    owner: Owner
    learned: Text
    held_out: Text


def prepare(place: Place, *, tokens: int | None, look_tokens: int | None, dtype: str) -> Ground:
    """Load target and text, and see to the features.

    Parameters
    ----------
    tokens, look_tokens : int or None
        How many tokens of answers are learned from, and kept for the held-out figures; None: all.
    dtype : str
        In which the target computes its features.

    Raises
    ------
    ValueError
        If there is no text on either side, it has no laws, or another target wrote it.
    """
    text, recipe = corpus.load(corpus.shard_paths(place.shards))
    store.check_folder(place.target)
    owner = Owner(
        str(store.read_manifest(place.target).get("name", place.target.name)), stored.weights_of(place.target)
    )
    if recipe.get("model_sha256", recipe.get("weights")) != owner.sha256:
        raise ValueError(f"the text in {place.shards} was not written by the target in {place.target}: write it anew")
    sides = [features.first_tokens(text.take(~text.held_out), tokens)]
    sides.append(features.first_tokens(text.take(text.held_out), look_tokens))
    for name, side in zip(("learn from", "hold out"), sides, strict=True):
        if not len(side) or not side.has_laws:
            raise ValueError(f"the text in {place.shards} has no answers with laws to {name}: write more")
    narrow = _load(place.target, getattr(torch, dtype))
    texts = [
        Text(side, features.compute(narrow, side, place.features, weights=owner.sha256, tell=place.tell))
        for side in sides
    ]
    return Ground(_load(place.target, torch.float32), owner, *texts)


def _load(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, use_safetensors=True).eval()


def some(text: Text, count: int) -> Text:
    """Return the first texts of a side; features are found by row, so the first rows keep theirs."""
    few = text.corpus.take(range(min(count, len(text.corpus))))
    return replace(text, corpus=few)


def teach(
    head: nn.Module,
    loss_of: Callable[[int], torch.Tensor],
    look: Callable[[], Figures],
    batches_per_epoch: int,
    plan: Any,
    place: Place,
    ground: Ground,
    seed: int,
) -> None:
    """Run the loop for a head, then round its weights as they will be stored.

    Parameters
    ----------
    head, loss_of, look
        See `train`.
    batches_per_epoch : int
        How many steps read the text once.
    plan : EaglePlan or MedusaPlan
        How long, how fast, how often looked at.
    place, ground, seed
        Of the run.
    """
    steps = max(1, round(plan.epochs * batches_per_epoch))
    schedule = Schedule(
        steps,
        learning_rate=plan.learning_rate,
        warmup_steps=min(100, max(1, steps // 10)),
        weight_decay=plan.weight_decay,
        save_every=plan.save_every,
        look_every=plan.look_every,
    )
    recipe = {
        "shape": asdict(head.shape),  # pyright: ignore[reportArgumentType]
        "plan": asdict(plan),
        "seed": seed,
        "text": fingerprint(ground.learned.corpus),
        "target": ground.owner.sha256,
    }
    name = place.out.name
    train(
        head,
        loss_of,
        schedule,
        place.work,
        recipe,
        look=look,
        advance=lambda done, value: place.tell(name, done, steps, f"loss {value:.3f}"),
    )
    with torch.no_grad():
        for weight in head.parameters():
            weight.copy_(weight.half())


def save(
    head: nn.Module,
    kind: str,
    place: Place,
    ground: Ground,
    *,
    what: str,
    recipe: str,
    seed: int,
    figures: Mapping[str, float | None],
) -> None:
    """Write a head's folder: weights as float16, config, card, curve, and a manifest with checksums."""
    count = sum(weight.numel() for weight in head.parameters())
    learned, held_out = ground.learned.corpus, ground.held_out.corpus
    data = (
        f"{len(learned):,} texts with {len(learned.tokens):,} tokens of answers written by {ground.owner.name}, with "
        f"its 16 likeliest tokens at each, and its last hidden states; {len(held_out):,} other texts with "
        f"{len(held_out.tokens):,} tokens are held out."
    )
    card = _CARD.format(
        name=place.out.name,
        what=what,
        count=count,
        kind=kind,
        target=ground.owner.name,
        data=data,
        recipe=recipe,
        command=place.command,
        seed=seed,
        figures="\n".join(
            f"| {name} | {'not measured' if value is None else f'{value:.3f}'} |" for name, value in figures.items()
        ),
    )
    tensors = {
        name: (value.half() if value.is_floating_point() else value).contiguous()
        for name, value in head.state_dict().items()
    }
    with artefact.replacing(place.out) as folder:
        folder.mkdir(parents=True)
        save_file(tensors, folder / stored.WEIGHTS)
        config = stored.config_text(kind, head.shape, ground.owner)
        (folder / stored.CONFIG).write_text(config, encoding="utf-8", newline="\n")
        (folder / "README.md").write_text(card, encoding="utf-8", newline="\n")
        curve = artefact.short_curve(place.work / "curve.json")
        (folder / "curve.json").write_text(curve, encoding="utf-8", newline="\n")
        about = {"name": place.out.name, "license": "Apache-2.0", "source": place.command}
        store.write_manifest(folder, about)


_CARD = """---
license: apache-2.0
language: en
---
# {name}

{what}

{count:,} parameters, stored as float16. `specdec_ref.heads.load_{kind}` loads them for the target that they were
trained on, and for no other: `config.json` holds the SHA-256 of its weights. The size and SHA-256 of each file here are
in `manifest.json`.

- **Data**: {data}
- **Recipe**: {recipe}
- **Command**: `{command}`
- **Seed**: {seed}
- **Licence**: Apache-2.0. All text is the course's own, or was written by SmolLM2-135M-Instruct (Apache-2.0).

## Held-out figures

Measured with the stored weights, on texts that no training saw.

| figure | value |
|---|---|
{figures}

`alpha` is the share of judged draft tokens that the target accepts, estimated from the target's recorded laws:
`alpha_greedy` on greedy text; `alpha_low` and `alpha_high` bound it at temperature 1, since a record holds the 16
likeliest tokens only. `top-1` and `top-3` tell how often the text's token is the likeliest guess, or among the three
likeliest. Tokens per round are counted along greedy text of the target, where a draft token is accepted exactly if it
is the text's own. `curve.json` holds the training loss (means of 20 steps) and held-out figures along the way.
"""
