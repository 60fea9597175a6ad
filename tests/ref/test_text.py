"""Streaming text never shows half a character, and the pieces joined are the whole (FAULTS 23)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specdec_ref.text import TextStream, decode


@pytest.fixture(scope="module")
def tokenizer():
    """Bytes for tokens: the hardest case, every character beyond ASCII is several tokens. Id 256 is special."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(alphabet)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")


@given(st.text(max_size=30).filter(lambda text: "\ufffd" not in text))
def test_pieces_joined_are_the_whole_text(tokenizer, text):
    tokens = tokenizer.encode(text, add_special_tokens=False)
    stream = TextStream(tokenizer)
    pieces = [stream.push(token) for token in tokens] + [stream.finish()]
    assert "".join(pieces) == text == decode(tokenizer, tokens)
    assert all("\ufffd" not in piece for piece in pieces)


def test_an_emoji_appears_with_its_last_byte(tokenizer):
    tokens = tokenizer.encode("🦊", add_special_tokens=False)
    stream = TextStream(tokenizer)
    assert [stream.push(token) for token in tokens] == ["", "", "", "🦊"]
    assert stream.finish() == ""


def test_a_text_cut_inside_a_character_ends_with_the_replacement_mark(tokenizer):
    tokens = tokenizer.encode("a🦊", add_special_tokens=False)[:-1]
    stream = TextStream(tokenizer)
    shown = "".join(stream.push(token) for token in tokens)
    assert shown == "a"
    assert stream.finish() == "\ufffd"


def test_special_tokens_are_not_shown(tokenizer):
    stream = TextStream(tokenizer)
    tokens = [*tokenizer.encode("hi", add_special_tokens=False), tokenizer.eos_token_id]
    assert "".join(stream.push(token) for token in tokens) + stream.finish() == "hi"
