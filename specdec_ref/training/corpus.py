"""Teacher text on disk: what the target answered, and the laws its tokens were drawn from.

The wide record lies in a folder of shards, `shard-00000.npz` and so on. Each is written whole or not at all, so work
that was killed goes on where the last shard ended. The narrow record, ids without laws, is small enough for a
repository, and `specdec_ref.training.answering.laws` turns it into the wide one again.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from specdec_ref.training.answering import Answer, Pass


@dataclass(frozen=True)
class Corpus:
    """A set of P answers with N tokens in all. Tokens of all answers stand in one row, cut by the lengths.

    Attributes
    ----------
    prompt_ids : [P] str
        Ids of the prompts, see `specdec_ref.training.prompts`.
    kinds : [P] str
        What sort of task each is.
    temperatures : [P] float32
        Of the sampling: 0 means greedy.
    held_out : [P] bool
        True where no training may look.
    prompt_lengths, lengths : [P] int32
        Tokens of each prompt (the chat template included) and of each answer.
    prompt_tokens, tokens : [sum of lengths] uint16
        Token ids.
    top_ids, top_logprobs : [N, TOP] uint16 and float16, or [0, TOP]
        The target's likeliest tokens before each token was drawn, in falling order, and the natural logarithms of
        their probabilities at temperature 1. Empty in the narrow record.
    """

    prompt_ids: np.ndarray
    kinds: np.ndarray
    temperatures: np.ndarray
    held_out: np.ndarray
    prompt_lengths: np.ndarray
    lengths: np.ndarray
    prompt_tokens: np.ndarray
    tokens: np.ndarray
    top_ids: np.ndarray
    top_logprobs: np.ndarray

    def __len__(self) -> int:
        """Return the number of answers."""
        return len(self.prompt_ids)

    @property
    def has_laws(self) -> bool:
        """Whether the laws are here (the wide record)."""
        return len(self.top_ids) == len(self.tokens)

    def prompts(self) -> list[np.ndarray]:
        """Return the ids of each prompt."""
        return np.split(self.prompt_tokens, np.cumsum(self.prompt_lengths)[:-1]) if len(self) else []

    def answers(self) -> list[np.ndarray]:
        """Return the ids of each answer."""
        return np.split(self.tokens, np.cumsum(self.lengths)[:-1]) if len(self) else []

    def take(self, rows: Sequence[int] | np.ndarray) -> Corpus:
        """Return these answers, in this order; a mask [P] of bool works too."""
        chosen = np.asarray(rows)
        rows = np.flatnonzero(chosen) if chosen.dtype == bool else chosen.astype(np.int64)
        in_prompts, in_answers = _spans(self.prompt_lengths, rows), _spans(self.lengths, rows)
        in_laws = in_answers if self.has_laws else slice(0)
        places = {"prompt_tokens": in_prompts, "tokens": in_answers, "top_ids": in_laws, "top_logprobs": in_laws}
        return Corpus(**{name: values[places.get(name, rows)] for name, values in vars(self).items()})

    def without_laws(self) -> Corpus:
        """Return the narrow record."""
        return replace(self, top_ids=self.top_ids[:0], top_logprobs=self.top_logprobs[:0])

    def with_laws(self, laws: Sequence[tuple[np.ndarray, np.ndarray]]) -> Corpus:
        """Return the wide record; `laws` holds (top_ids, top_logprobs) of each answer, in order."""
        ids, logprobs = zip(*laws, strict=True)
        return replace(self, top_ids=np.concatenate(ids), top_logprobs=np.concatenate(logprobs))

    def pieces(self, num_tokens: int) -> Iterator[Corpus]:
        """Yield the answers in order, in pieces of about `num_tokens` tokens of answers."""
        number = (np.cumsum(self.lengths) - self.lengths) // num_tokens  # which piece each answer begins in
        for piece in np.unique(number):
            yield self.take(number == piece)

    def save(self, path: Path, recipe: Mapping[str, object]) -> None:
        """Write one compressed file, whole or not at all; the same content gives the same bytes.

        Parameters
        ----------
        path : Path
            Ends in `.npz`.
        recipe : mapping
            How the answers were made; kept beside them as JSON.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.unfinished")
        with unfinished.open("wb") as file:
            np.savez_compressed(file, recipe=json.dumps(recipe, sort_keys=True), **vars(self))
        unfinished.replace(path)


_NAMES = tuple(field.name for field in fields(Corpus))


def from_answers(answers: Sequence[Answer]) -> Corpus:
    """Gather finished answers."""
    prompts = [answer.question.prompt for answer in answers]
    return Corpus(
        prompt_ids=np.array([prompt.id for prompt in prompts], dtype="<U16"),
        kinds=np.array([prompt.kind for prompt in prompts], dtype="<U16"),
        temperatures=np.array([prompt.temperature for prompt in prompts], dtype=np.float32),
        held_out=np.array([prompt.held_out for prompt in prompts], dtype=bool),
        prompt_lengths=np.array([len(answer.question.tokens) for answer in answers], dtype=np.int32),
        lengths=np.array([len(answer.tokens) for answer in answers], dtype=np.int32),
        prompt_tokens=np.array([token for answer in answers for token in answer.question.tokens], dtype=np.uint16),
        tokens=np.array([token for answer in answers for token in answer.tokens], dtype=np.uint16),
        top_ids=np.array([ids for answer in answers for ids in answer.top_ids], dtype=np.uint16),
        top_logprobs=np.array([values for answer in answers for values in answer.top_logprobs], dtype=np.float16),
    )


def load(paths: Iterable[Path]) -> tuple[Corpus, dict[str, object]]:
    """Read files that one recipe made, in the order given, and return their content as one, with the recipe.

    Only `dtype`, the arithmetic that wrote the text, may differ between the files: then the recipe names both.

    Raises
    ------
    ValueError
        If there is no file, one is damaged, or their recipes differ.
    """
    pieces: list[dict[str, np.ndarray]] = []
    recipe: dict[str, object] = {}
    arithmetic: set[str] = set()
    for path in paths:
        try:
            with np.load(path, allow_pickle=False) as file:
                piece = {name: file[name] for name in (*_NAMES, "recipe")}
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise ValueError(f"the corpus file {path} cannot be read ({error}): delete it and try again") from error
        its_recipe = json.loads(str(piece.pop("recipe")))
        if pieces and not same_text(its_recipe, recipe):
            raise ValueError(f"the corpus file {path} was made by another recipe than the files beside it")
        arithmetic |= set(str(its_recipe.get("dtype", "")).split(" and "))
        pieces.append(piece)
        recipe = its_recipe
    if not pieces:
        raise ValueError("there is no corpus file to read: run `specdec train corpus` first")
    if "dtype" in recipe:
        recipe["dtype"] = " and ".join(sorted(arithmetic))
    return Corpus(**{name: np.concatenate([piece[name] for piece in pieces]) for name in _NAMES}), recipe


def same_text(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Tell whether two recipes make the same kind of text: they differ at most in the arithmetic."""
    return {**one, "dtype": None} == {**other, "dtype": None}


def shard_paths(folder: Path) -> list[Path]:
    """Return the shards in a folder, in the order they were written."""
    return sorted(folder.glob("shard-*.npz"))


def _number(shard: Path) -> int:
    return int(shard.stem.removeprefix("shard-"))


def _num_tokens(shard: Path) -> int:
    with np.load(shard, allow_pickle=False) as file:
        return int(file["lengths"].sum())  # the only array that is read


class Shards:
    """A folder of shards that grows.

    Parameters
    ----------
    folder : Path
        Made with the first shard.
    recipe : mapping
        What the answers depend on. A folder holds the answers of one recipe.
    part, parts : int
        Several programs may write to one folder, each with shard numbers of its own: `part`, `part + parts`, ...

    Attributes
    ----------
    finished : set of str
        Ids of the prompts that are answered, by whichever program.
    num_tokens : int
        Tokens in the shards of this part.

    Raises
    ------
    ValueError
        If the folder holds answers made by another recipe, or a damaged file.
    """

    def __init__(self, folder: Path, recipe: Mapping[str, object], part: int = 0, parts: int = 1) -> None:
        self.folder, self.recipe = folder, dict(recipe)
        self._part, self._parts = part, parts
        self.finished: set[str] = set()  # prompt ids
        self.num_tokens = 0
        if paths := shard_paths(folder):
            held, its_recipe = load(paths)
            if not same_text(its_recipe, self.recipe):
                raise ValueError(
                    f"the folder {folder} holds answers made otherwise ({its_recipe}, not {self.recipe}): "
                    "choose another folder"
                )
            self.finished = set(held.prompt_ids.tolist())
            self.num_tokens = sum(_num_tokens(path) for path in paths if _number(path) % parts == part)

    def append(self, corpus: Corpus) -> None:
        """Write finished answers as one more shard; none, if there are none."""
        if not len(corpus):
            return
        taken = [_number(path) for path in shard_paths(self.folder)]
        number = max((one for one in taken if one % self._parts == self._part), default=self._part - self._parts)
        corpus.save(self.folder / f"shard-{number + self._parts:05d}.npz", self.recipe)
        self.finished |= set(corpus.prompt_ids.tolist())
        self.num_tokens += len(corpus.tokens)


def collect(passes: Iterable[Pass], shards: Shards, tokens_per_shard: int) -> Iterator[int]:
    """Write the answers to shards as they are finished, and yield the number of tokens written after each.

    What is finished but not yet in a shard is written even when the work is interrupted from the keyboard.
    """
    kept: list[Answer] = []
    try:
        for one in passes:
            kept += one.finished
            if sum(len(answer.tokens) for answer in kept) >= tokens_per_shard:
                shards.append(from_answers(kept))
                kept = []
                yield shards.num_tokens
    finally:
        shards.append(from_answers(kept))
    yield shards.num_tokens


def split(paths: Sequence[Path]) -> tuple[Corpus, Corpus, dict[str, object]]:
    """Return the narrow record, without laws and in the order of the prompt ids: train, held out, and the recipe.

    It does not depend on how the work was cut into files. Of two answers to one prompt, the first file's is kept.
    """
    corpus, recipe = load(paths)
    _, firsts = np.unique(corpus.prompt_ids, return_index=True)
    corpus = corpus.take(firsts).without_laws()
    return corpus.take(~corpus.held_out), corpus.take(corpus.held_out), recipe


def _spans(lengths: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the places of the tokens of these rows, when the tokens of all rows stand one after another."""
    starts = np.cumsum(lengths) - lengths
    first = np.repeat(starts[rows], lengths[rows])  # where the row of each wanted token begins
    before = np.repeat(np.cumsum(lengths[rows]) - lengths[rows], lengths[rows])  # wanted tokens of the rows before
    return first + np.arange(len(first)) - before
