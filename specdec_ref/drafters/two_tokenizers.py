"""One text in two tokenizers: the target's tokens come in, the draft model's tokens come out, and the other way round.

Ids of two tokenizers mean nothing to one another; what both spell is the same bytes. So each side is kept with the byte
that every token begins at, and the two are joined where a token of one and a token of the other begin together.

How a word is cut into tokens depends on what stands before it. So new text is never encoded alone: a few tokens in
front of it are encoded again with it, the look-behind, and only what follows them is used. And a byte is not a
character: a token may end in the middle of one. Such a rest waits until its other bytes have come.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from itertools import accumulate

from tokenizers import decoders
from transformers import PreTrainedTokenizerBase

LOOKBEHIND = 10  # tokens, the default of transformers on both sides


class Spelling:
    """What the tokens of a byte-level tokenizer spell (GPT-2's kind, and that of Llama 3, Qwen, SmolLM and many more).

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        With a byte-level decoder.

    Raises
    ------
    ValueError
        If it is of another kind: its tokens do not say which bytes they stand for.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(getattr(backend, "decoder", None), decoders.ByteLevel):
            raise ValueError(f"tokenizer={type(tokenizer).__name__} is not byte-level, so its tokens cannot be matched")
        self.tokenizer = tokenizer
        letters = _letters()
        added = tokenizer.added_tokens_decoder
        names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        # A special token spells nothing: it means something to one of the models only.
        self.bytes = [
            (b"" if added[index].special else str(name).encode())
            if index in added
            else bytes(letters[letter] for letter in str(name))
            for index, name in enumerate(names)
        ]
        self.prefix: list[int] = list(tokenizer("")["input_ids"])

    def spell(self, tokens: Sequence[int]) -> bytes:
        """Return the bytes of some tokens."""
        return b"".join(self.bytes[token] for token in tokens)

    def encode(self, text: bytes) -> list[int]:
        """Cut a text of whole characters into tokens. What looks like a special token is text like any other."""
        ids = self.tokenizer(text.decode(), add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return list(ids)

    def starts(self, tokens: Sequence[int], first: int) -> list[int]:
        """Return the byte at which each token begins, the first at `first`, and the byte at which the last one ends."""
        return list(accumulate((len(self.bytes[token]) for token in tokens), initial=first))


class Bridge:
    """A growing text of the target, kept in the draft model's tokens too.

    Parameters
    ----------
    target, draft : Spelling
        The two tokenizers.
    target_lookbehind, assistant_lookbehind : int
        How many of the target's tokens are encoded again for the draft model, and how many of the draft model's for the
        target; named as in transformers.

    Attributes
    ----------
    ids : list of int
        The text in the draft model's tokens, as far as its characters are whole; with what its texts begin with.
    pending : bytes
        The beginning of a character, which the draft model has not been told of.

    Source
    ------
    Universal assisted generation, transformers 4.46 (`AssistedCandidateGeneratorDifferentTokenizers`), which joins the
    two sides by their longest equal run of tokens. Bytes say where they meet.
    """

    def __init__(
        self,
        target: Spelling,
        draft: Spelling,
        target_lookbehind: int = LOOKBEHIND,
        assistant_lookbehind: int = LOOKBEHIND,
    ) -> None:
        for name, value in (("target_lookbehind", target_lookbehind), ("assistant_lookbehind", assistant_lookbehind)):
            if value < 1:
                raise ValueError(f"{name}={value} must be >= 1: new text cannot be encoded without what is before it")
        self.target, self.draft = target, draft
        self.target_lookbehind, self.assistant_lookbehind = target_lookbehind, assistant_lookbehind
        self.text = b""  # what both know: whole characters
        self.target_starts: list[int] = []  # where in it each token of the target began
        self.draft_starts = [0]  # where in it each token of the draft model begins, and its end
        self._own: list[int] = []  # the draft model's tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")  # keeps the rest of a character

    @property
    def ids(self) -> list[int]:
        """The text in the draft model's tokens."""
        return self.draft.prefix + self._own

    @property
    def pending(self) -> bytes:
        """The bytes of a character that has begun and not ended."""
        return self._decoder.getstate()[0]

    def update(self, tokens: Sequence[int]) -> int:
        """Take over what the target's text has grown by; return how many of `ids` are as they were.

        Parameters
        ----------
        tokens : sequence of int
            The whole text of the target, which begins with what it was.
        """
        window = max(len(self.target_starts) - self.target_lookbehind, 0)
        for token in tokens[len(self.target_starts) :]:
            self.target_starts.append(len(self.text))
            self.text += self._decoder.decode(self.target.bytes[token]).encode()
        begin = self.target_starts[window] if self.target_starts else 0
        again = self.draft.encode(self.text[begin:])
        starts = self.draft.starts(again, begin)
        old = self._own
        known = {start: place for place, start in enumerate(self.draft_starts)}
        meeting = next((place for place, start in enumerate(starts) if start in known), None)
        if meeting is None:  # all of the window was one token: no place to join them
            self._own = self.draft.encode(self.text)
            self.draft_starts = self.draft.starts(self._own, 0)
        else:
            place = known[starts[meeting]]
            self._own = old[:place] + again[meeting:]
            self.draft_starts = self.draft_starts[:place] + starts[meeting:]
        same = next((i for i, (a, b) in enumerate(zip(old, self._own, strict=False)) if a != b), None)
        return len(self.draft.prefix) + (min(len(old), len(self._own)) if same is None else same)

    def translate(self, drafted: Sequence[int]) -> list[int]:
        """Return what the draft model wrote after `ids`, in the target's tokens.

        Nothing, where it contradicts a character that the target has begun. It ends before a special token, and before
        a character that is not whole.
        """
        said = b""
        for token in drafted:
            if not self.draft.bytes[token]:
                break
            said += self.draft.bytes[token]
        said = _whole_characters(said)
        if not said.startswith(self.pending) or len(said) == len(self.pending):
            return []
        end = len(self.text) + len(self.pending)  # where the target's text ends
        begin = self.draft_starts[max(len(self._own) - self.assistant_lookbehind, 0)]
        while begin > 0 and begin < len(self.text) and self.text[begin] & 0xC0 == 0x80:
            begin -= 1  # a token of the draft model may begin inside of a character
        again = self.target.encode(self.text[begin:] + said)
        starts = self.target.starts(again, begin)
        if end in starts:
            return again[starts.index(end) :]
        # By itself this tokenizer would have cut the last word elsewhere. Say the rest of it as well as may be.
        return [] if self.pending else self.target.encode(said)


def _whole_characters(text: bytes) -> bytes:
    """Cut a text before the first thing that is no whole character."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return text[: error.start]
    return text


def _letters() -> dict[str, int]:
    """Return the byte that each letter of a byte-level vocabulary stands for (Radford et al. 2019, GPT-2's encoder)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}
