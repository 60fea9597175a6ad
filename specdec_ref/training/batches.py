"""A corpus cut into batches, in an order that the seed and the step's number decide, and nothing else."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from transformers import LlamaForCausalLM

from specdec_ref.training.corpus import Corpus


@dataclass(frozen=True)
class Batch:
    """Some answers, ready for one pass: N laws in B rows.

    Attributes
    ----------
    tokens : Tensor [B, T] int64
        Prompt and answer, right-padded. Attention is causal, so padding needs no mask: nothing real sees it.
    rows, columns : Tensor [N] int64
        Where the pass has to predict a token of an answer. Only there are logits computed.
    labels : Tensor [N] int64
        That token.
    top_ids, log_p : Tensor [N, TOP] int64 and float32
        Its law; TOP is 0 where the record holds no laws.
    """

    tokens: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor
    labels: torch.Tensor
    top_ids: torch.Tensor
    log_p: torch.Tensor


class Batches:
    """The batches of a corpus, in an order that the seed and the step's number decide.

    Answers of like length share a batch, since padding is wasted work: each epoch shuffles all answers, sorts windows
    of some hundred by length, cuts them into batches and shuffles those.

    Parameters
    ----------
    corpus : Corpus
        What to learn.
    batch_size : int
        Answers in a batch.
    seed : int
        Of the order.
    """

    WINDOW = 32  # batches in a window

    def __init__(self, corpus: Corpus, batch_size: int, seed: int) -> None:
        if not len(corpus):
            raise ValueError("corpus is empty: there is nothing to learn from")
        self.corpus, self.batch_size, self.seed = corpus, batch_size, seed
        self._prompts, self._answers = corpus.prompts(), corpus.answers()
        self._starts = np.cumsum(corpus.lengths) - corpus.lengths
        self._epoch, self._plan = -1, list[np.ndarray]()

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return -(-len(self.corpus) // self.batch_size)

    def __getitem__(self, step: int) -> Batch:
        """Return the batch of a step; steps go on through the epochs."""
        epoch, index = divmod(step, len(self))
        if epoch != self._epoch:
            self._epoch, self._plan = epoch, self._order(epoch)
        return self.gather(self._plan[index])

    def _order(self, epoch: int) -> list[np.ndarray]:
        luck = np.random.default_rng([self.seed, epoch])
        rows, lengths = luck.permutation(len(self.corpus)), self.corpus.prompt_lengths + self.corpus.lengths
        window = self.WINDOW * self.batch_size
        windows = [rows[start : start + window] for start in range(0, len(rows), window)]
        rows = np.concatenate([part[np.argsort(lengths[part], kind="stable")] for part in windows])
        plan = [rows[start : start + self.batch_size] for start in range(0, len(rows), self.batch_size)]
        return [plan[index] for index in luck.permutation(len(plan))]

    def gather(self, chosen: np.ndarray) -> Batch:
        """Return these answers as a batch. The last token of an answer predicts nothing, so it is not read."""
        texts = [np.concatenate([self._prompts[row], self._answers[row]])[:-1].astype(np.int64) for row in chosen]
        tokens = np.zeros((len(texts), max(map(len, texts))), dtype=np.int64)
        for line, text in zip(tokens, texts, strict=True):
            line[: len(text)] = text
        lengths, before = self.corpus.lengths[chosen], self.corpus.prompt_lengths[chosen]
        spans = [np.arange(count) for count in lengths]
        places = np.concatenate([start + span for start, span in zip(self._starts[chosen], spans, strict=True)])
        wide = self.corpus.has_laws
        return Batch(
            tokens=torch.from_numpy(tokens),
            rows=torch.from_numpy(np.repeat(np.arange(len(texts)), lengths)),
            columns=torch.from_numpy(
                np.concatenate([first - 1 + span for first, span in zip(before, spans, strict=True)])
            ),
            labels=torch.from_numpy(self.corpus.tokens[places].astype(np.int64)),
            top_ids=torch.from_numpy(self.corpus.top_ids[places if wide else slice(0)].astype(np.int64)),
            log_p=torch.from_numpy(self.corpus.top_logprobs[places if wide else slice(0)].astype(np.float32)),
        )


def fingerprint(corpus: Corpus) -> str:
    """Return 16 hexadecimal digits that differ where the answers do: a run goes on only on the text it began with."""
    digest = hashlib.sha256("\n".join(corpus.prompt_ids.tolist()).encode())
    digest.update(corpus.tokens.tobytes())
    return digest.hexdigest()[:16]


def hidden_states(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    """Return the last hidden states [N, D] where a batch predicts."""
    states = model.model(input_ids=batch.tokens, use_cache=False).last_hidden_state  # [B, T, D]
    return states[batch.rows, batch.columns]
