# %% [markdown]
# # Stage 02: accept or correct
#
# A small model guesses a token. The large model has an opinion of its own. Which token goes into the text?
#
# This stage holds the heart of the method: a rule that takes guesses from a *wrong* distribution and gives text from
# the *right* one. Not nearly right: exactly.
#
# After this stage you can
#
# - say when a drafted token is accepted, and where its replacement comes from,
# - derive why the two together give the target's own law,
# - prove a rule right or wrong by counting, without any luck, and say what 100,000 draws can and cannot show,
# - compute how often a draft is accepted,
# - judge a whole block of drafts: leading run, correction, bonus,
# - recognise six mistakes that real programs have shipped.
#
# Reading takes about 20 minutes. The exercises are in `exercises/02_accept_or_correct.ipynb`.

# %% [markdown]
# ## Two letters
#
# | letter | in code | meaning |
# |---|---|---|
# | p | `target_probs` | the law of the next token under the **target**, the model whose text we want |
# | q | `draft_probs` | the law the draft token was **really drawn from** |
#
# A *law* is a list of probabilities, one for each token. Both are taken after temperature, top-k and top-p.
#
# These are the letters of Leviathan, Kalman and Matias (2023). Chen et al. (2023) found the same rule and use the two
# letters **the other way round**. If you read both papers, write the translation at the top of the page.

# %% [markdown]
# ## Red or blue?
#
# Let us take the smallest vocabulary there is: two tokens, red and blue.
#
# - The draft says red with 0.8 and blue with 0.2. That is q.
# - The target wants both with 0.5. That is p.
#
# The draft gives us one token. We may keep it, or refuse it and put another in its place.
# If we keep everything, the text follows q: far too much red.
#
# **Question.** Out of 100 drafts, about 80 are red. How many of those 80 would you keep?

# %% [markdown]
# The text should hold 50 reds in 100. So keep 50 of the 80, each red with probability 0.5 / 0.8 = 0.625.
# And the 20 blues? The text needs 50 of them. There are too few, so keep every one.
#
# | | drafted, q | kept with probability | accepted | wanted, p | missing |
# |---|---|---|---|---|---|
# | red | 0.8 | 0.5 / 0.8 | 0.5 | 0.5 | 0 |
# | blue | 0.2 | 1 | 0.2 | 0.5 | 0.3 |
#
# Accepted in all: 0.7. Refused: 0.3, and every refused draft was red.
#
# **Question.** Each of those 0.3 must be replaced by something. By what?
#
# Look at the last column. Red has all it needs. Blue lacks 0.3. So every refused red becomes blue. Then red has 0.5 and
# blue has 0.2 + 0.3 = 0.5. Done, by hand.

# %% tags=["nbval-ignore-output"]
from specdec_course.figures import show
from specdec_course.widgets import red_blue

show(red_blue.draw(0.5, 0.8), alt=red_blue.describe(0.5, 0.8))

# %% [markdown]
# The black lines are what the target wants. On the left, red stands above its line: that part is refused. On the right,
# the same amount fills blue up to its line.
#
# It is no accident that it fits. What is refused on one side is just what is missing on the other, since p and q both
# sum to one.

# %% [markdown]
# ## When is a draft token kept?
#
# Now the same for any number of tokens.
#
# > **Accept** the drafted token x with probability min(1, p(x) / q(x)).
#
# In a program: draw a uniform number u from [0, 1), and accept if u < p(x) / q(x).
#
# We divide by q(x). Can it be zero? No: x was drawn from q, so q(x) > 0. If you ever meet q(x) = 0, somebody told you
# the wrong q. That is an error to report, not a case to handle.
#
# ## What replaces a refused token?
#
# > Draw the **correction** from the *residual*: r(y) = max(0, p(y) − q(y)) / Σ max(0, p − q).
#
# The numerator is what is missing. The denominator scales it to a law.
#
# ## Why does it work?
#
# Count the ways in which the text can get token y.
#
# 1. *The draft was y and passed.* Probability q(y) · min(1, p(y) / q(y)) = min(q(y), p(y)).
# 2. *Some draft was refused, and the correction was y.* Probability (chance of a refusal) · r(y).
#
# What is the chance of a refusal? All that is not accepted: 1 − Σ min(p, q).
# Since Σ p = 1, this is Σ (p − min(p, q)) = Σ max(0, p − q). That is exactly the number r was divided by!
# So the second way has probability max(0, p(y) − q(y)).
#
# Together: min(p(y), q(y)) + max(0, p(y) − q(y)) = p(y). If p is the smaller, the sum is p + 0. If q is the smaller, it
# is q + (p − q). Either way p, **whatever q is**. A bad draft costs time. It never costs quality, since every token is
# checked before a reader sees it.
#
# Compare that with quantisation, which also makes models faster. Quantisation changes what the target computes.
# Speculation changes only how many passes it takes.

# %% [markdown]
# ## Do not believe it: count
#
# The law of one step is short enough to write down as code. `proposed` is the law the draft token comes from, `keep` is
# the chance that each token passes, `replacement` is the law the correction comes from.

# %%
import torch

from specdec_ref.acceptance import accept_probability, residual


def law_of_step(proposed, keep, replacement):
    """The exact law of the token one step emits: all tensors [V]."""
    kept = proposed * keep
    return kept + (1 - kept.sum()) * replacement


def law(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


p, q = law(0.5, 0.5), law(0.8, 0.2)
print("accept:  ", accept_probability(p, q).tolist())
print("residual:", residual(p, q).tolist())
print("emitted: ", law_of_step(q, accept_probability(p, q), residual(p, q)).tolist())

# %% [markdown]
# Red and blue come out as they should. Two tokens hide many mistakes, though. So try a thousand random pairs, with up
# to eight tokens. How far from p is the worst?

# %%
generator = torch.Generator().manual_seed(2)
worst = 0.0
for trial in range(1000):
    weights = torch.rand(2, 2 + trial % 7, dtype=torch.float64, generator=generator) ** 3
    some_p, some_q = weights / weights.sum(-1, keepdim=True)
    emitted = law_of_step(some_q, accept_probability(some_p, some_q), residual(some_p, some_q))
    worst = max(worst, float((emitted - some_p).abs().max()))
print("pairs tried:", trial + 1)
print("largest difference from p is below 1e-12:", worst < 1e-12)

# %% [markdown]
# What is left is the rounding of 64-bit numbers. No luck was involved: we did not draw a single token.
# We call this *enumeration*, and it is how this course proves things.

# %% [markdown]
# ## Now with your own hands
#
# Drag p and q. Watch three things: how much is accepted, how much is refused, and how the correction fills up to p.
# Then choose the other law for the replacement, and see what happens. (Without a running kernel you see a still
# picture.)

# %% tags=["nbval-ignore-output"]
red_blue.explore()

# %% [markdown]
# Three things to find out with the sliders:
#
# - When is nothing refused?
# - Can the correction ever give the colour that was just refused?
# - What is the most that can be refused?
#
# Answers: when p = q. Never: a refused colour has q > p, so its residual is zero. All of it, when p and q share no
# token.

# %% [markdown]
# ## And with real luck: 100,000 draws
#
# Counting laws is clean. A decoder, however, works with random numbers. Does the rule survive contact with luck?
#
# One step needs **three** uniform numbers: one draws the draft, one decides on it, one draws the correction. They must
# be three different numbers.

# %%
from specdec_ref.sampling import draw


def exact_step(p, q, uniforms):
    """Draw, judge, correct: 2-D `uniforms` [3, N] give N emitted tokens [N]."""
    for_draft, for_accept, for_correction = uniforms
    drafted = draw(q.expand(len(for_draft), -1), for_draft)  # [N]
    accepted = for_accept < accept_probability(p[drafted], q[drafted])
    correction = draw(residual(p, q).expand(len(for_draft), -1), for_correction)
    return torch.where(accepted, drafted, correction)


NUM_DRAWS = 100_000
uniforms = torch.rand(3, NUM_DRAWS, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
counts = torch.bincount(exact_step(p, q, uniforms), minlength=2)
print("red and blue:", counts.tolist())

# %% [markdown]
# Not 50,000 each. Should we worry? Luck never gives exactly half.
#
# The **chi-square test** answers this. It adds up (counted − expected)² / expected over the tokens, and asks: *if the
# rule is right*, how often does luck alone give a sum this large? That share is the *p-value* (a third use of the
# letter p; it is the last one).
#
# Before we look, we say when we would call the rule wrong: if the p-value is below one in a million. So we also say how
# often the test cries wolf: a right rule is accused **once in a million** runs. That number is the *false-alarm rate*,
# and a statistical test that does not state one has not said much.

# %%
from scipy import stats

FALSE_ALARM = 1e-6


def chi_square(counts, law):
    found = stats.chisquare(counts.tolist(), (law * counts.sum()).tolist())
    verdict = "the rule is WRONG" if found.pvalue < FALSE_ALARM else "no objection"
    print(f"chi-square {found.statistic:.2f}: {verdict}")


chi_square(counts, p)

# %% [markdown]
# ## What goes wrong when the replacement comes from p?
#
# It sounds so reasonable: "the draft was refused, so let the target choose". Many have written this. What does the text
# get then?
#
# By hand: the accepted part is 0.5 red and 0.2 blue, as before. The refused 0.3 is now split half and half. So red has
# 0.5 + 0.15 = 0.65 and blue has 0.2 + 0.15 = 0.35. Red is counted twice: it already had all it needs.

# %%
print("counted:", [f"{x:.4f}" for x in law_of_step(q, accept_probability(p, q), p).tolist()])

# %% [markdown]
# And drawn, with the same uniform numbers as before:


# %%
def step_with_replacement_from_p(p, q, uniforms):
    drafted = draw(q.expand(uniforms.shape[1], -1), uniforms[0])
    accepted = uniforms[1] < accept_probability(p[drafted], q[drafted])
    return torch.where(accepted, drafted, draw(p.expand(uniforms.shape[1], -1), uniforms[2]))


wrong_counts = torch.bincount(step_with_replacement_from_p(p, q, uniforms), minlength=2)
print("drawn:  ", wrong_counts.tolist())
chi_square(wrong_counts, p)

# %% [markdown]
# The test objects, loudly. Would you have noticed with fewer draws?

# %%
sizes = [int(10 ** (1 + step / 20)) for step in range(81)]  # 10 to 100,000
reach = float(stats.norm.isf(FALSE_ALARM / 2))  # how many standard deviations luck may stray


def shares_of_red(tokens):
    return [float((tokens[:size] == 0).double().mean()) for size in sizes]


right_shares = shares_of_red(exact_step(p, q, uniforms))
wrong_shares = shares_of_red(step_with_replacement_from_p(p, q, uniforms))
outside = [abs(share - 0.5) > reach * (0.25 / size) ** 0.5 for size, share in zip(sizes, wrong_shares, strict=True)]
first = sizes[outside.index(True)]
print("the wrong rule leaves the band after about", first, "draws")
needed = (reach * 0.5 / 0.001) ** 2
print(f"a rule that is wrong by only 0.001 needs about {needed / 1e6:.0f} million draws")

# %% tags=["nbval-ignore-output"]
from specdec_course.acceptance_figures import draw_shares

show(
    draw_shares(sizes, {"the rule": right_shares, "replacement from p": wrong_shares}, wanted=0.5, reach=reach),
    alt="The share of red against the number of draws. With the right rule it settles at one half and stays inside "
    f"a narrowing grey band. Replacements from p bring it to 0.65, and out of the band after about {first} draws.",
)

# %% [markdown]
# With few draws the two rules look alike. And a small error hides from millions of draws. That is why we trust
# enumeration first, and use luck only to check that the program draws as the formula says.

# %% [markdown]
# ## Six mistakes, counted
#
# Here are six, each shipped by somebody. The pair is p = .5/.3/.2 and q = .2/.5/.3. For each: what does the text get?
# Read the code of each line before you look at its numbers.

# %%
from torch.nn import functional

p, q = law(0.5, 0.3, 0.2), law(0.2, 0.5, 0.3)
keep = accept_probability(p, q)
favourite = functional.one_hot(q.argmax(), 3).double()  # the draft takes its most likely token: token 1

one_uniform = torch.zeros(3, dtype=torch.float64)
for u in (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000:  # every cell of [0, 1), a thousandth wide
    token = draw(q, u)  # this number draws the draft ...
    if u < keep[token]:  # ... and decides on it as well
        one_uniform[token] += 1 / 1000
    else:
        one_uniform += residual(p, q) / 1000

laws = {
    "the rule": law_of_step(q, keep, residual(p, q)),
    "replacement from p": law_of_step(q, keep, p),
    "softmax of max(0, p - q)": law_of_step(q, keep, (p - q).clamp(min=0).softmax(-1)),
    "p and q swapped": law_of_step(q, accept_probability(q, p), residual(q, p)),
    "argmax, judged as sampled": law_of_step(favourite, keep, residual(p, q)),
    "one number, used twice": one_uniform,
}
for name, emitted in laws.items():
    print(f"{name:26}", [f"{x:.4f}" for x in emitted.tolist()])
models_swapped = law_of_step(p, accept_probability(q, p), residual(q, p))
print("the two models exchanged  ", [f"{x:.4f}" for x in models_swapped.tolist()])

# %% tags=["nbval-ignore-output"]
from specdec_course.acceptance_figures import draw_laws

show(
    draw_laws(p.tolist(), {name: emitted.tolist() for name, emitted in laws.items()}),
    alt="Six panels with three bars each; a line over each bar shows the target's probability. Only in the panel of "
    "the rule does every bar end at its line. "
    + " ".join(
        f"{name}: {', '.join(f'{x:.2f}' for x in emitted.tolist())}." for name, emitted in list(laws.items())[1:]
    ),
)

# %% [markdown]
# - **Replacement from p.** You know this one.
# - **Softmax of max(0, p − q).** These masses only need scaling. Softmax is for logits: it gives every token some mass,
#   even those that had too much.
# - **p and q swapped.** Nothing crashes. With real models the text is fluent, and leans towards the draft. Only a
#   comparison with p finds it. Exchange the two models altogether (the last line above), and the text follows q
#   exactly.
# - **Argmax, judged as sampled.** The next section.
# - **One number, used twice.** If u drew token x, then u is not uniform any more: it lies where x lies. Each purpose
#   needs a number of its own.
#
# The sixth one reports another law than the one it drew from. A drafter samples from its two best tokens only, and
# reports its full law. q must be the law the token was **really** drawn from:

# %%
p, full_q = law(0.30, 0.30, 0.25, 0.15), law(0.4, 0.3, 0.2, 0.1)
real_q = functional.normalize(full_q * law(1, 1, 0, 0), p=1, dim=-1)  # top-2
for name, told in (("judged with the full q", full_q), ("judged with the real q", real_q)):
    emitted = law_of_step(real_q, accept_probability(p, told), residual(p, told))
    print(f"{name}:", [f"{x:.4f}" for x in emitted.tolist()])

# %% [markdown]
# ## A draft without luck
#
# Some drafters do not sample. One takes its most likely token, another copies what followed the same words earlier in
# the text. What is q then?
#
# Ask: with what probability was this token proposed? With 1. So q is a **point mass**: 1 for the proposed token x, 0
# for all others. The rule stays the same; put this q into it:
#
# - accept x with probability min(1, p(x) / 1) = p(x),
# - the residual max(0, p − q) is p without x, scaled up to sum to one.
#
# How confident the drafter felt does not matter at all.

# %%
p = law(0.5, 0.3, 0.2)
point = functional.one_hot(torch.tensor(1), 3).double()  # token 1 is proposed, without luck
print("accept token 1:", f"{accept_probability(p[1], point[1]):.4f}")
print("residual:      ", [f"{x:.4f}" for x in residual(p, point).tolist()])
print("emitted:       ", [f"{x:.4f}" for x in law_of_step(point, accept_probability(p, point), residual(p, point))])

# %% [markdown]
# At **temperature 0** the target has a point mass too. Then p(x) is 1 or 0: the draft passes if it is the target's
# favourite token, and otherwise the favourite is the correction. So greedy text stays what it was, token for token.

# %%
greedy = functional.one_hot(p.argmax(), 3).double()  # the target at temperature 0
for token in range(3):
    point = functional.one_hot(torch.tensor(token), 3).double()
    chance = float(accept_probability(greedy[token], point[token]))
    print(f"token {token} drafted: accepted with {chance:.0f}, correction {residual(greedy, point).tolist()}")

# %% [markdown]
# ## How often is a draft accepted?
#
# Add up the accepted mass over all tokens. The chance that one judged draft token passes is
#
# α = Σ q(x) · min(1, p(x) / q(x)) = Σ min(p(x), q(x)).
#
# This is the part that p and q have in common. There is a name for the rest. The *total variation distance* of two laws
# is TV = ½ Σ |p − q|. Since min(p, q) = (p + q − |p − q|) / 2, and p and q each sum to one,
#
# α = (1 + 1 − Σ |p − q|) / 2 = **1 − TV(p, q)**.
#
# For red and blue you have added it up already: 0.5 + 0.2 = 0.7. Here are three pairs with more tokens.

# %%
pairs = {
    "B": (law(0.5, 0.3, 0.2), law(0.2, 0.5, 0.3)),
    "C": (law(0.1, 0.2, 0.3, 0.4), law(0.4, 0.3, 0.2, 0.1)),
    "D": (law(0.5, 0.3, 0.2), law(0.98, 0.01, 0.01)),
}
for name, (p, q) in pairs.items():
    alpha = float(torch.minimum(p, q).sum())
    total_variation = float((p - q).abs().sum() / 2)
    same = "same favourite" if p.argmax() == q.argmax() else "another favourite"
    print(f"{name}:  alpha {alpha:.2f}   1 - TV {1 - total_variation:.2f}   {same}")

# %% [markdown]
# Look at B and D. In B the two models have *different* favourites. In D they have the *same* one. Which of them accepts
# more?
#
# Acceptance is **not** "both picked the same favourite word". It is the overlap of two whole laws. A draft that is too
# sure of the right word can waste more than one that is unsure about several.

# %% tags=["nbval-ignore-output"]
from specdec_course.acceptance_figures import draw_overlap

p, q = pairs["C"]
overlap = float(torch.minimum(p, q).sum())
show(
    draw_overlap(p.tolist(), q.tolist()),
    alt="Pair C, four tokens, p and q drawn over each other. What both share is the acceptance rate, "
    f"{overlap:.2f}. What is only in q is refused, and what is only in p is filled by the correction; both are "
    f"{1 - overlap:.2f}.",
)

# %% [markdown]
# ### The same with a real model
#
# The target writes a few words. At each place we ask the target and the draft for their laws, and compare.
# The draft may be poor. That is no danger to the text, as you now know; it only makes α small.

# %%
from specdec_course.demo import encode_prompt
from specdec_ref.decode import collect, generate, speculate
from specdec_ref.pairs import load_pair
from specdec_ref.sampling import GREEDY, SamplingSettings, probabilities

pair = load_pair("smol")
prompt = encode_prompt(pair, "Tell me a story about a fox.")
greedy_text = collect(generate(pair.target, [prompt], GREEDY, max_new_tokens=12))[0]
whole = torch.tensor([prompt + greedy_text])
target_logits = pair.target.fresh(1).extend(whole)[0, len(prompt) - 1 : -1]  # [12, V]: the law of each new token
draft_logits = pair.draft.fresh(1).extend(whole)[0, len(prompt) - 1 : -1]
print(list(target_logits.shape))

# %% tags=["nbval-ignore-output"]
p, q = (probabilities(logits, SamplingSettings()) for logits in (target_logits, draft_logits))
print("drafted by", pair.draft.name)
print("the target's favourite   the draft's favourite    alpha")
for row in range(len(p)):
    words = [repr(pair.tokenizer.decode([int(probs[row].argmax())])) for probs in (p, q)]
    print(f"{words[0]:24} {words[1]:24} {float(torch.minimum(p[row], q[row]).sum()):.2f}")
for temperature in (0.5, 1.0, 1.5):
    how = SamplingSettings(temperature=temperature)
    p, q = (probabilities(logits, how) for logits in (target_logits, draft_logits))
    print(f"temperature {temperature}: alpha {float(torch.minimum(p, q).sum(-1).mean()):.3f} on average here")

# %% [markdown]
# Temperature changes *both* laws. In these three lines a higher temperature lowers α. That is no rule: at a very high
# one both laws are nearly flat, and α goes to 1. So measure with the settings you will use.

# %% [markdown]
# ## A block of drafts
#
# A round does not draft one token but K of them. The target looks at all K in one pass, and gives K + 1 laws:
#
# - row 0 is its law after the text so far: it judges draft 0,
# - row 1 is its law after draft 0: it judges draft 1, and so on,
# - row K is its law after *all* K drafts. It judges nothing.
#
# Say the verdicts are accept, refuse, accept, accept. **Question:** how many drafts go into the text?
#
# One. Row 2 is the law of what comes after drafts 0 *and 1*. But draft 1 is not in the text, so row 2 speaks about a
# text that does not exist. What counts is the **leading run** of accepted drafts, never their number.
#
# After a leading run of `a` accepted drafts:
#
# - if a < K, row `a` refused its draft: the **correction** comes from the residual of row `a`,
# - if a = K, nothing was refused: row K gives one **bonus** token, from plain p.
#
# So a round emits a + 1 tokens: one at least, K + 1 at most.

# %%
from itertools import pairwise

from specdec_ref.acceptance import verify_chain

generator = torch.Generator().manual_seed(9)
table = torch.rand(3, 3, 3, dtype=torch.float64, generator=generator)  # row (a, b): what comes after ... a b
draft_table = torch.rand(3, 3, 3, dtype=torch.float64, generator=generator)
table, draft_table = (t / t.sum(-1, keepdim=True) for t in (table, draft_table))

drafted = torch.tensor([[0, 2, 1, 0]])  # [1, K], after the text 0 1
known = [0, 1, *drafted[0].tolist()]
target_rows = torch.stack([table[a, b] for a, b in pairwise(known)])[None]  # [1, K+1, V]
draft_rows = torch.stack([draft_table[a, b] for a, b in pairwise(known)])[None, :-1]  # [1, K, V]
ratios = accept_probability(target_rows[0, range(4), drafted[0]], draft_rows[0, range(4), drafted[0]])

print("min(1, p/q):", [f"{ratio:.2f}" for ratio in ratios.tolist()])

# %% [markdown]
# Two sets of uniform numbers for the same draft. The first refuses draft 1, the second refuses nothing.

# %%
for chosen in ([0.3, 0.8, 0.3, 0.3], [0.3, 0.3, 0.3, 0.3]):
    verdict = verify_chain(target_rows, drafted, draft_rows, law(*chosen)[None], law(0.5))
    accepted = [int(u < ratio) for u, ratio in zip(chosen, ratios.tolist(), strict=True)]
    print(accepted, "leading run:", int(verdict.num_accepted), " next token:", int(verdict.next_token))

# %% tags=["nbval-ignore-output"]
from specdec_course.acceptance_figures import draw_block

chosen = [0.3, 0.8, 0.3, 0.3]
show(
    draw_block([f"token {token}" for token in drafted[0].tolist()], ratios.tolist(), chosen, num_accepted=1),
    alt="Five rows of the target's pass over four drafts. Row 0 accepts its draft. Row 1 refuses its draft, and the "
    "correction comes from row 1. Rows 2 and 3 would pass but stand after a refused token, so they are not used. "
    "Row 4, which would give the bonus token, is not used either.",
)

# %% [markdown]
# ## Is the whole text exact?
#
# One step is exact. Is a text of many steps exact as well?
#
# Take any moment, with any text so far. The next token enters in one of two ways.
#
# - It is decided by row i, as a draft or as a correction. We only get there if all drafts before it are in the text. So
#   row i of the target and row i of the draft both speak about the text as it is. This is one exact step: its law is p
#   after that text.
# - It is a bonus token. Its law is p after that text, by definition.
#
# So whatever happened before, the next token has the target's law *given the text so far*. Multiply these laws along
# the text: that is the probability the target alone would give to the text. It does not matter how luck cut the text
# into rounds.
#
# Again: do not believe it, count. Our two tables are models whose next token depends on the last two tokens. The module
# `specdec_ref.law` calls `verify_chain` itself, for every possible draft. It cuts the range of the uniform numbers into
# cells in which the outcome is the same, calls once in each cell, and adds up. We compare whole texts, not single
# tokens.

# %%
from specdec_ref.law import sampled_drafts, speculative_law, target_law


def largest_difference(verify, length=4, num_draft_tokens=3):
    emitted = speculative_law(
        table,
        lambda text: sampled_drafts(draft_table, text, num_draft_tokens),
        text=(0, 1),
        length=length,
        rounds=length,
        verify=verify,
    )
    return float((emitted - target_law(table, (0, 1), length)).abs().max())


print("texts compared:", target_law(table, (0, 1), 4).numel())
print("the rule: difference below 1e-12:", largest_difference(verify_chain) < 1e-12)

# %% [markdown]
# And two rules that are wrong only in a block:


# %%
from specdec_ref.acceptance import Verification


def sum_of_the_mask(p, tokens, q, u_accept, u_correct, num_drafted=None):
    """Counts all accepted drafts, also those after the first refusal."""
    right = verify_chain(p, tokens, q, u_accept, u_correct, num_drafted)
    ratio = p[:, :-1].gather(-1, tokens[..., None]) / q.gather(-1, tokens[..., None])  # [B, K, 1]
    number = (u_accept < ratio.squeeze(-1)).sum(-1)  # [B]
    padded_q = functional.pad(q, (0, 0, 0, 1))  # a row of zeros for the bonus
    rows = torch.arange(len(p))
    wrong = draw(residual(p[rows, number], padded_q[rows, number]), u_correct)
    return Verification(number, torch.where(number == right.num_accepted, right.next_token, wrong))


def correction_from_row_k(p, tokens, q, u_accept, u_correct, num_drafted=None):
    """Draws the correction from the last row, as if it were the bonus."""
    right = verify_chain(p, tokens, q, u_accept, u_correct, num_drafted)
    return Verification(right.num_accepted, draw(p[:, -1], u_correct))


print(f"sum of the mask: off by {largest_difference(sum_of_the_mask):.4f}")
print(f"correction from row K: off by {largest_difference(correction_from_row_k):.4f}")

# %% [markdown]
# ## Three edges
#
# What if **p = q**? Then nothing is ever refused, and the residual is 0 / 0. A program must still not divide by zero:
# rounding can make it go there. The reference returns p itself.

# %%
p = law(0.7, 0.3, 0.0)
print("residual(p, p):", residual(p, p).tolist())

# %% [markdown]
# What if **p(x) = 0**? Then x must never pass, not even with u = 0. That is why we accept with u < p/q and not with
# u ≤ p/q.

# %%
q = law(0.2, 0.2, 0.6)
verdict = verify_chain(p.expand(1, 2, 3), torch.tensor([[2]]), q.expand(1, 1, 3), law(0.0)[None], law(0.0))
print("p = 0, all numbers 0:", int(verdict.num_accepted), "accepted, then token", int(verdict.next_token))

# %% [markdown]
# What if **q(x) = 0**? Then x was not drawn from q, and the reference says so.

# %%
try:
    verify_chain(p.expand(1, 2, 3), torch.tensor([[2]]), law(0.5, 0.5, 0.0).expand(1, 1, 3), law(0.5)[None], law(0.5))
except ValueError as error:
    print("q = 0:", error)

# %% [markdown]
# ## Same distribution, not the same text
#
# Two people roll the same fair die. They do not roll the same numbers. So it is here: with temperature 1, plain and
# speculative decoding draw from the *same* law over texts, and yet write different texts on the same day. Comparing two
# sampled texts proves nothing, in either direction.
#
# With temperature 0 there is no luck left, and the texts must agree, token for token, as far as the arithmetic of the
# machine agrees. (Two tokens with almost equal logits can still change places. Stage 04 shows this.)
# Engines say it the same way: vLLM's documentation on speculative decoding promises losslessness up to the precision of
# the hardware, and warns that the size of a batch can change logits.

# %%
drafter = pair.drafter("model")
speculative_text = collect(
    speculate(pair.target, drafter, [prompt], GREEDY, num_draft_tokens=3, max_new_tokens=len(greedy_text))
)[0]
print("greedy, same tokens:", speculative_text == greedy_text)

# %% tags=["nbval-ignore-output"]
how = SamplingSettings(temperature=1.0)  # the same seed below, but a round uses its random numbers in another way
plain = collect(generate(pair.target, [prompt], how, max_new_tokens=10, seeds=1))[0]
speculative = collect(speculate(pair.target, drafter, [prompt], how, num_draft_tokens=3, max_new_tokens=10, seeds=1))[0]
print("plain:      ", repr(pair.tokenizer.decode(plain)))
print("speculative:", repr(pair.tokenizer.decode(speculative)))
print("same tokens:", plain == speculative)

# %% [markdown]
# ## Recap
#
# - Accept x with probability min(1, p(x) / q(x)). Otherwise draw from max(0, p − q), scaled.
# - The accepted mass is min(p, q), the correction is the rest of p. The sum is p, whatever q is.
# - q is the law the token was really drawn from. For a draft without luck it is a point mass.
# - α = Σ min(p, q) = 1 − TV(p, q): the overlap of two laws, not the agreement of two favourites.
# - In a block, the leading run counts. Row `a` corrects, row K gives the bonus. A round emits 1 to K + 1 tokens.
# - The text has the same distribution, not the same words. Prove it by counting; check it by drawing.
#
# ## Words
#
# | word | meaning |
# |---|---|
# | target, draft | the model whose text we want; what guesses ahead |
# | law | a probability for every token; they sum to one |
# | residual | max(0, p − q), scaled to sum to one: what accepted drafts leave missing |
# | correction | the token that replaces the first refused draft |
# | bonus token | the extra token, from row K, when all drafts passed |
# | leading run | the accepted drafts before the first refusal |
# | α (`alpha`) | the chance that one judged draft token is accepted |
# | total variation | ½ Σ \|p − q\|: how much mass must move to turn q into p |
# | point mass | the law that gives 1 to one token |
# | enumeration | adding up all cases with their probabilities, with no luck |
# | false-alarm rate | how often a test accuses a rule that is right |
#
# ## Further reading
#
# - Leviathan, Kalman, Matias: *Fast inference from transformers via speculative decoding*, 2023, arXiv 2211.17192.
#   Algorithm 1, and the proof in appendix A.1.
# - Chen et al.: *Accelerating large language model decoding with speculative sampling*, 2023, arXiv 2302.01318.
#   Algorithm 2 and theorem 1, with the letters swapped.
# - `specdec_ref/acceptance.py` is the rule in code, `specdec_ref/law.py` the proof by counting. Both are short.
#
# ## What next?
#
# Open `exercises/02_accept_or_correct.ipynb` and write the rule yourself. Then stage 03 asks how the target can give
# K + 1 laws in a single pass.
