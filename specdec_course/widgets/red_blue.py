"""Red and blue: drag p and q, and watch how accepted and corrected mass add up to p, or fail to."""

from __future__ import annotations

import ipywidgets
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specdec_course.figures import LOOKS, as_html
from specdec_course.widgets import show_widget

COLOURS = ("red", "blue")
RIGHT, WRONG = "what is missing", "p (a common mistake)"


def masses(
    target_red: float, draft_red: float, replacement: str = RIGHT
) -> tuple[list[float], list[float], list[float]]:
    """Return the accepted, the refused and the corrected mass of red and of blue.

    Parameters
    ----------
    target_red, draft_red : float in [0, 1]
        p(red) and q(red).
    replacement : str
        `RIGHT`: the replacement of a refused token is drawn from the residual. `WRONG`: it is drawn from p.
    """
    p, q = (target_red, 1 - target_red), (draft_red, 1 - draft_red)
    accepted = [min(pair) for pair in zip(p, q, strict=True)]
    refused = [proposed - kept for proposed, kept in zip(q, accepted, strict=True)]
    # The residual is missing / sum(missing), and sum(missing) = sum(refused): the product is the missing mass itself.
    missing = [wanted - kept for wanted, kept in zip(p, accepted, strict=True)]
    return accepted, refused, missing if replacement == RIGHT else [sum(refused) * wanted for wanted in p]


def describe(target_red: float, draft_red: float, replacement: str = RIGHT) -> str:
    """Say in words what the figure shows."""
    accepted, refused, corrected = masses(target_red, draft_red, replacement)
    text_red, text_blue = (a + c for a, c in zip(accepted, corrected, strict=True))
    return (
        f"The draft proposes red with {draft_red:.2f} and blue with {1 - draft_red:.2f}. "
        f"Accepted: red {accepted[0]:.2f}, blue {accepted[1]:.2f}. Refused: {sum(refused):.2f}. "
        f"The correction adds {corrected[0]:.2f} to red and {corrected[1]:.2f} to blue. "
        f"The text gets red with {text_red:.2f} and blue with {text_blue:.2f}; "
        f"the target wants {target_red:.2f} and {1 - target_red:.2f}."
    )


def draw(target_red: float, draft_red: float, replacement: str = RIGHT) -> Figure:
    """Draw both sides: what the draft proposes, and what the text gets."""
    accepted, refused, corrected = masses(target_red, draft_red, replacement)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True)
    _stack(left, accepted, refused, "refused")
    _stack(right, accepted, corrected, "correction")
    left.set(title="the draft proposes q", ylabel="probability")
    right.set(title="the text gets")
    for axes in (left, right):
        for place, wanted in enumerate((target_red, 1 - target_red)):
            label = "p, what the target wants" if place == 0 else None
            axes.plot([place - 0.42, place + 0.42], [wanted, wanted], color="black", linewidth=2.5, label=label)
        axes.set(xticks=[0, 1], xticklabels=COLOURS, xlim=(-0.6, 1.6), ylim=(0, 1.08))
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=3, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    return figure


def _stack(axes: Axes, below: list[float], above: list[float], kind: str) -> None:
    """Two bars: the accepted mass, and on top of it the mass of `kind`, each with its number."""
    floor = [0.0, 0.0]
    for name, heights in (("accepted", below), (kind, above)):
        colour, hatch, word = LOOKS[name]
        axes.bar([0, 1], heights, 0.7, bottom=floor, color=colour, hatch=hatch, edgecolor="white", label=word)
        for place, height in enumerate(heights):
            if height >= 0.04:
                middle = floor[place] + height / 2
                paper = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5}
                axes.text(place, middle, f"{height:.2f}", ha="center", va="center", fontsize=10, bbox=paper)
        floor = [low + height for low, height in zip(floor, heights, strict=True)]


def picture(target_red: float, draft_red: float, replacement: str = RIGHT) -> str:
    """Return the figure as HTML, with its description as the image's text and below it."""
    words = describe(target_red, draft_red, replacement)
    return f"{as_html(draw(target_red, draft_red, replacement), words)}<p>{words}</p>"


def explore(target_red: float = 0.5, draft_red: float = 0.8) -> None:
    """Show two sliders, a choice of the replacement's law, and the figure that follows them."""
    wide = {"description_width": "9em"}
    layout = ipywidgets.Layout(width="32em")
    sliders = [
        ipywidgets.FloatSlider(value, min=0, max=1, step=0.05, description=name, style=wide, layout=layout)
        for name, value in (("p(red), target", target_red), ("q(red), draft", draft_red))
    ]
    choice = ipywidgets.Dropdown(options=[RIGHT, WRONG], description="replacement from", style=wide, layout=layout)
    view = ipywidgets.HTML(picture(target_red, draft_red))

    def follow(change: object) -> None:
        view.value = picture(sliders[0].value, sliders[1].value, str(choice.value))

    for control in (*sliders, choice):
        control.observe(follow, names="value")
    show_widget(
        ipywidgets.VBox([*sliders, choice, view]), picture(target_red, draft_red), describe(target_red, draft_red)
    )
