# %% [markdown]
# # Exercises: batched verification
#
# Here you build one verification round: where the tokens of a block sit, what they see, how the target's answer is
# read, and how the cache forgets what was refused. Six exercises, about an hour.
#
# - Replace each `raise NotImplementedError()` by your answer, run the cell, then run the check below it.
# - `hint("3.1")` helps a little, and more each time. After a failed check, `replay()` draws the case that failed.
# - The lesson is `notebooks/03_batched_verification.ipynb`.
#
# Everything is done for a whole batch: the first dimension of a tensor is the row. Rows have different lengths. That
# is the point of this stage.

# %%
import torch

from specdec_course import check, hint, logbook, progress, quiz, replay

# %% [markdown]
# ## 3.1 Where does each token of the block sit?
#
# *1 point, difficulty 1, about 5 minutes.* Lesson: "What does a pass need to know?".
#
# A row's cache holds `lengths[b]` tokens. A block of `block_length` tokens follows. Positions count from 0.
#
# By hand first: with lengths 5 and 2, and a block of 3, row 0 gets the positions 5, 6, 7. Row 1?


# %%
def block_positions(lengths, block_length):
    """Return the position of each token of the block in its row's text.

    Parameters
    ----------
    lengths : Tensor [B] int64
        Tokens of each row in the cache.
    block_length : int
        Tokens of each row in the block, T.

    Returns
    -------
    Tensor [B, T] int64
    """
    ### BEGIN SOLUTION
    return lengths[:, None] + torch.arange(block_length)  # [B, 1] + [T]
    ### END SOLUTION


# %%
check("3.1", block_positions)

# %% [markdown]
# ## 3.2 Who sees whom?
#
# *2 points, difficulty 3, about 10 minutes.* Lesson: "What does a pass need to know?" and "How do texts of different
# lengths share a pass?".
#
# The keys of row b lie in the slots 0, 1, 2, ... of the cache, the block's own keys included. Say for each token of the
# block which slots it may look at: the row's text before it, and itself.
#
# All rows share one tensor, so there are $S = \max(\text{lengths}) + T$ slots. Behind a short row's block lies junk.
#
# By hand first: write down the rows of `True` and `False` for lengths 2 and 0 and a block of 2. That is [2, 2, 4].


# %%
def block_mask(lengths, block_length):
    """Return which slots each token of the block sees.

    Parameters
    ----------
    lengths : Tensor [B] int64
        Tokens of each row in the cache.
    block_length : int
        Tokens of each row in the block, T.

    Returns
    -------
    Tensor [B, T, S] bool, S = max(lengths) + T. True: may be looked at.
    """
    ### BEGIN SOLUTION
    slots = torch.arange(int(lengths.max()) + block_length)  # [S]
    last = lengths[:, None] + torch.arange(block_length)  # [B, T]: the last slot that each token sees
    return slots <= last[:, :, None]  # [B, T, S]
    ### END SOLUTION


# %%
check("3.2", block_mask)

# %% [markdown]
# ## 3.3 Judge a whole block
#
# *3 points, difficulty 3, about 12 minutes.* Lesson: "Which row judges which draft?".
#
# The block was [last token, draft 1, ..., draft K], and one pass gave its logits. We decode greedily: a draft passes if
# it is the target's favourite at its place. Return for each row
#
# - how many drafts were accepted,
# - the next token: the correction, or the bonus if all drafts passed.
#
# The logits have more columns than there are tokens: those from `vocab_size` on are padding.


# %%
def judge_block(logits, draft_tokens, vocab_size):
    """Judge the drafts of each row greedily.

    Parameters
    ----------
    logits : Tensor [B, 1+K, W]
        Row t of the middle dimension comes after token t of the block.
    draft_tokens : Tensor [B, K] int64
        K may be 0 at the end of a text (stage 04): then only the bonus comes.
    vocab_size : int
        How many columns are real tokens, at most W.

    Returns
    -------
    (num_accepted, next_token): two tensors [B] int64
    """
    ### BEGIN SOLUTION
    wanted = logits[..., :vocab_size].argmax(-1)  # [B, 1+K]: the favourite after each token of the block
    agrees = wanted[:, :-1] == draft_tokens  # [B, K]: row t judges draft t+1
    num_accepted = agrees.long().cumprod(-1).sum(-1)  # [B]: the leading run
    next_token = wanted.gather(1, num_accepted[:, None]).squeeze(1)  # [B]: row a
    return num_accepted, next_token
    ### END SOLUTION


# %%
check("3.3", judge_block)

# %% [markdown]
# ## 3.4 A cache with a length per row
#
# *2 points, difficulty 3, about 10 minutes.* Lesson: "How do texts of different lengths share a pass?".
#
# `store` holds the keys of one layer: B rows, S slots, D numbers in each. Row b uses its first `lengths[b]` slots. A
# block of new keys comes in, padded **on the right**: only the first `counts[b]` of row b are real.
#
# Return a new store, in which every row's real keys lie right behind its text, and the new lengths. Leave the store you
# were given as it is. There is room enough. Whatever lies behind a row's text does not matter: no token sees it.


# %%
def write_block(store, lengths, states, counts):
    """Write a block of keys into the cache.

    Parameters
    ----------
    store : Tensor [B, S, D]
    lengths : Tensor [B] int64
        Tokens of each row in the store.
    states : Tensor [B, T, D]
        The new keys.
    counts : Tensor [B] int64
        How many of the new keys of each row are real.

    Returns
    -------
    (store, lengths): tensors [B, S, D] and [B] int64
    """
    ### BEGIN SOLUTION
    store = store.clone()
    for b in range(len(lengths)):
        start, count = int(lengths[b]), int(counts[b])
        store[b, start : start + count] = states[b, :count]
    return store, lengths + counts
    ### END SOLUTION


# %%
check("3.4", write_block)

# %% [markdown]
# ## 3.5 One verification round
#
# *3 points, difficulty 4, about 12 minutes.* Lesson: "How do refused tokens leave the cache?".
#
# Now put it together. `target` is a model with a cache. It has
#
# - `target.lengths`, the tokens each row's cache holds, a tensor [B],
# - `target.extend(block)`, one pass over a block of token ids [B, T]: it adds the block to the cache and returns logits
#   [B, T, V], one row for each token,
# - `target.rollback(counts)`, which forgets the last `counts[b]` tokens of each row b.
#
# Each row's last token is not in the cache yet. Verify the drafts greedily in **one** pass. Afterwards the cache must
# hold the row's text without the new last token. There is no padding in this vocabulary.
#
# Here is such a target to look at. It adds its last token, its position and the first token of the text, modulo 7.

# %%
from specdec_course.checks.toy_target import ToyTarget

toy = ToyTarget([[1, 2], [4]])
logits = toy.extend(torch.tensor([[3], [1]]))
print("favourites:", logits.argmax(-1).tolist(), "  lengths:", toy.lengths.tolist())
toy.rollback([1, 0])
print("row 0 forgot one token:", toy.rows)


# %%
def verify_round(target, last_tokens, draft_tokens):
    """Verify the drafts of each row in one pass of the target, and leave its cache ready for the next round.

    Parameters
    ----------
    target : model with a cache of B rows
    last_tokens : Tensor [B] int64
        The last token of each text. Not in the cache.
    draft_tokens : Tensor [B, K] int64

    Returns
    -------
    (num_accepted, next_token): two tensors [B] int64
    """
    ### BEGIN SOLUTION
    block = torch.cat([last_tokens[:, None], draft_tokens], dim=1)  # [B, 1+K]
    wanted = target.extend(block).argmax(-1)  # [B, 1+K], in one pass
    num_accepted = (wanted[:, :-1] == draft_tokens).long().cumprod(-1).sum(-1)
    target.rollback(draft_tokens.shape[1] - num_accepted)
    return num_accepted, wanted.gather(1, num_accepted[:, None]).squeeze(1)
    ### END SOLUTION


# %%
check("3.5", verify_round)

# %% [markdown]
# ## 3.6 What does the draft model still need?
#
# *2 points, difficulty 2, about 8 minutes.* Lesson: "And the drafter's own cache?".
#
# The draft model has a cache of its own. In this round it was fed what it lacked of the text, and then its own drafts,
# each before it drew the next one. The last draft was drawn and never fed.
#
# Before the round, row b's text had `text_lengths[b]` tokens. The target accepted `num_accepted[b]` drafts and added
# one token. Refused drafts leave the draft's cache, too. Return for each row
#
# - how many tokens the draft's cache holds then,
# - how many it must be fed before it can draft again.


# %%
def draft_cache_after(text_lengths, num_draft_tokens, num_accepted):
    """Return what the draft model's cache holds after a round, and what it lacks.

    Parameters
    ----------
    text_lengths : Tensor [B] int64
        Tokens of each text before the round, n. The last of them is fed to the draft in this round.
    num_draft_tokens : int
        K, at least 1.
    num_accepted : Tensor [B] int64
        a, 0 to K.

    Returns
    -------
    (held, to_feed): two tensors [B] int64
    """
    ### BEGIN SOLUTION
    fed = text_lengths - 1 + num_draft_tokens  # the text, and all drafts but the last
    held = torch.minimum(fed, text_lengths + num_accepted)  # no refused draft stays
    return held, text_lengths + num_accepted + 1 - held
    ### END SOLUTION


# %%
check("3.6", draft_cache_after)

# %% [markdown]
# ## Your round on a real model
#
# Now your `verify_round` verifies for SmolLM2. Two texts of different lengths are in its cache, and their drafts are
# partly right. Which drafts will pass? Guess first.

# %%
from specdec_ref.decode import collect, generate
from specdec_ref.pairs import load_pair
from specdec_ref.sampling import GREEDY


class RealTarget:
    """A real model with the three names of the exercise."""

    def __init__(self, lm):
        self.lm = lm

    @property
    def lengths(self):
        return self.lm.cache.lengths

    def extend(self, block):
        return self.lm.extend(block.to(self.lm.device)).cpu()

    def rollback(self, counts):
        self.lm.rollback(counts)


pair = load_pair("smol")


def encode(text):
    return pair.tokenizer(text, add_special_tokens=False)["input_ids"]


texts = [encode("The capital of France is"), encode("One, two, three, four,")]
drafts = torch.tensor([encode(" Paris. The river")[:3], encode(" five, seven")[:3]])
real = RealTarget(pair.target.fresh(2))
real.lm.prefill([text[:-1] for text in texts])
emitted = []
try:
    num_accepted, next_token = verify_round(real, torch.tensor([text[-1] for text in texts]), drafts)
except NotImplementedError:
    print("Write verify_round (3.5) first, then run this cell again.")
else:
    for text, draft, count, token, held in zip(texts, drafts, num_accepted, next_token, real.lengths, strict=True):
        emitted.append([*draft[:count].tolist(), int(token)])
        accepted, following = pair.tokenizer.decode(draft[:count]), pair.tokenizer.decode([int(token)])
        print(f"accepted {accepted!r}, then {following!r}")
        print(f"    the text has {len(text) + len(emitted[-1])} tokens, the cache holds {int(held)}")

# %% [markdown]
# Is that what plain decoding writes, one token per pass?

# %%
if emitted:
    plain = collect(generate(pair.target, texts, GREEDY, max_new_tokens=drafts.shape[1] + 1))
    exact = all(text[: len(new)] == new for text, new in zip(plain, emitted, strict=True))
    print("same tokens as plain decoding:", exact)
    print("tokens from one pass:", [len(new) for new in emitted])
else:
    print("Nothing to compare yet.")

# %% tags=["nbval-ignore-output"]
if emitted:
    logbook("03", exact=exact, tokens_from_one_pass=sum(map(len, emitted)))

# %% [markdown]
# ## Do you see why?

# %%
quiz("3.a")

# %%
quiz("3.b")

# %%
quiz("3.c")

# %%
quiz("3.d")

# %% [markdown]
# ## Where are you?

# %% tags=["nbval-ignore-output"]
progress()

# %% [markdown]
# ## What next?
#
# Open `notebooks/04_the_pipeline.ipynb`. There your round gets a draft model in front of it, an end of text, a budget,
# and a batch of prompts, and writes with a real model.
