"""A verdict as text for the terminal and as HTML for a notebook."""

from __future__ import annotations

import html
from collections.abc import Iterator

from specdec_course.checks.exercise import Verdict

_MARKS = {"passed": "✓", "not yet": "✗", "not attempted": "○"}
_COLOURS = {"passed": "#009E73", "not yet": "#D55E00", "not attempted": "#777777"}


def heading(verdict: Verdict, points: int) -> str:
    """Return the first line: mark, exercise, status, points."""
    return f"{_MARKS[verdict.status]} {verdict.exercise} {verdict.status}: {_of(verdict.points, points)}"


def _of(earned: int, points: int) -> str:
    return f"{earned} of {points} point{'' if points == 1 else 's'}"


def parts(verdict: Verdict) -> Iterator[tuple[str, str]]:
    """Yield what there is to say, as (label, text)."""
    if verdict.headline:
        yield "", verdict.headline
    for label, text in (("Seen", verdict.seen), ("Expected", verdict.expected), ("Why", verdict.why)):
        if text:
            yield label, text
    if verdict.section:
        yield "Read again", f"“{verdict.section}” in the lesson of stage {verdict.exercise.split('.')[0].zfill(2)}"
    if verdict.printed:
        yield "Your code printed", verdict.printed.rstrip()


def as_text(verdict: Verdict) -> str:
    """Return all parts as plain text, a line for each."""
    return "\n".join(f"{label}: {text}" if label else text for label, text in parts(verdict))


def as_html(verdict: Verdict, points: int, more: str = "") -> str:
    """Return a box for a notebook; all text is escaped, since some of it is the learner's own."""
    rows = [f"<strong>{html.escape(heading(verdict, points))}</strong>"]
    for label, text in parts(verdict):
        safe = html.escape(text)
        body = f"<pre style='margin:0;white-space:pre-wrap'>{safe}</pre>" if label == "Your code printed" else safe
        rows.append(f"<em>{label}:</em> {body}" if label else body)
    rows += [html.escape(more)] if more else []
    colour = _COLOURS[verdict.status]
    inside = "".join(f"<div style='margin:0.2em 0'>{row}</div>" for row in rows)
    return f"<div role='status' style='border-left:4px solid {colour};padding:0.2em 0.8em'>{inside}</div>"
