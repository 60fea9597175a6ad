"""The texts being written: what each row holds, when it ends, and which random numbers are its own.

Plain decoding and speculative decoding share this file, so both stop at the same token and draw from the same keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch

from specdec_ref.device import upload
from specdec_ref.model import pad
from specdec_ref.sampling import Purpose, SamplingSettings, uniforms


@dataclass(frozen=True)
class Stop:
    """When a row ends, beside its budget.

    Parameters
    ----------
    token_ids : tuple of int
        The row ends with the first of these; it is kept as the last token.
    strings : tuple of str
        The row ends with the token that completes one of these in the new text.
    decode : callable(list of int) -> str, or None
        Turns token ids into text. Needed for `strings`.
    """

    token_ids: tuple[int, ...] = ()
    strings: tuple[str, ...] = ()
    decode: Callable[[list[int]], str] | None = None

    def __post_init__(self) -> None:
        """Refuse strings that can never be looked for, and one id or string where several are meant."""
        if not isinstance(self.token_ids, Collection) or isinstance(self.strings, str):
            raise ValueError(f"stop token_ids={self.token_ids!r} and strings={self.strings!r} must be tuples")
        if self.strings and self.decode is None:
            raise ValueError(f"stop strings {self.strings!r} need a `decode` function to turn tokens into text")
        if "" in self.strings:
            raise ValueError("stop strings hold an empty string, which every text contains")

    def find(self, new_tokens: list[int], start: int) -> tuple[int, str] | None:
        """Return (how many of `new_tokens` to keep, reason) if the row ends at `start` or later, else None."""
        for end in range(start + 1, len(new_tokens) + 1):
            if new_tokens[end - 1] in self.token_ids:
                return end, "eos"
            if self.strings:
                assert self.decode is not None  # __post_init__ saw to it
                text = self.decode(new_tokens[:end])
                if any(string in text for string in self.strings):
                    return end, "stop string"
        return None


@dataclass(frozen=True)
class Round:
    """What one round did. Lists have one entry per row of the original batch; a row that had ended has empty entries.

    Attributes
    ----------
    tokens : list of list of int
        New tokens of each row, already cut at its end of text and budget.
    drafts : list of list of int
        The tokens proposed for each row; empty in plain decoding.
    num_accepted : list of int
        How many of them the target accepted, from the left, as judged (before that cut).
    finished : list of str or None
        Why a row ended in this round: "eos", "stop string", "max_new_tokens" or "context"; None if it did not.
    """

    tokens: list[list[int]]
    drafts: list[list[int]]
    num_accepted: list[int]
    finished: list[str | None]

    @property
    def num_drafted(self) -> list[int]:
        """How many tokens were proposed for each row."""
        return [len(draft) for draft in self.drafts]


class Rows:
    """The unfinished rows of a batch. Row numbers here count unfinished rows; `original` maps them back.

    Parameters
    ----------
    prompts : sequence of sequences of int
        B ragged prompts of at least one token.
    settings : SamplingSettings
        The same for all rows.
    max_new_tokens : int
        Budget per row.
    max_length : int
        Longest text the target can hold, prompt included.
    stop : Stop
        Ends of text.
    seeds : sequence of int
        One per row. A row's draws depend on its own seed alone, not on its place in the batch.
    device : torch.device
        Where uniforms are wanted.
    """

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        settings: SamplingSettings,
        max_new_tokens: int,
        max_length: int,
        stop: Stop,
        seeds: Sequence[int],
        device: torch.device,
    ) -> None:
        self.tokens = [list(prompt) for prompt in prompts]  # prompt and committed tokens
        self.prompt_lengths = [len(prompt) for prompt in prompts]
        self.budgets = [min(max_new_tokens, max_length - len(prompt)) for prompt in prompts]
        self.budget_reason = ["context" if budget < max_new_tokens else "max_new_tokens" for budget in self.budgets]
        self.seeds = [_signed(seed) for seed in seeds]
        self.rounds = [0] * len(prompts)
        self.original = list(range(len(prompts)))
        # Why each row has ended, or None. A row without any budget ends before it begins.
        self.finished: list[str | None] = [
            reason if budget == 0 else None for reason, budget in zip(self.budget_reason, self.budgets, strict=True)
        ]
        self.batch_size = len(prompts)
        self.settings, self.stop, self.device = settings, stop, device

    def __len__(self) -> int:
        """Return the number of unfinished rows."""
        return len(self.tokens)

    @property
    def lengths(self) -> list[int]:
        """Length of each row's text, prompt included."""
        return [len(tokens) for tokens in self.tokens]

    @property
    def remaining(self) -> list[int]:
        """How many more tokens each row may get."""
        return [self._room(row) for row in range(len(self))]

    def _room(self, row: int) -> int:
        return self.budgets[row] - (len(self.tokens[row]) - self.prompt_lengths[row])

    def last_tokens(self) -> torch.Tensor:
        """Return each row's last committed token, [B, 1], on the device: the one its cache does not hold yet."""
        return upload([[tokens[-1]] for tokens in self.tokens], self.device)

    def history(self, drafted: torch.Tensor | None = None, before: torch.Tensor | None = None) -> torch.Tensor | None:
        """Return what the repetition penalty looks at, or None when there is no penalty.

        Parameters
        ----------
        drafted : Tensor [B, K] int64, or None
            Draft tokens after the committed text.
        before : Tensor [B, K+1, K] bool on the host, or None
            Which drafts each entry sees, for a tree. None: a chain, where entry i sees the drafts before i.

        Returns
        -------
        Tensor [B, N] without drafts; [B, K+1, N+K] with: each entry sees the committed text and drafts before it.
        """
        if self.settings.repetition_penalty == 1:
            return None
        committed = upload(pad(self.tokens, value=-1)[0], self.device)  # [B, N]
        if drafted is None:
            return committed
        width = drafted.shape[1]
        if before is None:
            before = torch.ones(1, width + 1, width, dtype=torch.bool).tril(-1)
        drafts = torch.where(upload(before, self.device).bool(), drafted[:, None], -1)  # [B, K+1, K]
        return torch.cat([committed[:, None].expand(-1, width + 1, -1), drafts], dim=-1)

    def uniforms(self, purpose: Purpose, width: int | None = None) -> torch.Tensor:
        """Return this round's uniforms: [B, width] for the next `width` positions, or [B] for the next one alone."""
        offsets = torch.arange(1 if width is None else width)
        positions = torch.tensor(self.lengths)[:, None] + offsets  # [B, width]
        seeds, rounds = upload(self.seeds, self.device), upload(self.rounds, self.device)
        numbers = uniforms(seeds, rounds, upload(positions, self.device), purpose)
        return numbers[:, 0] if width is None else numbers

    def commit(self, tokens: list[list[int]], drafts: list[list[int]], num_accepted: list[int]) -> Round:
        """Append each row's new tokens, cut where the row ends, and report the round by original row number."""
        report = self.report()
        for row, new in enumerate(tokens):
            kept, self.finished[row] = self._append(row, new)
            self.rounds[row] += 1
            place = self.original[row]
            report.tokens[place], report.finished[place] = kept, self.finished[row]
            report.drafts[place], report.num_accepted[place] = drafts[row], num_accepted[row]
        return report

    def report(self) -> Round:
        """Return a round without tokens that says which rows have ended."""
        finished: list[str | None] = [None] * self.batch_size
        for place, reason in zip(self.original, self.finished, strict=True):
            finished[place] = reason
        return Round([[] for _ in finished], [[] for _ in finished], [0 for _ in finished], finished)

    def _append(self, row: int, new: list[int]) -> tuple[list[int], str | None]:
        new = new[: self._room(row)]
        written = self.tokens[row][self.prompt_lengths[row] :]
        end = self.stop.find(written + new, start=len(written))
        if end is not None:
            new = new[: end[0] - len(written)]
        self.tokens[row] += new
        if end is not None:
            return new, end[1]
        return new, self.budget_reason[row] if self._room(row) == 0 else None

    def select(self, keep: Sequence[int]) -> None:
        """Keep only these rows."""
        for name in ("tokens", "prompt_lengths", "budgets", "budget_reason", "seeds", "rounds", "original", "finished"):
            setattr(self, name, [getattr(self, name)[row] for row in keep])


def _signed(seed: int) -> int:
    """Fold any Python integer into a signed 64-bit one."""
    return (int(seed) + 2**63) % 2**64 - 2**63
