"""Stage 07: wrong and right answers."""

from __future__ import annotations

import heapq
from itertools import product

import torch

# --- 7.1 candidate_tree


def level_by_level(head_logits, widths):
    tokens, parents, above = [], [], [-1]
    for head, width in enumerate(widths):
        guesses = head_logits[head].topk(width).indices.tolist()
        nodes = []
        for parent in above:
            for token in guesses:
                nodes.append(len(tokens))
                tokens.append(token)
                parents.append(parent)
        above = nodes
    return tokens, parents


def by_paths(head_logits, widths):
    paths, tokens = [()], []
    parents = []
    for depth in range(1, len(widths) + 1):
        for path in product(*[range(width) for width in widths[:depth]]):
            parents.append(paths.index(path[:-1]) - 1)
            paths.append(path)
            order = head_logits[depth - 1].argsort(descending=True)
            tokens.append(int(order[path[-1]]))
    return tokens, parents


def by_arithmetic(head_logits, widths):
    """Vectorised: node j of a level hangs on node j // width of the level above."""
    tokens, parents = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    start, size = -1, 1  # of the level above
    for head, width in enumerate(widths):
        here = torch.arange(size * width)
        parents = torch.cat([parents, start + here // width])
        tokens = torch.cat([tokens, head_logits[head].topk(width).indices.repeat(size)])
        start, size = (0 if start < 0 else start + size), size * width
    return tokens, parents


def with_queue(head_logits, widths):
    waiting, tokens, parents = [(-1, 0)], [], []
    while waiting:
        node, depth = waiting.pop(0)
        if depth == len(widths):
            continue
        for token in torch.topk(head_logits[depth], widths[depth])[1]:
            waiting.append((len(tokens), depth + 1))
            tokens.append(token.item())
            parents.append(node)
    return tokens, parents


def ranks(head_logits, widths):
    _, parents = level_by_level(head_logits, widths)
    tokens, size = [], 1
    for width in widths:
        tokens += list(range(width)) * size
        size *= width
    return tokens, parents


def sorted_upwards(head_logits, widths):
    return level_by_level(-head_logits, widths)


def bottom_k(head_logits, widths):
    _, parents = level_by_level(head_logits, widths)
    tokens, size = [], 1
    for head, width in enumerate(widths):
        tokens += head_logits[head].topk(width, largest=False).indices.tolist() * size
        size *= width
    return tokens, parents


def first_head_only(head_logits, widths):
    return level_by_level(head_logits[:1].expand(len(widths), -1), widths)


def heads_from_one(head_logits, widths):
    return level_by_level(head_logits[1:], widths)


def flat(head_logits, widths):
    tokens, parents = level_by_level(head_logits, widths)
    return tokens, [-1] * len(parents)


def text_is_zero(head_logits, widths):
    tokens, parents, above = [], [], [0]
    for head, width in enumerate(widths):
        nodes = []
        for parent in above:
            for token in head_logits[head].topk(width).indices.tolist():
                tokens.append(token)
                parents.append(parent)
                nodes.append(len(tokens))
        above = nodes
    return tokens, parents


def numbered_in_level(head_logits, widths):
    tokens, parents, count = [], [], 1
    for head, width in enumerate(widths):
        guesses = head_logits[head].topk(width).indices.tolist()
        for parent in range(count):
            tokens += guesses
            parents += [parent if head else -1] * width
        count *= width
    return tokens, parents


def best_only(head_logits, widths):
    tokens, parents, parent = [], [], -1
    for head, width in enumerate(widths):
        first = len(tokens)
        tokens += head_logits[head].topk(width).indices.tolist()
        parents += [parent] * width
        parent = first
    return tokens, parents


def zipped(head_logits, widths):
    tokens, parents, level = [], [], []
    for head, width in enumerate(widths):
        nodes = []
        for rank, token in enumerate(head_logits[head].topk(width).indices.tolist()):
            parents.append(level[rank] if head else -1)
            nodes.append(len(tokens))
            tokens.append(token)
        level = nodes
    return tokens, parents


def recursive(head_logits, widths, depth=0, parent=-1, found=None):
    tokens, parents = found = found or ([], [])
    if depth < len(widths):
        for token in head_logits[depth].topk(widths[depth]).indices.tolist():
            tokens.append(token)
            parents.append(parent)
            recursive(head_logits, widths, depth + 1, len(tokens) - 1, found)
    return found


def guess_outside(head_logits, widths):
    tokens, parents, above = [], [], [-1]
    for head, width in enumerate(widths):
        nodes = []
        for token in head_logits[head].topk(width).indices.tolist():
            for parent in above:
                nodes.append(len(tokens))
                tokens.append(token)
                parents.append(parent)
        above = nodes
    return tokens, parents


# --- 7.2 tree_block


def row_by_row(parents, num_cached):
    size = len(parents) + 1
    positions = torch.full((size,), num_cached)
    mask = torch.zeros(size, num_cached + size, dtype=torch.bool)
    mask[0, : num_cached + 1] = True
    for i, parent in enumerate(parents):
        positions[i + 1] = positions[parent + 1] + 1
        mask[i + 1] = mask[parent + 1]
        mask[i + 1, num_cached + i + 1] = True
    return positions, mask


def climbing(parents, num_cached):
    size = len(parents) + 1
    positions, mask = [], torch.zeros((size, num_cached + size), dtype=torch.bool)
    for place in range(size):
        mask[place, :num_cached] = True
        node, depth = place - 1, 0
        while True:
            mask[place, num_cached + node + 1] = True
            if node < 0:
                break
            node, depth = parents[node], depth + 1
        positions.append(num_cached + depth)
    return torch.tensor(positions), mask


def by_powers(parents, num_cached):
    """Ancestors are what the relation "is the parent of" reaches in some steps."""
    size = len(parents) + 1
    step = torch.zeros(size, size, dtype=torch.int64)
    for i, parent in enumerate(parents):
        step[i + 1, parent + 1] = 1
    reach, now = torch.eye(size, dtype=torch.int64), torch.eye(size, dtype=torch.int64)
    for _ in range(size):
        now = now @ step
        reach = reach + now
    text = torch.ones(size, num_cached, dtype=torch.bool)
    return num_cached + reach.sum(1) - 1, torch.cat([text, reach > 0], 1)


def other_positions(rule):
    def answer(parents, num_cached):
        _, mask = row_by_row(parents, num_cached)
        return torch.tensor([rule(parents, place, num_cached) for place in range(len(parents) + 1)]), mask

    return answer


def other_mask(change):
    """`change(block, parents)` changes the square part of the mask."""

    def answer(parents, num_cached):
        positions, mask = row_by_row(parents, num_cached)
        return positions, torch.cat([mask[:, :num_cached], change(mask[:, num_cached:].clone(), parents)], 1)

    return answer


def depth_of(parents, place):
    depth = 0
    while place > 0:
        place, depth = parents[place - 1] + 1, depth + 1
    return depth


def as_chain(parents, num_cached):
    size = len(parents) + 1
    slots = torch.arange(num_cached + size)
    positions = num_cached + torch.arange(size)
    return positions, slots <= positions[:, None]


def add_siblings(block, parents):
    for i, mine in enumerate(parents):
        for j, theirs in enumerate(parents):
            if mine == theirs:
                block[i + 1, j + 1] = True
    return block


def by_depth(block, parents):
    depth = torch.tensor([depth_of(parents, place) for place in range(len(block))])
    return (depth[None] < depth[:, None]) | torch.eye(len(block), dtype=torch.bool)


def parent_only(block, parents):
    block = torch.eye(len(block), dtype=torch.bool)
    for i, parent in enumerate(parents):
        block[i + 1, parent + 1] = True
    return block


def without_root(block, parents):
    block[1:, 0] = False
    return block


def no_text(parents, num_cached):
    positions, mask = row_by_row(parents, num_cached)
    mask[:, :num_cached] = False
    return positions, mask


# --- 7.3 walk_tree


def walk(target_probs, draft_tokens, parents, uniforms, draw):
    path, place = [], -1
    while True:
        token = draw(target_probs[place + 1], uniforms[len(path)])
        children = [i for i in range(len(parents)) if parents[i] == place and draft_tokens[i] == token]
        if not children:
            return path, token
        place = children[0]
        path.append(place)


def walk_with_dict(target_probs, draft_tokens, parents, uniforms, draw):
    children = {(parent, token): node for node, (parent, token) in enumerate(zip(parents, draft_tokens, strict=True))}
    nodes = [-1]
    for number in uniforms.tolist():
        token = draw(target_probs[nodes[-1] + 1], number)
        if (nodes[-1], token) not in children:
            break
        nodes.append(children[nodes[-1], token])
    return nodes[1:], token


def walk_recursively(target_probs, draft_tokens, parents, uniforms, draw, place=-1):
    token = draw(target_probs[place + 1], uniforms[0])
    for node, parent in enumerate(parents):
        if parent == place and draft_tokens[node] == token:
            path, last = walk_recursively(target_probs, draft_tokens, parents, uniforms[1:], draw, node)
            return [node, *path], last
    return [], token


def walk_with_own_draw(target_probs, draft_tokens, parents, uniforms, draw):
    path = []
    place = -1
    for level in range(len(uniforms)):
        cdf = target_probs[place + 1].cumsum(0)
        token = int((uniforms[level] * cdf[-1] >= cdf).sum())
        hit = [n for n, p in enumerate(parents) if (p, draft_tokens[n]) == (place, token)]
        if len(hit) == 0:
            return torch.tensor(path, dtype=torch.int64), token
        (place,) = hit
        path = [*path, place]
    raise AssertionError("deeper than the numbers")


def favourite_walk(target_probs, draft_tokens, parents, uniforms, draw):
    return walk(target_probs, draft_tokens, parents, uniforms, lambda probs, _: int(torch.argmax(probs)))


def one_number(target_probs, draft_tokens, parents, uniforms, draw):
    return walk(target_probs, draft_tokens, parents, uniforms[:1].expand(len(parents) + 2), draw)


def text_law_only(target_probs, draft_tokens, parents, uniforms, draw):
    return walk(target_probs[:1].expand(len(parents) + 1, -1), draft_tokens, parents, uniforms, draw)


def other_row(rule):
    def answer(target_probs, draft_tokens, parents, uniforms, draw):
        path, place = [], -1
        while True:
            token = draw(target_probs[rule(place, len(path))], uniforms[len(path)])
            children = [i for i in range(len(parents)) if parents[i] == place and draft_tokens[i] == token]
            if not children:
                return path, token
            place = children[0]
            path.append(place)

    return answer


def cousins_too(target_probs, draft_tokens, parents, uniforms, draw):
    levels = {}
    for node in range(len(parents)):
        levels.setdefault(depth_of(parents, node + 1), []).append(node)
    path, place = [], -1
    while True:
        token = draw(target_probs[place + 1], uniforms[len(path)])
        hit = [node for node in levels.get(len(path) + 1, []) if draft_tokens[node] == token]
        if not hit:
            return path, token
        place = hit[0]
        path.append(place)


def anywhere(target_probs, draft_tokens, parents, uniforms, draw):
    path, place = [], -1
    while True:
        token = draw(target_probs[place + 1], uniforms[len(path)])
        if token not in draft_tokens[place + 1 :]:
            return path, token
        place = draft_tokens.index(token, place + 1)
        path.append(place)


def drawn_twice(target_probs, draft_tokens, parents, uniforms, draw):
    path, place = [], -1
    for level in range(len(uniforms) - 1):
        token = draw(target_probs[place + 1], uniforms[level])
        children = [i for i in range(len(parents)) if parents[i] == place and draft_tokens[i] == token]
        if not children:
            break
        place = children[0]
        path.append(place)
    return path, draw(target_probs[place + 1], uniforms[-1])


def leaf_is_the_end(target_probs, draft_tokens, parents, uniforms, draw):
    path, place = [], -1
    while place in parents:
        token = draw(target_probs[place + 1], uniforms[len(path)])
        children = [i for i in range(len(parents)) if parents[i] == place and draft_tokens[i] == token]
        if not children:
            return path, token
        place = children[0]
        path.append(place)
    return path, token


def one_step(target_probs, draft_tokens, parents, uniforms, draw):
    token = draw(target_probs[0], uniforms[0])
    for node, parent in enumerate(parents):
        if parent == -1 and draft_tokens[node] == token:
            return [node], draw(target_probs[node + 1], uniforms[1])
    return [], token


def path_of_tokens(target_probs, draft_tokens, parents, uniforms, draw):
    path, token = walk(target_probs, draft_tokens, parents, uniforms, draw)
    return [draft_tokens[node] for node in path], token


# --- 7.4 keep_path


def gathered(store, start, path):
    new = store.clone()
    for place, node in enumerate(path):
        new[start + 1 + place] = store[start + 1 + node]
    return new, start + 1 + len(path)


def gathered_at_once(store, start, path):
    new = store.clone()
    source = torch.tensor(path, dtype=torch.int64) + start + 1
    new[start + 1 : start + 1 + len(path)] = store[source]
    return new, start + 1 + len(path)


def built_anew(store, start, path):
    kept = [store[slot] for slot in range(start + 1)] + [store[start + 1 + node] for node in path]
    rest = torch.full((len(store) - len(kept), store.shape[1]), -1.0)
    return torch.cat([torch.stack(kept), rest]), len(kept)


def moved_in_place(store, start, path):
    store = store.clone()
    length = start + 1
    for node in path:
        store[length] = store[start + 1 + node]
        length += 1
    return store, length


def shortened(store, start, path):
    return store, start + 1 + len(path)


def shortened_copy(store, start, path):
    return store.clone(), start + len(path) + 1


def zeroed(store, start, path):
    keep = torch.zeros(len(store), 1)
    keep[: start + 1] = 1
    for node in path:
        keep[start + 1 + node] = 1
    return store * keep, start + 1 + len(path)


def shifted(source, goal, length=lambda start, path, slots: start + 1 + len(path)):
    def answer(store, start, path):
        new = store.clone()
        for place, node in enumerate(path):
            new[start + goal + place] = store[start + source + node]
        return new, length(start, path, len(store))

    return answer


def from_the_back(store, start, path):
    new = store.clone()
    for place in range(len(path) - 1, -1, -1):
        new[start + 1 + place] = new[start + 1 + path[place]]
    return new, start + 1 + len(path)


def in_the_argument(store, start, path):
    for place, node in enumerate(path):
        store[start + 1 + place] = store[start + 1 + node]
    return store, start + 1 + len(path)


# --- 7.5 best_tree


def every_path(chances):
    for depth in range(1, len(chances) + 1):
        yield from product(*[range(len(line)) for line in chances[:depth]])


def along(chances, path):
    value = 1.0
    for line, rank in zip(chances, path, strict=False):
        value *= line[rank]
    return value


def ordered(paths):
    return sorted(paths, key=lambda path: (len(path), path))


def best_by_sorting(chances, num_nodes):
    paths = sorted(every_path(chances), key=lambda path: along(chances, path), reverse=True)[:num_nodes]
    return ordered(paths), 1.0 + sum(along(chances, path) for path in paths)


def best_with_heap(chances, num_nodes):
    """Grow from the text: always take the likeliest of the nodes whose parent is in the tree."""
    waiting = [(-chance, (rank,)) for rank, chance in enumerate(chances[0])]
    heapq.heapify(waiting)
    taken, total = [], 1.0
    while waiting and len(taken) < num_nodes:
        minus, path = heapq.heappop(waiting)
        taken.append(path)
        total -= minus
        if len(path) < len(chances):
            for rank, chance in enumerate(chances[len(path)]):
                heapq.heappush(waiting, (minus * chance, (*path, rank)))
    return ordered(taken), total


def best_greedily(chances, num_nodes):
    """Add the node that brings most, one after the other."""
    tree = []
    for _ in range(num_nodes):
        open_paths = [p for p in every_path(chances) if p not in tree and (len(p) == 1 or p[:-1] in tree)]
        tree.append(max(open_paths, key=lambda path: along(chances, path)))
    tree.sort(key=lambda path: (len(path), path))
    expected = 1
    for path in tree:
        expected += along(chances, path)
    return [list(path) for path in tree], expected


def worth(count):
    """The best tree, counted in another way."""

    def answer(chances, num_nodes):
        paths, _ = best_by_sorting(chances, num_nodes)
        return paths, count(chances, paths)

    return answer


def choice(pick):
    """Another tree, counted rightly."""

    def answer(chances, num_nodes):
        paths = pick(chances, num_nodes)
        return ordered(paths), 1.0 + sum(along(chances, path) for path in paths)

    return answer


def own(chances, path):
    return chances[len(path) - 1][path[-1]]


def unordered(chances, num_nodes):
    paths = sorted(every_path(chances), key=lambda path: -along(chances, path))[:num_nodes]
    return paths, 1.0 + sum(along(chances, path) for path in paths)


def caterpillar(chances, num_nodes):
    found = []
    for depth, line in enumerate(chances):
        found += [((0,) * depth + (rank,)) for rank in range(len(line))]
    return sorted(found, key=lambda path: -along(chances, path))[:num_nodes]


MUTANTS = {
    "7.1": {
        "ranks instead of token ids": [ranks],
        "the least likely guesses": [sorted_upwards, bottom_k],
        "one head for all levels": [first_head_only],
        "the first head is skipped": [heads_from_one],
        "all nodes hang on the text": [flat],
        "the text counted as node 0": [text_is_zero],
        "parents numbered within their level": [numbered_in_level],
        "only the likeliest guess gets children": [best_only],
        "second guesses hang on second guesses only": [zipped],
        "numbered branch by branch": [recursive],
        "siblings are not next to each other": [guess_outside],
        "missing return": [lambda head_logits, widths: None],
    },
    "7.2": {
        "the tree is treated as a chain": [as_chain],
        "positions by index": [other_positions(lambda parents, place, cached: cached + place)],
        "positions do not go on from the cached text": [
            other_positions(lambda parents, place, _: depth_of(parents, place))
        ],
        "the tree begins where the last token sits": [
            other_positions(lambda parents, place, cached: cached + max(depth_of(parents, place) - 1, 0))
        ],
        "one more than the parent's number": [
            other_positions(lambda parents, place, cached: cached + (parents[place - 1] + 1 + 1 if place else 0))
        ],
        "every token sees all earlier ones of the block": [other_mask(lambda block, _: torch.ones_like(block).tril())],
        "siblings see each other": [other_mask(add_siblings)],
        "everything at a smaller depth is seen": [other_mask(by_depth)],
        "a token does not see itself": [other_mask(lambda block, _: block.fill_diagonal_(False))],
        "only the parent is seen, not its ancestors": [other_mask(parent_only)],
        "the last token of the text is hidden": [other_mask(without_root)],
        "the cached text is hidden": [no_text],
        "the mask is turned round": [other_mask(lambda block, _: block.T)],
        "wrong dtype": [
            lambda parents, num_cached: (row_by_row(parents, num_cached)[0], row_by_row(parents, num_cached)[1].float())
        ],
    },
    "7.3": {
        "the likeliest token instead of a draw": [favourite_walk],
        "one uniform number for all draws": [one_number],
        "always drawn from the law after the text": [text_law_only, other_row(lambda place, depth: 0)],
        "the row of the depth instead of the node": [other_row(lambda place, depth: depth)],
        "the law before the node instead of the law after it": [other_row(lambda place, depth: max(place, 0))],
        "children of a refused node are counted": [cousins_too],
        "any node with the token is taken": [anywhere],
        "a refused draw is drawn again": [drawn_twice],
        "no bonus after a leaf": [leaf_is_the_end],
        "the walk stops after one node": [one_step],
        "tokens in the path instead of nodes": [path_of_tokens],
    },
    "7.4": {
        "no gather: only the length is changed": [shortened, shortened_copy],
        "refused nodes are zeroed, not closed up": [zeroed],
        "the last token of the text is forgotten": [shifted(0, 0)],
        "node i looked for in slot start + i": [shifted(0, 1)],
        "the last token of the text is overwritten": [shifted(1, 0)],
        "moved from the back, over nodes that are still needed": [from_the_back],
        "the next token counted as held": [shifted(1, 1, lambda start, path, slots: start + 2 + len(path))],
        "the last token of the text is not counted": [shifted(1, 1, lambda start, path, slots: start + len(path))],
        "refused nodes stay in the text": [shifted(1, 1, lambda start, path, slots: slots)],
        "changed input": [in_the_argument],
    },
    "7.5": {
        "the target's own token is left out": [worth(lambda chances, paths: sum(along(chances, p) for p in paths))],
        "own chances added up, without their parents'": [
            worth(lambda chances, paths: 1 + sum(own(chances, p) for p in paths))
        ],
        "every node counted as a token": [worth(lambda chances, paths: len(paths) + 1.0)],
        "the depth taken for the tokens of a round": [worth(lambda chances, paths: 1.0 + max(map(len, paths)))],
        "the nodes stand in the order of their chances": [unordered],
        "level by level": [choice(lambda chances, n: list(every_path(chances))[:n])],
        "only the best chain": [choice(lambda chances, n: [(0,) * d for d in range(1, len(chances) + 1)][:n])],
        "only first guesses get children": [choice(caterpillar)],
        "a node's own chance decides": [
            choice(lambda chances, n: sorted(every_path(chances), key=lambda p: own(chances, p), reverse=True)[:n])
        ],
        "the text counted as a node": [choice(lambda chances, n: best_by_sorting(chances, n - 1)[0])],
    },
}

CORRECT = {
    "7.1": {"levels": level_by_level, "paths": by_paths, "arithmetic": by_arithmetic, "queue": with_queue},
    "7.2": {"row by row": row_by_row, "climbing": climbing, "powers": by_powers},
    "7.3": {
        "loop": walk,
        "dict": walk_with_dict,
        "recursive": walk_recursively,
        "own draw": walk_with_own_draw,
    },
    "7.4": {
        "loop": gathered,
        "at once": gathered_at_once,
        "anew": built_anew,
        "in place": moved_in_place,
    },
    "7.5": {"sorting": best_by_sorting, "heap": best_with_heap, "greedy": best_greedily},
}
