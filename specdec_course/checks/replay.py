"""Draw the smallest round that a check failed on: p, q, draft and uniforms, and what you and the reference did."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specdec_course.checks import find_exercise
from specdec_course.checks.exercise import Exercise, Verdict
from specdec_course.checks.plain import Plain, array, show

_P, _Q = ("target_probs", "p"), ("draft_probs", "q")
_TOKENS = ("token", "draft_token", "draft_tokens", "tokens")
_ACCEPT = ("uniform", "accept_uniform", "accept_uniforms", "uniforms")
_MAX_ROWS, _MAX_VOCAB = 6, 24


@dataclass(frozen=True)
class Picture:
    """What `replay` draws.

    Parameters
    ----------
    laws : sequence of (title, p, q or None, token or None)
        One panel each: bars of p and q over the tokens, the drafted token marked.
    lines : sequence of str
        Said below: the uniforms, what you did, what is right.
    """

    laws: Sequence[tuple[str, np.ndarray, np.ndarray | None, int | None]] = ()
    lines: Sequence[str] = field(default_factory=list)


def replay() -> None:
    """Draw the smallest failing round of the last check beside what the reference did; say so if there is none."""
    from specdec_course.checks.notebook import last_failure

    verdict = last_failure[0] if last_failure else None
    if verdict is None or verdict.replay is None:
        print("There is nothing to replay: the last check did not fail on a round that can be drawn.")
        return
    exercise = find_exercise(verdict.exercise)
    picture = picture_of(exercise, verdict)
    if not picture.laws:
        print("\n".join(picture.lines))
        return
    from specdec_course.figures import show as show_figure

    title = f"{exercise.id} {exercise.title}"
    show_figure(draw(picture, title), alt=f"{title}. " + " ".join(picture.lines))


def picture_of(exercise: Exercise, verdict: Verdict) -> Picture:
    """Return the picture of a failed verdict: the exercise's own, or one made from the names of its arguments."""
    assert verdict.replay is not None
    arguments, seen, expected = (verdict.replay[name] for name in ("arguments", "seen", "expected"))
    if exercise.replay is not None:
        return exercise.replay(arguments, seen, expected)
    return default_picture(exercise.function, arguments, seen, expected)


def default_picture(function: str, arguments: dict[str, Plain], seen: Plain, expected: Plain) -> Picture:
    """Return a picture of arguments that carry the names of the course's notation.

    Parameters
    ----------
    function : str
        Its name.
    arguments : dict
        By name, as plain data. Laws may be [V], [K, V] or [B, K, V]; of a batch, row 0 is drawn.
    seen, expected : dict
        Case observations: what the learner's function did and what the reference does.
    """
    p, q = (_rows(_pick(arguments, names)) for names in (_P, _Q))
    tokens, accept = (_flat(_pick(arguments, names)) for names in (_TOKENS, _ACCEPT))
    laws, lines = [], []
    for row in range(min(len(p), _MAX_ROWS)):
        if p[row].size > _MAX_VOCAB:
            break
        q_row = q[row] if row < len(q) else None
        token = int(tokens[row]) if row < len(tokens) and 0 <= tokens[row] < p[row].size else None
        name = f"draft token {row}" if token is not None else "after the draft"
        laws.append((name if len(p) > 1 else "", p[row], q_row, token))
        line = _ratio_line(p[row], q_row, token, float(accept[row]) if row < len(accept) else None)
        lines += [f"draft token {row}: {line}" if line and len(tokens) > 1 else line] if line else []
    used = (*_P, *_Q, *_TOKENS, *_ACCEPT) if laws else ()
    rest = ", ".join(f"{name} = {show(value, 120)}" for name, value in arguments.items() if name not in used)
    lines += [rest] if rest else []
    lines += [f"{function} gave {_outcome(seen)}.", f"Right is {_outcome(expected)}."]
    return Picture(laws, lines)


def _ratio_line(p: np.ndarray, q: np.ndarray | None, token: int | None, uniform: float | None) -> str:
    if token is None or uniform is None:
        return "" if uniform is None else f"u = {uniform:.4g}"
    if q is None:
        return f"u = {uniform:.4g}, p({token}) = {p[token]:.4g}"
    if q[token] <= 0:
        return f"u = {uniform:.4g}, but q({token}) = {q[token]:.4g}: token {token} cannot have been drawn from q"
    ratio = p[token] / q[token]
    side = "below: keep" if uniform < ratio else "not below: refuse"
    return f"u = {uniform:.4g}, p({token})/q({token}) = {p[token]:.4g}/{q[token]:.4g} = {ratio:.4g}; u is {side}"


def _outcome(observed: Plain) -> str:
    error, value = observed["error"], observed["value"]
    if error:
        return f"{error['type']} ({error['message']})"
    if value["kind"] == "bool":
        return f"{show(value)} ({'kept' if value['value'] else 'refused'})"
    return show(value, 200)


def _pick(arguments: dict[str, Plain], names: Sequence[str]) -> Plain | None:
    return next((arguments[name] for name in names if name in arguments), None)


def _rows(value: Plain | None) -> np.ndarray:
    """Return laws as [K, V]; of a batch the first row."""
    if value is None or value["kind"] != "tensor" or not value["shape"]:
        return np.zeros((0, 0))
    laws = array(value)
    while laws.ndim > 2:
        laws = laws[0]
    return laws.reshape(-1, laws.shape[-1])


def _flat(value: Plain | None) -> np.ndarray:
    """Return tokens or uniforms as [K]; of a batch the first row."""
    if value is None:
        return np.zeros(0)
    if value["kind"] in ("int", "float"):
        return np.array([float(value["value"])])
    if value["kind"] in ("list", "tuple"):
        items = [item["value"] for item in value["items"] if item["kind"] in ("int", "float")]
        return np.array(items, dtype=np.float64)
    if value["kind"] != "tensor":
        return np.zeros(0)
    found = array(value)
    while found.ndim > 1:
        found = found[0]
    return found.reshape(-1)


def draw(picture: Picture, title: str) -> Any:
    """Return the matplotlib figure of a picture: p as filled, q as hatched bars, the drafted token named below them."""
    from matplotlib import pyplot as plt

    text = "\n".join(part for line in picture.lines for part in textwrap.wrap(line, 88))
    width = max(5.5, 2.6 * len(picture.laws))
    figure, axes = plt.subplots(1, len(picture.laws), figsize=(width, 2.8), sharey=True, squeeze=False)
    for place, (name, p, q, token) in enumerate(picture.laws):
        panel = axes[0][place]
        ids = np.arange(len(p))
        panel.bar(ids - 0.2, p, 0.38, color="#0072B2", label="p, the target")
        if q is not None:
            panel.bar(ids + 0.2, q, 0.38, color="#E69F00", hatch="//", edgecolor="white", label="q, the draft")
        marks = [f"{one}\ndrafted" if one == token else str(one) for one in ids]
        panel.set_xticks(ids, marks, fontsize=8)
        panel.set_title(name, fontsize=10)
    axes[0][0].set_ylabel("probability")
    figure.suptitle(title, y=1.12, fontsize=11)
    figure.legend(
        *axes[0][0].get_legend_handles_labels(), fontsize=8, loc="center", bbox_to_anchor=(0.5, 1.02), ncols=2
    )
    figure.text(0.06, -0.06, text, va="top", fontsize=10)
    return figure
