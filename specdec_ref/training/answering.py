"""Many questions, few rows: as soon as an answer ends, the next question takes its row (continuous batching).

A pass over a batch costs little more than a pass over one row, so a row that has nothing to say wastes its share. The
text of an answer does not depend on the rows around it: it is the text of `specdec_ref.decode.generate` for this prompt
alone with the prompt's seed, up to the rounding of the model's arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import cast

import numpy as np
import torch
from torch import nn

from specdec_ref import device as host
from specdec_ref.cache import RowCache
from specdec_ref.model import CachedLM
from specdec_ref.sampling import Purpose, SamplingSettings, draw, healthy_rows, probabilities, uniforms
from specdec_ref.training.prompts import Prompt

TOP = 16  # how many of the target's most likely tokens are kept at each position


@dataclass(frozen=True)
class Question:
    """A prompt, and the ids the target reads: the chat template around it, up to where the answer begins."""

    prompt: Prompt
    tokens: tuple[int, ...]


@dataclass
class Answer:
    """An answer, finished or being written.

    Attributes
    ----------
    question : Question
        What is answered.
    tokens : list of int
        New tokens, the end-of-text token included where the answer has one.
    top_ids, top_logprobs : list of arrays [TOP]
        For each new token, the target's most likely ids in falling order (uint16) and the natural logarithms of their
        probabilities at temperature 1 (float16).
    """

    question: Question
    tokens: list[int] = field(default_factory=list)
    top_ids: list[np.ndarray] = field(default_factory=list)
    top_logprobs: list[np.ndarray] = field(default_factory=list)


@dataclass(frozen=True)
class Pass:
    """What one pass brought: how many new tokens, and the answers that they completed (often none)."""

    num_tokens: int
    finished: list[Answer]


def answer_all(
    lm: CachedLM,
    questions: Iterable[Question],
    *,
    batch_size: int,
    max_new_tokens: int,
    eos_token_ids: Sequence[int],
) -> Iterator[Pass]:
    """Answer questions, `batch_size` at a time.

    Parameters
    ----------
    lm : CachedLM
        The target.
    questions : iterable of Question
        Asked for lazily: a question is taken when a row is free for it.
    batch_size, max_new_tokens : int
        Rows, and the longest answer.
    eos_token_ids : sequence of int
        An answer ends with the first of these.

    Yields
    ------
    Pass
        What each pass brought.

    Raises
    ------
    ValueError
        If the logits of a row have no distribution.
    """
    waiting = iter(questions)
    answers = [Answer(question) for question in islice(waiting, batch_size)]
    batch, reader = lm.fresh(len(answers)), _Reader(lm)
    for row, answer in enumerate(answers):
        batch.cache.put([row], reader.read(answer.question.tokens[:-1]))
    while answers:
        _write_one_token(batch, answers)
        ended = [row for row, answer in enumerate(answers) if _has_ended(answer, max_new_tokens, eos_token_ids)]
        yield Pass(len(answers), [answers[row] for row in ended])
        idle = []
        for row in ended:
            question = next(waiting, None)
            if question is None:
                idle.append(row)
            else:
                answers[row] = Answer(question)
                batch.cache.put([row], reader.read(question.tokens[:-1]))
        if idle:
            keep = [row for row in range(len(answers)) if row not in idle]
            answers = [answers[row] for row in keep]
            batch.select(keep)


def laws(
    lm: CachedLM, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the target's laws along answers that are already known: one pass over all of them, and no sampling.

    Texts of like length make a good batch: the shorter ones are padded at the right. Attention is causal, so nothing
    real sees the padding, and the pass needs neither mask nor cache.

    Parameters
    ----------
    lm : CachedLM
        The target.
    prompts, answers : sequences of sequences of int
        What the target read, and all it wrote.

    Returns
    -------
    list of (top_ids, top_logprobs), arrays [N, TOP], uint16 and float16
        As in `Answer`, for each answer one row for each of its N tokens.
    """
    texts = [[*prompt, *answer[:-1]] for prompt, answer in zip(prompts, answers, strict=True)]
    longest = max(map(len, texts))
    block = host.upload([text + [0] * (longest - len(text)) for text in texts], lm.device)  # [B, T]
    with torch.inference_mode():
        states = cast(nn.Module, lm.model.base_model)(input_ids=block, use_cache=False).last_hidden_state  # [B, T, D]
        output_layer = cast(nn.Module, lm.model.get_output_embeddings())
        return [
            _top(
                output_layer(its_states[len(prompt) - 1 : len(prompt) - 1 + len(answer)])
            )  # [N, V] one answer at a time
            for its_states, prompt, answer in zip(states, prompts, answers, strict=True)
        ]


class _Reader:
    """Reads prompts into caches of one row. What they all begin with, the chat template's head, is read only once."""

    def __init__(self, lm: CachedLM) -> None:
        self._lm = lm
        self._begun = lm.fresh(1)
        self._head: Sequence[int] | None = None

    def read(self, tokens: Sequence[int]) -> RowCache:
        """Return a cache that holds these tokens."""
        if self._head is None:
            self._head = tokens
            self._begun.prefill([tokens])
        shared = 0
        while shared < min(len(tokens), len(self._head)) and tokens[shared] == self._head[shared]:
            shared += 1
        if shared < len(self._head):  # the next prompts will agree with this one at most so far
            self._begun.rollback([len(self._head) - shared])
            self._head = self._head[:shared]
        row = self._lm.fresh(1)
        if shared:
            row.cache.put([0], self._begun.cache)
        row.prefill([tokens[shared:]])
        return row.cache


def _write_one_token(batch: CachedLM, answers: list[Answer]) -> None:
    """Run one pass over all rows and append a token, and the law it was drawn from, to each answer."""
    written = [[*answer.question.tokens, *answer.tokens] for answer in answers]
    logits = batch.extend(host.upload([[tokens[-1]] for tokens in written], batch.device))[:, -1]  # [B, V]
    if not bool(healthy_rows(logits).all()):
        bad = int((~healthy_rows(logits)).nonzero()[0])
        raise ValueError(f"the target has no distribution after prompt {answers[bad].question.prompt.id}")
    # The keys of `generate`: one round for each token, and the position of the new token in the whole text.
    luck = uniforms(
        torch.tensor([_signed(answer.question.prompt.seed) for answer in answers]),
        torch.tensor([len(answer.tokens) for answer in answers]),
        torch.tensor([len(tokens) for tokens in written]),
        Purpose.CORRECT,
    ).to(batch.device)
    ids, logprobs = _top(logits)
    for row, token in enumerate(_draw_each(logits, answers, luck)):
        answers[row].tokens.append(token)
        answers[row].top_ids.append(ids[row])
        answers[row].top_logprobs.append(logprobs[row])


def _draw_each(logits: torch.Tensor, answers: list[Answer], luck: torch.Tensor) -> list[int]:
    """Draw a token for each row, at its own temperature."""
    tokens = torch.zeros(len(answers), dtype=torch.int64, device=logits.device)
    for temperature in {answer.question.prompt.temperature for answer in answers}:
        rows = [row for row, answer in enumerate(answers) if answer.question.prompt.temperature == temperature]
        probs = probabilities(logits[rows], SamplingSettings(temperature), check=False)
        tokens[rows] = probs.argmax(-1) if temperature == 0 else draw(probs, luck[rows])
    return host.read(tokens).tolist()


def _top(logits: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return ids (uint16) and log-probabilities (float16) of the likeliest tokens, [B, TOP] each, for logits [B, V]."""
    logprobs, ids = logits.float().log_softmax(-1).topk(min(TOP, logits.shape[-1]), dim=-1)
    return host.read(ids).numpy().astype(np.uint16), host.read(logprobs).numpy().astype(np.float16)


def _has_ended(answer: Answer, max_new_tokens: int, eos_token_ids: Sequence[int]) -> bool:
    return len(answer.tokens) >= max_new_tokens or answer.tokens[-1] in eos_token_ids


def _signed(seed: int) -> int:
    """Fold 64 bits into a signed number, as torch wants it."""
    return (seed + 2**63) % 2**64 - 2**63
