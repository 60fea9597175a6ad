"""Compare what was observed with the reference, and say in words what is wrong: one named mistake where one fits.

This half sees observations only, plain data, never the learner's function or its source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from specdec_course.checks import compare
from specdec_course.checks.exercise import Case, Exercise, Mistake, Verdict
from specdec_course.checks.form import FormProblem, form_problem, missing_return
from specdec_course.checks.observe import observe_case, uses_global_random
from specdec_course.checks.plain import Plain, encode, refuse_malformed, show

NOT_ATTEMPTED, NOT_YET, PASSED = "not attempted", "not yet", "passed"


def judge(exercise: Exercise, seen: Any, seed: int = 0) -> Verdict:
    """Return the verdict on an observation of `specdec_course.checks.observe.observe` with the same seed.

    The observation may come from a process that a learner controls: malformed data is "not yet", never an exception.
    """
    try:
        refuse_malformed_observation(seen)
    except ValueError as error:
        return not_yet(exercise, None, "The answer could not be read.", why=f"{error}.")
    early = _early_verdict(exercise, seen)
    if early:
        return early
    cases = exercise.cases(seed)[: len(seen["cases"])]
    verdict = _Judge(exercise, cases, seen).verdict()
    return replace(verdict, printed=seen["printed"] if verdict.status == NOT_YET else "")


def not_yet(exercise: Exercise, mistake: str | None, headline: str, **parts: Any) -> Verdict:
    """Return a "not yet" that sends the learner to the exercise's section."""
    parts = {"section": exercise.section, **parts}
    return Verdict(exercise.id, NOT_YET, mistake=mistake, headline=headline, **parts)


def refuse_malformed_observation(seen: Any) -> None:
    """Check that an observation has the form that `observe` gives.

    Raises
    ------
    ValueError
        If it has not.
    """
    if not (isinstance(seen, dict) and isinstance(seen.get("cases"), list) and isinstance(seen.get("printed"), str)):
        raise ValueError("the observation is malformed")
    if not isinstance(seen.get("global_random"), bool):
        raise ValueError("the observation is malformed")
    for case in seen["cases"]:
        if not isinstance(case, dict):
            raise ValueError("the observation is malformed")
        refuse_malformed(case.get("value"))
        error = case.get("error")
        good = error is None or (
            isinstance(error, dict)
            and all(isinstance(error.get(key), str) for key in ("type", "message", "line"))
            and isinstance(error.get("line_number"), int)
            and _strings(error.get("bases"))
        )
        if not good or not all(_strings(case.get(key)) for key in ("changed", "drawn")):
            raise ValueError("the observation is malformed")
        if not isinstance(case.get("none"), bool):
            raise ValueError("the observation is malformed")


def _strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _early_verdict(exercise: Exercise, seen: Plain) -> Verdict | None:
    """Judge what needs no case: whether there is a function, may be called, has been written, and comes to an end."""
    name = exercise.function
    if not seen.get("callable"):
        found = str(seen.get("type", "nothing"))
        return not_yet(
            exercise,
            "not a function",
            f"{name} is not a function.",
            seen=f"an object of type {found}",
            expected=f"the function itself: check({exercise.id!r}, {name}), without brackets after its name",
        )
    if seen.get("signature"):
        arguments = ", ".join(exercise.cases(0)[0].arguments)
        return not_yet(
            exercise,
            "wrong signature",
            "Wrong signature: the function cannot be called with the arguments of this exercise.",
            seen=str(seen["signature"]),
            expected=f"{name}({arguments})",
            why="Keep the first line of the function as it was given.",
        )
    errors = [case["error"]["type"] if case["error"] else None for case in seen["cases"]]
    if errors and all(error == "NotImplementedError" for error in errors) and not seen.get("stopped"):
        return Verdict(exercise.id, NOT_ATTEMPTED, headline=f"Write {name}, then run this cell again.")
    if seen.get("stopped"):
        return not_yet(
            exercise,
            "too slow",
            f"Too slow: no answer within {exercise.seconds:g} seconds.",
            seen=f"your function was still running in call {len(errors) + 1}",
            expected="an answer in a moment",
            why="Does a loop never end? Look at its condition, and at what each turn changes.",
        )
    return None


class _Judge:
    """The cases of one check, with the reference's answers to them."""

    def __init__(self, exercise: Exercise, cases: Sequence[Case], seen: Plain) -> None:
        self.exercise, self.cases, self.seen = exercise, cases, seen["cases"]
        self.global_random = seen["global_random"]
        self.wanted = [self._right(case) for case in cases]

    def verdict(self) -> Verdict:
        """Form first, then the named mistakes, then what is simply different."""
        if len(self.cases) < len(self.exercise.cases(0)) or not self.cases:
            return not_yet(self.exercise, None, "The check was not finished.", why="Run it again.")
        form = next(self._form_problems(), None)
        if form:
            place, problem = form
            mistake = self._named(early=True)
            return self._of_mistake(mistake, place) if mistake else self._of_form(problem, place)
        wrong = [place for place in range(len(self.cases)) if not self._right_at(place)]
        if not wrong:
            return Verdict(self.exercise.id, PASSED, self.exercise.points)
        place = min(wrong, key=lambda place: _size(self.cases[place]))
        mistake = self._named()
        if mistake:
            return self._of_mistake(mistake, place)
        if self.seen[wrong[0]]["error"]:
            return self._of_exception(wrong[0])
        if self._uniforms_ignored():
            return self._of_form(_IGNORED, place)
        return self._plain(place)

    def _right(self, case: Case) -> Plain:
        if case.repeats:
            return {"law": self._law(self.exercise.law, case), "error": None, **_QUIET}
        return observe_case(self.exercise, self.exercise.reference, case)

    def _law(self, law: Callable[..., Any] | None, case: Case) -> np.ndarray | None:
        return None if law is None else np.asarray(law(*case.arguments.values()), dtype=np.float64)

    def _right_at(self, place: int) -> bool:
        wanted, seen = self.wanted[place], self.seen[place]
        if self.cases[place].repeats:
            return not seen["error"] and compare.follows(_listed(seen), wanted["law"])
        return compare.same_outcome(wanted, seen, self.exercise.tolerance)

    def _form_problems(self) -> Iterator[tuple[int, FormProblem]]:
        if self.global_random and not uses_global_random(self.exercise, self.exercise.reference, self.cases):
            yield 0, _GLOBAL
        for place, (case, wanted, seen) in enumerate(zip(self.cases, self.wanted, self.seen, strict=True)):
            if seen["none"] and not wanted["none"]:
                yield place, missing_return({"kind": "none"} if case.repeats else wanted["value"])
            if seen["error"] or wanted["error"]:
                continue
            changed = [name for name in seen["changed"] if name not in wanted["changed"]]
            if changed:
                yield place, _changed(changed, case)
            unused = [name for name in wanted["drawn"] if name not in seen["drawn"]]
            if unused:
                yield place, replace(_IGNORED, seen=f"nothing was drawn from {', '.join(unused)}")
            if not case.repeats:
                problem = form_problem(wanted["value"], seen["value"], self.exercise.any_float)
            else:
                items = _listed(seen)["items"]
                problem = form_problem({"kind": "int", "value": 0}, items[0]) if items else _IGNORED
            if problem:
                yield place, problem

    def _named(self, early: bool = False) -> Mistake | None:
        for mistake in self.exercise.mistakes:
            if (mistake.early or not early) and all(self._explains(mistake, p) for p in range(len(self.cases))):
                return mistake
        return None

    def _explains(self, mistake: Mistake, place: int) -> bool:
        case, seen = self.cases[place], self.seen[place]
        if case.repeats:
            law = self._law(mistake.law, case)
            return law is not None and not seen["error"] and compare.explained_by(_listed(seen), law)
        if mistake.answer is None:
            return True
        return compare.same_outcome(observe_case(self.exercise, mistake.answer, case), seen, self.exercise.tolerance)

    def _uniforms_ignored(self) -> bool:
        """Whether the answers differ only where something else than the uniforms does, though they should not."""
        groups: dict[str, list[int]] = {}
        for place, case in enumerate(self.cases):
            rest = {name: value for name, value in case.arguments.items() if name not in self.exercise.uniforms}
            groups.setdefault(str(encode(rest)), []).append(place)
        varied = [group for group in groups.values() if len({str(self._outcome(self.wanted, p)) for p in group}) > 1]
        ignored = all(len({str(self._outcome(self.seen, place)) for place in group}) == 1 for group in varied)
        return bool(self.exercise.uniforms and varied and ignored)

    def _outcome(self, observed: Sequence[Plain], place: int) -> Any:
        return observed[place]["error"] or observed[place].get("value")

    def _of_form(self, problem: FormProblem, place: int) -> Verdict:
        why = (
            f"{problem.why} The arguments were {self._arguments(place)}."
            if not self.cases[place].repeats
            else problem.why
        )
        return not_yet(
            self.exercise,
            problem.name,
            f"{problem.name.capitalize()}.",
            seen=problem.seen,
            expected=problem.expected,
            why=why,
        )

    def _of_mistake(self, mistake: Mistake, place: int) -> Verdict:
        plain = self._plain(place)
        section = mistake.section or self.exercise.section
        headline = f"This looks like: {mistake.name}."
        return replace(plain, mistake=mistake.name, headline=headline, why=mistake.why, section=section)

    def _of_exception(self, place: int) -> Verdict:
        error, plain = self.seen[place]["error"], self._plain(place)
        where = f" in line {error['line_number']}: {error['line']}" if error["line"] else ""
        headline = f"Your own exception: {error['type']}{where}"
        return replace(plain, mistake="own exception", headline=headline, why="")

    def _plain(self, place: int) -> Verdict:
        case, wanted, seen = self.cases[place], self.wanted[place], self.seen[place]
        if case.repeats:
            law = wanted["law"]
            counted = None if seen["error"] else compare.counts(_listed(seen), len(law))
            shares = "values that are no tokens" if counted is None else _shares(counted / max(1, counted.sum()))
            sides = f"shares {shares} in {case.repeats} calls", f"shares {_shares(law)}"
            picture = None
        else:
            sides = _outcome_text(seen), _outcome_text(wanted)
            arguments = {name: encode(value) for name, value in case.arguments.items()}
            picture = {"arguments": arguments, "seen": seen, "expected": wanted}
        return not_yet(
            self.exercise,
            None,
            "The answer differs from the right one.",
            seen=f"{self.exercise.function}({self._arguments(place)}) gave {sides[0]}",
            expected=sides[1],
            why=self.exercise.rule,
            replay=picture,
        )

    def _arguments(self, place: int) -> str:
        return ", ".join(f"{name}={show(encode(value), 160)}" for name, value in self.cases[place].arguments.items())


_QUIET: Plain = {"changed": [], "drawn": [], "none": False}
_GLOBAL = FormProblem(
    "wrong random generator",
    "numbers were drawn from a global random generator",
    "only the numbers that the arguments bring",
    "All luck comes in as an argument; then any round can be replayed, and a text does not depend on what ran before.",
)
_IGNORED = FormProblem(
    "wrong random generator",
    "the same answer whatever the uniform numbers are",
    "an answer that follows the numbers passed in",
    "Luck comes in as an argument: use it, and draw no numbers of your own.",
)


def _changed(names: Sequence[str], case: Case) -> FormProblem:
    name = names[0]
    return FormProblem(
        "changed input",
        f"after the call, {', '.join(names)} no longer held what was passed in",
        f"{name} left as it was: {show(encode(case.arguments[name]), 120)}",
        "Whoever calls your function still needs its arguments. Work on a copy (`x = x.clone()`), or with operations "
        "that return a new tensor; names that end in an underscore, and `x[i] = ...`, write into the original.",
    )


def _listed(seen: Plain) -> Plain:
    return seen["value"] if seen["value"]["kind"] == "list" else {"kind": "list", "items": []}


def _outcome_text(observed: Plain) -> str:
    error = observed["error"]
    return f"{error['type']}: {error['message']}" if error else show(observed["value"])


def _shares(values: Any) -> str:
    return "[" + ", ".join(f"{value:.3f}" for value in list(values)[:12]) + (", ...]" if len(values) > 12 else "]")


def _size(case: Case) -> int:
    """Return how much there is to look at: the number of values; cases with repeats come last."""
    return str(encode(case.arguments)).count(",") + 10**9 * bool(case.repeats)
