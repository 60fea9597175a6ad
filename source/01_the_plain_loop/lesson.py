# %% [markdown]
# # 01 The plain loop: how a model writes, and what it waits for
#
# Before anything can be made faster, we need the thing itself: the loop that writes a text, one token at a time.
# In this stage you build it. Then you find out where its time goes. The answer is the reason why speculative decoding
# can work at all.
#
# After this lesson you can
#
# - turn a model's scores into a distribution, with temperature, top-k and top-p, without overflow and at temperature 0,
# - draw a token from it with one uniform number, so that every draw can be repeated,
# - write the loop with and without a key-value cache, and say why both give the same text,
# - end a text at the right token,
# - predict the least time a pass can take from the bytes of the weights, and read a roofline figure,
# - say why writing is sequential and checking is not.
#
# Reading takes about 20 minutes. The exercises for this stage are in `exercises/01_the_plain_loop.ipynb`.

# %%
import time

import torch

from specdec_course import figures_plain_loop as figures
from specdec_course.figures import show
from specdec_ref.pairs import load_pair

pair = load_pair("smol")
target, tokenizer = pair.target, pair.tokenizer
print(target.name, "knows", f"{target.vocab_size:,}", "tokens")

# %% [markdown]
# ## 1. From scores to chances
#
# A model reads tokens and returns one number per token of its vocabulary: the **logits**. A higher number means "more
# likely next". Logits may be negative, and they do not sum to 1. How do we get probabilities from them?
#
# We ask for three things: every probability is positive, they sum to 1, and *adding the same number to all logits
# changes nothing*, since only differences should count. The exponential does it, because it turns a difference into
# a ratio:
#
# $$p_i = \frac{e^{z_i}}{\sum_j e^{z_j}}, \qquad \frac{p_i}{p_j} = e^{z_i - z_j}.$$
#
# This is the **softmax**. Such a list of probabilities is a *distribution*; we also call it a *law*. Take the logits 2,
# 1 and 0. Each token is e = 2.718… times as likely as the next.

# %%
logits = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64)
powers = logits.exp()
print("powers:       ", [round(x, 3) for x in powers.tolist()])
print("probabilities:", [round(x, 3) for x in (powers / powers.sum()).tolist()])

# %% [markdown]
# Will this formula survive a real model? Try logits that are a little larger.

# %%
large = torch.tensor([1000.0, 999.0, 998.0], dtype=torch.float64)
print("powers:       ", large.exp().tolist())
print("probabilities:", (large.exp() / large.exp().sum()).tolist())

# %% [markdown]
# The powers are too large for a floating-point number, and infinity over infinity is not a number. Yet the question was
# harmless: the differences are the same as before.
#
# That is also the cure. Adding a constant changes nothing, so subtract the largest logit, $m = \max_j z_j$:
#
# $$p_i = \frac{e^{z_i - m}}{\sum_j e^{z_j - m}}.$$
#
# Now every exponent is at most 0, so no power is above 1. And one of them is exactly $e^0 = 1$, so the sum is at
# least 1 and never 0. Nothing can overflow, and there is no division by zero. This is the *stable* softmax.

# %%
powers = (large - large.max()).exp()
print("powers:       ", [round(x, 3) for x in powers.tolist()])
print("probabilities:", [round(x, 3) for x in (powers / powers.sum()).tolist()])

# %% [markdown]
# ### Temperature
#
# How can one make a model bolder or more careful? Divide the logits by a **temperature** $T$ before the softmax. Then
#
# $$\frac{p_i}{p_j} = e^{(z_i - z_j)/T}.$$
#
# With $T > 1$ the ratios move towards 1: the law gets flatter. With $T < 1$ they grow: the favourite gains.
#
# What happens as $T$ goes to 0? Compare any token $i$ with the largest: the exponent $(z_i - m)/T$ is negative and
# runs to minus infinity, so the ratio goes to 0. All probability ends on the largest logit. But the formula cannot be
# *evaluated* at $T = 0$: it divides by zero. So temperature 0 is **defined** as this limit: probability 1 on the
# largest logit. If several logits are equally large we take the lowest index; any fixed choice would do, but all
# parts of a system must make the same one. Choosing so is called **greedy** decoding.
#
# In our reference one function does all this. It is the only place where logits become probabilities.

# %%
from specdec_ref.sampling import GREEDY, SamplingSettings, probabilities

for temperature in (2.0, 1.0, 0.5, 1e-300, 0.0):
    law = probabilities(logits, SamplingSettings(temperature=temperature))
    print(f"T = {temperature:<7}", [round(x, 3) for x in law.tolist()])
tied = torch.tensor([1.0, 3.0, 3.0], dtype=torch.float64)
print("two equally large logits, T = 0:", probabilities(tied, GREEDY).tolist())

# %% [markdown]
# Even a temperature of 1e-300 is safe. Why? The maximum is subtracted *before* the division. The favourite has 0, and 0
# divided by anything stays 0. The others become so negative that their power is a clean 0.
#
# Here is what the real model expects after a few words, at three temperatures.

# %% tags=["nbval-ignore-output"]
opening = tokenizer.encode("She opened the window because the room was too")
next_logits = target.fresh(1).extend(torch.tensor([opening], device=target.device))[0, -1]  # [V]


def word(token):
    """Return a token as text, with spaces and line ends made visible."""
    return tokenizer.decode([token]).replace(" ", "·").replace("\n", "⏎")


favourites = next_logits.topk(8).indices
laws = {f"T = {t}": probabilities(next_logits, SamplingSettings(temperature=t))[favourites] for t in (0.5, 1.0, 2.0)}
names = [word(token) for token in favourites.tolist()]
show(
    figures.draw_laws(names, {name: law.tolist() for name, law in laws.items()}, "The eight likeliest next tokens"),
    alt="Bars of the eight likeliest next tokens at three temperatures. The likeliest, "
    f"{names[0]!r}, has " + ", ".join(f"{law[0]:.2f} at {name}" for name, law in laws.items()) + ".",
)

for temperature in (0.5, 1.0, 2.0):
    best_first = probabilities(next_logits, SamplingSettings(temperature=temperature)).sort(descending=True).values
    needed = int((best_first.cumsum(0) < 0.9).sum()) + 1
    print(f"T = {temperature}: {needed:6,} tokens hold 90 %; all beyond the best 50 hold {best_first[50:].sum():.1%}")

# %% [markdown]
# ## 2. Cutting off the tail
#
# At $T = 2$ the eight likeliest tokens together hold little. Where is the rest? The lines below the figure say it: the
# rest is spread over thousands of tokens. Each is unlikely, together they are not, and one bad token spoils a sentence.
# Two filters remove them. What is left is scaled up to sum to 1 again.
#
# **Top-k** keeps the $k$ likeliest tokens. It is simple, but $k$ is the same whether the model is sure or not.
#
# **Top-p** (nucleus sampling) keeps the *smallest set of likeliest tokens whose mass reaches $p$*. The mass of a set
# is the sum of its probabilities. When the model is sure, the set is one token; when it is not, it may be hundreds.
#
# Take the law .4, .3, .2, .1 and $p = .8$. By hand: .4 is not enough, .4 + .3 = .7 is not enough, .4 + .3 + .2 = .9
# reaches .8. So three tokens stay. The third one *crosses* the limit. Is it in or out? In: without it the set would
# hold only .7 and not reach .8. Say it as a rule for one token: **a token stays if the mass of all likelier tokens has
# not yet reached $p$.** For the first token that mass is 0, so at least one token always survives.

# %%
four = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
likelier = four.cumsum(0) - four  # four is already sorted, the likeliest first
print("mass of all likelier tokens:", [round(x, 3) for x in likelier.tolist()])
print("stays with top_p = 0.8:     ", (likelier < 0.8).tolist())
for settings in (SamplingSettings(top_p=0.8), SamplingSettings(top_p=0.1), SamplingSettings(top_k=2)):
    law = probabilities(four.log(), settings)
    print(f"top_k={settings.top_k}, top_p={settings.top_p}:", [round(x, 3) for x in law.tolist()])

# %% [markdown]
# Two details to get right in code. A vocabulary is not sorted, so the answer must go back to the tokens' own places.
# And filters have an *order*: temperature first, then top-k, then top-p on what top-k has left. Does the order matter?

# %%
hot_first = probabilities(four.log(), SamplingSettings(temperature=2.0, top_p=0.65))
cold = probabilities(four.log(), SamplingSettings(top_p=0.65))
print("temperature 2, then top-p:", int((hot_first > 0).sum()), "tokens stay")
print("top-p, then temperature 2:", int((cold > 0).sum()), "tokens stay")

# %% [markdown]
# It does. In speculative decoding two models must mean the same thing by "the distribution". So there is one function,
# used for both.
#
# ## 3. One uniform number, one token
#
# We have a distribution. How do we draw from it, with nothing but a random number $u$ between 0 and 1?
#
# Cut the interval from 0 to 1 into pieces, one per token, each as long as its probability. A uniform number falls
# into a piece with a chance equal to its length. The right edge of piece $i$ is the running sum
# $c_i = p_0 + \dots + p_i$, the cumulative distribution. So the token is **the first $i$ with $c_i > u$**.

# %%
from specdec_ref.sampling import draw

law = torch.tensor([0.5, 0.0, 0.3, 0.2], dtype=torch.float64)
numbers = torch.tensor([0.0, 0.3, 0.5, 0.79, 0.999], dtype=torch.float64)
drawn = draw(law.expand(5, -1), numbers)
for number, token in zip(numbers.tolist(), drawn.tolist(), strict=True):
    print(f"u = {number}: token {token}")

# %% tags=["nbval-ignore-output"]
show(
    figures.draw_interval(law.tolist(), list(zip(numbers.tolist(), drawn.tolist(), strict=True)), "u picks a piece"),
    alt="The interval from 0 to 1, cut at 0.5 and 0.8 into the pieces of tokens 0, 2 and 3; token 1 has no length. "
    "The numbers 0 and 0.3 fall into token 0, 0.5 and 0.79 into token 2, 0.999 into token 3.",
)

# %% [markdown]
# Look at the edges. $u = 0$ picks token 0. $u = 0.5$ picks token 2, since a piece contains its left edge and not its
# right one. Token 1 has probability 0, so its piece has no length, and no $u$ can pick it. With $c_i \ge u$ instead of
# $c_i > u$, a token of probability 0 at the very front could be picked by $u = 0$. Such a token was *forbidden*.
#
# Is it really the distribution we wanted? Draw many times and count.

# %%
generator = torch.Generator().manual_seed(0)
many = torch.rand(100_000, generator=generator, dtype=torch.float64)
shares = torch.bincount(draw(law.expand(len(many), -1), many), minlength=4) / len(many)
print("token 1 was drawn:", bool(shares[1] > 0))
print("largest distance from the law is below 0.01:", bool((shares - law).abs().max() < 0.01))

# %% [markdown]
# Why hand $u$ in, instead of letting `draw` make its own? Because then `draw` has no luck inside. The same $u$ gives
# the same token, so any draw can be repeated, and a test can choose the number that shows a fault. Luck comes from
# outside, from a generator with a seed. In this course **all randomness is an argument**.
#
# ## 4. The loop
#
# Now everything is in place. The model returns logits for *every* position it reads: row $t$ is about the token that
# follows token $t$. Which row do we need to go on writing? The last one.
#
# The loop: read the whole text, take the last row, choose a token, append it, repeat.

# %%
prompt = opening
length = 12


def choose(row, number):
    """Return a token drawn from a row of logits [V] with one uniform number."""
    return int(draw(probabilities(row, SamplingSettings(temperature=0.8, top_p=0.9)), number))


luck = torch.rand(length, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(target.device)

text = list(prompt)
fed_plainly = 0
for number in luck:
    rows = target.fresh(1).extend(torch.tensor([text], device=target.device))[0]  # [T, V], from an empty cache
    fed_plainly += len(text)
    text.append(choose(rows[-1], number))
plain_text = text
print("prompt:", len(prompt), "tokens; written:", len(text) - len(prompt), "tokens")
print(tokenizer.decode(plain_text))

# %% [markdown]
# ### What is computed twice?
#
# To write one new token the loop reads the whole text again. Is that needed? In this kind of model a token looks only
# at tokens *before* it, never at later ones. So what was computed for the first tokens should not change when more
# follow. Check it.

# %%
short = target.fresh(1).extend(torch.tensor([prompt[:6]], device=target.device))[0]
longer = target.fresh(1).extend(torch.tensor([prompt], device=target.device))[0, :6]
print("rows of the first 6 tokens unchanged:", torch.allclose(short, longer, atol=1e-2, rtol=1e-3))

# %% [markdown]
# They are the same, up to rounding. Later tokens need only two things from an earlier one: in each layer its **key**
# (by which it is found) and its **value** (what it has to say). Keep both, and old tokens never have to be read
# again. That store is the **key-value cache**.
#
# With a cache the loop feeds only what is new: first the prompt, then one token at a time.

# %%
lm = target.fresh(1)  # the same weights, an empty cache
text = list(prompt)
lm.prefill([prompt[:-1]])  # everything but the last token
fed_with_cache = len(prompt) - 1
for number in luck:
    rows = lm.extend(torch.tensor([text[-1:]], device=target.device))[0]  # [1, V]
    fed_with_cache += 1
    text.append(choose(rows[-1], number))
print("same tokens as without a cache:", text == plain_text)
print("tokens in the cache:", int(lm.cache.lengths[0]), "of", len(text))

# %% [markdown]
# The same distributions and the same uniform numbers, so the same text. And one token of the text is *not* in the
# cache. Which one, and is that a fault?
#
# It is the last one: it was drawn, and no pass has read it yet. It is the first thing that the next pass will read.
# A token that is in the text for good is called *committed*. Keep this in mind: **the last committed token is not in
# the cache yet.** That holds in the whole course.
#
# How much reading does the cache save? Say the prompt has $n$ tokens and we write $m$. Without a cache the passes read
# $n, n+1, \dots, n+m-1$ tokens, in sum $mn + m(m-1)/2$. With a cache each token is read once, except the last, which is
# never read: $n + m - 1$.

# %%
n, m = len(prompt), length
print("without:", fed_plainly, "tokens read; formula:", m * n + m * (m - 1) // 2)
print("with:   ", fed_with_cache, "tokens read; formula:", n + m - 1)
n, m = 1000, 500
print(f"for n = {n}, m = {m}: {m * n + m * (m - 1) // 2:,} against {n + m - 1:,}")

# %% [markdown]
# What does the cache cost? For each token, in each layer: a key and a value of `head_dim` numbers in each key-value
# head. (Several heads of the attention may share one key-value head.)

# %%
config = target.model.config
bytes_a_token = (
    2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * target.model.dtype.itemsize
)
print(f"{bytes_a_token:,} bytes a token; {1000 * bytes_a_token / 1e6:.1f} MB for a text of 1,000 tokens")

# %% [markdown]
# What does it save in time? Here is the time of writing *one more* token, against the length of the text so far.

# %% tags=["nbval-ignore-output"]
from specdec_ref.device import synchronize
from specdec_ref.measure import time_passes


def best_seconds(work, repeats=12):
    """Return the shortest time of several runs of `work`, after one to warm up."""
    work()
    times = []
    for _ in range(repeats):
        synchronize(target.device)
        start = time.perf_counter()
        work()
        synchronize(target.device)
        times.append(time.perf_counter() - start)
    return min(times)


def read_all(count):
    """Read `count` tokens into an empty cache."""
    target.fresh(1).extend(torch.tensor([[7] * count], device=target.device), last_only=True)


lengths = (8, 32, 128)
without = {n: best_seconds(lambda: read_all(n), repeats=2) for n in lengths}  # noqa: B023
with_cache = {n: time_passes(target, [1], context=n, repeats=3)[1] for n in lengths}
show(
    figures.draw_times(
        {"without a cache": without, "with a cache": with_cache},
        {},
        ("tokens in the text so far", "milliseconds for one more token", "What the cache saves, on this machine"),
    ),
    alt="Time of one more token over the length of the text. Without a cache it grows from "
    f"{1e3 * without[8]:.0f} to {1e3 * without[128]:.0f} ms between 8 and 128 tokens; with a cache it goes from "
    f"{1e3 * with_cache[8]:.0f} to {1e3 * with_cache[128]:.0f} ms.",
)

# %% [markdown]
# ## 5. When is a text finished?
#
# Two things end it. The model says so, with a special **end-of-text token** (EOS); some models have several. Or we say
# so, with a **budget**, `max_new_tokens`.
#
# Small questions hide here. Is EOS part of the text? We keep it, as the last token: it was drawn like any other. Does
# the prompt count against the budget? No. What does a budget of 0 give? Nothing, and no pass. What if EOS occurs in the
# *prompt*? Then nothing ends: only new tokens can.
#
# To see this clearly we need a model whose text we know. Here is one as a table. After token $x$ it always writes
# $x + 1$, and after 5 it starts again at 0.

# %%
from specdec_ref.decode import collect, generate
from specdec_ref.rows import Stop
from specdec_ref.table import table_lm

size = 6
counting = table_lm(20.0 * torch.eye(size, dtype=torch.float64).roll(1, dims=1))
for what, eos, budget in [
    ("budget alone", (), 8),
    ("EOS is 4", (4,), 8),
    ("EOS is 4 or 2", (4, 2), 8),
    ("EOS is 4, budget 1", (4,), 1),
    ("budget 0", (4,), 0),
    ("EOS is 1, and is in the prompt", (1,), 8),
]:
    rounds = list(generate(counting, [[0, 1]], GREEDY, max_new_tokens=budget, stop=Stop(token_ids=eos)))
    passes = sum(1 for result in rounds if result.tokens[0])
    print(f"{what:31}", collect(rounds)[0], f"passes: {passes}, ended by", rounds[-1].finished[0])

# %% [markdown]
# One pass per new token, in every line. The token that ends the text is never fed: nobody asks what follows it.
#
# ## 6. Where does the time go?
#
# Each pass reads one token. Suppose it read two, or eight. How much longer would a pass take? Twice the tokens, twice
# the arithmetic, so twice as long? Guess first, then measure. (The model's cache holds 128 tokens; the lengths take
# turns, so that a busy moment of the machine hits all of them.)

# %% tags=["nbval-ignore-output"]
blocks = (1, 2, 4, 6, 8, 16, 32)
pass_seconds = time_passes(target, blocks, repeats=5)
for count, seconds in pass_seconds.items():
    print(f"{count:3} tokens: {1e3 * seconds:6.0f} ms, {seconds / pass_seconds[1]:5.2f} times the pass over one")

# %% [markdown]
# The time does not grow like the number of tokens: far less. So a pass over one token must be waiting for something
# that several tokens can share. What is it?
#
# ### The floor: bytes over bandwidth
#
# To compute anything the processor needs the weights, and they lie in main memory: they are far too many for the
# processor's own small memory. A pass uses *every* weight. So in every pass all weights travel through the wire between
# memory and processor once, whether the pass reads one token or eight.
#
# How long does the trip take at least? Bytes of weights over bytes per second. The bytes we can count.

# %%
num_weights = sum(weights.numel() for weights in target.model.parameters())
bytes_a_weight = target.model.dtype.itemsize
weight_bytes = num_weights * bytes_a_weight
print(f"{num_weights:,} weights of {bytes_a_weight} bytes: {weight_bytes / 1e6:.0f} MB")

# %% [markdown]
# The bandwidth we measure. The simplest job that needs all of a large block of memory and hardly any arithmetic is a
# matrix times a vector. Time it, a dozen times, and keep the best: other programs can only make it slower.

# %% tags=["nbval-ignore-output"]
columns = 4096
matrix = torch.ones(num_weights // columns, columns, dtype=target.model.dtype, device=target.device)
vector = torch.ones(columns, dtype=target.model.dtype, device=target.device)
bandwidth = matrix.nbytes / best_seconds(lambda: torch.mv(matrix, vector))
del matrix

floor = weight_bytes / bandwidth
print(f"this machine reads {bandwidth / 1e9:.1f} GB a second")
print(f"so reading the weights takes at least {1e3 * floor:.0f} ms: no more than {1 / floor:.0f} tokens a second")
print(f"a pass over one token took {1e3 * pass_seconds[1]:.0f} ms, {pass_seconds[1] / floor:.1f} times the floor")


in_full = {count: count * pass_seconds[1] for count in blocks}
show(
    figures.draw_times(
        {"measured pass": pass_seconds, "if each token cost a whole pass": in_full},
        {"floor: bytes of the weights over bandwidth": floor},
        ("tokens in the pass", "milliseconds", "One pass over several tokens, on this machine"),
        log_time=True,
    ),
    alt=f"Time of a pass over 1 to 32 tokens. It goes from {1e3 * pass_seconds[1]:.0f} to "
    f"{1e3 * pass_seconds[32]:.0f} ms; paid in full, 32 tokens would cost {1e3 * in_full[32]:.0f} ms. "
    f"The floor lies at {1e3 * floor:.0f} ms.",
)

# %% [markdown]
# The figure holds the measured times, the floor, and what the pass would cost if every token had to be paid in full.
#
# Why is the real pass above the floor? A pass is hundreds of small operations, one after another, and each has to be
# started. The cache has to be read too. And on a busy machine the wire is shared with others.
#
# ### The roof: arithmetic
#
# This cannot go on for ever: eight tokens share the trip of the weights, but each needs its own arithmetic. When does
# that become the longer part?
#
# Count. Each weight is multiplied with a number and added to a sum: 2 operations per weight and token. A pass over
# $t$ tokens with $N$ weights of $b$ bytes needs $2 N t$ operations and reads $N b$ bytes. (The attention's own
# arithmetic is left out; with a short text it is small.) A machine with bandwidth $W$ bytes per second and at most
# $F$ operations per second needs
#
# $$\text{time} \ge \max\left(\frac{N b}{W},\; \frac{2 N t}{F}\right).$$
#
# The larger of the two, not their sum: reading and calculating can go on at the same time.
# The first does not depend on $t$; the second grows with it. They are equal at
#
# $$\frac{N b}{W} = \frac{2 N t}{F} \quad\Longleftrightarrow\quad t^* = \frac{F\,b}{2\,W}.$$
#
# The size of the model has dropped out! Below $t^*$ the memory decides, and another token is nearly free; above it
# the arithmetic decides, and every token costs.
#
# First with round numbers: a made-up machine that reads 20 billion bytes and does 100 billion operations a second.

# %%
for tokens in (1, 6, 10, 20):
    reading = 1e3 * weight_bytes / 20e9
    calculating = 1e3 * 2 * num_weights * tokens / 100e9
    both = max(reading, calculating)
    print(f"{tokens:2} tokens: reading {reading:.0f} ms, calculating {calculating:2.0f} ms, so at least {both:.0f} ms")

# %% [markdown]
# On that machine $t^*$ is 10. Now yours: what is its $F$? Two large square matrices, multiplied, keep the arithmetic
# units as busy as they can be. Side $s$ means $2 s^3$ operations.

# %% tags=["nbval-ignore-output"]
peak = 0.0
for side in (512, 1024, 2048) if target.device.type == "cpu" else (4096, 8192):
    square = torch.randn(side, side, dtype=target.model.dtype, device=target.device)
    peak = max(peak, 2 * side**3 / best_seconds(lambda: square @ square, repeats=8))  # noqa: B023
print(f"at most {peak / 1e9:.0f} billion operations a second, {peak / bandwidth:.0f} for each byte read")
print(f"the two times are equal at t* = {peak * bytes_a_weight / (2 * bandwidth):.0f} tokens in a pass")
speed = 2 * num_weights / pass_seconds[1]
print(f"a pass over one token calculates {speed / 1e9:.1f} billion a second: {speed / peak:.1%} of what it could")

# %% [markdown]
# In small passes the arithmetic units stand idle most of the time: the processor **waits for memory**. That is the
# spare arithmetic which speculative decoding spends.
#
# One picture holds all of it, the *roofline*. Across: operations per byte read, which is $2Nt / Nb = 2t/b$. Up:
# operations per second. No point can lie above the roof: on the left the memory sets it, on the right the arithmetic.
# The points are this machine's own. One series is the whole pass. The other is its matrix products alone, run layer by
# layer without anything in between.

# %% tags=["nbval-ignore-output"]
layers = [module for module in target.model.modules() if isinstance(module, torch.nn.Linear)]


@torch.inference_mode()
def products(count):
    """Apply every linear layer of the model to `count` rows of its own."""
    for layer in layers:
        layer(inputs[count, layer.in_features])


inputs = {
    (count, width): torch.randn(count, width, dtype=target.model.dtype, device=target.device)
    for count in blocks
    for width in {layer.in_features for layer in layers}
}
products_seconds = {count: best_seconds(lambda: products(count), repeats=3) for count in blocks}  # noqa: B023


def under_the_roof(times):
    """Return operations per byte and per second for each number of tokens."""
    return {t: (2 * t / bytes_a_weight, 2 * num_weights * t / seconds) for t, seconds in times.items()}


show(
    figures.draw_roofline(
        bandwidth,
        peak,
        {"matrix products alone": under_the_roof(products_seconds), "whole pass": under_the_roof(pass_seconds)},
        "Roofline of this machine; the numbers are tokens in a pass",
    ),
    alt=f"Roofline: a rising line for {bandwidth / 1e9:.1f} GB a second, which turns level at {peak / 1e9:.0f} billion "
    f"operations a second. Measured passes over 1 to 32 tokens rise from "
    f"{2 * num_weights / pass_seconds[1] / 1e9:.1f} to {64 * num_weights / pass_seconds[32] / 1e9:.1f} billion.",
)

# %% [markdown]
# How to read it: points that climb along the slope get more done *in the same time*. Once they lie under the level
# part, more tokens take more time. A point below the roof pays for something else besides: starting operations,
# waiting, a product that is not made for few rows. A point above it would mean that the roof was measured in a busier
# moment, or that a large processor cache held part of the weights.
#
# ### More work, not free work
#
# Be careful with the word "free". A pass over six tokens does six times the arithmetic of a pass over one. It costs
# little only **while there is spare arithmetic**. Who else could use that up? Other users. A server puts many texts
# into one pass: with $B$ texts and $t$ tokens each, a pass works on $B\,t$ rows. What if the batch has eaten the
# spare arithmetic before the draft comes?

# %% tags=["nbval-ignore-output"]
for batch in (1, 16):
    one, six = time_passes(target, (1, 6), context=32, batch_size=batch, repeats=3).values()
    print(f"{batch:2} texts: 1 token each {1e3 * one:5.0f} ms, 6 each {1e3 * six:5.0f} ms: {six / one:.2f} times")

# %% [markdown]
# With one text the six tokens share a trip that was nearly empty. With a large batch the trip was shared before the
# draft came. Once the batch alone has more rows than $t^*$, the ratio grows towards six, and nothing is left to gain.
# Stage 05 makes a model of this, and simulates a server.
#
# ### Another way to wait less
#
# The wait can also be shortened by making the weights smaller. On the made-up machine:

# %%
for bits in (32, 16, 8, 4):
    size = num_weights * bits / 8  # bytes
    print(f"{bits:2} bits a weight: {size / 1e6:3.0f} MB, read in {1e3 * size / 20e9:4.1f} ms")

# %% [markdown]
# That is *quantisation*, and it changes what the target computes. Speculative decoding does not touch the computation:
# it changes how many passes a text takes. The two can be combined.
#
# ## 7. Why not several tokens in each pass, then?
#
# A pass could carry six tokens for little more than the price of one. Why does plain decoding put only one into it?
#
# Because it *has* only one. The second new token can be computed only when the first is known, the third only after the
# second. Writing is sequential. It is not the arithmetic that forces this, it is the missing input.
#
# So suppose somebody gave us candidates for the next positions. Suppose, for now, that they are right: we take them
# from the text that the model has just written. One pass over all of them, against one pass for each:

# %%
candidates = plain_text[len(prompt) : len(prompt) + 5]
block = [prompt[-1], *candidates]


def laws_in_one_pass(block):
    """Return logits [T, V] for a block of tokens after the prompt."""
    lm = target.fresh(1)
    lm.prefill([prompt[:-1]])
    return lm.extend(torch.tensor([block], device=target.device))[0]


lm = target.fresh(1)
lm.prefill([prompt[:-1]])
one_by_one = torch.stack([lm.extend(torch.tensor([[token]], device=target.device))[0, 0] for token in block])
in_one = laws_in_one_pass(block)
print("candidates:", len(candidates), "and laws from one pass:", len(in_one))
print("the same as from six passes:", torch.allclose(in_one, one_by_one, atol=1e-2, rtol=1e-3))

# %% [markdown]
# Each position sees only its own prefix, so it cannot notice that later candidates are already lying there. Five
# candidates give six laws: one to judge each candidate, and one for the token after all of them.
#
# And if a candidate is wrong? Replace the third by another token and look again.

# %%
wrong = list(block)
wrong[3] = (wrong[3] + 1) % target.vocab_size
after_wrong = laws_in_one_pass(wrong)
for place, (new, old) in enumerate(zip(after_wrong, in_one, strict=True)):
    same = "unchanged" if torch.allclose(new, old, atol=1e-2, rtol=1e-3) else "another law"
    print(f"law {place}, after {place} candidates: {same}")

# %% [markdown]
# Laws 0, 1 and 2 do not see the wrong candidate. Law 2 is the very one that can find it out: it is the model's own
# opinion about the third candidate's place. The laws after it belong to another text. They are right for that text, and
# useless for ours.
#
# That is all a draft has to give: **candidates at every position to check**. It need not be right. Whoever can guess
# cheaply turns several sequential passes into one. What would it save here, if all five were right? Look at the times
# in section 6: one pass over six tokens, and the drafting on top, instead of six passes over one.
#
# Two questions are open. When is a candidate "right", if the model draws its tokens at random? And what is done after
# the first wrong one, so that the text still follows the model's own law *exactly*? That is stage 02.
#
# ## Recap
#
# - Softmax needs differences only, so subtract the largest logit first. Temperature 0 means the limit: all on the
#   largest.
# - Top-p keeps a token while the mass of all likelier ones has not reached p. The crossing token stays.
# - The token is the first whose cumulative sum exceeds $u$. All randomness is an argument.
# - A cache is possible because tokens look only backwards. The last committed token is not in it yet.
# - EOS is kept; the budget counts new tokens; one pass per new token.
# - Every pass streams all weights. With few tokens it waits for memory, and the arithmetic is idle. The turning point
#   is $t^* = F b / (2 W)$.
# - Writing is sequential because the input is missing. Checking is not: candidates give all laws in one pass.
#
# ## Words
#
# | word | meaning |
# |---|---|
# | logits | a model's scores, one per token of the vocabulary |
# | temperature | divides the logits; 0 means greedy |
# | top-k, top-p | filters that keep the likeliest tokens, by number or by mass |
# | greedy | always the likeliest token |
# | KV cache | keys and values of all tokens read so far |
# | prefill | reading the prompt into the cache |
# | pass | one run through all layers, over one or several new tokens |
# | EOS | the token by which a model ends its text |
# | memory-bound | the time is set by bytes read, not by operations |
# | roofline | the upper limit of speed, from bandwidth and peak arithmetic |
#
# ## Further reading
#
# - Holtzman, Buys, Du, Forbes, Choi: *The Curious Case of Neural Text Degeneration* (2020). Where top-p comes from.
# - Fan, Lewis, Dauphin: *Hierarchical Neural Story Generation* (2018). Top-k sampling of stories.
# - Pope and others: *Efficiently Scaling Transformer Inference* (2022). The cache, batches and memory, on large models.
# - Williams, Waterman, Patterson: *Roofline: an insightful visual performance model* (2009).
# - The documentation of transformers, "Generation strategies" and "Caching".
# - In this repository: `specdec_ref/sampling.py`, then `decode.py` (the function `generate`), `cache.py` and
#   `measure.py`.
#
# ## What next?
#
# Open `exercises/01_the_plain_loop.ipynb` and write the loop yourself. After that, stage 02 answers the two open
# questions.
