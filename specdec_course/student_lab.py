"""A student taught in seconds: text that a target writes, its laws along that text, and a loss of one's own.

The parts are those that made `models/`: `specdec_ref.training` writes the text, cuts it into batches, makes the student
and runs the loop. Here they are only put together, so that a notebook can show the losses and nothing else.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from transformers import LlamaForCausalLM

from specdec_ref.measure import Run
from specdec_ref.model import CachedLM
from specdec_ref.pairs import Pair
from specdec_ref.rows import Stop
from specdec_ref.training import artefact
from specdec_ref.training.answering import Question, answer_all
from specdec_ref.training.artefact import Shape
from specdec_ref.training.batches import Batch, Batches, hidden_states
from specdec_ref.training.corpus import Corpus, from_answers
from specdec_ref.training.held_out import measure
from specdec_ref.training.loop import Schedule, train
from specdec_ref.training.stories import story
from specdec_ref.training.tiny_text import encode, openings

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # log p and log q, [N, V] each, to a loss for each row [N]
FIRST_STORY = 50_000  # tiny-target learned from stories with smaller numbers
SHAPE = Shape(48, layers=1, heads=3, mlp=128, context=1024)  # smaller than tiny-draft: it learns in seconds


@dataclass(frozen=True)
class Page:
    """A batch of text, and the target's laws where it has to be predicted: log p, [N, V]."""

    batch: Batch
    log_p: torch.Tensor


@dataclass(frozen=True)
class Text:
    """What a target wrote: pages to learn from, one page to look at, and prompts that nobody learned from."""

    pages: Sequence[Page]
    look_at: Page
    prompts: list[list[int]]
    num_tokens: int


def write_text(pair: Pair, num_texts: int = 192, num_held_out: int = 16, max_new_tokens: int = 56) -> Text:
    """Let the target of the tiny pair go on with openings of stories, at temperature 1, and note its laws.

    Parameters
    ----------
    pair : Pair
        "tiny", on the CPU: its openings are those of little stories.
    num_texts, num_held_out : int
        Texts to learn from, and others to look at.
    max_new_tokens : int
        Of each text.
    """
    count = num_texts + num_held_out
    stories = encode([story(FIRST_STORY + number, 0) for number in range(3 * count)], pair.tokenizer)
    begun = [one for one in openings(stories, pair.tokenizer, (4, 12, 24)) if one.prompt.temperature == 1][:count]
    text = _answers(pair, begun, max_new_tokens)
    rows = np.arange(count)
    learned, held_out = text.take(rows[:num_texts]), text.take(rows[num_texts:])
    batches = Batches(learned, batch_size=8, seed=0)
    pages = [_page(pair.target, batches[step]) for step in range(len(batches))]
    look_at = _page(pair.target, Batches(held_out, 1, seed=0).gather(np.arange(num_held_out)))
    return Text(pages, look_at, [prompt.tolist() for prompt in held_out.prompts()], len(learned.tokens))


def _answers(pair: Pair, begun: Sequence[Question], max_new_tokens: int) -> Corpus:
    """Return the target's answers, ordered by their prompts and not by when they were finished."""
    passes = answer_all(
        pair.target, begun, batch_size=104, max_new_tokens=max_new_tokens, eos_token_ids=pair.eos_token_ids
    )
    text = from_answers([answer for one in passes for answer in one.finished])
    return text.take(text.prompt_ids.argsort())


def _page(target: CachedLM, batch: Batch) -> Page:
    with torch.no_grad():
        return Page(batch, log_laws(cast(LlamaForCausalLM, target.model), batch).half())


def log_laws(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    """Return log q [N, V] of a model at the positions of a batch that predict an answer's token, and at no other."""
    return model.lm_head(hidden_states(model, batch)).float().log_softmax(-1)


def new_student(pair: Pair, seed: int = 0, shape: Shape = SHAPE) -> LlamaForCausalLM:
    """Return an untrained student of the pair's target."""
    return artefact.new_llama(pair.tokenizer, pair.target.vocab_size, shape, seed)


@torch.no_grad()
def overlap(student: LlamaForCausalLM, page: Page) -> float:
    """Return the mean of sum(min(p, q)) over a page: the chance that a draft token passes, at temperature 1."""
    return float(torch.minimum(page.log_p.float().exp(), log_laws(student, page.batch).exp()).sum(-1).mean())


@torch.no_grad()
def habits(student: LlamaForCausalLM, page: Page) -> tuple[int, float]:
    """Return how many different tokens a student likes best somewhere on a page, and how sure it is on average."""
    surest = log_laws(student, page.batch).exp().max(-1)
    return len(surest.indices.unique()), float(surest.values.mean())


def teach(
    student: LlamaForCausalLM,
    text: Text,
    loss: Loss,
    steps: int,
    *,
    learning_rate: float = 5e-3,
    look_every: int = 20,
) -> dict[int, float]:
    """Train a student in place, with the loop that made `models/`.

    Parameters
    ----------
    student : LlamaForCausalLM
        As `new_student` makes it, or taught already.
    text : Text
        Its pages are read one after the other, and from the first again.
    loss : callable
        From log p and log q to a loss for each position.
    steps, learning_rate : int, float
        Pages that are read, and the peak of the rate.
    look_every : int
        Steps between two looks at the held-out page.

    Returns
    -------
    dict: steps done -> overlap on the held-out page. 0 is before the first step.
    """

    def loss_of(step: int) -> torch.Tensor:
        page = text.pages[step % len(text.pages)]
        return loss(page.log_p.float(), log_laws(student, page.batch)).mean()

    schedule = Schedule(steps, learning_rate, warmup_steps=max(1, steps // 10), save_every=steps, look_every=look_every)
    curve = {0: overlap(student, text.look_at)}
    with tempfile.TemporaryDirectory() as folder:  # of a checkpoint that nobody needs
        history = train(
            student, loss_of, schedule, Path(folder), {}, look=lambda: {"alpha": overlap(student, text.look_at)}
        )
    return curve | {int(look["step"]): float(look["alpha"]) for look in history.looks}


def decode_with(
    pair: Pair,
    student: LlamaForCausalLM,
    prompts: Sequence[Sequence[int]],
    temperature: float,
    max_new_tokens: int = 48,
) -> Run:
    """Let a student draft for the pair's target, K = 4, and return what was counted."""
    draft = CachedLM(student, name="student")
    stop = Stop(token_ids=pair.eos_token_ids)
    return measure(
        pair.target,
        draft,
        prompts,
        temperature=temperature,
        stop=stop,
        num_draft_tokens=4,
        max_new_tokens=max_new_tokens,
        batch_size=16,
    )
