"""What the author of a stage writes: exercises with their cases, the reference's answer and the named mistakes.

Nothing here imports `specdec_ref`: a learner's code is observed in a process that cannot. The reference comes in where
an observation is judged, inside the functions `reference` and `Mistake.answer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

ANY: Any = type("Any value", (), {})()
"""What `Mistake.answer` returns where this mistake may give any value, or any exception."""


@dataclass(frozen=True)
class Made:
    """An argument that is made anew for each call, such as a model with a cache. Learners are shown `text`."""

    make: Callable[[], Any]
    text: str


def generator(seed: int) -> Made:
    """Return a `torch.Generator` as an argument; whether the learner's code draws from it is observed."""
    return Made(lambda: torch.Generator().manual_seed(seed), f"a generator with seed {seed}")


class Luck:
    """Uniform numbers in [0, 1), new ones for each call: a float, or a float64 tensor where a shape is asked for."""

    def __init__(self, seed: int, shape: tuple[int, ...] | None) -> None:
        self.source, self.shape = torch.Generator().manual_seed(seed), shape

    def draw(self) -> Any:
        """Return the next number or tensor."""
        values = torch.rand(self.shape or (), generator=self.source, dtype=torch.float64)
        return values.item() if self.shape is None else values


def luck(seed: int, shape: tuple[int, ...] | None = None) -> Made:
    """Return an argument of fresh uniform numbers, for cases with repeats."""
    return Made(lambda: Luck(seed, shape), "uniform numbers, new ones for each call")


@dataclass(frozen=True)
class Case:
    """One call of the learner's function.

    Parameters
    ----------
    arguments : dict
        In the order of the signature, by name: numbers, text, tensors, lists and tuples of them, or `Made`.
        The names of DESIGN.md (`target_probs`, `draft_probs`, `token`, `uniform`, ...) let `replay` draw them.
    repeats : int
        0 is one call, and its value is compared. A positive number makes so many calls and compares the counts of
        their values with `Exercise.law`; a `Made` argument is then made once, for all of them.
    """

    arguments: Mapping[str, Any]
    repeats: int = 0

    def __getitem__(self, name: str) -> Any:
        """Return the argument called `name`."""
        return self.arguments[name]


@dataclass(frozen=True)
class Mistake:
    """A wrong answer that real people give, and what they should be told.

    Parameters
    ----------
    name : str
        A short name, one for each mistake: "resampled from p instead of the residual".
    answer : callable
        Takes the arguments of the learner's function and gives what code with this mistake gives, exceptions included;
        `ANY` where that is not determined. The mistake is named where it explains every case.
    why : str
        One or two sentences: what goes wrong with it, and what to do instead.
    law : callable, optional
        The same for cases with repeats: the law [V] of the values.
    section : str, optional
        The lesson section to reread, if not the exercise's.
    early : bool
        Try this mistake even where shape or type are wrong already.
    """

    name: str
    answer: Callable[..., Any] | None
    why: str
    law: Callable[..., torch.Tensor] | None = None
    section: str = ""
    early: bool = False


@dataclass(frozen=True)
class Exercise:
    """One graded exercise.

    Parameters
    ----------
    id : str
        Stage and number: "2.1".
    function : str
        The name of the function that the learner writes.
    title : str
    points : int
        All or nothing.
    difficulty : int
        1 to 5.
    minutes : int
    section : str
        The heading of the lesson to reread.
    rule : str
        What is right and why, in one or two sentences; shown where no named mistake explains an answer.
    hints : three strings
        Each says more than the one before; the last nearly gives the answer.
    cases : callable
        From a seed to cases, the same for the same seed; the smallest and plainest first. It never imports
        `specdec_ref`.
    reference : callable
        Takes the arguments of the learner's function and answers with `specdec_ref`, imported inside. Its value also
        fixes type, shape and dtype of a right answer; where it raises, so must the learner.
    mistakes : sequence of Mistake
        The first that explains every case is named: special ones before general ones.
    drive : callable, optional
        From (function, arguments) to what is compared; default: calls it and, where it is a generator, lists it.
        Several calls, a class, a model that counts its passes: all go here. It never imports `specdec_ref`.
    law : callable, optional
        From the arguments to the right law [V] of the values, for cases with repeats.
    uniforms : sequence of str
        The arguments that hold the only luck. Code that ignores them is told so.
    tolerance : float
        Absolute and relative, for floats; default 1e-5 for float32 and 1e-9 for float64 and Python's floats.
    any_float : bool
        Accept float32 as well as float64.
    seconds : float
        Of a processor, for all cases together.
    replay : callable, optional
        From (arguments, seen, expected) to a `specdec_course.checks.replay.Picture`, where the default is not good.
    """

    id: str
    function: str
    title: str
    points: int
    difficulty: int
    minutes: int
    section: str
    rule: str
    hints: tuple[str, str, str]
    cases: Callable[[int], Sequence[Case]]
    reference: Callable[..., Any]
    mistakes: Sequence[Mistake] = ()
    drive: Callable[[Callable[..., Any], dict[str, Any]], Any] | None = None
    law: Callable[..., torch.Tensor] | None = None
    uniforms: Sequence[str] = ()
    tolerance: float | None = None
    any_float: bool = False
    seconds: float = 4.0
    replay: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        """Refuse an exercise that the map or the messages could not show."""
        if not 1 <= self.difficulty <= 5:
            raise ValueError(f"exercise {self.id}: difficulty={self.difficulty} must be 1 to 5")
        if len(self.hints) != 3:
            raise ValueError(f"exercise {self.id}: hints has {len(self.hints)} entries, 3 are needed")
        names = [mistake.name for mistake in self.mistakes]
        if len(set(names)) < len(names):
            raise ValueError(f"exercise {self.id}: two mistakes have the same name")

    @property
    def stage(self) -> str:
        """The stage's number with two digits: "02"."""
        return stage_of(self.id)


@dataclass(frozen=True)
class Choice:
    """One answer of a concept check, with the explanation shown once an answer was picked."""

    text: str
    explanation: str


@dataclass(frozen=True)
class Question:
    """A concept check.

    Parameters
    ----------
    id : str
        Stage and letter: "2.a".
    text : str
        The question.
    choices : sequence of Choice
        Shown as a, b, c, ...
    right : str
        The letter of the right one.
    """

    id: str
    text: str
    choices: Sequence[Choice]
    right: str

    def __post_init__(self) -> None:
        """Refuse a right answer that is not among the choices."""
        if self.right not in dict(self.lettered()):
            raise ValueError(f"question {self.id}: right={self.right!r} is not the letter of a choice")

    def lettered(self) -> Iterator[tuple[str, Choice]]:
        """Yield the choices with their letters."""
        yield from zip("abcdefgh", self.choices, strict=False)


@dataclass(frozen=True)
class Verdict:
    """What a check says.

    Attributes
    ----------
    exercise : str
        Its id.
    status : str
        "passed", "not yet" or "not attempted".
    points : int
        Earned.
    mistake : str or None
        The one named mistake, of the exercise or of form (`specdec_course.checks.form`); None where none fits.
    headline, seen, expected, why, section, printed : str
        Parts of the message; empty where there is nothing to say.
    replay : dict or None
        The smallest failing round: arguments, seen and expected, as plain data.
    """

    exercise: str
    status: str
    points: int = 0
    mistake: str | None = None
    headline: str = ""
    seen: str = ""
    expected: str = ""
    why: str = ""
    section: str = ""
    printed: str = ""
    replay: dict[str, Any] | None = field(default=None, repr=False)

    @property
    def message(self) -> str:
        """All parts as plain text."""
        from specdec_course.checks.messages import as_text

        return as_text(self)


def stage_of(name: str) -> str:
    """Return the stage of an exercise or question with two digits: "02" for "2.1" and "2.a"."""
    return name.split(".")[0].zfill(2)
