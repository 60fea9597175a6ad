"""Tiny models whose text is known in advance, drafters that propose what a test wants, and spies that count.

table model      the law of the next token is a row of a table (`specdec_ref.table`)
position model   next = last token + position + first token, modulo V: a wrong position or a lost token shows at once
tiny models      random weights under transformers' own classes
scripted drafter proposes a fixed number of right tokens, then a wrong one
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import transformers
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from specdec_ref.acceptance import Verification
from specdec_ref.drafters import Draft, Drafter
from specdec_ref.model import CachedLM, pad
from specdec_ref.rows import Round, Rows
from specdec_ref.table import TableConfig, table_lm

VOCAB = 64
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,  # ten times the usual: attention then decides what comes next
}
GPT2_SIZES = {
    "vocab_size": VOCAB,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 512,
    "initializer_range": 0.3,
}
CONFIGS: dict[str, tuple[str, dict]] = {
    "llama": ("LlamaConfig", SIZES),
    "qwen2": ("Qwen2Config", SIZES),
    "qwen3": ("Qwen3Config", SIZES | {"head_dim": 8}),
    "gpt2": ("GPT2Config", GPT2_SIZES),
    "neox": ("GPTNeoXConfig", {name: size for name, size in SIZES.items() if name != "num_key_value_heads"}),
    "opt": (
        "OPTConfig",
        {
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "ffn_dim": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 512,
            "word_embed_proj_dim": 32,
            "init_std": 0.3,
        },
    ),
}


def tiny_model(name: str, seed: int = 0, dtype: torch.dtype = torch.float64, **changes: object) -> PreTrainedModel:
    """A random model, in float64 so that two ways to compute its logits differ by 1e-13 and never flip a token."""
    config_name, sizes = CONFIGS[name]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = getattr(transformers, config_name)(**(sizes | changes))
        return transformers.AutoModelForCausalLM.from_config(config).to(dtype).eval()


@functools.cache
@torch.inference_mode(False)  # it outlives its first caller, who may be in that mode: then no gradient could ever pass
def tiny_lm(name: str = "llama", seed: int = 0, **changes: object) -> CachedLM:
    """A `CachedLM` over a tiny random float64 model; the same object for the same arguments."""
    return CachedLM(tiny_model(name, seed, **changes), name=name)


def random_table(vocab: int = 5, seed: int = 0, scale: float = 1.5, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Logits [V, V, V] of a table model."""
    return scale * torch.randn(vocab, vocab, vocab, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@functools.cache
@torch.inference_mode(False)
def random_table_lm(vocab: int = 5, seed: int = 0, max_length: int = 4096) -> CachedLM:
    """A table model with random laws; the same object for the same arguments."""
    return table_lm(random_table(vocab, seed), max_length, name=f"table {seed}")


def cycle_lm(vocab: int = 5, step: int = 1, max_length: int = 4096) -> CachedLM:
    """A model that counts: after x comes (x + step) mod V, by far."""
    follower = (torch.arange(vocab) + step) % vocab
    return table_lm(20.0 * functional.one_hot(follower, vocab).double(), max_length, name="cycle")


def script_lm(script: Sequence[int], vocab: int, max_length: int = 4096) -> CachedLM:
    """A model that continues a text of n tokens with `script[n]`, whatever the text says."""
    return CachedLM(ScriptModel(script, vocab, max_length), name="script")


class ScriptModel(PreTrainedModel):
    """The next token is a function of the position alone."""

    config_class = TableConfig

    def __init__(self, script: Sequence[int], vocab: int, max_length: int) -> None:
        super().__init__(TableConfig(vocab_size=vocab, max_position_embeddings=max_length))
        wanted = torch.zeros(max_length + 1, dtype=torch.int64)
        wanted[: len(script)] = torch.tensor(script)
        self.logits = torch.nn.Parameter(20.0 * functional.one_hot(wanted, vocab).double(), requires_grad=False)

    def forward(self, input_ids, attention_mask=None, position_ids=None, cache=None, use_cache=None):
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        if cache is not None:
            states = input_ids[:, None, :, None].double()
            cache.update(states, states, 0)
        return CausalLMOutputWithPast(logits=self.logits[position_ids + 1])


class PositionModel(PreTrainedModel):
    """Next = (last token + its position + the text's first token) mod V; the other tokens follow by distance.

    The first token is found by attention, at position 0 among the slots that the mask shows. A decoder that gets a
    position, a mask, a slot or a rollback wrong writes another text.
    """

    config_class = TableConfig

    def __init__(self, vocab: int, max_length: int = 4096, sharpness: float = 1.0) -> None:
        super().__init__(TableConfig(vocab_size=vocab, max_position_embeddings=max_length))
        self.scale = torch.nn.Parameter(torch.tensor(sharpness, dtype=torch.float64), requires_grad=False)

    def forward(self, input_ids, attention_mask=None, position_ids=None, cache=None, use_cache=None):
        batch, length = input_ids.shape
        if position_ids is None:
            position_ids = torch.arange(length, device=input_ids.device).expand(batch, -1)
        keys, values = position_ids[:, None, :, None].double(), input_ids[:, None, :, None].double()
        if cache is not None:
            keys, values = cache.update(keys, values, 0)
        visible = torch.ones(length, keys.shape[2], dtype=torch.bool, device=keys.device).tril()
        if attention_mask is not None:
            visible = attention_mask[:, 0] == 0
        at_start = (keys[:, 0, :, 0] == 0)[:, None] & visible  # [B, T, S]
        first = (at_start * values[:, 0, :, 0][:, None]).sum(-1).long()  # [B, T]
        vocab = self.config.vocab_size
        following = (input_ids + position_ids + first) % vocab
        distance = (torch.arange(vocab, device=keys.device) - following[..., None]) % vocab
        return CausalLMOutputWithPast(logits=-self.scale * distance)


def position_lm(vocab: int = 7, max_length: int = 4096, sharpness: float = 1.0) -> CachedLM:
    return CachedLM(PositionModel(vocab, max_length, sharpness), name="position")


def position_text(prompt: Sequence[int], length: int, vocab: int = 7) -> list[int]:
    """What greedy decoding of a position model writes after `prompt`: plain arithmetic, no model."""
    text = list(prompt)
    while len(text) < len(prompt) + length:
        text.append((text[-1] + len(text) - 1 + text[0]) % vocab)
    return text[len(prompt) :]


def uncached(lm: CachedLM, text: Sequence[int]) -> torch.Tensor:
    """Logits [T, V] of a whole text in one pass without any cache: the obvious way, and what all others must equal."""
    with torch.inference_mode():
        logits = lm.model(input_ids=torch.tensor([list(text)], device=lm.device), use_cache=False).logits
    return logits[0, :, : lm.vocab_size]


def greedy_text(lm: CachedLM, prompt: Sequence[int], length: int) -> list[int]:
    """Greedy decoding from scratch for every token."""
    text = list(prompt)
    for _ in range(length):
        text.append(int(uncached(lm, text)[-1].argmax()))
    return text[len(prompt) :]


class PlannedDrafter(Drafter):
    """Propose what `plan(text of the row, round number)` says, as a deterministic draft."""

    def __init__(self, plan: Callable[[list[int], int], Sequence[int]]) -> None:
        self.plan = plan

    def propose(self, rows: Rows, limits: Sequence[int]) -> Draft:
        drafts = [
            list(self.plan(list(text), number))[:limit]
            for text, number, limit in zip(rows.tokens, rows.rounds, limits, strict=True)
        ]
        tokens, counts = pad(drafts)
        return Draft(tokens.to(rows.device), counts)


def scripted_drafter(text: Sequence[int], vocab: int, right: Sequence[int]) -> PlannedDrafter:
    """Knows the text (prompt included) that will be written; in round r its first `right[r]` tokens are right."""

    def plan(so_far: list[int], number: int) -> list[int]:
        rest = list(text[len(so_far) :])
        good = right[number] if number < len(right) else len(rest)
        return rest[:good] + [(token + 1) % vocab for token in rest[good:]]

    return PlannedDrafter(plan)


class SoftDrafter(Drafter):
    """Draw drafts from laws given as a table [V, V] of probabilities, with fixed tokens where a test forces them."""

    def __init__(self, draft: Callable[[Rows, Sequence[int]], Draft]) -> None:
        self.draft = draft

    def propose(self, rows: Rows, limits: Sequence[int]) -> Draft:
        return self.draft(rows, limits)


class Watched(Drafter):
    """Wrap a drafter and tell `listener` (event, working drafter, argument) about each call."""

    def __init__(self, inner: Drafter, listener: Callable[[str, Drafter, object], None]) -> None:
        self.inner, self.listener = inner, listener

    def fresh(self, target: CachedLM, rows: Rows) -> Watched:
        other = Watched(self.inner.fresh(target, rows), self.listener)
        self.listener("fresh", other.inner, rows)
        return other

    def propose(self, rows: Rows, limits: Sequence[int]) -> Draft:
        draft = self.inner.propose(rows, limits)
        self.listener("propose", self.inner, draft)
        return draft

    def commit(self, verification: Verification) -> None:
        self.inner.commit(verification)
        self.listener("commit", self.inner, verification)

    def select(self, keep: Sequence[int]) -> None:
        self.inner.select(keep)


@contextmanager
def spy(lm: CachedLM) -> Iterator[list[tuple[int, int]]]:
    """Collect the shape [B, T] of every forward pass of the model, whoever asks for it."""
    shapes: list[tuple[int, int]] = []

    def note(module: object, args: object, kwargs: dict) -> None:
        batch, length = kwargs["input_ids"].shape
        shapes.append((batch, length))

    handle = lm.model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield shapes
    finally:
        handle.remove()


def texts(rounds: Sequence[Round]) -> list[list[int]]:
    """The new tokens of each row."""
    return [[token for result in rounds for token in result.tokens[row]] for row in range(len(rounds[0].tokens))]


def reasons(rounds: Sequence[Round]) -> list[str | None]:
    """Why each row ended."""
    ends: list[str | None] = [None] * len(rounds[0].tokens)
    for result in rounds:
        for row, reason in enumerate(result.finished):
            if reason is not None:
                assert ends[row] is None, "a row ends once"
                ends[row] = reason
    return ends


def accepted_share(rounds: Sequence[Round]) -> float:
    """Accepted over drafted tokens of all rows and rounds."""
    return sum(map(sum, (r.num_accepted for r in rounds))) / sum(map(sum, (r.num_drafted for r in rounds)))
