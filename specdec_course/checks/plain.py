"""Values as plain data: what a learner's function gave, as JSON can carry it, and nothing that could be executed.

Every value becomes a dict with a `kind`. Data from another process is checked by `refuse_malformed` before it is read.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from specdec_course.checks.exercise import ANY, Made

MAX_ITEMS = 200_000  # numbers in one observation
Plain = dict[str, Any]


class TooLargeError(ValueError):
    """A value holds more numbers than any exercise asks for."""


def encode(value: Any) -> Plain:
    """Return `value` as plain data.

    Raises
    ------
    TooLargeError
        If it holds more than `MAX_ITEMS` numbers or is nested more than 20 deep.
    """
    return _encode(value, [MAX_ITEMS], 20)


def _encode(value: Any, left: list[int], depth: int) -> Plain:
    left[0] -= 1
    if left[0] < 0 or depth < 0:
        raise TooLargeError("the value is larger than any that this exercise asks for")
    if value is None:
        return {"kind": "none"}
    if value is ANY:
        return {"kind": "any"}
    if isinstance(value, bool | np.bool_):
        return {"kind": "bool", "value": bool(value)}
    if isinstance(value, int | np.integer):
        big = abs(int(value)) >= 1 << 63
        return {"kind": "other", "type": "int beyond 64 bits"} if big else {"kind": "int", "value": int(value)}
    if isinstance(value, float | np.floating):
        return {"kind": "float", "value": _number(float(value))}
    if isinstance(value, str):
        return {"kind": "str", "value": value[:2000].encode("utf-8", "replace").decode("utf-8")}
    if isinstance(value, torch.Tensor | np.ndarray):
        return _array(value, left)
    if isinstance(value, Made):
        return {"kind": "made", "text": value.text}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {"kind": kind, "items": [_encode(item, left, depth - 1) for item in value]}
    if isinstance(value, Mapping):
        return {"kind": "dict", "items": {str(name): _encode(value[name], left, depth - 1) for name in value}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        return {"kind": "dict", "items": {name: _encode(item, left, depth - 1) for name, item in fields.items()}}
    return {"kind": "other", "type": type(value).__name__}


def _array(value: Any, left: list[int]) -> Plain:
    if isinstance(value, torch.Tensor):
        dtype, shape, device = str(value.dtype).removeprefix("torch."), list(value.shape), value.device.type
        numel = value.numel()
    else:
        dtype, shape, device, numel = str(value.dtype), list(value.shape), "numpy", value.size
    if numel > MAX_ITEMS:
        return {"kind": "other", "type": f"tensor of shape {tuple(shape)}"}
    left[0] -= numel
    if left[0] < 0:
        raise TooLargeError("the value is larger than any that this exercise asks for")
    if isinstance(value, torch.Tensor):
        flat = torch.zeros(shape) if device == "meta" else value.detach().cpu()  # a meta tensor holds no numbers
        flat = (flat.to_dense() if flat.layout != torch.strided else flat).reshape(-1)
        values = (flat.double() if flat.is_floating_point() else flat).tolist()
    else:
        values = value.reshape(-1).tolist()
    if values and not isinstance(values[0], bool | int | float):
        return {"kind": "other", "type": f"{'array' if device == 'numpy' else 'tensor'} of {dtype}"}
    numbers = [_number(item) if isinstance(item, float) else item for item in values]
    return {"kind": "tensor", "dtype": dtype, "shape": shape, "device": device, "values": numbers}


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else repr(value)  # JSON has no inf and no nan


def numbers(plain: Plain) -> np.ndarray:
    """Return the numbers of a bool, int, float or tensor as a flat float64 array (ids stay exact below 2^53)."""
    values = plain["values"] if plain["kind"] == "tensor" else [plain["value"]]
    return np.array([float(value) for value in values], dtype=np.float64)


def array(plain: Plain) -> np.ndarray:
    """Return the numbers of a tensor in its shape."""
    return numbers(plain).reshape(plain.get("shape", ()))


def refuse_malformed(plain: Any, depth: int = 24) -> None:
    """Check that data from another process has the form that `encode` gives.

    Raises
    ------
    ValueError
        If it has not.
    """
    if not isinstance(plain, dict) or depth < 0:
        raise ValueError("the observation is malformed")
    kind, value = plain.get("kind"), plain.get("value")
    good = {
        "none": True,
        "bool": isinstance(value, bool),
        "int": isinstance(value, int),
        "float": _is_number(value),
        "str": isinstance(value, str),
        "other": isinstance(plain.get("type"), str),
        "made": isinstance(plain.get("text"), str),
    }
    if kind in good:
        if not good[kind]:
            raise ValueError("the observation is malformed")
    elif kind == "tensor":
        _refuse_malformed_tensor(plain)
    elif kind in ("list", "tuple", "dict"):
        items = plain.get("items")
        if not isinstance(items, dict if kind == "dict" else list):
            raise ValueError("the observation is malformed")
        for item in items.values() if isinstance(items, dict) else items:
            refuse_malformed(item, depth - 1)
    else:
        raise ValueError("the observation is malformed")


def _refuse_malformed_tensor(plain: Plain) -> None:
    shape, values = plain.get("shape"), plain.get("values")
    good = (
        isinstance(shape, list)
        and all(type(size) is int and 0 <= size <= MAX_ITEMS for size in shape)
        and isinstance(values, list)
        and math.prod(shape) == len(values)
        and all(_is_number(value) for value in values)
        and isinstance(plain.get("dtype"), str)
        and isinstance(plain.get("device"), str)
    )
    if not good:
        raise ValueError("the observation is malformed")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or value in ("inf", "-inf", "nan")


def show(plain: Plain, limit: int = 400) -> str:
    """Return a value as a learner would write it, cut to `limit` characters."""
    text = _show(plain)
    return text if len(text) <= limit else text[: limit - 4] + " ..."


def _show(plain: Plain) -> str:
    kind = plain["kind"]
    if kind == "none":
        return "None"
    if kind == "any":
        return "anything"
    if kind in ("other", "made"):
        return plain["text"] if kind == "made" else f"an object of type {plain['type']}"
    if kind == "str":
        return repr(plain["value"])
    if kind in ("bool", "int", "float"):
        return _digits(plain["value"])
    if kind == "tensor":
        return f"tensor({_nested(plain['values'], plain['shape'])})"
    if kind == "dict":
        return ", ".join(f"{name} = {_show(item)}" for name, item in plain["items"].items())
    inside = ", ".join(_show(item) for item in plain["items"])
    return f"[{inside}]" if kind == "list" else f"({inside})"


def _nested(values: list[Any], shape: list[int]) -> str:
    if not shape:
        return _digits(values[0])
    if len(values) > 2000:
        return f"[{_digits(values[0])}, ...] of shape {tuple(shape)}"
    step = len(values) // shape[0] if shape[0] else 0
    parts = [_nested(values[place * step : (place + 1) * step], shape[1:]) for place in range(shape[0])]
    return f"[{', '.join(parts)}]"


def _digits(value: Any) -> str:
    if isinstance(value, float) and value != int(value):
        short = f"{value:.4g}"
        return short if float(short) != int(float(short)) else f"{value:.7g}"
    return str(value)
