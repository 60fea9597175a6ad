"""The example of stage 00: how a check answers. It looks like those of the exercises, and keeps no points or record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec_course.checks.exercise import Case, Exercise, Mistake
from specdec_course.checks.judge import judge
from specdec_course.checks.messages import as_text
from specdec_course.checks.observe import observe
from specdec_course.errors import CourseError


def _cases(seed: int) -> Sequence[Case]:
    del seed
    return [Case({"num_accepted": count, "num_drafted": 5}) for count in (3, 0, 5)]


EXAMPLE = Exercise(
    id="0.1",
    function="tokens_of_a_round",
    title="How many tokens does a round bring?",
    points=0,
    difficulty=1,
    minutes=1,
    section="What does one round do?",
    rule="The text gets the accepted tokens and one of the target's own.",
    hints=("Count the tokens of the figure.", "There is one more than were accepted.", "`return num_accepted + 1`"),
    cases=_cases,
    reference=lambda num_accepted, num_drafted: num_accepted + 1,
    mistakes=(
        Mistake(
            "the target's own token is forgotten",
            lambda num_accepted, num_drafted: num_accepted,
            "After the accepted tokens the target always adds one of its own: a correction, or a bonus if all passed.",
        ),
        Mistake(
            "all drafted tokens counted",
            lambda num_accepted, num_drafted: num_drafted,
            "Refused tokens, and those behind them, are thrown away.",
        ),
    ),
)


def check(name: str, function: Any) -> None:
    """Say what the check of an exercise would say, as text; only for the example, "0.1".

    Raises
    ------
    CourseError
        If another exercise is asked for.
    """
    if name != EXAMPLE.id:
        raise CourseError(f"this check knows only {EXAMPLE.id}, not {name}: use `from specdec_course import check`")
    verdict = judge(EXAMPLE, observe(EXAMPLE, function))
    print(f"{name} {verdict.status}")
    if as_text(verdict):
        print(as_text(verdict))
