# %% [markdown]
# # Exercises: Medusa heads and trees
#
# Here you build what turns the guesses of several heads into text: the tree, its mask and positions, the walk, and the
# gather. At the end *your* functions decode with real heads.
#
# - Replace each `raise NotImplementedError()` by your answer, run the cell, then run the check below it.
# - `hint("7.1")` helps a little, and more each time. After a failed check, `replay()` shows the case that failed.
# - The lesson is `notebooks/07_medusa_and_trees.ipynb`.
#
# | exercise | points | difficulty | minutes |
# |---|---|---|---|
# | 7.1 A tree of candidates | 2 | 2 of 5 | 8 |
# | 7.2 Mask and positions of a tree | 3 | 3 of 5 | 12 |
# | 7.3 The exact walk | 3 | 3 of 5 | 12 |
# | 7.4 Keep the accepted path | 2 | 3 of 5 | 8 |
# | 7.5 The best tree of n nodes | 3 | 3 of 5 | 12 |
#
# Everywhere a tree is two lists of length N: the token of each node, and the `parents`. Parent −1 is the text; any
# other parent is the number of an earlier node. Numbers count from 0.

# %%
import torch

from specdec_course import check, hint, logbook, progress, quiz, replay

# %% [markdown]
# ## 7.1 A tree of candidates
#
# *2 points, difficulty 2 of 5, 8 minutes.* Lesson: "From guesses to a tree".
#
# Each head has a score for every token. On the text hang the `widths[0]` likeliest guesses of head 1. On **each** of
# these nodes hang the `widths[1]` likeliest guesses of head 2, and so on.
#
# Number the nodes level by level. Within a level, all children of the first node come first; among siblings, the
# likeliest comes first.
#
# By hand first: with widths 2 and 1, and guesses 5, 3 of head 1 and 8 of head 2, the tokens are 5, 3, 8, 8. And the
# parents?


# %%
def candidate_tree(head_logits, widths):
    """Return (tokens, parents) of the tree, two lists of int.

    Parameters
    ----------
    head_logits : Tensor [H, V]
        Row 0 belongs to head 1, which guesses the first draft token.
    widths : list of int
        How many guesses each node gets as children, level by level; at most H levels.
    """
    ### BEGIN SOLUTION
    tokens, parents = [], []
    above = [-1]  # the nodes that get children now
    for logits, width in zip(head_logits, widths, strict=False):  # there may be more heads than levels
        guesses = logits.topk(width).indices.tolist()
        nodes = []
        for parent in above:
            for token in guesses:
                nodes.append(len(tokens))
                tokens.append(token)
                parents.append(parent)
        above = nodes
    return tokens, parents
    ### END SOLUTION


# %%
check("7.1", candidate_tree)

# %% [markdown]
# ## 7.2 Mask and positions of a tree
#
# *3 points, difficulty 3 of 5, 12 minutes.* Lesson: "One pass for a whole tree".
#
# The block of the pass is the last token of the text, which is not in the cache yet, and then the N nodes. So place 0
# of the block is the last token, and node i is at place i + 1. The cache holds `num_cached` tokens.
#
# For each place of the block say where it sits, and which slots it sees. The first `num_cached` slots are the cached
# text; the block's own tokens follow.
#
# By hand first, for the lesson's tree: parents −1, −1, 0, 0, 1 and 4 tokens in the cache.


# %%
def tree_block(parents, num_cached):
    """Return (positions, mask) of the block, two tensors.

    Parameters
    ----------
    parents : list of int, N
        -1: a child of the text's last token. Otherwise an earlier node.
    num_cached : int
        Tokens in the cache.

    Returns
    -------
    positions : Tensor [1+N] int64
    mask : Tensor [1+N, num_cached + 1 + N] bool
        True: may be looked at.
    """
    ### BEGIN SOLUTION
    size = 1 + len(parents)
    positions = torch.full((size,), num_cached)
    mask = torch.zeros(size, num_cached + size, dtype=torch.bool)
    mask[0, : num_cached + 1] = True  # the last token of the text sees all before it, and itself
    for node, parent in enumerate(parents):
        positions[node + 1] = positions[parent + 1] + 1
        mask[node + 1] = mask[parent + 1]  # what the parent sees, ...
        mask[node + 1, num_cached + node + 1] = True  # ... and itself
    return positions, mask
    ### END SOLUTION


# %%
check("7.2", tree_block)

# %% [markdown]
# ### The lesson's tree
#
# Depths 0, 1, 1, 2, 2, 2 are wanted, and after node 4 you should see x, b and e.

# %%
try:
    positions, mask = tree_block([-1, -1, 0, 0, 1], 4)
    print("positions after the cache:", (positions - 4).tolist())
    for name, line in zip("xabcde", mask[:, 4:], strict=True):
        print(name, "sees", " ".join(other for other, seen in zip("xabcde", line, strict=True) if seen))
except NotImplementedError:
    print("Answer 7.2 first. Then run this cell again.")

# %% [markdown]
# ## 7.3 The exact walk
#
# *3 points, difficulty 3 of 5, 12 minutes.* Lesson: "Which path does the text follow?".
#
# The pass gave the target's laws: row 0 after the text, row i + 1 after node i. Walk down the tree. At each place draw
# a token; the draw after d accepted nodes uses `uniforms[d]`. Go on as long as the draw is a child of the place where
# you stand.
#
# `draw(law, uniform)` draws a token from a law [V]. At most one child of a place holds a given token.


# %%
def walk_tree(target_probs, draft_tokens, parents, uniforms, draw):
    """Return (path, next_token): the accepted nodes in order, a list, and the token after them, an int.

    Parameters
    ----------
    target_probs : Tensor [1+N, V]
        The target's law after the text, and after each node.
    draft_tokens, parents : lists of int, N
        The tree; N may be 0.
    uniforms : Tensor [D+1]
        One number for each draw; D is the depth of the tree.
    draw : function (law [V], uniform) -> int
    """
    ### BEGIN SOLUTION
    path, place = [], -1
    while True:
        token = draw(target_probs[place + 1], uniforms[len(path)])
        children = [i for i, parent in enumerate(parents) if parent == place and draft_tokens[i] == token]
        if not children:
            return path, token  # the target's own word, whatever the tree holds
        place = children[0]
        path.append(place)
    ### END SOLUTION


# %%
check("7.3", walk_tree)

# %% [markdown]
# ### Is yours exact?
#
# The check compares single walks. Here is the test of the law, with your function inside: what a round emits first,
# over a fine grid of uniform numbers, for a law that you choose. Change the tree's tokens: the shares must not move.

# %%
try:
    laws = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.6, 0.3, 0.1]])
    tokens, parents = [0, 2], [-1, -1]

    def inverse(law, uniform):
        return int((law.cumsum(0) <= uniform * law.sum()).sum())

    firsts = torch.zeros(3)
    for step in range(1000):
        numbers = torch.tensor([(step + 0.5) / 1000, 0.4])
        path, following = walk_tree(laws, tokens, parents, numbers, inverse)
        firsts[tokens[path[0]] if path else following] += 1 / 1000
    print("the target's law:", [round(value, 2) for value in laws[0].tolist()])
    print("your first token:", [round(value, 2) for value in firsts.tolist()])
except NotImplementedError:
    print("Answer 7.3 first. Then run this cell again.")

# %% [markdown]
# ## 7.4 Keep the accepted path
#
# *2 points, difficulty 3 of 5, 8 minutes.* Lesson: "What stays in the cache?".
#
# Before the pass the row held `start` tokens. The pass wrote the last token of the text to slot `start`, and node i to
# slot `start + 1 + i`. Keep what belongs to the text, in slots without a gap, and say how long the row is now.
#
# What lies behind that length does not matter: nobody sees it, and the next pass writes over it.


# %%
def keep_path(store, start, path):
    """Return (store, length): a new store in which the accepted path is contiguous, and the row's length.

    Parameters
    ----------
    store : Tensor [S, W]
        The keys of one row, one line per slot; the tree's nodes are the last ones.
    start : int
        Tokens in the row before the pass.
    path : list of int
        The accepted nodes in order; may be empty.
    """
    ### BEGIN SOLUTION
    new = store.clone()
    for place, node in enumerate(path):
        new[start + 1 + place] = store[start + 1 + node]
    return new, start + 1 + len(path)
    ### END SOLUTION


# %%
check("7.4", keep_path)

# %% [markdown]
# ## 7.5 The best tree of n nodes
#
# *3 points, difficulty 3 of 5, 12 minutes.* Lesson: "Which tree?".
#
# `chances[k][r]` is the chance that guess r of head k + 1 is the text's token. Guesses are sorted, so chances fall.
# Take the heads to be independent of each other. A node is written as its path of ranks: `(0, 2)` is the third guess of
# head 2 after the best guess of head 1.
#
# Return the `num_nodes` nodes that bring most together, and the tokens that a round with them brings on average, the
# target's own included. Sort the paths: short ones first, and paths of equal length as Python sorts them.
#
# No two paths that matter have equal chances.


# %%
def best_tree(chances, num_nodes):
    """Return (paths, expected): a sorted list of tuples of ranks, and a float.

    Parameters
    ----------
    chances : list of H lists of floats
    num_nodes : int
        At least 1, and never more than there are paths.
    """
    ### BEGIN SOLUTION
    grown = {(): 1.0}  # path -> the chance that all of it is right
    level = [()]
    for line in chances:
        level = [(*path, rank) for path in level for rank in range(len(line))]
        for path in level:
            grown[path] = grown[path[:-1]] * line[path[-1]]
    del grown[()]
    best = sorted(grown, key=grown.get, reverse=True)[:num_nodes]
    return sorted(best, key=lambda path: (len(path), path)), 1.0 + sum(grown[path] for path in best)
    ### END SOLUTION


# %%
check("7.5", best_tree)

# %% [markdown]
# ## Your functions, real heads
#
# Now the heads of `tiny-target` and of SmolLM2 guess, and everything after that is yours. The class below gives your
# functions what they ask for: a pass with your positions and your mask, and the cache, layer by layer, for your
# `keep_path`.

# %%
from specdec_course.demo import encode_prompt
from specdec_ref import sampling
from specdec_ref.decode import collect, generate, speculate
from specdec_ref.drafters import MedusaDrafter
from specdec_ref.heads import load_medusa
from specdec_ref.measure import Run
from specdec_ref.pairs import load_pair
from specdec_ref.trees import full_tree


class RealTarget:
    """A target with a cache of one row."""

    def __init__(self, lm):
        self.lm = lm.fresh(1)

    @property
    def cached(self):
        return int(self.lm.cache.lengths[0])

    def read(self, tokens):
        """Read a text, and return the feature of its last token, [W]."""
        return self.lm.prefill_with_features([tokens])[0, -1]

    def tree_pass(self, block, positions, mask):
        """Run the block; return logits [1+N, V] and features [1+N, W]. Keys and values go behind the text."""
        lowest = torch.finfo(self.lm.model.dtype).min
        added = torch.where(mask, 0.0, lowest).to(self.lm.model.dtype).to(self.lm.device)
        ids = torch.tensor([block], device=self.lm.device)
        logits, features = self.lm.run(ids, positions[None], added[None, None], features=True)
        return logits[0].float().cpu(), features[0]

    @torch.inference_mode()
    def keep(self, path, num_nodes):
        """Apply `keep_path` to the keys and values of every layer."""
        start = self.cached
        used = start + 1 + num_nodes
        for layers in (self.lm.cache.keys, self.lm.cache.values):
            for layer in layers:
                kept, length = keep_path(layer[0, :used].flatten(1), start, path)
                layer[0, :used] = kept.view_as(layer[0, :used])
        self.lm.cache.lengths = torch.tensor([length])


@torch.inference_mode()
def head_guesses(heads, feature):
    return heads.logits(feature).float().cpu()  # [H, V]


def draw(law, uniform):
    return int(sampling.draw(law, torch.as_tensor(uniform)))


def my_rounds(pair, heads, prompt, widths, max_new_tokens):
    """Decode greedily with your functions; yield the tokens of each round."""
    model, text = RealTarget(pair.target), list(prompt)
    feature = model.read(text[:-1])
    while len(text) < len(prompt) + max_new_tokens:
        tokens, parents = candidate_tree(head_guesses(heads, feature), widths)
        positions, mask = tree_block(parents, model.cached)
        logits, features = model.tree_pass([text[-1], *tokens], positions, mask)
        laws = sampling.probabilities(logits, sampling.GREEDY)  # [1+N, V]: all mass on the favourite
        path, following = walk_tree(laws, tokens, parents, torch.zeros(len(widths) + 1), draw)
        model.keep(path, len(tokens))
        feature = features[path[-1] + 1 if path else 0]
        new = [*(tokens[node] for node in path), following]
        text += new
        yield new


TASKS = {"tiny": ("Once upon a time there was a shy fox named Tom.", 40), "smol": ("What do plants need to grow?", 16)}
loaded = {name: load_pair(name) for name in TASKS}
heads_of = {name: load_medusa(p.head_folder("medusa"), p.target, p.target_folder) for name, p in loaded.items()}
results = {}
for name, (question, length) in TASKS.items():
    pair = loaded[name]
    prompt = encode_prompt(pair, question)
    plain = collect(generate(pair.target, [prompt], sampling.GREEDY, max_new_tokens=length))[0]
    try:
        rounds = list(my_rounds(pair, heads_of[name], prompt, [3, 2, 1], length))
    except NotImplementedError:
        print("Answer 7.1 to 7.4 first. Then run this cell again.")
        break
    mine = [token for new in rounds for token in new][:length]
    results[name] = (mine == plain, sum(map(len, rounds)) / len(rounds))
    print(f"{name}: {pair.tokenizer.decode(mine)!r}")
    print(f"   the tokens of plain greedy decoding: {mine == plain}; tokens a round: {results[name][1]:.2f}")

# %% [markdown]
# Every token in this text went through your mask, your walk and your gather. If one of them were wrong, the text would
# part from the plain one.
#
# And your best tree? The lesson counted how often the guesses of tiny's heads are right. Here are its shares, and what
# 15 nodes chosen by you bring beside the regular 15.

# %%
shares = [[0.68, 0.09, 0.04, 0.02], [0.58, 0.12, 0.05, 0.03], [0.58, 0.10, 0.06, 0.01]]
pair, prompt = loaded["tiny"], encode_prompt(loaded["tiny"], TASKS["tiny"][0])
try:
    paths, expected = best_tree(shares, 15)
    print("your 15 nodes:", *("-".join(map(str, path)) for path in paths))
    for name, some_paths in {"3 x 2 x 1": full_tree((3, 2, 1)), "yours": paths}.items():
        drafter = MedusaDrafter(heads_of["tiny"], some_paths)
        run = Run(list(speculate(pair.target, drafter, [prompt], sampling.GREEDY, max_new_tokens=64)))
        print(f"{name:9} {len(some_paths)} nodes: {run.emitted_per_round:.2f} tokens a round")
    print(f"and your formula expects {expected:.2f}")
except NotImplementedError:
    print("Answer 7.5 first. Then run this cell again.")

# %% [markdown]
# One text is little to judge by. The logbook keeps what your decoder achieved.

# %% tags=["nbval-ignore-output"]
if len(results) == len(TASKS):
    logbook(
        "07",
        exact=all(same for same, _ in results.values()),
        tokens_per_round_tiny=round(results["tiny"][1], 3),
        tokens_per_round_smol=round(results["smol"][1], 3),
    )
else:
    print("Answer 7.1 to 7.4 first. Then run this cell again.")

# %% [markdown]
# ## Do you see why?
#
# Four questions, without points. Pick an answer; every choice has an explanation. In a notebook without buttons, answer
# with the letter: `quiz("7.a", "b")`.

# %%
quiz("7.a")

# %%
quiz("7.b")

# %%
quiz("7.c")

# %%
quiz("7.d")

# %% [markdown]
# ## Where are you?

# %% tags=["nbval-ignore-output"]
progress()

# %% [markdown]
# ## What next?
#
# You can offer a target many guesses at once, and keep its text exact. What was missing were *better* guesses: the
# heads do not know what was guessed before them. The next stage gives them just that. EAGLE predicts the next
# *feature*, feeds in the token that was chosen, and goes on from there.
