"""Stage 09, students and stages: its exercises, their cases and the mistakes people make."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from specdec_course.checks.exercise import Case, Choice, Exercise, Made, Mistake, Question
from specdec_course.checks.laws import draw, forced, law, residual, spread

_LOSSES, _PLACES = "Three ways to be wrong", "Where is a loss measured?"
_CHOICE = "Choose by acceptance"
_ROUND, _WHOSE, _LOOP = "One inner round", "Whose q?", "The loop inside"
_LEVELS, _BILL = "Statistics of every level", "The bill of a staged round"

Laws = torch.Tensor  # [N, V]


# --- 9.1 three losses


def _loss_cases(seed: int) -> Sequence[Case]:
    """One position first; then rows of different lengths, prompts and padding, and temperatures on both sides of 1."""
    source = torch.Generator().manual_seed(seed)

    def case(rows: Sequence[Sequence[int]], temperature: float, vocab: int = 4) -> Case:
        mask = torch.tensor(rows, dtype=torch.bool)
        logits = 2 * torch.randn(2, *mask.shape, vocab, generator=source, dtype=torch.float64)
        # A student at a place where nobody judges it may say anything, and padding usually does.
        logits[1] = torch.where(mask[..., None], logits[1], 3 * logits[1])
        return Case({"target_logits": logits[0], "draft_logits": logits[1], "mask": mask, "temperature": temperature})

    cases = [case([[1]], 1.0), case([[0, 1]], 1.0), case([[1, 1, 0]], 2.0), case([[0, 1, 1], [1, 0, 0]], 0.5)]
    for number in range(20):
        length = 3 + number % 4
        rows = []
        for row in range(2 + number % 2):
            start = int(torch.randint(length - 1, (), generator=source))
            count = 1 if row == 0 else 2 + int(torch.randint(length - 2, (), generator=source))
            rows.append([int(start <= place < start + count) for place in range(length)])
        cases.append(case(rows, (1.0, 0.6, 1.7, 0.9)[number % 4], vocab=3 + number % 5))
    return cases


def _reference_losses(
    target_logits: torch.Tensor, draft_logits: torch.Tensor, mask: torch.Tensor, temperature: float
) -> dict[str, float]:
    from specdec_ref.sampling import SamplingSettings, probabilities

    p, q = (probabilities(rows[mask], SamplingSettings(temperature)) for rows in (target_logits, draft_logits))
    return {
        "forward_kl": float((p * (p / q).log()).sum(-1).mean()),
        "reverse_kl": float((q * (q / p).log()).sum(-1).mean()),
        "tv": 1 - float(torch.minimum(p, q).sum(-1).mean()),
    }


def _mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return values[mask].mean()


def _row_means(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return ((values * mask).sum(1) / mask.sum(1)).mean()


def _losses(
    mean: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = _mean,
    half: float = 0.5,
    swap: bool = False,
    heat: Callable[[float], tuple[float, float]] = lambda temperature: (temperature, temperature),
    both: str = "",
    vocab_mean: bool = False,
    base: float = 1.0,
) -> Callable[..., dict[str, float]]:
    """Make the answer of losses with the given faults; without any it is right. `both` uses one KL twice."""

    def answer(target_logits: torch.Tensor, draft_logits: torch.Tensor, mask: torch.Tensor, temperature: float) -> Any:
        of_target, of_draft = heat(temperature)
        log_p, log_q = (target_logits / of_target).log_softmax(-1), (draft_logits / of_draft).log_softmax(-1)
        p, q = log_p.exp(), log_q.exp()
        share = 1 / p.shape[-1] if vocab_mean else 1.0
        forward = float(mean((p * (log_p - log_q)).sum(-1), mask)) * share * base
        reverse = float(mean((q * (log_q - log_p)).sum(-1), mask)) * share * base
        if swap:
            forward, reverse = reverse, forward
        if both:
            forward = reverse = forward if both == "forward" else reverse
        tv = half * float(mean((p - q).abs().sum(-1), mask)) * share
        return {"forward_kl": forward, "reverse_kl": reverse, "tv": tv}

    return answer


def _everywhere(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return values.mean()


def _zeros_counted(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (values * mask).mean()


def _one_to_the_right(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return values[mask.roll(1, dims=1)].mean()


DISTILLATION_LOSSES = Exercise(
    id="9.1",
    function="distillation_losses",
    title="Three losses, at the right positions",
    points=3,
    difficulty=3,
    minutes=12,
    section=_LOSSES,
    rule="Both logits are divided by the temperature, then log_softmax. Forward KL weighs log(p / q) by p, reverse KL "
    "weighs log(q / p) by q, TV is HALF of the sum of |p - q|. Each is averaged over the positions where mask is "
    "True, all rows together.",
    hints=(
        "Pick the judged positions first: `target_logits[mask]` is [N, V], whatever the rows look like. Then there are "
        "no rows any more, and a mean is a mean over N.",
        "`log_p = (target_logits[mask] / temperature).log_softmax(-1)`, the same for q. KL(p || q) has p in front of "
        "the brackets: the sum over V of p * (log_p - log_q).",
        '`{"forward_kl": float((p * (log_p - log_q)).sum(-1).mean()), "reverse_kl": float((q * (log_q - log_p)).sum('
        '-1).mean()), "tv": float(0.5 * (p - q).abs().sum(-1).mean())}`.',
    ),
    cases=_loss_cases,
    reference=_reference_losses,
    tolerance=1e-7,
    mistakes=(
        Mistake(
            "KL the wrong way round",
            _losses(swap=True),
            "Forward KL is KL(p || q): the TARGET's law p weighs the logarithms, so it is dear to miss what the target "
            "does. Reverse KL is KL(q || p). torch's `kl_div(input, target)` computes KL(target || input), which "
            "surprises many.",
        ),
        Mistake(
            "one KL computed twice: forward",
            _losses(both="forward"),
            "The two KLs are different numbers. KL(q || p) weighs log(q / p) with q.",
        ),
        Mistake(
            "one KL computed twice: reverse",
            _losses(both="reverse"),
            "The two KLs are different numbers. KL(p || q) weighs log(p / q) with p.",
        ),
        Mistake(
            "TV without the half",
            _losses(half=1.0),
            "The sum of |p - q| counts each misplaced piece of mass twice: once where it is missing and once where it "
            "is too much. It goes up to 2, and 1 minus it would be no acceptance rate.",
        ),
        Mistake(
            "padding and prompts are counted",
            _losses(mean=_everywhere),
            "No draft is ever judged inside of a prompt, and padding is no text at all. A student pays attention to "
            "what its loss is about: use the rows where `mask` is True.",
            section=_PLACES,
        ),
        Mistake(
            "positions that are masked out count as zeros",
            _losses(mean=_zeros_counted),
            "The values outside are gone, but the mean still divides by ALL positions. Divide by `mask.sum()`, or pick "
            "`values[mask]` first. Otherwise a batch with much padding seems to be learned already.",
            section=_PLACES,
        ),
        Mistake(
            "the mean of the rows' means",
            _losses(mean=_row_means),
            "A row with one judged position would weigh as much as one with a hundred. Each position counts once: put "
            "all of them together, then take the mean.",
            section=_PLACES,
        ),
        Mistake(
            "a sum over positions instead of a mean",
            _losses(mean=lambda values, mask: values[mask].sum()),
            "A sum grows with the text, so batches of different lengths cannot be compared. Divide by the number of "
            "judged positions.",
            section=_PLACES,
        ),
        Mistake(
            "the row after the judged one is taken",
            _losses(mean=_one_to_the_right),
            "`mask` marks the rows of logits themselves, those that predict a judged token. Shifted by one, the loss "
            "is about the token after it.",
            section=_PLACES,
        ),
        Mistake(
            "the temperature is forgotten for the student",
            _losses(heat=lambda temperature: (temperature, 1.0)),
            "p and q must be the laws that are drawn from. If the users' temperature is in p only, the student learns "
            "to be sharp by itself, and is then sharpened once more when it drafts.",
            section=_PLACES,
        ),
        Mistake(
            "the temperature is forgotten for the target",
            _losses(heat=lambda temperature: (1.0, temperature)),
            "p and q must be the laws that are drawn from, and the target draws at this temperature too.",
            section=_PLACES,
        ),
        Mistake(
            "the temperature is forgotten in both",
            _losses(heat=lambda temperature: (1.0, 1.0)),
            "Both models draw at `temperature`: divide both logits by it before the softmax.",
            section=_PLACES,
        ),
        Mistake(
            "logits are multiplied by the temperature",
            _losses(heat=lambda temperature: (1 / temperature, 1 / temperature)),
            "A temperature DIVIDES the logits: above 1 it makes laws flatter.",
            section=_PLACES,
        ),
        Mistake(
            "logarithms of base 2",
            _losses(base=1 / math.log(2)),
            "Pinsker's bound, and every number of the lesson, is in nats: use the natural logarithm.",
        ),
        Mistake(
            "a mean over the vocabulary",
            _losses(vocab_mean=True),
            "A law's loss is a SUM over the tokens. A mean divides by V, which makes it thousands of times too small "
            "for a real vocabulary. (torch's `kl_div` does this unless it is told otherwise.)",
        ),
    ),
)

# --- 9.2 which student


def _normal(weights: torch.Tensor) -> torch.Tensor:
    return weights / weights.sum(-1, keepdim=True)


def _choice_cases(seed: int) -> Sequence[Case]:
    """The lesson's two students first, whose KL misleads; then random ones, of which losses choose differently."""
    source = torch.Generator().manual_seed(seed)
    p = law(0.5, 0.49, 0.01)[None]
    forgetful, blurred = law(0.5, 0.499999, 0.000001)[None], law(0.35, 0.64, 0.01)[None]
    found: list[tuple[Laws, dict[str, Laws]]] = [(p, {"blurred": blurred, "forgetful": forgetful})]
    found.append((law(0.6, 0.4)[None], {"a": law(0.9, 0.1)[None], "b": law(0.5, 0.5)[None]}))
    # Now and then it says what the target never says: that is dear by reverse KL, and seldom.
    never = law(0.5, 0.5 - 1e-9, 1e-9)[None]
    found.append((never, {"chatty": law(0.48, 0.48, 0.04)[None], "lopsided": law(0.7, 0.3 - 1e-9, 1e-9)[None]}))
    # Mixed up between positions: as laws of the whole text they are the same, place by place they are not.
    turned = torch.stack([law(0.9, 0.1), law(0.1, 0.9)])
    found.append((turned, {"turned": turned.flip(0), "even": torch.full((2, 2), 0.5, dtype=torch.float64)}))
    # Right about every favourite, and little else.
    sure, unsure = law(0.4, 0.35, 0.25)[None], law(0.98, 0.01, 0.01)[None]
    found.append((sure, {"sure": unsure, "near": law(0.36, 0.39, 0.25)[None]}))
    for number in range(18):
        positions, vocab = 2 + number % 5, 3 + number % 4
        weights = torch.rand(positions, vocab, generator=source, dtype=torch.float64) ** 3 + 1e-3
        students = {}
        for name in ("ann", "bob", "cem")[: 2 + number % 2]:
            noise = torch.exp(torch.randn(positions, vocab, generator=source, dtype=torch.float64))
            students[name] = _normal(weights * noise**0.8)
        lost = next(iter(students))  # one of them never says some rare token: its KL explodes, its acceptance does not
        rare = weights.argmin(-1, keepdim=True)
        students[lost] = _normal(_normal(weights * 1.05).scatter(1, rare, 1e-9))
        found.append((_normal(weights), students))
    return [Case({"target_probs": target, "students": students}) for target, students in found]


def _choose_student(target_probs: Laws, students: Mapping[str, Laws]) -> tuple[str, float]:
    from specdec_ref.acceptance import accept_probability

    def alpha(q: Laws) -> float:  # the mean over tokens drawn from q of the chance to keep them
        return float((q * accept_probability(target_probs, q)).sum(-1).mean())

    best = max(students, key=lambda name: alpha(students[name]))
    return best, alpha(students[best])


def _shared(p: Laws, q: Laws) -> float:
    return float(torch.minimum(p, q).sum(-1).mean())


def _picked(
    score: Callable[[Laws, Laws], float], value: Callable[[Laws, Laws], float] = _shared
) -> Callable[[Laws, Mapping[str, Laws]], tuple[str, float]]:
    """Make the answer that picks the student with the best score, and tells `value` of it."""

    def answer(target_probs: Laws, students: Mapping[str, Laws]) -> tuple[str, float]:
        best = max(students, key=lambda name: score(target_probs, students[name]))
        return best, value(target_probs, students[best])

    return answer


def _minus_forward(p: Laws, q: Laws) -> float:
    return -float((p * (p / q).log()).sum(-1).mean())


def _minus_reverse(p: Laws, q: Laws) -> float:
    return -float((q * (q / p).log()).sum(-1).mean())


def _favourites(p: Laws, q: Laws) -> float:
    return float((p.argmax(-1) == q.argmax(-1)).double().mean())


def _mean_laws(p: Laws, q: Laws) -> float:
    return float(torch.minimum(p.mean(0), q.mean(0)).sum())


def _same_draw(p: Laws, q: Laws) -> float:
    return float((p * q).sum(-1).mean())


def _vocab_mean(p: Laws, q: Laws) -> float:
    return float(torch.minimum(p, q).mean())


def _without_half(p: Laws, q: Laws) -> float:
    return 1 - float((p - q).abs().sum(-1).mean())


CHOOSE_STUDENT = Exercise(
    id="9.2",
    function="choose_student",
    title="Which student drafts best?",
    points=2,
    difficulty=2,
    minutes=6,
    section=_CHOICE,
    rule="At each position the chance that a token drawn from q is accepted is the sum of min(p, q), which is 1 - TV. "
    "alpha is its mean over the positions; the student with the largest alpha is chosen.",
    hints=(
        "Which number of stage 02 says how often a token drawn from q is accepted, when the target's law is p?",
        "The overlap, sum of min(p, q), at each position. Take its mean over the positions, for each student, and the "
        "largest.",
        "`alphas = {name: float(torch.minimum(target_probs, q).sum(-1).mean()) for name, q in students.items()}`, then "
        "`best = max(alphas, key=alphas.get)`.",
    ),
    cases=_choice_cases,
    reference=_choose_student,
    tolerance=1e-7,
    mistakes=(
        Mistake(
            "chosen by forward KL",
            _picked(_minus_forward),
            "A student that never says some rare token has a huge KL and is accepted nearly always all the same. KL "
            "is a good teacher and a bad judge: compare what you are paid for, the sum of min(p, q).",
        ),
        Mistake(
            "chosen by reverse KL",
            _picked(_minus_reverse),
            "Reverse KL looks only at what the student says, and weighs it by logarithms. Compare what you are paid "
            "for, the sum of min(p, q).",
        ),
        Mistake(
            "chosen by common favourites",
            _picked(_favourites),
            "Acceptance is not 'both like the same token best', except at temperature 0. Compare the sum of min(p, q).",
        ),
        Mistake(
            "the share of common favourites is called alpha",
            _picked(_favourites, _favourites),
            "That is the acceptance at temperature 0. For tokens drawn from q it is the sum of min(p, q).",
        ),
        Mistake(
            "laws are averaged before they are compared",
            _picked(_mean_laws, _mean_laws),
            "Two models can like the same tokens on average and disagree at every single place. Overlap first, "
            "position by position, then the mean.",
        ),
        Mistake(
            "the chance of equal draws is called alpha",
            _picked(_same_draw, _same_draw),
            "The sum of p * q is the chance that two separate draws agree. The rule of stage 02 keeps far more: the "
            "sum of min(p, q).",
        ),
        Mistake(
            "a mean over the vocabulary",
            _picked(_shared, _vocab_mean),
            "A law's overlap is a SUM over the tokens. Take the mean over positions only.",
        ),
        Mistake(
            "TV without the half",
            _picked(_shared, _without_half),
            "1 - sum |p - q| counts each misplaced piece of mass twice, and can even be negative. Acceptance is 1 - "
            "TV, with TV HALF that sum.",
            section=_LOSSES,
        ),
        Mistake(
            "the distance is called alpha",
            _picked(_shared, lambda p, q: 1 - _shared(p, q)),
            "That is TV, the share of drafts that are refused. alpha is 1 - TV.",
        ),
        Mistake(
            "the worst student is chosen",
            _picked(lambda p, q: -_shared(p, q)),
            "A loss is best when it is small. alpha is a chance to be accepted: the largest is the best.",
        ),
    ),
)

# --- 9.3 one inner round


def _round_cases(seed: int) -> Sequence[Case]:
    """Laws that leave the correction no choice; no micro token at all; at the end a law seen whole."""
    source = torch.Generator().manual_seed(seed)

    def case(q: Sequence[Laws], micro: Sequence[Laws], tokens: Sequence[int], accept: Any, correct: Any) -> Case:
        micro_probs = torch.stack(list(micro)) if micro else torch.zeros(0, len(q[0]), dtype=torch.float64)
        drafted = torch.tensor(list(tokens), dtype=torch.int64)
        numbers = {"accept_uniforms": law(*accept), "correct_uniform": correct}
        laws = {"draft_probs": torch.stack(list(q)), "micro_probs": micro_probs}
        return Case({**laws, "micro_tokens": drafted, **numbers})

    q, micro, last = law(0.5, 0.3, 0.2), law(0.2, 0.5, 0.3), law(0.0, 0.0, 1.0)
    cases = [case([q, last], [micro], [1], [u], v) for u, v in ((0.2, 0.4), (0.9, 0.6))]
    cases.append(case([law(0.1, 0.9)], [], [], [], 0.7))
    cases += [case([q, q, last], [micro, micro], [1, 2], accept, 0.7) for accept in ([0.1, 0.9], [0.9, 0.1])]
    cases.append(case([q, q, q, q, last], [micro] * 4, [1, 1, 2, 0], [0.1, 0.9, 0.1, 0.1], 0.7))
    for _ in range(14):
        width = int(torch.randint(2, 5, (), generator=source))
        rows = [forced(source) for _ in range(width)]
        end = torch.rand(5, generator=source, dtype=torch.float64)
        end = _normal(torch.where(end == end.max(), end + 99, end / 99))
        tokens = torch.randint(5, (width,), generator=source).tolist()
        accept = (torch.rand(width, generator=source, dtype=torch.float64) ** 1.5).tolist()
        correct = 0.3 + 0.4 * float(torch.rand((), generator=source))
        cases.append(case([row[0] for row in rows] + [end], [row[1] for row in rows], tokens, accept, correct))
    even, half, end = law(0.25, 0.25, 0.25, 0.25), law(0.5, 0.5, 0.0, 0.0), law(0.25, 0.25, 0.5, 0.0)
    return cases + [case([even, even, end], [half, half], [0, 1], [0.1, u], spread(4)) for u in (0.2, 0.8)]


def _drive_round(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call once, or once for each number of a `spread`: then the answers come sorted by their tokens."""
    uniform = arguments["correct_uniform"]
    numbers = uniform if isinstance(uniform, list) else [uniform]
    answers = [_as_pair(function(*{**arguments, "correct_uniform": one}.values())) for one in numbers]
    return sorted(answers, key=_by_tokens) if isinstance(uniform, list) else answers[0]


def _as_pair(answer: Any) -> Any:
    """Take laws as a tensor or as a list of rows, and tokens as a list or a tensor."""
    if not (isinstance(answer, tuple) and len(answer) == 2):
        return answer
    tokens, laws = answer
    laws = list(laws) if isinstance(laws, torch.Tensor) and laws.dim() == 2 else laws
    return tokens.tolist() if isinstance(tokens, torch.Tensor) else tokens, laws


def _by_tokens(answer: Any) -> list[int]:
    try:
        return [int(token) for token in answer[0]]
    except (TypeError, ValueError, RuntimeError, IndexError):  # no tokens at all: the check will say so
        return []


def _reference_round(
    draft_probs: Laws,
    micro_probs: Laws,
    micro_tokens: torch.Tensor,
    accept_uniforms: torch.Tensor,
    correct_uniform: float,
) -> tuple[list[int], Laws]:
    from specdec_ref.acceptance import verify_chain

    numbers = accept_uniforms[None], torch.tensor([correct_uniform]).double()
    verdict = verify_chain(draft_probs[None], micro_tokens[None], micro_probs[None], *numbers)
    kept = int(verdict.num_accepted)
    return [*micro_tokens[:kept].tolist(), int(verdict.next_token)], draft_probs[: kept + 1]


def _leading(accepted: Sequence[bool]) -> int:
    return [*accepted, False].index(False)


def _right_law(q: Laws, micro: Laws, kept: int) -> torch.Tensor:
    return q[kept] if kept == len(micro) else residual(q[kept], micro[kept])


def _own_laws(q: Laws, micro: Laws, tokens: Sequence[int], drawn_from: torch.Tensor) -> Laws:
    return q[: len(tokens)]


def _micros_laws(q: Laws, micro: Laws, tokens: Sequence[int], drawn_from: torch.Tensor) -> Laws:
    kept = len(tokens) - 1
    return torch.cat([micro[:kept], q[kept : kept + 1]])


def _micros_and_drawn(q: Laws, micro: Laws, tokens: Sequence[int], drawn_from: torch.Tensor) -> Laws:
    return torch.cat([micro[: len(tokens) - 1], drawn_from[None]])


def _drawn_from(q: Laws, micro: Laws, tokens: Sequence[int], drawn_from: torch.Tensor) -> Laws:
    return torch.cat([q[: len(tokens) - 1], drawn_from[None]])


def _point_masses(q: Laws, micro: Laws, tokens: Sequence[int], drawn_from: torch.Tensor) -> Laws:
    return torch.nn.functional.one_hot(torch.tensor(tokens), q.shape[-1]).to(q.dtype)


def _laws_after(q: Laws, micro: Laws, tokens: Sequence[int], drawn_from: torch.Tensor) -> Laws:
    rows = [min(place + 1, len(q) - 1) for place in range(len(tokens))]
    return q[rows]


def _round(
    count: Callable[[Sequence[bool]], int] = _leading,
    next_law: Callable[[Laws, Laws, int], torch.Tensor] = _right_law,
    laws: Callable[[Laws, Laws, Sequence[int], torch.Tensor], Laws] = _own_laws,
    ratio: Callable[[float, float], float] = lambda q, micro: q / micro,
    shift: int = 0,
) -> Callable[..., Any]:
    """Make the answer of an inner round with the given faults; without any it is right."""

    def answer(
        draft_probs: Laws, micro_probs: Laws, micro_tokens: torch.Tensor, accept_uniforms: torch.Tensor, correct: float
    ) -> Any:
        drafted = micro_tokens.tolist()
        pairs = [(float(draft_probs[i + shift, t]), float(micro_probs[i, t])) for i, t in enumerate(drafted)]
        accepted = [float(u) < ratio(*pair) for u, pair in zip(accept_uniforms, pairs, strict=True)]
        kept = count(accepted)
        drawn_from = next_law(draft_probs, micro_probs, kept)
        tokens = [*drafted[:kept], draw(drawn_from, correct)]
        return tokens, laws(draft_probs, micro_probs, tokens, drawn_from)

    return answer


def _without_next(*arguments: Any) -> Any:
    tokens, laws = _round()(*arguments)
    return tokens[:-1], laws[:-1]


def _all_rows(*arguments: Any) -> Any:
    return _round()(*arguments)[0], arguments[0]


INNER_ROUND = Exercise(
    id="9.3",
    function="inner_round",
    title="One inner round",
    points=3,
    difficulty=4,
    minutes=12,
    section=_ROUND,
    rule="The draft model is the target of this round: keep micro tokens while u < q(x) / micro(x), then a token from "
    "the residual max(0, q - micro), or from the last row if all were kept. Each token, kept or corrected, now follows "
    "the DRAFT model's law: hand on `draft_probs`, one row for each token.",
    hints=(
        "It is the round of stage 02, one level down: the draft model plays the target, the micro model the draft.",
        "What comes out of that round follows the draft model's law exactly, whoever proposed it. So which law must "
        "the target be told for each token, the first as well as the last?",
        "Count `kept` as in stage 02, draw the next token from `draft_probs[kept]` if all were kept, else from "
        "`(draft_probs[kept] - micro_probs[kept]).clamp(min=0)`; then `return tokens, draft_probs[: len(tokens)]`.",
    ),
    cases=_round_cases,
    drive=_drive_round,
    reference=_reference_round,
    uniforms=("accept_uniforms", "correct_uniform"),
    mistakes=(
        Mistake(
            "the micro model's law is handed on for the kept tokens",
            _round(laws=_micros_laws),
            "A kept token was proposed by the micro model, but it went through the rule: it follows the DRAFT model's "
            "law. With the micro model's q the target would judge by a law that the token does not follow, and the "
            "text would no longer be the target's.",
            section=_WHOSE,
        ),
        Mistake(
            "each token comes with the law it was last drawn from",
            _round(laws=_micros_and_drawn),
            "'Drawn from' means: after the whole round. Proposal, verdict and correction together make one draw from "
            "the draft model's law. Neither the micro model's q nor the residual is the law that a token follows.",
            section=_WHOSE,
        ),
        Mistake(
            "the residual is handed on as the law of the correction",
            _round(laws=_drawn_from),
            "The residual is where the correction comes from IF the micro token was refused. All cases together, the "
            "token at this place follows the draft model's law, and that is what the target must be told.",
            section=_WHOSE,
        ),
        Mistake(
            "point masses are handed on",
            _round(laws=_point_masses),
            "A point mass says: this token was certain. It was not, it was drawn. The target would then accept with p "
            "instead of p/q, and correct by a wrong residual.",
            section=_WHOSE,
        ),
        Mistake(
            "all rows of the pass are handed on",
            _all_rows,
            "Rows after the last token belong to micro tokens that were refused. One row for each token of the answer.",
            section=_WHOSE,
        ),
        Mistake(
            "each token comes with the law after it",
            _round(laws=_laws_after),
            "Row i is the law BEFORE micro token i: the one that token follows. Row i + 1 belongs to the next.",
            section=_WHOSE,
        ),
        Mistake(
            "replacement drawn from the draft model's law instead of the residual",
            _round(next_law=lambda q, micro, kept: q[kept]),
            "Inside, too, the refused token has had its chance. Drawn from q it gets a second one: then the tokens do "
            "not follow q, and a target that believes so is misled. The inner level must be as exact as the outer.",
        ),
        Mistake(
            "the two models swapped",
            _round(
                ratio=lambda q, micro: micro / q if q else 1.0,
                next_law=lambda q, micro, kept: q[kept] if kept == len(micro) else residual(micro[kept], q[kept]),
            ),
            "In the inner round the draft model judges and the micro model proposes: keep with q(x) / micro(x).",
        ),
        Mistake(
            "the accept mask is summed instead of its leading run",
            _round(count=sum),
            "Verdicts after the first refusal speak about a text that does not exist. The mask [1, 0, 1] is one kept "
            "token.",
        ),
        Mistake(
            "micro token i judged by row i + 1",
            _round(shift=1),
            "Row i of the pass is the law before micro token i: it judges it. Row i + 1 knows that token already.",
        ),
        Mistake(
            "no token of the draft model's own",
            _without_next,
            "The pass has one law more than was drafted. After the kept tokens comes a correction or a bonus, so an "
            "inner round always brings at least one token. Otherwise it might bring none, for ever.",
        ),
    ),
)

# --- 9.4 the loop inside

VOCAB = 7


class _Noted:
    """A function that notes what it was asked, copied at once: the learner may go on with the lists."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.asked = function, []

    def __call__(self, *positional: Any, **named: Any) -> Any:
        values = [*positional, *named.values()]
        self.asked.append([list(value) if isinstance(value, list | tuple) else value for value in values])
        return self.function(*values)


def _weights(text: Sequence[int], salt: int) -> torch.Tensor:
    """Return a law after a text that depends on all of it: whoever gives another text gets another law."""
    mix = sum((place + 2) * (token + 1) for place, token in enumerate(text)) + 5 * len(text)
    weights = torch.tensor([(mix * (salt + token) + 3 * token) % 11 + 1.0 for token in range(VOCAB)]).double()
    weights[(mix * 3) % VOCAB] += 12.0  # a favourite that both levels share, mostly
    return weights / weights.sum()


def toy_micro(text: Sequence[int], count: int) -> tuple[list[int], Laws]:
    """Draft the favourites of a toy micro model, one after the other."""
    tokens: list[int] = []
    laws = [torch.zeros(0, VOCAB, dtype=torch.float64)]
    for _ in range(count):
        so_far = [*text, *tokens]
        probs = _weights(so_far, 4)
        if sum(so_far) % 3 == 1:
            probs = probs.roll(1)  # sometimes it is wrong
        laws.append(probs[None])
        tokens.append(int(probs.argmax()))
    return tokens, torch.cat(laws)


def toy_draft(text: Sequence[int], tokens: Sequence[int]) -> Laws:
    """Make one pass of a toy draft model: the law before each of the tokens, and the one after them."""
    whole = [*text, *(int(token) for token in tokens)]
    return torch.stack([_weights(whole[:end], 2) for end in range(len(text), len(whole) + 1)])


def toy_judge(draft_laws: Laws, micro_tokens: Sequence[int], micro_laws: Laws) -> tuple[list[int], Laws]:
    """Judge greedily: keep what is the draft model's favourite, then add its favourite."""
    favourites = draft_laws.argmax(-1).tolist()
    tokens = [int(token) for token in micro_tokens]
    kept = _leading([token == favourite for token, favourite in zip(tokens, favourites, strict=False)])
    return [*tokens[:kept], favourites[kept]], draft_laws[: kept + 1]


def _noted(function: Callable[..., Any], name: str) -> Made:
    return Made(functools.partial(_Noted, function), name)


def _draft_cases(seed: int) -> Sequence[Case]:
    """Drafts of one token, drafts that need many inner rounds, and micro models that may draft more than is wanted."""
    source = random.Random(seed)
    fixed = [([3], 1, 2), ([3, 1], 2, 1), ([3, 1], 3, 2), ([5, 2], 4, 1), ([5, 2], 5, 3), ([1], 6, 9)]
    for _ in range(16):
        text = [source.randrange(VOCAB) for _ in range(source.randint(1, 5))]
        fixed.append((text, source.randint(2, 9), source.randint(1, 5)))
    return [
        Case(
            {
                "text": text,
                "num_draft_tokens": count,
                "inner_draft_tokens": inner,
                "micro": _noted(toy_micro, "micro"),
                "draft": _noted(toy_draft, "draft"),
                "judge": _noted(toy_judge, "judge"),
            }
        )
        for text, count, inner in fixed
    ]


def _drive_draft(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    answer = function(*arguments.values())
    if isinstance(answer, tuple) and len(answer) == 2:
        tokens, laws = answer
        tokens = tokens.tolist() if isinstance(tokens, torch.Tensor) else tokens
        answer = tokens, list(laws) if isinstance(laws, torch.Tensor) else laws  # a stacked [K, V] tensor will do
    asked = [one for one in arguments["micro"].asked if one[1:] != [0]]  # to ask for no token costs nothing
    passes = [[list(one[0]), [int(token) for token in one[1]]] for one in arguments["draft"].asked]
    return {"answer": answer, "micro drafted after": asked, "draft model's passes": passes}


def _staged(
    limit: Callable[[int, int, int], int] = lambda inner, room, whole: min(inner, room - 1),
    before: Callable[[list[int], list[int]], list[int]] = lambda text, tokens: text + tokens,
    judged_after: Callable[[list[int], list[int]], list[int]] = lambda text, tokens: text + tokens,
    once: bool = False,
    one_by_one: bool = False,
    handed: Callable[[Laws, Laws], Laws] = lambda new_laws, micro_laws: new_laws,
    cut: bool = True,
) -> Callable[..., Any]:
    """Make the answer of a loop with the given faults; without any it is right."""

    def answer(text: list[int], count: int, inner: int, micro: Any, draft: Any, judge: Any) -> Any:
        tokens: list[int] = []
        laws: list[torch.Tensor] = []
        while len(tokens) < count:
            micro_tokens, micro_laws = micro(before(text, tokens), limit(inner, count - len(tokens), count))
            so_far = judged_after(text, tokens)
            if one_by_one:
                ends = range(len(micro_tokens) + 1)
                rows = torch.cat([draft([*so_far, *micro_tokens[:end]], []) for end in ends])
            else:
                rows = draft(so_far, micro_tokens)
            new_tokens, new_laws = judge(rows, micro_tokens, micro_laws)
            tokens, laws = tokens + new_tokens, laws + list(handed(new_laws, micro_laws))
            if once:
                break
        return (tokens[:count], laws[:count]) if cut else (tokens, laws)

    return answer


def _mixed(new_laws: Laws, micro_laws: Laws) -> Laws:
    kept = len(new_laws) - 1
    return torch.cat([micro_laws[:kept], new_laws[kept:]])


STAGED_DRAFT = Exercise(
    id="9.4",
    function="staged_draft",
    title="A draft for the draft",
    points=2,
    difficulty=3,
    minutes=10,
    section=_LOOP,
    rule="Until K tokens are there: the micro model drafts behind text AND tokens so far, at most room - 1; one pass "
    "of the draft model over them; judge; append the new tokens and the laws that the judge hands back.",
    hints=(
        "It is the loop of stage 04, one level down: limit, draft, one pass, judge, commit. The budget is K.",
        "Every inner round goes on from `text + tokens`. It brings one token more than it keeps, so with room for m "
        "tokens the micro model drafts at most m - 1: at the end none at all.",
        "`room = num_draft_tokens - len(tokens)`, `micro_tokens, micro_laws = micro(text + tokens, "
        "min(inner_draft_tokens, room - 1))`, `new_tokens, new_laws = judge(draft(text + tokens, micro_tokens), "
        "micro_tokens, micro_laws)`, then append both.",
    ),
    cases=_draft_cases,
    drive=_drive_draft,
    reference=_staged(),
    mistakes=(
        Mistake(
            "only one inner round",
            _staged(once=True),
            "An inner round writes what was kept and one token more. Go on until the draft has K tokens.",
        ),
        Mistake(
            "the draft is longer than K",
            _staged(limit=lambda inner, room, whole: inner, cut=False),
            "K is what the target will judge; the pass and the budget of the text were planned for that. Near the end "
            "the micro model may draft only room - 1 tokens.",
        ),
        Mistake(
            "micro tokens are drafted for the bin",
            _staged(limit=lambda inner, room, whole: inner),
            "The draft is cut to K tokens, so the text is right, but micro steps were paid for tokens that could never "
            "be used. Limit the micro model to room - 1.",
        ),
        Mistake(
            "no room is left for the draft model's own token",
            _staged(limit=lambda inner, room, whole: min(inner, room)),
            "An inner round brings one token more than it keeps. With room for m tokens let the micro model draft m - "
            "1.",
        ),
        Mistake(
            "the micro model goes on from the old text",
            _staged(before=lambda text, tokens: text),
            "After the first inner round there are new tokens, and the micro model must read them: `text + tokens`. "
            "The draft would still be right, for the draft model checks it, but hardly a micro token would be kept.",
        ),
        Mistake(
            "the draft model judges behind the old text",
            _staged(judged_after=lambda text, tokens: text),
            "The draft model's pass must stand behind `text + tokens`. Behind the old text its laws are those of other "
            "places, and what is handed on follows no law that the target could be told.",
        ),
        Mistake(
            "one pass of the draft model for each token",
            _staged(one_by_one=True),
            "The draft is right, but the draft model made as many passes as without help. Give it all micro tokens in "
            "one pass.",
        ),
        Mistake(
            "the micro model's laws are collected",
            _staged(handed=_mixed),
            "The target must be told the laws that the tokens follow. Those are what `judge` hands back, the draft "
            "model's, and not the micro model's.",
            section=_WHOSE,
        ),
    ),
)

# --- 9.5 the bill

_Rounds = list[dict[str, Any]]


def _bill_cases(seed: int) -> Sequence[Case]:
    """One round by hand first; then runs with inner rounds of all sizes, some without a micro token."""
    source = random.Random(seed)
    fixed: list[tuple[_Rounds, tuple[float, ...]]] = [
        ([{"emitted": 5, "inner": [(3, 3), (1, 0)]}], (1.0, 1.1, 0.2, 0.25, 0.01)),
        ([{"emitted": 1, "inner": [(2, 0), (1, 1)]}], (1.0, 1.5, 0.3, 0.4, 0.05)),
        ([{"emitted": 2, "inner": [(2, 2), (0, 0)]}], (1.0, 1.2, 0.25, 0.35, 0.02)),
    ]
    for _ in range(20):
        rounds: _Rounds = []
        for number in range(source.randint(1, 6)):
            inner = []
            for place in range(source.randint(1, 4)):
                drafted = 0 if (number, place) == (0, 1) else source.randint(1, 4)
                inner.append((drafted, source.randint(0, drafted)))
            written = sum(accepted + 1 for _, accepted in inner)
            rounds.append({"emitted": source.randint(1, written + 1), "inner": inner})
        rounds.append({"emitted": 2, "inner": [(3, 2), (3, 1)]})  # something is refused on both levels
        step = source.uniform(0.02, 0.2)
        draft = step * source.uniform(0.1, 0.5)
        seconds = (
            step,
            step * source.uniform(1.05, 2),
            draft,
            draft * source.uniform(1.05, 1.6),
            draft * source.uniform(0.05, 0.8),
        )
        fixed.append((rounds, seconds))
    names = ("target_step_s", "verify_s", "draft_step_s", "draft_verify_s", "micro_step_s")
    return [Case({"rounds": rounds, **dict(zip(names, seconds, strict=True))}) for rounds, seconds in fixed]


def _reference_bill(
    rounds: _Rounds,
    target_step_s: float,
    verify_s: float,
    draft_step_s: float,
    draft_verify_s: float,
    micro_step_s: float,
) -> dict[str, Any]:
    from specdec_ref.economics import total_speedup
    from specdec_ref.measure import Run
    from specdec_ref.rows import Round

    inner = Run([Round([[0] * (a + 1)], [[0] * d], [a], [None]) for one in rounds for d, a in one["inner"]])
    plain = [one["emitted"] * target_step_s for one in rounds]
    blocks = sum(1 for one in inner.rounds if one.num_drafted[0])
    passes = blocks * draft_verify_s + (inner.row_rounds - blocks) * draft_step_s
    target = len(rounds) * verify_s
    staged = target + passes + inner.drafted * micro_step_s
    return {
        "target_passes": len(rounds),
        "draft_passes": inner.row_rounds,
        "micro_steps": inner.drafted,
        "speedup": total_speedup([sum(plain)], [staged]),
        "without_micro": total_speedup([sum(plain)], [target + inner.new_tokens * draft_step_s]),
    }


def _bill(
    target_passes: Callable[[int, int], int] = lambda outer, inner: outer,
    draft_passes: Callable[[Sequence[tuple[int, int]]], int] = len,
    micro_steps: Callable[[int, int], int] = lambda drafted, accepted: drafted,
    pass_s: Callable[[int, int, float, float], float] = lambda d, a, step, block: block if d else step,
    micro_paid: float = 1.0,
    target_s: Callable[[float, float], float] = lambda step, verify: verify,
    emitted: Callable[[dict[str, Any]], int] = lambda one: one["emitted"],
    written: Callable[[int, int], int] = lambda drafted, accepted: accepted + 1,
    alone: Callable[[float, float], float] = lambda step, block: step,
    upside_down: bool = False,
) -> Callable[..., Any]:
    """Make the answer of a bill with the given faults; without any it is right."""

    def answer(
        rounds: _Rounds, target_step: float, verify: float, draft_step: float, draft_verify: float, micro_step: float
    ) -> Any:
        inner = [one for result in rounds for one in result["inner"]]
        of_target = target_passes(len(rounds), len(inner))
        steps = sum(micro_steps(drafted, accepted) for drafted, accepted in inner)
        target = of_target * target_s(target_step, verify)
        passes = sum(pass_s(drafted, accepted, draft_step, draft_verify) for drafted, accepted in inner)
        plain = sum(emitted(one) for one in rounds) * target_step
        staged = target + passes + steps * micro_step * micro_paid
        drafts = sum(written(drafted, accepted) for drafted, accepted in inner)
        pair = target + drafts * alone(draft_step, draft_verify)
        gains = [plain / staged, plain / pair]
        if upside_down:
            gains = [1 / gain for gain in gains]
        names = ("target_passes", "draft_passes", "micro_steps", "speedup", "without_micro")
        return dict(zip(names, (of_target, draft_passes(inner), steps, *gains), strict=True))

    return answer


def _all_written(one: dict[str, Any]) -> int:
    return sum(accepted + 1 for _, accepted in one["inner"]) + 1


STAGED_BILL = Exercise(
    id="9.5",
    function="staged_bill",
    title="The bill of three levels",
    points=3,
    difficulty=3,
    minutes=12,
    section=_BILL,
    rule="The target makes one pass for each round, the draft model one for each inner round, the micro model one step "
    "for each token it drafted. Plain time over the sum of all three is the speedup. Without the micro model the draft "
    "model pays a step for each token of the drafts.",
    hints=(
        "Make one list of all inner rounds first: `inner = [one for result in rounds for one in result['inner']]`. "
        "Which level does what, and how often?",
        "Three sums: rounds times verify_s; for each inner round draft_verify_s, or draft_step_s where no micro token "
        "was drafted; micro tokens times micro_step_s. The text got the sum of `emitted`, worth a target step each.",
        "`without_micro`: an inner round wrote accepted + 1 tokens of the draft, and alone the draft model pays "
        "draft_step_s for each: `plain_s / (len(rounds) * verify_s + sum(a + 1 for _, a in inner) * draft_step_s)`.",
    ),
    cases=_bill_cases,
    reference=_reference_bill,
    mistakes=(
        Mistake(
            "the micro model's cost is left out",
            _bill(micro_paid=0.0),
            "Its steps are the cheapest of all, but there are many, one after the other. A third model that is free on "
            "paper always pays on paper.",
        ),
        Mistake(
            "inner rounds are counted as passes of the target",
            _bill(target_passes=lambda outer, inner: outer + inner),
            "The target sees none of the inner rounds: they are judged by the draft model. One pass of the target for "
            "each entry of `rounds`.",
            section=_LEVELS,
        ),
        Mistake(
            "each inner round is billed a pass of the target",
            _bill(target_passes=lambda outer, inner: inner),
            "Inner rounds are judged by the draft model. The target makes one pass for each entry of `rounds`.",
            section=_LEVELS,
        ),
        Mistake(
            "the draft model is billed a step for each token",
            _bill(
                draft_passes=lambda inner: sum(accepted + 1 for _, accepted in inner),
                pass_s=lambda d, a, step, block: (a + 1) * step,
            ),
            "That is what it pays alone. With a micro model it makes ONE pass for each inner round, however many "
            "tokens come out: that is the point of the third model.",
            section=_LEVELS,
        ),
        Mistake(
            "only accepted micro tokens are billed",
            _bill(micro_steps=lambda drafted, accepted: accepted),
            "A refused micro token was drafted too, and its step was paid.",
            section=_LEVELS,
        ),
        Mistake(
            "the draft model's pass over a block is taken for a plain step",
            _bill(pass_s=lambda d, a, step, block: step),
            "A pass over several tokens is not always as cheap as one step: bill `draft_verify_s`, which was measured. "
            "It is T_v against T_t, one level down.",
        ),
        Mistake(
            "a plain step of the draft model is billed as a block",
            _bill(pass_s=lambda d, a, step, block: block),
            "An inner round without micro tokens is a plain step, and costs `draft_step_s`.",
        ),
        Mistake(
            "the draft model's passes are left out",
            _bill(pass_s=lambda d, a, step, block: 0.0),
            "The draft model still makes a pass in each inner round. Three levels, three terms.",
        ),
        Mistake(
            "T_v taken for T_t",
            _bill(target_s=lambda step, verify: step),
            "The target's pass over a draft costs `verify_s`, not a plain step.",
        ),
        Mistake(
            "every drafted token is counted as emitted",
            _bill(emitted=_all_written),
            "What the inner rounds wrote is a DRAFT. The text got `emitted`: the target refused some of it.",
            section=_LEVELS,
        ),
        Mistake(
            "the draft model's own tokens are left out of its drafts",
            _bill(written=lambda drafted, accepted: accepted),
            "An inner round writes its accepted tokens and one more, a correction or bonus of the draft model. Alone "
            "it would have paid a step for each of them.",
            section=_LEVELS,
        ),
        Mistake(
            "refused micro tokens are counted as drafts",
            _bill(written=lambda drafted, accepted: drafted + 1),
            "What the draft model refused never came before the target. An inner round writes accepted + 1 tokens.",
            section=_LEVELS,
        ),
        Mistake(
            "alone, the draft model is billed a pass over a block for each token",
            _bill(alone=lambda step, block: block),
            "Alone the draft model takes plain steps, `draft_step_s` each. Otherwise the third model looks better than "
            "it is.",
        ),
        Mistake(
            "turned upside down",
            _bill(upside_down=True),
            "Plain time over speculative time: more than 1 is faster.",
        ),
    ),
)

EXERCISES = [DISTILLATION_LOSSES, CHOOSE_STUDENT, INNER_ROUND, STAGED_DRAFT, STAGED_BILL]

QUESTIONS = [
    Question(
        "9.a",
        "Acceptance is 1 - TV. Should an untrained student then learn by TV alone?",
        (
            Choice(
                "No, because TV has no gradient",
                "It has one nearly everywhere. But it is in proportion to q, and the same for every token that lacks "
                "mass, whether much or little.",
            ),
            Choice(
                "No: first by KL, which shows where the mass is, then by TV",
                "Right: the forward KL pulls at each token as strongly as it is missing, even where q is next to "
                "nothing. Once the student knows its way about, TV asks for just what is paid for.",
            ),
            Choice(
                "Yes, for a student of any size ends with q = p",
                "A draft model is too small for that. Which part of p it gives up depends on the loss.",
            ),
        ),
        right="b",
    ),
    Question(
        "9.b",
        "Someone hands the micro model's q to the target's verdict. All greedy tests pass. How can that be?",
        (
            Choice(
                "Greedy drafts carry no q",
                "Right: at temperature 0 a draft token passes if it is the target's favourite, whatever q says. Only "
                "the law of sampled text shows the fault, and it must be checked over both levels together.",
            ),
            Choice(
                "The fault only costs acceptance",
                "It does more: with a wrong q the sampled text no longer follows the target.",
            ),
            Choice(
                "The micro model's q equals the draft's",
                "They are different models. If their laws were the same, nobody would need both.",
            ),
        ),
        right="a",
    ),
    Question(
        "9.c",
        "Drafting takes a tenth of a round's time, the target's pass nine tenths. What can a third model gain at most?",
        (
            Choice(
                "About 1.1 times, at the same K",
                "Right: even if drafts became free, nine tenths would stay. Cheaper drafts may also be longer, which "
                "brings a little more.",
            ),
            Choice(
                "As much as the second model gained",
                "The second model replaced steps of the target, the dear ones. The third replaces steps of the draft.",
            ),
            Choice(
                "Nothing: three models are slower than two",
                "Not always. Where the draft is dear, and a cheap model knows what it will say, a third one pays.",
            ),
        ),
        right="a",
    ),
]
