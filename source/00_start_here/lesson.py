# %% [markdown]
# # Start here: one round of speculative decoding
#
# A language model writes one token at a time. Each token costs one pass over all of its weights.
# This course is about getting several tokens from one pass, without changing what the model would have written.
#
# In this notebook you will
#
# - check that everything is in place,
# - load a real language model,
# - watch one round of speculative decoding in slow motion,
# - see that the text is the same as with plain decoding, token for token.
#
# It takes about ten minutes. Run a cell with **Shift+Enter**, from top to bottom.

# %% [markdown]
# ## Is everything in place?

# %%
import sys

import torch
import transformers

print("Python is new enough:", sys.version_info >= (3, 11))
print("PyTorch", torch.__version__.split("+")[0])
print("transformers", transformers.__version__)

# %% [markdown]
# ## Who writes, and who guesses?
#
# Two parts work together.
#
# - The **target** is the model whose text you want. Here it is SmolLM2-135M-Instruct: 135 million weights, small enough
#   for a laptop and a real language model all the same. Our copy was unpacked from a file with 4-bit weights, so it is
# not
#   bit for bit the model its makers published. It is a fixed model, and that is all we need.
# - The **drafter** guesses what the target will write next. A guess costs little and may be wrong.
#   Today the drafter has no weights at all: it looks for the place where the last few words occurred before, and
# proposes
#   what followed them there.

# %%
from specdec_ref.pairs import load_pair

pair = load_pair("smol")
target, tokenizer = pair.target, pair.tokenizer
print(target.name)
print(f"{sum(weight.numel() for weight in target.model.parameters()):,} weights")
print(f"{target.vocab_size:,} tokens in the vocabulary")

# %% [markdown]
# Here is the task. We ask for a change in a short program.
# Most of the answer will repeat the question. That is where a drafter without weights can do well.

# %%
from specdec_course.demo import DEFAULT_PROMPT, encode_prompt

print(DEFAULT_PROMPT)
prompt = encode_prompt(pair, DEFAULT_PROMPT)
print()
print(len(prompt), "tokens")

# %% [markdown]
# ## What does one round do?
#
# First a made-up round, with letters for tokens. The drafter proposes five tokens: A, B, C, D, E.
# The target looks at all five **in one pass**. It agrees with A, B and C. It does not agree with D, and puts its own
# token D′ there. E was a guess about what comes after D, so it is thrown away.
#
# How many tokens did we get from one pass of the target?

# %% tags=["nbval-ignore-output"]
from specdec_course.figures import draw_round, show

show(
    draw_round("ABCDE", num_accepted=3, next_token="D′", title="An illustration: one round, one pass of the target"),
    alt="Five drafted tokens A to E. A, B and C are accepted, D is refused, E is thrown away unjudged. "
    "The text gets A, B, C and the correction D prime: four tokens.",
)

# %% [markdown]
# Four: A, B, C and D′. Plain decoding would have needed four passes.
# Making the guesses was not free, and checking five tokens is more work than checking one. We will count that bill
# later.
#
# Why can the target check five tokens at once, when it can only write one at a time?
# To write token 3 it must know token 2. To *check* tokens 1 to 5 it needs to know nothing more: the draft holds a
# candidate for every position, and each position looks only at what stands before it.

# %% [markdown]
# ## A real round
#
# Now the same with the real model. We decode greedily: the target always wants its most likely token.
# We let the decoder run and stop at the first round in which the target accepts some of the draft and refuses the rest.

# %%
from specdec_ref.decode import collect, generate, speculate
from specdec_ref.rows import Stop
from specdec_ref.sampling import GREEDY

stop = Stop(token_ids=pair.eos_token_ids)
rounds = list(speculate(target, pair.drafter("ngram"), [prompt], GREEDY, num_draft_tokens=5, stop=stop))
mixed = next(r for r in rounds if 0 < r.num_accepted[0] < len(r.drafts[0]))


def words(tokens):
    """Each token as text, with spaces and line ends made visible."""
    return [tokenizer.decode([token]).replace(" ", "·").replace("\n", "⏎") for token in tokens]


print("drafted: ", words(mixed.drafts[0]))
print("accepted:", words(mixed.drafts[0][: mixed.num_accepted[0]]))
print("text gets", words(mixed.tokens[0]))

# %% tags=["nbval-ignore-output"]
show(
    draw_round(
        words(mixed.drafts[0]), mixed.num_accepted[0], words(mixed.tokens[0])[-1], title="A round of the real model"
    ),
    alt=f"{len(mixed.drafts[0])} tokens are drafted. Accepted: {mixed.num_accepted[0]}. The target "
    "replaces the next token, and the rest of the draft is thrown away.",
)

# %% [markdown]
# ## Did it change the text?
#
# This is the point of the whole method. We decode the same prompt plainly, one token per pass, and compare.

# %%
speculative_text = collect(rounds)[0]
plain = list(generate(target, [prompt], GREEDY, stop=stop))
plain_text = collect(plain)[0]

print(tokenizer.decode(plain_text, skip_special_tokens=True))
print()
print("same tokens:", speculative_text == plain_text)
print("passes of the target, plain:      ", len(plain))
print("passes of the target, speculative:", len(rounds))

# %% [markdown]
# The same tokens from fewer passes. Whether fewer passes also means less *time* depends on what a pass over six tokens
# costs on your machine, and on what the drafter costs. Run `python3 course.py demo` in a terminal to see both bills
# side by side.
#
# ## What next?
#
# - `python3 course.py demo` shows a whole text with its accepted, corrected and bonus tokens in different colours.
# - `python3 course.py test` proves the decoder exact on your machine.
# - The package `specdec_ref` is the text behind this course. Its first page says in which order to read its files.
