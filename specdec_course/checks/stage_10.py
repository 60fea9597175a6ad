"""Stage 10, drafts with another tokenizer: its exercises, their cases and the mistakes people make."""

from __future__ import annotations

import codecs
import functools
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch

from specdec_course.checks.exercise import ANY, Case, Choice, Exercise, Made, Mistake, Question
from specdec_course.checks.plain import Plain
from specdec_course.checks.replay import Picture

_HALF = "Half a character"
_OVER = "Bringing the text over"
_BACK = "And back: the draft's words in the target's tokens"
_SHARED = "Only what both can say"
_IDS = "Why must both have one tokenizer?"

Encode = Callable[[str], list[str]]


class ToyTokenizer:
    """Cut a text into the longest pieces it knows, from the left. Every letter is a piece.

    Parameters
    ----------
    pieces : sequence of str
        The longer ones.
    space_first : bool
        Put a space in front of a text that has none, as SentencePiece tokenizers do: they take the beginning of a text
        for the beginning of a word.
    """

    def __init__(self, pieces: Sequence[str], space_first: bool = False) -> None:
        self.pieces, self.space_first = set(pieces), space_first
        self.longest = max(map(len, pieces))

    def encode(self, text: str) -> list[str]:
        """Return the pieces of `text`."""
        if self.space_first and not text.startswith(" "):
            text = " " + text
        found = []
        while text:
            length = next((n for n in range(self.longest, 1, -1) if text[:n] in self.pieces), 1)
            found.append(text[:length])
            text = text[length:]
        return found


_DRAFT_PIECES = (
    " the",
    " and",
    " an",
    " squ",
    " squirrel",
    "irrel",
    " hed",
    " hedge",
    " hedgehog",
    "hog",
    "ge",
    " sat",
    " ran",
    "nd",
    "at",
    "eh",
    " s",
    "rs",
)
DRAFT_TOY = ToyTokenizer(_DRAFT_PIECES)

_TARGET_PIECES = (
    " the",
    " gar",
    " garden",
    "den",
    "er",
    "dener",
    " sing",
    "ings",
    "ing",
    " s",
    " and",
    " hen",
    " old",
    "in",
    " then",
)
TARGET_TOY = ToyTokenizer(_TARGET_PIECES, space_first=True)


def _itself(function: Encode) -> Encode:
    return function


def _tokenizer(toy: ToyTokenizer, name: str) -> Made:
    return Made(functools.partial(_itself, toy.encode), name)


def starts_of(pieces: Sequence[str], first: int = 0) -> list[int]:
    """Return where each piece begins, the first at `first`, and where the last one ends."""
    return list(accumulate(map(len, pieces), initial=first))


class _Pieces:
    """A tokenizer under the names that the reference's bridge uses. Its ids are handed out as pieces turn up."""

    def __init__(self, encode: Encode) -> None:
        self.pieces, self.prefix = encode, list[int]()
        self.bytes: list[bytes] = []

    def ids(self, pieces: Sequence[str]) -> list[int]:
        for piece in map(str.encode, pieces):
            if piece not in self.bytes:
                self.bytes.append(piece)
        return [self.bytes.index(piece.encode()) for piece in pieces]

    def encode(self, text: bytes) -> list[int]:
        return self.ids(self.pieces(text.decode()))

    def starts(self, tokens: Sequence[int], first: int) -> list[int]:
        return starts_of(self.say(tokens), first)

    def say(self, tokens: Sequence[int]) -> list[str]:
        return [self.bytes[token].decode() for token in tokens]


class _Bytes(_Pieces):
    """A tokenizer whose tokens are single bytes."""

    def __init__(self) -> None:
        super().__init__(list)
        self.bytes = [bytes([value]) for value in range(256)]


# --- 10.1 whole characters

_TEXTS = ("naïve", "für Tom", "🦊 ran", "数 and 日本", "a café", "ok", "😀😀", "été")
_NEVER = ([0xFF], [0x80], [0xC3, 0x28], [0xE2, 0x28, 0x41], [0xF0, 0x9F, 0x41])  # these can become no character


def _character_cases(seed: int) -> Sequence[Case]:
    """Whole texts, texts cut at every byte of a character, bytes that can never be one, and nothing at all."""
    source = random.Random(seed)
    fixed = [list(b"hi"), list("ü".encode()), list("ü".encode())[:1], [], list("a🦊".encode())[:4]]
    fixed += [list("a🦊".encode())[:3], list("a🦊".encode())[:2], list("a🦊".encode()), list("été".encode())[:4]]
    fixed += [[0x61, *never] for never in _NEVER] + [[*never, *"🦊".encode()[:2]] for never in _NEVER[:3]]
    for _ in range(14):
        text = list((source.choice(_TEXTS) + " " + source.choice(_TEXTS)).encode())
        fixed.append(text[: source.randint(1, len(text))])
    return [Case({"held": held}) for held in fixed]


def _whole_characters(held: list[int]) -> tuple[str, list[int]]:
    from specdec_ref.drafters.two_tokenizers import Bridge

    single_bytes: Any = _Bytes()
    letters: Any = _Pieces(list)
    bridge = Bridge(single_bytes, letters)
    bridge.update(held)
    return bridge.text.decode(), list(bridge.pending)


def _decoded(held: list[int], errors: str = "replace") -> tuple[str, list[int]]:
    """Split `held` into text and the beginning of a character; the plain version for models of mistakes."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors=errors)
    return decoder.decode(bytes(held)), list(decoder.getstate()[0])


def _all_or_nothing(held: list[int]) -> tuple[str, list[int]]:
    try:
        return bytes(held).decode(), []
    except UnicodeDecodeError:
        return "", list(held)


def _up_to_the_first_fault(held: list[int]) -> tuple[str, list[int]]:
    try:
        return bytes(held).decode(), []
    except UnicodeDecodeError as error:
        return bytes(held[: error.start]).decode(), list(held[error.start :])


def _ascii_end(held: list[int]) -> tuple[str, list[int]]:
    end = len(held)
    while end and held[end - 1] >= 0x80:
        end -= 1
    return bytes(held[:end]).decode(errors="replace"), list(held[end:])


def _one_byte_back(held: list[int]) -> tuple[str, list[int]]:
    rest = 1 if _decoded(held)[1] else 0
    end = len(held) - rest
    return bytes(held[:end]).decode(errors="replace"), list(held[end:])


WHOLE_CHARACTERS = Exercise(
    id="10.1",
    function="whole_characters",
    title="Hold back half a character",
    points=2,
    difficulty=3,
    minutes=8,
    section=_HALF,
    rule="The text of all that is finished, and the bytes of a character that has begun and may still be finished. "
    "Bytes that can never become a character are the replacement mark, at once.",
    hints=(
        "Only the END of the bytes can be unfinished. What comes before is text, whole or broken.",
        "Python has a decoder that remembers: `codecs.getincrementaldecoder('utf-8')(errors='replace')`. Give it the "
        "bytes and do not tell it that they are the last.",
        "`text = decoder.decode(bytes(held))`; what it waits with is `decoder.getstate()[0]`. Return `text, "
        "list(waiting)`.",
    ),
    cases=_character_cases,
    reference=_whole_characters,
    mistakes=(
        Mistake(
            "half a character becomes a replacement mark",
            lambda held: (bytes(held).decode(errors="replace"), []),
            "The draft model would be told of a character that nobody wrote, and the rest of the real one would be the "
            "next wrong character. Hold the bytes back until the others have come.",
        ),
        Mistake(
            "half a character is thrown away",
            lambda held: (_decoded(held)[0], []),
            "The other bytes of this character come with the next token, and mean nothing without these. Hand them "
            "back as the rest.",
        ),
        Mistake(
            "bytes that fit nothing are left out without a trace",
            lambda held: (bytes(held).decode(errors="ignore"), []),
            "`errors='ignore'` drops half characters too, and with them the beginning of the next character. Hand them "
            "back as the rest; bytes that can never be a character become the replacement mark.",
        ),
        Mistake(
            "the whole text waits for its last character",
            _all_or_nothing,
            "One unfinished character at the end does not make the text before it unfinished. Give that out at once.",
        ),
        Mistake(
            "bytes that can never be a character are waited for",
            _up_to_the_first_fault,
            "Not every fault is an unfinished character: after some bytes nothing that may come makes a character of "
            "them. Whoever waits for it waits for ever, and never drafts again. Such bytes become the replacement "
            "mark.",
        ),
        Mistake(
            "finished characters are held back too",
            _ascii_end,
            "A byte of 128 or more belongs to a character of several bytes, but that may be complete. Hold back only "
            "what is unfinished.",
        ),
        Mistake(
            "only one byte is held back",
            _one_byte_back,
            "A character has up to four bytes, so up to three may be waiting. Hand back all bytes of the unfinished "
            "character.",
        ),
        Mistake(
            "each byte taken for a character",
            lambda held: (bytes(held).decode("latin-1"), []),
            "In UTF-8 a letter such as ü has two bytes and an emoji four. One letter for each byte is another text.",
        ),
    ),
)

# --- 10.2 the text in the draft's tokens

_DRAFT_WORDS = (" the", " squirrel", " hedgehog", " hedge", " hog", " and", " an", " sat", " ran", " squirrels")


def _rejoin_cases(seed: int) -> Sequence[Case]:
    """A word in two halves, windows that begin inside of a token, texts cut oddly long ago, and no place to join."""
    source = random.Random(seed)
    cut = DRAFT_TOY.encode
    fixed = [
        ([" the", " squ"], " squ", "irrel"),
        ([" the", " squ"], " the squ", "irrel sat"),
        ([" the", " squ"], "qu", "irrel"),
        ([" the"], " the", " squirrel"),
        ([], "", " the hedgehog"),
        ([" the", " an"], "n", "d ran"),
        ([" the", " hedge"], "e", "hog sat"),
        ([" squ", "irrel", " s"], " s", "at"),
        ([" squ", "irrel", " the", " s"], " squirrel the s", "at and"),
        ([" squ", "irrel", " and", " the", " hed"], " the hed", "gehog"),
        ([" squirrel"], "rel", "s ran"),
        ([" the", " hedgehog"], "hog", " sat"),
    ]
    while len(fixed) < 30:
        text = "".join(source.choice(_DRAFT_WORDS) for _ in range(source.randint(2, 5)))
        now = source.randint(2, len(text) - 1)
        before = source.choice((0, 0, source.randint(1, now - 1)))  # some texts were cut in two parts, long ago
        own = cut(text[:before]) + cut(text[before:now])
        window = text[max(0, now - source.choice((1, 2, 3, 5, 8, 13))) : now]
        fixed.append((own, window, text[now : now + source.randint(1, 9)]))
    names = ("own", "window", "new_text")
    return [
        Case({**dict(zip(names, values, strict=True)), "encode": _tokenizer(DRAFT_TOY, "encode")}) for values in fixed
    ]


def _rejoin(own: list[str], window: str, new_text: str, encode: Encode) -> list[str]:
    from specdec_ref.drafters.two_tokenizers import Bridge

    text = "".join(own)
    letters: Any = _Bytes()  # a target that writes letter by letter: its look-behind is the window's length
    draft: Any = _Pieces(encode)
    bridge: Any = Bridge(letters, draft, target_lookbehind=max(1, len(window)))
    bridge.text, bridge.target_starts = text.encode(), list(range(len(text)))
    bridge._own, bridge.draft_starts = draft.ids(own), starts_of(own)
    bridge.update(list((text + new_text).encode()))
    return draft.say(bridge.ids)


def _meetings(own: Sequence[str], window: str, again: Sequence[str]) -> list[tuple[int, int]]:
    """Return the places in `own` and in `again` at which tokens of both begin, the first one first."""
    known = {start: place for place, start in enumerate(starts_of(own))}
    begin = len("".join(own)) - len(window)
    return [(known[start], place) for place, start in enumerate(starts_of(again, begin)) if start in known]


def join(own: list[str], window: str, new_text: str, encode: Encode, which: int = 0) -> list[str]:
    """Join where tokens of both begin, at the first place or another; the plain version for models of mistakes."""
    again = encode(window + new_text)
    places = _meetings(own, window, again)
    if not places:
        return encode("".join(own) + new_text)
    kept, used = places[which]
    return own[:kept] + again[used:]


def _but_nowhere_to_join(own: list[str], window: str, new_text: str, encode: Encode) -> Any:
    again = encode(window + new_text)
    return join(own, window, new_text, encode) if _meetings(own, window, again) else ANY


def _cut_by_letters(keep_straddling: bool) -> Callable[..., list[str]]:
    """Make the answer that keeps the tokens before the window, with or without the one that reaches into it."""

    def answer(own: list[str], window: str, new_text: str, encode: Encode) -> list[str]:
        begin, starts = len("".join(own)) - len(window), starts_of(own)
        edges = [start + 1 for start in starts[:-1]] if keep_straddling else starts[1:]
        return [piece for piece, edge in zip(own, edges, strict=True) if edge <= begin] + encode(window + new_text)

    return answer


def _lines_of_rejoin(arguments: dict[str, Plain], seen: Plain, expected: Plain) -> Picture:
    said = {name: arguments[name]["value"] for name in ("window", "new_text")}
    return Picture(
        lines=[
            f"tokens so far:   {_strip(arguments['own'])}",
            f"window:          {said['window']!r}, and new is {said['new_text']!r}",
            f"encoded again:   {_bars(DRAFT_TOY.encode(said['window'] + said['new_text']))}",
            f"right:           {_strip(expected['value'])}",
            f"yours:           {_outcome(seen)}",
        ]
    )


def _strip(plain: Plain) -> str:
    return _bars([str(item.get("value", "?")) for item in plain.get("items", [])])


def _bars(pieces: Sequence[str]) -> str:
    return "|" + "".join(f"{piece}|" for piece in pieces) if pieces else "(nothing)"


def _outcome(observed: Plain) -> str:
    error = observed["error"]
    return f"{error['type']}: {error['message']}" if error else _strip(observed["value"])


REJOIN = Exercise(
    id="10.2",
    function="rejoin",
    title="The text in the draft's tokens",
    points=3,
    difficulty=4,
    minutes=14,
    section=_OVER,
    rule="Encode the window and the new text together. Join the result to the old tokens at the first place where a "
    "token of both begins (the end of the text counts). Where there is none, encode the whole text.",
    hints=(
        "Write the place at which each old token begins, in letters, and the place at which each token of the window "
        "begins. The window begins `len(window)` letters before the end of the text.",
        "`again = encode(window + new_text)`. Go through `again` from the left and look for the first token that "
        "begins where an old token begins, or where the old text ends. Keep the old tokens before that place.",
        "With `starts` as a dict from place to number of old tokens before it (the end of the text included): "
        "`for i, piece in enumerate(again): if place in starts: return own[:starts[place]] + again[i:]`, else "
        "`place += len(piece)`. After the loop `return encode(''.join(own) + new_text)`.",
    ),
    cases=_rejoin_cases,
    reference=_rejoin,
    replay=_lines_of_rejoin,
    mistakes=(
        Mistake(
            "no look-behind: the new text is encoded alone",
            lambda own, window, new_text, encode: own + encode(new_text),
            "A word that the target wrote in two tokens would be cut in two for the draft model as well. It was "
            "trained on whole words, and guesses worse after such a cut. Encode the window again together with the new "
            "text.",
        ),
        Mistake(
            "the window is written a second time",
            lambda own, window, new_text, encode: own + encode(window + new_text),
            "The letters of the window are in the old tokens already. Drop the old tokens from the place where you "
            "join, or the draft model reads the window twice.",
        ),
        Mistake(
            "as many old tokens dropped as the window has now",
            lambda own, window, new_text, encode: (
                own[: max(0, len(own) - len(encode(window)))] + encode(window + new_text)
            ),
            "The window may begin inside of an old token, and may be cut into another number of tokens than before. "
            "Count letters, not tokens.",
        ),
        Mistake(
            "letters are lost where the window begins",
            _cut_by_letters(keep_straddling=False),
            "An old token reaches into the window, and with it you dropped the letters before the window too. Join "
            "only where a token of both begins.",
        ),
        Mistake(
            "letters stand twice where the window begins",
            _cut_by_letters(keep_straddling=True),
            "An old token reaches into the window, so its last letters are in the window too. Join only where a token "
            "of both begins.",
        ),
        Mistake(
            "the whole text is encoded again",
            lambda own, window, new_text, encode: encode("".join(own) + new_text),
            "That is right as text, but it changes tokens long before the window: the draft model's cache would be "
            "thrown away, and a long text would be encoded anew in every round. Only the window is encoded again.",
        ),
        Mistake(
            "joined at the last place instead of the first",
            lambda own, window, new_text, encode: join(own, window, new_text, encode, which=-1),
            "Of all places where tokens of both begin, the first one gives the draft model the most of the new cut. "
            "The last one keeps old tokens that the window has just cut better.",
        ),
        Mistake(
            "no place to join is not thought of",
            _but_nowhere_to_join,
            "A token of the window may reach over the end of the old text, and no other begins where an old one does. "
            "Then there is no place to join: encode the whole text.",
        ),
    ),
)

# --- 10.3 the draft's words in the target's tokens

_TARGET_WORDS = (" the", " gardener", " garden", " sings", " singing", " and", " then", " old", " hens")


def _translate_cases(seed: int) -> Sequence[Case]:
    """Borders between words, inside of words, inside of a token; a draft that repeats what stands before it."""
    source = random.Random(seed)
    fixed = [
        (" the", " garden"),
        (" the gar", "dener"),
        (" the garden", "er sings"),
        (" the gard", "en sings"),
        (" the gar", "den"),
        (" old s", "ing and"),
        (" the gar", "den the gar the"),
        (" the old gard", "en the old garden sings"),
        (" the", "n the hen"),
        (" sing", "ing"),
        (" sings", " the"),
        (" the garde", "ner"),
    ]
    while len(fixed) < 30:
        text = "".join(source.choice(_TARGET_WORDS) for _ in range(source.randint(3, 5)))
        border = source.randint(3, len(text) - 2)
        fixed.append((text[:border], text[border:]))
    return [
        Case({"window": window, "written": written, "encode": _tokenizer(TARGET_TOY, "encode")})
        for window, written in fixed
    ]


def _translate(window: str, written: str, encode: Encode) -> list[str]:
    from specdec_ref.drafters.two_tokenizers import Bridge

    target: Any = _Pieces(encode)
    letters: Any = _Bytes()  # a draft model that writes letter by letter
    bridge: Any = Bridge(target, letters, assistant_lookbehind=max(1, len(window)))
    bridge.text, bridge._own = window.encode(), list(window.encode())
    bridge.draft_starts = list(range(len(window) + 1))
    found = target.say(bridge.translate(list(written.encode())))
    return found if "".join(found) == written else []


def _border(window: str, joined: Sequence[str]) -> int | None:
    """Return the place in `joined` of the token that begins where the window ends."""
    starts = starts_of(joined)
    return starts.index(len(window)) if len(window) in starts else None


def behind_the_window(window: str, written: str, encode: Encode) -> list[str]:
    """Return the tokens behind the border, or none; the plain version for models of mistakes."""
    joined = encode(window + written)
    place = _border(window, joined)
    return [] if place is None else joined[place:]


def _from_the_straddling(window: str, written: str, encode: Encode) -> list[str]:
    joined = encode(window + written)
    starts = starts_of(joined)
    return joined[next(i for i in range(len(joined)) if starts[i + 1] > len(window)) :]


def _behind_the_straddling(window: str, written: str, encode: Encode) -> list[str]:
    joined = encode(window + written)
    return [piece for piece, start in zip(joined, starts_of(joined), strict=False) if start >= len(window)]


def _or_alone(window: str, written: str, encode: Encode) -> list[str]:
    joined = encode(window + written)
    place = _border(window, joined)
    return encode(written) if place is None else joined[place:]


def after_longest_run(before: Sequence[str], joined: Sequence[str]) -> list[str]:
    """Return what follows in `joined` after its longest run of tokens that also stands in `before`.

    Where the run ends before `before` does, as many tokens are left out as follow it there.
    """
    best, where = 0, (0, 0)
    for i in range(len(joined)):
        for j in range(len(before)):
            run = 0
            while i + run < len(joined) and j + run < len(before) and joined[i + run] == before[j + run]:
                run += 1
            if run > best:
                best, where = run, (i, j)
    left = len(before) - where[1] - best
    return list(joined[where[0] + best + left :])


def _lines_of_translate(arguments: dict[str, Plain], seen: Plain, expected: Plain) -> Picture:
    window, written = (str(arguments[name]["value"]) for name in ("window", "written"))
    joined, border = TARGET_TOY.encode(window + written), len(window)
    bars_before = sum(start <= border for start in starts_of(joined))
    return Picture(
        lines=[
            f"the text ends with {window!r}, the draft wrote {written!r}",
            f"encoded together: {_bars(joined)}",
            f"first new letter: {' ' * (border + bars_before)}^",
            f"right:            {_strip(expected['value'])}",
            f"yours:            {_outcome(seen)}",
        ]
    )


TRANSLATE = Exercise(
    id="10.3",
    function="translate",
    title="The draft's words in the target's tokens",
    points=2,
    difficulty=3,
    minutes=10,
    section=_BACK,
    rule="Encode the window and what was written together, and hand back the tokens behind the border. They must spell "
    "what was written, letter by letter; where a token lies across the border, nothing is proposed.",
    hints=(
        "The target's text stands as it is. New tokens can only be put after its last letter. Which tokens of "
        "`encode(window + written)` begin there or later?",
        "Walk through `encode(window + written)` and add up letters. If some token begins exactly at `len(window)`, "
        "return it and all after it. If one lies across that place, return an empty list.",
        "`place = 0`, then `for i, piece in enumerate(joined): if place == len(window): return joined[i:]`, else "
        "`place += len(piece)`. After the loop `return []`.",
    ),
    cases=_translate_cases,
    reference=_translate,
    replay=_lines_of_translate,
    mistakes=(
        Mistake(
            "no look-behind: encoded without what stands before",
            lambda window, written, encode: encode(written),
            "Many tokenizers take the beginning of a text for the beginning of a word, and put a space there. The rest "
            "of a word, encoded alone, is then another word. Encode it together with the window.",
        ),
        Mistake(
            "the window is drafted again",
            lambda window, written, encode: encode(window + written),
            "The window is in the text already. Only the tokens behind it are new; the target would refuse the first "
            "one, and the whole draft with it.",
        ),
        Mistake(
            "the window is skipped by counting its tokens",
            lambda window, written, encode: encode(window + written)[len(encode(window)) :],
            "With more text behind it the window may be cut into another number of tokens. Count letters: the new "
            "tokens are those that begin where the window ends.",
        ),
        Mistake(
            "joined behind the longest run of equal tokens",
            lambda window, written, encode: after_longest_run(encode(window), encode(window + written)),
            "With more text behind it the window's last token may be cut otherwise; then the run ends too early, or "
            "lies in a draft that repeats the text, and letters are lost. Where the window ends is known in letters: "
            "nothing needs to be searched for.",
        ),
        Mistake(
            "the token across the border is drafted",
            _from_the_straddling,
            "That token begins before the window ends: its first letters would stand in the text twice. Where a token "
            "lies across the border, propose nothing.",
        ),
        Mistake(
            "letters behind the border are lost",
            _behind_the_straddling,
            "The token across the border holds the first letters of what was written. Without it the draft begins with "
            "the middle of a word. Propose nothing there.",
        ),
        Mistake(
            "where a token lies across the border, the rest is encoded alone",
            _or_alone,
            "This tokenizer puts a space in front of a text, so the rest of a word alone is another word. (A "
            "byte-level tokenizer adds nothing: there it is a fair guess.) Here, propose nothing.",
        ),
    ),
)

# --- 10.4 the tokens that both have

_SPECIAL: tuple[str, ...] = ("<begin>", "<end>", "<pad>")
_NAMES: tuple[str, ...] = (
    "Ġthe",
    "the",
    "Ġa",
    "a",
    "Ġfox",
    "fox",
    "Ġran",
    "ing",
    "ed",
    "Ġand",
    "!",
    ".",
    "Ġhog",
    "er",
    "Ġ",
    "en",
)


def _vocabularies(seed: int) -> Iterator[tuple[list[str], list[str], list[int], list[int]]]:
    source = random.Random(seed)
    yield ["a", "b"], ["b", "a", "c"], [], []
    yield ["a", "b"], ["c", "d"], [], []
    yield ["<end>", "a"], ["a", "<end>", "b"], [0], [1]
    yield ["Ġthe", "the"], ["the", "Ġa", "Ġthe"], [], []
    yield ["<begin>", "<end>", "Ġfox"], ["<end>", "Ġfox", "fox"], [0, 1], [0]
    yield ["a", "<end>", "b"], ["<end>", "b", "a"], [], [0]
    yield ["<end>", "b", "a"], ["a", "<end>", "b"], [0], []
    yield ["a", "b", "c", "d"], ["a", "b"], [], []
    while True:
        draft, target = (source.sample(_NAMES, source.randint(5, 9)) for _ in range(2))
        special: list[list[int]] = []
        for names in (draft, target):
            places = sorted(source.sample(range(len(names)), 2))
            for place, name in zip(places, source.sample(_SPECIAL, 2), strict=True):
                names[place] = name
            special.append(places)
        yield draft, target, special[0], special[1]


def _shared_cases(seed: int) -> Sequence[Case]:
    """Two or three tokens first; then special tokens on one side or both, and spaces that make a difference."""
    names = ("draft_tokens", "target_tokens", "draft_special", "target_special")
    drawn = _vocabularies(seed)
    return [Case(dict(zip(names, next(drawn), strict=True))) for _ in range(30)]


def shared(
    draft_tokens: Sequence[str],
    target_tokens: Sequence[str],
    draft_special: Sequence[int],
    target_special: Sequence[int],
    missing: int = -1,
) -> list[int]:
    """Return the target's id of each token of the draft, or `missing`; the plain version for models of mistakes."""
    ids = {name: i for i, name in enumerate(target_tokens) if i not in target_special}
    return [missing if i in draft_special else ids.get(name, missing) for i, name in enumerate(draft_tokens)]


def _shared_tokens(
    draft_tokens: list[str], target_tokens: list[str], draft_special: list[int], target_special: list[int]
) -> list[int]:
    """As `SharedTokensDrafter` does it: by what the tokens spell. A special token spells nothing."""
    from specdec_ref.drafters.two_tokenizers import _letters

    letters = _letters()

    def spelled(names: list[str], special: list[int]) -> list[bytes]:
        return [b"" if i in special else bytes(letters[one] for one in name) for i, name in enumerate(names)]

    ids = {said: token for token, said in enumerate(spelled(target_tokens, target_special)) if said}
    return [ids.get(said, -1) for said in spelled(draft_tokens, draft_special)]


def _with_special(
    pick: Callable[[int, str, Sequence[str]], int],
) -> Callable[[list[str], list[str], list[int], list[int]], list[int]]:
    """Make the answer that is right for ordinary tokens and maps special ones by `pick`."""

    def answer(draft: list[str], target: list[str], draft_special: list[int], target_special: list[int]) -> list[int]:
        right = shared(draft, target, draft_special, target_special)
        return [pick(i, draft[i], target) if i in draft_special else found for i, found in enumerate(right)]

    return answer


def _by_name_alone(draft: list[str], target: list[str], *_: list[int]) -> list[int]:
    ids = {name: i for i, name in enumerate(target)}
    return [ids.get(name, -1) for name in draft]


def _stripped(draft: list[str], target: list[str], draft_special: list[int], target_special: list[int]) -> list[int]:
    mine, theirs = ([name.strip("Ġ") for name in names] for names in (draft, target))
    return shared(mine, theirs, draft_special, target_special)


SHARED_TOKENS = Exercise(
    id="10.4",
    function="shared_tokens",
    title="The tokens that both have",
    points=2,
    difficulty=2,
    minutes=8,
    section=_SHARED,
    rule="An id of the draft belongs to the id of the target whose token spells the same, spaces included. Special "
    "tokens spell nothing and are never shared. -1 stands for: the target has no such token.",
    hints=(
        "An id is a place in a list, and the lists differ. What do two tokens have in common that mean the same?",
        "Make a dict from what the target's tokens spell to their ids, without its special tokens. Then look up each "
        "token of the draft.",
        "`ids = {name: i for i, name in enumerate(target_tokens) if i not in target_special}`, then `ids.get(name, "
        "-1)` for each draft token that is not special, and -1 for those that are.",
    ),
    cases=_shared_cases,
    reference=_shared_tokens,
    mistakes=(
        Mistake(
            "ids compared across tokenizers",
            lambda draft, target, *_: [i if i < len(target) else -1 for i in range(len(draft))],
            "The same id is another word in another tokenizer. Compare what the tokens spell.",
            section=_IDS,
        ),
        Mistake(
            "only tokens with the same id in both",
            lambda draft, target, *_: [
                i if i < len(target) and name == target[i] else -1 for i, name in enumerate(draft)
            ],
            "A token may have any id in the other vocabulary. Look for what it spells, in the whole list.",
            section=_IDS,
        ),
        Mistake(
            "a token that is not shared becomes token 0",
            lambda *arguments: shared(*arguments, missing=0),
            "0 is an id like any other: the draft would give its probability to that token. Say -1.",
        ),
        Mistake(
            "special tokens mapped by their id",
            _with_special(lambda i, name, target: i if i < len(target) else -1),
            "The draft's id of its end-of-text token is some other token of the target: often an ordinary word. "
            "Special tokens mean something to one of the models only, so they are not shared.",
        ),
        Mistake(
            "special tokens mapped by their name",
            _by_name_alone,
            "A special token spells nothing: it is a signal, and each model was trained on signals of its own. Two "
            "that are called alike need not mean the same. They are not shared.",
        ),
        Mistake(
            "spaces do not count",
            _stripped,
            "`Ġthe` begins a word and `the` does not: a space more or less is another text. Compare the whole "
            "spelling.",
        ),
        Mistake(
            "the map goes from the target to the draft",
            lambda draft, target, draft_special, target_special: shared(target, draft, target_special, draft_special),
            "One entry for each id of the DRAFT is wanted, and in it the id of the target.",
        ),
    ),
)

# --- 10.5 the law on the shared tokens


def _restrict_cases(seed: int) -> Sequence[Case]:
    """By hand; then random laws, some with nothing on what is shared, and vocabularies that share nothing."""
    source = torch.Generator().manual_seed(seed)
    fixed: list[tuple[list[float], list[int], int]] = [
        ([0.5, 0.3, 0.2], [1, -1, 0], 4),
        ([0.5, 0.5], [3, 0], 4),
        ([0.2, 0.8], [2, -1], 4),
        ([0.0, 1.0], [2, -1], 4),
        ([0.6, 0.4], [-1, -1], 4),
        ([0.1, 0.2, 0.3, 0.4], [-1, 4, -1, 2], 6),
        ([0.4, 0.3, 0.2, 0.1], [5, -1, 0, -1], 6),
        ([0.25, 0.5, 0.25, 0.0], [-1, -1, 3, 1], 5),
        ([0.7, 0.0, 0.0, 0.3], [-1, 2, 0, -1], 5),
        ([0.7, 0.2, 0.1], [4, 2, 0], 5),
    ]
    while len(fixed) < 30:
        size = int(torch.randint(3, 8, (), generator=source))
        width = size + int(torch.randint(1, 5, (), generator=source))
        law = torch.rand(size, generator=source).pow(2) + 0.02
        ids = torch.randperm(width - 1, generator=source)[:size]  # the target's last token is never shared
        ids[torch.rand(size, generator=source) < 0.4] = -1
        if len(fixed) % 7 == 0:
            law[ids >= 0] = 0.0
        total = float(law.sum())
        fixed.append(((law / total).tolist() if total else [1.0] + [0.0] * (size - 1), ids.tolist(), width))
    return [
        Case({"draft_probs": torch.tensor(law), "to_target": ids, "target_size": width}) for law, ids, width in fixed
    ]


def _restrict_law(draft_probs: torch.Tensor, to_target: list[int], target_size: int) -> torch.Tensor:
    from specdec_ref.sampling import SamplingSettings, probabilities

    wide = torch.full((target_size,), -torch.inf, dtype=draft_probs.dtype)
    for i, token in enumerate(to_target):
        if token >= 0:
            wide[token] = draft_probs[i].log()
    if bool(torch.isneginf(wide).all()):
        return torch.zeros_like(wide)  # it has nothing to say
    return probabilities(wide, SamplingSettings())


def scatter(draft_probs: torch.Tensor, to_target: Sequence[int], target_size: int) -> torch.Tensor:
    """Return the draft's probabilities at the target's ids, not scaled; for models of mistakes."""
    wide = draft_probs.new_zeros(target_size)
    for i, token in enumerate(to_target):
        if token >= 0:
            wide[token] = draft_probs[i]
    return wide


def scaled(law: torch.Tensor) -> torch.Tensor:
    """Return a law that sums to one; what has no mass stays as it is."""
    total = law.sum()
    return law / total if total > 0 else law


def _where_mass(answer: Callable[[torch.Tensor, Sequence[int], int], torch.Tensor]) -> Callable[..., Any]:
    """Leave open what code with a mistake does where the shared tokens have no mass."""

    def with_any(draft_probs: torch.Tensor, to_target: Sequence[int], target_size: int) -> Any:
        some = float(scatter(draft_probs, to_target, target_size).sum()) > 0
        return answer(draft_probs, to_target, target_size) if some else ANY

    return with_any


def _own_places(draft_probs: torch.Tensor, to_target: Sequence[int], target_size: int) -> torch.Tensor:
    wide = draft_probs.new_zeros(target_size)
    for i, token in enumerate(to_target):
        if token >= 0:
            wide[i] = draft_probs[i]
    return scaled(wide)


def _minus_one_is_a_place(add: bool) -> Callable[[torch.Tensor, Sequence[int], int], torch.Tensor]:
    def answer(draft_probs: torch.Tensor, to_target: Sequence[int], target_size: int) -> torch.Tensor:
        wide = draft_probs.new_zeros(target_size)
        for i, token in enumerate(to_target):
            wide[token] = draft_probs[i] + (wide[token] if add else 0.0)
        return scaled(wide)

    return answer


def _missing_spread(draft_probs: torch.Tensor, to_target: Sequence[int], target_size: int) -> torch.Tensor:
    wide, ids = scatter(draft_probs, to_target, target_size), [token for token in to_target if token >= 0]
    wide[ids] += (1 - wide.sum()) / len(ids)
    return wide


def _softmax_again(draft_probs: torch.Tensor, to_target: Sequence[int], target_size: int) -> torch.Tensor:
    wide, ids = torch.full((target_size,), -torch.inf), [token for token in to_target if token >= 0]
    wide[ids] = scatter(draft_probs, to_target, target_size)[ids]
    return wide.softmax(-1)


def _likeliest_gets_all(draft_probs: torch.Tensor, to_target: Sequence[int], target_size: int) -> torch.Tensor:
    wide = scatter(draft_probs, to_target, target_size)
    wide[int(wide.argmax())] += 1 - wide.sum()
    return wide


def _one_hot(draft_probs: torch.Tensor, to_target: Sequence[int], target_size: int) -> torch.Tensor:
    best = int(scatter(draft_probs, to_target, target_size).argmax())
    return torch.nn.functional.one_hot(torch.tensor(best), target_size).float()


def _without_mass(instead: Callable[[torch.Tensor, list[int]], Any]) -> Callable[..., Any]:
    """Make the answer that is right where there is mass, and gives `instead` where there is none."""

    def answer(draft_probs: torch.Tensor, to_target: Sequence[int], target_size: int) -> Any:
        wide = scatter(draft_probs, to_target, target_size)
        return scaled(wide) if wide.sum() > 0 else instead(wide, [token for token in to_target if token >= 0])

    return answer


def _even(wide: torch.Tensor, ids: list[int]) -> Any:
    if not ids:
        return ANY
    wide[ids] = 1 / len(ids)
    return wide


RESTRICT_LAW = Exercise(
    id="10.5",
    function="restrict_law",
    title="The law on the shared tokens",
    points=3,
    difficulty=3,
    minutes=10,
    section=_SHARED,
    rule="Put each shared token's probability at the target's id, and divide by their sum: q is the law the draft "
    "token is really drawn from. Where the shared tokens have no mass, all zeros: nothing can be drafted.",
    hints=(
        "The draft may draw only tokens that the target has too. What is the law of a draw among those?",
        "Start with zeros [target_size]. For each draft token that is shared, write its probability at the target's "
        "id. A -1 is no place. Then divide by the sum, unless that is 0.",
        "`q = torch.zeros(target_size)`, `for i, token in enumerate(to_target): if token >= 0: q[token] = "
        "draft_probs[i]`, `total = q.sum()`, `return q / total if total > 0 else q`.",
    ),
    cases=_restrict_cases,
    reference=_restrict_law,
    any_float=True,
    mistakes=(
        Mistake(
            "0 / 0 where nothing is shared",
            _without_mass(lambda wide, ids: wide / wide.sum()),
            "Where the draft gives the shared tokens nothing, the sum is 0 and the division makes NaN of everything. "
            "Hand back zeros: nothing is drafted there.",
        ),
        Mistake(
            "a guess where the draft has nothing to say",
            _without_mass(_even),
            "Even chances for tokens that the draft model thinks impossible are guesses that cost a pass and hardly "
            "ever pass. Hand back zeros: nothing is drafted there.",
        ),
        Mistake(
            "q is not renormalised",
            _where_mass(scatter),
            "The token is drawn from the shared tokens alone, so the chances of these must sum to one. Judged by the "
            "smaller numbers, drafts pass too often, and the text no longer follows the target.",
        ),
        Mistake(
            "draft ids used as target ids",
            _where_mass(_own_places),
            "The verifier looks up q at the TARGET's ids: `to_target[i]`, not i.",
            section=_IDS,
        ),
        Mistake(
            "-1 taken for the last token",
            _where_mass(_minus_one_is_a_place(add=False)),
            "Python reads place -1 as the last one, so a token that is not shared gives its probability to the "
            "target's last token. Leave those tokens out.",
        ),
        Mistake(
            "the mass outside is added to the last token",
            _where_mass(_minus_one_is_a_place(add=True)),
            "Python reads place -1 as the last one, so all that is not shared gathers at the target's last token. "
            "Leave it out.",
        ),
        Mistake(
            "the mass outside is spread evenly",
            _where_mass(_missing_spread),
            "A draw among the shared tokens keeps their ratios: twice as likely stays twice as likely. Divide by the "
            "sum instead of adding the same to each.",
        ),
        Mistake(
            "the mass outside goes to the likeliest token",
            _where_mass(_likeliest_gets_all),
            "A draw among the shared tokens keeps their ratios: twice as likely stays twice as likely. Divide by the "
            "sum.",
        ),
        Mistake(
            "softmax of probabilities",
            _where_mass(_softmax_again),
            "These are probabilities already. Softmax turns LOGITS into a law; used twice it gives a nearly even one.",
        ),
        Mistake(
            "all on the likeliest token",
            _where_mass(_one_hot),
            "That is the law of a draft that takes its favourite. Here the draft token is drawn, so each shared token "
            "keeps its share.",
        ),
    ),
)

EXERCISES = [WHOLE_CHARACTERS, REJOIN, TRANSLATE, SHARED_TOKENS, RESTRICT_LAW]

QUESTIONS = [
    Question(
        "10.a",
        "Two models have 32,000 tokens each. May one draft for the other, ids and all?",
        (
            Choice(
                "Yes: equal sizes mean the same vocabulary",
                "32,000 is a round number that many tokenizers have. Equal sizes say nothing about which id is which "
                "word.",
            ),
            Choice(
                "Only if every id spells the same in both",
                "Right: ids are compared, so the two lists must agree, entry by entry. Otherwise go by text or by the "
                "shared tokens.",
            ),
            Choice(
                "No: two models never share a tokenizer",
                "Models of one family usually do. That is why a smaller sister is the usual draft.",
            ),
        ),
        right="b",
    ),
    Question(
        "10.b",
        "A re-encoded draft is judged while sampling. Somebody takes for q the product of the draft model's "
        "probabilities of its own tokens. Is the text still the target's?",
        (
            Choice(
                "Yes: that is the law that the draft was drawn from",
                "The draft model wrote greedily, so its text was certain. And other tokens of its own could have "
                "spelled the same text: the product leaves them out.",
            ),
            Choice(
                "No: the draft was certain, so q is a point mass",
                "Right: what is proposed without luck is judged by p(x) alone, and the correction comes from p without "
                "x.",
            ),
            Choice(
                "It does not matter, since the target checks everything",
                "The target's check is only as good as the q it is told. With a wrong q the law of the text is wrong.",
            ),
        ),
        right="b",
    ),
    Question(
        "10.c",
        "The target gives 30 % to tokens that the draft's tokenizer does not have. Drafts are drawn from the shared "
        "tokens. What is true?",
        (
            Choice(
                "Those tokens never appear in the text",
                "They do, exactly as often as the target wants: as corrections and as bonus tokens.",
            ),
            Choice(
                "alpha is at most .7 there",
                "Right: alpha is the overlap of p and q, and q has nothing where those 30 % are.",
            ),
            Choice(
                "alpha is .7 there",
                "That is the most it can be. It is less where p and q differ on the shared tokens.",
            ),
        ),
        right="b",
    ),
    Question(
        "10.d",
        "The look-behind is set to 1 token, to save time. What suffers?",
        (
            Choice(
                "The text: words may be cut wrongly in it",
                "The text is the target's own tokens, each of them checked. Nothing is cut in it.",
            ),
            Choice(
                "The acceptance: the draft model reads words that are cut as it never saw them",
                "Right: bad guesses cost time, never quality. And the saving is a few microseconds of encoding.",
            ),
            Choice(
                "Nothing: the text it spells is the same",
                "It is, but a model reads tokens, and guesses after the cuts that it was trained on.",
            ),
        ),
        right="b",
    ),
]
