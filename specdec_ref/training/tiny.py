"""The tiny family: a target, a draft and a micro draft that share one small tokenizer of their own.

Little stories of our own teach `tiny-target` to write. Then each smaller model learns from the next larger one, along
text that the larger one writes: a draft is judged on its target's text, not on what the target once learned from.

    stories -> tokenizer -> tiny-target -> its text and laws -> tiny-draft -> its text and laws -> tiny-micro
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from transformers import PreTrainedTokenizerBase

from specdec_ref import store
from specdec_ref.model import CachedLM
from specdec_ref.rows import Stop
from specdec_ref.training import artefact, corpus
from specdec_ref.training.answering import Pass, Question, answer_all
from specdec_ref.training.artefact import Card, Shape
from specdec_ref.training.corpus import Corpus
from specdec_ref.training.distill import Plan, distill
from specdec_ref.training.held_out import Figures, decode_both, estimate
from specdec_ref.training.stories import story
from specdec_ref.training.tell import Tell
from specdec_ref.training.tiny_text import encode, openings, train_tokenizer

SHARD_TOKENS = 50_000  # of written text: what a kill can cost


@dataclass(frozen=True)
class Student:
    """One member of the family: name, shape, how it is trained, and what it is for."""

    name: str
    shape: Shape
    plan: Plan
    what: str


TARGET = Student(
    "tiny-target",
    Shape(256, layers=4, heads=4, mlp=704, context=1024),
    Plan(epochs=1, weight_decay=0.1),
    "A small language model that writes little stories, for tests and first lessons: it loads in a second.",
)
# The drafts are trained briefly: after four epochs 96 % of their guesses pass, and lessons need refusals to look at.
DRAFT = Student(
    "tiny-draft",
    Shape(96, layers=2, heads=3, mlp=256, context=1024),
    Plan(epochs=0.5, learning_rate=3e-3, look_every=50),
    "A draft model for speculative decoding with tiny-target.",
)
MICRO = Student(
    "tiny-micro",
    Shape(32, layers=1, heads=2, mlp=128, context=1024),
    Plan(epochs=0.75, learning_rate=5e-3, look_every=50),
    "A draft model for tiny-draft, for speculation in stages.",
)


@dataclass(frozen=True)
class Recipe:
    """All that decides the family.

    Attributes
    ----------
    students : tuple of Student
        Each but the first learns from the one before it.
    vocab_size : int
        Tokens of the tokenizer, special ones included.
    num_stories : int
        Stories that the first one learns from or is measured on.
    num_texts, max_new_tokens, write_batch : int
        Texts that each teacher writes for its student, their longest, and how many at once.
    opening_tokens : tuple of int
        Such a text begins with so many tokens of a story: each story gives an opening of each length.
    seed, num_prompts : int
        Of everything; and how many held-out openings are decoded at the end.
    """

    students: tuple[Student, ...] = (TARGET, DRAFT, MICRO)
    vocab_size: int = 2048
    num_stories: int = 30_000
    num_texts: int = 10_000
    max_new_tokens: int = 192
    write_batch: int = 64
    opening_tokens: tuple[int, ...] = (4, 12, 24)
    seed: int = 0
    num_prompts: int = 64


@dataclass(frozen=True)
class Place:
    """Where a run works: `work` keeps checkpoints and texts, `out` receives the models, `command` is for the cards."""

    work: Path
    out: Path
    command: str
    tell: Tell


def run(recipe: Recipe, place: Place) -> dict[str, Figures]:
    """Train, measure and save the family; a run that was stopped goes on. Return held-out figures by model.

    Raises
    ------
    ValueError
        If the folder of work holds another run.
    """
    texts = [story(number, recipe.seed) for number in range(recipe.num_stories)]
    tokenizer = train_tokenizer(texts, recipe.vocab_size, place.work / "tokenizer")
    text = encode(texts, tokenizer)
    begun = openings(text.take(~text.held_out), tokenizer, recipe.opening_tokens)[: recipe.num_texts]
    figures: dict[str, Figures] = {}
    teacher: CachedLM | None = None
    for student in recipe.students:
        if teacher is not None:
            text = _write(recipe, place, teacher, begun, tokenizer)
        teacher, figures[student.name] = _teach(recipe, place, student, text, teacher, tokenizer)
    return figures


def _teach(
    recipe: Recipe,
    place: Place,
    student: Student,
    text: Corpus,
    teacher: CachedLM | None,
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[CachedLM, Figures]:
    """Train, measure and save one student; return it as it is stored, and its figures."""
    learned, held_out = text.take(~text.held_out), text.take(text.held_out)
    model = artefact.new_llama(tokenizer, len(tokenizer), student.shape, recipe.seed)
    work = place.work / student.name
    about = {"shape": asdict(student.shape)}
    distill(model, learned, held_out, student.plan, work, seed=recipe.seed, recipe=about, tell=place.tell)
    lm = artefact.round_to_half(model, student.name)
    figures = estimate(model, held_out)
    if teacher is not None:
        prompts = [prompt.tolist() for prompt in held_out.prompts()[: recipe.num_prompts]]
        figures |= decode_both(teacher, lm, prompts, _stop(tokenizer), recipe.max_new_tokens, place.tell)
    writer = "the grammar of `specdec_ref/training/stories.py`" if teacher is None else f"`{teacher.name}`"
    goal = "cross-entropy" if teacher is None else "KL to the teacher's law (its 16 likeliest tokens) plus TV"
    card = Card(
        what=f"{student.what} Its tokenizer is a byte-level BPE of {len(tokenizer):,} tokens, the tiny family's own.",
        data=f"{len(learned):,} texts with {len(learned.tokens):,} tokens written by {writer}; "
        f"{len(held_out):,} others are held out.",
        recipe=f"Llama of {student.shape}, tied embeddings; {goal}; AdamW, cosine; {student.plan}.",
        command=place.command,
        seed=recipe.seed,
        figures=figures,
    )
    artefact.save(model, place.work / "tokenizer", place.out / student.name, card, work / "curve.json")
    return lm, figures


def _write(
    recipe: Recipe, place: Place, teacher: CachedLM, begun: Sequence[Question], tokenizer: PreTrainedTokenizerBase
) -> Corpus:
    """Let a model continue the openings, and return its text with its laws; what is written already is kept."""
    name = f"{teacher.name}-text"
    weights = store.sha256(place.out / teacher.name / "model.safetensors")
    shards = corpus.Shards(place.work / name, {"weights": weights, "max_new_tokens": recipe.max_new_tokens})
    passes = answer_all(
        teacher,
        [question for question in begun if question.prompt.id not in shards.finished],
        batch_size=recipe.write_batch,
        max_new_tokens=recipe.max_new_tokens,
        eos_token_ids=_stop(tokenizer).token_ids,
    )

    def counted() -> Iterator[Pass]:
        done = len(shards.finished)
        for one in passes:
            done += len(one.finished)
            place.tell(name, done, len(begun), "texts")
            yield one

    for _ in corpus.collect(counted(), shards, SHARD_TOKENS):
        pass
    text, _ = corpus.load(corpus.shard_paths(shards.folder))
    wanted = {question.prompt.id for question in begun}
    text = text.take([row for row, one in enumerate(text.prompt_ids.tolist()) if one in wanted])
    return text.take(text.prompt_ids.argsort())


def _stop(tokenizer: PreTrainedTokenizerBase) -> Stop:
    return Stop((cast(int, tokenizer.eos_token_id),))
