"""A draft model that is helped by a smaller one: speculative decoding inside of the draft.

The middle model drafts for the target, and a drafter of its own drafts for the middle model, in rounds like the
target's. What comes out follows the middle model's law q exactly, as if it had drawn each token itself: that is what
one level of speculation promises. So the next level gets tokens that were drawn from q, with the q they were drawn
from, and what it makes of them follows p.

    target     judges 6 tokens, emits 1 to 7       one pass
    middle     judges 3 tokens, emits 1 to 4       one pass for each of the rounds that the 6 take
    micro      drafts                              three passes for each of those

The uniforms of the inner rounds have keys of their own (another seed for each level), so no number serves twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

import torch

from specdec_ref.acceptance import Verification, verify_chain
from specdec_ref.device import read, upload
from specdec_ref.drafters.base import Draft, Drafter
from specdec_ref.drafters.chain import no_draft
from specdec_ref.model import CachedLM, pad
from specdec_ref.rows import Round, Rows, Stop
from specdec_ref.sampling import Purpose, healthy_rows, inner_seeds, probabilities

if TYPE_CHECKING:
    from specdec_ref.pairs import Pair

Watch = Callable[[Round], object]  # told of each round that the middle model judges


def for_pair(pair: Pair, inner: Drafter) -> StagedDrafter:
    """Return the drafter of a pair's draft model, for which `inner` drafts."""
    return StagedDrafter(pair.draft, inner)


class StagedDrafter(Drafter):
    """Draft with `middle`, for which `inner` drafts.

    Parameters
    ----------
    middle : CachedLM
        The draft model. It shares the target's tokenizer and vocabulary.
    inner : Drafter
        Any drafter of chains that can take text back and needs no features; another staged one too.
    num_draft_tokens : int
        How many tokens `inner` may propose in an inner round.
    watch : callable(Round), or None
        Told of every inner round, for the statistics of this level: `Run.rounds.append` of `specdec_ref.measure`.

    Source
    ------
    Spector and Re 2023, "Accelerating LLM inference with staged speculative decoding" (arXiv 2308.04623).
    """

    def __init__(self, middle: CachedLM, inner: Drafter, num_draft_tokens: int = 3, watch: Watch | None = None) -> None:
        if inner.wants_features:
            raise ValueError(f"inner={type(inner).__name__} reads features, which only the target has")
        if type(inner).rewind is Drafter.rewind:
            raise ValueError(
                f"inner={type(inner).__name__} cannot take text back, so it cannot draft inside of a drafter"
            )
        if num_draft_tokens < 1:
            raise ValueError(f"num_draft_tokens={num_draft_tokens} must be >= 1: what else should the inner level do?")
        self.middle, self.inner, self.num_draft_tokens, self.watch = middle, inner, num_draft_tokens, watch
        self.lm = middle
        self.committed = torch.empty(0, dtype=torch.int64)
        self.rounds: list[int] = []  # of each row, over the whole text: part of the key of its uniforms
        self.original: list[int] = []
        self.batch_size = 0

    def fresh(self, target: CachedLM, rows: Rows) -> Self:
        """Return a copy with empty caches. All models must share a device, target and middle a vocabulary."""
        if self.middle.device != target.device:
            raise ValueError(
                f"draft model {self.middle.name!r} is on {self.middle.device}, "
                f"the target {target.name!r} on {target.device}"
            )
        if self.middle.vocab_size != target.vocab_size:
            raise ValueError(
                f"draft model {self.middle.name!r} has {self.middle.vocab_size} tokens, "
                f"the target {target.name!r} {target.vocab_size}: staged drafts need one vocabulary"
            )
        other = super().fresh(target, rows)
        other.lm = self.middle.fresh(len(rows))
        other.inner = self.inner.fresh(other.lm, rows)
        other.rounds, other.original = [0] * len(rows), list(range(len(rows)))
        other.batch_size = len(rows)
        return other

    def propose(self, rows: Rows, limits: Sequence[int]) -> Draft:
        """Let the middle model write up to `limits[b]` tokens per row, speculatively."""
        self.committed = torch.tensor(rows.lengths)
        room = (self.lm.max_length + 1 - self.committed).clamp(min=0)
        counts = torch.minimum(torch.tensor(limits), room)
        width = int(counts.max())
        if width == 0:
            return no_draft(rows)
        level = self._level(rows, counts.tolist())
        probs: torch.Tensor | None = None  # [B, K, V]
        healthy = torch.ones(len(rows), width, dtype=torch.bool, device=rows.device)
        while any(level.remaining):
            begun = [len(tokens) - length for tokens, length in zip(level.tokens, rows.lengths, strict=True)]
            law, well = self._inner_round(level)  # [B, 1+k, V], [B, 1+k]
            written = [len(tokens) - length for tokens, length in zip(level.tokens, rows.lengths, strict=True)]
            # Where each new token stands in the draft, and in this round.
            places = [(b, to, to - begun[b]) for b in range(len(rows)) for to in range(begun[b], written[b])]
            row, to, at = upload(places, rows.device).unbind(1)
            healthy[row, to] = well[row, at]
            if not rows.settings.greedy:
                probs = law.new_zeros(len(rows), width, law.shape[-1]) if probs is None else probs
                probs[row, to] = law[row, at]
        self.rounds = level.rounds
        drafts = [tokens[length:] for tokens, length in zip(level.tokens, rows.lengths, strict=True)]
        return Draft(upload(pad(drafts)[0], rows.device), counts, probs, healthy)

    def commit(self, verification: Verification) -> None:
        """Take back what the target refused, on both levels."""
        self.rewind((self.committed + verification.num_accepted).tolist())

    def rewind(self, lengths: Sequence[int]) -> None:
        """Forget all tokens after the first `lengths[b]`."""
        self.lm.rollback((self.lm.cache.lengths - torch.tensor(lengths)).clamp(min=0))
        self.inner.rewind(lengths)

    def select(self, keep: Sequence[int]) -> None:
        """Keep only these rows."""
        self.lm.select(keep)
        self.inner.select(keep)
        self.rounds, self.original = ([values[row] for row in keep] for values in (self.rounds, self.original))

    def _level(self, rows: Rows, budgets: list[int]) -> Rows:
        """Return the rows as the inner level sees them: the middle model goes on with each text for its budget."""
        level = Rows(rows.tokens, rows.settings, 0, self.lm.max_length, Stop(), inner_seeds(rows.seeds), rows.device)
        level.budgets, level.rounds = budgets, list(self.rounds)
        level.original, level.batch_size = self.original, self.batch_size
        return level

    def _inner_round(self, level: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """Draft, judge by the middle model and commit, once. Rows whose budget is used up sit it out.

        Returns
        -------
        The middle model's laws after each row's text and after each inner draft token, [B, 1+k, V], and whether they
        are laws at all, and the inner draft's too, [B, 1+k].
        """
        goes_on = torch.tensor(level.remaining) > 0  # [B]
        limits = [min(self.num_draft_tokens, max(left - 1, 0)) for left in level.remaining]
        draft = self.inner.propose(level, limits)
        draft.check(limits, self.lm.vocab_size)
        if draft.parents is not None:
            raise ValueError(f"inner={type(self.inner).__name__} drafts trees; a staged drafter needs chains")
        counts = upload(draft.counts, level.device)
        logits = self._feed(level, draft, goes_on)  # [B, 1+k, V]
        law = probabilities(logits, level.settings, level.history(draft.tokens), check=False)
        verdict = verify_chain(
            law,
            draft.tokens,
            draft.probs,
            level.uniforms(Purpose.ACCEPT, draft.width),
            level.uniforms(Purpose.CORRECT),
            counts,
            check=False,
        )
        packet = read(torch.cat([verdict.num_accepted[:, None], verdict.next_token[:, None], draft.tokens], 1))
        accepted = torch.where(goes_on, packet[:, 0], 0)
        self.lm.rollback(draft.counts - accepted)
        self.inner.commit(Verification(accepted, packet[:, 1]))
        drafts = [line[:count] for line, count in zip(packet[:, 2:].tolist(), draft.counts.tolist(), strict=True)]
        emitted = [
            [*line[:kept], following] if goes else []
            for line, kept, following, goes in zip(
                drafts, accepted.tolist(), packet[:, 1].tolist(), goes_on.tolist(), strict=True
            )
        ]
        rounds = list(level.rounds)
        report = level.commit(emitted, drafts, accepted.tolist())
        # A row that waits for others has no round: its later numbers must not depend on them.
        level.rounds = [number + goes for number, goes in zip(rounds, goes_on.tolist(), strict=True)]
        if self.watch is not None:
            self.watch(report)
        return law, healthy_rows(logits) & draft.plausible(level.device)[:, None]

    def _feed(self, level: Rows, draft: Draft, goes_on: torch.Tensor) -> torch.Tensor:
        """Feed what is written and not in the cache, with the draft behind it, and return the logits from there on.

        Not in the cache is the last token of each text, and the one before it too if the target has just accepted a
        whole draft. So the blocks of the rows begin at different places; the laws that come back do not.
        """
        missing = [
            tokens[held:] if goes else []
            for tokens, held, goes in zip(level.tokens, self.lm.cache.lengths.tolist(), goes_on.tolist(), strict=True)
        ]
        self.lm.prefill([tokens[:-2] for tokens in missing])
        tail, counts = pad([tokens[-2:] for tokens in missing])
        both = torch.cat([upload(tail, level.device), draft.tokens], dim=1)  # [B, T+k]
        column = torch.arange(both.shape[1])
        source = torch.where(column < counts[:, None], column, column + tail.shape[1] - counts[:, None])
        block = both.gather(1, upload(source.clamp(max=both.shape[1] - 1), level.device))
        logits = self.lm.extend(block, counts + draft.counts)
        if tail.shape[1] == 1:
            return logits
        wanted = (counts - 1).clamp(min=0)[:, None] + torch.arange(1 + draft.width)
        return logits.gather(1, upload(wanted, level.device)[..., None].expand(-1, -1, logits.shape[-1]))
