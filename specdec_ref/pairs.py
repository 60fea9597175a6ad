"""A target, a draft and the tokenizer they share, loaded by name.

load_pair("smol")                  SmolLM2-135M-Instruct from the user's cache folder, and models/smol-draft
load_pair("tiny")                  models/tiny-target and models/tiny-draft: loads in a second, writes little stories
load_pair("FOLDER+FOLDER")         any two local folders with full-attention causal LMs of transformers
load_pair("OWNER/NAME+OWNER/NAME") the same from the Hugging Face hub, where there is a network
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlparse

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from specdec_ref import kernels, store
from specdec_ref.device import best_device
from specdec_ref.drafters import registry
from specdec_ref.drafters.base import Drafter
from specdec_ref.model import CachedLM

OURS = {"smol": ("SmolLM2-135M-Instruct", "smol-draft"), "tiny": ("tiny-target", "tiny-draft")}
DTYPES = ("float32", "bfloat16", "float16", "int8")


@dataclass(frozen=True)
class Pair:
    """A target and what drafts for it.

    Attributes
    ----------
    name : str
        As given to `load_pair`.
    target, draft : CachedLM
        The large model and the small one.
    tokenizer : PreTrainedTokenizerBase
        Shared by both.
    dtype : str
        Of the target.
    target_folder : Path
        Where the target was loaded from: a trained head says which weights it was made for.
    """

    name: str
    target: CachedLM
    draft: CachedLM
    tokenizer: PreTrainedTokenizerBase
    dtype: str
    target_folder: Path

    def drafter(self, name: str = "model") -> Drafter:
        """Return the drafter called `name`; see `specdec_ref.drafters.registry`."""
        return registry.make(name, self)

    def head_folder(self, kind: str) -> Path:
        """Return the folder of the trained head of a kind, "eagle" or "medusa", for this target.

        Raises
        ------
        ValueError
            If the course has none.
        """
        folder = store.trained_folder(f"{self.name}-{kind}")
        if self.name not in OURS or not folder.is_dir():
            raise ValueError(f"pair={self.name!r} has no {kind} head in {folder.parent}: train one first")
        return folder

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The ids that end a text, as the target's generation config names them."""
        ids = self.target.model.generation_config.eos_token_id
        return tuple(ids) if isinstance(ids, list) else () if ids is None else (ids,)


def load_pair(name: str = "smol", *, dtype: str = "float32", device: str | None = None) -> Pair:
    """Load a pair by name.

    Parameters
    ----------
    name : str
        "smol", "tiny", or "TARGET+DRAFT" with two local folders or hub names.
    dtype : str
        "float32", "bfloat16" or "float16"; or "int8" (weights in 8 bits, CPU only), which is another target.
    device : str or None
        "cpu", "cuda", "mps", or None for the best one present.

    Raises
    ------
    ValueError
        If the name, dtype or device is unknown, a model is absent, a file is damaged, the tokenizers differ, or a model
        cannot run on a `RowCache`.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r} is not known; known are {', '.join(DTYPES)}")
    place = best_device(device)
    if name in OURS:
        return _load_ours(name, dtype, place)
    target_name, draft_name = _split(name)
    target_folder, draft_folder = _find(target_name), _find(draft_name)
    tokenizer = _load_tokenizer(target_folder)
    _refuse_other_tokenizer(tokenizer, _load_tokenizer(draft_folder), name)
    target = _as_lm(_load_model(target_folder, dtype, place), dtype, place, tokenizer, target_name)
    draft = _as_lm(_load_model(draft_folder, dtype, place), dtype, place, tokenizer, draft_name)
    return Pair(name, target, draft, tokenizer, dtype, Path(target_folder))


def _load_ours(name: str, dtype: str, place: torch.device) -> Pair:
    """Load a pair of the course. Checksums are compared while the weights are read."""
    target_name, draft_name = OURS[name]
    target_folder = store.smol_folder() if name == "smol" else store.trained_folder(target_name)
    draft_folder = store.trained_folder(draft_name)
    # A draft may be rounded as one likes: q is then what the rounded draft says, and the text stays the target's. Three
    # quarters of smol-draft is its output layer, so with 8 bits a draft step takes not much more than half the time.
    draft_dtype = "int8" if name == "smol" and place.type == "cpu" else dtype
    with store.checking(target_folder), store.checking(draft_folder):
        tokenizer = _load_tokenizer(target_folder)
        target = _as_lm(_load_model(target_folder, dtype, place), dtype, place, tokenizer, target_name)
        draft_model = _load_model(draft_folder, draft_dtype, place)
        draft = _as_lm(draft_model, draft_dtype, place, tokenizer, draft_name)
    return Pair(name, target, draft, tokenizer, dtype, target_folder)


def load_trained(name: str, place: torch.device) -> tuple[CachedLM, PreTrainedTokenizerBase]:
    """Load one of the course's own models and its tokenizer, for a drafter that needs more than a pair has.

    Raises
    ------
    ValueError
        If it is absent or damaged.
    """
    folder = store.trained_folder(name)
    with store.checking(folder):
        tokenizer = _load_tokenizer(folder)
        return _as_lm(_load_model(folder, "float32", place), "float32", place, tokenizer, name), tokenizer


def _as_lm(
    model: PreTrainedModel, dtype: str, place: torch.device, tokenizer: PreTrainedTokenizerBase, name: str
) -> CachedLM:
    model = kernels.prepare(cast(PreTrainedModel, cast(torch.nn.Module, model).to(place)), dtype)
    vocab_size = min(len(tokenizer), model.config.get_text_config().vocab_size)
    return CachedLM(model, vocab_size=vocab_size, name=name)


def _load_model(folder: str | Path, dtype: str, place: torch.device) -> PreTrainedModel:
    # `kernels.prepare` rounds to 8 bits, and on a CPU to float16, by itself; rounding once loses least.
    rounded_later = dtype == "int8" or (dtype == "float16" and place.type == "cpu")
    precision = torch.float32 if rounded_later else getattr(torch, dtype)
    with _quiet(), _naming(folder):
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=precision, use_safetensors=True, local_files_only=True
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide transformers' bar for a load of a second: in a notebook it would be stored as an error message."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _load_tokenizer(folder: str | Path) -> PreTrainedTokenizerBase:
    with _naming(folder):
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)


@contextmanager
def _naming(folder: str | Path) -> Iterator[None]:
    """Turn whatever a damaged or incomplete folder makes the loaders raise into one sentence that names it."""
    try:
        yield
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ValueError(f"the model folder {str(folder)!r} cannot be loaded: {reason}") from error


def _split(name: str) -> tuple[str, str]:
    """Split "TARGET+DRAFT". A folder's own name may hold a +, so a split into two real folders is preferred."""
    cuts = [(name[:i], name[i + 1 :]) for i, letter in enumerate(name) if letter == "+" and 0 < i < len(name) - 1]
    for target, draft in cuts:
        if Path(target).is_dir() and Path(draft).is_dir():
            return target, draft
    if not cuts:
        known = ", ".join(f'"{ours}"' for ours in OURS)
        raise ValueError(f'pair={name!r} is not known: it is {known}, or "TARGET+DRAFT" with two folders or hub names')
    return cuts[0]


def _find(name: str) -> str:
    """Return the local folder of a model, downloading it from the hub only if that can be reached.

    Raises
    ------
    ValueError
        If the model is neither here nor to be had. At once: no retries.
    """
    if Path(name).is_dir():
        return name
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    wanted: dict[str, Any] = {"repo_id": name, "allow_patterns": ["*.safetensors", "*.json", "*.txt", "*.model"]}
    try:
        return snapshot_download(**wanted, local_files_only=True)
    except (OSError, HFValidationError):
        pass  # not here yet
    if not _hub_answers():
        raise ValueError(f"model {name!r} is no folder here, not in the hub's cache, and the hub cannot be reached")
    try:
        return snapshot_download(**wanted)
    except Exception as error:  # the hub client raises many kinds; all mean that the model is not to be had
        raise ValueError(f"model {name!r} cannot be had from the hub: {error}") from error


def _hub_answers() -> bool:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or os.environ.get("TRANSFORMERS_OFFLINE") == "1":
        return False
    address = urlparse(constants.ENDPOINT)
    try:
        socket.create_connection((address.hostname or "", address.port or 443), timeout=3).close()
    except OSError:
        return False
    return True


def _refuse_other_tokenizer(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase, name: str) -> None:
    ours, theirs = target.get_vocab(), draft.get_vocab()
    differing = next((token for token, index in ours.items() if theirs.get(token) != index), None)
    if differing is not None or len(ours) != len(theirs):
        example = f"; {differing!r} is {ours[differing]} and {theirs.get(differing)}" if differing is not None else ""
        raise ValueError(
            f"pair={name!r}: the tokenizers differ ({len(ours)} and {len(theirs)} tokens{example}), "
            "and token ids are compared, so draft and target must share one"
        )
