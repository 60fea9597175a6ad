# %% [markdown]
# # Exercises: the pipeline
#
# Here you build the pipeline of this stage, piece by piece. At the end *your* functions write with a real model.
#
# - Replace each `raise NotImplementedError()` by your answer, run the cell, then run the check below it.
# - `hint("4.1")` helps a little, and more each time. After a failed check, `replay()` draws the round that failed.
# - The lesson is `notebooks/04_the_pipeline.ipynb`.
#
# The models of the checks are toys with a cache, as in stage 03. They have
#
# - `lengths`, the tokens each row's cache holds, a tensor [B],
# - `extend(block)`, one pass over a block of token ids [B, T]: it adds the block to the cache and returns logits
#   [B, T, V], one row for each token,
# - `rollback(counts)`, which forgets the last `counts[b]` tokens of each row b.
#
# The real models have the same three.

# %%
import torch

from specdec_course import carry, check, hint, logbook, progress, quiz, replay

# %% [markdown]
# ## 4.1 A draft model with its own cache
#
# *3 points, difficulty 3, about 10 minutes.* Lesson: "A cache for the draft".
#
# The draft model holds the beginning of the text in its cache, perhaps none of it, and never all of it. Draw one draft
# token for each number in `draft_uniforms`.
#
# - Feed what the cache lacks of `text`.
# - `pick(logits, uniform)` takes one row of logits [V] and a uniform number. It returns a token that was drawn, and the
#   law [V] it was drawn from.
# - Feed each draft token before you draw the next. Do not feed the last one.
#
# Why does the function return the laws? Because the rule of stage 02 needs the q that each token was *really* drawn
# from.


# %%
def propose(draft, text, draft_uniforms, pick):
    """Draft tokens one after the other.

    Parameters
    ----------
    draft : model with a cache of one row
        `draft.lengths`, `draft.extend(block)`.
    text : list of int
        The committed tokens.
    draft_uniforms : Tensor [K]
        One number for each token to draft. K may be 0 at the end of a budget: then both lists are empty.
    pick : function (logits [V], uniform) -> (token, law [V])

    Returns
    -------
    (draft_tokens, draft_probs): a list of K token ids, and a list of the K laws they were drawn from.
    """
    ### BEGIN SOLUTION
    held = int(draft.lengths[0])
    logits = draft.extend(torch.tensor([text[held:]]))[0, -1]  # [V]
    draft_tokens, draft_probs = [], []
    for i, uniform in enumerate(draft_uniforms):
        if i > 0:
            logits = draft.extend(torch.tensor([[draft_tokens[-1]]]))[0, -1]
        token, law = pick(logits, uniform)
        draft_tokens.append(token)
        draft_probs.append(law)
    return draft_tokens, draft_probs
    ### END SOLUTION


# %%
check("4.1", propose)

# %% [markdown]
# ## 4.2 Where does the text end?
#
# *2 points, difficulty 2, about 6 minutes.* Lesson: "Where does a text end?".
#
# A round brings `new_tokens`: accepted drafts and one token of the target. Which of them go into the text? All up to
# the first EOS, and EOS itself. But never more than `remaining`.
#
# A model may have several EOS ids, or none.


# %%
def cut_block(new_tokens, remaining, eos_ids):
    """Return the tokens that go into the text, a list.

    Parameters
    ----------
    new_tokens : list of int
        At least one.
    remaining : int
        How many tokens may still be written, at least 1.
    eos_ids : tuple of int
        The ids that end a text; may be empty.
    """
    ### BEGIN SOLUTION
    kept = []
    for token in new_tokens[:remaining]:
        kept.append(token)
        if token in eos_ids:
            break
    return kept
    ### END SOLUTION


# %%
check("4.2", cut_block)

# %% [markdown]
# ## 4.3 The whole loop
#
# *5 points, difficulty 4, about 18 minutes.* Lesson: "The loop".
#
# Put the six steps together: limit, draft, verify, judge, roll back, commit. It is a *generator*: `yield` each round
# as soon as it is done, so that whoever calls it can stream.
#
# The parts come in as arguments, so that the loop can be checked alone, and so that you can use your own parts later:
#
# - `propose(draft, text, k)` returns `(draft_tokens, draft_probs)`, two lists of length k. Call it once in every round,
#   also with k = 0.
# - `judge(logits, draft_tokens, draft_probs)` takes the 1 + k rows of logits of the pass, [1+k, V], and returns
#   `(num_accepted, next_token)`.
#
# When the function is called, the target's cache holds the prompt *without its last token*, and the draft's cache is
# empty. Leave both caches right before each `yield`: with n tokens in the text before the round and a accepted, the
# target holds n + a, and the draft min(n + k − 1, n + a). With k = 0 nothing leaves the draft's cache.
#
# Your `cut_block` may help.


# %%
def speculative_generate(target, draft, prompt, propose, judge, num_draft_tokens, max_new_tokens, eos_ids):
    """Decode one text speculatively.

    Parameters
    ----------
    target, draft : models with a cache of one row
        `lengths`, `extend(block)`, `rollback(counts)`.
    prompt : list of int
        At least one token.
    propose, judge : functions
        As described above.
    num_draft_tokens, max_new_tokens : int
        K, and the budget.
    eos_ids : tuple of int
        The ids that end the text.

    Yields
    ------
    (new_tokens, num_drafted, num_accepted) after each round: what the text got, a list, and two numbers.
    """
    ### BEGIN SOLUTION
    text = list(prompt)
    end = len(prompt) + max_new_tokens
    while len(text) < end:
        n, room = len(text), end - len(text)
        k = min(num_draft_tokens, room - 1)
        draft_tokens, draft_probs = propose(draft, text, k)
        logits = target.extend(torch.tensor([[text[-1], *draft_tokens]]))[0]  # [1+k, V]
        num_accepted, next_token = judge(logits, draft_tokens, draft_probs)
        target.rollback([k - num_accepted])
        draft.rollback([max(0, int(draft.lengths[0]) - (n + num_accepted))])
        new_tokens = cut_block([*draft_tokens[:num_accepted], next_token], room, eos_ids)
        text += new_tokens
        yield new_tokens, k, num_accepted
        if new_tokens[-1] in eos_ids:
            return
    ### END SOLUTION


# %%
check("4.3", speculative_generate)

# %% [markdown]
# ## 4.4 Three numbers of a run
#
# *2 points, difficulty 2, about 8 minutes.* Lesson: "Three numbers that look alike".
#
# A run is a list of rounds `(num_drafted, num_accepted, num_emitted)`. Return the three numbers in a dict:
#
# - `"alpha"`: accepted over *judged*,
# - `"accepted_per_drafted"`,
# - `"emitted_per_round"`.
#
# Some rounds draft nothing, and the last one may emit less than it accepted: the text ended there.


# %%
def run_statistics(rounds):
    """Return alpha, accepted_per_drafted and emitted_per_round of a run, in a dict.

    Parameters
    ----------
    rounds : list of (num_drafted, num_accepted, num_emitted)
        At least one draft token was judged.
    """
    ### BEGIN SOLUTION
    drafted = sum(d for d, _, _ in rounds)
    accepted = sum(a for _, a, _ in rounds)
    refused = sum(a < d for d, a, _ in rounds)
    emitted = sum(e for _, _, e in rounds)
    return {
        "alpha": accepted / (accepted + refused),
        "accepted_per_drafted": accepted / drafted,
        "emitted_per_round": emitted / len(rounds),
    }
    ### END SOLUTION


# %%
check("4.4", run_statistics)

# %% [markdown]
# ## 4.5 Text as it comes
#
# *2 points, difficulty 3, about 8 minutes.* Lesson: "Half a character".
#
# Tokens come one by one, and each is a piece of bytes. Yield the text that each token completes, and never half a
# character. `decode(list of ids)` returns their text; an unfinished character at its end shows as the replacement mark,
# `"\ufffd"`. After the last token show what is left, even if that is half a character.
#
# The pieces joined must be the text of all tokens.


# %%
def stream_text(tokens, decode):
    """Yield text as it comes.

    Parameters
    ----------
    tokens : iterable of int
        May still be coming: take one at a time.
    decode : function (list of int) -> str
    """
    ### BEGIN SOLUTION
    so_far, shown = [], ""
    for token in tokens:
        so_far.append(token)
        text = decode(so_far)
        if not text.endswith("\ufffd"):
            yield text[len(shown) :]
            shown = text
    yield decode(so_far)[len(shown) :]
    ### END SOLUTION


# %%
check("4.5", stream_text)

# %% [markdown]
# ## 4.6 One round for several texts
#
# *3 points, difficulty 4, about 10 minutes.* Lesson: "Several texts at once".
#
# Now B texts, decoded greedily, with drafts of *different* lengths: one row is near the end of its budget, another
# found nothing to propose. One pass needs one block [B, 1 + K], K being the longest draft. So short drafts are padded,
# with any token id.
#
# Each row's cache holds its text without the last token. After the function it must hold its *new* text without the
# last token.


# %%
def batch_round(target, texts, drafts):
    """Verify the drafts of all rows in one pass, greedily.

    Parameters
    ----------
    target : model with a cache of B rows
        `extend(block [B, T])` returns logits [B, T, V]; `rollback(counts [B])`.
    texts : list of B lists of int
        The committed tokens of each row.
    drafts : list of B lists of int
        What was drafted for each row; may be empty.

    Returns
    -------
    list of B lists of int: the new tokens of each row, accepted drafts and the target's own token.
    """
    ### BEGIN SOLUTION
    width = max(len(draft) for draft in drafts)
    block = [[text[-1], *draft, *[0] * (width - len(draft))] for text, draft in zip(texts, drafts, strict=True)]
    wanted = target.extend(torch.tensor(block)).argmax(-1).tolist()  # [B, 1+K]: the target's favourites
    new_tokens, counts = [], []
    for draft, favourites in zip(drafts, wanted, strict=True):
        accepted = 0
        while accepted < len(draft) and draft[accepted] == favourites[accepted]:
            accepted += 1
        new_tokens.append([*draft[:accepted], favourites[accepted]])
        counts.append(width - accepted)
    target.rollback(counts)
    return new_tokens
    ### END SOLUTION


# %%
check("4.6", batch_round)

# %% [markdown]
# ## Your decoder, a real model
#
# Now SmolLM2 is the target and its small draft proposes. Drafting and the loop are *yours*, from above. The verdict is
# yours as well, from stages 02 and 03, if your functions there have passed their checks. Where something is missing,
# the solution stands in, and the next cell says so.

# %% tags=["nbval-ignore-output"]
two, three = carry("02"), carry("03")

# %%
import time

from specdec_course.demo import encode_prompt
from specdec_ref.decode import collect, generate
from specdec_ref.pairs import load_pair
from specdec_ref.rows import Stop
from specdec_ref.sampling import GREEDY


class RealModel:
    """A real model with the three names that your functions use."""

    def __init__(self, lm):
        self.lm = lm.fresh(1)

    @property
    def lengths(self):
        return self.lm.cache.lengths

    def extend(self, block):
        return self.lm.extend(block.to(self.lm.device)).float().cpu()

    def rollback(self, counts):
        self.lm.rollback(counts)


pair = load_pair("smol")
prompt = encode_prompt(pair, "What do plants need to grow?")
plain = collect(generate(pair.target, [prompt], GREEDY, max_new_tokens=20, stop=Stop(token_ids=pair.eos_token_ids)))[0]
print("plain decoding:", pair.tokenizer.decode(plain))

# %% [markdown]
# Greedy decoding first. A greedy "draw" takes the most likely token, and its law has all its mass there. The verdict is
# `judge_block` of stage 03.


# %%
def greedy_pick(logits, uniform):
    token = int(logits.argmax())
    return token, torch.nn.functional.one_hot(torch.tensor(token), len(logits)).float()


def greedy_judge(logits, draft_tokens, draft_probs):
    drafts = torch.tensor([draft_tokens], dtype=torch.int64)
    num_accepted, next_token = three.judge_block(logits[None], drafts, pair.target.vocab_size)
    return int(num_accepted[0]), int(next_token[0])


def my_rounds(pick, judge, uniforms, num_draft_tokens=4, max_new_tokens=20):
    """Your rounds on the real pair; `uniforms(k)` returns k numbers to draft with."""
    target, draft = RealModel(pair.target), RealModel(pair.draft)
    target.lm.prefill([prompt[:-1]])
    return speculative_generate(
        target,
        draft,
        prompt,
        lambda draft, text, k: propose(draft, text, uniforms(k), pick),
        judge,
        num_draft_tokens,
        max_new_tokens,
        pair.eos_token_ids,
    )


def tokens_of(rounds, log):
    """The tokens of rounds as they come; each round is noted in `log`."""
    for new_tokens, drafted, accepted in rounds:
        log.append((drafted, accepted, len(new_tokens)))
        yield from new_tokens


log, mine = [], []
start = time.perf_counter()
try:
    for token in tokens_of(my_rounds(greedy_pick, greedy_judge, torch.zeros), log):
        mine.append(token)
except NotImplementedError:
    print("Write 4.1, 4.2 and 4.3 first, then run this cell again.")
else:
    print("your decoder:  ", pair.tokenizer.decode(mine))
    print("the same tokens as plain greedy decoding:", mine == plain)
seconds = time.perf_counter() - start

# %% [markdown]
# What did the draft bring? These are your own statistics. The logbook keeps them, and `progress()` shows them.

# %% tags=["nbval-ignore-output"]
try:
    figures = run_statistics(log) if log else None
except NotImplementedError:
    figures = None
if figures:
    for name, value in figures.items():
        print(f"{name}: {value:.3f}")
    print(f"{len(log)} rounds, where plain decoding needs {len(plain)} passes")
    logbook(
        "04",
        exact=mine == plain,
        alpha=round(figures["alpha"], 3),
        tokens_per_round=round(figures["emitted_per_round"], 3),
        tokens_per_second=round(len(mine) / seconds, 1),
    )
else:
    print("Write 4.4 as well, then run this cell again.")

# %% [markdown]
# And with luck? Now both models draw, at temperature 0.8. The verdict is the rule of stage 02, your `judge_block`
# there, and `stream_text` shows the text as it comes. Each run of this cell draws anew: the *distribution* is the
# target's own, not one particular text.


# %% tags=["nbval-ignore-output"]
def warm_pick(logits, uniform):
    law = (logits.double() / 0.8).softmax(-1)
    return int((law.cumsum(-1) <= uniform * law.sum()).sum()), law


def warm_judge(logits, draft_tokens, draft_probs):
    laws = (logits.double() / 0.8).softmax(-1)
    drafted = torch.stack(draft_probs) if draft_probs else laws[:0]
    k = len(draft_tokens)
    drafts = torch.tensor(draft_tokens, dtype=torch.int64)
    tokens = two.judge_block(laws, drafted, drafts, torch.rand(k, dtype=torch.float64), float(torch.rand(())))
    return len(tokens) - 1, tokens[-1]


def drafting_luck(k):
    return torch.rand(k, dtype=torch.float64)


try:
    sampled = tokens_of(my_rounds(warm_pick, warm_judge, drafting_luck, max_new_tokens=16), [])
    for piece in stream_text(sampled, pair.tokenizer.decode):
        print(piece, end="", flush=True)
    print()
except NotImplementedError:
    print("Write 4.5 as well, then run this cell again.")

# %% [markdown]
# ## Think it through
#
# Answer in the form, or write `quiz("4.a", "b")` and run the cell.

# %%
quiz("4.a")

# %%
quiz("4.b")

# %%
quiz("4.c")

# %%
quiz("4.d")

# %% [markdown]
# ## Where are you?

# %% tags=["nbval-ignore-output"]
progress()

# %% [markdown]
# ## What next?
#
# You have a complete, exact speculative decoder, and it is yours. Whether it is also *faster* on your machine is
# another question: the draft's passes and the wider pass of the target are on the bill. Run `python3 course.py demo` to
# see such a bill. Stage 05 is about it: when speculation pays, and how to measure that honestly.
