"""Who sees whom in a tree: choose a tree, a mask and a node, and look at what the node reads and where it sits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ipywidgets
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle

from specdec_course.figures import as_html
from specdec_course.widgets import show_widget
from specdec_ref.trees import full_tree, parents_of

TREE, CHAIN, SIBLINGS = "ancestors and itself (right)", "all earlier ones (a causal mask)", "ancestors and siblings"
WAYS = (TREE, CHAIN, SIBLINGS)
NUM_CACHED = 3  # tokens in the cache before the pass

TREES: Mapping[str, Sequence[int]] = {
    "text -> a, b;  a -> c, d;  b -> e": (-1, -1, 0, 0, 1),
    "a chain of three": (-1, 0, 1),
    "two guesses at each place": tuple(parents_of(full_tree((2, 2)))),
    "3 x 2 x 1, as Medusa drafts here": tuple(parents_of(full_tree((3, 2, 1)))),
}

# Okabe and Ito's colours, each with a hatch of its own.
LOOKS = {
    "text": ("#56B4E9", "", "sees: text in the cache"),
    "path": ("#009E73", "//", "sees: its own path"),
    "wrong": ("#D55E00", "xx", "sees, but must not"),
    "hidden": ("#FFFFFF", "", "hidden"),
}


@dataclass(frozen=True)
class View:
    """The block of a tree under one way to mask it. Place 0 is the last token of the text, node i is at place i + 1.

    Attributes
    ----------
    names : list of str, [1+N]
        "x" for the last token of the text, then letters.
    parents : list of int, [1+N]
        Of each place; -1 for place 0.
    positions : list of int, [1+N]
        Where each token sits in its text.
    kinds : list of list of str, [1+N][NUM_CACHED+1+N]
        What each token is shown of each slot; keys of `LOOKS`.
    """

    names: list[str]
    parents: list[int]
    positions: list[int]
    kinds: list[list[str]]


def view_of(tree: str, way: str) -> View:
    """Return the block of one of `TREES` under one of `WAYS`; a causal mask comes with positions by index."""
    parents = [-1, *(parent + 1 for parent in TREES[tree])]
    paths: list[list[int]] = []
    for place, parent in enumerate(parents):
        paths.append([*(paths[parent] if place else []), place])
    seen = {
        TREE: lambda place: paths[place],
        CHAIN: lambda place: range(place + 1),
        SIBLINGS: lambda place: [*paths[place], *(p for p in range(1, len(parents)) if parents[p] == parents[place])],
    }[way]
    kinds = []
    for place in range(len(parents)):
        shown = set(seen(place))
        line = ["path" if p in paths[place] else "wrong" if p in shown else "hidden" for p in range(len(parents))]
        kinds.append(["text"] * NUM_CACHED + line)
    depth = [place if way == CHAIN else len(paths[place]) - 1 for place in range(len(parents))]
    names = ["x", *(chr(ord("a") + node) for node in range(len(parents) - 1))]
    return View(names, parents, [NUM_CACHED + one for one in depth], kinds)


def describe(tree: str, way: str, place: int) -> str:
    """Say in words what the figure shows."""
    view = view_of(tree, way)
    line = view.kinds[place][NUM_CACHED:]
    path = [view.names[p] for p, kind in enumerate(line) if kind == "path"]
    wrong = [view.names[p] for p, kind in enumerate(line) if kind == "wrong"]
    words = (
        f"Tree: {tree}. Shown: {way}. Token {view.names[place]} sits at position {view.positions[place]} and reads the "
        f"{NUM_CACHED} tokens in the cache and its path {' '.join(path)}."
    )
    if wrong:
        words += f" It also reads {' '.join(wrong)}, which is in no text together with it: its logits are wrong."
    right = view_of(tree, TREE).positions[place]
    if view.positions[place] != right:
        words += f" Its position should be {right}, by its depth."
    return words


def draw(tree: str, way: str, place: int) -> Figure:
    """Draw the tree with what the chosen token reads, and the mask of the whole block."""
    view = view_of(tree, way)
    size = len(view.parents)
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(0.42 * size + 0.36 * (size + NUM_CACHED) + 3.5, max(3.0, 0.33 * size + 1.4))
    )
    _draw_tree(left, view, place)
    _draw_mask(right, view, place)
    patches = [Rectangle((0, 0), 1, 1, facecolor=c, hatch=h, edgecolor="grey") for c, h, _ in LOOKS.values()]
    figure.legend(patches, [word for _, _, word in LOOKS.values()], loc="lower center", ncols=4, fontsize=8)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    return figure


def _spots(parents: Sequence[int]) -> list[tuple[float, float]]:
    """Return a spot for each place: leaves side by side, a parent above the middle of its children."""
    children = [[p for p, parent in enumerate(parents) if parent == place] for place in range(len(parents))]
    spots: list[tuple[float, float]] = [(0.0, 0.0)] * len(parents)
    leaves = 0

    def settle(place: int, depth: int) -> float:
        nonlocal leaves
        if children[place]:
            across = [settle(child, depth + 1) for child in children[place]]
            middle = sum(across) / len(across)
        else:
            middle, leaves = float(leaves), leaves + 1
        spots[place] = (middle, -float(depth))
        return middle

    settle(0, 0)
    return spots


def _draw_tree(axes: Axes, view: View, chosen: int) -> None:
    spots = _spots(view.parents)
    for place, parent in enumerate(view.parents):
        if place:
            axes.plot(*zip(spots[parent], spots[place], strict=True), color="#888888", zorder=1)
    for place, (x, y) in enumerate(spots):
        colour, hatch, _ = LOOKS[view.kinds[chosen][NUM_CACHED + place]]
        axes.add_patch(
            Circle(
                (x, y), 0.32, facecolor=colour, hatch=hatch, edgecolor="black", linewidth=3 if place == chosen else 1
            )
        )
        paper = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.0}
        axes.text(x, y, view.names[place], ha="center", va="center", family="monospace", bbox=paper)
        axes.text(x + 0.36, y + 0.2, str(view.positions[place]), fontsize=8, color="#555555")
    width, depth = max(x for x, _ in spots), -min(y for _, y in spots)
    axes.set(xlim=(-0.7, width + 0.8), ylim=(-depth - 0.6, 0.7), title=f"{view.names[chosen]} and what it reads")
    axes.set_aspect("equal")
    axes.axis("off")


def _draw_mask(axes: Axes, view: View, chosen: int) -> None:
    size, slots = len(view.names), len(view.names) + NUM_CACHED
    for t, line in enumerate(view.kinds):
        for slot, kind in enumerate(line):
            colour, hatch, _ = LOOKS[kind]
            axes.add_patch(Rectangle((slot, t), 1, 1, facecolor=colour, hatch=hatch, edgecolor="grey", linewidth=0.6))
    axes.add_patch(Rectangle((0, chosen), slots, 1, fill=False, edgecolor="black", linewidth=2.5))
    labels = [*(f"t{i}" for i in range(NUM_CACHED)), *view.names]
    axes.set_xticks([slot + 0.5 for slot in range(slots)], labels, fontsize=8)
    lines = [f"{name}, at {position}" for name, position in zip(view.names, view.positions, strict=True)]
    axes.set_yticks([t + 0.5 for t in range(size)], lines, fontsize=8)
    axes.set(xlim=(0, slots), ylim=(size, 0), title="the mask: a row for each token", xlabel="slot")
    axes.set_aspect("equal")


def picture(tree: str, way: str, place: int) -> str:
    """Return the figure as HTML, with its description as the image's text and below it."""
    words = describe(tree, way, place)
    return f"{as_html(draw(tree, way, place), words)}<p>{words}</p>"


def view_tree_mask(tree: str = next(iter(TREES)), way: str = TREE, place: int = 4) -> None:
    """Show a choice of tree, mask and token, and the figure that follows them; without a kernel, the figure alone."""
    look = {"style": {"description_width": "8em"}, "layout": ipywidgets.Layout(width="34em")}
    trees = ipywidgets.Dropdown(options=list(TREES), value=tree, description="tree", **look)
    ways = ipywidgets.Dropdown(options=WAYS, value=way, description="a token sees", **look)
    token = ipywidgets.IntSlider(place, 0, len(TREES[tree]), description="token", **look)
    view = ipywidgets.HTML(picture(tree, way, place))

    def follow(change: object) -> None:
        token.max = len(TREES[str(trees.value)])  # the slider comes down with it
        view.value = picture(str(trees.value), str(ways.value), token.value)

    for control in (trees, ways, token):
        control.observe(follow, names="value")
    show_widget(ipywidgets.VBox([trees, ways, token, view]), picture(tree, way, place), describe(tree, way, place))
