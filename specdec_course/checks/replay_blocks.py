"""Replays of stage 03: a mask as a grid of marks, and a block with what each row of logits wants."""

from __future__ import annotations

from typing import Any

import numpy as np

from specdec_course.checks.plain import Plain, array, show
from specdec_course.checks.replay import Picture


def replay_mask(arguments: dict[str, Plain], seen: Plain, expected: Plain) -> Picture:
    """Return the two masks of the first row of the batch that differs, one line for each token of the block."""
    right, theirs = array(expected["value"]).astype(bool), _as_array(seen)
    row = _first_difference(right, theirs)
    length = int(array(arguments["lengths"])[row])
    lines = [f"row {row}, {length} tokens in the cache; # is a slot that the token sees, . one that it does not"]
    for t, line in enumerate(right[row]):
        yours = _marks(theirs[row][t]) if theirs is not None and theirs.shape == right.shape else "another shape"
        lines.append(f"  token at position {length + t}:  right {_marks(line)}   yours {yours}")
    return Picture(lines=lines)


def _marks(line: np.ndarray) -> str:
    return "".join("#" if sees else "." for sees in line)


def replay_verdict(arguments: dict[str, Plain], seen: Plain, expected: Plain) -> Picture:
    """Return the laws over the block of the first row of the batch that differs, and who judges whom."""
    right = [array(item) for item in expected["value"]["items"]]
    theirs = _pair(seen)
    row = 0
    if theirs is not None and all(a.shape == b.shape for a, b in zip(right, theirs, strict=True)):
        row = int(np.argmax((right[0] != theirs[0]) | (right[1] != theirs[1])))
    logits = array(arguments["logits"])[row][:, : arguments["vocab_size"]["value"]]  # [1+K, V]
    drafts = array(arguments["draft_tokens"])[row].astype(int)  # [K]
    laws: list[Any] = []
    lines = [f"row {row} of the batch, real tokens only"]
    for t, scores in enumerate(logits):
        weights = np.exp(scores - scores.max())
        favourite = int(scores.argmax())
        if t < len(drafts):
            word = "agrees" if favourite == drafts[t] else "does not agree"
            lines.append(f"logits row {t} wants {favourite}; draft {t + 1} is {drafts[t]}: {word}")
            laws.append((f"row {t} judges draft {t + 1}", weights / weights.sum(), None, int(drafts[t])))
        else:
            lines.append(f"logits row {t} wants {favourite}: the bonus, if all drafts passed")
            laws.append((f"row {t}: the bonus", weights / weights.sum(), None, None))
    lines += [f"Yours: {_verdict(theirs, row, seen)}.", f"Right: {_verdict(right, row, expected)}."]
    return Picture(laws, lines)


def _verdict(pair: list[np.ndarray] | None, row: int, observed: Plain) -> str:
    if pair is None or any(part.ndim != 1 or len(part) <= row for part in pair):
        error = observed["error"]
        return f"{error['type']}: {error['message']}" if error else show(observed["value"], 120)
    return f"{int(pair[0][row])} accepted, then token {int(pair[1][row])}"


def _pair(observed: Plain) -> list[np.ndarray] | None:
    items = observed["value"].get("items")
    if observed["error"] or not isinstance(items, list) or [item["kind"] for item in items] != ["tensor", "tensor"]:
        return None
    return [array(item) for item in items]


def _as_array(observed: Plain) -> np.ndarray | None:
    return None if observed["error"] or observed["value"]["kind"] != "tensor" else array(observed["value"]).astype(bool)


def _first_difference(right: np.ndarray, theirs: np.ndarray | None) -> int:
    if theirs is None or theirs.shape != right.shape:
        return 0
    return int(np.argmax((right != theirs).reshape(len(right), -1).any(axis=1)))
