"""A drafter made of the three functions that a learner writes in stage 10: text over to the draft model, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Self

import torch

from specdec_ref.device import upload
from specdec_ref.drafters.base import Draft, Drafter
from specdec_ref.drafters.chain import no_draft
from specdec_ref.drafters.two_tokenizers import Spelling
from specdec_ref.model import CachedLM
from specdec_ref.rows import Rows

Encode = Callable[[str], list[str]]


class Pieces:
    """A byte-level tokenizer whose tokens are texts, with a letter for each byte: so the functions count letters.

    A byte is a letter of Latin-1. For English text that is the text itself; an é becomes two letters.
    """

    def __init__(self, spelling: Spelling) -> None:
        self.spelling = spelling
        self.said = [said.decode("latin-1") for said in spelling.bytes]
        self.ids = {said: token for token, said in enumerate(self.said) if said}

    def encode(self, text: str) -> list[str]:
        """Return the tokens of a text of whole characters."""
        return [self.said[token] for token in self.spelling.encode(text.encode("latin-1"))]


class TranslatedDrafts(Drafter):
    """Let a model with a tokenizer of its own draft for one text, greedily.

    Parameters
    ----------
    lm : CachedLM
        The draft model.
    own, target : Spelling
        Its tokenizer and the target's.
    whole_characters, rejoin, translate : callable
        As exercises 10.1 to 10.3 ask for them.
    lookbehind : int
        Tokens, on both sides.
    """

    def __init__(
        self,
        lm: CachedLM,
        own: Spelling,
        target: Spelling,
        whole_characters: Callable[[list[int]], tuple[str, list[int]]],
        rejoin: Callable[[list[str], str, str, Encode], list[str]],
        translate: Callable[[str, str, Encode], list[str]],
        lookbehind: int = 10,
    ) -> None:
        self.lm, self.own, self.target = lm, Pieces(own), Pieces(target)
        self.whole_characters, self.rejoin, self.translate = whole_characters, rejoin, translate
        self.lookbehind = lookbehind
        self.begin_text()

    def begin_text(self) -> None:
        """Forget everything about the text."""
        self.text = ""  # a letter for each byte of the text's whole characters
        self.held: list[int] = []  # bytes of a character that has begun
        self.starts: list[int] = []  # where each of the target's tokens begins
        self.pieces: list[str] = []  # the text in the draft model's tokens
        self.fed: list[int] = []  # ids in the draft model's cache

    def fresh(self, target: CachedLM, rows: Rows) -> Self:
        """Return a copy for one text."""
        if len(rows) > 1:
            raise ValueError(f"rows: {len(rows)} texts at once; this drafter serves one")
        other = super().fresh(target, rows)
        other.lm = self.lm.fresh(len(rows))
        other.begin_text()
        return other

    def propose(self, rows: Rows, limits: Sequence[int]) -> Draft:
        """Write on in the draft model's tokens, and translate up to `limits[0]` tokens."""
        tokens, limit = rows.tokens[0], limits[0]
        self._hear(tokens)
        ids = [*self.own.spelling.prefix, *(self.own.ids[piece] for piece in self.pieces)]
        count = math.ceil(limit * len(ids) / len(tokens))
        if self.held or not ids or limit < 1 or len(ids) + count > self.lm.max_length:
            return no_draft(rows)
        said = [byte for token in self._write(ids, count) for byte in self.own.spelling.bytes[token]]
        written = self.whole_characters(said)[0].encode().decode("latin-1")
        if not written:
            return no_draft(rows)
        back = sum(len(piece) for piece in self.pieces[-self.lookbehind :])
        begin = self._whole_from(len(self.text) - back)
        draft = [self.target.ids[piece] for piece in self.translate(self.text[begin:], written, self.target.encode)]
        draft = draft[:limit]
        return Draft(upload([draft], rows.device), torch.tensor([len(draft)])) if draft else no_draft(rows)

    def _hear(self, tokens: Sequence[int]) -> None:
        """Bring over what the target's text has grown by."""
        window = self.starts[max(len(self.starts) - self.lookbehind, 0)] if self.starts else 0
        raw = list(self.held)
        for token in tokens[len(self.starts) :]:
            self.starts.append(len(self.text) + len(raw))
            raw += self.target.spelling.bytes[token]
        found, self.held = self.whole_characters(raw)
        new = found.encode().decode("latin-1")
        if new:
            begin = self._whole_from(min(window, len(self.text)))
            self.pieces = self.rejoin(self.pieces, self.text[begin:], new, self.own.encode)
            self.text += new

    def _whole_from(self, place: int) -> int:
        """Return `place`, or the byte before it at which its character begins."""
        while 0 < place < len(self.text) and ord(self.text[place]) & 0xC0 == 0x80:
            place -= 1
        return max(place, 0)

    def _write(self, ids: list[int], count: int) -> list[int]:
        """Return the `count` tokens that the draft model finds likeliest after `ids`; up to its first special one."""
        same = next((i for i, (a, b) in enumerate(zip(self.fed, ids, strict=False)) if a != b), len(self.fed))
        same = min(same, len(ids) - 1)
        self.lm.rollback([len(self.fed) - same])
        logits = self.lm.extend(upload([ids[same:]], self.lm.device))
        self.fed, written = ids, [int(logits[0, -1].argmax())]
        while len(written) < count:
            written.append(int(self.lm.extend(upload([written[-1:]], self.lm.device))[0, -1].argmax()))
        self.lm.rollback([len(written) - 1])
        special = next((i for i, token in enumerate(written) if not self.own.said[token]), count)
        return written[:special]
