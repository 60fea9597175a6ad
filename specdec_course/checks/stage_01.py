"""Stage 01, the plain loop: its exercises, their cases and the mistakes people make."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from specdec_course.checks.exercise import ANY, Case, Choice, Exercise, Made, Mistake, Question
from specdec_course.checks.toy_target import ToyTarget

VOCAB = 7

# --- 1.1 softmax


def _softmax_cases(seed: int) -> Sequence[Case]:
    """Small logits, large ones, temperature 0 with and without ties, a forbidden token; then what to refuse."""
    inf = math.inf
    fixed: list[tuple[list[float], float]] = [([2.0, 1.0, 0.0], 1.0), ([2.0, 1.0, 0.0], 0.5), ([0.0, 3.0], 2.0)]
    fixed += [([1.0, 3.0, 2.0], 0.0), ([1.0, 3.0, 3.0], 0.0), ([-5.0, -2.0, -2.0, -2.0], 0.0), ([4.0], 1.0)]
    fixed += [([1000.0, 999.0, 998.0], 1.0), ([0.0, 1000.0], 1e-3), ([-1000.0, -1001.0], 1.0), ([1.0, -inf, 0.0], 1.0)]
    source = torch.Generator().manual_seed(seed)
    for place in range(9):
        logits = 5 * torch.randn(int(torch.randint(2, 7, (), generator=source)), generator=source)
        fixed.append((logits.tolist(), [0.3, 1.7, 0.0][place % 3]))
    cases = [({"logits": torch.tensor(logits, dtype=torch.float64)}, temperature) for logits, temperature in fixed]
    cases += [({"logits": torch.tensor([90.0, 89.0, -90.0])}, 1.0)]  # float32 has room for less than e^89
    cases += [({"logits": torch.tensor([1.0, 2.0], dtype=torch.float64)}, -1.0)]
    return [Case({**logits, "temperature": temperature}) for logits, temperature in cases]


def _softmax(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    from specdec_ref.sampling import SamplingSettings, probabilities

    return probabilities(logits, SamplingSettings(temperature=temperature))


def _heated(
    warm: Callable[[torch.Tensor, float], torch.Tensor] = lambda z, t: ((z - z.max()) / t).softmax(-1),
    cold: Callable[[torch.Tensor], Any] = lambda z: torch.zeros_like(z).index_fill(0, z.argmax(), 1.0),
    below: Any = ANY,
) -> Callable[..., Any]:
    """Make an answer from what is done above temperature 0, at 0 and below; where it is not said, it is right."""

    def answer(logits: torch.Tensor, temperature: float) -> Any:
        if temperature < 0:
            return below
        return warm(logits, temperature) if temperature > 0 else cold(logits)

    return answer


def _powers(logits: torch.Tensor) -> torch.Tensor:
    return logits.exp() / logits.exp().sum()


SOFTMAX = Exercise(
    id="1.1",
    function="softmax",
    title="From logits to a distribution",
    points=2,
    difficulty=2,
    minutes=8,
    section="1. From scores to chances",
    rule="Subtract the largest logit, divide by the temperature, take powers of e, divide by their sum. Temperature 0 "
    "is the limit: probability 1 on the largest logit, the first one if several are equal. Below 0 is an error.",
    hints=(
        "Three cases: a temperature below 0 is refused, 0 has its own answer, and for all others there is the formula.",
        "At temperature 0: `torch.zeros_like(logits)`, with a 1 at `logits.argmax()`, which is the first of equals. "
        "Above 0: subtract `logits.max()` before you take any power.",
        "`powers = ((logits - logits.max()) / temperature).exp()`, then `return powers / powers.sum()`.",
    ),
    cases=_softmax_cases,
    reference=_softmax,
    mistakes=(
        Mistake(
            "a negative temperature is not refused",
            _heated(),
            "Below 0 the least likely token would become the likeliest. Nobody wants that, so it is a mistake of the "
            "caller: raise a ValueError.",
        ),
        Mistake(
            "at temperature 0 equal logits share the probability",
            _heated(cold=lambda z: (z == z.max()).to(z.dtype) / (z == z.max()).sum()),
            "Greedy decoding takes one token, and always the same. All parts of a system must break a tie alike: the "
            "lowest index has it all.",
        ),
        Mistake(
            "at temperature 0 each of the equal logits gets 1",
            _heated(cold=lambda z: (z == z.max()).to(z.dtype)),
            "Where two logits are equally large, the result sums to 2: no distribution. The lowest index has it all.",
        ),
        Mistake(
            "at temperature 0 the last of equal logits is taken",
            _heated(cold=lambda z: torch.zeros_like(z).index_fill(0, len(z) - 1 - z.flip(0).argmax(), 1.0)),
            "Any fixed choice would do, but all parts of a system must make the same one: the lowest index, which is "
            "what `argmax` returns.",
        ),
        Mistake(
            "temperature 0 is not handled",
            _heated(cold=lambda z: ANY),
            "The formula divides by the temperature. At 0 it gives NaN or an error, or the wrong law if 0 is taken for "
            "something else. Temperature 0 is defined as the limit: give it a branch of its own.",
        ),
        Mistake(
            "the largest logit is not subtracted",
            _heated(lambda z, t: _powers(z / t), lambda z: ANY),
            "The powers of large logits are infinite, and infinity over infinity is NaN; the powers of very small ones "
            "are all 0. Subtract the largest logit first: only differences count.",
        ),
        Mistake(
            "multiplied by the temperature",
            _heated(lambda z, t: ((z - z.max()) * t).softmax(-1), lambda z: ANY),
            "A high temperature must make the law flatter, so the logits are DIVIDED by it.",
            section="Temperature",
        ),
        Mistake(
            "the temperature has no effect",
            _heated(lambda z, t: z.softmax(-1), lambda z: ANY),
            "Is it used at all, or only to scale probabilities, which the normalisation takes back? It must divide the "
            "logits, before any power is taken.",
            section="Temperature",
        ),
        Mistake(
            "the powers are not divided by their sum",
            _heated(lambda z, t: ((z - z.max()) / t).exp(), lambda z: ANY),
            "Probabilities sum to 1. Divide the powers by their sum.",
        ),
    ),
)

# --- 1.2 top-k and top-p


def _keep_cases(seed: int) -> Sequence[Case]:
    """The laws of the lesson, unsorted ones, each filter alone and both; then random laws."""
    fixed: list[tuple[list[float], int | None, float]] = [([0.4, 0.3, 0.2, 0.1], None, 0.8)]
    fixed += [([0.4, 0.3, 0.2, 0.1], 2, 1.0), ([0.4, 0.3, 0.2, 0.1], None, 0.1), ([0.4, 0.3, 0.2, 0.1], None, 1.0)]
    fixed += [([0.1, 0.4, 0.2, 0.3], None, 0.65), ([0.1, 0.4, 0.2, 0.3], 3, 1.0), ([0.2, 0.5, 0.3], 9, 1.0)]
    fixed += [([0.1, 0.4, 0.2, 0.3], 2, 0.5), ([0.1, 0.2, 0.3, 0.4], 3, 0.6), ([0.0, 0.7, 0.0, 0.3], 3, 0.9)]
    source = torch.Generator().manual_seed(seed)
    for place in range(14):
        law = torch.randn(6, generator=source, dtype=torch.float64).softmax(-1)
        top_k = None if place % 3 == 0 else int(torch.randint(1, 8, (), generator=source))
        top_p = 1.0 if place % 3 == 1 else 0.05 + 0.9 * float(torch.rand((), generator=source))
        fixed.append((law.tolist(), top_k, round(top_p, 2)))
    return [
        Case({"probs": torch.tensor(law, dtype=torch.float64), "top_k": top_k, "top_p": top_p})
        for law, top_k, top_p in fixed
    ]


def _keep(probs: torch.Tensor, top_k: int | None, top_p: float) -> torch.Tensor:
    from specdec_ref.sampling import SamplingSettings, probabilities

    return probabilities(probs.log(), SamplingSettings(top_k=top_k, top_p=top_p))


def _ranked(probs: torch.Tensor) -> torch.Tensor:
    """Return each token's rank, 0 for the likeliest."""
    return probs.argsort(descending=True).argsort()


def _likelier(probs: torch.Tensor) -> torch.Tensor:
    """Return for each token the mass of all likelier ones, [V]."""
    return torch.stack([probs[_ranked(probs) < rank].sum() for rank in _ranked(probs)])


def _scaled(probs: torch.Tensor) -> torch.Tensor:
    return probs / probs.sum()


def _top_k(probs: torch.Tensor, top_k: int | None) -> torch.Tensor:
    return probs if top_k is None else _scaled(probs * (_ranked(probs) < top_k))


def _top_p(probs: torch.Tensor, top_p: float) -> torch.Tensor:
    return probs if top_p == 1 else _scaled(probs * (_likelier(probs) < top_p))


def _crossing_dropped(probs: torch.Tensor, top_k: int | None, top_p: float) -> Any:
    left = _top_k(probs, top_k)
    kept = left * (_likelier(left) + left < top_p)
    # Sums end near 1, where rounding decides; and where nothing is left, code may do anything.
    return ANY if top_p == 1 or kept.sum() == 0 else _scaled(kept)


def _one_too_many(probs: torch.Tensor, top_k: int | None, top_p: float) -> Any:
    left = _top_k(probs, top_k)
    if top_p == 1:
        return left
    return _scaled(left * (_ranked(left) <= int((_likelier(left) < top_p).sum())))


def _sorted_result(probs: torch.Tensor, top_k: int | None, top_p: float) -> Any:
    return _top_p(_top_k(probs, top_k), top_p).sort(descending=True).values


def _not_scaled(probs: torch.Tensor, top_k: int | None, top_p: float) -> Any:
    return probs * (_top_p(_top_k(probs, top_k), top_p) > 0)


def _top_p_of_all(probs: torch.Tensor, top_k: int | None, top_p: float) -> Any:
    return _top_k(_top_p(probs, top_p), top_k)


def _large_k(probs: torch.Tensor, top_k: int | None, top_p: float) -> Any:
    return ANY if top_k is not None and top_k > len(probs) else _top_p(_top_k(probs, top_k), top_p)


def _taken_as_sorted(probs: torch.Tensor, top_k: int | None, top_p: float) -> Any:
    left = _top_k(probs, top_k)
    return left if top_p == 1 else _first_in_place(left, top_p)


def _first_in_place(probs: torch.Tensor, top_p: float) -> torch.Tensor:
    return _scaled(probs * (probs.cumsum(-1) - probs < top_p))


def _first_k(probs: torch.Tensor, top_k: int | None, top_p: float) -> Any:
    left = probs if top_k is None else _scaled(probs * (torch.arange(len(probs)) < top_k))
    return _top_p(left, top_p)


def _first_of_both(probs: torch.Tensor, top_k: int | None, top_p: float) -> Any:
    left = probs if top_k is None else _scaled(probs * (torch.arange(len(probs)) < top_k))
    return left if top_p == 1 else _first_in_place(left, top_p)


_UNSORTED = (
    "A vocabulary is not sorted by probability. Which tokens are the likeliest must be found first, with `sort` or "
    "`topk`, and the answer must stand in the tokens' own places."
)
KEEP = Exercise(
    id="1.2",
    function="keep",
    title="Cutting off the tail",
    points=3,
    difficulty=3,
    minutes=12,
    section="2. Cutting off the tail",
    rule="First the top_k likeliest tokens, scaled to sum to 1. Of these a token stays if the mass of all likelier "
    "ones has not reached top_p. Then scale again. All tokens keep their places.",
    hints=(
        "Do one filter after the other. Each sets some probabilities to 0 and divides by the sum of the rest.",
        "For top-p: sort, and compare for each token the mass of the likelier ones, `cumsum(0) - probability`, with "
        "top_p. The first token has 0 there, so it always stays. Then bring the answer back to the tokens' places.",
        "`best, order = probs.sort(descending=True)`; `stays = best.cumsum(0) - best < top_p`; "
        "`kept = torch.zeros_like(probs)`; `kept[order[stays]] = best[stays]`.",
    ),
    cases=_keep_cases,
    reference=_keep,
    mistakes=(
        Mistake(
            "a top_k above the vocabulary fails",
            _large_k,
            "A top_k larger than the vocabulary keeps every token; `topk` refuses it. Take the smaller of the two.",
        ),
        Mistake(
            "the token that crosses top_p is dropped",
            _crossing_dropped,
            "Without the crossing token the set does not reach top_p; and where the first token crosses, nothing would "
            "be left. A token stays if the mass of all LIKELIER tokens has not reached top_p yet.",
        ),
        Mistake(
            "one token too many after the crossing one",
            _one_too_many,
            "The crossing token is the last that stays. Once the mass has reached top_p, the next token goes.",
        ),
        Mistake(
            "top-p looks at the whole law, not at what top-k left",
            _top_p_of_all,
            "The filters have an order: top-k first. Its result is scaled to sum to 1, and top-p measures in that law. "
            "Another order keeps other tokens, and target and draft must mean the same.",
        ),
        Mistake(
            "the probabilities come back in sorted order",
            _sorted_result,
            "Entry i must be the probability of token i. Sorting has moved the entries: use the order that `sort` "
            "returns to put them back.",
        ),
        Mistake(
            "what is left is not scaled up",
            _not_scaled,
            "The tokens that stay must sum to 1 again: divide by their sum. Otherwise this is no distribution, and "
            "what was cut off is missing.",
        ),
        Mistake("top-p takes the tokens in the order of their ids", _taken_as_sorted, _UNSORTED),
        Mistake("top-k keeps the first k ids instead of the k likeliest", _first_k, _UNSORTED),
        Mistake("both filters take the tokens in the order of their ids", _first_of_both, _UNSORTED),
    ),
)

# --- 1.3 draw


def _draw_cases(seed: int) -> Sequence[Case]:
    """Edges of the pieces, tokens without a piece at either end, a law that sums to a little less than 1."""
    law, holes = [0.5, 0.0, 0.25, 0.25], [0.0, 0.5, 0.5, 0.0]
    fixed = [(law, u) for u in (0.3, 0.0, 0.5, 0.6, 0.75, 0.9, 0.999)]
    fixed += [(holes, u) for u in (0.0, 0.2, 0.5, 0.999)]
    fixed += [([0.25, 0.75 - 1e-9, 0.0], 1 - 1e-12), ([0.5 - 1e-9, 0.25, 0.25], 1 - 1e-12)]
    source = torch.Generator().manual_seed(seed)
    for _ in range(16):
        probs = torch.randn(6, generator=source, dtype=torch.float64).softmax(-1)
        fixed.append((probs.tolist(), float(torch.rand((), generator=source, dtype=torch.float64))))
    return [Case({"probs": torch.tensor(probs, dtype=torch.float64), "uniform": u}) for probs, u in fixed]


def _draw(probs: torch.Tensor, uniform: float) -> int:
    from specdec_ref.sampling import draw

    return int(draw(probs, torch.tensor(uniform, dtype=torch.float64)))


def _short(probs: torch.Tensor, uniform: float) -> bool:
    """Whether `uniform` falls behind the last piece of a law that sums to less than 1."""
    return uniform >= float(probs.sum())


def _from_sum(pick: Callable[[torch.Tensor, float], Any]) -> Callable[..., Any]:
    """Make an answer from the running sum [V] and the number; anything may happen behind the last piece."""

    def answer(probs: torch.Tensor, uniform: float) -> Any:
        return ANY if _short(probs, uniform) else pick(probs.cumsum(-1), uniform)

    return answer


def _by_size(probs: torch.Tensor, uniform: float) -> Any:
    best, order = probs.sort(descending=True, stable=True)
    return ANY if _short(probs, uniform) else int(order[int((best.cumsum(-1) <= uniform).sum())])


def _single(probs: torch.Tensor, uniform: float) -> Any:
    found = (probs > uniform).nonzero()
    return int(found[0]) if len(found) else ANY


def _even(probs: torch.Tensor, uniform: float) -> Any:
    return int(uniform * len(probs))


DRAW = Exercise(
    id="1.3",
    function="draw",
    title="One number, one token",
    points=2,
    difficulty=2,
    minutes=8,
    section="3. One uniform number, one token",
    rule="The token is the first one whose running sum of probabilities exceeds the uniform number. Divide the "
    "sums by the last one, which may be a little below 1: a token without probability is never drawn.",
    hints=(
        "`probs.cumsum(0)` gives the right edge of each token's piece. Which edges lie to the right of the number?",
        "Count the edges that are NOT above the number: so many pieces lie to its left, and the count is the token. "
        "Divide all edges by the last one: it is then exactly 1, above every number, even if the sum was not quite 1.",
        "`edges = probs.cumsum(0)`, then `return int((edges / edges[-1] <= uniform).sum())`.",
    ),
    cases=_draw_cases,
    reference=_draw,
    uniforms=("uniform",),
    mistakes=(
        Mistake(
            "a number behind the last edge",
            _from_sum(lambda edges, u: int((edges <= u).sum())),
            "Sums of floating-point numbers may end a little below 1, and a number close to 1 falls behind the last "
            "edge: then no token is found, or one that has no probability. Divide the sums by the last one.",
        ),
        Mistake(
            "a piece has its right edge instead of its left",
            _from_sum(lambda edges, u: int((edges < u).sum())),
            "With `>=` the number 0 picks the first token even if it has no probability. Uniform numbers lie in "
            "[0, 1), so a piece holds its left edge: the running sum must EXCEED the number.",
        ),
        Mistake(
            "one token too far",
            _from_sum(lambda edges, u: int((edges <= u).sum()) + 1),
            "The first token whose sum exceeds the number is it; its index is the count of the sums that do not. "
            "Nothing has to be added.",
        ),
        Mistake(
            "one token too few",
            _from_sum(lambda edges, u: int((edges <= u).sum()) - 1),
            "The number lies in the piece whose RIGHT edge is the first above it. You took the piece to its left.",
        ),
        Mistake(
            "the tokens are sorted by probability first",
            _by_size,
            "The law would be right, but the same number would pick another token than in the rest of the course. The "
            "pieces lie in the order of the token ids.",
        ),
        Mistake(
            "every token is equally likely",
            _even,
            "Multiplying by the size of the vocabulary cuts the interval into EQUAL pieces. Each piece must be as long "
            "as its token's probability.",
        ),
        Mistake(
            "the likeliest token is taken",
            lambda probs, uniform: int(probs.argmax()),
            "That is greedy decoding, whatever the number is. Here the token is to be drawn from the law.",
        ),
        Mistake(  # last: it leaves many cases open
            "the number is compared with each probability, not with their running sum",
            _single,
            "The pieces lie side by side, so each begins where the one before it ends: the edges are the running sums.",
        ),
    ),
)

# --- 1.4 and 1.5 the loop


def choose(row: torch.Tensor, uniform: Any) -> int:
    """Draw from softmax(row [V]) with one uniform number.

    Raises
    ------
    ValueError
        If `row` is not one row of logits, or `uniform` is not one number.
    """
    if row.dim() != 1 or torch.as_tensor(uniform).numel() != 1:
        raise ValueError(
            f"choose needs one row of logits [V] and one number; row has shape {tuple(row.shape)}, uniform has "
            f"{tuple(torch.as_tensor(uniform).shape)}"
        )
    edges = row.double().softmax(-1).cumsum(-1)
    return int((edges / edges[-1] <= float(uniform)).sum())


class Reader:
    """A toy model without a cache: called with a text, it returns logits [T, V]; notes how much it has read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __call__(self, tokens: Any) -> torch.Tensor:
        """Return logits [T, V] for a text of T token ids.

        Raises
        ------
        ValueError
            If `tokens` is not one text.
        """
        block = torch.as_tensor(tokens)
        if block.dim() != 1:
            raise ValueError(f"tokens has shape {tuple(block.shape)}; needed is one text of token ids, [T]")
        self.read.append(len(block))
        favourites = block + torch.arange(len(block)) + block[0]  # as in `ToyTarget`, all rows at once
        return -((torch.arange(VOCAB) - favourites[:, None]) % VOCAB).float()


_WITHOUT_CACHE = Made(Reader, "a model")
_WITH_CACHE = Made(lambda: ToyTarget([[]], VOCAB), "a model with an empty cache")
_CHOOSE = Made(lambda: choose, "choose")


def _loop_cases(seed: int, model: Made) -> Sequence[Case]:
    """Budgets from 0 on, EOS of several kinds and in the prompt, one-token prompts; twice the same with other luck."""
    source = torch.Generator().manual_seed(seed)
    fixed: list[tuple[list[int], tuple[int, ...], int]] = [
        ([3, 1], (), 2),
        ([5], (), 1),
        ([3, 1], (), 0),
        ([3, 1], (), 2),
    ]
    fixed += [([2, 4], (), 4), ([3, 1, 4], (1,), 8), ([6, 2], (2,), 8), ([1, 5, 2], (0, 2, 5), 8), ([4], (3, 4), 9)]
    fixed += [([3, 1, 4], (4,), 3), ([5, 6], (0, 1, 2), 8), ([2, 6, 3], (6, 5), 8)]
    for place in range(10):
        prompt = torch.randint(0, VOCAB, (int(torch.randint(1, 5, (), generator=source)),), generator=source).tolist()
        ids = torch.randperm(VOCAB, generator=source)[: place % 4].tolist()
        fixed.append((prompt, tuple(ids), int(torch.randint(1, 9, (), generator=source))))
    return [
        Case(
            {
                "model": model,
                "prompt": prompt,
                "choose": _CHOOSE,
                "uniforms": torch.rand(budget + 2, generator=source, dtype=torch.float64),
                "eos_ids": ids,
                "max_new_tokens": budget,
            }
        )
        for prompt, ids, budget in fixed
    ]


def _drive_plain(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    answer = function(*arguments.values())
    return {"new tokens": answer, "tokens read in each pass": arguments["model"].read}


def _drive_cached(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    answer = function(*arguments.values())
    model = arguments["model"]
    # With no budget a prompt may be in the cache already or not; both are fine.
    return {"new tokens": answer, "cache in the end": model.rows[0] if arguments["max_new_tokens"] else []}


_Cut = Callable[[list[int], list[int], tuple[int, ...], int], bool]


def _ended(prompt: list[int], new: list[int], eos_ids: tuple[int, ...], budget: int) -> bool:
    """Whether the text is finished: the right rule."""
    return len(new) >= budget or (bool(new) and new[-1] in eos_ids)


def _loop(
    reads: Callable[[list[int], list[int]], list[int]] = lambda prompt, new: prompt + new,
    row: int = -1,
    uniform: Callable[[torch.Tensor, int], Any] = lambda uniforms, i: uniforms[i],
    pick: Callable[..., int] = lambda choose, row, u: choose(row, u),
    ended: _Cut = _ended,
    hand_back: Callable[..., Any] = lambda prompt, new, eos_ids: new,
    read_last: bool = False,
) -> Callable[..., Any]:
    """Make the answer of a loop without a cache with the given faults; without any it is right."""

    def answer(
        model: Any, prompt: list[int], choose: Any, uniforms: torch.Tensor, eos_ids: tuple[int, ...], budget: int
    ) -> Any:
        new: list[int] = []
        while not ended(prompt, new, eos_ids, budget):
            if len(new) == len(uniforms):
                return ANY  # out of numbers: whatever happens then, it does not end well
            new.append(pick(choose, model(reads(prompt, new))[row], uniform(uniforms, len(new))))
        if read_last:
            model(reads(prompt, new))
        return hand_back(prompt, new, eos_ids)

    return answer


def _where(condition: Callable[..., bool], wrong: Callable[..., Any]) -> Callable[..., Any]:
    """Make an answer that is open where `condition(prompt, eos_ids, budget)` holds."""

    def answer(
        model: Any, prompt: list[int], choose: Any, uniforms: torch.Tensor, eos_ids: tuple[int, ...], budget: int
    ) -> Any:
        result = wrong(model, prompt, choose, uniforms, eos_ids, budget)
        return ANY if condition(prompt, eos_ids, budget) else result

    return answer


def _open(drive: Callable[..., Any]) -> Callable[..., Any]:
    """Let `ANY` of a mistake mean all that is observed, not the tokens alone."""

    def driven(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        seen = drive(function, arguments)
        return ANY if seen["new tokens"] is ANY else seen

    return driven


_DO_WHILE: _Cut = lambda prompt, new, ids, budget: bool(new) and _ended(prompt, new, ids, budget)  # noqa: E731
_NO_EOS: _Cut = lambda prompt, new, ids, budget: len(new) >= budget  # noqa: E731
_FIRST_ID: _Cut = lambda prompt, new, ids, budget: _ended(prompt, new, ids[:1], budget)  # noqa: E731
_ONE_MORE: _Cut = lambda prompt, new, ids, budget: _ended(prompt, new, ids, budget + 1)  # noqa: E731
_WITH_PROMPT: _Cut = lambda prompt, new, ids, budget: _ended(prompt, new, ids, budget - len(prompt))  # noqa: E731


def _without_eos(prompt: list[int], new: list[int], eos_ids: tuple[int, ...]) -> list[int]:
    return new[:-1] if new and new[-1] in eos_ids else new


def _likeliest(choose: Any, row: torch.Tensor, u: Any) -> int:
    return int(row.argmax())


def _common(make: Callable[..., Callable[..., Any]]) -> tuple[Mistake, ...]:
    """Return the mistakes that loops with and without a cache share."""
    section = "5. When is a text finished?"
    return (
        Mistake(
            "EOS is missed",
            make(ended=_NO_EOS),
            "The text goes on after its end-of-text token. After each new token ask whether it ends the text.",
            section=section,
        ),
        Mistake(
            "only the first EOS id is known",
            make(ended=_FIRST_ID),
            "A model may have several ids that end a text, and each of them does. Test with `in`.",
            section=section,
        ),
        Mistake(
            "EOS itself is dropped",
            make(hand_back=_without_eos),
            "EOS was drawn like any other token, and the reader of the text must see that it has ended. Keep it as the "
            "last token.",
            section=section,
        ),
        Mistake(
            "a budget of 0 gives a token",
            make(ended=_DO_WHILE),
            "The budget must be looked at before the first token too: 0 is allowed, and gives nothing.",
            section=section,
        ),
        Mistake(
            "one token more than the budget",
            make(ended=_ONE_MORE),
            "`max_new_tokens` is a promise: never more tokens than that. Count from 0, or compare with `<`, not `<=`.",
            section=section,
        ),
        Mistake(
            "the prompt counts against the budget",
            make(ended=_WITH_PROMPT),
            "The budget counts NEW tokens. The prompt was there before.",
            section=section,
        ),
        Mistake(
            "an EOS in the prompt ends the text",
            _where(lambda prompt, ids, budget: any(token in ids for token in prompt), make()),
            "A prompt may hold such a token, for example between two turns of a chat. Only NEW tokens end a text.",
            section=section,
        ),
        Mistake(
            "one uniform number for all tokens",
            make(uniform=lambda uniforms, i: uniforms[0]),
            "Token i is drawn with number i. With one number for all, the tokens are not independent draws.",
        ),
        Mistake(
            "the likeliest token is taken instead of calling choose",
            make(pick=_likeliest),
            "How a token is chosen is not the loop's business: it may be drawn. Call `choose(row, uniform)`.",
        ),
        Mistake(
            "the prompt is handed back too",
            make(hand_back=lambda prompt, new, eos_ids: prompt + new),
            "The new tokens are asked for, without the prompt: `text[len(prompt):]`.",
        ),
    )


WRITE = Exercise(
    id="1.4",
    function="write",
    title="The loop",
    points=3,
    difficulty=3,
    minutes=12,
    section="4. The loop",
    rule="Until the budget is reached or the last new token is an EOS: read prompt and new tokens, choose from the "
    "LAST row of logits with this token's own uniform number, append.",
    hints=(
        "Keep a list of new tokens, empty at first. Each turn reads `prompt + new_tokens` and appends one token.",
        "`for uniform in uniforms[:max_new_tokens]` gives each token its own number and keeps the budget, 0 as well. "
        "Leave the loop with `break` after an EOS was appended.",
        "In the loop: `row = model(prompt + new_tokens)[-1]`, `new_tokens.append(choose(row, uniform))`, "
        "`if new_tokens[-1] in eos_ids: break`. After it: `return new_tokens`.",
    ),
    cases=lambda seed: _loop_cases(seed, _WITHOUT_CACHE),
    drive=_open(_drive_plain),
    reference=_loop(),
    uniforms=("uniforms",),
    mistakes=(
        *_common(_loop),
        Mistake(
            "the first row of logits is used",
            _loop(row=0),
            "Row t tells what follows token t. The next token follows the LAST one: take the last row.",
        ),
        Mistake(
            "only the newest token is read",
            _loop(reads=lambda prompt, new: (prompt + new)[-1:]),
            "This model has no cache: it knows nothing but what it reads in this pass. Read the whole text.",
        ),
        Mistake(
            "the new tokens are not read",
            _loop(reads=lambda prompt, new: prompt),
            "The next token continues the text with all its new tokens. Append each one to what is read.",
        ),
        Mistake(
            "a pass after the last token",
            _loop(read_last=True),
            "Nobody asks what follows the last token. That pass is paid for nothing: as many passes as new tokens.",
        ),
    ),
)


def _cached_loop(
    first: Callable[[list[int]], list[int]] = lambda prompt: prompt,
    later: Callable[[list[int], list[int]], list[int]] = lambda prompt, new: new[-1:],
    row: int = -1,
    uniform: Callable[[torch.Tensor, int], Any] = lambda uniforms, i: uniforms[i],
    pick: Callable[..., int] = lambda choose, row, u: choose(row, u),
    ended: _Cut = _ended,
    hand_back: Callable[..., Any] = lambda prompt, new, eos_ids: new,
    read_last: bool = False,
    twice: bool = False,
) -> Callable[..., Any]:
    """Make the answer of a loop with a cache with the given faults; without any it is right."""

    def answer(
        model: Any, prompt: list[int], choose: Any, uniforms: torch.Tensor, eos_ids: tuple[int, ...], budget: int
    ) -> Any:
        new: list[int] = []
        while not ended(prompt, new, eos_ids, budget):
            block = later(prompt, new) if new else first(prompt)
            if len(new) == len(uniforms) or not block:
                return ANY  # out of numbers, or nothing to feed: whatever happens then, it does not end well
            logits = model.extend(torch.tensor([block]))
            if twice and not new:
                logits = model.extend(torch.tensor([prompt[-1:]]))
            new.append(pick(choose, logits[0, row], uniform(uniforms, len(new))))
        if read_last and new:
            model.extend(torch.tensor([new[-1:]]))
        return hand_back(prompt, new, eos_ids)

    return answer


WRITE_CACHED = Exercise(
    id="1.5",
    function="write_cached",
    title="The loop with a cache",
    points=3,
    difficulty=3,
    minutes=12,
    section="What is computed twice?",
    rule="Every token is fed once and in order: the prompt first, then each new token before the next is chosen. The "
    "last new token is not fed, so in the end the cache holds the text without its last token.",
    hints=(
        "What does the cache lack? At first the whole prompt, after that just the token that was chosen last.",
        "Keep a variable `block`: the prompt at first, then `[token]`. Feed it at the start of each turn, and choose "
        "from the last row of what comes back.",
        "`block = prompt`; in the loop: `row = model.extend(torch.tensor([block]))[0, -1]`, choose and append `token`, "
        "`block = [token]`, and break after an EOS.",
    ),
    cases=lambda seed: _loop_cases(seed, _WITH_CACHE),
    drive=_open(_drive_cached),
    reference=_cached_loop(),
    uniforms=("uniforms",),
    mistakes=(
        *_common(_cached_loop),
        Mistake(
            "the whole text is fed in every pass",
            _cached_loop(later=lambda prompt, new: prompt + new),
            "The cache holds the beginning already. Fed again, it stands in the text a second time, at new positions. "
            "Feed only what the cache lacks.",
        ),
        Mistake(
            "the last token of the prompt is fed twice",
            _cached_loop(twice=True),
            "It was read with the prompt; feeding it again writes it a second time. Either choose from the last row of "
            "the prompt's pass, or leave its last token out of that pass.",
        ),
        Mistake(
            "the last token of the prompt is never fed",
            _cached_loop(first=lambda prompt: prompt[:-1]),
            "The first new token was chosen from the row of the token BEFORE the last. Feed the last token of the "
            "prompt too, and choose from its row.",
        ),
        Mistake(
            "the first row of logits is used",
            _cached_loop(row=0),
            "The prompt's pass gives a row for each of its tokens. The next token follows the LAST one.",
        ),
        Mistake(
            "the last token of the prompt is fed in every pass",
            _cached_loop(later=lambda prompt, new: prompt[-1:]),
            "What the cache lacks is the token that was just chosen. Feed that one.",
        ),
        Mistake(
            "the last new token is fed as well",
            _cached_loop(read_last=True),
            "Nobody asks what follows it, so that pass is paid for nothing. Keep the invariant of the course: the last "
            "committed token is not in the cache yet.",
        ),
    ),
)

# --- 1.6 the least time of a pass


def _pass_cases(seed: int) -> Sequence[Case]:
    """Round numbers on both sides of the turning point; then random machines."""
    fixed: list[tuple[int, int, float, float, float]] = [(1, 10**9, 4, 2e10, 1e11), (6, 10**9, 4, 2e10, 1e11)]
    fixed += [(20, 10**9, 4, 2e10, 1e11), (1, 10**9, 1, 2e10, 1e11), (64, 7 * 10**9, 2, 1e12, 1e14)]
    source = torch.Generator().manual_seed(seed)
    for _ in range(16):
        chance = torch.rand(4, generator=source, dtype=torch.float64).tolist()
        size, bandwidth, peak = int(10 ** (8 + 2 * chance[0])), 10 ** (10 + 2 * chance[1]), 10 ** (11 + 2 * chance[2])
        width = (0.5, 1, 2, 4)[int(4 * chance[3])]
        turn = peak * width / (2 * bandwidth)
        fixed.append((max(1, round(turn * (0.2, 3.0)[len(fixed) % 2])), size, width, bandwidth, peak))
    names = ("num_tokens", "num_weights", "bytes_per_weight", "bandwidth", "peak")
    return [Case(dict(zip(names, values, strict=True))) for values in fixed]


def _pass(join: Callable[[float, float], float], **faults: Any) -> Callable[..., float]:
    """Make an answer from how the two times are joined, with faults in either."""

    def answer(num_tokens: int, num_weights: int, bytes_per_weight: float, bandwidth: float, peak: float) -> float:
        reading = num_weights * faults.get("width", lambda b: b)(bytes_per_weight) / bandwidth
        calculating = faults.get("operations", 2) * num_weights * num_tokens / peak
        if faults.get("reads_each"):
            reading *= num_tokens
        if faults.get("one_token"):
            calculating /= num_tokens
        return float(join(reading, calculating))

    return answer


PASS_SECONDS = Exercise(
    id="1.6",
    function="pass_seconds",
    title="The least time of a pass",
    points=2,
    difficulty=2,
    minutes=8,
    section="The roof: arithmetic",
    rule="Reading takes num_weights * bytes_per_weight / bandwidth, whatever the number of tokens; calculating takes "
    "2 * num_weights * num_tokens / peak. Both go on at the same time, so the longer of the two counts.",
    hints=(
        "Two times: one to read all weights, one to calculate with them. Write down each of them first.",
        "The weights are read ONCE, however many tokens there are. Each token needs a multiplication and an addition "
        "for each weight.",
        "`reading = num_weights * bytes_per_weight / bandwidth`, `calculating = 2 * num_weights * num_tokens / peak`, "
        "and the answer is the larger.",
    ),
    cases=_pass_cases,
    reference=_pass(max),
    mistakes=(
        Mistake(
            "the two times are added",
            _pass(lambda a, b: a + b),
            "While one part of the weights is used, the next is on its way: both go on at once, and the longer one "
            "decides. The least time is the larger of the two.",
        ),
        Mistake(
            "the smaller of the two times",
            _pass(min),
            "Both the reading and the calculating must be done before the pass is over. So it takes the LARGER time.",
        ),
        Mistake(
            "the weights are read once for each token",
            _pass(max, reads_each=True),
            "All tokens of a pass share one trip of the weights. That is why a pass over several tokens can be cheap.",
            section="The floor: bytes over bandwidth",
        ),
        Mistake(
            "one operation per weight and token",
            _pass(max, operations=1),
            "Each weight is multiplied with a number and the product is added to a sum: two operations.",
        ),
        Mistake(
            "the arithmetic does not grow with the tokens",
            _pass(max, one_token=True),
            "Every token needs its own arithmetic: checking six tokens is six times the work of one. It may be hidden "
            "behind the reading, but it is not free.",
            section="More work, not free work",
        ),
        Mistake(
            "the bytes of a weight are left out",
            _pass(max, width=lambda width: 1),
            "Bandwidth is bytes per second, so the weights must be counted in bytes: num_weights * bytes_per_weight.",
            section="The floor: bytes over bandwidth",
        ),
        Mistake(
            "bytes taken for bits",
            _pass(max, width=lambda width: width / 8),
            "`bytes_per_weight` and `bandwidth` are both in bytes already: there is no 8 to divide by.",
            section="The floor: bytes over bandwidth",
        ),
    ),
)

EXERCISES = [SOFTMAX, KEEP, DRAW, WRITE, WRITE_CACHED, PASS_SECONDS]

QUESTIONS = [
    Question(
        "1.a",
        "A law is .5, .3, .15, .05, and top_p is .5. How many tokens stay?",
        (
            Choice("None", "At least one token always survives: the likeliest has no likelier ones before it."),
            Choice("One", "Right: the first reaches .5 by itself, so the mass before the second is not below .5."),
            Choice("Two", "Before the second token the mass is .5, and that has reached .5. The second token goes."),
        ),
        "b",
    ),
    Question(
        "1.b",
        "Why is a pass over one token slow, though it needs little arithmetic?",
        (
            Choice(
                "Softmax over a large vocabulary is expensive",
                "It is a small part: some ten thousand numbers, against more than a hundred million weights.",
            ),
            Choice(
                "Each token has to wait for the one before it",
                "True of the whole text, but here is only one pass, and its token is known.",
            ),
            Choice(
                "All weights travel from memory to the processor, for one token",
                "Right: bytes over bandwidth. Several tokens in the pass would share that trip.",
            ),
        ),
        "c",
    ),
    Question(
        "1.c",
        "Plain decoding is sequential. What must be known before six positions can go through the model in ONE pass?",
        (
            Choice(
                "A token for each position to read, right or wrong",
                "Right: with candidates in place each position sees its own prefix, and the pass gives a law for each. "
                "Wrong candidates are found out by these laws.",
            ),
            Choice(
                "The right tokens for these positions",
                "Then nothing would be left to compute. The laws of the pass tell which candidates are good.",
            ),
            Choice(
                "Nothing: the cache makes it possible",
                "The cache saves reading old tokens again. It does not supply the new ones.",
            ),
        ),
        "a",
    ),
    Question(
        "1.d",
        "A server already puts many texts into each pass and is limited by arithmetic. What do five extra tokens per "
        "text cost there?",
        (
            Choice("Nothing, since the weights are read only once", "They are, but reading is not what limits it now."),
            Choice(
                "About as much as their arithmetic: the pass gets longer in proportion",
                "Right: beyond the turning point every token costs. More work is not free work.",
            ),
            Choice(
                "They halve the time, as with a single text",
                "With a single text they fill idle arithmetic. Here none is idle.",
            ),
        ),
        "b",
    ),
]
