"""Things to drag and click in the lessons. Each has a static figure with a text for readers without a kernel."""

from __future__ import annotations

from IPython.display import display
from ipywidgets import Widget


def show_widget(widget: Widget, static: str, alt: str) -> None:
    """Display `widget`; where widgets cannot run, `static` is shown, or `alt` where there is only text.

    All three go into one output, and each front end takes the richest it knows. A stored notebook keeps the last two.

    Parameters
    ----------
    widget : Widget
        What to show with a kernel.
    static : str
        HTML, as `figures.as_html` gives it.
    alt : str
        The same in words.
    """
    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    display({"application/vnd.jupyter.widget-view+json": view, "text/html": static, "text/plain": alt}, raw=True)
