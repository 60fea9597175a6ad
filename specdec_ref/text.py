"""Tokens to text as they come, never showing half a character.

A token is a piece of bytes, and an emoji or a Chinese character may be spread over several tokens. Decoding them one
at a time prints question marks. `TextStream` holds such bytes back until the character is whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerBase


class TextStream:
    """Decode one row's tokens piece by piece; the pieces joined are the decoding of the whole.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        A fast tokenizer of transformers.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._backend = cast(Tokenizer, tokenizer.backend_tokenizer)
        self._stream = DecodeStream(skip_special_tokens=True)
        self._tokens: list[int] = []
        self._shown = ""

    def push(self, token: int) -> str:
        """Return the text that `token` completes; empty while a character is unfinished."""
        self._tokens.append(token)
        piece = self._stream.step(self._backend, token) or ""
        self._shown += piece
        return piece

    def finish(self) -> str:
        """Return what is still held back. An unfinished character becomes the usual replacement mark."""
        return decode(self._tokenizer, self._tokens)[len(self._shown) :]


def decode(tokenizer: PreTrainedTokenizerBase, tokens: Iterable[int]) -> str:
    """Return the text of `tokens` exactly: special tokens left out, no clean-up of spaces."""
    return cast(str, tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))
