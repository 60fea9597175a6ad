"""Stage 07, Medusa heads and trees: its exercises, their cases and the mistakes people make."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from specdec_course.checks.exercise import ANY, Case, Choice, Exercise, Made, Mistake, Question
from specdec_course.checks.replay_trees import replay_block, replay_walk

Path = tuple[int, ...]  # ranks of the guesses on the way to a node

_TREE = "From guesses to a tree"
_PASS = "One pass for a whole tree"
_WALK = "Which path does the text follow?"
_GATHER = "What stays in the cache?"
_SHAPE = "Which tree?"


def _listed(value: Any) -> Any:
    """Return a tensor as the list that it holds; anything else as it is."""
    return value.tolist() if isinstance(value, torch.Tensor) else value


def _lists(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call the learner's function; a tensor inside of the pair that it returns counts as a list."""
    value = function(*arguments.values())
    return tuple(map(_listed, value)) if isinstance(value, tuple | list) else value


# --- 7.1 the candidate tree


def _candidate_cases(seed: int) -> Sequence[Case]:
    """One head, two, three; more heads than levels; wide, narrow and growing levels. No two scores are equal."""
    source = torch.Generator().manual_seed(seed)
    fixed: list[tuple[list[int], int, int]] = [([2], 1, 5), ([1, 2], 2, 5), ([2, 1], 3, 5), ([2, 2], 2, 6)]
    fixed += [([3, 2, 1], 3, 7), ([2, 2, 2], 4, 6), ([1, 1, 1], 3, 5), ([3, 2, 2], 3, 8), ([2, 3], 3, 6)]
    for _ in range(15):
        levels, more = int(torch.randint(2, 4, (), generator=source)), int(torch.randint(0, 2, (), generator=source))
        widths = torch.randint(1, 4, (levels,), generator=source).sort(descending=True).values.tolist()
        fixed.append((widths, levels + more, 9))
    return [
        Case(
            {
                "head_logits": torch.stack([torch.randperm(vocab, generator=source).float() for _ in range(heads)]),
                "widths": widths,
            }
        )
        for widths, heads, vocab in fixed
    ]


def _candidate_tree(head_logits: torch.Tensor, widths: list[int]) -> tuple[list[int], list[int]]:
    from specdec_ref.trees import full_tree, parents_of

    paths = full_tree(widths)
    guesses = head_logits.topk(max(widths), dim=-1).indices
    return [int(guesses[len(path) - 1, path[-1]]) for path in paths], parents_of(paths)


def guesses_of(logits: torch.Tensor, count: int) -> list[int]:
    """Return the `count` likeliest tokens of one head, the likeliest first."""
    return logits.argsort(descending=True)[:count].tolist()


def _grown(
    pick: Callable[[torch.Tensor, int, int], list[int]] = lambda logits, level, width: guesses_of(logits[level], width),
    hang: Callable[[list[int]], list[int]] = lambda level: level,
    call: Callable[[int, list[int]], int] = lambda parent, level: parent,
    by_guess: bool = False,
) -> Callable[..., Any]:
    """Make the answer of a tree that is grown level by level with the given faults; without any it is right.

    `pick` gives a level's guesses, `hang` says which nodes of a level get children, `call` how a parent is written.
    """

    def answer(head_logits: torch.Tensor, widths: list[int]) -> Any:
        tokens: list[int] = []
        parents: list[int] = []
        above, whole = [-1], [-1]
        for level, width in enumerate(widths):
            if level >= len(head_logits):
                return ANY
            pairs = [(parent, token) for parent in above for token in pick(head_logits, level, width)]
            if by_guess:
                pairs = [(parent, token) for token in pick(head_logits, level, width) for parent in above]
            nodes = list(range(len(tokens), len(tokens) + len(pairs)))
            tokens += [token for _, token in pairs]
            parents += [call(parent, whole) for parent, _ in pairs]
            above, whole = hang(nodes), nodes
        return tokens, parents

    return answer


def _rank_by_rank(head_logits: torch.Tensor, widths: list[int]) -> Any:
    """Of code that hangs the second guess of a head on the second guess of the head before."""
    tokens: list[int] = []
    parents: list[int] = []
    before = 0
    for level, width in enumerate(widths):
        if level and width > widths[level - 1]:
            return ANY
        parents += [-1] * width if level == 0 else [before + rank for rank in range(width)]
        before = len(tokens)
        tokens += guesses_of(head_logits[level], width)
    return tokens, parents


def _depth_first(head_logits: torch.Tensor, widths: list[int]) -> tuple[list[int], list[int]]:
    tokens: list[int] = []
    parents: list[int] = []

    def grow(parent: int, level: int) -> None:
        for token in guesses_of(head_logits[level], widths[level]) if level < len(widths) else []:
            tokens.append(token)
            parents.append(parent)
            grow(len(tokens) - 1, level + 1)

    grow(-1, 0)
    return tokens, parents


def _next_head(head_logits: torch.Tensor, widths: list[int]) -> Any:
    return _grown()(head_logits[1:], widths) if len(head_logits) > 1 else ANY


CANDIDATE_TREE = Exercise(
    id="7.1",
    function="candidate_tree",
    title="A tree of candidates",
    points=2,
    difficulty=2,
    minutes=8,
    section=_TREE,
    rule="On the text hang the `widths[0]` likeliest guesses of head 1. On EACH node of a level hang the likeliest "
    "guesses of the next head, the likeliest first. Nodes are numbered level by level; -1 is the text.",
    hints=(
        "Keep the numbers of the nodes of the level above. At first that is `[-1]`: only the text.",
        "For each level take the guesses of its head once, `head_logits[level].topk(width)`. Then two loops, one in "
        "the other: over the nodes above, and over the guesses. A new node has the number `len(tokens)`.",
        "`for parent in above: for token in guesses: nodes.append(len(tokens)); tokens.append(token); "
        "parents.append(parent)`, and after the two loops `above = nodes`.",
    ),
    cases=_candidate_cases,
    drive=_lists,
    reference=_candidate_tree,
    mistakes=(
        Mistake(
            "ranks instead of token ids",
            _grown(pick=lambda logits, level, width: list(range(width))),
            "A node holds a TOKEN: the target is going to read it. `topk` gives values and indices, and the indices "
            "are the token ids.",
        ),
        Mistake(
            "the least likely guesses",
            _grown(pick=lambda logits, level, width: logits[level].argsort()[:width].tolist()),
            "`argsort` sorts upwards, so its first entries are the worst guesses. Use `topk`, or "
            "`argsort(descending=True)`.",
        ),
        Mistake(
            "one head for all levels",
            _grown(pick=lambda logits, level, width: guesses_of(logits[0], width)),
            "Head 1 guesses the first draft token only. Level 2 holds guesses of head 2, and so on.",
        ),
        Mistake(
            "the first head is skipped",
            _next_head,
            "Row 0 of `head_logits` is head 1, whose guess is the FIRST draft token. The token before it is committed "
            "already; no head is needed for that.",
            section="Where could guesses come from?",
        ),
        Mistake(
            "all nodes hang on the text",
            _grown(call=lambda parent, level: -1),
            "A guess of head 2 follows a guess of head 1. Its parent is that node; only level 1 hangs on the text.",
        ),
        Mistake(
            "the text counted as node 0",
            _grown(call=lambda parent, level: parent + 1),
            "The text is -1 here, and the nodes count from 0. With 0 for the text, a node on the text cannot be told "
            "from a child of the first node.",
        ),
        Mistake(
            "parents numbered within their level",
            _grown(call=lambda parent, level: level.index(parent) if parent >= 0 else -1),
            "A parent's number counts through the whole tree, not through its level. From level 3 on the two differ.",
        ),
        Mistake(
            "only the likeliest guess gets children",
            _grown(hang=lambda level: level[:1]),
            "Every node of the level above may turn out to be the right one, so each gets children.",
        ),
        Mistake(
            "second guesses hang on second guesses only",
            _rank_by_rank,
            "The heads do not know of each other: the best guess of head 2 may follow the second guess of head 1. So "
            "each node gets all the guesses of the next head.",
        ),
        Mistake(
            "numbered branch by branch",
            _depth_first,
            "This is the right tree, numbered depth first. Number it level by level: then a round with little room "
            "left can cut it off after a level, and the shallow nodes are the first ones.",
        ),
        Mistake(
            "siblings are not next to each other",
            _grown(by_guess=True),
            "This is the right tree in another order. Within a level, all children of the first node come first, then "
            "those of the second: the outer loop runs over the nodes above.",
        ),
    ),
)

# --- 7.2 mask and positions


def a_tree(source: random.Random, count: int, depth_limit: int = 4) -> list[int]:
    """Return the parents of a random tree of `count` nodes, shallow ones first."""
    depths: list[int] = []
    for _ in range(count):
        depths.append(1 if not depths else 1 + source.randint(0, min(max(depths), depth_limit - 1)))
    depths.sort()
    return [
        -1 if depth == 1 else source.choice([node for node in range(place) if depths[node] == depth - 1])
        for place, depth in enumerate(depths)
    ]


TEXTBOOK = [-1, -1, 0, 0, 1]  # text -> a, b; a -> c, d; b -> e


def _block_cases(seed: int) -> Sequence[Case]:
    """The tree of the lesson, a chain, no tree at all, siblings only; with an empty cache and with some text in it."""
    source = random.Random(seed)
    fixed: list[tuple[list[int], int]] = [([-1, -1], 1), ([-1, -1], 0), ([-1, 0], 2), (TEXTBOOK, 0), (TEXTBOOK, 4)]
    fixed += [([], 3), ([-1], 0), ([-1, 0, 1], 3), ([-1, -1, -1, 0, 1, 1, 4], 2)]
    fixed += [(a_tree(source, source.randint(3, 8)), source.randint(0, 5)) for _ in range(18)]
    return [Case({"parents": parents, "num_cached": cached}) for parents, cached in fixed]


def _tree_block(parents: list[int], num_cached: int) -> tuple[torch.Tensor, torch.Tensor]:
    from specdec_ref.model import block_shape

    block = torch.tensor([[-1, *(parent + 1 for parent in parents)]])
    offsets, sees = block_shape(1, block.shape[1], block)
    text = torch.ones(block.shape[1], num_cached, dtype=torch.bool)
    return num_cached + offsets[0], torch.cat([text, sees[0]], dim=1)


def lineage(parents: Sequence[int]) -> list[list[int]]:
    """Return the block's tokens from the root down to each token of it, itself included; the root is 0."""
    found = [[0]]
    for node, parent in enumerate(parents):
        found.append([*found[parent + 1], node + 1])
    return found


_Seen = Callable[[list[int], int], Iterable[int]]  # parents and a place in the block -> the places it sees


def _family(parents: list[int], place: int) -> list[int]:
    return lineage(parents)[place]


def _depth(parents: list[int], place: int) -> int:
    return len(lineage(parents)[place]) - 1


def _block(
    position: Callable[[list[int], int, int], int] = lambda parents, place, cached: cached + _depth(parents, place),
    sees: _Seen = _family,
    text: bool = True,
    turned: bool = False,
) -> Callable[..., Any]:
    """Make the answer with other positions, or another mask; without arguments it is right."""

    def answer(parents: list[int], num_cached: int) -> tuple[torch.Tensor, torch.Tensor]:
        size = len(parents) + 1
        mask = torch.zeros(size, size, dtype=torch.bool)
        for place in range(size):
            mask[place, list(sees(parents, place))] = True
        before = torch.full((size, num_cached), text, dtype=torch.bool)
        positions = [position(parents, place, num_cached) for place in range(size)]
        return torch.tensor(positions), torch.cat([before, mask.T if turned else mask], dim=1)

    return answer


def _by_index(parents: list[int], place: int, num_cached: int) -> int:
    return num_cached + place


def _earlier(parents: list[int], place: int) -> Iterable[int]:
    return range(place + 1)


def _with_siblings(parents: list[int], place: int) -> Iterable[int]:
    mine = [other + 1 for other, parent in enumerate(parents) if place and parent == parents[place - 1]]
    return {*_family(parents, place), *mine}


def _shallower(parents: list[int], place: int) -> Iterable[int]:
    depth = _depth(parents, place)
    return [other for other in range(len(parents) + 1) if other == place or _depth(parents, other) < depth]


TREE_BLOCK = Exercise(
    id="7.2",
    function="tree_block",
    title="Mask and positions of a tree",
    points=3,
    difficulty=3,
    minutes=12,
    section=_PASS,
    rule="A token sits at num_cached + its depth (the last token of the text has depth 0). It sees the whole cached "
    "text, its ancestors in the block, the last token of the text among them, and itself. Nothing else.",
    hints=(
        "Write the block down: place 0 is the last token of the text, and node i is at place i + 1. So the parent of "
        "node i is at place parents[i] + 1, and that holds for parent -1 as well.",
        "Go through the nodes in order. A node's depth is its parent's plus 1. What it sees is what its parent sees, "
        "and itself: copy the parent's row of the mask and set one entry more.",
        "`mask[i + 1] = mask[parents[i] + 1]`, then `mask[i + 1, num_cached + i + 1] = True`; and "
        "`positions[i + 1] = positions[parents[i] + 1] + 1`.",
    ),
    cases=_block_cases,
    reference=_tree_block,
    replay=replay_block,
    mistakes=(
        Mistake(
            "the tree is treated as a chain",
            _block(position=_by_index, sees=_earlier),
            "Positions by index and a causal mask are right for a chain. In a tree, two guesses at the SAME place of "
            "the text share a position, and neither may see the other.",
        ),
        Mistake(
            "positions by index",
            _block(position=_by_index),
            "A token's position is its place in the TEXT it would be part of, so it follows from the depth: siblings "
            "have the same. For the tree text -> a, b; a -> c, d; b -> e these are 0, 1, 1, 2, 2, 2 after the cache.",
        ),
        Mistake(
            "positions do not go on from the cached text",
            _block(position=lambda parents, place, cached: _depth(parents, place)),
            "The tokens in the cache have the positions 0 to num_cached - 1. The block goes on from there.",
        ),
        Mistake(
            "the tree begins where the last token sits",
            _block(position=lambda parents, place, cached: cached + max(0, _depth(parents, place) - 1)),
            "The last token of the text is part of the block, and it takes the first position after the cache. Its "
            "children sit one further.",
        ),
        Mistake(
            "one more than the parent's number",
            _block(position=lambda parents, place, cached: cached + (parents[place - 1] + 2 if place else 0)),
            "A child sits one after its parent's POSITION, not after its parent's number in the list.",
        ),
        Mistake(
            "every token sees all earlier ones of the block",
            _block(sees=_earlier),
            "A causal mask lets a node read its elder siblings and their children: guesses that exclude it. Its logits "
            "then belong to no text. It may see its ancestors and itself.",
        ),
        Mistake(
            "siblings see each other",
            _block(sees=_with_siblings),
            "Siblings are different guesses at one place: at most one of them is in the text. None may see another.",
        ),
        Mistake(
            "everything at a smaller depth is seen",
            _block(sees=_shallower),
            "A node of smaller depth is an ancestor only if it lies on the path to the text. Follow the parents.",
        ),
        Mistake(
            "a token does not see itself",
            _block(sees=lambda parents, place: _family(parents, place)[:-1]),
            "A token's own key belongs to what it looks at, in a tree as in a chain. Without it the first token of an "
            "empty cache would see nothing at all.",
        ),
        Mistake(
            "only the parent is seen, not its ancestors",
            _block(sees=lambda parents, place: _family(parents, place)[-2:]),
            "A token reads the whole text before it: parent, grandparent, and so on up to the last token of the text.",
        ),
        Mistake(
            "the last token of the text is hidden",
            _block(sees=lambda parents, place: _family(parents, place)[1:] if place else [0]),
            "The root of the tree is the last token of the text. It is in this block because it is not in the cache "
            "yet, and every node continues it.",
        ),
        Mistake(
            "the cached text is hidden",
            _block(text=False),
            "All nodes continue the text, so each sees all of the num_cached columns on the left.",
        ),
        Mistake(
            "the mask is turned round",
            _block(turned=True),
            "Row t says what token t SEES. Here a node is shown to its ancestors, which read their own future.",
        ),
    ),
)

# --- 7.3 the walk


def draw(probs: torch.Tensor, uniform: float | torch.Tensor) -> int:
    """Draw a token from a law [V] by inverting its cumulative sum."""
    heights = probs.double().cumsum(-1)
    point = torch.as_tensor(uniform).double().reshape(1) * heights[-1]
    return min(int(torch.searchsorted(heights, point, right=True)), len(probs) - 1)


def _itself(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


_Tree = tuple[list[int], list[int]]  # tokens and parents
_SMALL: _Tree = ([1, 2], [-1, -1])
_COUSINS: _Tree = ([1, 2, 1, 3, 2, 0], [-1, -1, 0, 0, 1, 1])  # the children of 0 hold 1 and 3, those of 1 hold 2 and 0
_DEEP: _Tree = ([0, 3, 3, 1, 2, 2, 0], [-1, -1, 0, 1, 1, 2, 4])
_CHAIN: _Tree = ([2, 0, 1], [-1, 0, 1])


def _walk_cases(seed: int) -> Sequence[Case]:
    """Each case is aimed: the tokens that the target is going to draw are chosen, on and off the tree."""
    source = torch.Generator().manual_seed(seed)
    aims: list[tuple[_Tree, list[int]]] = [
        (_SMALL, [2, 3]),
        (_SMALL, [0, 1]),
        (([], []), [2]),
        (_CHAIN, [2, 0, 1, 3]),
        (_CHAIN, [2, 1, 0, 3]),
        (_COUSINS, [1, 3, 2]),
        (_COUSINS, [1, 2, 0]),  # 2 is a child of the other branch
        (_COUSINS, [2, 3, 1]),  # and so is 3
        (_COUSINS, [2, 0, 1]),
        (_COUSINS, [3, 1, 2]),  # refused at once, though node 3 holds the token
        (_DEEP, [0, 3, 2, 1]),
        (_DEEP, [3, 2, 0, 2]),
        (_DEEP, [0, 1, 2, 0]),
        (_DEEP, [3, 1, 2, 3]),
        (_DEEP, [3, 3, 2, 0]),
        (_DEEP, [2, 0, 1, 3]),
    ]
    for number in range(14):
        tree = (_COUSINS, _DEEP)[number % 2]
        aims.append((tree, torch.randint(0, 4, (3 + number % 2,), generator=source).tolist()))
    cases = [_aimed(tree, tokens, source) for tree, tokens in aims]
    return [*cases, _sharp(_COUSINS, [2, 0, 1]), _sharp(_COUSINS, [1, 3, 2]), _sharp(_DEEP, [3, 2, 0, 2])]


def _sharp(tree: _Tree, wanted: list[int]) -> Case:
    """Each law on the way is sure of the token wanted there, and all others of token 3: a wrong row always shows."""
    tokens, parents = tree
    laws, place = torch.full((len(tokens) + 1, 4), 0.05, dtype=torch.float64), -1
    sure = [3] * len(laws)
    for token in wanted:
        sure[place + 1] = token
        place = next((n for n in range(len(tokens)) if parents[n] == place and tokens[n] == token), place)
    laws[range(len(laws)), sure] = 0.85
    return _walk(tree, laws, [0.3 + 0.1 * depth for depth in range(len(wanted))])


def _walk(tree: _Tree, laws: torch.Tensor, numbers: list[float]) -> Case:
    return Case(
        {
            "target_probs": laws,
            "draft_tokens": list(tree[0]),
            "parents": list(tree[1]),
            "uniforms": torch.tensor(numbers, dtype=torch.float64),
            "draw": Made(functools.partial(_itself, draw), "draw"),
        }
    )


def _aimed(tree: _Tree, wanted: list[int], source: torch.Generator) -> Case:
    tokens, parents = tree
    laws = torch.rand(len(tokens) + 1, 4, generator=source, dtype=torch.float64) + 0.2
    laws = laws / laws.sum(-1, keepdim=True)
    place, numbers = -1, []
    for token in wanted:
        low = float(laws[place + 1, :token].sum())
        inside = 0.1 + 0.8 * float(torch.rand((), generator=source, dtype=torch.float64))
        numbers.append(low + inside * float(laws[place + 1, token]))
        child = next((n for n in range(len(tokens)) if parents[n] == place and tokens[n] == token), None)
        if child is None:  # the walk ends here, and the other numbers are not needed
            numbers += torch.rand(len(wanted) - len(numbers), generator=source, dtype=torch.float64).tolist()
            break
        place = child
    return _walk(tree, laws, numbers)


def _drive_walk(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    value = function(*arguments.values())
    if isinstance(value, tuple | list) and len(value) == 2:
        return _listed(value[0]), value[1]
    return value


def _walk_tree(
    target_probs: torch.Tensor, draft_tokens: list[int], parents: list[int], uniforms: torch.Tensor, draw: Any
) -> tuple[list[int], int]:
    from specdec_ref.acceptance import verify_tree

    tokens = torch.tensor([draft_tokens], dtype=torch.int64)
    found = verify_tree(target_probs[None], tokens, torch.tensor([parents], dtype=torch.int64), uniforms[None])
    assert found.path is not None
    return found.path[0, : int(found.num_accepted[0])].tolist(), int(found.next_token[0])


def _walking(
    row: Callable[[int, int], int] = lambda place, depth: place + 1,
    uniform: Callable[[int], int] = lambda depth: depth,
    choose: Callable[..., int] = lambda probs, number: draw(probs, number),
    child: Callable[[list[int], list[int], int, int, int], int | None] | None = None,
    at_most: int = 99,
    shown: Callable[[list[int], list[int]], list[int]] = lambda path, tokens: path,
) -> Callable[..., Any]:
    """Make the answer of a walk with the given faults; without any it is right."""

    def answer(
        target_probs: torch.Tensor, draft_tokens: list[int], parents: list[int], uniforms: torch.Tensor, draw: Any
    ) -> Any:
        path: list[int] = []
        place = -1
        while True:
            depth = len(path)
            if depth >= len(uniforms):
                return ANY  # who walks too far runs out of numbers
            token = choose(target_probs[row(place, depth)], uniforms[uniform(depth)])
            found = (child or _child)(draft_tokens, parents, place, depth, token)
            if found is None or depth >= at_most:
                return shown(path, draft_tokens), token
            place = found
            path.append(place)

    return answer


def _child(tokens: list[int], parents: list[int], place: int, depth: int, token: int) -> int | None:
    return next((node for node in range(len(tokens)) if parents[node] == place and tokens[node] == token), None)


def _same_level(tokens: list[int], parents: list[int], place: int, depth: int, token: int) -> int | None:
    level = [node for node in range(len(tokens)) if _depth(parents, node + 1) == depth + 1]
    return next((node for node in level if tokens[node] == token), None)


def _any_later(tokens: list[int], parents: list[int], place: int, depth: int, token: int) -> int | None:
    return next((node for node in range(place + 1, len(tokens)) if tokens[node] == token), None)


def _no_bonus(
    target_probs: torch.Tensor, draft_tokens: list[int], parents: list[int], uniforms: torch.Tensor, draw: Any
) -> Any:
    """Of code that draws only where there are children: at a leaf the last accepted token is handed out again."""
    path, following = _walking()(target_probs, draft_tokens, parents, uniforms, draw)
    if path and path[-1] not in parents:
        return path, draft_tokens[path[-1]]
    return (path, following) if draft_tokens else ANY


def _drawn_again(
    target_probs: torch.Tensor, draft_tokens: list[int], parents: list[int], uniforms: torch.Tensor, draw: Any
) -> Any:
    """Of code that walks as far as the draws are children, and then draws the next token with the last number."""
    path, _ = _walking()(target_probs, draft_tokens, parents, uniforms, draw)
    place = path[-1] if path else -1
    return path, draw(target_probs[place + 1], uniforms[-1])


WALK_TREE = Exercise(
    id="7.3",
    function="walk_tree",
    title="The exact walk",
    points=3,
    difficulty=3,
    minutes=12,
    section=_WALK,
    rule="At each place draw from the target's law THERE: row 0 after the text, row i + 1 after node i. If the draw is "
    "a child of this place, go there; if not, this very draw is the next token. So every token is the target's own.",
    hints=(
        "You stand at a place: -1 is the text, otherwise a node. Which row of `target_probs` is the law after it? And "
        "which number belongs to the draw: how many tokens were accepted so far?",
        "A loop: draw a token from row place + 1 with `uniforms[len(path)]`. Look for a node whose parent is this "
        "place AND whose token is the draw. If there is one, append it to the path and stand there; otherwise return.",
        "`token = draw(target_probs[place + 1], uniforms[len(path)])`, then `children = [i for i in range(len(parents))"
        " if parents[i] == place and draft_tokens[i] == token]`; `if not children: return path, token`.",
    ),
    cases=_walk_cases,
    drive=_drive_walk,
    reference=_walk_tree,
    uniforms=("uniforms",),
    replay=replay_walk,
    mistakes=(
        Mistake(
            "the likeliest token instead of a draw",
            _walking(choose=lambda probs, number: int(probs.argmax())),
            "The text must follow the target's LAW, so the target's choice at each place is a draw. Taking the maximum "
            "is right at temperature 0 only.",
        ),
        Mistake(
            "one uniform number for all draws",
            _walking(uniform=lambda depth: 0),
            "The draws at different depths must be independent: the draw at depth d uses `uniforms[d]`.",
        ),
        Mistake(
            "always drawn from the law after the text",
            _walking(row=lambda place, depth: 0),
            "Row 0 is the law after the text. Once a node is accepted, the next token continues THAT: row node + 1.",
        ),
        Mistake(
            "the row of the depth instead of the node",
            _walking(row=lambda place, depth: depth),
            "In a chain the node of depth d is in row d. In a tree it is not: after node i comes row i + 1.",
        ),
        Mistake(
            "the law before the node instead of the law after it",
            _walking(row=lambda place, depth: max(place, 0)),
            "Row 0 belongs to the text, so node i has row i + 1. One row less is the law after another node, and the "
            "next token comes from the wrong place.",
        ),
        Mistake(
            "children of a refused node are counted",
            _walking(child=_same_level),
            "The draw is looked for among all nodes of the next level. But a cousin continues another text: its parent "
            "was not drawn. Only the children of the place you stand at may be taken.",
        ),
        Mistake(
            "any node with the token is taken",
            _walking(child=_any_later),
            "A node counts only if its PARENT is the place you stand at. The same token elsewhere in the tree belongs "
            "to another text.",
        ),
        Mistake(
            "a refused draw is drawn again",
            _drawn_again,
            "The draw that is no child IS the next token. Throwing it away and drawing anew makes tokens that are in "
            "the tree more likely than the target has them: they get two chances.",
        ),
        Mistake(
            "no bonus after a leaf",
            _no_bonus,
            "After a leaf there is a law too, and it was paid for: draw one token more from it. Otherwise the last "
            "accepted token would be written twice, or a token would be given away.",
        ),
        Mistake(
            "the walk stops after one node",
            _walking(at_most=1),
            "Go on as long as the draw is a child. The tree has deeper levels, and the target has read them.",
        ),
        Mistake(
            "tokens in the path instead of nodes",
            _walking(shown=lambda path, tokens: [tokens[node] for node in path]),
            "The cache is told which SLOTS to keep, so the path must hold the numbers of nodes.",
        ),
    ),
)

# --- 7.4 the gather


def _keep_cases(seed: int) -> Sequence[Case]:
    """Empty paths, whole chains, paths that jump, and paths whose slots overlap with where they go."""
    source = random.Random(seed)
    fixed: list[tuple[int, int, list[int]]] = [
        (2, 2, [1]),
        (1, 5, [0, 2]),
        (1, 5, [1, 4]),
        (3, 4, []),
        (0, 3, [0, 1, 2]),
        (2, 4, [1, 2]),
        (2, 6, [1, 2, 4]),
        (0, 2, [1]),
    ]
    for _ in range(16):
        nodes = source.randint(2, 8)
        path = sorted(source.sample(range(nodes), source.randint(0, min(3, nodes))))
        fixed.append((source.randint(0, 4), nodes, path))
    return [
        Case(
            {
                "store": torch.tensor([[10 * slot + column for column in (1, 2)] for slot in range(start + 1 + nodes)])
                .float()
                .reshape(-1, 2),
                "start": start,
                "path": path,
            }
        )
        for start, nodes, path in fixed
    ]


def _drive_keep(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Observe the length, and those slots that belong to the text; behind them lies junk that nobody sees."""
    value = function(*arguments.values())
    if isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[0], torch.Tensor):
        return {"slots of the text": value[0][: arguments["start"] + 1 + len(arguments["path"])], "length": value[1]}
    return value


def _keep_path(store: torch.Tensor, start: int, path: list[int]) -> tuple[torch.Tensor, int]:
    from specdec_ref.cache import RowCache

    cache = RowCache(1, store.device)
    cache.begin_pass(len(store))
    cache.update(store[None, None], store[None, None], 0)
    block = torch.tensor([[0, *(node + 1 for node in path)]])
    cache.keep_path([start], block, [block.shape[1]])
    return cache.keys[0][0, : len(store), 0], int(cache.lengths[0])


def _kept(
    source: Callable[[int, int], int] = lambda start, node: start + 1 + node,
    goal: Callable[[int, int], int] = lambda start, place: start + 1 + place,
    length: Callable[[int, list[int], int], int] = lambda start, path, slots: start + 1 + len(path),
    backwards: bool = False,
) -> Callable[..., Any]:
    """Make the answer that moves slots in place, one after the other, with the given faults."""

    def answer(store: torch.Tensor, start: int, path: list[int]) -> tuple[torch.Tensor, int]:
        new = store.clone()
        steps = list(enumerate(path))
        for place, node in reversed(steps) if backwards else steps:
            new[goal(start, place)] = (new if backwards else store)[source(start, node)]
        return new, length(start, path, len(store))

    return answer


def _zeroed(store: torch.Tensor, start: int, path: list[int]) -> tuple[torch.Tensor, int]:
    new = store.clone()
    for slot in range(start + 1, len(store)):
        if slot - start - 1 not in path:
            new[slot] = 0
    return new, start + 1 + len(path)


KEEP_PATH = Exercise(
    id="7.4",
    function="keep_path",
    title="Keep the accepted path",
    points=2,
    difficulty=3,
    minutes=8,
    section=_GATHER,
    rule="Slot `start` holds the last token of the text and stays. Node i was written to slot start + 1 + i. The nodes "
    "of the path move to the slots start + 1, start + 2, ... in order, and the row then holds start + 1 + len(path).",
    hints=(
        "Draw the slots for start = 2 and 5 nodes: which slot holds node 4? And where must it be, if the path is "
        "[1, 4]?",
        "Sources are the slots start + 1 + node for each node of the path, goals are start + 1, start + 2, ... Read "
        "from the old store and write to a copy; then overlap is no danger.",
        "`new = store.clone()`, then `for place, node in enumerate(path): new[start + 1 + place] = store[start + 1 + "
        "node]`, and `return new, start + 1 + len(path)`.",
    ),
    cases=_keep_cases,
    drive=_drive_keep,
    reference=_keep_path,
    mistakes=(
        Mistake(
            "no gather: only the length is changed",
            lambda store, start, path: (store.clone(), start + 1 + len(path)),
            "For a chain a shorter length is enough, since the accepted tokens come first. The nodes of a path lie "
            "anywhere among the nodes: without moving them, the row holds refused tokens at their positions.",
        ),
        Mistake(
            "refused nodes are zeroed, not closed up",
            _zeroed,
            "A zero key still takes a share of the attention, and the path still has holes. Move the nodes of the path "
            "to the slots right behind the text.",
        ),
        Mistake(
            "the last token of the text is forgotten",
            _kept(lambda start, node: start + node, lambda start, place: start + place),
            "Slot `start` holds the last token of the text, which was read in the same pass. Node 0 comes after it, in "
            "slot start + 1, and so does the path.",
        ),
        Mistake(
            "node i looked for in slot start + i",
            _kept(source=lambda start, node: start + node),
            "Slot `start` holds the last token of the text. Node i is in slot start + 1 + i.",
        ),
        Mistake(
            "the last token of the text is overwritten",
            _kept(goal=lambda start, place: start + place),
            "Slot `start` holds the last token of the text, and it stays. The path begins in the slot after it.",
        ),
        Mistake(
            "moved from the back, over nodes that are still needed",
            _kept(backwards=True),
            "A node moves to a lower slot, where another node of the path may still lie. Read from the old store and "
            "write to a copy, or move the first node first.",
        ),
        Mistake(
            "the next token counted as held",
            _kept(length=lambda start, path, slots: start + 2 + len(path)),
            "The token after the path was drawn, and nobody fed it. It is the first of the next block.",
        ),
        Mistake(
            "the last token of the text is not counted",
            _kept(length=lambda start, path, slots: start + len(path)),
            "The last token of the text was read in this pass, and it is text: it counts as well as the path.",
        ),
        Mistake(
            "refused nodes stay in the text",
            _kept(length=lambda start, path, slots: slots),
            "The row's length must end with the path. What lies behind it is junk, which the next pass writes over.",
        ),
    ),
)

# --- 7.5 the best tree


def chances_of(source: random.Random, heads: int, ranks: int) -> list[list[float]]:
    """Return falling chances for each head, together below 1; deeper heads are worse."""
    found = []
    for head in range(heads):
        best = source.uniform(0.35, 0.7) * 0.85**head
        line = [best]
        for _ in range(ranks - 1):
            line.append(min(line[-1] * source.uniform(0.35, 0.7), (1 - sum(line)) * 0.9))
        found.append(line)
    return found


def _shape_cases(seed: int) -> Sequence[Case]:
    """By hand first; then chances of two to four heads, and trees from one node to a dozen."""
    source = random.Random(seed)
    by_hand = [[0.6, 0.25], [0.5, 0.2]]
    fixed: list[tuple[list[list[float]], int]] = [(by_hand, 1), (by_hand, 2), (by_hand, 3), (by_hand, 4)]
    fixed += [([[0.8, 0.1], [0.75, 0.1], [0.7, 0.1]], 3), ([[0.35, 0.3, 0.25], [0.3, 0.2, 0.1]], 4)]
    for number in range(18):
        heads = 2 + number % 3
        fixed.append((chances_of(source, heads, source.randint(2, 4)), source.randint(4, 12 if heads > 2 else 6)))
    return [Case({"chances": chances, "num_nodes": count}) for chances, count in fixed]


def _all_paths(chances: Sequence[Sequence[float]]) -> list[Path]:
    """Return every path of the largest tree, shallow ones first."""
    return [
        path
        for depth in range(1, len(chances) + 1)
        for path in itertools.product(*(range(len(line)) for line in chances[:depth]))
    ]


def _own(chances: Sequence[Sequence[float]], path: Path) -> float:
    return chances[len(path) - 1][path[-1]]


def _whole(chances: Sequence[Sequence[float]], path: Path) -> float:
    return math.prod(chances[depth][rank] for depth, rank in enumerate(path))


def _shallow_first(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: (len(path), path))


def _best_tree(chances: list[list[float]], num_nodes: int) -> tuple[list[Path], float]:
    from specdec_ref.draft_shapes import expected_tree_tokens
    from specdec_ref.trees import parents_of

    ordered = sorted(_all_paths(chances), key=lambda path: -_whole(chances, path))
    paths = _shallow_first(ordered[:num_nodes])
    return paths, float(expected_tree_tokens(parents_of(paths), [_own(chances, path) for path in paths]))


def _drive_shape(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    value = function(*arguments.values())
    if isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[0], tuple | list):
        return [list(path) if isinstance(path, tuple) else path for path in value[0]], value[1]
    return value


_Chances = list[list[float]]


def _shaped(
    pick: Callable[[_Chances, int], list[Path]] | None = None,
    worth: Callable[[_Chances, list[Path]], float] = lambda chances, paths: (
        1.0 + sum(_whole(chances, p) for p in paths)
    ),
    order: Callable[[list[Path]], list[Path]] = _shallow_first,
) -> Callable[..., Any]:
    """Make the answer with another choice of nodes, or another count of tokens; without arguments it is right."""

    def answer(chances: _Chances, num_nodes: int) -> Any:
        paths = (pick or _likeliest)(chances, num_nodes)
        return [list(path) for path in order(paths)], worth(chances, paths)

    return answer


def _likeliest(chances: _Chances, count: int) -> list[Path]:
    return sorted(_all_paths(chances), key=lambda path: -_whole(chances, path))[:count]


BEST_TREE = Exercise(
    id="7.5",
    function="best_tree",
    title="The best tree of n nodes",
    points=3,
    difficulty=3,
    minutes=12,
    section=_SHAPE,
    rule="A node brings a token if its whole path is right: the product of the chances along it. The best n nodes are "
    "those with the largest products; a parent's is never smaller than its child's, so they form a tree. The round "
    "brings the sum of the products, and the target's own token.",
    hints=(
        "When does node (0, 2) bring a token? Head 1's best guess must be right, and then head 2's third guess.",
        "List all paths: `itertools.product` over the ranks of the first d heads, for d = 1, 2, ... Give each its "
        "product, and keep the `num_nodes` largest.",
        "`paths.sort(key=chance, reverse=True)`, `paths = sorted(paths[:num_nodes], key=lambda path: (len(path), "
        "path))`, and `return paths, 1 + sum(chance(path) for path in paths)`, where `chance` multiplies along a path.",
    ),
    cases=_shape_cases,
    drive=_drive_shape,
    reference=_best_tree,
    mistakes=(
        Mistake(
            "the target's own token is left out",
            _shaped(worth=lambda chances, paths: sum(_whole(chances, path) for path in paths)),
            "Every round brings one token of the target's own, whatever becomes of the tree: add 1.",
        ),
        Mistake(
            "own chances added up, without their parents'",
            _shaped(worth=lambda chances, paths: 1.0 + sum(_own(chances, path) for path in paths)),
            "A node counts only if its parent was accepted. Its chance of bringing a token is the product along its "
            "path.",
        ),
        Mistake(
            "every node counted as a token",
            _shaped(worth=lambda chances, paths: 1.0 + len(paths)),
            "Of siblings at most one is accepted, and often none. A node brings a token with the chance of its path.",
        ),
        Mistake(
            "the depth taken for the tokens of a round",
            _shaped(worth=lambda chances, paths: 1.0 + max(len(path) for path in paths)),
            "The depth is the most that a round can accept. What it brings on average is the sum of the path chances.",
        ),
        Mistake(
            "the nodes stand in the order of their chances",
            _shaped(order=lambda paths: list(paths)),
            "The choice is right. But shallow nodes come first, and within a level the smaller path: then parents come "
            "before their children, and the tree can be cut off after a level.",
        ),
        Mistake(
            "level by level",
            _shaped(pick=lambda chances, count: _all_paths(chances)[:count]),
            "A third guess at the first place may be worth less than a good guess at the second. Compare path chances "
            "over all levels.",
        ),
        Mistake(
            "only the best chain",
            _shaped(pick=lambda chances, count: [(0,) * depth for depth in range(1, min(count, len(chances)) + 1)]),
            "A chain stakes everything on first guesses. A second guess at the first place is often worth more than a "
            "first guess far down.",
        ),
        Mistake(
            "only first guesses get children",
            _shaped(pick=lambda chances, count: [p for p in _likeliest(chances, 10**6) if not any(p[:-1])][:count]),
            "A second guess that is right can be followed too. Consider every path, not only those along the best "
            "chain.",
        ),
        Mistake(
            "a node's own chance decides",
            _shaped(pick=lambda chances, count: sorted(_all_paths(chances), key=lambda p: -_own(chances, p))[:count]),
            "A good guess after a bad one is worth little, and it may even stand there without its parent. What counts "
            "is the product along the path.",
        ),
        Mistake(
            "the text counted as a node",
            _shaped(pick=lambda chances, count: _likeliest(chances, count - 1)),
            "The text is the root and no guess: it does not count among the nodes.",
        ),
    ),
)

EXERCISES = [CANDIDATE_TREE, TREE_BLOCK, WALK_TREE, KEEP_PATH, BEST_TREE]

QUESTIONS = [
    Question(
        "7.a",
        "Two nodes of a tree are guesses at the same place of the text. One pass reads both. What do they have in "
        "common?",
        (
            Choice(
                "Their slot in the cache",
                "Each writes a key and a value of its own, so each needs a slot of its own. After the verdict one of "
                "them, at most, is moved to where the text goes on.",
            ),
            Choice(
                "Their position, and neither sees the other",
                "Right: the position says where in the text a token would stand, and that is the depth. A text holds "
                "one of the two, so they must not read each other.",
            ),
            Choice(
                "Their row of logits",
                "Each has a row of its own: what comes after it depends on which of the two it is.",
            ),
        ),
        right="b",
    ),
    Question(
        "7.b",
        "A paper says that its heads decode with 'typical acceptance', and that the quality in a test of chat is as "
        "good as before. Is the output the target's own?",
        (
            Choice(
                "Yes: the target checks every token",
                "It checks, but by another rule: everything likely enough passes, whether or not the target would have "
                "said it this time. Likely tokens become likelier.",
            ),
            Choice(
                "Nearly, if epsilon is small",
                "The smaller the thresholds, the MORE passes, and the further the text is from the target's law.",
            ),
            Choice(
                "At temperature 0 yes, when sampling no",
                "Right: at temperature 0 the target's law has one token, and no other passes the threshold. When "
                "sampling the text follows another law. A test of quality may not notice; a test of the law does.",
            ),
        ),
        right="c",
    ),
    Question(
        "7.c",
        "A tree of 15 nodes brings 1.65 tokens a round, a chain of 3 brings 1.40. Which one is faster?",
        (
            Choice(
                "It depends on what a pass over 16 tokens costs beside one over 4",
                "Right: on a machine with arithmetic to spare they cost nearly the same, on a small processor the "
                "wide pass may cost twice as much. Divide both by their bills.",
            ),
            Choice("The tree: it brings more", "That is the upper half of the fraction. What does its pass cost?"),
            Choice(
                "The chain: 1.40 of 4 tokens is more than 1.65 of 16",
                "Tokens that were read for nothing matter only through the time they take. That may be little.",
            ),
        ),
        right="a",
    ),
    Question(
        "7.d",
        "Head 3 guesses the token three places after the next one, from the same hidden state as head 1. Why does a "
        "longer training not make it as good as head 1?",
        (
            Choice(
                "Its layer is too small",
                "A larger one helps a little. But something is missing that no layer can compute.",
            ),
            Choice(
                "It does not know what the tokens in between will be",
                "Right: the target has not chosen them yet. The best that head 3 can learn is the mean over all ways "
                "the text may take until then.",
            ),
            Choice(
                "The target is not trained together with it",
                "Training both (the paper's second version) helps, but the tokens in between are still unknown.",
            ),
        ),
        right="b",
    ),
]
