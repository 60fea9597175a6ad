"""Whether two observations say the same: numbers within a tolerance, counts by chi-square."""

from __future__ import annotations

import numpy as np
from scipy import stats

from specdec_course.checks.form import form_problem
from specdec_course.checks.plain import Plain, numbers

FALSE_ALARM = 1e-7  # chance that a right answer fails one case with repeats, over all luck
_EXPLAINED = 1e-6  # counts with a smaller p-value than this are not said to follow a mistaken law


def same(expected: Plain, seen: Plain, tolerance: float | None = None) -> bool:
    """Whether `seen` is `expected` up to rounding. Forms must fit; infinities and NaN equal themselves."""
    kind = expected["kind"]
    if kind == "any":
        return True
    if kind in ("bool", "int", "float", "tensor"):
        if form_problem(expected, seen, any_float=True):
            return False
        if kind == seen["kind"] == "int" and tolerance is None:  # tokens and counts: most of what is compared
            return expected["value"] == seen["value"]
        limit = tolerance if tolerance is not None else _tolerance(expected, seen)
        return bool(np.allclose(numbers(seen), numbers(expected), rtol=limit, atol=limit, equal_nan=True))
    if kind in ("list", "tuple"):
        return (
            seen["kind"] in ("list", "tuple")
            and len(expected["items"]) == len(seen["items"])
            and all(same(a, b, tolerance) for a, b in zip(expected["items"], seen["items"], strict=True))
        )
    if kind == "dict":
        return seen["kind"] == "dict" and all(
            name in seen["items"] and same(item, seen["items"][name], tolerance)
            for name, item in expected["items"].items()
        )
    return expected == seen


def _tolerance(expected: Plain, seen: Plain) -> float:
    names = [expected.get("dtype", "float64"), seen.get("dtype", "float64")]
    if any(name in ("float16", "bfloat16") for name in names):
        return 1e-2
    return 1e-5 if "float32" in names else 1e-9


def same_outcome(expected: Plain, seen: Plain, tolerance: float | None = None) -> bool:
    """Whether two case observations agree: the same value, or an exception of the same kind."""
    if expected["value"]["kind"] == "any":
        return True
    if expected["error"] or seen["error"]:
        both = expected["error"] and seen["error"]
        return bool(both) and expected["error"]["type"] in seen["error"]["bases"]
    return same(expected["value"], seen["value"], tolerance)


def counts(values: Plain, size: int) -> np.ndarray | None:
    """Count the tokens in a list of `size` possible values; None where one is no such token."""
    found = [numbers(item) for item in values["items"]]
    if any(item.size != 1 or not item[0].is_integer() or not 0 <= item[0] < size for item in found):
        return None
    return np.bincount(np.array(found, dtype=np.int64).reshape(-1), minlength=size)


def p_value(counted: np.ndarray, law: np.ndarray) -> float:
    """Chance of counts at least as far from `law` as these (chi-square; cells that expect under 5 are pooled)."""
    if counted[law <= 0].any():
        return 0.0
    counted, expected = counted[law > 0], law[law > 0] / law.sum() * counted.sum()
    rare = expected < 5
    if rare.sum() > 1:
        counted = np.append(counted[~rare], counted[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    if len(expected) < 2:
        return 1.0
    return float(stats.chi2.sf(((counted - expected) ** 2 / expected).sum(), len(expected) - 1))


def follows(values: Plain, law: np.ndarray) -> bool:
    """Whether counted values follow `law`; wrong for a right sampler with chance `FALSE_ALARM`."""
    counted = counts(values, len(law))
    return counted is not None and p_value(counted, law) > FALSE_ALARM


def explained_by(values: Plain, law: np.ndarray) -> bool:
    """Whether a mistaken law explains counted values well."""
    counted = counts(values, len(law))
    return counted is not None and p_value(counted, law) > _EXPLAINED
