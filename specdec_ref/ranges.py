"""Numbers that must lie in a range: arrays of float64, or a ValueError with the argument's name and the wrong value."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = np.float64 | NDArray[np.float64]
Integers = np.int64 | NDArray[np.int64]


def between(low: float, value: ArrayLike, high: float, name: str) -> NDArray[np.float64]:
    """Return `value` as an array of finite numbers from `low` to `high`, both allowed."""
    array = np.asarray(value, dtype=np.float64)
    wrong = ~((array >= low) & (array <= high) & np.isfinite(array))
    if wrong.any():
        raise ValueError(f"{name}={array[wrong][0]:g} must be a finite number from {low:g} to {high:g}")
    return array


def positive(value: ArrayLike, name: str) -> NDArray[np.float64]:
    """Return `value` as an array of finite numbers above 0."""
    array = between(0, value, np.inf, name)
    if (array == 0).any():
        raise ValueError(f"{name}=0 must be more than 0")
    return array


def whole(value: ArrayLike, name: str = "num_draft_tokens") -> NDArray[np.float64]:
    """Return `value` as an array of whole numbers >= 0."""
    array = between(0, value, np.inf, name)
    if (array % 1 != 0).any():
        raise ValueError(f"{name}={array[array % 1 != 0][0]:g} must be a whole number")
    return array
