"""Stage 02, accept or correct: its exercises, their cases and the mistakes people make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from specdec_course.checks.exercise import ANY, Case, Choice, Exercise, Mistake, Question


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

EXERCISES = [ACCEPT_TOKEN]

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
    )
]
