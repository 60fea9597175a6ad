"""transformers' own `generate`, plain and assisted, on the same weights: the baseline to beat.

Nobody shall beat a straw man: it runs with stock linear layers and with this course's fast ones, at the draft length
that is best for it, and with the two settings that would otherwise shorten its drafts switched off: an assistant stops
early where it is less than 40 % sure, unless told not to, and some schedules change the length from call to call.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.utils import logging

from specdec_course.benchmark.options import Options
from specdec_course.benchmark.recorder import Recorder
from specdec_course.benchmark.systems import Decode, Prompts, System, own_weight_bytes, packed_bytes, weight_bytes
from specdec_ref.kernels import FastLinear
from specdec_ref.measure import Clock, Run
from specdec_ref.pairs import Pair

NGRAM = 3  # as in our drafter; 2 is transformers' default


def transformers_systems(pair: Pair, options: Options) -> list[System]:
    """Return plain and assisted `generate`, with each kind of linear layers there is for this dtype."""
    fast = (pair.target.model, pair.draft.model)
    variants = {"fast": fast}
    if pair.dtype == "float32" and any(isinstance(module, FastLinear) for module in fast[0].modules()):
        variants = {"stock": (stock_twin(fast[0]), stock_twin(fast[1])), "fast": fast}
    systems = []
    for layers, (target, draft) in variants.items():
        target_bytes = {"target": weight_bytes(target), "packed": packed_bytes(target)}

        def add(
            name: str,
            method: str,
            batch: int,
            decode: Decode,
            layers: str = layers,
            weights: dict[str, int] = target_bytes,
        ) -> None:
            plain = method == "plain"
            drafts = {"draft": own_weight_bytes(pair)} if method == "model" else {}
            which = f", {layers} layers" if len(variants) > 1 else ""
            systems.append(
                System(
                    name=f"transformers {name}{which}",
                    engine="transformers",
                    method=method,
                    layers=layers,
                    dtype=pair.dtype,
                    batch=batch,
                    candidates=(0,) if plain else options.candidates,
                    decode=decode,
                    weights=weights | drafts,
                )
            )

        generator = Generator(target, pair, options)
        add("generate", "plain", options.batch, generator.plain)
        if "model" in options.drafters:
            add("assisted", "model", 1, generator.assisted_by(draft))
        if "ngram" in options.drafters:
            add("prompt lookup", "ngram", 1, generator.prompt_lookup)
    return systems


def stock_twin(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of `model` with torch's own linear layers and attention. The weights are the same tensors."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, cast(dict[int, Any], shared))
    for module in twin.modules():
        if isinstance(module, FastLinear):
            cast(Any, module).__class__ = torch.nn.Linear
    if twin.config._attn_implementation == "specdec_grouped":
        twin.set_attn_implementation("sdpa")
    return twin


class Generator:
    """Calls `generate` of one target and records when its tokens arrive."""

    def __init__(self, target: PreTrainedModel, pair: Pair, options: Options, clock: Clock = time.perf_counter) -> None:
        self.target, self.options, self.clock = target, options, clock
        self.eos = pair.eos_token_ids

    def plain(self, prompts: Prompts, num_draft_tokens: int, max_new_tokens: int) -> Run:
        """Decode plainly."""
        del num_draft_tokens
        return self._run(prompts, max_new_tokens)

    def prompt_lookup(self, prompts: Prompts, num_draft_tokens: int, max_new_tokens: int) -> Run:
        """Decode with drafts from the text itself."""
        lookup = {"prompt_lookup_num_tokens": num_draft_tokens, "max_matching_ngram_size": NGRAM}
        return self._run(prompts, max_new_tokens, lookup)

    def assisted_by(self, draft: PreTrainedModel) -> Decode:
        """Return a decoder whose drafts come from `draft`."""
        assistant = copy.copy(draft)  # same weights, settings of its own
        assistant.generation_config = copy.deepcopy(draft.generation_config)

        def decode(prompts: Prompts, num_draft_tokens: int, max_new_tokens: int) -> Run:
            config = cast(GenerationConfig, assistant.generation_config)
            config.num_assistant_tokens = num_draft_tokens
            config.num_assistant_tokens_schedule = "constant"
            config.assistant_confidence_threshold = 0.0
            return self._run(prompts, max_new_tokens, assistant_model=assistant)

        return decode

    def _run(self, prompts: Prompts, max_new_tokens: int, more: dict[str, Any] | None = None, **arguments: Any) -> Run:
        config = GenerationConfig(
            max_new_tokens=max_new_tokens,
            eos_token_id=list(self.eos) or None,
            pad_token_id=self.eos[0] if self.eos else 0,
            **self._sampling(),
            **(more or {}),
        )
        longest = max(map(len, prompts))
        device = self.target.device
        rows = [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]  # its caches want padding left
        mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        recorder = Recorder(self.target, longest, len(prompts), self.eos, self.clock)
        with quiet(), recorder.watching(), torch.random.fork_rng():
            torch.manual_seed(0)
            cast(Any, self.target).generate(
                torch.tensor(rows, device=device),
                attention_mask=torch.tensor(mask, device=device),
                generation_config=config,
                streamer=recorder,
                **arguments,
            )
        return recorder.run

    def _sampling(self) -> dict[str, Any]:
        temperature = self.options.temperature
        if temperature == 0:
            return {"do_sample": False}
        return {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}


@contextmanager
def quiet() -> Iterator[None]:
    """Hide what transformers says about the arguments that it passes to its own assistant."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
