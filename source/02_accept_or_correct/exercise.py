# %% [markdown]
# # Stage 02, exercises: accept or correct
#
# You write the rule yourself, in six small functions: one token, the residual, one exact step, the acceptance rate, a
# draft without luck, a whole block. Later stages run on them.
#
# | exercise | points | difficulty | minutes |
# |---|---|---|---|
# | 2.1 Keep the draft token? | 2 | 1 of 5 | 5 |
# | 2.2 What is missing? | 2 | 2 of 5 | 8 |
# | 2.3 One exact step | 3 | 2 of 5 | 8 |
# | 2.4 How often is a draft kept? | 2 | 2 of 5 | 6 |
# | 2.5 A draft without luck | 3 | 3 of 5 | 10 |
# | 2.6 A whole block | 4 | 4 of 5 | 15 |
#
# Read the lesson first: `notebooks/02_accept_or_correct.ipynb`.
#
# Replace each `raise NotImplementedError()` by your answer, run the cell, then run the check below it. A check says
# *passed*, *not yet* (with the reason), or *not attempted*. Stuck? `hint("2.1")` gives one more hint each time, and
# `replay()` draws the round on which the last check failed.
#
# All luck comes in as an argument. Draw no random numbers of your own.

# %%
import torch

from specdec_course import check, hint, progress, quiz, replay

# %% [markdown]
# A tool from stage 01. It cuts the unit interval into pieces as long as the probabilities, and returns the token in
# whose piece the uniform number lies.


# %%
def draw(probs, uniform):
    """Draw a token from probs [V] with a uniform number in [0, 1): an int."""
    cdf = probs.double().cumsum(-1)
    passed = (cdf <= uniform * cdf[-1]) & (cdf < cdf[-1])  # rounding must not lead past the last token with mass
    return int(passed.sum())


print([draw(torch.tensor([0.5, 0.3, 0.2]), uniform) for uniform in (0.1, 0.6, 0.9)])

# %% [markdown]
# ## 2.1 Keep the draft token?
#
# *2 points, difficulty 1 of 5, 5 minutes*
#
# A token was drawn from q. Should it go into the text?
#
# Return `True` if it is kept. Keep it with probability min(1, p(x) / q(x)): that is, if the uniform number in [0, 1) is
# **below** p(x) / q(x). A token with p(x) = 0 must never pass, whatever the number.
#
# A token with q(x) ≤ 0 cannot have been drawn from q. Raise a `ValueError` for it.


# %%
def accept_token(target_probs, draft_probs, token, uniform):
    """Tell whether a drafted token is kept.

    target_probs, draft_probs: p and q, Tensor [V]
    token: the drafted token, an int
    uniform: a number in [0, 1)
    Returns True or False. Raises ValueError if the token has q <= 0.
    """
    ### BEGIN SOLUTION
    if draft_probs[token] <= 0:
        raise ValueError(f"draft_probs[{token}] = {float(draft_probs[token])}: such a token cannot have been drawn")
    return bool(uniform < target_probs[token] / draft_probs[token])
    ### END SOLUTION


# %%
check("2.1", accept_token)

# %% [markdown]
# ## 2.2 What is missing?
#
# *2 points, difficulty 2 of 5, 8 minutes*
#
# Kept tokens supply min(p, q). What is missing is max(0, p − q). Return it, scaled to sum to one.
#
# Two edges. Where p and q are equal, nothing is missing: return p itself. And a NaN in p or q must not slip through
# into the text: raise a `ValueError`.


# %%
def residual(target_probs, draft_probs):
    """Return the law of the correction.

    target_probs, draft_probs: p and q, Tensor [V]
    Returns a Tensor [V] of the same dtype, summing to one. Raises ValueError for NaN.
    """
    ### BEGIN SOLUTION
    missing = (target_probs - draft_probs).clamp(min=0)
    total = missing.sum()
    if total.isnan():
        raise ValueError("target_probs or draft_probs holds NaN")
    return target_probs if total == 0 else missing / total
    ### END SOLUTION


# %%
check("2.2", residual)

# %% [markdown]
# ## 2.3 One exact step
#
# *3 points, difficulty 2 of 5, 8 minutes*
#
# Put the two together. A token was drafted. Return the token that goes into the text: the drafted one if it is kept, a
# correction otherwise.
#
# There are two uniform numbers. Each has one purpose.


# %%
def accept_or_correct(target_probs, draft_probs, token, accept_uniform, correct_uniform):
    """Return the token that goes into the text, an int.

    target_probs, draft_probs: p and q, Tensor [V]
    token: the drafted token, an int
    accept_uniform, correct_uniform: numbers in [0, 1), one to judge with and one to draw the correction with
    """
    ### BEGIN SOLUTION
    if accept_token(target_probs, draft_probs, token, accept_uniform):
        return token
    return draw(residual(target_probs, draft_probs), correct_uniform)
    ### END SOLUTION


# %%
check("2.3", accept_or_correct)

# %% [markdown]
# ### Is your step exact?
#
# Do not take the check's word for it. Count. The cell below calls your function for every drafted token and for evenly
# spaced uniform numbers, and adds up with the right weights. What should come out?


# %%
def law_of_my_step(target_probs, draft_probs, pieces):
    """Return the law of what `accept_or_correct` emits, [V], by calling it in every cell of uniform space."""
    emitted = torch.zeros_like(target_probs)
    points = [(place + 0.5) / pieces for place in range(pieces)]
    for token, weight in enumerate(draft_probs.tolist()):
        for accept_uniform in points:
            for correct_uniform in points:
                answer = accept_or_correct(target_probs, draft_probs, token, accept_uniform, correct_uniform)
                emitted[answer] += weight / pieces**2
    return [round(share, 9) for share in emitted.tolist()]


try:
    for p, q in (([0.5, 0.5], [0.8, 0.2]), ([0.5, 0.3, 0.2], [0.2, 0.5, 0.3])):
        p, q = torch.tensor(p, dtype=torch.float64), torch.tensor(q, dtype=torch.float64)
        pieces = 8 if len(p) == 2 else 15  # so that p/q falls on the edge of a piece
        print("p", p.tolist(), "  q", q.tolist(), "  emitted", law_of_my_step(p, q, pieces))
except NotImplementedError:
    print("Answer 2.1, 2.2 and 2.3 first. Then run this cell again.")

# %% [markdown]
# ## 2.4 How often is a draft kept?
#
# *2 points, difficulty 2 of 5, 6 minutes*
#
# Return α, the chance that a token drawn from q is kept. There may be many laws at once: the last dimension holds the
# tokens, and every row gets its own α.


# %%
def acceptance_rate(target_probs, draft_probs):
    """Return the chance that a drafted token is kept.

    target_probs, draft_probs: p and q, Tensor [..., V]
    Returns a Tensor [...]: for [V] a single number.
    """
    ### BEGIN SOLUTION
    return torch.minimum(target_probs, draft_probs).sum(-1)
    ### END SOLUTION


# %%
check("2.4", acceptance_rate)

# %% [markdown]
# ## 2.5 A draft without luck
#
# *3 points, difficulty 3 of 5, 10 minutes*
#
# This drafter does not sample. It computes `draft_probs` and always proposes its favourite token, the one with the
# largest probability. The text must follow p all the same.
#
# Judge its proposal, and return the token that goes into the text. From which law was the proposal **really** drawn?


# %%
def judge_argmax_draft(target_probs, draft_probs, accept_uniform, correct_uniform):
    """Return the token that goes into the text, an int.

    target_probs: p, Tensor [V]
    draft_probs: what the draft model computed, Tensor [V]; it proposes the token with the largest
    accept_uniform, correct_uniform: numbers in [0, 1), one to judge with and one to draw the correction with
    """
    ### BEGIN SOLUTION
    token = int(draft_probs.argmax())
    point = torch.zeros_like(target_probs)
    point[token] = 1
    return accept_or_correct(target_probs, point, token, accept_uniform, correct_uniform)
    ### END SOLUTION


# %%
check("2.5", judge_argmax_draft)

# %% [markdown]
# ## 2.6 A whole block
#
# *4 points, difficulty 4 of 5, 15 minutes*
#
# K tokens were drafted. One pass of the target gave K + 1 laws. Row i is its law after the text and the drafts before
# i, so it judges draft i. Row K is its law after all K drafts.
#
# Return the tokens that go into the text, as a list: the leading run of kept drafts, and then **one** more. If a draft
# was refused, that one is the correction from its row. If none was, it is the bonus from row K.
#
# Draft i is judged with `accept_uniforms[i]`. Correction and bonus are drawn with `correct_uniform`.


# %%
def judge_block(target_probs, draft_probs, draft_tokens, accept_uniforms, correct_uniform):
    """Return the tokens that go into the text: a list of 1 to K + 1 ints.

    target_probs: Tensor [K+1, V]
    draft_probs: Tensor [K, V], row i is the law that draft token i was drawn from
    draft_tokens: Tensor [K]
    accept_uniforms: Tensor [K], numbers in [0, 1)
    correct_uniform: a number in [0, 1)
    """
    ### BEGIN SOLUTION
    num_drafted = len(draft_tokens)
    count = 0
    while count < num_drafted and accept_token(
        target_probs[count], draft_probs[count], int(draft_tokens[count]), float(accept_uniforms[count])
    ):
        count += 1
    law = target_probs[count] if count == num_drafted else residual(target_probs[count], draft_probs[count])
    return [*draft_tokens[:count].tolist(), draw(law, correct_uniform)]
    ### END SOLUTION


# %%
check("2.6", judge_block)

# %% [markdown]
# ## Do you see why?
#
# Four questions, without points. Pick an answer; every choice has an explanation. In a notebook without buttons, answer
# with the letter: `quiz("2.a", "b")`.

# %%
quiz("2.a")

# %%
quiz("2.b")

# %%
quiz("2.c")

# %%
quiz("2.d")

# %% [markdown]
# ## What next?
#
# The map shows what you have and what is left. When all six have passed, you own the rule that makes speculative
# decoding exact. Stage 03 asks how the target gives K + 1 laws in a single pass:
# `notebooks/03_batched_verification.ipynb`.

# %% tags=["nbval-ignore-output"]
progress()
