"""The form of an answer, in one place, before any number is compared: is it there, of the right type and shape."""

from __future__ import annotations

from dataclasses import dataclass

from specdec_course.checks.plain import Plain, show

FORM_MISTAKES = (
    "not a function",
    "wrong signature",
    "too slow",
    "missing return",
    "changed input",
    "wrong random generator",
    "wrong type",
    "wrong shape",
    "wrong dtype",
    "wrong device",
    "own exception",
)
"""Names that mistakes of form have, in every exercise."""

_CATEGORY = {"bool": "bool", "int": "int", "float": "float"}
_WORDS = {"bool": "True or False", "int": "a whole number", "float": "a number", "str": "a text", "none": "None"}


@dataclass(frozen=True)
class FormProblem:
    """A mistake of form with its two sides in words."""

    name: str
    seen: str
    expected: str
    why: str


def form_problem(expected: Plain, seen: Plain, any_float: bool = False, place: str = "") -> FormProblem | None:
    """Return what is wrong with the form of `seen`, taking `expected` as the pattern, or None.

    No broadcasting: a tensor of another shape is another answer, even where its numbers could be stretched to fit.
    """
    kind = expected["kind"]
    if kind == "any":
        return None
    if seen["kind"] == "none" and kind != "none":
        return missing_return(expected, place)
    if kind in _CATEGORY:
        return _scalar_problem(expected, seen, place)
    if kind == "tensor":
        return _tensor_problem(expected, seen, any_float, place)
    if kind in ("list", "tuple"):
        same_length = len(expected["items"]) == len(seen.get("items", []))
        if seen["kind"] not in ("list", "tuple") or (kind == "tuple" and not same_length):
            return _wrong_type(expected, seen, place)
        inside = " in item {}" + place
        pairs = enumerate(zip(expected["items"], seen["items"], strict=False))
        return _first(form_problem(a, b, any_float, inside.format(i)) for i, (a, b) in pairs)
    if kind == "dict":
        if seen["kind"] != "dict" or not set(expected["items"]) <= set(seen["items"]):
            return _wrong_type(expected, seen, place)
        names = expected["items"]
        return _first(form_problem(names[n], seen["items"][n], any_float, f" in {n}{place}") for n in names)
    return None if seen["kind"] == kind else _wrong_type(expected, seen, place)


def missing_return(expected: Plain, place: str = "") -> FormProblem:
    """Return the problem of a function that gave None; where `expected` is None too, a value of any kind is wanted."""
    why = "The function ends without handing back a value: is a `return` missing, perhaps in one branch?"
    wanted = "a value" if expected["kind"] == "none" else describe(expected)
    return FormProblem("missing return", f"None{place}", wanted, why)


def category(dtype: str) -> str:
    """Return "bool", "int", "float" or "complex" for the name of a dtype."""
    for name in ("bool", "uint", "int", "float", "complex"):
        if dtype.startswith((name, "b" + name)):
            return "int" if name == "uint" else name
    return dtype


def _scalar_problem(expected: Plain, seen: Plain, place: str) -> FormProblem | None:
    """Judge where a single value is wanted; a 0-d tensor of the right category will do."""
    wanted = expected["kind"]
    if seen["kind"] == "tensor":
        if seen["shape"]:
            why = "One value is wanted, not a tensor of them: check which entry you picked."
            return FormProblem("wrong shape", describe(seen) + place, describe(expected), why)
        got = category(seen["dtype"])
    else:
        got = seen["kind"]
    fits = got == wanted or (wanted == "float" and got == "int")
    return None if fits else _wrong_type(expected, seen, place)


def _tensor_problem(expected: Plain, seen: Plain, any_float: bool, place: str) -> FormProblem | None:
    if seen["kind"] in _CATEGORY and not expected["shape"]:
        return None if seen["kind"] == category(expected["dtype"]) else _wrong_type(expected, seen, place)
    if seen["kind"] != "tensor":
        return _wrong_type(expected, seen, place)
    sides = describe(seen) + place, describe(expected)
    if seen["shape"] != expected["shape"]:
        return FormProblem("wrong shape", *sides, "Every dimension must agree; nothing is stretched to fit.")
    if seen["device"] != expected["device"]:
        why = "The answer belongs on the device of the inputs; no copy to another device or to numpy is needed."
        return FormProblem("wrong device", *sides, why)
    same_category = category(seen["dtype"]) == category(expected["dtype"])
    if seen["dtype"] != expected["dtype"] and not (same_category and any_float):
        why = "Keep the dtype of the inputs, and convert only where the task says so."
        return FormProblem("wrong dtype", *sides, why)
    return None


def _wrong_type(expected: Plain, seen: Plain, place: str) -> FormProblem:
    why = "The kind of value is another one than the task asks for."
    return FormProblem("wrong type", describe(seen) + place, describe(expected), why)


def describe(plain: Plain) -> str:
    """Return the form of a value in words: "a tensor of shape (3,), float32, on cpu"."""
    kind = plain["kind"]
    if kind == "tensor":
        size = f"a tensor of shape {tuple(plain['shape'])}, {plain['dtype']}"
        return (
            size.replace("a tensor", "a numpy array") if plain["device"] == "numpy" else f"{size}, on {plain['device']}"
        )
    if kind in ("list", "tuple"):
        return f"a {kind} of {len(plain['items'])}"
    if kind == "dict":
        return f"values called {', '.join(plain['items'])}"
    if kind == "none":
        return "None"
    return f"{_WORDS[kind]} (here {show(plain, 60)})" if kind in _WORDS else show(plain)


def _first(problems: object) -> FormProblem | None:
    return next((problem for problem in problems if problem is not None), None)  # type: ignore[attr-defined]
