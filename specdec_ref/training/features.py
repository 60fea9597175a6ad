"""The target's features along a corpus, computed once and kept on disk: every head and every epoch reads them again.

A feature is the last hidden state after the final norm, what the output layer reads. The output layer itself, a fifth
of the work, is left out. The file is an array [N, D] of float16: for each text, in the order of the corpus, one row for
each token of prompt and answer but the last, which predicts nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from specdec_ref.training.batches import Batch, Batches, fingerprint
from specdec_ref.training.corpus import Corpus
from specdec_ref.training.tell import Tell

PASS_TOKENS = 4096  # padding included: enough rows for a matrix product to run at its best
SAVE_EVERY = 16  # passes: what a kill can cost


def text_lengths(corpus: Corpus) -> np.ndarray:
    """Return how many tokens of each text are read: all but the last."""
    return corpus.prompt_lengths.astype(np.int64) + corpus.lengths - 1


class Features:
    """The features of a corpus, read from disk as they are asked for.

    Parameters
    ----------
    path : Path
        The array.
    corpus : Corpus
        The texts, in the order they were computed in.
    width : int
        D.
    """

    def __init__(self, path: Path, corpus: Corpus, width: int) -> None:
        self.lengths = text_lengths(corpus)
        self.starts = np.cumsum(self.lengths) - self.lengths
        self.values = np.memmap(path, dtype=np.float16, mode="r", shape=(int(self.lengths.sum()), width))

    def take(self, rows: np.ndarray) -> torch.Tensor:
        """Return the features of these texts, [B, T, D] float32; zeros after the end of a shorter one."""
        taken = np.zeros((len(rows), int(self.lengths[rows].max()), self.values.shape[1]), dtype=np.float32)
        for line, row in zip(taken, rows, strict=True):
            length = self.lengths[row]
            line[:length] = self.values[self.starts[row] : self.starts[row] + length]
        return torch.from_numpy(taken)


def compute(target: PreTrainedModel, corpus: Corpus, folder: Path, *, weights: str, tell: Tell) -> Features:
    """Compute the features of a corpus, or go on where an earlier call was stopped.

    Parameters
    ----------
    target : PreTrainedModel
        A causal language model, in the dtype it shall compute in.
    corpus : Corpus
        Texts. Each set of texts has a file of its own in `folder`.
    folder : Path
        Of the arrays.
    weights : str
        SHA-256 of the target's weights.
    tell : Tell
        Told of the progress, in tokens.
    """
    width, dtype = int(target.config.hidden_size), str(target.dtype).removeprefix("torch.")
    name = f"{weights[:8]}-{fingerprint(corpus)}-{dtype}"
    path, state = folder / f"{name}.f16", folder / f"{name}.json"
    lengths = text_lengths(corpus)
    starts, passes = np.cumsum(lengths) - lengths, plan_passes(lengths)
    folder.mkdir(parents=True, exist_ok=True)
    done = json.loads(state.read_text(encoding="utf-8"))["passes"] if state.is_file() and path.is_file() else 0
    shape = (int(lengths.sum()), width)
    if done < len(passes):
        values = np.memmap(path, dtype=np.float16, mode="r+" if done else "w+", shape=shape)
        batches = Batches(corpus, 1, seed=0)
        body = cast(nn.Module, target.base_model)
        for number in range(done, len(passes)):
            rows = passes[number]
            tokens = batches.gather(rows).tokens  # [B, T]; attention is causal, so padding needs no mask
            with torch.inference_mode():
                states = body(input_ids=tokens, use_cache=False).last_hidden_state.half().numpy()  # [B, T, D]
            for row, its_states in zip(rows, states, strict=True):
                values[starts[row] : starts[row] + lengths[row]] = its_states[: lengths[row]]
            if (number + 1) % SAVE_EVERY == 0 or number + 1 == len(passes):
                values.flush()
                unfinished = state.with_name(state.name + ".unfinished")
                unfinished.write_text(json.dumps({"passes": number + 1}) + "\n", encoding="utf-8", newline="\n")
                unfinished.replace(state)
            read = sum(int(lengths[rows].sum()) for rows in passes[: number + 1])
            tell("features", read, shape[0], "tokens")
    return Features(path, corpus, width)


def plan_passes(lengths: np.ndarray) -> list[np.ndarray]:
    """Cut texts, sorted by length, into passes of about `PASS_TOKENS` tokens."""
    passes: list[list[int]] = []
    for row in np.argsort(lengths, kind="stable"):
        if not passes or (len(passes[-1]) + 1) * int(lengths[row]) > PASS_TOKENS:
            passes.append([])
        passes[-1].append(int(row))
    return [np.array(rows) for rows in passes]


@dataclass(frozen=True)
class FeatureBatch(Batch):
    """A batch with the target's features: [B, T, D] float32, one for each of `tokens`."""

    features: torch.Tensor


class FeatureBatches(Batches):
    """The batches of a corpus, with features."""

    def __init__(self, corpus: Corpus, features: Features, batch_size: int, seed: int) -> None:
        super().__init__(corpus, batch_size, seed)
        self.features = features

    def __getitem__(self, step: int) -> FeatureBatch:
        """Return the batch of a step."""
        return cast(FeatureBatch, super().__getitem__(step))

    def gather(self, chosen: np.ndarray) -> FeatureBatch:
        """Return these answers as a batch."""
        return FeatureBatch(**vars(super().gather(chosen)), features=self.features.take(chosen))


def first_tokens(corpus: Corpus, limit: int | None) -> Corpus:
    """Return the first answers that hold `limit` tokens together; all for None.

    The order is that of the prompt ids, which are hashes: a fair sample, however the shards were cut.
    """
    corpus = corpus.take(corpus.prompt_ids.argsort())
    if limit is None:
        return corpus
    before = np.cumsum(corpus.lengths) - corpus.lengths
    return corpus.take(before < limit)
