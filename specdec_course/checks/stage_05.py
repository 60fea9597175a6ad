"""Stage 05, when it pays: its exercises, their cases and the mistakes people make."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from specdec_course.checks.exercise import ANY, Case, Choice, Exercise, Mistake, Question

_TOKENS = "How many tokens does a round bring?"
_BILL = "The bill of a round"
_BEST = "Which K is the best?"
_TRACE = "Alpha from a trace"
_DECIDE = "How to decide"


# --- 5.1 expected tokens

NEAR = 0.98  # from here on, code with a special case for alpha = 1 may have taken it


def tokens(alpha: float, num_draft_tokens: int) -> float:
    """Return 1 + alpha + ... + alpha^K by adding up; the plain version for models of mistakes."""
    return math.fsum(alpha**power for power in range(num_draft_tokens + 1))


def _expected_cases(seed: int) -> Sequence[Case]:
    """By hand first; then alpha 0 and 1, no draft at all, and alphas near 1 where E is not K + 1 yet."""
    source = random.Random(seed)
    fixed = [(0.5, 1), (0.5, 2), (0.8, 5), (0.25, 3), (0.0, 3), (1.0, 1), (1.0, 5), (0.7, 0), (1.0, 0), (0.0, 0)]
    fixed += [(1 - distance, count) for distance in (1e-2, 1e-3, 1e-6, 1e-12) for count in (2, 7, 12)]
    fixed += [(source.uniform(0.05, 0.97), source.randint(2, 12)) for _ in range(12)]
    return [Case({"alpha": alpha, "num_draft_tokens": count}) for alpha, count in fixed]


def _expected_tokens(alpha: float, num_draft_tokens: int) -> float:
    from specdec_ref.economics import expected_tokens

    return float(expected_tokens(alpha, num_draft_tokens))


def _but_at_one(answer: Callable[[float, int], float]) -> Callable[[float, int], Any]:
    """Leave open what code with a mistake does at alpha = 1, where a closed formula divides by 0."""
    return lambda alpha, count: ANY if alpha == 1 else answer(alpha, count)


def _right_but_near_one(at_one: Callable[[int], float]) -> Callable[[float, int], Any]:
    """Leave open what code does where alpha is near 1; at 1 itself it gives `at_one(K)`."""

    def answer(alpha: float, num_draft_tokens: int) -> Any:
        if alpha == 1:
            return at_one(num_draft_tokens)
        return ANY if alpha > NEAR else tokens(alpha, num_draft_tokens)

    return answer


EXPECTED_TOKENS = Exercise(
    id="5.1",
    function="expected_tokens",
    title="How many tokens does a round bring?",
    points=2,
    difficulty=2,
    minutes=6,
    section=_TOKENS,
    rule="E = 1 + alpha + ... + alpha^K: K + 1 terms. The token of the target's own is the 1, and draft i counts only "
    "if it and all before it passed.",
    hints=(
        "Draft i reaches the text if it and all drafts before it passed. How likely is that? And which token does the "
        "text get in every round, whatever happens?",
        "Add up: 1 for the correction or bonus, alpha for the first draft, alpha^2 for the second, up to alpha^K. The "
        "sum has no trouble at alpha = 1; the closed formula divides 0 by 0 there.",
        "`return sum(alpha**i for i in range(num_draft_tokens + 1))`",
    ),
    cases=_expected_cases,
    reference=_expected_tokens,
    tolerance=1e-7,  # near 1 the closed formula loses half its digits, which is no mistake to speak of
    mistakes=(
        Mistake(
            "a small number in the denominator hides 0 / 0",
            _right_but_near_one(lambda count: 0.0),
            "At alpha = 1 the closed formula is 0 / 0. With a small number added below it becomes 0 / small = 0: a "
            "draft that is never refused would bring nothing. Add the powers up: no division, no special case.",
        ),
        Mistake(
            "the special case for alpha = 1 is too wide",
            _right_but_near_one(lambda count: count + 1.0),
            "E is K + 1 at alpha = 1 only. With alpha = .99 and K = 12 it is 12.25, not 13. Add the powers up: no "
            "special case is needed.",
        ),
        Mistake(
            "0 / 0 at alpha = 1",
            _but_at_one(tokens),
            "The closed formula is 0 / 0 where alpha is 1: a draft that is never refused. The sum 1 + alpha + ... is "
            "K + 1 there. Add the powers up.",
        ),
        Mistake(
            "the correction or bonus is left out",
            _but_at_one(lambda alpha, count: tokens(alpha, count) - 1),
            "Every round brings one token of the target's own: the correction, or the bonus if all drafts passed. So a "
            "round brings at least one token, and at most K + 1.",
        ),
        Mistake(
            "at most K tokens a round",
            _but_at_one(lambda alpha, count: tokens(alpha, count - 1)),
            "If all K drafts pass, the text gets all K and the bonus: K + 1. The last term is alpha^K.",
        ),
        Mistake(
            "drafts behind a refusal are counted",
            _but_at_one(lambda alpha, count: 1 + count * alpha),
            "K times alpha counts drafts that would have passed behind a refused one. They are thrown away: draft i "
            "counts only if all before it passed, so with chance alpha^i.",
        ),
        Mistake(
            "all drafts or none",
            _but_at_one(lambda alpha, count: 1 + count * alpha**count),
            "A round does not bring K + 1 tokens or one. The drafts before the first refusal stay.",
        ),
        Mistake(
            "no end to the draft",
            _but_at_one(lambda alpha, count: 1 / (1 - alpha)),
            "1 / (1 - alpha) is the limit for endless drafts. A draft of K tokens ends the sum at alpha^K.",
        ),
        Mistake(
            "alpha taken for the chance of a refusal",
            _but_at_one(lambda alpha, count: tokens(1 - alpha, count)),
            "alpha is the chance that a judged draft token is ACCEPTED. With alpha = 0 a round brings one token, with "
            "alpha = 1 it brings K + 1.",
        ),
    ),
)

# --- 5.2 speedup

_Round = tuple[float, int, float, float, float]


def _speedup_cases(seed: int) -> Sequence[Case]:
    """The lesson's three numbers, then real-looking seconds, the edges of alpha and K, a free draft."""
    source = random.Random(seed)
    fixed: list[_Round] = [
        (0.8, 5, 1.0, 0.1, 1.0),
        (0.8, 5, 1.0, 0.1, 2.0),
        (0.5, 4, 1.0, 0.3, 1.0),
        (0.8, 5, 0.05, 0.005, 0.06),
        (1.0, 4, 0.05, 0.005, 0.05),
        (0.0, 3, 0.02, 0.004, 0.03),
        (0.7, 0, 0.1, 0.01, 0.1),
        (0.6, 2, 0.04, 0.0, 0.05),
    ]
    for _ in range(14):
        step = source.uniform(0.01, 0.2)
        draft, verify = step * source.uniform(0.02, 0.5), step * source.uniform(1.05, 3)
        fixed.append((source.uniform(0.1, 0.95), source.randint(2, 9), step, draft, verify))
    names = ("alpha", "num_draft_tokens", "target_step_s", "draft_step_s", "verify_s")
    return [Case(dict(zip(names, values, strict=True))) for values in fixed]


def _speedup(alpha: float, count: int, target_s: float, draft_s: float, verify_s: float) -> float:
    from specdec_ref.economics import speedup

    return float(speedup(alpha, count, draft_s / target_s, verify_s / target_s))


def _billed(
    cost: Callable[[int, float, float, float], float] = lambda count, target, draft, verify: count * draft + verify,
    brought: Callable[[float, int], float] = tokens,
) -> Callable[..., Any]:
    """Make the answer that bills `cost` and believes in `brought` tokens; without arguments it is right."""

    def answer(alpha: float, count: int, target_s: float, draft_s: float, verify_s: float) -> Any:
        billed = cost(count, target_s, draft_s, verify_s)
        return brought(alpha, count) * target_s / billed if billed else ANY

    return answer


SPEEDUP = Exercise(
    id="5.2",
    function="speedup",
    title="What a round is worth",
    points=2,
    difficulty=2,
    minutes=6,
    section=_BILL,
    rule="Plain decoding would need E steps of the target for the same tokens. The round costs K draft steps and ONE "
    "verification pass: speedup = E T_t / (K T_d + T_v).",
    hints=(
        "How long would plain decoding take for the tokens of one round? How long does the round take?",
        "A round brings E tokens on average (5.1), which is worth E plain steps. It costs K draft steps, one after the "
        "other, and one pass of the target.",
        "`return expected_tokens(alpha, num_draft_tokens) * target_step_s / (num_draft_tokens * draft_step_s + "
        "verify_s)`",
    ),
    cases=_speedup_cases,
    reference=_speedup,
    mistakes=(
        Mistake(
            "T_d left out",
            _billed(lambda count, target, draft, verify: verify),
            "The draft works K steps before the target can check anything. They are small, but they are on the bill.",
        ),
        Mistake(
            "one draft step billed instead of K",
            _billed(lambda count, target, draft, verify: draft + verify),
            "The second draft token needs the first, so the draft makes K steps, one after the other.",
        ),
        Mistake(
            "K verification passes billed",
            _billed(lambda count, target, draft, verify: count * (draft + verify)),
            "The target checks all drafts in ONE pass. With a pass for each there would be nothing to gain. `verify_s` "
            "is the time of that whole pass.",
        ),
        Mistake(
            "K + 1 verification passes billed",
            _billed(lambda count, target, draft, verify: count * draft + (count + 1) * verify),
            "The target reads all K + 1 tokens in ONE pass, and `verify_s` is the time of that whole pass.",
        ),
        Mistake(
            "T_v taken for T_t",
            _billed(lambda count, target, draft, verify: count * draft + target),
            "A pass over K + 1 tokens is not always as cheap as one over a single token. Bill `verify_s`, which was "
            "measured.",
        ),
        Mistake(
            "draft and target billed as if they worked at the same time",
            _billed(lambda count, target, draft, verify: max(count * draft, verify)),
            "The target cannot check tokens that are not drafted yet, so the times add up.",
        ),
        Mistake(
            "tokens per second instead of a speedup",
            lambda alpha, count, target, draft, verify: tokens(alpha, count) / (count * draft + verify),
            "E / (K T_d + T_v) is a speed. A speedup compares: divide by the plain speed, 1 / T_t.",
        ),
        Mistake(
            "turned upside down",
            lambda *arguments: 1 / _billed()(*arguments),
            "Plain time over speculative time: more than 1 is faster.",
        ),
        Mistake(
            "the correction or bonus is left out",
            _billed(brought=lambda alpha, count: tokens(alpha, count) - 1),
            "The round also brings the target's own token. Without it a round with all drafts refused would bring "
            "nothing.",
            section=_TOKENS,
        ),
        Mistake(
            "every round taken for K + 1 tokens",
            _billed(brought=lambda alpha, count: count + 1),
            "Only a round with all drafts accepted brings K + 1 tokens. On average it is E, which depends on alpha.",
            section=_TOKENS,
        ),
        Mistake(
            "every round taken for K tokens",
            _billed(brought=lambda alpha, count: count),
            "K is what was proposed. What the text gets is E on average: from 1 to K + 1, depending on alpha.",
            section=_TOKENS,
        ),
        Mistake(
            "drafts behind a refusal are counted",
            _billed(brought=lambda alpha, count: 1 + alpha * count),
            "alpha times K is not what is accepted: after the first refusal the rest is thrown away. Use E of 5.1.",
            section=_TOKENS,
        ),
    ),
)

# --- 5.3 the best K


def _best_cases(seed: int) -> Sequence[Case]:
    """Free and dear drafts, passes that stay flat, grow, jump once or go up and down, ties, and nothing that pays."""
    source = random.Random(seed)
    flat = [1.0] * 9
    fixed: list[tuple[float, float, list[float]]] = [
        (0.8, 0.1, flat[:4]),
        (0.8, 0.1, flat),
        (0.3, 0.4, flat[:4]),
        (1.0, 0.0, flat[:4]),
        (0.0, 0.0, flat[:4]),
        (1.0, 1.0, flat[:5]),
        (1.0, 0.0, [1.0, 1.0, 2.0, 2.0]),
        (0.9, 0.05, [1.0, 1.75, 1.8, 1.85, 1.9, 1.95, 2.0]),
        (0.8, 0.05, [1.0 + 0.25 * count for count in range(9)]),
        (0.6, 0.02, [1.0, 1.9, 1.95, 2.0, 2.05, 2.1]),
        (0.95, 0.01, [1.0, 1.1, 2.6, 2.6, 2.6, 2.6, 2.6, 2.6, 2.6]),
        (0.9, 0.02, [0.05, 0.06, 0.11, 0.11, 0.11, 0.12]),
    ]
    for _ in range(18):
        step, growth = source.uniform(0.02, 0.2), source.choice((0.0, 0.03, 0.1, 0.3))
        jump = source.choice((0.0, 0.2, 0.7))
        verify = [step * (1 + growth * count + jump * (count > 0)) for count in range(source.randint(5, 12))]
        fixed.append((source.uniform(0.2, 0.97), step * source.uniform(0.01, 0.35), verify))
    names = ("alpha", "draft_step_s", "verify_s")
    return [Case(dict(zip(names, values, strict=True))) for values in fixed]


def _best_num_draft_tokens(alpha: float, draft_step_s: float, verify_s: list[float]) -> int:
    from specdec_ref.economics import best_num_draft_tokens

    step = verify_s[0]
    passes = [seconds / step for seconds in verify_s]
    return int(best_num_draft_tokens(alpha, draft_step_s / step, passes, max_draft_tokens=len(verify_s) - 1))


def _gains(
    alpha: float,
    draft_step_s: float,
    verify_s: Sequence[float],
    billed: Callable[[Sequence[float], int], float] = lambda verify, count: verify[count],
) -> list[float]:
    """Return the speedup of each K; `billed` picks the pass that is on the bill."""
    costs = [count * draft_step_s + billed(verify_s, count) for count in range(len(verify_s))]
    return [1.0] + [tokens(alpha, count) * verify_s[0] / costs[count] for count in range(1, len(costs))]


def _first_largest(values: Sequence[float], start: int = 0) -> int:
    return max(range(start, len(values)), key=lambda count: values[count])


def _climb(alpha: float, draft_step_s: float, verify_s: list[float]) -> int:
    gains, count = _gains(alpha, draft_step_s, verify_s), 0
    while count + 1 < len(gains) and gains[count + 1] > gains[count]:
        count += 1
    return count


def _last_largest(alpha: float, draft_step_s: float, verify_s: list[float]) -> int:
    gains = _gains(alpha, draft_step_s, verify_s)
    return len(gains) - 1 - _first_largest(gains[::-1])


BEST_NUM_DRAFT_TOKENS = Exercise(
    id="5.3",
    function="best_num_draft_tokens",
    title="The best K",
    points=2,
    difficulty=3,
    minutes=8,
    section=_BEST,
    rule="Compute the speedup of every K with the time of ITS pass, verify_s[K]. Plain decoding, K = 0, counts as 1. "
    "Take the largest; of several equal ones the smallest K.",
    hints=(
        "A longer draft brings more tokens and costs more. There is no formula to remember: try every K.",
        "The pass over K + 1 tokens takes `verify_s[K]`, and `verify_s[0]` is a plain step, T_t. K = 0 has speedup 1: "
        "a draft that does not pay should not be made.",
        "Start with `best, most = 0, 1.0`. For K in `range(1, len(verify_s))` compute `speedup(alpha, K, verify_s[0], "
        "draft_step_s, verify_s[K])`, and keep K where it is strictly larger than `most`.",
    ),
    cases=_best_cases,
    reference=_best_num_draft_tokens,
    mistakes=(
        Mistake(
            "not speculating is never considered",
            lambda *arguments: _first_largest(_gains(*arguments), start=1),
            "K = 0, plain decoding, is one of the choices, and where nothing pays it is the best.",
        ),
        Mistake(
            "ties go to the longer draft",
            _last_largest,
            "Of equally good lengths take the smallest: it does less work for the same speed.",
        ),
        Mistake(
            "stops at the first K that is no better",
            _climb,
            "The time of a pass can jump and then stay flat, so the speedup may fall and then rise. Try every K.",
        ),
        Mistake(
            "T_d left out",
            lambda alpha, draft, verify: _first_largest(_gains(alpha, 0.0, verify)),
            "Each further draft token costs a draft step. Without it the drafts come out too long.",
            section=_BILL,
        ),
        Mistake(
            "T_v taken for T_t",
            lambda *arguments: _first_largest(_gains(*arguments, billed=lambda verify, count: verify[0])),
            "Each K has a pass of its own length. Bill `verify_s[K]`, not a plain step.",
            section=_BILL,
        ),
        Mistake(
            "the pass over K tokens is billed",
            lambda *arguments: _first_largest(_gains(*arguments, billed=lambda verify, count: verify[count - 1])),
            "The pass reads the last token of the text and K drafts: K + 1 tokens. `verify_s[0]` is the pass over one "
            "token, so the pass over K + 1 is `verify_s[K]`.",
        ),
        Mistake(
            "the most tokens a round",
            lambda alpha, draft, verify: _first_largest([tokens(alpha, count) for count in range(len(verify))]),
            "More tokens a round is not more tokens a second. What counts is what a token costs.",
        ),
        Mistake(
            "the cheapest round",
            lambda alpha, draft, verify: 0,
            "A short round is cheap, but it brings few tokens. What counts is what a token costs.",
        ),
        Mistake(
            "the longest draft that still pays",
            lambda *arguments: max(k for k, gain in enumerate(_gains(*arguments)) if k == 0 or gain > 1),
            "A speedup above 1 is not yet the largest. Compare all of them.",
        ),
    ),
)

# --- 5.4 alpha from traces

_Trace = list[tuple[int, int]]  # (drafted, accepted) of each round


def _trace_cases(seed: int) -> Sequence[Case]:
    """Single rounds first; then several texts of different lengths, drafts of different lengths, and none at all."""
    source = random.Random(seed)
    fixed: list[list[_Trace]] = [
        [[(4, 2)]],
        [[(4, 4)]],
        [[(4, 0)]],
        [[(4, 2), (4, 4)]],
        [[(0, 0), (3, 1)]],
        [[(4, 3)], [(4, 0), (2, 2)]],
        [[(5, 1), (5, 5), (0, 0)], [(2, 0)]],
        [[]],
        [[(0, 0), (0, 0)], []],
    ]
    for number in range(14):
        alpha, most = source.uniform(0.2, 0.95), source.randint(2, 6)
        texts: list[_Trace] = []
        for _ in range(source.randint(2, 4)):
            drafts = [most if number % 2 else source.randint(0, most) for _ in range(source.randint(1, 8))]
            texts.append([(count, _leading_run(source, alpha, count)) for count in drafts])
        fixed.append(texts)
    return [Case({"traces": texts}) for texts in fixed]


def _leading_run(source: random.Random, alpha: float, count: int) -> int:
    run = 0
    while run < count and source.random() < alpha:
        run += 1
    return run


def _estimate_alpha(traces: list[_Trace]) -> float:
    from specdec_ref.economics import estimate_alpha

    rounds = _all_rounds(traces)
    return estimate_alpha([accepted for _, accepted in rounds], [drafted for drafted, _ in rounds])


def _all_rounds(traces: Iterable[_Trace]) -> _Trace:
    return [one for trace in traces for one in trace]


def _ratio(
    above: Callable[[int, int], int] = lambda drafted, accepted: accepted,
    below: Callable[[int, int], int] = lambda drafted, accepted: accepted + (accepted < drafted),
    keep: Callable[[int, int], bool] = lambda drafted, accepted: drafted > 0,
) -> Callable[[Iterable[_Trace]], Any]:
    """Make the answer that divides sums over the rounds that `keep` lets in. Nothing judged: anything goes."""

    def answer(traces: Iterable[_Trace]) -> Any:
        rounds = [one for one in _all_rounds(traces) if keep(*one)]
        total = sum(below(*one) for one in rounds)
        return sum(above(*one) for one in rounds) / total if total else ANY

    return answer


def _mean(parts: Iterable[Any]) -> Any:
    values = [value for value in parts if value is not ANY]
    return sum(values) / len(values) if values else ANY


ESTIMATE_ALPHA = Exercise(
    id="5.4",
    function="estimate_alpha",
    title="Alpha from traces",
    points=3,
    difficulty=3,
    minutes=8,
    section=_TRACE,
    rule="alpha is accepted over JUDGED, both summed over all rounds of all texts. A round judges its accepted drafts "
    "and, unless all passed, the one it refused. Where nothing was judged, nothing is known: NaN.",
    hints=(
        "Which drafts did the target give a verdict on? In a round of 4 drafts with 2 accepted: the two that passed, "
        "and one more.",
        "Judged in a round: accepted, plus 1 if accepted < drafted. Add up accepted and judged over all rounds of all "
        "texts, and divide once, at the end.",
        "`accepted = sum(a for trace in traces for d, a in trace)`, `judged = sum(a + (a < d) for trace in traces for "
        'd, a in trace)`, and `return accepted / judged if judged else float("nan")`.',
    ),
    cases=_trace_cases,
    reference=_estimate_alpha,
    mistakes=(
        Mistake(
            "where nothing was judged, the answer is not NaN",
            _ratio(),
            "No verdict was given, so alpha may be anything. 0 would say that every draft was refused. Return "
            '`float("nan")`: whatever is computed from it will say that it is not known.',
        ),
        Mistake(
            "accepted over drafted",
            _ratio(below=lambda drafted, accepted: drafted),
            "Drafts behind a refusal are thrown away unjudged. They say nothing about alpha, and counting them makes "
            "the draft look worse than it is: with alpha = .8 and K = 4 you would find .59.",
        ),
        Mistake(
            "a refusal counted in every round",
            _ratio(below=lambda drafted, accepted: accepted + 1, keep=lambda drafted, accepted: True),
            "Where all drafts passed nothing was refused, and where none was made nothing was judged.",
        ),
        Mistake(
            "a refusal counted in every round with a draft",
            _ratio(below=lambda drafted, accepted: accepted + 1),
            "Where all drafts passed nothing was refused: such a round judged just its accepted drafts.",
        ),
        Mistake(
            "rounds with all drafts accepted are left out",
            _ratio(keep=lambda drafted, accepted: accepted < drafted),
            "A round without a refusal is good news about the draft. Leaving it out makes alpha too small.",
        ),
        Mistake(
            "the bonus counted as an accepted draft",
            _ratio(
                above=lambda drafted, accepted: accepted + 1,
                below=lambda drafted, accepted: drafted + 1,
                keep=lambda drafted, accepted: True,
            ),
            "The last token of a round is the target's own. Nobody drafted it, so it says nothing about the draft.",
        ),
        Mistake(
            "only the first draft of each round is looked at",
            _ratio(above=lambda drafted, accepted: accepted > 0, below=lambda drafted, accepted: 1),
            "The first draft is always judged, so this is not biased if alpha is constant. But most of the evidence is "
            "thrown away, and in real text the first draft is not like the later ones.",
        ),
        Mistake(
            "the mean of the texts' alphas",
            lambda traces: _mean(_ratio()([trace]) for trace in traces),
            "A text with two verdicts would weigh as much as one with two hundred. Add up over all texts, then divide.",
        ),
        Mistake(
            "the mean of the rounds' ratios",
            lambda traces: _mean(_ratio()([[one]]) for one in _all_rounds(traces)),
            "A round that judged one draft would weigh as much as one that judged five. Add up first, then divide.",
        ),
    ),
)

# --- 5.5 an experiment's records

_Record = dict[str, Any]
_Times = dict[str, tuple[_Record, _Record]]  # prompt -> (off, on)


def _experiment_cases(seed: int) -> Sequence[Case]:
    """Two prompts first, whose ratios mislead; then more, in any order, some measured one way only."""
    source = random.Random(seed)
    fixed = [
        [("a", 0.0, 2.0, 0.0, 0.5), ("b", 0.0, 20.0, 0.0, 18.0)],
        [("a", 1.0, 4.0, 1.25, 2.0)],
        [("a", 1.0, 4.0, 1.5, 2.0), ("b", 3.0, 1.0, 3.5, 0.8)],
        [("a", 1.0, 4.0, 1.5, 2.0), ("b", 1.0, 4.0, 1.5, 5.0), ("c", 2.0, 2.0, None, None)],
    ]
    for _ in range(14):
        rows = []
        for name in "abcdefg"[: source.randint(3, 7)]:
            prompt, decode = source.uniform(0.1, 4), source.uniform(0.5, 12)
            rows.append((name, prompt, decode, prompt * source.uniform(1, 1.4), decode / source.uniform(0.7, 3)))
        rows.append(("x", source.uniform(1, 9), source.uniform(5, 30), None, None))
        rows.append(("y", None, None, source.uniform(1, 9), source.uniform(5, 30)))
        fixed.append(rows)
    cases = []
    for number, rows in enumerate(fixed):
        records = [
            {"prompt": name, "speculation": speculation, "prompt_s": times[0], "decode_s": times[1]}
            for name, *seconds in rows
            for speculation, times in ((False, seconds[:2]), (True, seconds[2:]))
            if times[0] is not None
        ]
        if number > 1:
            source.shuffle(records)
        cases.append(Case({"records": records}))
    return cases


def _measured_both_ways(records: Iterable[_Record]) -> _Times:
    found: dict[str, dict[bool, _Record]] = {}
    for record in records:
        found.setdefault(record["prompt"], {})[record["speculation"]] = record
    return {name: (both[False], both[True]) for name, both in sorted(found.items()) if len(both) == 2}


def _read_experiment(records: list[_Record]) -> dict[str, Any]:
    from specdec_ref.economics import total_speedup

    pairs = _measured_both_ways(records)
    decode = [[record["decode_s"] for record in side] for side in zip(*pairs.values(), strict=True)]
    request = [[_request_s(record) for record in side] for side in zip(*pairs.values(), strict=True)]
    slower = [name for name, (off, on) in pairs.items() if _request_s(on) > _request_s(off)]
    return {"decode_speedup": total_speedup(*decode), "request_speedup": total_speedup(*request), "slower": slower}


def _request_s(record: _Record) -> float:
    return record["prompt_s"] + record["decode_s"]


def _decode_s(record: _Record) -> float:
    return record["decode_s"]


def _sums(sides: Iterable[tuple[float, float]]) -> float:
    off, on = zip(*sides, strict=True)
    return sum(off) / sum(on)


def _reading(
    decode: Callable[[_Record], float] = _decode_s,
    request: Callable[[_Record], float] = _request_s,
    slower: Callable[[_Record], float] | None = _request_s,
    combine: Callable[[Iterable[tuple[float, float]]], float] = _sums,
    pick: Callable[[_Times], _Times] = lambda pairs: pairs,
) -> Callable[[list[_Record]], Any]:
    """Make the answer of a reader with the given faults; without any it is right."""

    def answer(records: list[_Record]) -> Any:
        pairs = _measured_both_ways(records)
        picked = pick(pairs).values()
        if not picked:
            return ANY
        return {
            "decode_speedup": combine((decode(off), decode(on)) for off, on in picked),
            "request_speedup": combine((request(off), request(on)) for off, on in picked),
            "slower": [name for name, (off, on) in pairs.items() if slower and slower(on) > slower(off)],
        }

    return answer


def _everything_counted(records: list[_Record]) -> dict[str, Any]:
    """Of code that adds up all records of each kind, whether or not the other kind was measured."""

    def speedup(seconds: Callable[[_Record], float]) -> float:
        off, on = (sum(seconds(one) for one in records if one["speculation"] is kind) for kind in (False, True))
        return off / on

    slower = _reading()(records)["slower"]
    return {"decode_speedup": speedup(_decode_s), "request_speedup": speedup(_request_s), "slower": slower}


def _prompt_work_of_the_draft_left_out(records: list[_Record]) -> Any:
    pairs = _measured_both_ways(records)
    patched = [{**on, "prompt_s": off["prompt_s"]} for off, on in pairs.values()]
    return _reading()([off for off, _ in pairs.values()] + patched)


READ_EXPERIMENT = Exercise(
    id="5.5",
    function="read_experiment",
    title="Reading an experiment",
    points=3,
    difficulty=3,
    minutes=12,
    section=_DECIDE,
    rule="Take the prompts that were measured both ways. Divide TOTAL seconds without speculation by TOTAL seconds "
    "with it: once for decoding alone, once for whole requests. Name every prompt whose request became slower.",
    hints=(
        "Sort the records first: for each prompt one without and one with speculation. A prompt with only one of them "
        "cannot be compared.",
        "Then add up seconds, never ratios: four sums, decoding and prompt, off and on. A request is prompt and "
        "decoding together.",
        '`off = {r["prompt"]: r for r in records if not r["speculation"]}`, the same for `on`, and `both = sorted(off '
        '& on.keys())`. Then `sum(off[p]["decode_s"] for p in both) / sum(on[p]["decode_s"] for p in both)`, and so '
        "on.",
    ),
    cases=_experiment_cases,
    reference=_read_experiment,
    mistakes=(
        Mistake(
            "the mean of ratios",
            _reading(combine=lambda sides: _mean(off / on for off, on in sides)),
            "2 s -> 0.5 s and 20 s -> 18 s have ratios with a mean of 2.56, but the user waits 18.5 s instead of 22 s: "
            "1.19 times faster. Add up seconds, then divide.",
        ),
        Mistake(
            "prompt time mixed into decoding",
            _reading(decode=_request_s),
            "Speculation does nothing for reading the prompt. Mixed in, it hides what happened to decoding. Keep the "
            "two apart, and say which one a number is about.",
        ),
        Mistake(
            "prompt time left out of the request",
            _reading(request=_decode_s, slower=_request_s),
            "A user waits for the prompt's work as well. A request takes prompt_s + decode_s.",
        ),
        Mistake(
            "prompt time left out everywhere",
            _reading(request=_decode_s, slower=_decode_s),
            "A user waits for the prompt's work as well, and the draft has to read the prompt too. A request takes "
            "prompt_s + decode_s, in its speedup and where you ask whether it became slower.",
        ),
        Mistake(
            "the draft's own prompt work is left out",
            _prompt_work_of_the_draft_left_out,
            "With speculation on, a second model reads the prompt. Use the prompt_s of each record, not that of the "
            "plain run for both.",
        ),
        Mistake(
            "turned upside down",
            _reading(combine=lambda sides: 1 / _sums(sides)),
            "Seconds without speculation over seconds with it: more than 1 is faster.",
        ),
        Mistake(
            "prompts measured one way only are counted",
            _everything_counted,
            "On and off must do the same work. A prompt that was measured only once adds seconds to one side alone.",
        ),
        Mistake(
            "prompts that lost are left out of the totals",
            _reading(pick=lambda pairs: {n: p for n, p in pairs.items() if _request_s(p[1]) <= _request_s(p[0])}),
            "The losers are part of the workload. A total over winners is no total.",
        ),
        Mistake(
            "slower judged by decoding alone",
            _reading(slower=_decode_s),
            "A request can be slower although its decoding is faster: the draft reads the prompt too. Compare prompt_s "
            "+ decode_s.",
        ),
        Mistake(
            "slower prompts are not named",
            _reading(slower=None),
            "A good total can hide requests that became slower. Name them: those are the ones to leave off.",
        ),
    ),
)

EXERCISES = [EXPECTED_TOKENS, SPEEDUP, BEST_NUM_DRAFT_TOKENS, ESTIMATE_ALPHA, READ_EXPERIMENT]

QUESTIONS = [
    Question(
        "5.a",
        "A paper reports a speedup of 3 for its method. What speedup do you get from it?",
        (
            Choice("About 3", "That was one model, one machine, one implementation, one kind of text. None is yours."),
            Choice("About half of it", "A sound suspicion, and often true where others measured. But not a number."),
            Choice(
                "Nobody knows before it was measured",
                "Right: alpha is a matter of your text and your pair, T_d and T_v of your machine and your batch.",
            ),
        ),
        right="c",
    ),
    Question(
        "5.b",
        "A service runs 256 texts at once. With speculation it accepts as much as with one text, and yet it is slower "
        "than without. Why?",
        (
            Choice(
                "The draft guesses worse in a batch",
                "Acceptance is the same, as the question says: rows are independent.",
            ),
            Choice(
                "The spare arithmetic is used up",
                "Right: 256 texts fill the machine by themselves, so a pass over five times as many tokens takes "
                "several times as long.",
            ),
            Choice(
                "The weights are streamed once for each text",
                "They are streamed once per pass, for all texts. That is why batches are cheap without speculation.",
            ),
        ),
        right="b",
    ),
    Question(
        "5.c",
        "Somebody raises the temperature from 0 to 1. What happens to alpha?",
        (
            Choice(
                "It falls, because the target's choice is random",
                "Often it falls, but not for this reason: acceptance asks how much p and q overlap, and both are "
                "flatter now.",
            ),
            Choice(
                "It rises, because flatter laws overlap more",
                "They may. But where both were sure of the same token, they overlapped completely before.",
            ),
            Choice(
                "It depends on the pair and on the text",
                "Right: p and q both change. Measure with the settings that your users have.",
            ),
        ),
        right="c",
    ),
    Question(
        "5.d",
        "Speculation halves the time of decoding. What happens to the bill for a million tokens?",
        (
            Choice(
                "It is halved", "Only if the machine does nothing but decode, never waits, and the draft needs no room."
            ),
            Choice(
                "It falls by less, and it may even rise",
                "Right: prompts take as long as before, idle hours cost the same, and a second model takes memory that "
                "other users' texts would need.",
            ),
            Choice(
                "Nothing: the same arithmetic is done",
                "More arithmetic is done, in fact. But a machine is paid by the hour, and hours are saved.",
            ),
        ),
        right="b",
    ),
]
