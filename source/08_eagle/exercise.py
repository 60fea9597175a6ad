# %% [markdown]
# # Exercises: EAGLE
#
# You build what an EAGLE head needs around it: its pairs, its chain, its ids, and what it forgets. At the end *your*
# functions draft for SmolLM2 with the head of `models/smol-eagle`.
#
# - Replace each `raise NotImplementedError()` by your answer, run the cell, then run the check below it.
# - `hint("8.1")` helps a little, and more each time. After a failed check, `replay()` shows the case that failed.
# - The lesson is `notebooks/08_eagle.ipynb`.
#
# | exercise | points | difficulty | minutes |
# |---|---|---|---|
# | 8.1 The pairs that the head reads | 2 | 2 of 5 | 6 |
# | 8.2 From draft ids to the target's | 3 | 3 of 5 | 10 |
# | 8.3 After the verdict: forget, then reread | 3 | 4 of 5 | 12 |
# | 8.4 A chain of drafted tokens | 3 | 3 of 5 | 12 |
# | 8.5 What a small vocabulary costs | 2 | 3 of 5 | 8 |

# %%
import torch

from specdec_course import carry, check, hint, logbook, progress, quiz, replay

# %% [markdown]
# ## 8.1 The pairs that the head reads
#
# *2 points, difficulty 2 of 5, 6 minutes.* Lesson: "What does the head read?".
#
# `text` holds n committed tokens. The target has read all but the last, so there are n - 1 features. Return the pairs
# as the head's first matrix wants them: one row for each feature, the feature first, then the embedding of the token
# that completes the pair.


# %%
def head_inputs(features, embedding, text):
    """Return the pairs of a text, [n-1, 2D].

    Parameters
    ----------
    features : Tensor [n-1, D]
        Of the tokens that the target has read.
    embedding : Tensor [V, D]
        One row for each token id.
    text : list of int
        The n committed tokens, at least two.
    """
    ### BEGIN SOLUTION
    return torch.cat([features, embedding[torch.tensor(text[1:])]], dim=-1)
    ### END SOLUTION


# %%
check("8.1", head_inputs)

# %% [markdown]
# ## 8.2 From draft ids to the target's
#
# *3 points, difficulty 3 of 5, 10 minutes.* Lesson: "A smaller vocabulary".
#
# The head gives R logits, one for each token that it can draft. Entry i is the target's token `draft_to_target[i]`.
# Draw a token from the `top_k` largest of them, at temperature 1, and return it with the law it was drawn from. Both
# are for the verifier, who knows the target's ids only.
#
# To draw, invert the cumulative sum of q *over the target's ids*: the token is how many entries of `q.cumsum(0)` are at
# or below `uniform`. If `top_k` is R or more, nothing is filtered.


# %%
def draft_token(draft_logits, draft_to_target, vocab_size, top_k, uniform):
    """Draw a draft token.

    Parameters
    ----------
    draft_logits : Tensor [R] float64
    draft_to_target : Tensor [R] int64
        The target's id of each draft id, in rising order.
    vocab_size : int
        V, of the target.
    top_k : int
        At least 1.
    uniform : float in [0, 1)

    Returns
    -------
    (token, q): the target's id, an int, and the law [V] that it was drawn from.
    """
    ### BEGIN SOLUTION
    least = draft_logits.topk(min(top_k, len(draft_logits))).values[-1]
    law = draft_logits.masked_fill(draft_logits < least, -torch.inf).softmax(-1)  # [R]
    q = torch.zeros(vocab_size, dtype=law.dtype)
    q[draft_to_target] = law
    token = int((q.cumsum(0) <= uniform).sum())
    return min(token, vocab_size - 1), q
    ### END SOLUTION


# %%
check("8.2", draft_token)

# %% [markdown]
# ## 8.3 After the verdict: forget, then reread
#
# *3 points, difficulty 4 of 5, 12 minutes.* Lesson: "What must be forgotten after a round?".
#
# The head has drafted K tokens. For that it fed pairs of its own: each drafted token but the last, with the feature
# that it had guessed. The target's one pass read `last_token`, the last committed token before the round, and all K
# drafts. So `target_features` has K + 1 rows, in this order. It accepted `num_accepted` drafts and added `next_token`.
#
# Return a dict:
#
# - `"forget"`: how many pairs the head's cache must forget, from its end,
# - `"features"`, `"tokens"`: the pairs to read next, a tensor [m, D] and a list of m token ids.
#
# `own_features` are the head's guesses, [K, D]: row i guesses row i of `target_features`. K may be 0.


# %%
def after_round(last_token, draft_tokens, num_accepted, next_token, own_features, target_features):
    """Say what the head forgets and reads after a round: a dict with "forget", "features" and "tokens".

    Parameters
    ----------
    last_token : int
        The last committed token before the round.
    draft_tokens : list of K int
    num_accepted : int
        From 0 to K.
    next_token : int
        The correction or the bonus.
    own_features : Tensor [K, D]
    target_features : Tensor [K+1, D]
    """
    ### BEGIN SOLUTION
    return {
        "forget": max(0, len(draft_tokens) - 1),
        "features": target_features[: 1 + num_accepted],
        "tokens": [*draft_tokens[:num_accepted], next_token],
    }
    ### END SOLUTION


# %%
check("8.3", after_round)

# %% [markdown]
# ## 8.4 A chain of drafted tokens
#
# *3 points, difficulty 3 of 5, 12 minutes.* Lesson: "The chain: on with its own features".
#
# Now the draft itself. A head has
#
# - `read(features, tokens)`: adds pairs to its cache, a tensor [m, D] and a list of m token ids, and returns the
#   feature that it predicts after each of them, [m, D],
# - `logits(feature)`: the R logits for one feature [D].
#
# `features` and `tokens` are the true pairs of 8.3, not read yet. `pick(logits, uniform)` draws: it returns a token
# (the target's id) and the law [V] that it was drawn from. Draw one token for each number in `draft_uniforms`. Do not
# feed the last one.


# %%
def draft_chain(head, features, tokens, draft_uniforms, pick):
    """Draft tokens one after the other.

    Parameters
    ----------
    head : a head with a cache
        `read(features, tokens)`, `logits(feature)`.
    features : Tensor [m, D]
        At least one.
    tokens : list of m int
    draft_uniforms : Tensor [K]
        One number for each token to draft, at least one.
    pick : function (logits [R], uniform) -> (token, law [V])

    Returns
    -------
    (draft_tokens, draft_probs): a list of K token ids, and a list of the K laws they were drawn from.
    """
    ### BEGIN SOLUTION
    feature = head.read(features, tokens)[-1]  # [D]
    draft_tokens, draft_probs = [], []
    for i, uniform in enumerate(draft_uniforms):
        if i > 0:
            feature = head.read(feature[None], [draft_tokens[-1]])[-1]
        token, law = pick(head.logits(feature), uniform)
        draft_tokens.append(token)
        draft_probs.append(law)
    return draft_tokens, draft_probs
    ### END SOLUTION


# %%
check("8.4", draft_chain)

# %% [markdown]
# ## 8.5 What a small vocabulary costs
#
# *2 points, difficulty 3 of 5, 8 minutes.* Lesson: "A smaller vocabulary".
#
# At each of N places of a text you have the target's law and the head's logits. Return a dict with two floats, both
# means over the places:
#
# - `"alpha"`: the chance that a token drawn from the head's law (temperature 1, no filter) is accepted,
# - `"ceiling"`: what α could be at most, whatever the head had learned, with this draft vocabulary.


# %%
def vocabulary_cost(target_probs, draft_logits, draft_to_target):
    """Return the acceptance rate of a head, and its ceiling: a dict with "alpha" and "ceiling".

    Parameters
    ----------
    target_probs : Tensor [N, V]
    draft_logits : Tensor [N, R]
    draft_to_target : Tensor [R] int64
        The target's id of each draft id.
    """
    ### BEGIN SOLUTION
    inside = target_probs[:, draft_to_target]  # [N, R]
    alpha = torch.minimum(inside, draft_logits.softmax(-1)).sum(-1).mean()
    return {"alpha": float(alpha), "ceiling": float(inside.sum(-1).mean())}
    ### END SOLUTION


# %%
check("8.5", vocabulary_cost)

# %% [markdown]
# ## Your chain, a real head
#
# SmolLM2 is the target, and its trained head drafts. Chain, ids and clean-up are *yours*. The verdict is `judge_block`,
# from your stage 03 if it passed its check there; else the solution stands in, and the next cell says so.

# %% tags=["nbval-ignore-output"]
three = carry("03")

# %%
import time

from specdec_course.demo import encode_prompt
from specdec_ref.decode import collect, generate
from specdec_ref.heads import load_eagle
from specdec_ref.pairs import load_pair
from specdec_ref.rows import Stop
from specdec_ref.sampling import GREEDY

pair = load_pair("smol")
trained = load_eagle(pair.head_folder("eagle"), pair.target, pair.target_folder)


class RealHead:
    """A trained head with the names that your chain uses. Its memory is two lists; each read runs over all pairs."""

    def __init__(self):
        self.features, self.tokens = torch.zeros(0, trained.shape.width), []

    @torch.inference_mode()
    def read(self, features, tokens):
        self.features, self.tokens = torch.cat([self.features, features]), [*self.tokens, *tokens]
        positions = torch.arange(1, len(self.tokens) + 1)[None]

        def attend(query, key, value):
            return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

        return trained(self.features[None], torch.tensor([self.tokens]), positions, attend)[0, -len(tokens) :]

    def logits(self, feature):
        return trained.logits(feature)

    def forget(self, count):
        self.features = self.features[: len(self.tokens) - count]
        self.tokens = self.tokens[: len(self.tokens) - count]


prompt = encode_prompt(pair, "What do plants need to grow?")
plain = collect(generate(pair.target, [prompt], GREEDY, max_new_tokens=20, stop=Stop(token_ids=pair.eos_token_ids)))[0]
print("plain decoding:", pair.tokenizer.decode(plain))

# %% [markdown]
# Greedy decoding is `top_k = 1`: the filter leaves one token, so its law is a point mass. The loop below is that of
# stage 04, with features.


# %%
def greedy_pick(logits, uniform):
    return draft_token(logits.double(), trained.draft_to_target, pair.target.vocab_size, 1, float(uniform))


def my_rounds(count=3, max_new_tokens=20):
    """Your rounds on the real pair: yields what the text got, and how many drafts were accepted."""
    target, head, text = pair.target.fresh(1), RealHead(), list(prompt)
    features, tokens = target.prefill_with_features([text[:-1]])[0].cpu(), text[1:]
    while len(text) < len(prompt) + max_new_tokens:
        k = min(count, len(prompt) + max_new_tokens - len(text) - 1)
        drafted = draft_chain(head, features, tokens, torch.zeros(k), greedy_pick)[0] if k else []
        block = torch.tensor([[text[-1], *drafted]], device=target.device)
        logits, true = target.extend_with_features(block)
        accepted, following = three.judge_block(
            logits.float().cpu(), torch.tensor([drafted], dtype=torch.int64), target.vocab_size
        )
        a, next_token = int(accepted[0]), int(following[0])
        target.rollback([k - a])
        own = torch.zeros(k, trained.shape.width)  # your clean-up should not need the guesses
        clean = after_round(text[-1], drafted, a, next_token, own, true[0].float().cpu())
        head.forget(clean["forget"])
        features, tokens = clean["features"], clean["tokens"]
        new = [*drafted[:a], next_token]
        text += new
        yield new, k, a
        if set(new) & set(pair.eos_token_ids):
            return


log, mine = [], []
start = time.perf_counter()
try:
    for new, k, a in my_rounds():
        mine += new
        log.append((k, a, len(new)))
except NotImplementedError:
    print("Write 8.2, 8.3 and 8.4 first, then run this cell again.")
else:
    print("your decoder:  ", pair.tokenizer.decode(mine))
    print("the same tokens as plain greedy decoding:", mine == plain)
seconds = time.perf_counter() - start

# %% [markdown]
# How much did the head bring, and how much of the answer could it have drafted at all? The logbook keeps it.

# %% tags=["nbval-ignore-output"]
if log:
    judged = sum(a + (a < k) for k, a, _ in log)
    alpha = sum(a for _, a, _ in log) / judged
    inside = sum(token in set(trained.draft_to_target.tolist()) for token in plain)
    print(f"{len(log)} rounds, where plain decoding needs {len(plain)} passes; alpha {alpha:.2f}")
    print(f"{inside} of {len(plain)} tokens are in the draft vocabulary")
    logbook(
        "08",
        exact=mine == plain,
        alpha=round(alpha, 3),
        tokens_per_round=round(len(mine) / len(log), 3),
        tokens_per_second=round(len(mine) / seconds, 1),
    )
else:
    print("Write 8.2, 8.3 and 8.4 first, then run this cell again.")

# %% [markdown]
# And when tokens are drawn? Then the ceiling counts. With your `vocabulary_cost`, along the same answer:

# %% tags=["nbval-ignore-output"]
with torch.inference_mode():
    whole = [*prompt, *plain]
    read = pair.target.fresh(1).prefill_with_features([whole])[0].cpu()  # [T, D]
    outputs = RealHead().read(read[:-1], whole[1:])  # entry i: the feature of token i + 1
    places = slice(len(prompt) - 1, len(whole) - 1)
    laws = pair.target.fresh(1).extend(torch.tensor([whole], device=pair.target.device))[0].float().cpu().softmax(-1)
    try:
        cost = vocabulary_cost(
            laws[places].double(), trained.logits(outputs[len(prompt) - 2 : -1]).double(), trained.draft_to_target
        )
        print(f"alpha at temperature 1: {cost['alpha']:.2f}; at most {cost['ceiling']:.2f} with this vocabulary")
    except NotImplementedError:
        print("Write 8.5 first, then run this cell again.")

# %% [markdown]
# ## Think it through
#
# Answer in the form, or write `quiz("8.a", "b")` and run the cell.

# %%
quiz("8.a")

# %%
quiz("8.b")

# %%
quiz("8.c")

# %% [markdown]
# ## Where are you?

# %% tags=["nbval-ignore-output"]
progress()

# %% [markdown]
# ## What next?
#
# You have drafted from the target's own features. `RealHead` runs over all pairs each time;
# `specdec_ref/drafters/eagle.py` shows how the same looks with a cache, for several texts at once. To train a head for
# longer, run `specdec train eagle --target tiny` after `specdec train tiny`. The next stage asks what a *separate*
# draft model should learn, and whether a third model can help the draft.
