# %% [markdown]
# # Exercises: the plain loop
#
# Here you write the loop of this stage, piece by piece: from a row of logits to a whole text. At the end *your*
# functions write with a real model.
#
# - Replace each `raise NotImplementedError()` by your answer, run the cell, then run the check below it.
# - `hint("1.1")` helps a little, and more each time. After a failed check, `replay()` draws the case that failed.
# - The lesson is `notebooks/01_the_plain_loop.ipynb`.
#
# All in all about an hour. No exercise needs the one before it.

# %%
import torch

from specdec_course import check, hint, logbook, progress, quiz, replay

# %% [markdown]
# ## 1.1 From logits to a distribution
#
# *2 points, difficulty 2, about 8 minutes.* Lesson: "From scores to chances".
#
# Turn one row of logits into probabilities, at a temperature.
#
# - At temperature 0 the largest logit has probability 1: the first one, if several are equally large.
# - A temperature below 0 is an error: raise a `ValueError`.
# - Logits may be very large, or minus infinity for a token that is forbidden.


# %%
def softmax(logits, temperature):
    """Return the probabilities [V] of a row of logits.

    Parameters
    ----------
    logits : Tensor [V], float32 or float64
    temperature : float

    Returns
    -------
    Tensor [V] of the same dtype; sums to 1.
    """
    ### BEGIN SOLUTION
    if temperature < 0:
        raise ValueError(f"temperature={temperature} must not be negative")
    if temperature == 0:
        probs = torch.zeros_like(logits)
        probs[logits.argmax()] = 1.0
        return probs
    powers = ((logits - logits.max()) / temperature).exp()
    return powers / powers.sum()
    ### END SOLUTION


# %%
check("1.1", softmax)

# %% [markdown]
# ## 1.2 Cutting off the tail
#
# *3 points, difficulty 3, about 12 minutes.* Lesson: "Cutting off the tail".
#
# Keep the `top_k` likeliest tokens; `None` keeps all, and so does a number above the vocabulary. Scale what is left to
# sum to 1. From *that* keep the likeliest tokens until their mass reaches `top_p`; the token that crosses stays.
# Scale again.
#
# The tokens keep their places, and those that are cut off have probability 0. Where two tokens are equally likely,
# either order will do.


# %%
def keep(probs, top_k, top_p):
    """Return the distribution [V] that the two filters leave.

    Parameters
    ----------
    probs : Tensor [V], float64
        A distribution, in the order of the token ids: not sorted.
    top_k : int or None
        At least 1.
    top_p : float
        Above 0 and at most 1; 1 keeps all.
    """
    ### BEGIN SOLUTION
    best, order = probs.sort(descending=True)
    if top_k is not None:
        best, order = best[:top_k], order[:top_k]
    best = best / best.sum()
    likelier = best.cumsum(0) - best
    stays = likelier < top_p
    kept = torch.zeros_like(probs)
    kept[order[stays]] = best[stays]
    return kept / kept.sum()
    ### END SOLUTION


# %%
check("1.2", keep)

# %% [markdown]
# ## 1.3 One number, one token
#
# *2 points, difficulty 2, about 8 minutes.* Lesson: "One uniform number, one token".
#
# Cut the interval from 0 to 1 into pieces, in the order of the token ids, each as long as its probability. Return the
# token whose piece `uniform` falls into. A piece holds its left edge and not its right one.
#
# Rounding may make `probs` sum to a little less than 1, and a number may be very close to 1. So divide the edges by the
# last one. A token of probability 0 must never be drawn.


# %%
def draw(probs, uniform):
    """Return the token, an int, that `uniform` picks.

    Parameters
    ----------
    probs : Tensor [V], float64
    uniform : float
        In [0, 1).
    """
    ### BEGIN SOLUTION
    edges = probs.cumsum(0)
    return int((edges / edges[-1] <= uniform).sum())
    ### END SOLUTION


# %%
check("1.3", draw)

# %% [markdown]
# ## 1.4 The loop
#
# *3 points, difficulty 3, about 12 minutes.* Lesson: "The loop" and "When is a text finished?".
#
# Write up to `max_new_tokens` tokens. This model has no cache: in each pass it reads the whole text.
#
# - `model(tokens)` makes a pass over a text, a list of T ids. It returns logits [T, V], a row for each token.
# - `choose(row, uniform)` picks a token from one row of logits. New token number i is chosen with `uniforms[i]`.
# - A token in `eos_ids` ends the text, and is its last token. An EOS in the prompt ends nothing.
# - Make one pass for each new token, and none besides.


# %%
def write(model, prompt, choose, uniforms, eos_ids, max_new_tokens):
    """Return the new tokens, a list, without the prompt.

    Parameters
    ----------
    model : function (list of T ids) -> logits [T, V]
    prompt : list of int
        At least one token.
    choose : function (row [V], uniform) -> int
    uniforms : Tensor [N]
        N is at least `max_new_tokens`.
    eos_ids : tuple of int
        The ids that end a text; may be empty.
    max_new_tokens : int
        0 or more.
    """
    ### BEGIN SOLUTION
    new_tokens = []
    for uniform in uniforms[:max_new_tokens]:
        row = model(prompt + new_tokens)[-1]
        new_tokens.append(choose(row, uniform))
        if new_tokens[-1] in eos_ids:
            break
    return new_tokens
    ### END SOLUTION


# %%
check("1.4", write)

# %% [markdown]
# ## 1.5 The loop with a cache
#
# *3 points, difficulty 3, about 12 minutes.* Lesson: "What is computed twice?".
#
# The same loop, for a model that remembers what it has read.
#
# - `model.extend(block)` makes a pass over a block of new tokens, a tensor [1, T] of ids. It adds them to the cache and
#   returns logits [1, T, V].
# - The cache is empty at first. A block must not be empty.
# - In the end the cache must hold the text without its last token. (With a budget of 0 it may also stay empty.)


# %%
def write_cached(model, prompt, choose, uniforms, eos_ids, max_new_tokens):
    """Return the new tokens, a list, without the prompt.

    Parameters
    ----------
    model : model with an empty cache
        `model.extend(block [1, T])` returns logits [1, T, V].
    prompt, choose, uniforms, eos_ids, max_new_tokens
        As in `write`.
    """
    ### BEGIN SOLUTION
    new_tokens, block = [], prompt
    for uniform in uniforms[:max_new_tokens]:
        row = model.extend(torch.tensor([block]))[0, -1]
        token = choose(row, uniform)
        new_tokens.append(token)
        if token in eos_ids:
            break
        block = [token]
    return new_tokens
    ### END SOLUTION


# %%
check("1.5", write_cached)

# %% [markdown]
# ## Your functions, a real model
#
# This cell puts your five functions together and lets SmolLM2 write with them, once without a cache and once with it.
# Both must give the same text. The logbook keeps how fast it was: the number that later stages have to beat.
#
# The model loads in some seconds. As long as a function is missing, the cell says so.

# %% tags=["nbval-ignore-output"]
import time

from specdec_ref.pairs import load_pair


def choose_for_real(row, uniform):
    """Your softmax, your filters, your draw."""
    return draw(keep(softmax(row.double().cpu(), 0.8), 50, 0.95), float(uniform))


def write_for_real(max_new_tokens=12):
    """Let SmolLM2 write with your functions, plainly and with the cache."""
    pair = load_pair("smol")
    target = pair.target
    prompt = pair.tokenizer.encode("Once upon a time, a fox")
    uniforms = torch.rand(max_new_tokens, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rest = choose_for_real, uniforms, pair.eos_token_ids, max_new_tokens

    class OnDevice:
        """The target with a cache of its own, for blocks made anywhere."""

        def __init__(self):
            self.lm = target.fresh(1)

        def extend(self, block):
            return self.lm.extend(block.to(target.device))

    plain = write(lambda tokens: OnDevice().extend(torch.as_tensor(tokens)[None])[0], prompt, *rest)
    start = time.perf_counter()
    cached = write_cached(OnDevice(), prompt, *rest)
    seconds = time.perf_counter() - start
    print(pair.tokenizer.decode(prompt + cached))
    print("same text without a cache:", plain == cached)
    logbook("01", exact=plain == cached, tokens_per_second=round(len(cached) / seconds, 1))


try:
    write_for_real()
except NotImplementedError:
    print("Not yet: write the functions 1.1 to 1.5 first, then run this cell again.")

# %% [markdown]
# ## 1.6 The least time of a pass
#
# *2 points, difficulty 2, about 8 minutes.* Lesson: "The floor: bytes over bandwidth" and "The roof: arithmetic".
#
# How long does a pass over `num_tokens` tokens take at least? All weights must be read, and the arithmetic of all
# tokens must be done. Both go on at the same time.


# %%
def pass_seconds(num_tokens, num_weights, bytes_per_weight, bandwidth, peak):
    """Return the least seconds of a pass, a float.

    Parameters
    ----------
    num_tokens : int
        Tokens in the pass.
    num_weights : int
    bytes_per_weight : float
    bandwidth : float
        Bytes per second from memory.
    peak : float
        Operations per second. A multiplication and an addition are two.
    """
    ### BEGIN SOLUTION
    reading = num_weights * bytes_per_weight / bandwidth
    calculating = 2 * num_weights * num_tokens / peak
    return max(reading, calculating)
    ### END SOLUTION


# %%
check("1.6", pass_seconds)

# %% [markdown]
# ## Think it through
#
# Answer in the form, or write `quiz("1.a", "b")` and run the cell.

# %%
quiz("1.a")

# %%
quiz("1.b")

# %%
quiz("1.c")

# %%
quiz("1.d")

# %% [markdown]
# ## What next?
#
# `progress()` shows the map of the course. Stage 02 asks when a guessed token may be kept, so that the text still
# follows the model's own law: open `notebooks/02_accept_or_correct.ipynb`.

# %% tags=["nbval-ignore-output"]
progress()
