# %% [markdown]
# # Start here: one round of speculative decoding
#
# A language model writes one *token* at a time: a word, or a piece of one. Each token costs one pass over all of the
# model's weights.
# This course is about getting several tokens from one pass, without changing what the model would have written.
#
# In this notebook you will
#
# - check that everything is in place,
# - meet the models of this course,
# - watch one round of speculative decoding in slow motion,
# - see that the text is the same as with plain decoding, token for token,
# - see how the exercises answer you.
#
# It takes about ten minutes. Run a cell with **Shift+Enter**, from top to bottom.

# %% [markdown]
# ## Is everything in place?
#
# The next cell looks, and says what to do about anything that is missing.

# %%
try:
    from specdec_course.checkup import check_up
except ModuleNotFoundError as error:
    print(f"This notebook does not run in the course's environment ({error}).")
    print("Close JupyterLab, and start it with `python3 course.py learn` in the course's folder.")
else:
    check_up()

# %% [markdown]
# ## Who writes, and who guesses?
#
# Two parts work together.
#
# - The **target** is the model whose text you want. Here it is SmolLM2-135M-Instruct: 135 million weights, small enough
#   for a laptop and a real language model all the same. Our copy was unpacked from a file with 4-bit weights, so it is
#   not bit for bit the model its makers published. It is a fixed model, and that is all we need.
# - The **drafter** guesses what the target will write next. A guess costs little and may be wrong.
#   Today the drafter has no weights at all: it looks for the place where the last few words occurred before, and
#   proposes what followed them there.

# %%
from specdec_ref.pairs import load_pair

pair = load_pair("smol")
target, tokenizer = pair.target, pair.tokenizer
print(target.name)
print(f"{sum(weight.numel() for weight in target.model.parameters()):,} weights")
print(f"{target.vocab_size:,} tokens in the vocabulary")

# %% [markdown]
# The pair also has a small draft *model*. You meet it in stage 02.
#
# And there is a second pair, **tiny**: two models so small that they load in a moment. They know nothing of the world
# but one kind of little story. What do they write?
#
# No GPU is needed for any of this. Where there is one, the course uses it.

# %% tags=["nbval-ignore-output"]
from specdec_ref.decode import collect, generate, speculate
from specdec_ref.rows import Stop
from specdec_ref.sampling import GREEDY

print("models run on:", target.device)
try:
    tiny = load_pair("tiny")
except ValueError as error:
    print("The tiny pair is not here:", error)
else:
    beginning = "Once upon a time there was a"
    ids = tiny.tokenizer(beginning)["input_ids"]
    stop = Stop(tiny.eos_token_ids)
    written = collect(generate(tiny.target, [ids], GREEDY, max_new_tokens=120, stop=stop))[0]
    print(beginning + tiny.tokenizer.decode(written, skip_special_tokens=True))
    for lm in (tiny.target, tiny.draft):
        print(f"{lm.name}: {sum(weight.numel() for weight in lm.model.parameters()):,} weights")

# %% [markdown]
# Back to SmolLM2. Here is its task: a change in a short program.
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
#
# The same round once more, step by step. The rule in this illustration is the simplest there is: the target has one
# favourite at each place.

# %%
draft = ["A", "B", "C", "D", "E"]
favourites = ["A", "B", "C", "D′", "?", "?"]  # one pass gives them all; behind D they belong to another text
text = []
for place, token in enumerate(draft):
    if token != favourites[place]:
        print(f"{token}: refused, the target wants {favourites[place]}; thrown away unjudged: {draft[place + 1 :]}")
        text.append(favourites[place])
        break
    print(f"{token}: accepted")
    text.append(token)
print("the text gets", text, "- tokens from one pass:", len(text))

# %% [markdown]
# And if all five had been accepted? Then the target's sixth favourite is used as well. It is called the **bonus**
# token. So a round with five drafts brings between one token and six.
#
# ## A real round
#
# Now the same with the real model. We decode greedily: the target always wants its most likely token.
# We let the decoder run to its end. Then we look at the first round in which the target accepts a part of the draft,
# but not all of it.

# %%
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
# The same tokens from fewer passes. The drafter's own quality never reached the text: every token was checked. The
# new method `transfer` is missing in both: the target is small and makes mistakes. Speculation does not mend them.
#
# Whether fewer passes also means less *time* depends on what a pass over six tokens costs on your machine, and on what
# the drafter costs. Run `python3 course.py demo` in a terminal to see both bills side by side.
#
# ## How do the exercises answer?
#
# Each later stage has a second notebook, with exercises. You write a function, and a **check** tells you how it went.
# Try it here. Nothing is counted in this notebook, and nothing is written down.
#
# A round drafted some tokens, and the target accepted some. How many tokens does the text get? Nothing is written yet:

# %%
from specdec_course.checks.example import check


def tokens_of_a_round(num_accepted, num_drafted):
    """Return how many tokens the text gets."""
    raise NotImplementedError()


check("0.1", tokens_of_a_round)

# %% [markdown]
# A first try. What do you think the check says about it?


# %%
def tokens_of_a_round(num_accepted, num_drafted):
    """Return how many tokens the text gets."""
    return num_accepted


check("0.1", tokens_of_a_round)

# %% [markdown]
# It says what was seen, what was expected, and *why*: it knows this mistake by its name. In the exercises
# `hint("2.1")` gives one more hint each time you ask, `replay()` draws the round that failed, and `progress()` shows
# the map of the course with your points.


# %%
def tokens_of_a_round(num_accepted, num_drafted):
    """Return how many tokens the text gets."""
    return num_accepted + 1


check("0.1", tokens_of_a_round)

# %% [markdown]
# Your own code is run, never read: any right way to write it passes.
#
# ## What next?
#
# - Stage 01 begins with the plain loop: open `notebooks/01_the_plain_loop.ipynb`.
# - `python3 course.py demo` shows a whole text with its accepted, corrected and bonus tokens in different colours.
# - `python3 course.py test` proves the decoder exact on your machine.
# - The package `specdec_ref` is the text behind this course. Its first page says in which order to read its files.
