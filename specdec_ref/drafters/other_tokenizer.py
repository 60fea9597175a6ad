"""A draft model with a tokenizer of its own: two ways to let it draft for a target it was not made for.

`ReencodingDrafter` lets it write on, turns what it wrote into text, and the text into the target's tokens. Any two
tokenizers will do. But no law belongs to the tokens that come out, so they are a deterministic draft, q a point mass,
and the draft model writes greedily: of all ways to write without luck, its likeliest next token is the natural guess.

`SharedTokensDrafter` lets it draw only what both tokenizers have as ONE token, from its law on these tokens, scaled. So
q is known, and sampled drafts are judged as such. What only one of them has is never drafted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import torch

from specdec_ref.device import read, upload
from specdec_ref.drafters.base import Draft, Drafter
from specdec_ref.drafters.chain import draw_chain, feed_missing, no_draft
from specdec_ref.drafters.two_tokenizers import LOOKBEHIND, Bridge, Spelling
from specdec_ref.model import CachedLM, pad

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specdec_ref.acceptance import Verification
    from specdec_ref.pairs import Pair
    from specdec_ref.rows import Rows


def reencoding_for_pair(pair: Pair) -> ReencodingDrafter:
    """Return the drafter that lets tiny-draft write text for a pair's target."""
    from specdec_ref.pairs import load_trained

    return ReencodingDrafter(*load_trained("tiny-draft", pair.target.device), pair.tokenizer)


def shared_tokens_for_pair(pair: Pair) -> SharedTokensDrafter:
    """Return the drafter that lets tiny-draft draw the tokens it shares with a pair's target."""
    from specdec_ref.pairs import load_trained

    return SharedTokensDrafter(*load_trained("tiny-draft", pair.target.device), pair.tokenizer)


class _ForeignDrafter(Drafter):
    """What both have in common: a draft model, and for each row a bridge between the two tokenizers.

    Parameters
    ----------
    model : CachedLM
        The draft model.
    tokenizer, target_tokenizer : PreTrainedTokenizerBase
        Its own and the target's; both byte-level.
    target_lookbehind, assistant_lookbehind : int
        See `Bridge`.
    """

    def __init__(
        self,
        model: CachedLM,
        tokenizer: PreTrainedTokenizerBase,
        target_tokenizer: PreTrainedTokenizerBase,
        *,
        target_lookbehind: int = LOOKBEHIND,
        assistant_lookbehind: int = LOOKBEHIND,
    ) -> None:
        self.model = self.lm = model
        self.own, self.theirs = Spelling(tokenizer), Spelling(target_tokenizer)
        self.lookbehind = target_lookbehind, assistant_lookbehind
        self.bridges = [self._bridge()]  # looks at the numbers at once

    def _bridge(self) -> Bridge:
        return Bridge(self.theirs, self.own, *self.lookbehind)

    def fresh(self, target: CachedLM, rows: Rows) -> Self:
        """Return a copy with an empty cache, and a bridge for every row. Both models must share a device."""
        if self.model.device != target.device:
            raise ValueError(
                f"draft model {self.model.name!r} is on {self.model.device}, "
                f"the target {target.name!r} on {target.device}"
            )
        if target.vocab_size > len(self.theirs.bytes):
            raise ValueError(
                f"target {target.name!r} writes {target.vocab_size} tokens; "
                f"the target_tokenizer knows {len(self.theirs.bytes)}"
            )
        other = super().fresh(target, rows)
        other.lm = self.model.fresh(len(rows))
        other.bridges = [self._bridge() for _ in range(len(rows))]
        return other

    def _cross(self, rows: Rows) -> tuple[list[list[int]], torch.Tensor]:
        """Bring every row's text over; return it in the draft model's tokens, and the room that is left, [B]."""
        same = [bridge.update(text) for bridge, text in zip(self.bridges, rows.tokens, strict=True)]
        texts = [bridge.ids for bridge in self.bridges]
        # The last token is always fed, for the law after it is wanted: also where nothing new has come over.
        keep = torch.tensor([min(count, max(len(text) - 1, 0)) for count, text in zip(same, texts, strict=True)])
        self.lm.rollback((self.lm.cache.lengths - keep).clamp(min=0))
        room = [self.lm.max_length + 1 - len(text) if text else 0 for text in texts]
        return texts, torch.tensor(room).clamp(min=0)

    def commit(self, verification: Verification) -> None:
        """Do nothing: the cache holds the text alone, and the next round brings over what has become of the draft."""

    def select(self, keep: Sequence[int]) -> None:
        """Keep only these rows."""
        self.lm.select(keep)
        self.bridges = [self.bridges[row] for row in keep]


class ReencodingDrafter(_ForeignDrafter):
    """Draft by text: a point mass on what the draft model would write.

    Source
    ------
    Universal assisted generation, transformers 4.46; Timor et al. 2025 (arXiv 2502.05202), section 3.
    """

    @torch.inference_mode()
    def propose(self, rows: Rows, limits: Sequence[int]) -> Draft:
        """Write on greedily, and translate up to `limits[b]` tokens per row; nothing where the two cannot be joined."""
        texts, room = self._cross(rows)
        # As many of its own tokens as that many of the target's have been so far.
        wanted = [
            math.ceil(limit * len(text) / len(tokens))
            for limit, text, tokens in zip(limits, texts, rows.tokens, strict=True)
        ]
        counts = torch.minimum(torch.tensor(wanted), room)
        width = int(counts.max())
        if width == 0:
            return no_draft(rows)
        written = [feed_missing(self.lm, texts, (room > 0).tolist()).argmax(-1)]  # [B] each
        held = self.lm.cache.lengths
        for _ in range(1, width):
            written.append(self.lm.extend(written[-1][:, None])[:, -1].argmax(-1))
        self.lm.rollback(self.lm.cache.lengths - held)
        drafts = [
            bridge.translate(line[:count])[:limit]
            for bridge, line, count, limit in zip(
                self.bridges, read(torch.stack(written, 1)).tolist(), counts.tolist(), limits, strict=True
            )
        ]
        tokens, counts = pad(drafts)
        return Draft(upload(tokens, rows.device), counts)


class SharedTokensDrafter(_ForeignDrafter):
    """Draft tokens that both vocabularies have, under the same sampling settings as the target.

    Source
    ------
    Timor et al. 2025, "Accelerating LLM inference with lossless speculative decoding algorithms for heterogeneous
    vocabularies" (arXiv 2502.05202), algorithm 4, token-level intersection.
    """

    def __init__(
        self,
        model: CachedLM,
        tokenizer: PreTrainedTokenizerBase,
        target_tokenizer: PreTrainedTokenizerBase,
        *,
        target_lookbehind: int = LOOKBEHIND,
    ) -> None:
        super().__init__(model, tokenizer, target_tokenizer, target_lookbehind=target_lookbehind)
        self.vocab_size = len(self.theirs.bytes)
        ids = {said: token for token, said in enumerate(self.own.bytes[: model.vocab_size]) if said}
        shared = [(ids[said], token) for token, said in enumerate(self.theirs.bytes) if said in ids]
        if not shared:
            raise ValueError(
                f"tokenizer of {model.name!r} shares no token with target_tokenizer: nothing can be drafted"
            )
        self.shared = upload(shared, model.device)  # [S, 2]: the id of each shared token on both sides
        self.to_own = torch.zeros(self.vocab_size, dtype=torch.int64, device=model.device)
        self.to_own[self.shared[:, 1]] = self.shared[:, 0]

    def fresh(self, target: CachedLM, rows: Rows) -> Self:
        """Return a copy that drafts in the vocabulary of `target`."""
        other = super().fresh(target, rows)
        other.vocab_size = target.vocab_size
        other.shared = self.shared[self.shared[:, 1] < target.vocab_size]
        return other

    @torch.inference_mode()
    def propose(self, rows: Rows, limits: Sequence[int]) -> Draft:
        """Draw up to `limits[b]` tokens per row; none where the text ends inside of a character."""
        texts, room = self._cross(rows)
        whole = torch.tensor([not bridge.pending for bridge in self.bridges])
        counts = torch.where(whole, torch.minimum(torch.tensor(limits), room), 0)
        if int(counts.max()) == 0:
            return no_draft(rows)
        logits = self._restrict(feed_missing(self.lm, texts, (room > 0).tolist()))
        held = self.lm.cache.lengths
        draft = draw_chain(
            rows, counts, logits, lambda tokens: self._restrict(self.lm.extend(self.to_own[tokens])[:, -1])
        )
        self.lm.rollback(self.lm.cache.lengths - held)
        return draft

    def _restrict(self, logits: torch.Tensor) -> torch.Tensor:
        """Return logits over the target's ids, [B, V]; what is not shared is never drawn."""
        wide = logits.new_full((len(logits), self.vocab_size), -torch.inf)
        return wide.index_copy_(1, self.shared[:, 1], logits[:, self.shared[:, 0]])
