# %% [markdown]
# # Medusa heads and trees
#
# A second model is not the only one who can guess. The target itself knows more than it says: its last hidden state,
# which yields the next token, also hints at the tokens after that one. *Medusa* reads these hints with a few small
# heads. Their guesses are cheap and not very good, so several of them are offered at once, as a **tree**.
#
# After this stage you can
#
# - say what a Medusa head reads, what it guesses, and why heads that look further guess worse,
# - build a tree of guesses, and the mask and positions with which the target reads it in *one* pass,
# - walk down the tree so that the text follows the target exactly, and clean up the cache afterwards,
# - choose a tree for a budget of nodes,
# - train such heads in seconds, and watch loss and acceptance move,
# - tell exact acceptance from *typical* acceptance, which is faster and no longer exact.
#
# Reading takes about 20 minutes. The exercises are in `exercises/07_medusa_and_trees.ipynb`.
#
# | symbol | in code | meaning |
# |---|---|---|
# | f_t | `features[t]` | the target's last hidden state after token t |
# | H | `heads` | number of Medusa heads |
# | N | `num_nodes` | nodes of a tree: guesses that one pass reads |
# | D | `depth` | the deepest level of a tree: the most that a round can accept |
# | p | `target_probs` | the target's law; here one row for the text, and one for each node |

# %% [markdown]
# ## Where could guesses come from?
#
# The draft model of stage 04 made K passes for K tokens. Small passes, but one after the other, and it took memory of
# its own. Can something in the target guess without them?
#
# Look at what a pass of the target computes for each token. At the end stands a vector, the **feature** f_t: a few
# hundred numbers about the text up to token t. The output layer turns it into the law of the next token. But the model
# was not trained to describe one token only. If the text says "once upon", then "a" follows, and f_t cannot help
# knowing that "time" comes after it.
#
# A **Medusa head** is one small layer that turns f_t into another vector, for the *same* output layer:
#
# $$\text{head}_k(f_t) = f_t + \text{SiLU}(W_k f_t + b_k)$$
#
# $\text{SiLU}(z) = z / (1 + e^{-z})$ leaves large positive numbers as they are and makes negative ones small. (In the
# paper each head trains an output layer of its own, which begins as a copy. The course shares one, which saves memory.)
#
# The output layer itself guesses $x_{t+1}$. Head 1 guesses $x_{t+2}$, head 2 guesses $x_{t+3}$, and so on: all from the
# same feature, all at once. Let us look at one place of a story that `tiny-target` writes. It has three heads.

# %%
import torch

from specdec_course.demo import encode_prompt
from specdec_ref.decode import collect, generate, speculate
from specdec_ref.heads import load_medusa
from specdec_ref.pairs import load_pair
from specdec_ref.rows import Stop
from specdec_ref.sampling import GREEDY

tiny = load_pair("tiny")
target, tokenizer = tiny.target, tiny.tokenizer
heads = load_medusa(tiny.head_folder("medusa"), target, tiny.target_folder)

openings = [
    encode_prompt(tiny, text)
    for text in (
        "Once upon a time there was a shy fox named Tom.",
        "One windy morning Mia walked to the market.",
        "There once was a brave girl whose name was Lily.",
        "In the garden Ben found a silver key.",
        "This is the story of Otto, a curious crow.",
        "Every evening, Nora liked to visit the library.",
        "Ravi was a stubborn boy who lived near the old mill.",
        "On a foggy morning, Ella wanted to play in the park.",
        "In a house near the harbour lived a clever cat called Max.",
        "It was a cold evening, and Ivan was on his way to the farm.",
        "There once was a sleepy turtle whose name was Ada.",
        "Hana was a kind girl who lived near the orchard.",
    )
]
stop = Stop(token_ids=tiny.eos_token_ids)
stories = collect(generate(target, openings, GREEDY, max_new_tokens=64, stop=stop))  # twelve rows of one batch


def word(token):
    return repr(tokenizer.decode([token]))


@torch.inference_mode()
def guesses_at(heads, text, ranks):
    """The likeliest tokens of each head at each place of a text, [T, H, ranks]."""
    features = target.fresh(1).prefill_with_features([text])[0]  # [T, W]: W numbers for each token
    return heads.logits(features).topk(ranks).indices


whole = [*openings[0], *stories[0]]
t = len(openings[0]) + 3
best = guesses_at(heads, whole, 3)[t]  # [H, 3]
print("the text up to t:      ", repr(tokenizer.decode(whole[t - 8 : t + 1])))
print("the target says next:  ", word(whole[t + 1]))
for number, line in enumerate(best, 1):
    print(f"head {number} guesses x[t+{number + 1}]:", *(word(token) for token in line), "- it becomes", end=" ")
    print(word(whole[t + 1 + number]))

# %% [markdown]
# *Question.* At the start of a round the last token of the text is committed, but the target has not read it yet. Which
# feature is there to guess from?
#
# That of the token before it. The text has n tokens, the target has read n − 1. From the last feature it has, the
# output layer gave the token that is now the last of the text. So head 1, which guesses one place further, guesses just
# what is needed: the first draft token. No extra pass is made for drafting at all. The features come out of the pass
# that verifies.
#
# ## How often is a guess right?
#
# Head 2 must guess a token without knowing what stands before it: head 1's token is not chosen when head 2 speaks. So
# what would you expect of heads 1, 2, 3? And of their second and third guesses?
#
# We count, along twelve stories: how often is the story's own token the first, second, ... guess of each head?


# %%
def count_hits(heads, openings, stories, ranks=4):
    """The share of places where guess r of head k is the text's token, [H, ranks]."""
    hits, places = 0, 0
    for opening, story in zip(openings, stories, strict=True):
        text = torch.tensor([*opening, *story])
        guesses = guesses_at(heads, text.tolist(), ranks)  # [T, H, ranks]
        first, count = len(opening) - 2, len(story) - heads.shape.heads  # as many places for each head
        places += count
        found = [
            (guesses[first : first + count, k - 1].cpu() == text[first + 1 + k :][:count, None]).sum(0)
            for k in range(1, heads.shape.heads + 1)
        ]
        hits = hits + torch.stack(found)  # [H, ranks]
    return (hits / places).tolist()


shares = count_hits(heads, openings, stories)
print("guess:      first second  third fourth   one of three")
for number, line in enumerate(shares, 1):
    print(f"head {number}:   ", *(f"{share:6.2f}" for share in line), f"{sum(line[:3]):14.2f}")

# %% tags=["nbval-ignore-output"]
from specdec_course import tree_figures as figures
from specdec_course.figures import show

show(
    figures.draw_hits(shares, "How often is a guess the text's own token?"),
    alt="Bars for three heads. First guesses: "
    + ", ".join(f"head {number} {line[0]:.2f}" for number, line in enumerate(shares, 1))
    + ". Second, third and fourth guesses are right far less often, but together they add a good part.",
)

# %% [markdown]
# Two things stand out. Head 1 is the best; the two that look further hit less. And where the first guess is wrong, one
# of the next ones is often right.
#
# Can longer training make head 3 as good as head 1? No. The tokens in between are not chosen yet, and nobody can know
# them. The best that head 3 can learn is the mean over all ways the text may take until then. A draft model does not
# have this limit, because it reads its own guesses. That is what it is paid for.
#
# ## From guesses to a tree
#
# The best guess of each head, one after the other: that is a chain of three, as in stage 04. If the first is wrong, the
# other two are lost, however good they are.
#
# What if we offer more? Three guesses for the first place. After *each* of them two guesses of head 2. After each of
# those the best guess of head 3. That makes 3 + 6 + 6 nodes. A node is written as its **path** of ranks: (0, 1) is head
# 2's second guess after head 1's best. And for the decoder, all that counts is each node's token and its **parent**:

# %%
from specdec_ref.trees import full_tree, parents_of

paths = full_tree((3, 2, 1))
parents = parents_of(paths)
tokens = [int(best[len(path) - 1, path[-1]]) for path in paths]
for node, (path, parent, token) in enumerate(zip(paths, parents, tokens, strict=True)):
    print(f"node {node:2}: path {path!s:10} parent {parent:2}   {word(token)}")

# %% [markdown]
# Parent −1 is the text. Nodes are numbered level by level, so a parent always stands before its children, and a round
# with little room left can cut the tree after a level.
#
# The heads do not know of each other, so the guesses of head 2 are the same below each guess of head 1. Most of these
# combinations make no sense. That does not matter, as long as one of them is the text. Which one is it here?

# %%
path_taken, place = [], -1
for token in whole[t + 2 :]:
    children = [node for node in range(len(tokens)) if parents[node] == place and tokens[node] == token]
    if not children:
        break
    place = children[0]
    path_taken.append(place)
print("the text goes on:", *(word(token) for token in whole[t + 2 : t + 5]))
print("nodes on its path:", path_taken, "so this round would bring", len(path_taken) + 1, "tokens")

# %% tags=["nbval-ignore-output"]
show(
    figures.draw_tree(
        [word(token) for token in tokens], parents, word(whole[t + 1]), path_taken, "15 guesses, one path is the text"
    ),
    alt="A tree from left to right. The last token of the text has three children, guesses of head 1; each has two "
    f"children, guesses of head 2; each of those has one, of head 3. The nodes {path_taken} lie on the text's path; "
    "the others are read for nothing.",
)

# %% [markdown]
# ## One pass for a whole tree
#
# The target must give a law after every node. One pass per path would do, but the paths share their beginnings, and
# many passes are just what we want to avoid. Stage 03 put a chain into one pass. What must change for a tree?
#
# A pass is told three things about a token: what it *is*, where it *sits*, and whom it *sees*. For a chain the last two
# follow from its number in the block. For a tree they follow from the text that the node stands for:
#
# - **Position**: the text's length, plus the node's depth. Guesses at the same place share a position.
# - **Mask**: the whole text before, the node's ancestors, and itself. Nobody else. A sibling is *another* guess at the
#   same place, so both cannot be in one text.
#
# A small tree to do by hand. The last token of the text, x, is the root, because it is not in the cache yet. It has
# children a and b; a has c and d; b has e. Write down depths and mask before you run the cell.

# %%
from specdec_ref.model import attention_mask, block_shape

names = "xabcde"
hand_parents = [-1, -1, 0, 0, 1]  # of a, b, c, d, e; -1 is x
block_parents = torch.tensor([[-1, *(parent + 1 for parent in hand_parents)]])  # in the block, x is place 0
offsets, sees = block_shape(1, len(names), block_parents)
print("depths:", offsets[0].tolist())
print("   " + " ".join(names))
for name, line in zip(names, sees[0], strict=True):
    print(name, " " + " ".join("#" if one else "." for one in line))

# %% [markdown]
# Is that right? There is a test that needs no belief: **a node's logits must equal a plain run over its own path.** We
# use the table model of stage 03, which has no rounding. It looks at its own token, and at the one that sits one
# position before it and is visible.

# %%
from specdec_ref.table import table_lm

V = 7
random_table = table_lm(torch.randn(V, V, V, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
text, nodes = [3, 1, 4], [2, 5, 6, 0, 1]  # the text, and the tokens of a .. e


def tree_pass(lm, text, nodes, offsets, sees):
    """Logits after the last token of the text and after each node, [1+N, V], in one pass."""
    lm = lm.fresh(1)
    lm.prefill([text[:-1]])
    block = torch.tensor([[text[-1], *nodes]], device=lm.device)
    mask = attention_mask(lm.cache.lengths, sees, lm.model.dtype, lm.device)
    return lm.run(block, lm.cache.lengths[:, None] + offsets, mask)[0][0]


def path_to(node, parents):
    return [] if node < 0 else [*path_to(parents[node], parents), node]


def one_by_one(lm, text, nodes, parents):
    """The same, from a plain run over each path."""
    found = []
    for node in range(-1, len(nodes)):
        alone = lm.fresh(1)
        alone.prefill([text[:-1]])
        block = [text[-1], *(nodes[n] for n in path_to(node, parents))]
        found.append(alone.extend(torch.tensor([block], device=lm.device))[0, -1])
    return torch.stack(found)


truth = one_by_one(random_table, text, nodes, hand_parents)
right = tree_pass(random_table, text, nodes, offsets, sees)
print("every node equals its own path, to the last bit:", torch.equal(right, truth))

# %% [markdown]
# Now three mistakes that shipped in real programs. Each looks harmless:
#
# - *positions by index*: 0, 1, 2, 3, 4, 5, as in a chain,
# - *a causal mask*: each node sees everything before it in the block,
# - *siblings that see each other*.
#
# Which nodes get a wrong law? We ask the table model, and `tiny-target` with the tree of 15 nodes from above.


# %%
def wrong_nodes(lm, text, nodes, parents, tolerance):
    """Which nodes differ from a plain run over their path, by the way that the block is set up."""
    block = torch.tensor([[-1, *(parent + 1 for parent in parents)]])
    depth, family = block_shape(1, block.shape[1], block)
    index, causal = block_shape(1, block.shape[1], None)
    siblings = family | ((block[:, :, None] == block[:, None]) & (block >= 0)[:, :, None])
    truth = one_by_one(lm, text, nodes, parents)
    ways = {
        "right": (depth, family),
        "positions by index": (index, family),
        "a causal mask": (depth, causal),
        "siblings see each other": (depth, siblings),
    }
    return {
        name: ((tree_pass(lm, text, nodes, *shape) - truth).abs().amax(-1) > tolerance).nonzero()[:, 0].tolist()
        for name, shape in ways.items()
    }


for name, wrong in wrong_nodes(random_table, text, nodes, hand_parents, 1e-9).items():
    print(f"table, {name:25} wrong laws after: {' '.join(names[place] for place in wrong) or 'none'}")
# %%
for name, wrong in wrong_nodes(target, whole[: t + 2], tokens, parents, 0.01).items():
    print(f"tiny,  {name:25} {len(wrong):2} of {len(tokens) + 1} laws are wrong")

# %% [markdown]
# Two things to notice. Along a chain none of these mistakes shows, so a test must have a tree. And the table model says
# nothing about siblings that see each other: it looks one position back, and a sibling does not sit there. *A test
# finds only what its model looks at.* The real model finds it at once.
#
# And the text? The walk below asks the target at each node, so it believes these laws. **A wrong mask changes the
# text.** That is worse than the faults of stage 04, which only cost time.
#
# Look at the mask yourself. Choose a tree, a token, and what it is shown. (Without a kernel you see a still picture.)

# %% tags=["nbval-ignore-output"]
from specdec_course.widgets.tree_mask import view_tree_mask

view_tree_mask()

# %%
from specdec_course.widgets.tree_mask import TREES, WAYS, view_of

for way in WAYS:
    kinds = [kind for line in view_of(next(iter(TREES)), way).kinds for kind in line]
    print(f"{way:32} positions {view_of(next(iter(TREES)), way).positions}, wrongly seen: {kinds.count('wrong')}")

# %% [markdown]
# ## Which path does the text follow?
#
# One pass gave a law after the text, and one after each node. Which of the nodes may stay?
#
# In stage 02 a draft was kept with chance p / q. Here the guesses were not drawn: they are the likeliest ones, so there
# is no q. There is a simpler rule. *Let the target speak, and see whether the tree can follow.*
#
# 1. Stand at the text. Draw a token from the target's law there.
# 2. Is it one of the children of this place? Then go there, and draw from the law after *that* node.
# 3. If not, the walk ends. **The token that was drawn is the next token.** It is not thrown away.
#
# Every token of the text is drawn by the target, from its own law, after the right prefix. The tree has no say in it.
# It only decides how many draws one pass can serve. So the rule is exact for *any* tree, if nobody looks at the uniform
# numbers while building it. At temperature 0 the draw is the maximum.
#
# Do not believe it: count it. `specdec_ref.law` runs the verifier in every cell of uniform space, for a target whose
# law depends on the last two tokens. We compare whole texts of three tokens with what the target writes alone. Beside
# the right rule, three others that people write.

# %%
from specdec_ref.acceptance import Verification, verify_tree
from specdec_ref.law import fixed_tree, target_law, text_law, tree_round_law
from specdec_ref.sampling import draw
from specdec_ref.trees import depths

table = torch.randn(3, 3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64).softmax(-1)
small_tree = fixed_tree((0, 1, 1, 2), (-1, -1, 0, 1))  # 0 and 1 after the text; 1 after the 0, 2 after the 1


def distance(verify):
    """Total variation between the law of three tokens with this rule, and the target's own."""
    law = text_law(table, lambda so_far: tree_round_law(table, small_tree, so_far, verify), (0, 1), 3, rounds=2)
    return float((law - target_law(table, (0, 1), 3)).abs().sum() / 2)


def drawn_again(p, tokens, parents, uniforms, num_drafted=None):
    """Throws a draw away that is no child, and draws the next token anew."""
    found = verify_tree(p, tokens, parents, uniforms, num_drafted)
    rows, last = torch.arange(len(p)), (found.num_accepted - 1).clamp(min=0)
    place = torch.where(found.num_accepted > 0, found.path[rows, last], -1)
    return Verification(found.num_accepted, draw(p[rows, place + 1], uniforms[:, -1]), found.path)


def row_of_the_depth(p, tokens, parents, uniforms, num_drafted=None):
    """Takes the law in row 1, 2, ... after the first, second, ... accepted node, as in a chain."""
    by_depth = torch.nn.functional.pad(depths(parents), (1, 0))
    return verify_tree(p.gather(1, by_depth[..., None].expand_as(p)), tokens, parents, uniforms, num_drafted)


def children_of_others(p, tokens, parents, uniforms, num_drafted=None):
    """Accepts a token of the next level whoever its parent is."""
    first_of_level = torch.where(parents < 0, -1, 0)  # as if all deeper nodes hung on node 0
    return verify_tree(p, tokens, first_of_level, uniforms, num_drafted)


for name, rule in {
    "the walk": verify_tree,
    "a refused draw is drawn again": drawn_again,
    "the row of the depth": row_of_the_depth,
    "children of a refused node count": children_of_others,
}.items():
    print(f"{name:33} distance from the target's law: {distance(rule):.6f}")

# %% [markdown]
# The walk is exact to the last digit shown. The others look like it, and write fluent text. Only counting, or a test of
# the law, finds them.
#
# Why is drawing again wrong? A token of the tree gets two chances: if the first draw is no child, the second may be
# anything, the tree's tokens too. So they become likelier than the target has them.
#
# ### And if the guesses are drawn?
#
# A tree may also hold guesses that were *drawn* from a law q, as a draft model draws them. Then p / q comes back, child
# by child. The first child is judged by p and q. If it is refused, what p still misses is max(0, p − q), scaled: stage
# 02's residual. And *that* is the law the second child has to match. Not p again: the first child has had its turn.
# Only when all children are refused, the token is drawn from what is left.
#
# How much does a second child help? Take p = .5, .3, .2 and q = .2, .5, .3, children drawn without repeating.

# %%
from specdec_ref.acceptance import residual
from specdec_ref.law import sampled_trees, sibling_round_law

p, q = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([0.2, 0.5, 0.3]).double()
one_child = float(torch.minimum(p, q).sum())
left, rescued = residual(p, q), 0.0
for token in range(3):
    refused = float(q[token] * (1 - (p[token] / q[token]).clamp(max=1)))  # drawn first, and refused
    second_q = q.clone()
    second_q[token] = 0
    rescued += refused * float(torch.minimum(left, second_q / second_q.sum()).sum())
print(f"a child passes: with one child {one_child:.3f}, with two {one_child + rescued:.3f}")

drafting = torch.randn(3, 3, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64).softmax(-1)


def siblings_round(so_far):
    return sibling_round_law(table, sampled_trees(drafting, so_far, (-1, -1, 0)), so_far)


law = text_law(table, siblings_round, (0, 1), 3, rounds=2)
print("exact as well:", bool((law - target_law(table, (0, 1), 3)).abs().max() < 1e-12))

# %% [markdown]
# Medusa's guesses here are not drawn, so we go on with the walk. (`candidates` and `eagle-tree` in `specdec_ref` draw
# their trees.)
#
# ## What stays in the cache?
#
# After a chain, rollback was a subtraction: the accepted tokens come first, what is behind them is junk. After a tree?
# Say b and e are accepted. In the cache lie x, a, b, c, d, e, in this order. The text is now x, b, e.
#
# The table model stores tokens as values and positions as keys, so we can look into its slots. Compare two ways to
# clean up: shorten only, or **gather** the path first.

# %%
block = torch.tensor([[text[-1], *nodes]])
path = torch.tensor([[0, 2, 5]])  # places in the block: x, b, e


def slots(lm):
    """What each slot of the text holds, as token@position."""
    held = int(lm.cache.lengths[0])
    pairs = zip(lm.cache.values[0][0, :held, 0, 0].tolist(), lm.cache.keys[0][0, :held, 0, 0].tolist(), strict=True)
    return " ".join(f"{token:.0f}@{position:.0f}" for token, position in pairs)


def after_tree():
    lm = random_table.fresh(1)
    lm.prefill([text[:-1]])
    start = lm.cache.lengths
    lm.extend(block, parents=block_parents)
    return lm, start


follow = torch.tensor([[2]])  # the token that the walk ended with
fresh = random_table.fresh(1)
fresh.prefill([[*text, nodes[1], nodes[4]]])
wanted = fresh.extend(follow)
lm, start = after_tree()
print("after the pass:  ", slots(lm))
lm.rollback([3])
print("shortened:       ", slots(lm), "  next logits right:", torch.equal(lm.extend(follow), wanted))
lm, start = after_tree()
lm.cache.keep_path(start, path, [3])
print("gathered:        ", slots(lm), "  next logits right:", torch.equal(lm.extend(follow), wanted))

# %% [markdown]
# Shortened, the row holds a and b: two guesses at one place, and no e. Gathered, the positions are 0, 1, 2, 3, 4
# without a hole, and the next logits are those of a fresh reading. The keys need no repair when they move: a key knows
# its position, not its slot, and the position was right from the start.
#
# Gathering copies at most D keys and values per layer. Next to a pass of the target, that is nothing.
#
# ## The whole round
#
# Now all parts together, on the tiny pair: heads, tree, pass, walk, gather. The drafter hands over tokens and parents;
# `speculate` does the rest. A **chain** is a tree too, with one guess at each place.

# %%
from specdec_ref.drafters import MedusaDrafter
from specdec_ref.measure import Run


def with_tree(heads, paths):
    """Decode all openings with a tree, as rows of one batch; tokens a round, and whether all texts are the target's."""
    drafter = MedusaDrafter(heads, paths)
    run = Run(list(speculate(target, drafter, openings, GREEDY, num_draft_tokens=8, max_new_tokens=64, stop=stop)))
    return run.emitted_per_round, collect(run.rounds) == stories


shapes = {name: full_tree(name) for name in ((1,), (1, 1, 1), (2, 1, 1), (3, 2, 1), (4, 3, 2))}
counted = {}
for widths, some_paths in shapes.items():
    counted[widths], same = with_tree(heads, some_paths)
    print(f"widths {widths!s:10} {len(some_paths):2} nodes: {counted[widths]:.2f} tokens a round", end="; ")
    print("the texts of plain decoding:", same)

# %% [markdown]
# The chain already works well on these simple stories. Each tree brings more than the one before, and less for each
# further node. So the question is which nodes to take.
#
# ## Which tree?
#
# Suppose we may spend n nodes. Which ones? A node brings a token if its whole path is right. If heads hit independently
# of each other, the chance of that is the product of the shares along the path, from the table above. The round brings
# the sum over all nodes, and the target's own token:
#
# $$E = 1 + \sum_{\text{nodes}} \; \prod_{\text{along its path}} \text{share}$$
#
# To make E large, take the n nodes with the largest products. A child's product is never larger than its parent's, so
# these nodes form a tree by themselves. No search is needed. What does it look like with 15?

# %%
likeliest = figures.likeliest_tree(shares, 15)
print("paths:", *(str(path).replace(" ", "") for path in likeliest))
print("nodes of each depth:", [sum(len(path) == depth for path in likeliest) for depth in (1, 2, 3)])

# %%
for name, some_paths in {"3 x 2 x 1": full_tree((3, 2, 1)), "the likeliest 15": likeliest}.items():
    found, same = with_tree(heads, some_paths)
    print(f"{name:17} expected {figures.worth_of(some_paths, shares):.2f}, counted {found:.2f}, same texts: {same}")

# %% tags=["nbval-ignore-output"]
full_shapes = [(1,), (2,), (1, 1), (2, 1), (2, 2), (2, 2, 1), (3, 2, 1), (3, 3, 1), (3, 3, 2), (4, 3, 2)]
growth = {
    "the best chain": {n: figures.worth_of([(0,) * d for d in range(1, n + 1)], shares) for n in (1, 2, 3)},
    "the same widths everywhere": {
        len(full_tree(widths)): figures.worth_of(full_tree(widths), shares) for widths in full_shapes
    },
    "the likeliest nodes": {
        n: figures.worth_of(figures.likeliest_tree(shares, n), shares)
        for n in (1, 2, 3, 4, 5, 7, 10, 13, 16, 20, 25, 30, 35, 40)
    },
}
show(
    figures.draw_growth(growth, "What n nodes are worth, for these heads"),
    alt="Tokens of a round against the number of nodes. The best chain ends at three nodes with "
    f"{growth['the best chain'][3]:.2f} tokens. The likeliest nodes reach {growth['the likeliest nodes'][40]:.2f} with "
    "40 nodes; trees with the same widths everywhere lie below. All curves flatten.",
)

# %% [markdown]
# The likeliest nodes go deep where the path is good, and wide where it is doubtful. On paper they beat the regular tree
# of the same size clearly. Counted, they only draw level. Why?
#
# One reason: the heads do not hit independently. Where the text is easy all of them are right together, and where it is
# hard all of them fail. So the good paths are better than the product says, and the many mixed ones are worse. The
# product is a start for choosing a tree. To know what a tree brings, count.
#
# One more warning, the same as in stage 05: E is only the numerator of the speedup. Each node is a token that the
# target reads. The bill comes below.
#
# ## Train heads yourself
#
# The target stays as it is: only the small layers learn. What is shown to them? The target writes texts, and we keep
# its feature after each token, and its law of the next one. Head k reads the feature after token t and is asked for the
# law after token t + k: not only the token that came, but how likely the target found *each* token there. The loss is
# the divergence from that law, and later heads count less.
#
# At the start a head's layer is zero. Then it repeats what the output layer says: the *next* token, one place too
# early. So the loss is large at first, and falls fast.
#
# `specdec train medusa --target tiny` reads thousands of texts. Here we run the same code on a few, for about 20
# seconds. First `tiny-target` writes them, then the heads learn.

# %% tags=["nbval-ignore-output"]
import tempfile
from pathlib import Path

from specdec_course.medusa_training import TREE_FIGURE, train_heads, write_text

folder = Path(tempfile.mkdtemp(prefix="medusa-"))
count = write_text(tiny, folder, num_texts=128, num_held_out=12, max_new_tokens=80)
print(f"{count} tokens of text, with the target's law at each")
trained = train_heads(tiny, folder, epochs=3)
for look in trained.looks[:: max(1, len(trained.looks) // 4)]:
    firsts = ", ".join(f"head {k} {look[f'head {k}, top-1, greedy']:.2f}" for k in (1, 2, 3))
    print(f"after {look['step']:3} steps, first guesses right on unseen text: {firsts}")

# %% tags=["nbval-ignore-output"]
from specdec_ref.heads import MedusaHeads

untrained = MedusaHeads(heads.shape)
untrained.borrow(target.model)
marks = {
    "untrained": trained.figures_of(untrained)[TREE_FIGURE],
    "those in models/": trained.figures_of(heads)[TREE_FIGURE],
}
course = {int(look["step"]): look[TREE_FIGURE] for look in trained.looks}
show(
    figures.draw_training(trained.losses, course, marks),
    alt=f"Left: the loss falls from {trained.losses[0]:.1f} to {trained.losses[-1]:.1f} over {max(course)} steps. "
    f"Right: tokens a round with the tree 3 x 2 x 1 on unseen text rise to {course[max(course)]:.2f}; untrained heads "
    f"give {marks['untrained']:.2f}, those in models/ {marks['those in models/']:.2f}.",
)

# %% [markdown]
# Loss and acceptance move together, and acceptance is what we want. Now the numbers that must hold on every machine:
# the loss has fallen by more than half, the new heads beat untrained ones, and the trained ones of `models/`, which
# read far more text, beat both. And whoever drafts, the text is the target's.

# %%
mine, same = with_tree(trained.heads, full_tree((3, 2, 1)))
nothing, also_same = with_tree(untrained, full_tree((3, 2, 1)))
print("the loss is less than half of what it was:", trained.losses[-1] < trained.losses[0] / 2)
print("tokens a round, untrained < mine < models/:", nothing < mine < counted[(3, 2, 1)])
print("the texts of plain decoding, with all of them:", same and also_same)

# %% [markdown]
# The last line is worth a thought. Untrained heads draft rubbish, and the text is still right. A head cannot harm the
# text, only the speed. So anybody may try another head on a running service.
#
# One difference remains between Medusa and a separate draft: the heads are made for *one* target, and need its hidden
# states. The paper's second version even trains the target along with the heads. Then the target is another model, and
# "exact" means: exact for that one.
#
# ## Typical acceptance
#
# The Medusa paper proposes another way to accept. Why insist on what the target *would have* said? Let us take
# everything that it *could well* have said:
#
# $$\text{accept } x \text{ if } p(x) > \min(\epsilon, \; \delta \, e^{-H(p)})$$
#
# $H(p) = -\sum_x p(x) \ln p(x)$ is the entropy of p: 0 where one token has everything, large where many tokens share.
# Where the target is sure, only its favourite passes. Where it is unsure, many tokens do. Of all paths whose nodes
# pass, the longest is kept. More is accepted, and the text reads well. Is it still the target's?
#
# By hand: p = .5, .3, .2 after any text, and the tree holds just token 1. With the usual ε = .09 and δ = .3 it passes,
# since .3 is more than .09. It *always* passes. What does the target's law say about that?

# %%
from specdec_ref.typical import Typical

typical = Typical()


def typical_rule(p, tokens, parents, uniforms, num_drafted=None):
    counts = torch.full((len(p),), tokens.shape[1]) if num_drafted is None else num_drafted
    return typical.verify(p, tokens, parents, uniforms[:, -1], counts)


flat_table = torch.tensor([0.5, 0.3, 0.2]).double().expand(3, 3, 3).contiguous()
one_guess = fixed_tree((1,), (-1,))
laws = {"the target": target_law(flat_table, (0, 0), 1)}
for name, rule in {"exact walk": verify_tree, "typical": typical_rule}.items():
    one_round = tree_round_law(flat_table, one_guess, (0, 0), rule)
    laws[name] = text_law(flat_table, lambda so_far, found=one_round: found, (0, 0), 1, rounds=1)
for name, law in laws.items():
    print(f"{name:11} law of the first token:", [round(value, 6) for value in law.tolist()])

# %% [markdown]
# And over three tokens, on the table and the tree of above? The distance is at most 1.

# %%
print(f"distance from the target's law: exact walk {distance(verify_tree):.6f}, typical {distance(typical_rule):.6f}")

# %% [markdown]
# In the first example a token that the target says in 3 of 10 cases is said in 10 of 10. Would stricter thresholds cure
# it? No: $e^{-H}$ is never above the largest probability, and δ is below 1. So the favourite *always* passes, also
# where it should come only half of the time. **Typical acceptance is lossy wherever luck has a say.** At temperature 0
# the law is one token, and only that passes: there it equals greedy decoding.
#
# And on text? `tiny-target` writes at temperature 1. The story has come to a place where many words could follow. We
# let 200 rows write the next word, each with its own luck.

# %%
from specdec_ref.sampling import SamplingSettings

warm = SamplingSettings(temperature=1.0)
opening = encode_prompt(tiny, "Once upon a time there was a shy fox named Tom. One")
rows = [opening] * 200
guessing = MedusaDrafter(heads, full_tree((3, 2, 1)))
common = {"num_draft_tokens": 3, "max_new_tokens": 2, "seeds": 7}
first = {
    "plain": [text[0] for text in collect(generate(target, rows, warm, max_new_tokens=1, seeds=7))],
    "exact walk": [text[0] for text in collect(speculate(target, guessing, rows, warm, **common))],
    "typical": [text[0] for text in collect(speculate(target, guessing, rows, warm, typical=typical, **common))],
}
lm = target.fresh(1)
lm.prefill([opening[:-1]])
law = lm.extend(torch.tensor([opening[-1:]], device=target.device))[0, -1].softmax(-1)
top = law.topk(6)
for name, drawn in first.items():
    shares_of = [drawn.count(token) / len(drawn) for token in top.indices.tolist()]
    far = sum(abs(share - one) for share, one in zip(shares_of, top.values.tolist(), strict=True)) / 2
    print(f"{name:11} different words: {len(set(drawn)):2}; near the target's law: {far < 0.15}")

# %% tags=["nbval-ignore-output"]
words = [word(token) for token in top.indices.tolist()]
drifted = {"the target's law": top.values.tolist()}
for name in ("exact walk", "typical"):
    drifted[name] = [first[name].count(token) / len(rows) for token in top.indices.tolist()]
show(
    figures.draw_laws(drifted, words, "The next word of 200 stories, at temperature 1"),
    alt="Bars for six words. Target's law: "
    + ", ".join(f"{w} {v:.2f}" for w, v in zip(words, drifted["the target's law"], strict=True))
    + f". The exact walk is close to it. With typical acceptance {max(drifted['typical']):.2f} of all stories take "
    "the same word.",
)

# %% [markdown]
# Two hundred rows, and one word. What does the rule gain? Tokens a round. What does it lose over a longer text? We let
# each of the twelve openings be continued eight times, and count the different continuations.

# %%
many = openings * 8
for name, decode in {
    "plain": lambda: generate(target, many, warm, max_new_tokens=12, seeds=3),
    "exact walk": lambda: speculate(target, guessing, many, warm, max_new_tokens=12, seeds=3),
    "typical": lambda: speculate(target, guessing, many, warm, max_new_tokens=12, seeds=3, typical=typical),
}.items():
    run = Run(list(decode()))
    different = len({(*opening, *text) for opening, text in zip(many, collect(run.rounds), strict=True)})
    print(f"{name:11} {run.emitted_per_round:.1f} tokens a round, different texts: {different / len(many):.0%}")

# %% [markdown]
# (Plain and exact differ by chance alone.) So typical acceptance is a *trade*: less variety for more speed. One may
# want that. But it is not what "speculative decoding" promises, and whoever offers it should say so. When you read
# "lossless", ask: by which acceptance? In `specdec_ref` it is off unless asked for.
#
# ## On SmolLM2
#
# Four heads were trained for SmolLM2, in `models/smol-medusa`. Its world is larger than that of the little stories, so
# what will its heads hit? The card of the model says, and we decode with them.

# %%
smol = load_pair("smol")
stop = Stop(token_ids=smol.eos_token_ids)
prompt = encode_prompt(smol, "What do plants need to grow?")
length = {"max_new_tokens": 20, "stop": stop}
plain = collect(generate(smol.target, [prompt], GREEDY, **length))[0]
print(smol.tokenizer.decode(plain, skip_special_tokens=True))

# %%
smol_heads = load_medusa(smol.head_folder("medusa"), smol.target, smol.target_folder)
small = ((0,), (1,), (2,), (0, 0))
smol_trees = {"a chain of 3": full_tree((1, 1, 1)), "these 4 nodes": small, "3 x 2 x 1": full_tree((3, 2, 1))}
brought = {}
for name, some_paths in smol_trees.items():
    drafter = MedusaDrafter(smol_heads, some_paths)
    run = Run(list(speculate(smol.target, drafter, [prompt], GREEDY, num_draft_tokens=3, **length)))
    brought[name] = run.emitted_per_round
    print(f"{name:14} {len(some_paths):2} nodes: {brought[name]:.2f} tokens a round,", end=" ")
    print("the tokens of plain decoding:", collect(run.rounds)[0] == plain)

# %% [markdown]
# Exact again. But these heads hit less often than those of the stories. Real text has more ways to go on, and what they
# learned from is little: the card of the model says how much, and how often their first guesses are right.

# %%
card = (smol.head_folder("medusa") / "README.md").read_text(encoding="utf-8").splitlines()
print(next(line for line in card if line.startswith("- **Data**")).split("**: ")[1].split(" written by")[0])
for line in card:
    if line.startswith("| head") and "greedy" in line:
        print(line.strip("| "))

# %% [markdown]
# ## The bill of a round
#
# What does a round cost? Drafting is a few small layers, and the output layer once per head. The pass reads the last
# token and all nodes. So a larger tree brings more and costs more, and the best tree is a matter of the machine. Which
# of the three would you take on yours?

# %% tags=["nbval-ignore-output"]
from specdec_ref.measure import time_passes

lengths = [1, *(1 + len(some_paths) for some_paths in smol_trees.values())]
passes = time_passes(smol.target, lengths, context=64, repeats=3)
for name, some_paths in smol_trees.items():
    ratio = passes[1 + len(some_paths)] / passes[1]
    print(f"{name:14} {brought[name]:.2f} tokens for a pass that costs {ratio:.2f} plain steps:", end=" ")
    print(f"{brought[name] / ratio:.2f} times plain decoding, before drafting is paid")

# %% [markdown]
# (A pass may come out cheaper than a plain step: some kernels serve a block better than a single token. Or the machine
# was busy.) The drafter that `pair.drafter("medusa")` gives uses the small tree: it was chosen for CPUs. The paper's
# trees have up to 64 nodes, since a GPU that serves one request reads so many tokens in about the time of one.
#
# Now the whole bill, beside a plain step and the draft model of stage 04. Times are those of your machine.

# %% tags=["nbval-ignore-output"]
from specdec_course.method_figures import draw_methods, measured_here, published, recorded

print(measured_here(smol, ["model", "medusa"]))  # takes a quarter of a minute

# %% [markdown]
# Read the columns as in stage 05. *Drafted* counts nodes. *Drafting* is cheap, but not free: each head runs the output
# layer over the whole vocabulary. A round also waits for the pass. *Tokens a round* is what the heads bring, and the
# *speedup* is the quotient. Memory: the heads are small, because they borrow the output layer.
#
# One run says little. The recorded benchmark took longer, on several kinds of text:

# %% tags=["nbval-ignore-output"]
print(recorded(["model", "ngram", "layer-skip", "medusa"]))
figure, alt = draw_methods(["model", "ngram", "layer-skip", "medusa"], new=["medusa"])
show(figure, alt=alt)

# %% [markdown]
# Compare Medusa with the draft model. It needs a tenth of the memory. Drafting costs about the same: the heads are
# tiny, but each runs the target's whole output layer, and the draft model has a narrower one of its own. And its
# guesses are worse, for no head knows what was guessed before it. So here the draft model is ahead.
#
# Nothing about that is a law of nature. Heads that learned from more text bring more, and a GPU reads larger trees for
# the same price. The published figures come from there:

# %%
print(published(["Medusa-1", "Medusa-2"]))

# %% [markdown]
# ## Recap
#
# - Heads read the target's last feature. Head k guesses k places after the next token; it cannot know what comes in
#   between.
# - A tree offers several guesses at each place. A node is a token and a parent.
# - Position by depth. Mask: text, ancestors, itself. Test: each node equals a plain run over its path.
# - The walk draws from the target at each place and descends while the draw is a child. The last draw is the next
#   token. Exact for any tree.
# - After a path, gather; shortening is for chains.
# - Choose nodes by the product along their path; count what they bring; divide by the bill.
# - Typical acceptance is lossy wherever luck has a say.
#
# ## Further reading
#
# - Cai et al. 2024, "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads" (arXiv
#   2401.10774): heads in section 2.1, typical acceptance in 2.3.1, the choice of the tree in 2.3.3.
# - Stern, Shazeer and Uszkoreit 2018, "Blockwise Parallel Decoding for Deep Autoregressive Models" (arXiv 1811.03115):
#   where heads for later tokens began.
# - Miao et al. 2024, "SpecInfer" (arXiv 2305.09781): trees of drafts, tree attention, and an exact rule for drawn ones.
# - Chen et al. 2024, "Sequoia" (arXiv 2402.12374): the best tree for a machine, and drawing without replacement.
# - In this repository: `specdec_ref/trees.py`, `heads/medusa.py`, `drafters/medusa.py`, `verify_tree` in
#   `acceptance.py`, `siblings.py`, and `typical.py`, which begins with a warning.
#
# ## Glossary
#
# - **Feature**: the target's last hidden state at a token; what its output layer reads.
# - **Head**: a small layer that turns a feature into a guess at a later token.
# - **Node**, **parent**, **path**: a guess, the guess or text it continues, and the way from the text to it.
# - **Siblings**: guesses at one place with one parent. **Cousins**: guesses at one depth with different parents.
# - **Tree attention**: a pass in which each node sees its ancestors and itself.
# - **Walk**: draws of the target, as long as they are in the tree. **Gather**: moving the accepted path together in the
#   cache.
# - **Typical acceptance**: a lossy rule that accepts what is likely enough. **Lossy**: the text follows another law.
#
# ## What next?
#
# Open `exercises/07_medusa_and_trees.ipynb`: you build the tree, its mask and positions, the walk, the gather, and the
# best tree of n nodes. At the end your functions decode with real heads.
