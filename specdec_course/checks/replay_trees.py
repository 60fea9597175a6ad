"""Replays of stage 07: the block of a tree as lines of marks, and a walk down a tree, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np

from specdec_course.checks.plain import Plain, array, show
from specdec_course.checks.replay import Picture


def replay_block(arguments: dict[str, Plain], seen: Plain, expected: Plain) -> Picture:
    """Return position and mask of each token of the block, right and yours, one line each."""
    parents = _numbers(arguments["parents"])
    right, theirs = _two_arrays(expected), _two_arrays(seen)
    assert right is not None
    cached = right[1].shape[1] - right[1].shape[0]
    lines = [
        f"{cached} tokens in the cache, parents {parents}; # is a slot that the token sees, . one that it does not"
    ]
    if theirs is None or any(a.shape != b.shape for a, b in zip(right, theirs, strict=True)):
        return Picture(lines=[*lines, f"Yours: {_said(seen)}."])
    for place in range(len(parents) + 1):
        name = "last token" if place == 0 else f"node {place - 1}, child of {_place_name(parents[place - 1])}"
        sides = [f"position {int(side[0][place])} {_marks(side[1][place], cached)}" for side in (right, theirs)]
        same = "" if sides[0] == sides[1] else "   <- here"
        lines.append(f"{name}: right {sides[0]}   yours {sides[1]}{same}")
    return Picture(lines=lines)


def _marks(line: np.ndarray, cached: int) -> str:
    marks = "".join("#" if sees else "." for sees in line)
    return f"{marks[:cached]}|{marks[cached:]}"


def replay_walk(arguments: dict[str, Plain], seen: Plain, expected: Plain) -> Picture:
    """Return the laws along the right walk, the draw at each of them, and both answers."""
    laws, uniforms = array(arguments["target_probs"]), array(arguments["uniforms"])  # [N+1, V] and [D+1]
    tokens, parents = (_numbers(arguments[name]) for name in ("draft_tokens", "parents"))
    nodes = _numbers(expected["value"]["items"][0])
    panels: list[Any] = []
    lines = ["the tree: " + (", ".join(_node(n, tokens, parents) for n in range(len(tokens))) or "no nodes")]
    for depth, place in enumerate([-1, *nodes]):
        law = laws[place + 1]
        token = int(np.searchsorted(law.cumsum(), uniforms[depth] * law.sum(), side="right"))
        token = min(token, len(law) - 1)
        children = [node for node in range(len(tokens)) if parents[node] == place]
        found = [node for node in children if tokens[node] == token]
        what = f"it is node {found[0]}" if found else "it is no child: the next token"
        lines.append(
            f"after {_place_name(place)} (row {place + 1}): u = {uniforms[depth]:.3f} draws {token}; "
            f"children {[tokens[node] for node in children]}; {what}"
        )
        panels.append((f"after {_place_name(place)}", law, None, token))
    return Picture(panels, [*lines, f"Yours: {_said(seen)}.", f"Right: {_said(expected)}."])


def _node(node: int, tokens: list[int], parents: list[int]) -> str:
    return f"node {node} = token {tokens[node]} after {_place_name(parents[node])}"


def _place_name(place: int) -> str:
    return "the text" if place < 0 else f"node {place}"


def _numbers(plain: Plain) -> list[int]:
    return [int(item["value"]) for item in plain["items"]]


def _two_arrays(observed: Plain) -> list[np.ndarray] | None:
    """Return positions and mask, or None where the answer is not two tensors."""
    items = observed["value"].get("items")
    if not isinstance(items, list) or [item["kind"] for item in items] != ["tensor", "tensor"]:
        return None
    return [array(item) for item in items]


def _said(observed: Plain) -> str:
    error = observed["error"]
    return f"{error['type']}: {error['message']}" if error else show(observed["value"], 160)
