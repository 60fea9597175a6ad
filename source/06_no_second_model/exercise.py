# %% [markdown]
# # Stage 06, exercises: drafting without a second model
#
# You write both drafters of this stage and what keeps them exact. At the end *your* lookup drafts for SmolLM2, and
# *your* search chooses layers of a real model.
#
# | exercise | points | difficulty | minutes |
# |---|---|---|---|
# | 6.1 Copy what came next | 3 | 3 of 5 | 12 |
# | 6.2 An index that grows with the text | 2 | 3 of 5 | 10 |
# | 6.3 Judge a copy | 3 | 3 of 5 | 12 |
# | 6.4 Which layers draft | 2 | 3 of 5 | 10 |
# | 6.5 When a draft ends | 2 | 3 of 5 | 10 |
#
# Read the lesson first: `notebooks/06_no_second_model.ipynb`.
#
# Replace each `raise NotImplementedError()` by your answer, run the cell, then run the check below it. A check says
# *passed*, *not yet* (with the reason), or *not attempted*. Stuck? `hint("6.1")` gives one more hint each time, and
# `replay()` shows the case on which the last check failed.

# %%
import torch

from specdec_course import carry, check, hint, logbook, progress, quiz, replay

# %% [markdown]
# ## 6.1 Copy what came next
#
# *3 points, difficulty 3 of 5, 12 minutes*
#
# The text drafts for itself. Find its last n tokens earlier in the text, and propose what followed them there.
#
# - Try n = `max_ngram` first, then smaller ones, down to 1.
# - Of several places take the newest. A match may overlap the last n tokens, but it must not *be* them.
# - Copy at most `limit` tokens; fewer if the text has fewer there.
# - If no n matches, propose nothing: return an empty list.


# %%
def copy_draft(text, limit, max_ngram):
    """Return the draft, a list of at most `limit` tokens; empty where nothing matches.

    text: list of int, at least one token; prompt and answer so far
    limit: int >= 0
    max_ngram: the largest n, an int >= 1; may be larger than the text is long
    """
    ### BEGIN SOLUTION
    for n in range(max_ngram, 0, -1):
        suffix = text[len(text) - n :] if n <= len(text) else None
        for place in range(len(text) - n - 1, -1, -1):  # the newest first; the suffix itself is not among them
            if text[place : place + n] == suffix:
                return text[place + n : place + n + limit]
    return []
    ### END SOLUTION


# %%
check("6.1", copy_draft)

# %% [markdown]
# ### Try it on words
#
# Your function does not care what tokens are. Which of these do you expect to find something?

# %%
try:
    for sentence in (
        "the cat sat on the mat . the dog sat on the",
        "ha ha ha",
        "every word here is new",
        "to be or not to",
    ):
        print(f"{sentence} ... {copy_draft(sentence.split(), 3, 3)}")
except NotImplementedError:
    print("Answer 6.1 first. Then run this cell again.")

# %% [markdown]
# ## 6.2 An index that grows with the text
#
# *2 points, difficulty 3 of 5, 10 minutes*
#
# Your search looks at the whole text in every round. An index remembers instead, for each n-gram, the position of the
# token that followed its newest occurrence. Then `copy_draft` is a lookup for each n.
#
# `index_new` is called once a round, when the text has grown. It writes into `index` what the new tokens make known,
# and returns nothing. An n-gram is known once a token follows it. Do not write again what earlier rounds wrote.
#
# The check lets a text grow in chunks: `[[1, 2], [3]]` means a call with the text `[1, 2]`, then one with `[1, 2, 3]`.


# %%
def index_new(index, text, seen, max_ngram):
    """Note in `index` what the new tokens make known.

    index: dict from n-gram, a tuple of tokens, to the position in `text` of the token after its newest occurrence;
        changed in place
    text: list of int, the whole text
    seen: how many of its tokens were there at the last call; 0 at the first
    max_ngram: the largest n; n-grams of 1 to max_ngram tokens are wanted
    """
    ### BEGIN SOLUTION
    for position in range(max(seen, 1), len(text)):
        for n in range(1, min(max_ngram, position) + 1):
            index[tuple(text[position - n : position])] = position
    ### END SOLUTION


# %%
check("6.2", index_new)

# %% [markdown]
# ### Do search and index agree?
#
# Let a random text grow in rounds. Whatever the round, both must propose the same.

# %%
import random


def copy_with_index(index, text, limit, max_ngram):
    """The same draft as `copy_draft`, from an index that knows the whole text."""
    for n in range(min(max_ngram, len(text)), 0, -1):
        start = index.get(tuple(text[-n:]))
        if start is not None:
            return text[start : start + limit]
    return []


try:
    source, text, index, rounds, found = random.Random(6), [0], {}, 0, 0
    seen = 0
    while len(text) < 400:
        index_new(index, list(text), seen, 3)
        seen = len(text)
        draft = copy_with_index(index, text, 4, 3)
        assert draft == copy_draft(text, 4, 3), f"after {len(text)} tokens search and index differ"
        rounds, found = rounds + 1, found + bool(draft)
        text += [source.randrange(12) for _ in range(source.randint(1, 5))]
    print(f"{rounds} rounds, {found} with a draft: search and index agree in all of them")
except NotImplementedError:
    print("Answer 6.1 and 6.2 first. Then run this cell again.")

# %% [markdown]
# ## 6.3 Judge a copy
#
# *3 points, difficulty 3 of 5, 12 minutes*
#
# A copied draft of K tokens is to be judged, and the target *samples*. Row i of `target_probs` is the target's law of
# draft token i, and the last row is the law of the token behind all drafts. Nobody drew the copy from any law. Which q
# does it have?
#
# Return what the text gets: the leading run of accepted drafts and one token more. Draft token i has the number
# `accept_uniforms[i]`; the last token is drawn with `correct_uniform`. Use `draw`, which is given.


# %%
def draw(probs, uniform):
    """Return the token in whose piece of the unit interval `uniform` falls; `probs` [V] need not sum to one."""
    cdf = probs.cumsum(-1)
    passed = (cdf <= uniform * cdf[-1]) & (cdf < cdf[-1])
    return int(passed.sum())


# %%
def judge_copy(target_probs, draft_tokens, accept_uniforms, correct_uniform):
    """Return the tokens that the text gets, a list of 1 to K + 1 ints.

    target_probs: Tensor [K+1, V], float64
    draft_tokens: list of K ints; K may be 0
    accept_uniforms: Tensor [K], in [0, 1)
    correct_uniform: float in [0, 1)
    """
    ### BEGIN SOLUTION
    for i, token in enumerate(draft_tokens):
        if accept_uniforms[i] >= target_probs[i, token]:
            rest = target_probs[i].clone()
            rest[token] = 0
            return [*draft_tokens[:i], draw(rest, correct_uniform)]
    return [*draft_tokens, draw(target_probs[-1], correct_uniform)]
    ### END SOLUTION


# %%
check("6.3", judge_copy)

# %% [markdown]
# ### Is the law right?
#
# Do not take the check's word for it. With p = .5/.3/.2 and token 1 copied, count over 100 × 100 uniform numbers. Then
# the text must get .5/.3/.2 as well.

# %%
try:
    p = torch.tensor([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]], dtype=torch.float64)
    points = [(i + 0.5) / 100 for i in range(100)]
    counts = [0, 0, 0]
    for u in points:
        for v in points:
            counts[judge_copy(p, [1], torch.tensor([u], dtype=torch.float64), v)[0]] += 1
    print("the first token is 0, 1, 2 in", [round(count / 10_000, 2) for count in counts], "of the cases")
except NotImplementedError:
    print("Answer 6.3 first. Then run this cell again.")

# %% [markdown]
# ## 6.4 Which layers draft
#
# *2 points, difficulty 3 of 5, 10 minutes*
#
# A target is to draft for itself with some of its layers. For every set of layers somebody has worked out what it is
# worth: `worth[(0, 2)]` is the speedup if layers 0 and 2 draft. Find a good set by greedy removal:
#
# - start with all layers, `(0, 1, …, num_layers - 1)`,
# - leave out the layer whose removal leaves the set of the largest worth, also if it is worth less than before,
# - go on until one layer is left,
# - return the best set that you met on the way. At least one layer must have been left out.


# %%
def choose_layers(worth, num_layers):
    """Return the layers that should draft, a list of int, ascending.

    worth: dict from a set of layers, an ascending tuple of int, to its speedup; has every set but the empty one
    num_layers: int >= 2
    """
    ### BEGIN SOLUTION
    kept, path = tuple(range(num_layers)), []
    while len(kept) > 1:
        fewer = [kept[:i] + kept[i + 1 :] for i in range(len(kept))]
        kept = max(fewer, key=lambda one: worth[one])
        path.append(kept)
    return list(max(path, key=lambda one: worth[one]))
    ### END SOLUTION


# %%
check("6.4", choose_layers)

# %% [markdown]
# ### A real model's layers
#
# `tiny-target` has four layers, so every set can be tried. The worth comes from the bill: tokens a round along two
# stories that the model wrote, over what the draft steps and the pass cost.

# %%
from itertools import combinations

from specdec_course.demo import encode_prompt
from specdec_ref.decode import collect, generate, speculate
from specdec_ref.drafters import LayerChoice, LayerSkipDrafter
from specdec_ref.pairs import load_pair
from specdec_ref.rows import Stop
from specdec_ref.sampling import GREEDY
from specdec_ref.training.layer_skip import Judge, SkipPlan

tiny = load_pair("tiny")
openings = [encode_prompt(tiny, text) for text in ("Once upon a time there was a fox.", "One day Mia found a key.")]
stories = [collect(generate(tiny.target, [opening], GREEDY, max_new_tokens=48))[0] for opening in openings]
bill = Judge(tiny.target, list(zip(openings, stories, strict=True)), SkipPlan(num_draft_tokens=4))
sets = [kept for size in range(1, 5) for kept in combinations(range(4), size)]
worth = {kept: round(float(bill(kept)["speedup"]), 3) for kept in sets}
for kept, value in sorted(worth.items(), key=lambda pair: -pair[1])[:4]:
    print(f"layers {kept}: {value:.2f}")

# %%
try:
    chosen = choose_layers(worth, 4)
    print("your choice:", chosen, f"worth {worth[tuple(chosen)]:.2f}")
    drafter = LayerSkipDrafter(LayerChoice(tuple(chosen)))
    rounds = list(speculate(tiny.target, drafter, openings[:1], GREEDY, num_draft_tokens=4, max_new_tokens=48))
    print(f"{len(rounds)} rounds for {len(stories[0])} tokens; text as plain: {collect(rounds)[0] == stories[0]}")
except NotImplementedError:
    print("Answer 6.4 first. Then run this cell again.")

# %% [markdown]
# ## 6.5 When a draft ends
#
# *2 points, difficulty 3 of 5, 10 minutes*
#
# A draft model (here it may be the target with fewer layers) draws one token after the other. It should end early where
# it is unsure: with a token whose law gave *no* token as much as `stop_below`. That token itself stays in the draft,
# since its law is paid for.
#
# `next_law(tokens)` returns the law [V] of the token after the text and the draft tokens so far. Each call is a draft
# step, so make no more of them than you draw tokens. `pick(law, uniform)` draws.


# %%
def draft_until_unsure(next_law, pick, draft_uniforms, stop_below):
    """Return the draft, a list of 1 to K tokens.

    next_law: function (list of draft tokens so far) -> Tensor [V]
    pick: function (law, uniform) -> token
    draft_uniforms: Tensor [K], K >= 1: one number for each token
    stop_below: float in [0, 1]; 0 never stops
    """
    ### BEGIN SOLUTION
    tokens = []
    for uniform in draft_uniforms:
        law = next_law(tokens)
        tokens.append(pick(law, uniform))
        if law.max() < stop_below:
            break
    return tokens
    ### END SOLUTION


# %%
check("6.5", draft_until_unsure)

# %% [markdown]
# ### Does the text keep its law?
#
# One draft token from q = .4/.4/.2, judged by the rule of stage 02, for a target that wants p = .2/.4/.4. Counted over
# a grid of uniform numbers, with a threshold that ends each draft at once and one that never does. And the relative
# that drops a drawn token with q(x) < .3.

# %%
from specdec_ref.acceptance import verify_chain

p, q = (torch.tensor(law, dtype=torch.float64) for law in ([0.2, 0.4, 0.4], [0.4, 0.4, 0.2]))
grid = [(i + 0.5) / 20 for i in range(20)]


def first_token(draft, accept_uniform, correct_uniform):
    """The first token that the text gets from a draft of at most one token."""
    laws = (p.expand(1, 1 + len(draft), 3), torch.tensor([draft], dtype=torch.int64), q.expand(1, len(draft), 3))
    numbers = (torch.tensor([[accept_uniform][: len(draft)]]).double(), torch.tensor([correct_uniform]).double())
    verdict = verify_chain(*laws, *numbers)
    return draft[0] if verdict.num_accepted[0] else int(verdict.next_token[0])


def law_of_text(propose):
    """The law of the first token of the text, over the whole grid."""
    counts = [0, 0, 0]
    for u in grid:
        draft = propose(torch.tensor([u], dtype=torch.float64))
        for accept_uniform in (0.25, 0.75):  # p/q is .5, 1 or 2: two points say it all
            for v in grid:
                counts[first_token(draft, accept_uniform, v)] += 1
    return [round(count / sum(counts), 3) for count in counts]


def dropping(uniforms):
    token = draw(q, uniforms[0])
    return [token] if q[token] >= 0.3 else []


try:
    for limit in (0.0, 0.9):

        def propose(uniforms, limit=limit):
            return draft_until_unsure(lambda _: q, draw, uniforms, limit)

        print(f"yours, stop below {limit}: ", law_of_text(propose))
    print("drops unlikely tokens: ", law_of_text(dropping), "- the target wants", p.tolist())
except NotImplementedError:
    print("Answer 6.5 first. Then run this cell again.")

# %% [markdown]
# ## Your lookup, a real model
#
# Now SmolLM2 changes a program, and your lookup drafts for it. The round is yours too: `batch_round` of stage 04
# verifies drafts of any length greedily, and `cut_block` ends the text. Where one of them is missing, the solution
# stands in.

# %% tags=["nbval-ignore-output"]
four = carry("04")

# %%
import time

from specdec_course.benchmark import suites


class RealModel:
    """A real model with the names that your functions use."""

    def __init__(self, lm):
        self.lm = lm.fresh(1)

    @property
    def lengths(self):
        return self.lm.cache.lengths

    def extend(self, block):
        return self.lm.extend(block.to(self.lm.device)).float().cpu()

    def rollback(self, counts):
        self.lm.rollback(counts)


smol = load_pair("smol")
prompt = encode_prompt(smol, suites.load("code-edit").tuning[0].text)
stop = Stop(token_ids=smol.eos_token_ids)
plain = collect(generate(smol.target, [prompt], GREEDY, max_new_tokens=40, stop=stop))[0]


def my_rounds(num_draft_tokens=5, max_new_tokens=40):
    """Your rounds: look up, verify, cut. Yields (new tokens, drafted)."""
    target, text, index, seen = RealModel(smol.target), list(prompt), {}, 0
    target.lm.prefill([prompt[:-1]])
    end = len(prompt) + max_new_tokens
    while len(text) < end and text[-1] not in smol.eos_token_ids:
        index_new(index, text, seen, 3)
        seen = len(text)
        draft = copy_with_index(index, text, min(num_draft_tokens, end - len(text) - 1), 3)
        (new_tokens,) = four.batch_round(target, [text], [draft])
        text += four.cut_block(new_tokens, end - len(text), smol.eos_token_ids)
        yield text[seen:], len(draft)


start, log = time.perf_counter(), []
try:
    log = list(my_rounds())
except NotImplementedError:
    print("Answer 6.2 first. Then run this cell again.")
else:
    mine = [token for new_tokens, _ in log for token in new_tokens]
    print(smol.tokenizer.decode(mine))
    print(f"{len(log)} rounds for {len(mine)} tokens; as plain greedy decoding: {mine == plain}")
seconds = time.perf_counter() - start

# %% [markdown]
# Few rounds, and no second model anywhere. The logbook keeps your figures, and `progress()` shows them.

# %% tags=["nbval-ignore-output"]
if log:
    judged = [(drafted, len(new_tokens) - 1) for new_tokens, drafted in log]
    accepted, refused = sum(a for _, a in judged), sum(a < d for d, a in judged)
    figures = {
        "alpha": round(accepted / max(1, accepted + refused), 3),
        "tokens_per_round": round(len(mine) / len(log), 3),
        "tokens_per_second": round(len(mine) / seconds, 1),
    }
    print(figures)
    logbook("06", exact=mine == plain, **figures)
else:
    print("Answer 6.2 first. Then run this cell again.")

# %% [markdown]
# Try a prompt of your own in place of the program, a poem for example. How many rounds does it need?
#
# ## Do you see why?
#
# Four questions, without points. Pick an answer; every choice has an explanation. In a notebook without buttons, answer
# with the letter: `quiz("6.a", "b")`.

# %%
quiz("6.a")

# %%
quiz("6.b")

# %%
quiz("6.c")

# %%
quiz("6.d")

# %% [markdown]
# ## What next?
#
# You have two drafters that need no second model, and you know what each of them is good for. The next stage gives the
# target a few small *heads* that guess the tokens after the next one, and checks many guesses in one pass, as a tree:
# `notebooks/07_medusa_and_trees.ipynb`.

# %% tags=["nbval-ignore-output"]
progress()
