"""What transformers' `generate` did, round by round: it streams tokens, and a hook sees the target's passes."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from specdec_ref.device import synchronize
from specdec_ref.measure import Clock, Run
from specdec_ref.rows import Round


class Recorder(BaseStreamer):
    """Turns what `generate` streams into a `Run`: the times, the tokens, and, from the target's passes, the drafts."""

    def __init__(
        self, target: PreTrainedModel, prompt_length: int, batch: int, eos: tuple[int, ...], clock: Clock
    ) -> None:
        self.target, self.clock, self.eos = target, clock, eos
        self.run, self.ended = Run(), [False] * batch
        self.skip = prompt_length  # how much of the next pass was known before
        self.drafts: list[int] = []
        self.prompt_seen = False
        self.last = clock()

    def watching(self) -> Any:
        """Look at the target's passes while the context is open."""
        return self.target.register_forward_pre_hook(self._before_pass, with_kwargs=True)

    def _before_pass(self, module: torch.nn.Module, _: Any, kwargs: dict[str, Any]) -> None:
        if module is self.target:  # a draft made of the target's own layers may share its hooks
            self.drafts = kwargs["input_ids"][0, self.skip :].tolist()
            self.skip = 1

    def put(self, value: torch.Tensor) -> None:
        """Take the tokens of one round: [B] of a plain step, [1, n] of an assisted round; first of all the prompt."""
        if not self.prompt_seen:
            self.prompt_seen = True
            return
        synchronize(self.target.device)
        now = self.clock()
        rows = value.tolist() if value.dim() == 2 else [[token] for token in value.tolist()]
        kept = [[] if ended else row for row, ended in zip(rows, self.ended, strict=True)]
        self.ended = [
            ended or any(token in self.eos for token in row) for row, ended in zip(kept, self.ended, strict=True)
        ]
        accepted = [common_prefix(row, self.drafts) for row in kept]
        drafts = [self.drafts] if self.drafts else [[] for _ in kept]
        self.run.rounds.append(Round(kept, drafts, accepted, ["eos" if ended else None for ended in self.ended]))
        self.run.seconds.append(now - self.last)
        self.last = now

    def end(self) -> None:
        """Nothing is held back."""


def common_prefix(first: list[int], second: list[int]) -> int:
    """Return how many tokens two lists share from the left. A correction is never the token that was refused."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(first), len(second)))
