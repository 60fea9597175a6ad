"""Stage 06, drafting without a second model: its exercises, their cases and the mistakes people make."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from specdec_course.checks.exercise import ANY, Case, Choice, Exercise, Made, Mistake, Question
from specdec_course.checks.laws import draw, for_each_uniform, law, residual, spread

_COPY = "The text drafts for itself"
_MISS = "What if nothing matches?"
_INDEX = "What does looking cost?"
_POINT = "Which law was a copy drawn from?"
_CHOICE = "Which layers should draft?"
_STOP = "When does a draft end?"

Text = list[int]

# --- 6.1 copy what came next


def _copy_cases(seed: int) -> Sequence[Case]:
    """One idea a case at first: a match, a miss, the newest, the longest, overlaps, short texts; then random texts."""
    source = random.Random(seed)
    fixed: list[tuple[Text, int, int]] = [
        ([1, 2, 3, 1], 1, 1),
        ([1, 2, 3], 2, 2),
        ([7], 3, 3),
        ([1, 1], 4, 10),
        ([4, 4, 4], 3, 3),
        ([1, 1, 1, 1], 2, 2),
        ([3, 3, 2, 2, 3, 3, 3], 5, 2),
        ([1, 2, 9, 3, 1, 2], 2, 3),
        ([1, 2, 8, 2, 9, 1, 2], 1, 2),
        ([5, 1, 2, 6, 1, 2, 7, 1, 2], 2, 2),
        ([1, 2, 1, 2, 1, 2], 4, 3),
        ([1, 2, 3, 4, 1, 2, 3], 9, 3),
        ([1, 2, 3, 4, 5, 1, 2, 3], 2, 3),
        ([1, 2, 3, 1, 2, 3], 0, 3),
        ([6, 3, 8, 4, 6, 3, 9, 2, 5, 4, 6, 3], 3, 4),
        ([3, 5, 8, 5, 4], 2, 3),
    ]
    for number in range(16):
        tokens = range(1, 4 + number % 3)
        text = [source.choice(tokens) for _ in range(source.randint(2, 16))]
        fixed.append((text, source.randint(1, 5), source.randint(1, 4)))
    return [Case({"text": text, "limit": limit, "max_ngram": longest}) for text, limit, longest in fixed]


def lookup(
    text: Text,
    limit: int,
    max_ngram: int,
    sizes: Callable[[range], Iterable[int]] = lambda longest_first: longest_first,
    choose: Callable[[list[int]], int] = lambda places: places[-1],
    counts: Callable[[int, int, int], bool] = lambda place, size, length: True,
    start: Callable[[int, int], int] = lambda place, size: place + size,
) -> Text:
    """Return a copied draft; with the defaults the right one, else one with a mistake.

    Parameters
    ----------
    sizes : callable
        From the sizes, longest first, to those that are tried, in order.
    choose : callable
        From the places of the matches, ascending, to one of them.
    counts : callable
        Whether a match at a place, of a size, in a text of a length, counts.
    start : callable
        Where copying starts.
    """
    for size in sizes(range(max_ngram, 0, -1)):
        earlier = range(len(text) - size)  # places of n-grams that something follows
        places = [at for at in earlier if text[at : at + size] == text[-size:] and counts(at, size, len(text))]
        if places:
            first = start(choose(places), size)
            return text[first : first + limit]
    return []


def _guessing(text: Text, limit: int, max_ngram: int) -> Any:
    return lookup(text, limit, max_ngram) or ANY


def _filled(text: Text, limit: int, max_ngram: int) -> Any:
    found = lookup(text, limit, max_ngram)
    return found if len(found) == limit else ANY


COPY_DRAFT = Exercise(
    id="6.1",
    function="copy_draft",
    title="Copy what came next",
    points=3,
    difficulty=3,
    minutes=12,
    section=_COPY,
    rule="Look for the text's last n tokens earlier in the text, the largest n first. At the newest place where they "
    "stand, copy up to `limit` of the tokens that FOLLOW. Nothing found, nothing proposed: an empty list.",
    hints=(
        "Two loops, one in the other. Outside: n from `max_ngram` down to 1. Inside: the places where n tokens could "
        "start, from the right to the left. The first match you meet is the right one.",
        "The last n tokens start at `len(text) - n`. An EARLIER match starts before that, so the rightmost place to "
        "try is `len(text) - n - 1`. It may overlap the suffix. What follows a match at `place` starts at `place + n`.",
        "`for n in range(max_ngram, 0, -1):`, `for place in range(len(text) - n - 1, -1, -1):`, if `text[place : "
        "place + n] == text[len(text) - n :]`: return `text[place + n : place + n + limit]`. After both loops return "
        "`[]`.",
    ),
    cases=_copy_cases,
    reference=lookup,
    mistakes=(
        Mistake(
            "something is proposed where nothing matches",
            _guessing,
            "A dummy token costs a place in the target's pass and is refused nearly always; an exception ends the "
            "text. Where nothing matches return an empty list: the round is then a plain step.",
            section=_MISS,
        ),
        Mistake(
            "the suffix matches itself",
            lambda text, limit, max_ngram: [],
            "The last n tokens are always found at the very end: there they stand. Nothing follows them there, so "
            "nothing is ever proposed. Start the search one place further left, at `len(text) - n - 1`.",
        ),
        Mistake(
            "the oldest match instead of the newest",
            functools.partial(lookup, choose=lambda places: places[0]),
            "What the text said last is the better guess: a name that was changed, a list that goes on. Search from "
            "the right to the left, and take the first match.",
        ),
        Mistake(
            "the shortest match instead of the longest",
            functools.partial(lookup, sizes=lambda longest_first: longest_first[::-1]),
            "A single token stands in many places and says little about what follows. The more tokens agree, the "
            "better the guess: try the largest n first.",
        ),
        Mistake(
            "only the longest n is tried",
            functools.partial(lookup, sizes=lambda longest_first: longest_first[:1]),
            "Where `max_ngram` tokens do not match, fewer may: go on with n - 1, down to 1.",
        ),
        Mistake(
            "matches that overlap the suffix are passed over",
            functools.partial(lookup, counts=lambda place, size, length: place + size <= length - size),
            "A match may share tokens with the suffix, as 4 4 does with itself in 4 4 4. It must not BE the suffix: "
            "any place before `len(text) - n` counts, and the newest of them is wanted.",
        ),
        Mistake(
            "the matched tokens are copied, not what follows",
            functools.partial(lookup, start=lambda place, size: place),
            "The matched tokens are what the text says already. Wanted is what came NEXT there: start n tokens later.",
        ),
        Mistake(
            "the first token after the match is left out",
            functools.partial(lookup, start=lambda place, size: place + size + 1),
            "A match of n tokens at `place` ends at `place + n - 1`. The token that followed it is at `place + n`.",
        ),
        Mistake(
            "the limit is not kept",
            lambda text, limit, max_ngram: lookup(text, len(text), max_ngram),
            "Propose at most `limit` tokens. The caller knows how many the budget and the pass have room for.",
        ),
        Mistake(
            "a match with few tokens behind it is passed over",
            lambda text, limit, max_ngram: lookup(
                text, limit, max_ngram, counts=lambda place, size, length: place + size + limit <= length
            ),
            "`limit` is the most that may be copied, not the least. In this exercise the newest match counts, however "
            "few tokens follow it.",
        ),
        Mistake(
            "the draft is filled up to the limit",
            _filled,
            "Copy what is there and no more. Every token that was made up takes a place in the target's pass.",
            section=_MISS,
        ),
    ),
)

# --- 6.2 an index that grows with the text


class _CountingDict(dict[Any, Any]):
    """A dict that counts what is written into it."""

    writes = 0

    def __setitem__(self, key: Any, value: Any) -> None:
        self.writes += 1
        super().__setitem__(key, value)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        self.writes += 1
        return super().setdefault(key, default)

    def update(self, *others: Any, **named: Any) -> None:
        for key, value in dict(*others, **named).items():
            self[key] = value

    def __ior__(self, other: Any) -> _CountingDict:
        self.update(other)
        return self


def _index_cases(seed: int) -> Sequence[Case]:
    """One chunk, the prompt alone; then rounds of one and more tokens, repetitions across the seams, random texts."""
    source = random.Random(seed)
    fixed: list[tuple[list[Text], int]] = [
        ([[1, 2]], 1),
        ([[7]], 2),
        ([[1, 2, 3]], 2),
        ([[1, 2, 1, 3]], 1),
        ([[1, 2], [3]], 2),
        ([[1], [2], [3], [4]], 3),
        ([[1, 2, 3], [1, 2, 4, 1]], 2),
        ([[5, 5], [5, 5]], 3),
        ([[1, 2, 3, 4, 5, 6], [1, 2]], 4),
    ]
    for number in range(18):
        tokens = range(1, 4 + number % 4)
        sizes = [source.randint(1, 7), *(source.randint(1, 4) for _ in range(source.randint(1, 4)))]
        fixed.append(([[source.choice(tokens) for _ in range(size)] for size in sizes], source.randint(1, 4)))
    return [Case({"chunks": chunks, "max_ngram": longest}) for chunks, longest in fixed]


def _drive_index(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Let the text grow chunk by chunk, as rounds do; say what the index holds, and whether old work was repeated."""
    index, text, thrifty = _CountingDict(), list[int](), True
    for chunk in arguments["chunks"]:
        seen, before = len(text), index.writes
        text += chunk
        function(index, list(text), seen, arguments["max_ngram"])
        thrifty = thrifty and index.writes - before <= len(chunk) * arguments["max_ngram"]
    entries = [[list(key) if isinstance(key, tuple) else key, place] for key, place in index.items()]
    return {"index": sorted(entries, key=str), "writes only what is new": thrifty}


def _indexing(
    positions: Callable[[int, int], Iterable[int]] = lambda seen, length: range(max(seen, 1), length),
    sizes: Callable[[int, int, int], Iterable[int]] = lambda longest, position, seen: range(
        1, min(longest, position) + 1
    ),
    place: Callable[[int, int], int] = lambda position, size: position,
    newest: bool = True,
) -> Callable[..., None]:
    """Make the answer that notes n-grams with the given faults; without any it is right."""

    def answer(index: dict[tuple[int, ...], int], text: Text, seen: int, max_ngram: int) -> None:
        for position in positions(seen, len(text)):
            for size in sizes(max_ngram, position, seen):
                key = tuple(text[position - size : position])
                if newest or key not in index:
                    index[key] = place(position, size)

    return answer


INDEX_NEW = Exercise(
    id="6.2",
    function="index_new",
    title="An index that grows with the text",
    points=2,
    difficulty=3,
    minutes=10,
    section=_INDEX,
    rule="An n-gram is known once a token follows it. So each new token at `position` makes known the n-grams that end "
    "just before it, `text[position - n : position]` for n = 1 to max_ngram: `index[n-gram] = position`. Newer entries "
    "replace older ones, and nothing old is written again.",
    hints=(
        "Go through the new tokens. Which n-grams does the token at `position` follow? They end just before it, and "
        "some of them may lie wholly or partly in the old text.",
        "New tokens stand at `range(seen, len(text))`; the very first token of a text follows nothing. The n-gram of "
        "size n before `position` is `tuple(text[position - n : position])`, and it exists if `n <= position`.",
        "`for position in range(max(seen, 1), len(text)):`, `for n in range(1, min(max_ngram, position) + 1):`, "
        "`index[tuple(text[position - n : position])] = position`.",
    ),
    cases=_index_cases,
    drive=_drive_index,
    reference=_indexing(),
    mistakes=(
        Mistake(
            "everything is indexed anew each round",
            _indexing(positions=lambda seen, length: range(1, length)),
            "The result is right, and the work is not: each round would cost as much as the whole text is long. Write "
            "only what the new tokens make known, from position `seen` on.",
        ),
        Mistake(
            "n-grams across the seam of two rounds are lost",
            _indexing(
                positions=lambda seen, length: range(seen + 1, length),
                sizes=lambda longest, position, seen: range(1, min(longest, position - seen) + 1),
            ),
            "Only the new tokens among themselves are looked at. But the first new token follows n-grams of the OLD "
            "text, and the next ones follow n-grams that began there.",
        ),
        Mistake(
            "the first new token is passed over",
            _indexing(positions=lambda seen, length: range(seen + 1, length)),
            "Before this round nothing followed the n-grams at the old text's end, so they are not in the index yet. "
            "The first new token, at position `seen`, follows them.",
        ),
        Mistake(
            "the end of the text is indexed too",
            _indexing(positions=lambda seen, length: range(max(seen, 1), length + 1)),
            "Nothing follows the last n tokens yet. In the index they would match themselves, and the draft would be "
            "empty. They become known with the next token.",
            section=_COPY,
        ),
        Mistake(
            "the oldest place is kept",
            _indexing(newest=False),
            "The newest place is wanted: let a later occurrence replace the entry.",
            section=_COPY,
        ),
        Mistake(
            "only n-grams of the largest size",
            _indexing(sizes=lambda longest, position, seen: [longest] if longest <= position else []),
            "A lookup falls back to shorter n-grams, so the index needs all sizes from 1 to max_ngram.",
        ),
        Mistake(
            "n-grams of the largest size are missing",
            _indexing(sizes=lambda longest, position, seen: range(1, min(longest - 1, position) + 1)),
            "`range(1, max_ngram)` ends before max_ngram. Sizes go from 1 to max_ngram itself.",
        ),
        Mistake(
            "where the n-gram starts is noted, not what follows",
            _indexing(place=lambda position, size: position - size),
            "Copying starts at the token AFTER the n-gram. Note that position: then a draft is one slice of the text.",
        ),
        Mistake(
            "n-grams that would start before the text",
            _indexing(sizes=lambda longest, position, seen: range(1, longest + 1)),
            "At `position` only n-grams of up to `position` tokens exist. With a larger n the slice starts at a "
            "negative number, and Python then counts from the END of the text.",
        ),
    ),
)

# --- 6.3 judge a copy

_Rule = Callable[[torch.Tensor, int, float], bool]
_Replacement = Callable[[torch.Tensor, int], torch.Tensor]


def _judge_cases(seed: int) -> Sequence[Case]:
    """Single drafts with laws that leave no choice; laws seen whole through a spread; blocks; a token with p = 0."""

    def case(rows: Sequence[torch.Tensor], tokens: Text, accept: Sequence[float], correct: Any) -> Case:
        uniforms = torch.tensor(accept, dtype=torch.float64)
        numbers = {"accept_uniforms": uniforms, "correct_uniform": correct}
        return Case({"target_probs": torch.stack(list(rows)), "draft_tokens": tokens, **numbers})

    two, end = law(0.4, 0.6), law(0.0, 1.0)
    cases = [case([two, end], [0], [u], v) for u in (0.2, 0.45, 0.7) for v in (0.1, 0.9)]
    cases += [case([two, end], [1], [u], 0.3) for u in (0.5, 0.8)]
    three, last = law(0.5, 0.3, 0.2), law(0.25, 0.25, 0.5)
    cases += [case([three, last], [1], [u], spread(7)) for u in (0.4, 0.95)]
    cases += [case([three, last], [x], [u], spread(4)) for x, u in ((0, 0.3), (1, 0.2))]
    cases += [case([law(0.0, 1.0, 0.0), last], [0], [0.0], 0.5), case([last], [], [], spread(4))]
    source = torch.Generator().manual_seed(seed)
    for number in range(14):
        count = 1 + number % 3
        rows, tokens = [], []
        for _ in range(count):
            order = torch.randperm(4, generator=source)
            share = 0.3 + 0.4 * float(torch.rand((), generator=source))
            rows.append(law(share, 1 - share, 0, 0)[order])  # one token beside the drafted one: no choice
            tokens.append(int((order == 0).nonzero()))
        rows.append(law(0, 0, 0, 1)[torch.randperm(4, generator=source)])
        accept = torch.rand(count, generator=source, dtype=torch.float64).tolist()
        cases.append(case(rows, tokens, accept, float(torch.rand((), generator=source))))
    # Refused first, then a draft that would pass; accepted, then refused; all accepted.
    rows = law(0.3, 0.7, 0, 0), law(0, 0.6, 0.4, 0), law(0.25, 0, 0.25, 0.5)
    return cases + [case(rows, [0, 1], accept, spread(4)) for accept in ([0.5, 0.1], [0.1, 0.8], [0.2, 0.3])]


def _judge_copy(
    target_probs: torch.Tensor, draft_tokens: Text, accept_uniforms: torch.Tensor, correct_uniform: float
) -> Text:
    from specdec_ref.acceptance import verify_chain

    tokens = torch.tensor([draft_tokens], dtype=torch.int64)
    correct = torch.tensor([correct_uniform], dtype=torch.float64)
    verdict = verify_chain(target_probs[None], tokens, None, accept_uniforms[None], correct)
    return [*draft_tokens[: int(verdict.num_accepted[0])], int(verdict.next_token[0])]


def _without(p: torch.Tensor, x: int) -> torch.Tensor:
    return p.index_fill(0, torch.tensor(x), 0.0)


def _leading(kept: Sequence[bool]) -> int:
    return len(list(itertools.takewhile(bool, kept)))


def _judging(
    keeps: _Rule = lambda p, x, u: u < float(p[x]),
    replacement: _Replacement = _without,
    count: Callable[[Sequence[bool]], int] = _leading,
    judge_row: Callable[[int], int] = lambda i: i,
    correct_row: Callable[[int, int], int] = lambda a, k: a,
    pick: Callable[[torch.Tensor, float], int] = draw,
    emit: Callable[[Text, int, int], Text] = lambda tokens, a, following: [*tokens[:a], following],
) -> Callable[..., Text]:
    """Make the answer of a judge of copies with the given faults; without any it is right."""

    def answer(
        target_probs: torch.Tensor, draft_tokens: Text, accept_uniforms: torch.Tensor, correct_uniform: float
    ) -> Text:
        k = len(draft_tokens)
        kept = [
            keeps(target_probs[judge_row(i)], token, float(accept_uniforms[i])) for i, token in enumerate(draft_tokens)
        ]
        a = count(kept)
        p = target_probs[correct_row(a, k)]
        if a < k:
            p = replacement(p, draft_tokens[a])
        return emit(draft_tokens, a, pick(p, correct_uniform))

    return answer


def _uniform_law(p: torch.Tensor) -> torch.Tensor:
    return torch.full_like(p, 1 / len(p))


_CERTAIN = (
    "Nothing was drawn when the token was copied: it was proposed with certainty. So q is 1 for this token and 0 for "
    "all others: keep it with chance p(x), and correct from p without it."
)

JUDGE_COPY = Exercise(
    id="6.3",
    function="judge_copy",
    title="Judge a copy",
    points=3,
    difficulty=3,
    minutes=12,
    section=_POINT,
    rule="A copied token x is proposed with certainty, so it passes with chance p(x): if its uniform number is below "
    "p(x). The leading run of passes is kept. After a refusal draw from p of that row without the refused token; if "
    "all passed, draw the bonus from the last row.",
    hints=(
        "With what probability did the drafter propose the token that it proposed? Put that into the rule of stage 02.",
        "Row i of `target_probs` judges draft token i: it passes if `accept_uniforms[i] < target_probs[i, token]`. At "
        "the first refusal stop. What is max(0, p - q) where q is a point mass?",
        "Loop over the drafts; at the first refusal take `rest = target_probs[i].clone()`, set `rest[token] = 0`, and "
        "return the accepted tokens and a draw from `rest / rest.sum()`. After the loop return all drafts and a draw "
        "from `target_probs[-1]`. `draw` is given.",
    ),
    cases=_judge_cases,
    reference=_judge_copy,
    drive=for_each_uniform,
    uniforms=("accept_uniforms", "correct_uniform"),
    mistakes=(
        Mistake(
            "a token with p = 0 is kept when u = 0",
            _judging(keeps=lambda p, x, u: u <= float(p[x])),
            "Uniform numbers lie in [0, 1), so 0 does occur. With `<=` a token passes that the target never writes.",
        ),
        Mistake(
            "every copied token is kept",
            _judging(keeps=lambda p, x, u: True),
            "A copy is a guess. If it were always kept, the text would repeat itself for ever, whatever the target "
            "wants. Keep it with chance p(x).",
        ),
        Mistake(
            "kept only if it is the target's favourite",
            _judging(keeps=lambda p, x, u: int(p.argmax()) == x),
            "That is the rule at temperature 0. Here the target draws: it wants each token with its p, favourite or "
            "not, so the copy passes with chance p(x).",
        ),
        Mistake(
            "an invented q, the same for every token",
            _judging(
                keeps=lambda p, x, u: u < float(p[x]) * len(p), replacement=lambda p, x: residual(p, _uniform_law(p))
            ),
            f"{_CERTAIN} With q = 1/V the pair p = .5/.3/.2 and a copied token 1 gives the law .1/.9/0.",
        ),
        Mistake(
            "the correction may be the refused token again",
            _judging(replacement=lambda p, x: p),
            "The refused token has had its chance p(x). Drawn from the whole p it gets a second one. The residual is p "
            "without it, scaled to sum to one.",
        ),
        Mistake(
            "the correction is the likeliest other token",
            _judging(replacement=lambda p, x: torch.nn.functional.one_hot(_without(p, x).argmax(), len(p)).double()),
            "The target's favourite is right at temperature 0 only. Draw from what is left, with `correct_uniform`.",
        ),
        Mistake(
            "the likeliest token is taken instead of drawing",
            _judging(pick=lambda p, u: int(p.argmax())),
            "The target's favourite is right at temperature 0 only. Draw correction and bonus with `correct_uniform`.",
        ),
        Mistake(
            "drafts behind a refusal are counted",
            _judging(count=sum),
            "After the first refusal the rest of the draft is thrown away: it continued a text that does not exist. "
            "Count the leading run of passes, not all of them.",
        ),
        Mistake(
            "the correction comes from the last row",
            _judging(correct_row=lambda a, k: k),
            "The last row continues the text after ALL drafts. The correction stands in place of the refused token, so "
            "it comes from the row that refused it.",
        ),
        Mistake(
            "the correction comes from the row after the refusal",
            _judging(correct_row=lambda a, k: min(a + 1, k)),
            "The row after continues the text behind the refused token. The correction REPLACES that token: take the "
            "row that refused it.",
        ),
        Mistake(
            "draft i is judged by row i + 1",
            _judging(judge_row=lambda i: i + 1),
            "Row 0 is the target's law after the text, so it judges draft token 0. The last row judges nothing: it is "
            "for the bonus.",
        ),
        Mistake(
            "the bonus token is left out",
            _judging(emit=lambda tokens, a, following: [*tokens[:a], following] if a < len(tokens) else list(tokens)),
            "If all drafts pass, the last row gives one more token for nothing. Without a draft it is the only one.",
        ),
        Mistake(
            "only the accepted drafts are returned",
            _judging(emit=lambda tokens, a, following: list(tokens[:a])),
            "Each round brings one token of the target's own, the correction or the bonus. Without it a round with a "
            "refused first draft would bring nothing, for ever.",
        ),
    ),
)

# --- 6.4 which layers draft

Worth = Mapping[tuple[int, ...], float]
Kept = tuple[int, ...]


def _subsets(num_layers: int) -> list[Kept]:
    """Return all sets of layers, the whole model first, none of them empty."""
    return [kept for size in range(num_layers, 0, -1) for kept in itertools.combinations(range(num_layers), size)]


# Greedy removal comes to (0, 1, 2) with 1.05, (0, 2) with .98 and (0,) with 1.2; the best set of all is (0, 3).
_FALLS_AND_RISES = (0.95, 1.05, 0.9, 1.0, 0.4, 0.85, 0.98, 1.3, 0.3, 0.6, 0.55, 1.2, 0.2, 0.5, 1.1)


def _layer_cases(seed: int) -> Sequence[Case]:
    """Two and three layers by hand; then random worths, all different, of three to five layers."""
    source = random.Random(seed)
    fixed: list[tuple[dict[Kept, float], int]] = [
        ({(0, 1): 0.9, (0,): 1.2, (1,): 1.1}, 2),
        ({(0, 1): 0.9, (0,): 0.7, (1,): 0.8}, 2),
        ({(0, 1, 2): 0.9, (0, 1): 1.1, (0, 2): 1.2, (1, 2): 0.8, (0,): 1.0, (1,): 1.3, (2,): 0.95}, 3),
        ({(0, 1, 2): 0.9, (0, 1): 0.8, (0, 2): 1.05, (1, 2): 0.85, (0,): 1.3, (1,): 1.4, (2,): 0.7}, 3),
        ({(0, 1, 2): 0.97, (0, 1): 0.91, (0, 2): 0.95, (1, 2): 0.5, (0,): 0.6, (1,): 0.7, (2,): 0.4}, 3),
        ({(0, 1, 2): 0.9, (0, 1): 0.8, (0, 2): 1.05, (1, 2): 1.1, (0,): 0.7, (1,): 1.2, (2,): 0.6}, 3),
        (dict(zip(_subsets(4), _FALLS_AND_RISES, strict=True)), 4),
    ]
    for number in range(20):
        layers = 3 + number % 3
        subsets = _subsets(layers)
        fixed.append((dict(zip(subsets, _worths(source, len(subsets)), strict=True)), layers))
    return [Case({"worth": worth, "num_layers": layers}) for worth, layers in fixed]


def _worths(source: random.Random, count: int) -> list[float]:
    return [hundredths / 100 for hundredths in source.sample(range(40, 160), count)]


def _choose_layers(worth: Worth, num_layers: int) -> list[int]:
    from specdec_ref.training.layer_skip import SkipPlan, search

    def judge(kept: Sequence[int]) -> dict[str, Any]:
        return {"speedup": worth[tuple(kept)], "stop_below": 0.0}

    choice, _ = search(judge, num_layers, SkipPlan(patience=num_layers), {}, lambda journal: None)
    return list(choice.kept)


def _path(worth: Worth, num_layers: int, better: Callable[..., Kept] = max) -> list[Kept]:
    """Return the sets that greedy removal comes to, from all layers but one down to one."""
    kept, path = tuple(range(num_layers)), list[Kept]()
    while len(kept) > 1:
        kept = better((kept[:i] + kept[i + 1 :] for i in range(len(kept))), key=worth.__getitem__)
        path.append(kept)
    return path


def _best(worth: Worth, sets: Iterable[Kept]) -> list[int]:
    return list(max(sets, key=worth.__getitem__))


def _alone(worth: Worth, num_layers: int) -> list[int]:
    """Of code that ranks the layers once, each left out alone, and removes them in that order."""
    whole = tuple(range(num_layers))
    order = sorted(whole, key=lambda layer: -worth[tuple(one for one in whole if one != layer)])
    left = [tuple(one for one in whole if one not in order[:count]) for count in range(1, num_layers)]
    return _best(worth, left)


def _climb(worth: Worth, num_layers: int) -> list[int]:
    path = _path(worth, num_layers)
    steps = list(itertools.takewhile(lambda i: i == 0 or worth[path[i]] > worth[path[i - 1]], range(len(path))))
    return list(path[steps[-1]])


CHOOSE_LAYERS = Exercise(
    id="6.4",
    function="choose_layers",
    title="Which layers draft",
    points=2,
    difficulty=3,
    minutes=10,
    section=_CHOICE,
    rule="Start with all layers. Leave out the one whose removal leaves the best set, again and again, down to one "
    "layer. The answer is the best set met ON THE WAY; at least one layer is left out.",
    hints=(
        "What is the best set with one layer less? Try each of the layers that are left, and look the sets up. Then "
        "ask the same again for the set you came to.",
        "Sets with one layer less: `kept[:i] + kept[i + 1 :]` for each i. Take the one with the largest `worth`, also "
        "where it is smaller than before: the next step may be better. Remember each set on the way.",
        "`kept = tuple(range(num_layers))`, `path = []`; while `len(kept) > 1`: `kept = max((kept[:i] + kept[i + 1 :] "
        "for i in range(len(kept))), key=lambda one: worth[one])` and `path.append(kept)`. Return "
        "`list(max(path, key=lambda one: worth[one]))`.",
    ),
    cases=_layer_cases,
    reference=_choose_layers,
    mistakes=(
        Mistake(
            "the whole model is among the choices",
            lambda worth, num_layers: _best(worth, [tuple(range(num_layers)), *_path(worth, num_layers)]),
            "A model that drafts for itself with all layers agrees always and gains nothing: its draft step is a plain "
            "step. The search asks which part of it drafts best, so at least one layer is left out. Whether that pays "
            "is the next question.",
        ),
        Mistake(
            "each layer is judged alone",
            _alone,
            "Two layers can stand in for each other: each can be spared, but not both. After every removal ask anew "
            "which of the layers that are LEFT can best be spared.",
        ),
        Mistake(
            "stops at the first step that is no better",
            _climb,
            "Worth may fall and then rise: one layer less costs acceptance at once, and the draft gets much cheaper "
            "two steps later. Go down to one layer and take the best set of the way.",
        ),
        Mistake(
            "the last set instead of the best",
            lambda worth, num_layers: list(_path(worth, num_layers)[-1]),
            "The last set on the way is a single layer. The answer is the best set that was met.",
        ),
        Mistake(
            "only one layer is left out",
            lambda worth, num_layers: list(_path(worth, num_layers)[0]),
            "One layer less is the first step. Go on: the gain comes from leaving out many.",
        ),
        Mistake(
            "the most useful layer goes first",
            lambda worth, num_layers: _best(worth, _path(worth, num_layers, min)),
            "Leave out the layer whose removal leaves the LARGEST worth: the one that can best be spared.",
        ),
        Mistake(
            "every set is tried",
            lambda worth, num_layers: _best(worth, _subsets(num_layers)[1:]),
            "That finds the best set of all, and for 30 layers it asks a billion times. Greedy removal asks 464 times; "
            "it may miss the best set, and in these cases it sometimes does.",
        ),
    ),
)

# --- 6.5 when a draft ends


class _Draft:
    """A small draft model: the law after each token is a row of a table. Counts how many laws it was asked for."""

    def __init__(self, rows: list[list[float]], last_token: int) -> None:
        self.rows, self.last_token, self.asked = rows, last_token, 0

    def __call__(self, tokens: Sequence[int]) -> torch.Tensor:
        """Return the law [V] of the token after the text and these draft tokens."""
        self.asked += 1
        return torch.tensor(self.rows[tokens[-1] if len(tokens) else self.last_token], dtype=torch.float64)


def _pick(law_of_next: torch.Tensor, uniform: Any) -> int:
    return draw(law_of_next, float(uniform))


def _itself(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _stop_cases(seed: int) -> Sequence[Case]:
    """Sure and unsure laws, likely and unlikely draws, thresholds met exactly, 0 and 1; then random tables."""
    sure, unsure, half = [0.8, 0.1, 0.1], [0.4, 0.35, 0.25], [0.25, 0.5, 0.25]
    fixed: list[tuple[list[list[float]], int, list[float], float]] = [
        ([sure, sure, sure], 0, [0.5], 0.5),
        ([sure, sure, sure], 0, [0.85], 0.5),
        ([sure, sure, sure], 0, [0.95], 0.5),
        ([unsure, unsure, unsure], 0, [0.5], 0.5),
        ([sure, sure, sure], 0, [0.95, 0.2], 0.5),
        ([unsure, sure, sure], 0, [0.2, 0.2], 0.5),
        ([sure, unsure, sure], 0, [0.85, 0.2, 0.3], 0.5),
        ([half, half, half], 1, [0.1, 0.9, 0.6], 0.5),
        ([unsure, unsure, unsure], 2, [0.9, 0.7, 0.2], 0.3),
        ([unsure, sure, half], 0, [0.9, 0.5, 0.1, 0.9], 0.0),
        ([sure, sure, half], 0, [0.1, 0.95, 0.3], 1.0),
        ([sure, half, unsure], 0, [0.3, 0.3, 0.85, 0.6, 0.3], 0.45),
    ]
    source = random.Random(seed)
    for _ in range(18):
        rows = [[weight / 20 for weight in source.choice(_TWENTIETHS)] for _ in range(4)]
        for row in rows:
            source.shuffle(row)
        count = source.randint(2, 5)
        threshold = source.choice((0.3, 0.45, 0.6))
        fixed.append((rows, source.randrange(4), [source.random() for _ in range(count)], threshold))
    return [
        Case(
            {
                "next_law": Made(
                    functools.partial(_Draft, rows, last), f"a draft at token {last}; rows of its table: {rows}"
                ),
                "pick": Made(functools.partial(_itself, _pick), "pick"),
                "draft_uniforms": torch.tensor(uniforms, dtype=torch.float64),
                "stop_below": threshold,
            }
        )
        for rows, last, uniforms, threshold in fixed
    ]


_TWENTIETHS = ([10, 5, 3, 2], [14, 3, 2, 1], [7, 6, 4, 3], [11, 4, 3, 2], [18, 1, 1, 0], [6, 5, 5, 4])


def _drive_stop(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    draft = function(*arguments.values())
    return {"draft": draft, "laws asked for": arguments["next_law"].asked}


def _stopping(
    before: Callable[[torch.Tensor, float], bool] = lambda p, limit: False,
    drops: Callable[[torch.Tensor, int, float], bool] = lambda p, token, limit: False,
    after: Callable[[torch.Tensor, int, float], bool] = lambda p, token, limit: float(p.max()) < limit,
    choose: Callable[[torch.Tensor, int], int] = lambda p, token: token,
    ask_on: bool = False,
) -> Callable[..., Text]:
    """Make the answer of a drafter that stops with the given faults; without any it is right."""

    def answer(next_law: Any, pick: Any, draft_uniforms: torch.Tensor, stop_below: float) -> Text:
        tokens: Text = []
        for uniform in draft_uniforms:
            p = next_law(tokens)
            if before(p, stop_below):
                break
            token = choose(p, pick(p, uniform))
            if drops(p, token, stop_below):
                break
            tokens.append(token)
            if after(p, token, stop_below):
                break
        else:
            if ask_on:
                next_law(tokens)
        return tokens

    return answer


DRAFT_UNTIL_UNSURE = Exercise(
    id="6.5",
    function="draft_until_unsure",
    title="When a draft ends",
    points=2,
    difficulty=3,
    minutes=10,
    section=_STOP,
    rule="Draw a token from each law and keep it. The draft ends WITH a token whose law gave no token as much as "
    "`stop_below`. Whether it ends is decided by the law, never by which token was drawn, and a drawn token stays.",
    hints=(
        "Ask for a law, draw from it, keep the token: that is one step. After which steps should there be no other?",
        "What the draft knew before it drew is the law. Its largest probability says how sure it was. Look at that, "
        "not at the probability of the token that luck brought.",
        "For each uniform: `law = next_law(tokens)`, `tokens.append(pick(law, uniform))`, and then `if law.max() < "
        "stop_below: break`. Return `tokens`.",
    ),
    cases=_stop_cases,
    drive=_drive_stop,
    reference=_stopping(),
    uniforms=("draft_uniforms",),
    mistakes=(
        Mistake(
            "a drawn token is dropped because it looks unlikely",
            _stopping(drops=lambda p, token, limit: float(p[token]) < limit, after=lambda p, token, limit: False),
            "Unlikely tokens are then never proposed, and yet q says that they are. The law of the text changes: with "
            "q = .4/.4/.2 and p = .2/.4/.4 it becomes .24/.48/.28. A token that was drawn stays in the draft.",
        ),
        Mistake(
            "the drawn token's probability decides",
            _stopping(after=lambda p, token, limit: float(p[token]) < limit),
            "The text would stay exact, since the token is kept. But a sure draft may draw an unlikely token now and "
            "then. What is asked is whether the LAW is sure of anything: its largest probability.",
        ),
        Mistake(
            "the last token is left out although its law was paid for",
            _stopping(before=lambda p, limit: float(p.max()) < limit, after=lambda p, token, limit: False),
            "This is exact too, for the token was never drawn. But the pass that gave the law has been paid, and a "
            "token drawn from it costs nothing more: let the draft end WITH it.",
        ),
        Mistake(
            "ends where the draft is sure",
            _stopping(after=lambda p, token, limit: float(p.max()) >= limit),
            "A sure law promises acceptance: go on there. End where no token has as much as `stop_below`.",
        ),
        Mistake(
            "ends at the threshold itself",
            _stopping(after=lambda p, token, limit: float(p.max()) <= limit),
            "`stop_below` says below: a law that gives some token exactly so much is sure enough.",
        ),
        Mistake(
            "the draft never ends early",
            _stopping(after=lambda p, token, limit: False),
            "Where the draft is unsure, the tokens behind would be refused mostly, and each costs a draft step.",
        ),
        Mistake(
            "the most likely token is taken instead of drawing",
            _stopping(choose=lambda p, token: int(p.argmax())),
            "The verifier believes that each token was DRAWN from its law. Use `pick` with the uniform number.",
        ),
        Mistake(
            "one law too many is asked for",
            _stopping(ask_on=True),
            "Behind the last draft token nothing is drawn in this round, so the pass that gives its law is paid for "
            "nothing.",
        ),
    ),
)

EXERCISES = [COPY_DRAFT, INDEX_NEW, JUDGE_COPY, CHOOSE_LAYERS, DRAFT_UNTIL_UNSURE]

QUESTIONS = [
    Question(
        "6.a",
        "An n-gram drafter finds no match. A colleague lets it propose the target's most frequent token, \"so that the "
        'pass is not wasted". What happens?',
        (
            Choice(
                "The text becomes wrong",
                "No: the target checks every token. A bad draft costs time, never quality, if it is judged rightly.",
            ),
            Choice(
                "The round costs more and brings hardly more",
                "Right: the pass is over two tokens or more instead of one, and the dummy is refused nearly always. "
                "With an empty draft the round is a plain step.",
            ),
            Choice(
                "Nothing changes, because a pass costs the same for one token and for six",
                "Stage 03 measured that. On many machines the first further token costs most of all.",
            ),
        ),
        right="b",
    ),
    Question(
        "6.b",
        "At temperature 1 the target gives a token p = .3. A model draft drew it from its law, with q = .3. An n-gram "
        "draft copied it. How likely is it to be kept?",
        (
            Choice(
                "With chance .3 in both cases",
                "A drawn token passes with min(1, p/q), and here p/q = 1: it is always kept.",
            ),
            Choice(
                "Always if it was drawn, with chance .3 if it was copied",
                "Right: the copy was proposed with certainty, so its q is 1, and p/q = .3.",
            ),
            Choice(
                "Always in both cases, since both tokens are the same",
                "Then each copied token would be kept however seldom the target wants it. How a token came about "
                "matters: it says how often it is proposed.",
            ),
        ),
        right="b",
    ),
    Question(
        "6.c",
        "A target drafts for itself with 29 of its 30 layers. Nearly every draft token passes. How much is gained?",
        (
            Choice(
                "About K + 1 times, since nearly all K drafts pass",
                "That many tokens a round, yes. But each draft token costs nearly a whole target step.",
            ),
            Choice(
                "Nothing: it is hardly faster than plain decoding, or slower",
                "Right: K draft steps of .97 and a pass of 1.1 cost about as much as the K + 1 plain steps that they "
                "replace; with a refusal now and then they cost more. 1/.97 is the most that could ever be gained.",
            ),
            Choice(
                "One thirtieth",
                "That would be so if the target were not needed to check. The check comes on top of the drafting.",
            ),
        ),
        right="b",
    ),
    Question(
        "6.d",
        "To save time a drafter throws away each drawn token with q(x) below .3 and ends its draft there. The tokens "
        "that remain are judged with their q, by the right rule. Is the text still exact?",
        (
            Choice(
                "Yes: every token that is judged is judged rightly",
                "The rule needs that tokens are proposed as often as q says. Here the unlikely ones never are, so the "
                "correction, which counts on them, makes up for too much.",
            ),
            Choice(
                "Only at temperature 0",
                "Right: there the draft draws nothing, and nothing can be dropped for what luck brought. With "
                "sampling the law changes; let the draft end by its law, not by its token.",
            ),
            Choice(
                "No, not even at temperature 0",
                "Greedy, a shorter draft is just a shorter draft: the next token is the target's own favourite.",
            ),
        ),
        right="b",
    ),
]
