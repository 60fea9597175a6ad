"""Replay of stage 04: the rounds of a loop side by side, up to the first that differs."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from specdec_course.checks.plain import Plain, show
from specdec_course.checks.replay import Picture

_NOTHING = "no such round"


def replay_rounds(arguments: dict[str, Plain], seen: Plain, expected: Plain) -> Picture:
    """Return the rounds of a run as lines, right and yours, and what both caches held, to the first difference."""
    settings = ", ".join(f"{name}={show(value)}" for name, value in arguments.items() if value["kind"] != "made")
    lines = [settings]
    if seen["error"]:
        lines.append(f"Yours stopped with {seen['error']['type']}: {seen['error']['message']}")
    right, yours = _rounds(expected), _rounds(seen)
    for number, (ours, theirs) in enumerate(zip_longest(right, yours, fillvalue=_NOTHING), 1):
        lines += [f"round {number}", f"   right  {ours}", f"   yours  {theirs}"]
        if ours != theirs:
            lines[-3] += ": here they part"
            break
    return Picture(lines=lines)


def _rounds(observed: Plain) -> list[str]:
    """Return one line for each pass of the target: what it read, what both caches held, and what the text got."""
    items = observed["value"].get("items", {})
    if not isinstance(items, dict) or "rounds" not in items:
        return []
    passes, held, rounds = (items[name]["items"] for name in ("target held, then read", _DRAFT_HELD, "rounds"))
    lines = []
    for number, one in enumerate(passes):
        before, block = (show(part) for part in one["items"])
        draft = show(held[number]) if number < len(held) else "?"
        line = f"caches before: target {before}, draft {draft}; the target read {block}"
        lines.append(f"{line}; {_got(rounds[number])}" if number < len(rounds) else line)
    return lines


def _got(one: dict[str, Any]) -> str:
    parts = one.get("items")
    if not isinstance(parts, list) or len(parts) != 3:
        return f"yielded {show(one)}"
    new, drafted, accepted = (show(part) for part in parts)
    return f"accepted {accepted} of {drafted}, the text got {new}"


_DRAFT_HELD = "draft held before drafting"
