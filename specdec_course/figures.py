"""Figures for the lessons: always with a text for those who do not see them, never dependent on colour alone."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence

from IPython.display import display
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

# Colours that stay apart for colour-blind eyes (Okabe and Ito), each with a hatch of its own.
LOOKS = {
    "accepted": ("#009E73", "", "accepted"),
    "correction": ("#E69F00", "//", "correction"),
    "bonus": ("#56B4E9", "..", "bonus"),
    "refused": ("#D55E00", "xx", "refused"),
    "discarded": ("#BBBBBB", "--", "thrown away"),
}


def show(figure: Figure, alt: str) -> None:
    """Display `figure` as a PNG that carries `alt` as its text, and close it.

    As HTML, because JupyterLab gives a plain PNG no alternative text.
    """
    display({"text/html": as_html(figure, alt), "text/plain": alt}, raw=True)


def as_html(figure: Figure, alt: str) -> str:
    """Return `figure` as an HTML image that carries `alt` as its text, and close it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight")
    plt.close(figure)
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f'<img alt="{html.escape(alt)}" style="max-width: 100%" src="data:image/png;base64,{data}">'


def draw_round(draft: Sequence[str], num_accepted: int, next_token: str, title: str) -> Figure:
    """Draw one round: what was drafted above, what the text got below.

    Parameters
    ----------
    draft : sequence of str
        The drafted tokens, as text.
    num_accepted : int
        How many of them passed.
    next_token : str
        The correction, or the bonus token if all passed.
    title : str
        Shown above the figure.
    """
    verdicts = ["accepted"] * num_accepted
    if num_accepted < len(draft):
        verdicts += ["refused"] + ["discarded"] * (len(draft) - num_accepted - 1)
    kind = "correction" if num_accepted < len(draft) else "bonus"
    figure, axes = plt.subplots(figsize=(1.5 * (len(draft) + 2), 2.6))
    _boxes(axes, 1.4, "draft", list(zip(draft, verdicts, strict=True)))
    emitted = [(token, "accepted") for token in draft[:num_accepted]]
    _boxes(axes, 0.0, "text gets", [*emitted, (next_token, kind)])
    axes.set(xlim=(-1.2, len(draft) + 1.1), ylim=(-0.9, 2.5), title=title)
    axes.axis("off")
    return figure


def _boxes(axes: Axes, height: float, name: str, tokens: Sequence[tuple[str, str]]) -> None:
    axes.text(-0.15, height + 0.4, name, ha="right", va="center", fontsize=11)
    for place, (token, kind) in enumerate(tokens):
        colour, hatch, word = LOOKS[kind]
        axes.add_patch(
            Rectangle((place, height), 0.92, 0.8, facecolor=colour, hatch=hatch, edgecolor="white", alpha=0.75)
        )
        paper = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5}  # keeps the token readable
        axes.text(
            place + 0.46, height + 0.4, token, ha="center", va="center", family="monospace", fontsize=11, bbox=paper
        )
        axes.text(place + 0.46, height - 0.22, word, ha="center", va="center", fontsize=8)
