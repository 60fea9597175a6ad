"""The memory of a cache through one round: what a pass writes, what a rollback hides, and what three ways cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import ipywidgets
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from specdec_course.figures import as_html
from specdec_course.widgets import show_widget

LENGTHS, CROP, RECOMPUTE = "a length per row", "crop (one cut for all rows)", "recompute"
WAYS = (LENGTHS, CROP, RECOMPUTE)
STEPS = ("before the pass", "after the pass", "after the rollback", "after the next pass")
HELD = (5, 3)  # tokens of the two rows in the cache before the round
NUM_DRAFT_TOKENS = 4

# Okabe and Ito's colours, each with a hatch of its own.
LOOKS = {
    "text": ("#56B4E9", "", "text"),
    "new": ("#009E73", "//", "written by this pass"),
    "junk": ("#DDDDDD", "xx", "junk: nobody sees it"),
    "lost": ("#D55E00", "\\\\", "accepted, yet cut off"),
    "padding": ("#F5F5F5", "..", "padding"),
    "free": ("#FFFFFF", "", "free"),
}


@dataclass(frozen=True)
class Memory:
    """The slots of both rows at one moment.

    Attributes
    ----------
    slots : list of list of (label, kind)
        One list per row, one entry per slot; kinds are those of `LOOKS`.
    fed : int
        Tokens the target has been fed since the round began, over both rows.
    gained : list of int
        Tokens that each row's text got from the round.
    """

    slots: list[list[tuple[str, str]]]
    fed: int
    gained: list[int]


def memory(way: str, step: int, accepted: Sequence[int], num_draft_tokens: int = NUM_DRAFT_TOKENS) -> Memory:
    """Return the memory at `step` of a round in which row b accepts `accepted[b]` drafts.

    Parameters
    ----------
    way : str
        One of `WAYS`.
    step : int
        Index into `STEPS`.
    accepted : sequence of int, [2]
        0 to `num_draft_tokens` each.
    num_draft_tokens : int
        K.
    """
    # One cut for all rows: whoever accepted more than the slowest row loses the difference.
    kept = [min(accepted)] * len(accepted) if way == CROP else list(accepted)
    width = max(HELD) + 2 + num_draft_tokens  # the drafts with the tokens before and after them
    slots, fed = [], 0
    for row, held in enumerate(HELD):
        text = [(f"t{i}", "text") for i in range(held)]
        block = ["x", *(f"d{i + 1}" for i in range(num_draft_tokens))]
        # One width for all rows means that their right ends must lie in one column: padding on the left.
        line = [("", "padding")] * (max(HELD) - held) if way == CROP else []
        line += text
        if step == 1:
            line += [(label, "new") for label in block]
        elif step >= 2:
            line += _after(way, step, block, kept[row], accepted[row], held)
        if step >= 1:
            fed += len(block)
        if step == 3:
            fed += held + len(block[: 1 + kept[row]]) + 1 if way == RECOMPUTE else 1
        if way == RECOMPUTE and step == 2:
            line = []
        if way == RECOMPUTE and step == 3:
            line = [(label, "new") for label, _ in line]
        slots.append(line + [("", "free")] * (width - len(line)))
    return Memory(slots, fed, [1 + count for count in kept] if step >= 2 else [0] * len(kept))


def _after(way: str, step: int, block: list[str], kept: int, accepted: int, held: int) -> list[tuple[str, str]]:
    """What follows the old text once the drafts are judged: kept tokens, then the next pass's token, then leftovers."""
    line = [(label, "text") for label in block[: 1 + kept]]
    rest = block[1 + kept :]
    if way == LENGTHS:
        leftovers = [(label, "junk") for label in rest]
    elif way == CROP:
        leftovers = [(label, "lost") for label in rest[: accepted - kept]] if step == 2 else []
    else:
        leftovers = []
    if step == 3:
        # A row that was cut back below what it accepted continues with its own next draft, for it is right.
        following = rest[0] if accepted > kept else "y"
        line.append((following, "new"))
        leftovers = leftovers[1:]
    return line + leftovers


def describe(way: str, step: int, accepted: Sequence[int], num_draft_tokens: int = NUM_DRAFT_TOKENS) -> str:
    """Say in words what the figure shows."""
    now = memory(way, step, accepted, num_draft_tokens)
    lines = [f"{STEPS[step].capitalize()}, rollback by {way}."]
    for row, slots in enumerate(now.slots):
        visible = [label for label, kind in slots if kind in ("text", "new")]
        lines.append(f"Row {row} holds {' '.join(visible) or 'nothing'}.")
        for kind in ("junk", "lost"):
            labels = [label for label, this in slots if this == kind]
            if labels:
                lines.append(f"{LOOKS[kind][2].capitalize()}: {' '.join(labels)}.")
    lines.append(f"Tokens fed so far: {now.fed}.")
    if step >= 2:
        lines.append(f"The texts got {' and '.join(map(str, now.gained))} tokens.")
    return " ".join(lines)


def draw(way: str, step: int, accepted: Sequence[int], num_draft_tokens: int = NUM_DRAFT_TOKENS) -> Figure:
    """Draw the slots of both rows."""
    now = memory(way, step, accepted, num_draft_tokens)
    width = len(now.slots[0])
    figure, axes = plt.subplots(figsize=(0.75 * width + 1.5, 2.9))
    for row, slots in enumerate(now.slots):
        top = -1.5 * row
        axes.text(-0.2, top + 0.5, f"row {row}", ha="right", va="center", fontsize=11)
        for slot, (label, kind) in enumerate(slots):
            colour, hatch, _ = LOOKS[kind]
            axes.add_patch(Rectangle((slot, top), 0.94, 1, facecolor=colour, hatch=hatch, edgecolor="grey"))
            paper = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.2}
            if label:
                axes.text(slot + 0.47, top + 0.5, label, ha="center", va="center", family="monospace", bbox=paper)
    for slot in range(width):
        axes.text(slot + 0.47, 1.25, str(slot), ha="center", va="center", fontsize=8, color="#555555")
    axes.text(-0.2, 1.25, "slot", ha="right", va="center", fontsize=8, color="#555555")
    axes.set(xlim=(-1.3, width), ylim=(-1.8, 1.5), title=f"{way}: {STEPS[step]}")
    axes.axis("off")
    kinds = [kind for kind in LOOKS if any(kind == this for slots in now.slots for _, this in slots)]
    patches = [Rectangle((0, 0), 1, 1, facecolor=LOOKS[k][0], hatch=LOOKS[k][1], edgecolor="grey") for k in kinds]
    words = [LOOKS[kind][2] for kind in kinds]
    axes.legend(patches, words, loc="upper center", bbox_to_anchor=(0.5, 0.02), ncols=5, fontsize=8)
    return figure


def picture(way: str, step: int, accepted: Sequence[int]) -> str:
    """Return the figure as HTML, with its description as the image's text and below it."""
    words = describe(way, step, accepted)
    return f"{as_html(draw(way, step, accepted), words)}<p>{words}</p>"


def view_cache(accepted: Sequence[int] = (4, 1)) -> None:
    """Show a choice of the way, a slider through the round, one for each row's accepted drafts, and the memory."""
    style, layout = {"description_width": "11em"}, ipywidgets.Layout(width="34em")
    way = ipywidgets.Dropdown(options=WAYS, description="rollback by", style=style, layout=layout)
    step = ipywidgets.SelectionSlider(
        options=[(name, number) for number, name in enumerate(STEPS)],
        value=2,
        description="moment",
        style=style,
        layout=layout,
    )
    counts = [
        ipywidgets.IntSlider(count, 0, NUM_DRAFT_TOKENS, description=f"row {row} accepts", style=style, layout=layout)
        for row, count in enumerate(accepted)
    ]
    view = ipywidgets.HTML(picture(LENGTHS, 2, accepted))

    def follow(change: object) -> None:
        view.value = picture(str(way.value), step.value, [count.value for count in counts])

    for control in (way, step, *counts):
        control.observe(follow, names="value")
    box = ipywidgets.VBox([way, step, *counts, view])
    show_widget(box, picture(LENGTHS, 2, accepted), describe(LENGTHS, 2, accepted))
