"""Where output goes: a notebook that someone looks at, a notebook that a program executes, or a terminal."""

from __future__ import annotations

import os
from typing import Any


def in_notebook() -> bool:
    """Whether this runs in a Jupyter kernel."""
    return _kernel() is not None


def is_live() -> bool:
    """Whether someone sits before the notebook, so that a widget can be used.

    JupyterLab and its relatives send the cell's id with each request; programs that execute notebooks (nbclient, nbval,
    nbgrader) do not. `SPECDEC_WIDGETS` set to 1 or 0 decides otherwise. What a build stores must not depend on who
    looks, so without a live front end everything is shown as text and figures.
    """
    chosen = os.environ.get("SPECDEC_WIDGETS")
    if chosen in ("0", "1"):
        return chosen == "1"
    kernel = _kernel()
    if kernel is None:
        return False
    metadata = kernel.get_parent().get("metadata", {})
    return "cellId" in metadata


def show_html(html: str, text: str) -> None:
    """Display `html` in a notebook, with `text` for those who cannot show it; print `text` elsewhere."""
    if in_notebook():
        from IPython.display import display

        display({"text/html": html, "text/plain": text}, raw=True)
    else:
        print(text)


def _kernel() -> Any:
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    return getattr(get_ipython(), "kernel", None)
