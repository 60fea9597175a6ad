"""Who takes part: a system turns prompts into a `Run`, at a draft length that it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from specdec_course.benchmark.options import Options
from specdec_ref.decode import generate, speculate
from specdec_ref.drafters import Drafter
from specdec_ref.drafters.adaptive import AdaptiveDrafter
from specdec_ref.kernels import FastLinear, HalfLinear
from specdec_ref.measure import Run, timed
from specdec_ref.model import CachedLM
from specdec_ref.packed import operators_work
from specdec_ref.pairs import Pair
from specdec_ref.rows import Round, Stop

# What a reader calls a drafter, where that is not its name.
WORDS = {"model": "draft model", "ngram": "n-gram", "eagle": "EAGLE", "eagle-tree": "EAGLE tree", "medusa": "Medusa"}
Prompts = Sequence[Sequence[int]]
Decode = Callable[[Prompts, int, int], Run]  # prompts, draft length (0: none), max_new_tokens


@dataclass(frozen=True, eq=False)
class System:
    """One way of decoding.

    Attributes
    ----------
    name : str
        Unique in a benchmark.
    engine : str
        "specdec", "transformers" or "llama.cpp".
    method : str
        "plain", or who drafts, as `specdec_ref.drafters.registry` names it.
    layers : str
        Which linear layers: "fast" (this course's), "stock" (those of torch), or a peer's own.
    batch : int
        Texts decoded together.
    candidates : tuple of int
        Draft lengths to choose from; (0,) where nothing drafts.
    decode : callable
        Decodes at most `batch` prompts.
    weights : mapping of str to int
        Bytes of weights, by whose they are; "packed" are second copies, at most.
    adaptive : bool
        The draft length is only a cap: the system chooses while it decodes.
    """

    name: str
    engine: str
    method: str
    layers: str
    dtype: str
    batch: int
    candidates: tuple[int, ...]
    decode: Decode
    weights: dict[str, int] = field(default_factory=dict)
    adaptive: bool = False


@dataclass(frozen=True)
class Times:
    """Single steps of our own loops for one batch size, measured on the tuning prompts. Seconds."""

    batch: int
    context: int
    passes: dict[int, float]
    draft_step: dict[str, float]  # by drafter; 0 for one that never proposed

    def adapt(self, drafter: Drafter, name: str, longest: int) -> AdaptiveDrafter:
        """Wrap a drafter so that it chooses its draft length by these times, up to `longest`."""
        return AdaptiveDrafter(drafter, self.passes, self.draft_step[name], max_draft_tokens=longest)


def our_systems(pair: Pair, options: Options, times: Times, label: str = "") -> list[System]:
    """Return our plain loop and our speculative one, for each drafter, at the batch size of `times`."""
    target = pair.target
    batch = f", batch {times.batch}" if options.batch > 1 else ""
    common: dict[str, Any] = {
        "settings": options.settings,
        "stop": Stop(token_ids=pair.eos_token_ids),
        "seeds": 0,
    }

    def plain(prompts: Prompts, num_draft_tokens: int, max_new_tokens: int) -> Run:
        del num_draft_tokens
        return record(generate(target, prompts, max_new_tokens=max_new_tokens, **common), target)

    def speculative(drafter: Drafter) -> Decode:
        def decode(prompts: Prompts, num_draft_tokens: int, max_new_tokens: int) -> Run:
            limits = {"num_draft_tokens": num_draft_tokens, "max_new_tokens": max_new_tokens}
            return record(speculate(target, drafter, prompts, **limits, **common), target)

        return decode

    target_bytes = {"target": weight_bytes(pair.target.model), "packed": packed_bytes(pair.target.model)}
    systems = [
        System(
            f"ours, plain{batch}{label}", "specdec", "plain", "fast", pair.dtype, times.batch, (0,), plain, target_bytes
        )
    ]
    for name in options.drafters:
        auto = options.lengths == "auto"
        drafter = times.adapt(pair.drafter(name), name, max(options.candidates)) if auto else pair.drafter(name)
        systems.append(
            System(
                name=f"ours, {WORDS.get(name, name)}{batch}{label}",
                engine="specdec",
                method=name,
                layers="fast",
                dtype=pair.dtype,
                batch=times.batch,
                candidates=(max(options.candidates),) if auto else options.candidates,
                decode=speculative(drafter),
                weights=target_bytes | draft_bytes(pair, drafter),
                adaptive=auto,
            )
        )
    return systems


def record(rounds: Iterable[Round], target: CachedLM) -> Run:
    """Run a decoder to its end, and return what it did and how long each round took."""
    run = Run()
    for _ in timed(rounds, run, target.device):
        pass
    return run


def weight_bytes(*models: nn.Module) -> int:
    """Return the bytes of all different tensors of `models`; weights that are shared count once."""
    tensors = [tensor for model in models for tensor in (*model.parameters(), *model.buffers())]
    modules = {module for model in models for module in model.modules()}
    halves = sum(2 * one.in_features * one.out_features for one in modules if isinstance(one, HalfLinear))  # hidden
    return halves + sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())


def draft_bytes(pair: Pair, drafter: Drafter) -> dict[str, int]:
    """Return the bytes of weights that a drafter adds to the target's, its own and those of drafters within it."""
    target, models = pair.target.model, models_of(drafter)
    return {"draft": weight_bytes(target, *models) - weight_bytes(target)} if models else {}


def models_of(drafter: Drafter) -> list[nn.Module]:
    """Return the models and heads that a drafter holds, or that a drafter within it holds."""
    found: list[nn.Module] = []
    for value in vars(drafter).values():
        if isinstance(value, CachedLM):
            found.append(value.model)
        elif isinstance(value, nn.Module):
            found.append(value)
        elif isinstance(value, Drafter):
            found += models_of(value)
    return found


def own_weight_bytes(pair: Pair) -> int:
    """Return the bytes that the draft model adds to the target's."""
    return weight_bytes(pair.target.model, pair.draft.model) - weight_bytes(pair.target.model)


def packed_bytes(model: nn.Module) -> int:
    """Return the bytes of the second copies of weights that fast layers may make, for prompts and long drafts."""
    layers = [module for module in model.modules() if isinstance(module, FastLinear)]
    return sum(layer.weight.nbytes for layer in layers) if operators_work() else 0


def cache_bytes(lm: CachedLM, tokens: int, batch: int) -> int:
    """Return the bytes of keys and values of `batch` texts of `tokens` tokens: what they need at least."""
    config = lm.model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or getattr(config, "num_attention_heads", 1)
    size = getattr(config, "head_dim", None) or getattr(config, "hidden_size", 1) // getattr(
        config, "num_attention_heads", 1
    )
    element = torch.empty(0, dtype=lm.model.dtype).element_size()
    return 2 * config.num_hidden_layers * heads * size * element * tokens * batch
