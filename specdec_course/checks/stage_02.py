"""Stage 02, accept or correct: its exercises, their cases and the mistakes people make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from specdec_course.checks.exercise import ANY, Case, Choice, Exercise, Mistake, Question
from specdec_course.checks.laws import draw, for_each_uniform, forced, law, residual, spread


def _accept_cases(seed: int) -> Sequence[Case]:
    """Round numbers first, so that the smallest failing case reads well; then random laws; then what to refuse."""

    def case(p: Sequence[float], q: Sequence[float], token: int, uniform: float) -> Case:
        laws = {"target_probs": torch.tensor(p), "draft_probs": torch.tensor(q)}
        return Case({**laws, "token": token, "uniform": uniform})

    p, q = [0.5, 0.3, 0.2], [0.2, 0.5, 0.3]
    fixed = [case(p, q, token, uniform) for token in range(3) for uniform in (0.1, 0.58, 0.62, 0.7, 0.95)]
    fixed += [case([0.7, 0.3, 0.0], [0.2, 0.2, 0.6], 2, 0.0), case([0.5, 0.5], [0.5, 0.5], 1, 0.999999)]
    source = torch.Generator().manual_seed(seed)
    for _ in range(12):
        laws = torch.rand(2, 5, generator=source).softmax(-1)
        token = int(torch.randint(5, (), generator=source))
        fixed.append(case(laws[0].tolist(), laws[1].tolist(), token, float(torch.rand((), generator=source))))
    return [*fixed, case(p, [1.0, 0.0, 0.0], 1, 0.4), case(p, [1.1, -0.1, 0.0], 1, 0.4)]


def _accept_token(target_probs: torch.Tensor, draft_probs: torch.Tensor, token: int, uniform: float) -> bool:
    from specdec_ref.acceptance import accept_probability

    if draft_probs[token] <= 0:
        raise ValueError(f"draft_probs[{token}] is {float(draft_probs[token])}: it cannot have been drawn")
    return uniform < float(accept_probability(target_probs[token], draft_probs[token]))


def _rule(accepts: Callable[[float, float, float], bool]) -> Callable[..., Any]:
    """Make the answer of a wrong rule on (p(x), q(x), u), whatever it does where q(x) is not positive."""

    def answer(target_probs: torch.Tensor, draft_probs: torch.Tensor, token: int, uniform: float) -> Any:
        p, q = float(target_probs[token]), float(draft_probs[token])
        return accepts(p, q, uniform) if q > 0 else ANY

    return answer


def _favourite(target_probs: torch.Tensor, draft_probs: torch.Tensor, token: int, uniform: float) -> Any:
    return bool(target_probs.argmax() == token) if draft_probs[token] > 0 else ANY


ACCEPT_TOKEN = Exercise(
    id="2.1",
    function="accept_token",
    title="Keep the draft token?",
    points=2,
    difficulty=1,
    minutes=5,
    section="When is a draft token kept?",
    rule="A token x that was drawn from q is kept with probability min(1, p(x)/q(x)): keep it if the uniform number is "
    "below p(x)/q(x). A token with q(x) = 0 cannot have been drawn, so that is an error.",
    hints=(
        "Only two numbers of the two laws matter: what each of them gives to the token that was drafted.",
        "Compare the uniform number with the ratio of the two. If the target wants the token more often than the draft "
        "does, the ratio is above 1 and every uniform number is below it.",
        "First `if draft_probs[token] <= 0: raise ValueError(...)`, then "
        "`return bool(uniform < target_probs[token] / draft_probs[token])`.",
    ),
    cases=_accept_cases,
    reference=_accept_token,
    uniforms=("uniform",),
    mistakes=(
        Mistake(
            "q = 0 is not refused",
            _rule(lambda p, q, u: u < p / q),
            "A token to which the draft gives no probability cannot have been drawn from it. Something went wrong "
            "before, and the ratio p/q means nothing: raise a ValueError.",
        ),
        Mistake(
            "a token with p = 0 is kept when u = 0",
            _rule(lambda p, q, u: u <= p / q),
            "Uniform numbers lie in [0, 1), so 0 does occur. With `<=` a token passes that the target never writes: "
            "use `<`.",
        ),
        Mistake(
            "p and q swapped",
            _rule(lambda p, q, u: u < (q / p if p > 0 else float("inf"))),
            "The ratio is target over draft: a token that is drafted too often must be refused some of the time.",
        ),
        Mistake(
            "u compared with p(x) alone",
            _rule(lambda p, q, u: u < p),
            "The token was already drawn with chance q(x). Keeping it with chance p(x) on top of that writes it with "
            "q(x)p(x). Divide by q(x).",
        ),
        Mistake(
            "kept only where p(x) >= q(x)",
            _rule(lambda p, q, u: p >= q),
            "Where p(x) is below q(x) the token is still wanted, only less often than it is drafted: keep it with "
            "chance p(x)/q(x), which is what the uniform number is for.",
        ),
        Mistake(
            "kept only if it is the target's favourite",
            _favourite,
            "Keeping a token does not ask which token the target likes best, but how often it wants this one.",
        ),
        Mistake(
            "kept and refused mixed up",
            _rule(lambda p, q, u: ANY if u == p / q else u > p / q),
            "True means that the token is kept. It is kept where the uniform number is below the ratio.",
        ),
    ),
)

# --- 2.2 the residual


def _residual_cases(seed: int) -> Sequence[Case]:
    """Two tokens first; equal laws; both precisions; a NaN last."""
    pairs = [
        ([0.5, 0.5], [0.8, 0.2]),
        ([0.5, 0.3, 0.2], [0.2, 0.5, 0.3]),
        ([0.5, 0.3, 0.2], [0.5, 0.3, 0.2]),
        ([0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]),
        ([0.7, 0.3, 0.0], [0.2, 0.2, 0.6]),
        ([0.5, 0.3, 0.2], [0.0, 1.0, 0.0]),
    ]
    laws = [(torch.tensor(p), torch.tensor(q)) for p, q in pairs]
    source = torch.Generator().manual_seed(seed)
    for place in range(10):
        weights = torch.rand(2, 3 + place % 4, generator=source, dtype=torch.float64) + 0.01
        p, q = weights / weights.sum(-1, keepdim=True)
        laws.append((p, q) if place % 2 else (p.float(), q.float()))
    laws.append((laws[-1][0], laws[-1][0].clone()))
    laws.append((torch.tensor([0.5, float("nan"), 0.2]), torch.tensor([0.2, 0.5, 0.3])))
    return [Case({"target_probs": p, "draft_probs": q}) for p, q in laws]


def _residual(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    from specdec_ref.acceptance import residual as reference

    return reference(target_probs, draft_probs)


def _instead_of_residual(wrong: Callable[[torch.Tensor, torch.Tensor], Any]) -> Callable[..., Any]:
    """Make the answer of a wrong formula, whatever it does where p and q are equal or hold NaN."""

    def answer(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> Any:
        nan = bool(target_probs.isnan().any() or draft_probs.isnan().any())
        return ANY if nan or torch.equal(target_probs, draft_probs) else wrong(target_probs, draft_probs)

    return answer


def _scaled(weights: torch.Tensor) -> torch.Tensor:
    return weights / weights.sum()


def _nan_let_through(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> Any:
    nan = bool(target_probs.isnan().any() or draft_probs.isnan().any())
    return ANY if nan else residual(target_probs, draft_probs)


RESIDUAL = Exercise(
    id="2.2",
    function="residual",
    title="What is missing?",
    points=2,
    difficulty=2,
    minutes=8,
    section="What replaces a refused token?",
    rule="The residual is max(0, p - q), divided by its sum. Where p and q are equal nothing is missing, and p itself "
    "is the answer. A NaN is no probability: raise a ValueError.",
    hints=(
        "What does a token still need? Its p, less what accepted drafts supply. A token with too much needs nothing, "
        "not less than nothing.",
        "`(target_probs - draft_probs).clamp(min=0)` is what is missing. Divide by its sum. When is that sum 0, and "
        "what should happen then?",
        "`missing = (target_probs - draft_probs).clamp(min=0)`, `total = missing.sum()`; if `total.isnan()`: raise "
        "ValueError; if `total == 0`: return target_probs; otherwise return missing / total.",
    ),
    cases=_residual_cases,
    reference=_residual,
    tolerance=1e-5,
    mistakes=(
        Mistake(
            "p returned instead of the residual",
            _instead_of_residual(lambda p, q: p),
            "Accepted drafts have supplied part of p already. To draw from p again counts that part twice: red and "
            "blue become .65 and .35.",
            section="What goes wrong when the replacement comes from p?",
        ),
        Mistake(
            "p and q swapped",
            _instead_of_residual(lambda p, q: _scaled((q - p).clamp(min=0))),
            "max(0, q - p) is what the draft has too much of. Missing is max(0, p - q).",
        ),
        Mistake(
            "softmax of max(0, p - q)",
            _instead_of_residual(lambda p, q: (p - q).clamp(min=0).softmax(-1)),
            "These are masses, not logits: they only need dividing by their sum. Softmax gives mass to every token, "
            "also to those that have too much.",
            section="Six mistakes, counted",
        ),
        Mistake(
            "softmax of the residual",
            _instead_of_residual(lambda p, q: residual(p, q).softmax(-1)),
            "After dividing by its sum the residual is a law already. Softmax is for logits, and gives mass to every "
            "token, also to those that have too much.",
            section="Six mistakes, counted",
        ),
        Mistake(
            "|p - q| instead of max(0, p - q)",
            _instead_of_residual(lambda p, q: _scaled((p - q).abs())),
            "Where q is above p the token has too much. It needs nothing, so it gets 0, not the size of the surplus.",
        ),
        Mistake(
            "not divided by its sum",
            _instead_of_residual(lambda p, q: (p - q).clamp(min=0)),
            "max(0, p - q) sums to the chance of a refusal, not to 1. Divide by its sum to get a law.",
        ),
        Mistake(
            "NaN is let through",
            _nan_let_through,
            "Every comparison with NaN is False, so a guard such as `total <= 0` lets it pass. Ask `total.isnan()`, "
            "and raise a ValueError.",
            section="Three edges",
        ),
        Mistake(
            "p = q is not handled",
            _instead_of_residual(residual),
            "Where p and q are equal nothing is missing, and the division is 0/0. Return p itself there: rounding can "
            "lead a decoder to this place.",
            section="Three edges",
        ),
    ),
)

# --- 2.3 one exact step


def _step_cases(seed: int) -> Sequence[Case]:
    """First pairs that leave the correction no choice, then laws that are seen whole through a spread of numbers."""

    def case(p: torch.Tensor, q: torch.Tensor, token: int, accept_uniform: float, correct_uniform: Any) -> Case:
        laws = {"target_probs": p, "draft_probs": q, "token": token}
        return Case({**laws, "accept_uniform": accept_uniform, "correct_uniform": correct_uniform})

    red_blue = law(0.5, 0.5), law(0.8, 0.2)
    pair_b = law(0.5, 0.3, 0.2), law(0.2, 0.5, 0.3)
    cases = [case(*red_blue, token, u, v) for token, u in ((0, 0.2), (0, 0.7), (1, 0.9)) for v in (0.1, 0.9)]
    cases += [case(*pair_b, token, u, v) for token in range(3) for u, v in ((0.1, 0.6), (0.62, 0.9), (0.8, 0.3))]
    source = torch.Generator().manual_seed(seed)
    for _ in range(6):
        u, v = torch.rand(2, generator=source, dtype=torch.float64).tolist()
        cases.append(case(*forced(source), int(torch.randint(5, (), generator=source)), u, v))
    order = torch.randperm(4, generator=source)
    p, q = law(0.25, 0.25, 0.25, 0.25)[order], law(0.5, 0.5, 0.0, 0.0)[order]
    token = int(q.argmax())
    cases += [case(p, q, token, u, spread(4)) for u in (0.3, 0.6, 0.9)]
    p, q = law(0.125, 0.25, 0.5, 0.125)[order], law(0.625, 0.125, 0.125, 0.125)[order]
    return [*cases, *(case(p, q, token, 0.9, spread(4)) for token in (int(q.argmax()), int(p.argmax())))]


def _accept_or_correct(
    target_probs: torch.Tensor, draft_probs: torch.Tensor, token: int, accept_uniform: float, correct_uniform: float
) -> int:
    from specdec_ref.acceptance import verify_chain

    uniforms = torch.tensor([[accept_uniform]]).double(), torch.tensor([correct_uniform]).double()
    rows = target_probs.expand(1, 2, -1)
    verdict = verify_chain(rows, torch.tensor([[token]]), draft_probs[None, None], *uniforms)
    return token if verdict.num_accepted[0] == 1 else int(verdict.next_token[0])


Law = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _step(replacement: Law, swapped: bool = False, one_uniform: bool = False) -> Callable[..., int]:
    """Make the answer of a step that replaces by `replacement(p, q)`, or that gets the numbers in another way wrong."""

    def answer(
        target_probs: torch.Tensor, draft_probs: torch.Tensor, token: int, accept_uniform: float, correct_uniform: float
    ) -> int:
        p, q = float(target_probs[token]), float(draft_probs[token])
        if accept_uniform * (p if swapped else q) < (q if swapped else p):
            return token
        return draw(replacement(target_probs, draft_probs), accept_uniform if one_uniform else correct_uniform)

    return answer


def _most_missing(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(p).index_fill(0, residual(p, q).argmax(), 1.0)


def _always_kept(
    target_probs: torch.Tensor, draft_probs: torch.Tensor, token: int, accept_uniform: float, correct_uniform: float
) -> int:
    return token


_FROM_P = "replacement drawn from p instead of the residual"

ACCEPT_OR_CORRECT = Exercise(
    id="2.3",
    function="accept_or_correct",
    title="One exact step",
    points=3,
    difficulty=2,
    minutes=8,
    section="What replaces a refused token?",
    rule="A kept token goes into the text as it is. A refused one is replaced by a draw from the residual, with the "
    "uniform number that was set aside for the correction.",
    hints=(
        "Two cases: the token is kept, or it is replaced. You have written a function for each of the two halves.",
        "`accept_token` decides. If it says no, `draw` a token from `residual(target_probs, draft_probs)`. Which of "
        "the two uniform numbers is for which?",
        "`if accept_token(target_probs, draft_probs, token, accept_uniform): return token`, and otherwise "
        "`return draw(residual(target_probs, draft_probs), correct_uniform)`.",
    ),
    cases=_step_cases,
    reference=_accept_or_correct,
    drive=for_each_uniform,
    uniforms=("accept_uniform", "correct_uniform"),
    mistakes=(
        Mistake(
            "the draft token is always kept",
            _always_kept,
            "Then the text follows q, the draft's law. A token that is drafted too often must be refused some of the "
            "time.",
            section="Red or blue?",
        ),
        Mistake(
            _FROM_P,
            _step(lambda p, q: p),
            "Accepted drafts have supplied part of p already. Drawing from p counts that part twice: red and blue "
            "become .65 and .35. Draw from the residual.",
            section="What goes wrong when the replacement comes from p?",
        ),
        Mistake(
            "replacement drawn from q",
            _step(lambda p, q: q),
            "The draft's law has just been found to give too much of some tokens. Missing is max(0, p - q).",
        ),
        Mistake(
            "replacement drawn from max(0, q - p)",
            _step(lambda p, q: residual(q, p)),
            "max(0, q - p) is what the draft has too much of. Missing is max(0, p - q).",
        ),
        Mistake(
            "softmax of max(0, p - q)",
            _step(lambda p, q: (p - q).clamp(min=0).softmax(-1)),
            "These are masses, not logits: they only need dividing by their sum. Softmax gives mass to every token, "
            "also to those that have too much.",
            section="Six mistakes, counted",
        ),
        Mistake(
            "the token that is missing most is taken, without luck",
            _step(_most_missing),
            "Every token with a residual must get its share, not only the one with the largest. Draw from the residual "
            "with `correct_uniform`.",
        ),
        Mistake(
            "one uniform number used twice",
            _step(residual, one_uniform=True),
            "Once a token was refused, `accept_uniform` is known to be large: it is not uniform any more. The "
            "correction has a number of its own.",
            section="Six mistakes, counted",
        ),
        Mistake(
            "kept with q/p instead of p/q",
            _step(residual, swapped=True),
            "The ratio is target over draft: a token that is drafted too often must be refused some of the time.",
            section="When is a draft token kept?",
        ),
    ),
)

# --- 2.4 how often


def _rate_cases(seed: int) -> Sequence[Case]:
    """One pair of laws, then rows of them; equal laws and laws with nothing in common are among them."""
    pairs = [
        ([0.5, 0.5], [0.8, 0.2]),
        ([0.5, 0.3, 0.2], [0.2, 0.5, 0.3]),
        ([0.5, 0.3, 0.2], [0.98, 0.01, 0.01]),
        ([0.5, 0.3, 0.2], [0.5, 0.3, 0.2]),
        ([0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.3, 0.7]),
    ]
    laws = [(torch.tensor(p), torch.tensor(q)) for p, q in pairs]
    source = torch.Generator().manual_seed(seed)
    for shape in ((4,), (3, 4), (2, 3, 5), (6, 3)):
        weights = torch.rand(2, *shape, generator=source, dtype=torch.float64) ** 2 + 0.01
        p, q = weights / weights.sum(-1, keepdim=True)
        laws.append((p, q))
    return [Case({"target_probs": p, "draft_probs": q}) for p, q in laws]


def _rate(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    from specdec_ref.acceptance import accept_probability

    return (draft_probs * accept_probability(target_probs, draft_probs)).sum(-1)


def _ratio(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (p / q).clamp(max=1)


ACCEPTANCE_RATE = Exercise(
    id="2.4",
    function="acceptance_rate",
    title="How often is a draft kept?",
    points=2,
    difficulty=2,
    minutes=6,
    section="How often is a draft accepted?",
    rule="A token is drafted with q(x) and then kept with min(1, p(x)/q(x)). Together, over all tokens, that is the "
    "sum of min(p, q), which is 1 - TV(p, q).",
    hints=(
        "A token counts as often as it is drafted. How often is it drafted *and* kept?",
        "q(x) times min(1, p(x)/q(x)) is min(q(x), p(x)). Add up over the last dimension only.",
        "`return torch.minimum(target_probs, draft_probs).sum(-1)`.",
    ),
    cases=_rate_cases,
    reference=_rate,
    mistakes=(
        Mistake(
            "whether both favour the same token",
            lambda target_probs, draft_probs: (target_probs.argmax(-1) == draft_probs.argmax(-1)).to(draft_probs.dtype),
            "Acceptance does not ask for the favourite. It is the overlap of two whole laws: a draft that is too sure "
            "of the right token is refused often, and one with another favourite may pass most of the time.",
        ),
        Mistake(
            "the chance that two separate draws agree",
            lambda target_probs, draft_probs: (target_probs * draft_probs).sum(-1),
            "The target draws no token of its own to compare with. It keeps the draft's token with chance "
            "min(1, p/q); so even p = q would not give 1 with this sum.",
        ),
        Mistake(
            "the total variation itself",
            lambda target_probs, draft_probs: (target_probs - draft_probs).abs().sum(-1) / 2,
            "TV is what p and q do not share: the chance of a refusal. The chance to be kept is 1 - TV.",
        ),
        Mistake(
            "1 - sum |p - q|, without the half",
            lambda target_probs, draft_probs: 1 - (target_probs - draft_probs).abs().sum(-1),
            "Mass that moves is counted twice in |p - q|: where it leaves and where it arrives. TV is half of the sum.",
        ),
        Mistake(
            "the mean of min(1, p/q), not weighted with q",
            lambda target_probs, draft_probs: _ratio(target_probs, draft_probs).mean(-1),
            "Tokens are not drafted equally often. Weight each chance with q(x), how often x is drafted.",
        ),
        Mistake(
            "the sum of min(1, p/q), not weighted with q",
            lambda target_probs, draft_probs: _ratio(target_probs, draft_probs).sum(-1),
            "This is no probability, it can exceed 1. Weight each chance with q(x), how often x is drafted.",
        ),
        Mistake(
            "min(1, p/q) weighted with p",
            lambda target_probs, draft_probs: (target_probs * _ratio(target_probs, draft_probs)).sum(-1),
            "The tokens to be judged come from the draft, so a token counts as often as q drafts it.",
        ),
    ),
)

# --- 2.5 a draft without luck


def _argmax_cases(seed: int) -> Sequence[Case]:
    """Laws of two tokens leave no choice; all others are seen whole through a spread of numbers."""

    def case(p: torch.Tensor, q: torch.Tensor, accept_uniform: float, correct_uniform: Any) -> Case:
        numbers = {"accept_uniform": accept_uniform, "correct_uniform": correct_uniform}
        return Case({"target_probs": p, "draft_probs": q, **numbers})

    cases = [case(law(0.4, 0.6), law(0.8, 0.2), u, v) for u in (0.2, 0.45, 0.7) for v in (0.1, 0.9)]
    cases += [case(law(0.7, 0.3), law(0.6, 0.4), u, 0.2) for u in (0.5, 0.8, 0.95)]
    cases += [case(law(0.5, 0.3, 0.2), law(0.2, 0.5, 0.3), u, spread(7)) for u in (0.4, 0.7)]
    cases += [case(law(0.5, 0.25, 0.25), law(0.6, 0.3, 0.1), u, spread(4)) for u in (0.2, 0.7, 0.9)]
    source = torch.Generator().manual_seed(seed)
    for _ in range(2):
        order = torch.randperm(3, generator=source)
        p, q = law(0.25, 0.5625, 0.1875)[order], law(0.5, 0.1, 0.4)[order]  # without token 0: 3/4 and 1/4
        cases.append(case(p, q, float(torch.rand((), generator=source)), spread(4)))
        cases.append(case(p, q, 0.3, spread(4)))
    return cases


def _judge_argmax_draft(
    target_probs: torch.Tensor, draft_probs: torch.Tensor, accept_uniform: float, correct_uniform: float
) -> int:
    from specdec_ref.acceptance import verify_chain

    token = int(draft_probs.argmax())
    uniforms = torch.tensor([[accept_uniform]]).double(), torch.tensor([correct_uniform]).double()
    verdict = verify_chain(target_probs.expand(1, 2, -1), torch.tensor([[token]]), None, *uniforms)
    return token if verdict.num_accepted[0] == 1 else int(verdict.next_token[0])


def _argmax_rule(
    kept: Callable[[torch.Tensor, torch.Tensor, int, float], bool], replacement: Callable[..., torch.Tensor]
) -> Callable[..., int]:
    """Make the answer of code that keeps the draft's favourite x if `kept(p, q, x, u)`, or draws a replacement."""

    def answer(
        target_probs: torch.Tensor, draft_probs: torch.Tensor, accept_uniform: float, correct_uniform: float
    ) -> int:
        token = int(draft_probs.argmax())
        if kept(target_probs, draft_probs, token, accept_uniform):
            return token
        return draw(replacement(target_probs, draft_probs, token), correct_uniform)

    return answer


def _kept_as_sampled(p: torch.Tensor, q: torch.Tensor, x: int, u: float) -> bool:
    return u < float(p[x] / q[x])


def _kept_as_point(p: torch.Tensor, q: torch.Tensor, x: int, u: float) -> bool:
    return u < float(p[x])


def _without(p: torch.Tensor, q: torch.Tensor, x: int) -> torch.Tensor:
    return p.index_fill(0, torch.tensor(x), 0.0)


_POINT = (
    "The token was proposed with certainty, so q is a point mass: 1 for this token and 0 for all others. How sure the "
    "draft felt does not enter."
)

JUDGE_ARGMAX_DRAFT = Exercise(
    id="2.5",
    function="judge_argmax_draft",
    title="A draft without luck",
    points=3,
    difficulty=3,
    minutes=10,
    section="A draft without luck",
    rule="The draft proposes its favourite x with certainty, so q is a point mass. Keep x with chance p(x); otherwise "
    "draw from p without x.",
    hints=(
        "q must be the law the token was really drawn from. With what probability did this drafter propose its "
        "favourite token?",
        "Build that law: zeros, and a 1 at `draft_probs.argmax()`. Then this is a step that you have already written.",
        "`token = int(draft_probs.argmax())`, `point = torch.zeros_like(draft_probs)`, `point[token] = 1`, and "
        "`return accept_or_correct(target_probs, point, token, accept_uniform, correct_uniform)`.",
    ),
    cases=_argmax_cases,
    reference=_judge_argmax_draft,
    drive=for_each_uniform,
    uniforms=("accept_uniform", "correct_uniform"),
    mistakes=(
        Mistake(
            "the draft token is always kept",
            _argmax_rule(lambda p, q, x, u: True, lambda p, q, x: p),
            "Then the text is the draft's favourite, always. The target wants it with p(x) only.",
        ),
        Mistake(
            "argmax draft judged as if it were sampled",
            _argmax_rule(_kept_as_sampled, lambda p, q, x: residual(p, q)),
            f"{_POINT} Judged with the soft q, the pair .5/.3/.2 becomes .4/.6/0.",
        ),
        Mistake(
            "kept only if it is the target's favourite",
            lambda target_probs, draft_probs, accept_uniform, correct_uniform: (
                int(draft_probs.argmax()) if target_probs.argmax() == draft_probs.argmax() else ANY
            ),
            "That is right at temperature 0 only. Otherwise the favourites need not agree: keep the token with chance "
            "p(x), whoever likes it best.",
            section="How often is a draft accepted?",
        ),
        Mistake(
            "the point mass is forgotten in the residual",
            _argmax_rule(_kept_as_point, lambda p, q, x: residual(p, q)),
            f"{_POINT} That holds for the residual too: it is p without the refused token, scaled.",
        ),
        Mistake(
            "the point mass is forgotten in the acceptance",
            _argmax_rule(_kept_as_sampled, _without),
            f"{_POINT} So the chance to be kept is p(x)/1, not p(x) divided by the draft's confidence.",
        ),
        Mistake(
            _FROM_P,
            _argmax_rule(_kept_as_point, lambda p, q, x: p),
            "The refused token has had its chance p(x) already. Drawn from p it gets a second one: draw from p without "
            "it.",
            section="What goes wrong when the replacement comes from p?",
        ),
        Mistake(
            "the draft is ignored",
            _argmax_rule(lambda p, q, x, u: False, lambda p, q, x: p),
            "A plain draw from p has the right law, but then no draft token is ever kept, and nothing is gained: keep "
            "the proposed token with chance p(x).",
        ),
    ),
)

# --- 2.6 a block


def _block_cases(seed: int) -> Sequence[Case]:
    """Laws that leave correction and bonus no choice; at the end both are seen whole through a spread of numbers."""
    source = torch.Generator().manual_seed(seed)

    def case(p: Sequence[torch.Tensor], q: Sequence[torch.Tensor], tokens: Any, accept: Any, correct: Any) -> Case:
        draft = {"draft_probs": torch.stack(list(q)), "draft_tokens": torch.tensor(tokens)}
        numbers = {"accept_uniforms": law(*accept), "correct_uniform": correct}
        return Case({"target_probs": torch.stack(list(p)), **draft, **numbers})

    p, q = law(0.5, 0.3, 0.2), law(0.2, 0.5, 0.3)  # token 1 is kept with .6, token 2 with .67, token 0 always
    bonus = law(0.0, 0.0, 1.0)
    cases = [case([p, bonus], [q], [1], [u], v) for u, v in ((0.2, 0.4), (0.9, 0.6))]
    cases += [
        case([p, p, bonus], [q, q], [1, 2], accept, 0.7) for accept in ([0.1, 0.2], [0.1, 0.9], [0.9, 0.1], [0.9, 0.9])
    ]
    cases.append(case([p, p, p, p, bonus], [q, q, q, q], [1, 1, 2, 0], [0.1, 0.9, 0.1, 0.1], 0.7))
    for _ in range(8):
        width = int(torch.randint(2, 5, (), generator=source))
        rows = [forced(source) for _ in range(width)]
        last = torch.zeros(5, dtype=torch.float64)
        last[int(torch.randint(5, (), generator=source))] = 1
        tokens = torch.randint(5, (width,), generator=source).tolist()
        accept = (torch.rand(width, generator=source, dtype=torch.float64) ** 1.5).tolist()
        correct = float(torch.rand((), generator=source))
        cases.append(case([row[0] for row in rows] + [last], [row[1] for row in rows], tokens, accept, correct))
    p, q = law(0.25, 0.25, 0.25, 0.25), law(0.5, 0.5, 0.0, 0.0)
    last = law(0.25, 0.25, 0.5, 0.0)
    return cases + [case([p, p, last], [q, q], [0, 1], [0.1, u], spread(4)) for u in (0.2, 0.8)]


def _judge_block(
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    draft_tokens: torch.Tensor,
    accept_uniforms: torch.Tensor,
    correct_uniform: float,
) -> list[int]:
    from specdec_ref.acceptance import verify_chain

    rows, tokens, laws = target_probs[None], draft_tokens[None], draft_probs[None]
    verdict = verify_chain(rows, tokens, laws, accept_uniforms[None], torch.tensor([correct_uniform]).double())
    return [*draft_tokens[: int(verdict.num_accepted)].tolist(), int(verdict.next_token)]


def _leading(accepted: Sequence[bool]) -> int:
    return [*accepted, False].index(False)


def _right_row(p: torch.Tensor, q: torch.Tensor, count: int) -> torch.Tensor:
    return p[count] if count == len(q) else residual(p[count], q[count])


def _block_rule(
    count: Callable[[Sequence[bool]], int] = _leading,
    next_law: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor] = _right_row,
    *,
    shift: int = 0,
    first_passes: bool = False,
    one_uniform: bool = False,
    bonus: bool = True,
    skip: bool = False,
) -> Callable[..., list[int]]:
    """Make the answer of a block rule that goes wrong in one way.

    `count` tells how many drafts are taken from the accept mask, `next_law` the law of the token after them. `shift`
    judges draft i by row i + shift, and `skip` takes accepted tokens wherever they stand.
    """

    def answer(
        target_probs: torch.Tensor,
        draft_probs: torch.Tensor,
        draft_tokens: torch.Tensor,
        accept_uniforms: torch.Tensor,
        correct_uniform: float,
    ) -> list[int]:
        tokens = draft_tokens.tolist()
        accepted = []
        for i, token in enumerate(tokens):
            p, q = float(target_probs[i + shift, token]), float(draft_probs[i, token])
            accepted.append(float(accept_uniforms[0 if one_uniform else i]) < p / q or (first_passes and i == 0))
        number = count(accepted)
        kept = [t for t, passed in zip(tokens, accepted, strict=True) if passed] if skip else tokens[:number]
        if number == len(tokens) and not bonus:
            return kept
        return [*kept, draw(next_law(target_probs, draft_probs, number), correct_uniform)]

    return answer


JUDGE_BLOCK = Exercise(
    id="2.6",
    function="judge_block",
    title="A whole block",
    points=4,
    difficulty=4,
    minutes=15,
    section="A block of drafts",
    rule="Row i judges draft i. The leading run of accepted drafts goes into the text. Then comes one token more: the "
    "correction from the residual of the row that refused, or, if none did, the bonus from the last row.",
    hints=(
        "Go through the drafts from the left, and stop at the first one that is refused. How many have passed by then?",
        "Let `count` be the leading run. If `count` is K, draw from `target_probs[K]`. If not, row `count` has refused "
        "its draft: draw from the residual of that row. Both use `correct_uniform`.",
        "`count = 0`; `while count < K and accept_token(target_probs[count], draft_probs[count], "
        "int(draft_tokens[count]), float(accept_uniforms[count])): count += 1`; then pick the law, and "
        "`return draft_tokens[:count].tolist() + [draw(law, correct_uniform)]`.",
    ),
    cases=_block_cases,
    reference=_judge_block,
    drive=for_each_uniform,
    uniforms=("accept_uniforms", "correct_uniform"),
    mistakes=(
        Mistake(
            "the accept mask is summed instead of its leading run",
            _block_rule(sum),
            "Verdicts after the first refusal speak about a text that does not exist, since the refused token is not "
            "in it. The mask [1, 0, 1, 1] is one accepted token, not three.",
        ),
        Mistake(
            "tokens after a refused one are kept",
            _block_rule(sum, skip=True),
            "Their rows were computed with the refused token before them. The text ends with the leading run, and all "
            "that follows is thrown away.",
        ),
        Mistake(
            "draft token i judged by row i + 1",
            _block_rule(shift=1),
            "Row i is the law after the drafts before i: it judges draft i. Row i + 1 knows draft i already and judges "
            "the one after it.",
        ),
        Mistake(
            "the first draft token is not judged",
            _block_rule(first_passes=True),
            "Row 0, the law after the text so far, judges the first draft. Without it a wrong first guess always "
            "passes.",
        ),
        Mistake(
            "one uniform number for all draft tokens",
            _block_rule(one_uniform=True),
            "Every verdict needs luck of its own: draft i is judged with `accept_uniforms[i]`.",
            section="And with real luck: 100,000 draws",
        ),
        Mistake(
            "the correction comes from the last row",
            _block_rule(next_law=lambda p, q, count: p[len(q)]),
            "The last row is the law after all K drafts. After a refusal at place a they are not all in the text: the "
            "correction comes from the residual of row a.",
        ),
        Mistake(
            "no bonus token",
            _block_rule(bonus=False),
            "If all drafts passed, the last row of the same pass gives one token more, for free.",
        ),
        Mistake(
            "the bonus is drawn from a residual",
            _block_rule(next_law=lambda p, q, count: residual(p[count], q[min(count, len(q) - 1)])),
            "Nobody drafted a token at the bonus place, so nothing has been supplied there: draw from plain p, the "
            "last row.",
        ),
        Mistake(
            _FROM_P,
            _block_rule(next_law=lambda p, q, count: p[count]),
            "After a refusal, accepted drafts have supplied part of p already. Draw from the residual of that row; "
            "only the bonus comes from plain p.",
            section="What goes wrong when the replacement comes from p?",
        ),
    ),
)

EXERCISES = [ACCEPT_TOKEN, RESIDUAL, ACCEPT_OR_CORRECT, ACCEPTANCE_RATE, JUDGE_ARGMAX_DRAFT, JUDGE_BLOCK]

QUESTIONS = [
    Question(
        "2.a",
        "The draft gives a token .2 and the target gives it .3. How often is it kept, once it was drafted?",
        (
            Choice(
                "With chance .3", "That is how often the target wants it in all, not how often a drawn one is kept."
            ),
            Choice("Always", "Right: the target wants it more often than it is drafted, so none of it may be lost."),
            Choice("With chance 2/3", "That is q/p. The ratio is p/q, here 1.5, and a chance above 1 means always."),
        ),
        right="b",
    ),
    Question(
        "2.b",
        "A colleague replaces the draft model by one that is much worse. What happens to the text?",
        (
            Choice("Its quality drops a little", "No: the rule gives p whatever q is. Only the acceptance rate drops."),
            Choice(
                "Its law stays the same, and it takes longer",
                "Right: fewer drafts pass, so a round gives fewer tokens. What is written still follows p.",
            ),
            Choice(
                "It stays the same, word for word", "At temperature 0, yes. When sampling, only the law is the same."
            ),
        ),
        right="b",
    ),
    Question(
        "2.c",
        "The verdicts on four drafts are: keep, refuse, keep, keep. Which row gives the next token, and from what law?",
        (
            Choice("Row 4, from plain p: the bonus", "A bonus comes only if no draft was refused."),
            Choice("Row 3, from its residual", "Three drafts were marked keep, but only the leading run counts: one."),
            Choice("Row 1, from its residual", "Right: draft 1 is the first refused one, and row 1 judged it."),
            Choice("Row 1, from plain p", "Right row, wrong law: part of p is supplied by drafts that pass there."),
        ),
        right="c",
    ),
    Question(
        "2.d",
        "Two runs at temperature 1, one plain and one speculative, gave different texts. Is the decoder wrong?",
        (
            Choice(
                "Yes, exact means the same text", "Exact means the same law. Two draws from one law usually differ."
            ),
            Choice(
                "One cannot tell from two texts",
                "Right: compare laws, by enumeration where that is possible and by many draws where it is not.",
            ),
            Choice("No, different texts prove it right", "A wrong rule gives different texts as well."),
        ),
        right="b",
    ),
]
