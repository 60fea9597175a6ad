"""Train Medusa heads for the tiny target inside a lesson: the recipe of `specdec train medusa`, on few texts.

The command learns from thousands of texts that the target wrote. Here it writes a few, in seconds. From there on
everything is the command's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from transformers.utils import logging

from specdec_ref.heads import MedusaHeads, load_medusa, stored
from specdec_ref.pairs import Pair
from specdec_ref.training import medusa
from specdec_ref.training.answering import Question, answer_all
from specdec_ref.training.corpus import from_answers
from specdec_ref.training.ground import Place, prepare
from specdec_ref.training.heads import run_medusa
from specdec_ref.training.held_out import Figures
from specdec_ref.training.medusa import MedusaPlan
from specdec_ref.training.stories import story
from specdec_ref.training.tiny_text import encode, openings

TREE_FIGURE = "tokens per round, tree of 3x2x1, greedy"
_STORIES = 700  # enough for the openings of one lesson, and of other luck than those that made the models
_SEED = 7


@dataclass(frozen=True)
class Trained:
    """Heads, and what their training looked like.

    Attributes
    ----------
    heads : MedusaHeads
        As they are stored, ready to draft.
    losses : list of float
        Of each step.
    looks : list of dict
        Figures on held-out text along the way, each with `step`; see `specdec_ref.training.medusa.estimate`.
    figures_of : callable(MedusaHeads) -> dict
        The same figures for any other heads of this target.
    """

    heads: MedusaHeads
    losses: list[float]
    looks: list[Figures]
    figures_of: Callable[[MedusaHeads], Figures]


def write_text(pair: Pair, folder: Path, num_texts: int, num_held_out: int, max_new_tokens: int = 96) -> int:
    """Let the target continue openings of stories, and keep its words with its laws; return the number of tokens.

    Parameters
    ----------
    pair : Pair
        The tiny one: the openings are in its vocabulary.
    folder : Path
        Receives the text.
    num_texts, num_held_out : int
        Texts to learn from, at temperatures 0, 0.7 and 1, and greedy texts to measure on.
    max_new_tokens : int
        Longest text.
    """
    stories = [story(number, _SEED) for number in range(_STORIES)]
    begun = openings(encode(stories, pair.tokenizer), pair.tokenizer, (4, 12, 24))
    learned = islice((one for one in begun if not one.prompt.held_out), num_texts)
    held_out = islice((one for one in begun if one.prompt.held_out and one.prompt.temperature == 0), num_held_out)
    questions: Sequence[Question] = [*learned, *held_out]
    passes = answer_all(
        pair.target, questions, batch_size=64, max_new_tokens=max_new_tokens, eos_token_ids=pair.eos_token_ids
    )
    text = from_answers([answer for one in passes for answer in one.finished])
    weights = stored.weights_of(pair.target_folder)
    text.save(folder / "text" / "shard-00000.npz", {"weights": weights})
    return len(text.tokens)


def train_heads(pair: Pair, folder: Path, *, epochs: float, heads: int = 3, look_every: int = 20) -> Trained:
    """Train heads on the text in a folder, as `specdec train medusa --target tiny --learning-rate 0.003` does.

    Parameters
    ----------
    pair, folder
        As for `write_text`.
    epochs : float
        How often each text is read.
    heads : int
        How many.
    look_every : int
        Steps between looks at the held-out text, and between two printed lines.
    """

    def tell(name: str, done: int, total: int, remark: str) -> None:
        if name != "features" and (done % look_every == 0 or done == total):
            print(f"step {done:4} of {total}: {remark}")

    work, out = folder / "work", folder / "tiny-medusa"
    place = Place(
        pair.target_folder, folder / "text", folder / "features", work, out, None, "the lesson of stage 07", tell
    )
    plan = MedusaPlan(epochs, learning_rate=3e-3, dtype="float32", save_every=10**6, look_every=look_every)
    logging.disable_progress_bar()  # in a notebook it would be stored as an error message
    run_medusa(place, plan, heads=heads, look_tokens=None)
    curve = json.loads((work / "curve.json").read_text(encoding="utf-8"))
    held_out = prepare(place, tokens=None, look_tokens=None, dtype="float32").held_out
    return Trained(
        load_medusa(out, pair.target, pair.target_folder),
        curve["losses"],
        curve["looks"],
        lambda other: medusa.estimate(other, held_out.corpus, held_out.features),
    )
