"""A trained head as a folder: what it needs to know about the target it was made for, and a check that this is it.

A head reads hidden states. Those of another model, or of the same model trained on, mean something else: drafts would
still be judged, so the text would stay right, but hardly any would be accepted. That is refused by name instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from safetensors.torch import load_file
from torch import nn
from transformers import PreTrainedModel

from specdec_ref import store
from specdec_ref.kernels import fast_linear
from specdec_ref.model import CachedLM

CONFIG, WEIGHTS = "config.json", "model.safetensors"
Shape = TypeVar("Shape")
Head = TypeVar("Head", bound=nn.Module)


@dataclass(frozen=True)
class Owner:
    """The target of a head: its name, and the SHA-256 of its weights' file."""

    name: str
    sha256: str


def weights_of(target_folder: Path) -> str:
    """Return the SHA-256 of a target's weights, as the manifest of its folder has it."""
    files = store.read_manifest(target_folder)["files"]
    if WEIGHTS not in files:
        raise ValueError(f"the model folder {target_folder} has no {WEIGHTS} in its manifest")
    return files[WEIGHTS]["sha256"]


def config_text(kind: str, shape: Any, owner: Owner) -> str:
    """Return the text of `config.json`."""
    return json.dumps({"kind": kind, "shape": asdict(shape), "target": asdict(owner)}, indent=2) + "\n"


def load(
    folder: Path, kind: str, target: CachedLM, target_folder: Path, build: Callable[[Mapping[str, Any]], Head]
) -> Head:
    """Read a head's folder into the module that `build` makes of its shape, on the target's device and in its dtype.

    Raises
    ------
    ValueError
        If a file is missing or damaged, the head is of another kind or for another target, or a tensor has not the
        name and shape that the config promises.
    """
    with store.checking(folder):
        config = read_config(folder, kind, target_folder)
        head = build(config["shape"])
        tensors = load_file(folder / WEIGHTS)
        wanted = {name: tuple(value.shape) for name, value in head.state_dict().items()}
        found = {name: tuple(value.shape) for name, value in tensors.items()}
        if wanted != found:
            differing = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
            raise ValueError(
                f"the tensors of {folder / WEIGHTS} do not fit its config: {differing[0]} has shape "
                f"{found.get(differing[0])}, not {wanted.get(differing[0])}"
            )
        head.load_state_dict(tensors)
    dtype = target.model.dtype if target.model.dtype.is_floating_point else torch.float32
    return fast_linear(head.to(device=target.device, dtype=dtype).eval())


def read_config(folder: Path, kind: str, target_folder: Path) -> dict[str, Any]:
    """Return what `config_text` wrote.

    Raises
    ------
    ValueError
        If it is missing or damaged, or for another kind of head or another target.
    """
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        _ = dict(config["shape"]), str(config["target"]["name"]), str(config["target"]["sha256"])
        found = str(config["kind"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not the config of a {kind} head: {error}") from error
    if found != kind:
        raise ValueError(f"the folder {folder} holds a head of kind {found!r}, not {kind!r}")
    ours, theirs = weights_of(target_folder), config["target"]
    if theirs["sha256"] != ours:
        raise ValueError(
            f"the {kind} head in {folder} was trained on {theirs['name']} with weights {theirs['sha256'][:12]}; "
            f"the target in {target_folder} has weights {ours[:12]}: use the head made for it"
        )
    return config


def input_embedding(target: PreTrainedModel) -> torch.Tensor:
    """Return the target's token embedding, [V, D]; the tensor itself, not a copy."""
    return cast(nn.Embedding, target.get_input_embeddings()).weight.detach()


def output_layer(target: PreTrainedModel) -> torch.Tensor:
    """Return the weight of the target's output layer, [V, D].

    Raises
    ------
    ValueError
        If it is stored in 8 bits, or packed in 16, and nowhere else.
    """
    weight = getattr(target.get_output_embeddings(), "weight", None)  # packed weights have no such tensor
    if isinstance(weight, torch.Tensor) and weight.is_floating_point():
        return weight.detach()
    if not getattr(target.config, "tie_word_embeddings", False):
        raise ValueError("the target's output layer is kept in few bits only: load it in another dtype")
    return input_embedding(target)
