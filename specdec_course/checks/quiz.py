"""Concept checks: multiple choice that explains every choice once one was picked."""

from __future__ import annotations

import html
from typing import Any

from specdec_course.checks import find_question, records
from specdec_course.checks.exercise import Question
from specdec_course.checks.front_end import is_live
from specdec_course.errors import CourseError


def quiz(name: str, answer: str | None = None) -> None:
    """Ask a concept check, or answer it in text.

    Parameters
    ----------
    name : str
        The question's id, such as "2.a".
    answer : str, optional
        The letter of a choice: prints whether it is right, and the explanation of every choice.

    Raises
    ------
    CourseError
        If there is no such question or choice.

    Notes
    -----
    Someone who looks at the notebook gets buttons. Where a program executes it, as in a build, and where there are no
    widgets, question and choices are printed.
    """
    question = find_question(name)
    if answer is not None:
        print(explain(question, answer))
        _remember(question, answer)
    elif not (is_live() and _show_widget(question)):
        print(ask(question))


def ask(question: Question) -> str:
    """Return question and choices as text, and how to answer."""
    letters = [letter for letter, _ in question.lettered()]
    choices = [f"  {letter}) {choice.text}" for letter, choice in question.lettered()]
    how = f'Answer in a cell of your own: quiz("{question.id}", "{letters[0]}")'
    return "\n".join([f"{question.id}  {question.text}", *choices, how])


def explain(question: Question, answer: str) -> str:
    """Return whether `answer` is right, and the explanation of every choice.

    Raises
    ------
    CourseError
        If `answer` is not the letter of a choice.
    """
    choices = dict(question.lettered())
    if answer not in choices:
        raise CourseError(f"question {question.id} has no choice {answer!r}: choose one of {', '.join(choices)}")
    lines = [f"{question.id}: {answer} is {'right' if answer == question.right else 'not right'}."]
    for letter, choice in choices.items():
        mark = "✓" if letter == question.right else "✗"
        lines.append(f"  {mark} {letter}) {choice.text}: {choice.explanation}")
    return "\n".join(lines)


def _show_widget(question: Question) -> bool:
    """Show buttons; False where there are no widgets."""
    try:
        import ipywidgets as widgets
        from IPython.display import display
    except ImportError:
        return False
    choices = [(f"{letter})  {choice.text}", letter) for letter, choice in question.lettered()]
    options = widgets.RadioButtons(options=choices, value=None, layout={"width": "max-content"})
    said = widgets.HTML()

    def picked(change: dict[str, Any]) -> None:
        letter = change["new"]
        if letter is not None:
            first, *rest = explain(question, letter).split("\n")
            rows = "".join(f"<li style='list-style:none'>{html.escape(line.strip())}</li>" for line in rest)
            said.value = f"<div role='status'><strong>{html.escape(first)}</strong><ul>{rows}</ul></div>"
            _remember(question, letter)

    options.observe(picked, names="value")
    title = widgets.HTML(f"<strong>{html.escape(question.id)}</strong>  {html.escape(question.text)}")
    display(widgets.VBox([title, options, said]))
    return True


def _remember(question: Question, answer: str) -> None:
    """Keep whether the first answer was right; later ones are for learning."""
    with records.changing() as record:
        record["quizzes"].setdefault(question.id, answer == question.right)
