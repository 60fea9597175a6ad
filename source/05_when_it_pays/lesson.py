# %% [markdown]
# # When it pays: the bill of speculative decoding
#
# Your decoder of stage 04 is exact. Is it faster? That is another question, and its answer is a number of *your*
# machine, *your* texts and *your* users. No paper can know it.
#
# After this stage you can
#
# - compute how many tokens a round brings, and what the round costs,
# - find the best draft length, and say when the best is not to draft at all,
# - read α from a trace without the classic mistake,
# - compare a prediction with a measurement on your own machine,
# - say what long prompts, many users and temperature do to the gain,
# - read a published speedup with care, and decide with numbers of your own.
#
# Reading takes about 20 minutes. The exercises are in `exercises/05_when_it_pays.ipynb`.
#
# | symbol | in code | meaning |
# |---|---|---|
# | α | `alpha` | chance that a *judged* draft token is accepted |
# | K | `num_draft_tokens` | tokens drafted in a round |
# | E | `expected_tokens(alpha, K)` | tokens that a round brings on average |
# | T_t | `target_step_s` | one plain step of the target |
# | T_d | `draft_step_s` | one step of the draft |
# | T_v | `verify_s` | one pass of the target over K + 1 tokens |

# %% [markdown]
# ## How many tokens does a round bring?
#
# Suppose that each judged draft token passes with the same chance α, whatever came before. Then how many tokens does
# the text get from a round with K drafts?
#
# At least one: the correction or the bonus is the target's own. It gets at least two if the first draft passed, which
# has chance α. At least three if the first two passed: α². And so on, up to all K, which gives K + 1 tokens: α^K. The
# mean of a count is the sum of the chances of "at least 1", "at least 2", …, so
#
# $$E = 1 + \alpha + \alpha^2 + \dots + \alpha^K = \frac{1 - \alpha^{K+1}}{1 - \alpha}$$
#
# Take α = .8 and K = 5:

# %%
import numpy as np

from specdec_ref.economics import expected_tokens

alpha, k = 0.8, 5
chances = alpha ** np.arange(k + 1)  # of at least 1, 2, ... tokens
for count, chance in enumerate(chances, 1):
    print(f"at least {count}: {chance:.5f}")
print(f"their sum: {chances.sum():.5f}, and from the reference: {expected_tokens(alpha, k):.5f}")
print("a draft that is never refused, alpha = 1:", expected_tokens(1, k))

# %% [markdown]
# Do not take the algebra's word for it. Toss coins for 200,000 rounds.

# %%
passes = np.random.default_rng(5).random((200_000, k)) < alpha  # would draft i pass, if it were judged?
accepted = passes.cumprod(axis=1).sum(axis=1)  # the leading run: a refusal ends the round
print(f"tokens a round: {(accepted + 1).mean():.2f}; fewest {accepted.min() + 1}, most {accepted.max() + 1}")

# %% tags=["nbval-ignore-output"]
from specdec_course import economics_figures as figures
from specdec_course.figures import show

show(
    figures.draw_tokens([0.5, 0.7, 0.8, 0.9]),
    alt="Tokens of a round against K, for four values of alpha. Every curve starts at 1, rises below the line K + 1, "
    "and flattens: with alpha = .5 it stays below 2 however long the draft, with alpha = .9 it reaches 7.46 at K = 12.",
)

# %% [markdown]
# Why do the curves flatten? The tenth draft counts only if nine others passed. There is a limit that no length can
# beat: 1 / (1 − α).

# %%
for value in (0.5, 0.7, 0.8, 0.9):
    print(f"alpha {value}: K = 5 brings {expected_tokens(value, 5):.2f}, endless drafts {1 / (1 - value):.2f}")

# %% [markdown]
# One warning for your own code. At α = 1 the closed formula is 0 / 0. Some add a small number below the line, "to be
# safe". Is that safe?


# %%
def closed_formula(alpha, num_draft_tokens, below=0.0):
    return (1 - alpha ** (num_draft_tokens + 1)) / (1 - alpha + below)


try:
    print(closed_formula(1.0, 5))
except ZeroDivisionError as error:
    print("closed formula:", error)
print("with a small number below:", closed_formula(1.0, 5, below=1e-8))
print("adding the powers:", sum(1.0**i for i in range(6)))

# %% [markdown]
# The small number hides the error and says that a perfect draft brings nothing. Adding the powers needs no special
# case. This is not an idle worry: a model that drafts for itself has α = 1.
#
# ## The bill of a round
#
# Plain decoding needs E steps of the target for the same tokens: E T_t seconds. The round costs K steps of the draft,
# one after the other, and then *one* pass of the target. So
#
# $$\text{speedup} = \frac{E \; T_t}{K \; T_d + T_v}$$
#
# Below 1 it is a slowdown. Let a draft step cost a tenth of a target step, α = .8, K = 5. And let us ask twice: once
# the pass over six tokens costs as much as a plain step, once it costs two.

# %%
from specdec_ref.economics import speedup

cases = {
    "T_v = T_t": (0.8, 5, 0.1, 1.0),  # alpha, K, T_d / T_t, T_v / T_t
    "T_v = 2 T_t": (0.8, 5, 0.1, 2.0),
    "alpha = .5, T_d = .3 T_t": (0.5, 4, 0.3, 1.0),
}
for name, (value, count, draft, verify) in cases.items():
    brought = expected_tokens(value, count)
    print(f"{name}: accepted {brought - 1:.3f}, bill {count * draft + verify:.2f}, speedup", end=" ")
    print(f"{speedup(value, count, draft, verify):.3f}")

# %% tags=["nbval-ignore-output"]
show(
    figures.draw_bills(cases),
    alt="Three pairs of bars. Plain decoding of 3.69 tokens takes 3.69 target steps. The round takes 0.5 for drafting "
    "and 1 for the pass: 2.46 times faster. With a pass of 2 it is 1.48 times. The third round, with alpha = .5 and a "
    "draft step of .3, takes 2.2 steps for 1.94 tokens and is slower than plain decoding: 0.88.",
)

# %% [markdown]
# Look at the first two lines. **The accepted count has not changed. The speedup has.** Whoever reports only how many
# tokens were accepted has reported half of the fraction.
#
# The third line is a slowdown, and it stays in the table. And what if drafting cost as much as the target itself? Then
# there is nothing to win, at any α and any K:

# %%
every_alpha, every_length = np.linspace(0, 1, 101)[:, None], np.arange(1, 31)
print("the most that a draft as dear as the target gains:", speedup(every_alpha, every_length, 1.0, 1.0).max().round(9))

# %% [markdown]
# Four mistakes are common at this bill. *K passes of verification*: no, one, that is the whole idea. *T_d left out*: it
# is small, but there are K of them. *The bonus forgotten*: a round brings one token more than it accepts. *"K drafts
# make it K times faster"*: at most K + 1, and only for free drafts that never fail and T_v = T_t.
#
# ## Which K is the best?
#
# A longer draft offers more and wastes more after an early refusal. So there is a best length. It depends on α and on
# the bill. Which way does it move? Guess before you run the cell.

# %%
from specdec_ref.economics import best_num_draft_tokens

costs = (0.01, 0.05, 0.1, 0.3)
print("best K for T_d / T_t =", *(f"{cost:>6}" for cost in costs))
for value in (0.3, 0.5, 0.7, 0.9):
    print(f"        alpha =   {value}", " ", *(f"{best_num_draft_tokens(value, cost):>6}" for cost in costs))

# %% [markdown]
# Better drafts deserve to be longer. Dearer drafts deserve to be shorter. The 16 is only the longest draft that was
# tried. A zero says: *do not speculate*; nothing is faster than plain decoding there. These numbers stand for
# T_v = T_t. What if the pass over a longer block costs more? Does that shorten the draft?

# %%
for name, passes_s in {
    "T_v = T_t": np.ones(17),
    "each further token costs .1": 1 + 0.1 * np.arange(17),
    "jumps to 1.8, then flat": np.array([1.0] + [1.8] * 16),
}.items():
    best = int(best_num_draft_tokens(0.8, 0.1, passes_s))
    print(f"{name}: best K = {best}, speedup {speedup(0.8, best, 0.1, passes_s[best]):.2f}")

# %% [markdown]
# Yes and no. A cost that *grows* with each token shortens the draft. A cost that *jumps* once does not: the jump is
# paid already, so one may as well draft on. Stage 03 measured such a jump on a CPU.
#
# Now play. Four sliders, and both pictures follow. (Without a running kernel you see a still picture.)

# %% tags=["nbval-ignore-output"]
from specdec_course.widgets import economics

economics.explore()

# %% [markdown]
# Three things to find out:
#
# - With α = .8, how dear may the draft be until nothing pays?
# - How far must α fall at T_d = .1 until the best K is 0?
# - Set T_v = 2. Which α breaks even for K = 5?
#
# The first two have one answer. With T_v = T_t and one draft, a round brings 1 + α and costs 1 + T_d / T_t. So it pays
# while T_d / T_t is below α; longer drafts give up earlier.
#
# The last one has a name, the **break-even α**. The bill fixes it: E T_t must be at least K T_d + T_v.

# %%
from specdec_ref.economics import break_even_alpha

for verify in (1.0, 1.5, 2.0, 3.0):
    edges = break_even_alpha([1, 3, 5], 0.1, verify)
    words = ["none" if np.isnan(edge) else f"{edge:.2f}" for edge in edges]
    print(f"T_v = {verify} T_t: break-even alpha for K = 1, 3, 5:", ", ".join(words))

# %% [markdown]
# "None" means: even a perfect draft loses, because K + 1 tokens are less than the bill.
#
# One more trade. You may choose between a small draft and a more capable one, which accepts more and costs more. Is
# the better guesser the better choice?

# %%
for name, value, cost in (("small draft", 0.6, 0.03), ("capable draft", 0.8, 0.35), ("both at once", 0.8, 0.03)):
    best = int(best_num_draft_tokens(value, cost))
    print(f"{name}: alpha {value}, T_d {cost}: best K = {best}, speedup {speedup(value, best, cost):.2f}")

# %% [markdown]
# Here the worse guesser wins, since it is cheap. With other prices it would be the other way round. Compatibility,
# acceptance *and* cost all need checking.
#
# ## Alpha from a trace
#
# Everything hangs on α. Where does it come from? From a run: how many tokens were drafted in each round, and how many
# were accepted.
#
# Take the coins from above, which passed with α = .8. An engine would print "accepted / drafted". What does it print,
# and what does the formula say if you put that in for α?

# %%
from specdec_ref.economics import estimate_alpha

per_drafted = accepted.sum() / (k * len(accepted))
per_judged = estimate_alpha(accepted, np.full_like(accepted, k))
print(f"tokens a round, counted:  {(accepted + 1).mean():.2f}")
for name, value in (("accepted / drafted", per_drafted), ("accepted / judged", per_judged)):
    print(f"{name} = {value:.2f}, so the formula gives {expected_tokens(value, k):.2f}")

# %% [markdown]
# The first is the classic mistake. Drafts behind a refusal are thrown away *unjudged*: nobody knows whether they would
# have passed, so they must not count against the draft. A round judges its accepted drafts and, unless all passed, the
# one that it refused. Sum both over all rounds, then divide.
#
# ### Is α one number?
#
# The coins were all alike. Text is not. Here are real rounds: `tiny-draft` drafts for `tiny-target`, greedily, and they
# continue four stories.

# %%
from specdec_course.demo import encode_prompt
from specdec_ref.decode import collect, generate, speculate
from specdec_ref.measure import Run
from specdec_ref.pairs import load_pair
from specdec_ref.sampling import GREEDY
from specdec_ref.totals import Totals

tiny = load_pair("tiny")
beginnings = (
    "Once upon a time there was a shy fox named Tom.",
    "One windy morning Mia walked to the market.",
    "There once was a brave girl whose name was Lily.",
    "In the garden Ben found a silver key.",
)
openings = [encode_prompt(tiny, text) for text in beginnings]
runs = [
    Run(list(speculate(tiny.target, tiny.drafter(), [opening], GREEDY, num_draft_tokens=5, max_new_tokens=48)))
    for opening in openings
]
counts = Totals(runs).counts
print("alpha of each text:", *(f"{run.alpha:.2f}" for run in runs))
print(f"of all: {counts.accepted} accepted of {counts.drafted} drafted, alpha {counts.alpha:.2f}")

# %% [markdown]
# The texts differ widely. Is it so within a text, too: easy stretches, where draft after draft passes, and hard ones?
# Then passes would come in clusters. Instead of one α, look at the **survival curve**: the
# share of rounds in which at least i drafts passed. A constant α would give α^i.

# %%
from specdec_ref.draft_shapes import expected_tokens_by_length, survival_curve

num_accepted = [result.num_accepted[0] for result in counts.rounds]
num_drafted = [result.num_drafted[0] for result in counts.rounds]
survival = survival_curve(num_accepted, num_drafted)
constant = counts.alpha ** np.arange(1, 6)
print("at least i drafts pass, counted:  ", *(f"{share:.2f}" for share in survival))
print("with a constant alpha, alpha^i:   ", *(f"{share:.2f}" for share in constant))
print(f"tokens a round at K = 5: counted curve {expected_tokens_by_length(survival)[-1]:.2f}", end=", ")
print(f"constant alpha {expected_tokens(counts.alpha, 5):.2f}")

# %% tags=["nbval-ignore-output"]
show(
    figures.draw_survival(
        {"counted on tiny": survival.tolist(), "constant alpha": constant.tolist()},
        "How many drafts of a round pass?",
    ),
    alt=f"Two falling curves. Of the counted rounds {survival[0]:.2f} pass at least one draft and {survival[4]:.2f} "
    f"all five. A constant alpha of {counts.alpha:.2f} would give {constant[0]:.2f} and {constant[4]:.2f}.",
)

# %% [markdown]
# Real rounds often fail at the very first draft, because the place is hard. And who has passed four drafts stands in an
# easy stretch, and will probably pass a fifth. Such a curve falls more steeply at first and is flatter later. So one α
# is a summary: good for comparing drafts, and for a first look at K. For the K that you really set, count survival, or
# simply measure.
#
# ## Predicted and measured
#
# Now your machine. We decode with and without speculation, taking turns, and time every round. From single passes and
# draft steps, timed apart, and from the counts of rounds, we predict what the runs *should* have cost. Then we compare.
#
# The first round of each run reads the prompt, so it is left out: decoding is what speculation changes.
#
# The tiny pair continues its four stories. Two tasks for SmolLM2: a change to a short program, where much of the answer
# repeats the question, and a story, where nothing does. Two drafters: `n-gram`, which copies what followed the same
# words before and costs next to nothing, and the model `smol-draft`.

# %% tags=["nbval-ignore-output"]
from specdec_course.benchmark import suites
from specdec_ref.measure import bill, time_draft_step, time_passes, timed
from specdec_ref.rows import Stop


def take_turns(pair, drafters, prompts, max_new_tokens):
    """Decode each prompt plainly and with each drafter, twice; name -> the quicker runs. Who goes first changes."""
    stop, device = Stop(token_ids=pair.eos_token_ids), pair.target.device
    length = {"stop": stop, "max_new_tokens": max_new_tokens}
    ways = {"off": lambda prompt: generate(pair.target, [prompt], GREEDY, **length)}
    for name, (drafter, count) in drafters.items():
        ways[name] = lambda prompt, drafter=drafter, count=count: speculate(
            pair.target, drafter, [prompt], GREEDY, num_draft_tokens=count, **length
        )
    for way in ways.values():  # warm up
        for _, result in zip(range(3), way(prompts[0]), strict=False):
            assert result.tokens
    found = {name: [] for name in ways}
    for prompt in prompts:
        twice = {name: [] for name in ways}
        for order in (list(ways), list(ways)[::-1]):
            for name in order:
                run = Run()
                for _ in timed(ways[name](prompt), run, device):
                    pass
                twice[name].append(run)
        for name, pair_of_runs in twice.items():
            found[name].append(min(pair_of_runs, key=lambda run: run.decode_seconds))
    return found


smol = load_pair("smol")
pairs = {"tiny": tiny, "smol": smol}
drafters = {  # pair -> name of a drafter -> the drafter and its K
    "tiny": {"model": (tiny.drafter("model"), 4)},
    "smol": {"n-gram": (smol.drafter("ngram"), 5), "model": (smol.drafter("model"), 3)},
}
passes = {name: time_passes(pair.target, (1, 4, 5, 6), context=96, repeats=5) for name, pair in pairs.items()}
for name, seconds in passes.items():
    ratios = ", ".join(f"{seconds[count + 1] / seconds[1]:.2f} for K = {count}" for count in (3, 4, 5))
    print(f"{name}: T_t {1e3 * seconds[1]:.1f} ms; T_v / T_t {ratios}")

tasks = (  # pair, task, texts, new tokens
    ("tiny", "story", beginnings, 32),
    ("smol", "code", [suites.load("code-edit").tuning[0].text], 16),
    ("smol", "story", [suites.load("story").tuning[0].text], 16),
)
measured, results = {}, {}
for pair_name, task, texts, max_new_tokens in tasks:
    pair, seconds = pairs[pair_name], passes[pair_name]
    prompts = [encode_prompt(pair, text) for text in texts]
    found = take_turns(pair, drafters[pair_name], prompts, max_new_tokens)
    measured[f"{pair_name}, {task}"] = found
    off = Totals(found["off"])
    for name, (drafter, count) in drafters[pair_name].items():
        on = Totals(found[name])
        # None where nothing was drafted in this text: then drafting cost nothing that could be timed.
        step = time_draft_step(drafter, pair.target, prompts[:1], count, GREEDY, repeats=5) or 0.0
        forecast = bill(on.runs, seconds, step).speedup
        results[f"{pair_name}, {task}\n{name}, K = {count}"] = (forecast, on.tokens_per_s / off.tokens_per_s)
        print(f"{pair_name}, {task}, {name}: {off.tokens_per_s:.1f} -> {on.tokens_per_s:.1f} tokens/s", end=", ")
        print(f"T_d / T_t {step / seconds[1]:.3f}, predicted {forecast:.2f}")

show(
    figures.draw_agreement(results),
    alt="Predicted and measured speedups beside each other. "
    + " ".join(f"{name}: {pair[0]:.2f} and {pair[1]:.2f}." for name, pair in results.items()).replace("\n", ", "),
)

# %% [markdown]
# The times are those of your machine, so the prose cannot know them. What it can know is what was *counted*, for greedy
# texts are the same everywhere:

# %%
for task, by_name in measured.items():
    plain_texts = [collect(run.rounds) for run in by_name["off"]]
    for name, some_runs in by_name.items():
        if name != "off":
            total = Totals(some_runs).counts
            same = [collect(run.rounds) for run in some_runs] == plain_texts
            print(f"{task}, {name}: alpha {total.alpha:.2f}, {total.emitted_per_round:.2f} tokens a round", end="; ")
            print("the same texts as plain:", same)

# %% [markdown]
# The n-gram drafter is mostly right about a program that it can copy from, and never about this story. Nothing was
# changed between these lines but the task. So **repeated code is a good candidate, free text may not be**, and a
# verdict about "speculation" without a workload says nothing.
#
# Where prediction and measurement part, ask what is not on the bill. Python between the passes. A draft step that takes
# longer in a real run than alone. A pass that depends on how long the text is. Another program on the machine: if
# T_v / T_t comes out below 1, a speedup above K + 1, or T_t far above the time of a token without drafts, the machine
# was busy, and the cell should run again when it is not. These are runs of seconds; `specdec bench pair` takes the time
# that a verdict needs. But do not *correct* a measurement because a formula says otherwise.
#
# ## Short answers, long prompts
#
# A request is more than decoding. First the prompt is read, and speculation does nothing for that. Worse, with a draft
# model there are now *two* models that read it.
#
# Let us put numbers in. Reading a prompt token costs .03 target steps, since many are read in one pass. The draft's
# reading costs a tenth of that. Decoding gains the 2.46 from above.


# %%
def request_speedup(prompt_tokens, answer_tokens, gain=2.46, read=0.03, draft_read=0.003):
    """Whole requests, in target steps: reading the prompt, then decoding."""
    off = prompt_tokens * read + answer_tokens
    on = prompt_tokens * (read + draft_read) + answer_tokens / gain
    return off / on


lengths = (4, 16, 64, 256, 1024)
print("tokens of the answer: ", *(f"{length:>6}" for length in lengths))
for prompt_tokens in (50, 500, 5000):
    row = [f"{request_speedup(prompt_tokens, length):6.2f}" for length in lengths]
    print(f"prompt of {prompt_tokens:>4} tokens:", *row)

# %% tags=["nbval-ignore-output"]
show(
    figures.draw_requests(
        lengths,
        {f"prompt of {n} tokens": [request_speedup(n, length) for length in lengths] for n in (50, 500, 5000)},
        limit=2.46,
    ),
    alt="The speedup of whole requests against the length of the answer. With a prompt of 50 tokens it approaches that "
    "of decoding, 2.46, quickly. With a prompt of 5000 tokens, answers of a few tokens are slower than without.",
)

# %% [markdown]
# Short answers leave few rounds, and prompt time dominates. A classifier that reads a page and answers "yes" has
# nothing to gain. A program that writes long texts from short orders has nearly everything.
#
# So keep the two apart when you measure: *time to the first token* and *time between tokens*. A speedup that mixes them
# says more about the prompts than about the decoder.
#
# ## Many texts at once
#
# Stage 01 told why a pass over six tokens can cost little more than one over a single token. Small batches wait for
# memory: the weights are streamed once for a pass, however many tokens are in it. Meanwhile the arithmetic is idle.
# Verification is *more* work, not free work. It uses arithmetic that nobody else wanted. How much more?

# %%
from specdec_ref.economics import operations

for value, count in ((0.9, 2), (0.8, 5), (0.6, 5), (0.6, 10)):
    print(
        f"alpha {value}, K = {count}: {operations(value, count, 0.1):.2f} times the arithmetic of plain decoding",
        end="",
    )
    print(f" for a speedup of {speedup(value, count, 0.1):.2f} if T_v = T_t")

# %% [markdown]
# What if somebody else *does* want it? A server decodes many texts at once. They share the stream of weights, and the
# arithmetic fills up. The roofline of stage 01 says how a pass grows: it takes the time for its bytes or the time for
# its operations, whichever is longer.
#
# We plan for a machine that is not here, so this is a model and no measurement: a target of 8 billion weights and a
# draft of 1.2 billion, both in 16 bits, on one A100, with the data sheet's limits and texts of 500 tokens.

# %%
from specdec_ref.roofline import PRESETS, ModelSize, break_even_batch, roofline_speedup, verify_cost

large = ModelSize(parameters=8.0e9, kv_bytes_per_token=2 * 32 * 8 * 128 * 2)  # 32 layers, 8 KV heads of size 128
small = ModelSize(parameters=1.2e9, kv_bytes_per_token=2 * 16 * 8 * 64 * 2)
sizes = (1, 4, 16, 32, 64, 128, 256)
print("texts at once:          ", *(f"{size:>6}" for size in sizes))
for count in (2, 4):
    ratio = [float(verify_cost(large, PRESETS["a100"], count, size, context=500)) for size in sizes]
    gain = [float(roofline_speedup(0.7, count, large, small, PRESETS["a100"], size, context=500)) for size in sizes]
    print(f"K = {count}: T_v / T_t         ", *(f"{one:6.2f}" for one in ratio))
    print(f"K = {count}: speedup, alpha = .7", *(f"{one:6.2f}" for one in gain))
for count in (2, 4):
    edge = break_even_batch(0.7, count, large, small, PRESETS["a100"], context=500)
    print(f"K = {count}: from {edge} texts at once it loses")

# %% [markdown]
# The draft guesses as well as before, and the accepted count is the same. But from some batch on, each token of the
# block costs arithmetic that another text could have used. Longer drafts lose earlier.
#
# And here? T_v / T_t rises on your machine too. `tiny-target` is small enough to show it in seconds.

# %% tags=["nbval-ignore-output"]
block, here = 5, (1, 2, 4, 8, 16, 32)
ratio, gain = {}, {}
for size in here:
    passes = time_passes(tiny.target, [1, block], context=48, batch_size=size, repeats=5)
    step = time_draft_step(tiny.drafter(), tiny.target, [[1] * 48] * size, block - 1, GREEDY, repeats=5)
    ratio[size] = passes[block] / passes[1]
    gain[size] = float(speedup(0.7, block - 1, step / passes[1], ratio[size]))
    print(f"B = {size:2}: T_t {1e3 * passes[1]:.1f} ms, T_v / T_t {ratio[size]:.2f}, so a speedup of {gain[size]:.2f}")

far = {size: float(verify_cost(large, PRESETS["a100"], 4, size, context=500)) for size in sizes}
far_gain = {s: float(roofline_speedup(0.7, 4, large, small, PRESETS["a100"], s, context=500)) for s in sizes}
panels = {
    "T_v / T_t, K = 4": {"8 B on an A100, by roofline": far, "tiny, measured here": ratio},
    "speedup, alpha = .7, K = 4": {"8 B on an A100, by roofline": far_gain, "tiny, by the times measured here": gain},
}
show(
    figures.draw_batches(panels, dict.fromkeys(panels, 1.0)),
    alt="Two panels against the number of texts. On the left the cost of a pass over five tokens, in plain steps: by "
    f"the roofline {far[1]:.2f} for one text and {far[256]:.2f} for 256; measured on tiny {ratio[1]:.2f} for one and "
    f"{ratio[32]:.2f} for 32. On the right the speedup, which falls as the cost rises: {far_gain[1]:.2f} and "
    f"{far_gain[256]:.2f} by the roofline, {gain[1]:.2f} and {gain[32]:.2f} on tiny.",
)

# %% [markdown]
# A model as small as this one is not typical: starting the operations takes longer than the arithmetic, at first. So
# its draft is dear as well, and it may lose with a single text already. But the direction is the same on every machine.
# With long texts there is a second side: keys and values are streamed too, once a pass, and they keep the memory busy.
# So large batches of *long* texts may still gain.
#
# ### Who waits how long?
#
# Users do not come in batches of 32. They come when they like, wait, and leave. A small simulation plays that: requests
# arrive at random, the machine works in rounds, and its times are those of the roofline. We ask for the time that half
# of the users wait at most (p50), and 95 of 100 (p95). Speculation is off, always on, or *adaptive*: K is chosen for
# the number of texts at hand, and may be 0.

# %%
from specdec_ref.serving import Workload, lognormal, roofline_server, simulate

server = roofline_server(large, small, PRESETS["a100"], context=500)
for rate in (5, 40):
    users = Workload(rate, prompts=lognormal(300), answers=lognormal(150), num_requests=150, alpha=0.7)
    for policy in ("off", "on", "adaptive"):
        served = simulate(users, server, policy, num_draft_tokens=4, seed=5)
        print(f"{rate:2} requests a second, {policy:8}: p50 {served.percentile(0.5):.1f} s", end=", ")
        print(f"p95 {served.percentile(0.95):.1f} s, {served.mean_rows:.0f} texts at once")

# %% [markdown]
# A quiet machine gains. A busy one loses, if it drafts all the same: refused drafts push other users' work back.
# Whether speculation pays may change between noon and midnight, on one machine, for one model. A simulation plans past
# the machine at hand; it does not replace a measurement.
#
# ## Temperature
#
# "At temperature 0 drafts are accepted more often." Is that a law? Temperature changes p *and* q. α is their overlap,
# Σ min(p, q). Here are two pairs of laws over three tokens, from logits.


# %%
def overlap(target_logits, draft_logits, temperature):
    """The acceptance rate when both models use this temperature; 0 means the likeliest token."""

    def law(logits):
        if temperature == 0:
            return np.eye(len(logits))[np.argmax(logits)]
        weights = np.exp((np.array(logits) - max(logits)) / temperature)
        return weights / weights.sum()

    return np.minimum(law(target_logits), law(draft_logits)).sum()


temperatures = (0, 0.5, 1, 2)
print("alpha at temperature    ", *(f"{t:>5}" for t in temperatures))
for name, target_logits, draft_logits in (
    ("the same favourite      ", [4, 1, 0], [2, 0, 1.5]),
    ("nearly tied, they differ", [2, 1.8, 0], [1.8, 2, 0]),
):
    print(name, *(f"{overlap(target_logits, draft_logits, t):5.2f}" for t in temperatures))

# %% [markdown]
# One pair loses at first and recovers, the other gains. A text is a mixture of such places, so temperature does not by
# itself decide acceptance. It must be measured, with the settings that users need.
#
# We do that for both pairs. The target writes texts at some temperature. Then both models read them, and at each
# position we compute Σ min(p, q): the chance that a draft would have passed there. Its mean is α. That takes fewer
# tokens than counting accepted drafts, since it asks for chances and not for outcomes.

# %% tags=["nbval-ignore-output"]
import torch

from specdec_ref.sampling import SamplingSettings, probabilities


def alpha_at(pair, prompts, temperature, max_new_tokens):
    """The mean of sum(min(p, q)) over all positions of texts that the target writes, all prompts in one batch."""
    settings = SamplingSettings(temperature=temperature)
    texts = collect(generate(pair.target, prompts, settings, max_new_tokens=max_new_tokens, seeds=5))
    read = torch.tensor([[prompt[-1], *text[:-1]] for prompt, text in zip(prompts, texts, strict=True)])
    laws = []
    for model in (pair.target, pair.draft):
        lm = model.fresh(len(prompts))
        lm.prefill([prompt[:-1] for prompt in prompts])
        laws.append(probabilities(lm.extend(read.to(lm.device)), settings))  # [B, T, V]
    return float(torch.minimum(*laws).sum(-1).mean())


chats = [encode_prompt(smol, prompt.text) for prompt in suites.load("chat").measured[:4]]
alphas = {
    "tiny, stories": {t: alpha_at(tiny, openings, t, max_new_tokens=48) for t in (0, 0.5, 1, 1.5)},
    "smol, chat": {t: alpha_at(smol, chats, t, max_new_tokens=12) for t in (0, 1, 1.5)},
}
for name, curve in alphas.items():
    print(name, ", ".join(f"T = {t}: {value:.2f}" for t, value in curve.items()))
words = [f"{name}: " + ", ".join(f"{v:.2f} at {t}" for t, v in curve.items()) + "." for name, curve in alphas.items()]
show(
    figures.draw_temperatures(alphas),
    alt="Alpha against temperature for two pairs. " + " ".join(words),
)

# %% [markdown]
# The texts are few and short, so read the direction and not the digits.
#
# ## What others measured
#
# Published speedups are true, of something. Of what? Here are some, with all that belongs to them. The first two are
# the papers that introduced the method.

# %%
published = [
    ("Leviathan et al. 2023", "T5-XXL, T5 drafts", "TPU v4", "translation, summaries", "2 to 3"),
    ("Chen et al. 2023", "Chinchilla 70B, 4B draft", "TPU v4, distributed", "summaries, code", "2 to 2.5"),
    ("Cai et al. 2024", "Vicuna, Medusa-1 heads", "one GPU", "chat", "over 2.2"),
    ("Li et al. 2024", "LLaMA2-Chat 70B, EAGLE", "four A100", "chat, code, mathematics", "2.7 to 3.5"),
    ("Fu et al. 2024", "LLaMA-2, Lookahead", "one GPU", "chat (MT-bench)", "up to 1.8"),
]
for row in published:
    print(f"{row[0]:<22}| {row[1]:<25}| {row[2]:<20}| {row[3]:<24}| {row[4]}")

# %% [markdown]
# Leviathan et al. compare with the standard T5X implementation. Chen et al. measure a distributed setup, with a draft
# that was shaped for it. Each number is about a particular model, machine, task and implementation.
#
# What does somebody find who compares them all in one place? **Spec-Bench** (Xia et al. 2024) ran many methods with one
# model, Vicuna 7B, greedy, one text at a time, over six tasks. The speedups over all tasks, from its leaderboard:

# %%
spec_bench = {  # method: (RTX 3090, A100), overall
    "EAGLE": (2.16, 2.29),
    "small draft model": (1.83, 1.49),
    "n-gram lookup": (1.55, 1.59),
    "Medusa": (1.44, 1.78),
    "Lookahead": (1.08, 1.27),
}
by_task = {"summaries": 2.31, "translation": 1.07}  # n-gram lookup on the RTX 3090
print("method, and its speedup on: RTX 3090, A100")
for method, (first, second) in spec_bench.items():
    print(f"{method:<20}{first:>6}{second:>7}")
print("n-gram lookup, by task:", by_task)
stated = {"EAGLE": 2.7, "Medusa": 2.2, "Lookahead": 1.8}  # the lowest number that each paper's abstract gives
shares = {method: [(found - 1) / (claim - 1) for found in spec_bench[method]] for method, claim in stated.items()}
for method, (first, second) in shares.items():
    print(f"{method}: of the gain that its paper states, found on the two machines: {first:.0%} and {second:.0%}")
print(f"in the middle of these six: {np.median(list(shares.values())):.0%}")

# %% [markdown]
# Not like with like: the papers used other models, tasks or machines. That is the point. Independent benchmarks often
# find about half of what method papers claim. Look also at the order: on one machine the small draft model is
# ahead of Medusa, on the other behind. And at the task: n-gram lookup more than doubles the speed of summaries, which
# quote their source, and does next to nothing for a translation.
#
# So there is **no default multiplier**. Nobody should leave this course believing in one.
#
# ## How to decide
#
# Measure with and without, on your own work. What must be the same on both sides? *The prompts, the output lengths, the
# sampling settings, and how many users are served at once.* What must be recorded?
#
# - tokens accepted a round, and α: is the draft any good?
# - time to the first token, and time between tokens: what does a reader feel?
# - total time of requests, short and long ones apart,
# - memory of both models and their caches, and throughput under load.
#
# How are runs put together? By **totals**. Two requests: one falls from 2 s to 0.5 s, one from 20 s to 18 s.

# %%
from specdec_ref.economics import total_speedup

plain_s, speculative_s = np.array([2.0, 20.0]), np.array([0.5, 18.0])
print(
    "the ratios:",
    (plain_s / speculative_s).round(2).tolist(),
    "with a mean of",
    (plain_s / speculative_s).mean().round(2),
)
print("seconds waited:", plain_s.sum(), "and", speculative_s.sum(), "so the workload is", end=" ")
print(f"{total_speedup(plain_s, speculative_s):.2f} times faster")

# %% [markdown]
# The mean of ratios lets a short request that gained much outvote a long one that gained little. Nobody waits for a
# ratio. Add up seconds, then divide. And print the losers: a good total can hide a kind of request that became slower.
#
# **Half the decoding time is not half the bill.** The machine is paid by the hour: it reads prompts, it waits for
# users, and the second model takes memory in which other users' texts could have been. Let decoding be twice as fast:

# %%
from specdec_ref.costs import cost_per_million_tokens

service = {"price_per_hour": 2.0, "tokens_per_s": 1000.0}
before = {"prompt_share": 0.4, "idle_share": 0.3}
for name, gain, more in (
    ("plain", 1.0, {}),
    ("decoding twice as fast", 2.0, {}),
    ("and a fifth of the texts no longer fits", 2.0, {"memory_share": 0.2}),
    ("and the gain falls to 1.2 under load", 1.2, {"memory_share": 0.2}),
):
    print(f"{name}: {cost_per_million_tokens(speedup=gain, **service, **before, **more):.2f} for a million tokens")

# %% [markdown]
# The last line costs more than plain decoding. A faster single request can be a poor trade, if the second model takes
# memory that other requests need. How much memory is that? For the two models from above, with texts of 4,000 tokens:

# %%
from specdec_ref.roofline import rows_that_fit

alone = rows_that_fit(PRESETS["a100"], 4000, large)
shared = rows_that_fit(PRESETS["a100"], 4000, large, small)
print(f"texts that fit on the A100: {alone} beside the target, {shared} beside both: {1 - shared / alone:.0%} fewer")

# %% [markdown]
# All of this is what `specdec experiment --pair smol --drafter ngram --out DIR` measures: off and on over the same
# prompts, short and long answers, repetitive and free text, several temperatures and batch sizes. Its report gives a
# verdict and names the losing cells too.
#
# A good answer at the end is rarely "yes" or "no". It is: *on for these requests, off for those, because of these
# numbers, and we look again when this changes.*
#
# ## Recap
#
# - E = 1 + α + … + α^K. At least 1, at most K + 1, and never more than 1 / (1 − α).
# - speedup = E T_t / (K T_d + T_v). The accepted count is only its upper half.
# - Try every K with the time of its own pass. K = 0 is a choice.
# - α is accepted over *judged*. It varies with the text; the survival curve says how.
# - Long prompts, short answers, full batches and dear memory eat the gain.
# - Temperature changes p and q together: measure.
# - Totals, never means of ratios. Prompt time apart. Losers printed.
# - No published number is yours.
#
# ## Further reading
#
# - Leviathan, Kalman and Matias 2023, "Fast Inference from Transformers via Speculative Decoding" (arXiv 2211.17192),
#   section 3: E, the speedup, the best K, and the arithmetic.
# - Chen et al. 2023, "Accelerating Large Language Model Decoding with Speculative Sampling" (arXiv 2302.01318).
# - Xia et al. 2024, "Unlocking Efficiency in Large Language Model Inference: A Comprehensive Survey of Speculative
#   Decoding" (arXiv 2401.07851), and the leaderboard of Spec-Bench.
# - Cai et al. 2024, "Medusa" (arXiv 2401.10774); Li et al. 2024, "EAGLE" (arXiv 2401.15077); Fu et al. 2024, "Break the
#   Sequential Dependency of LLM Inference Using Lookahead Decoding" (arXiv 2402.02057).
# - In this repository: `specdec_ref/economics.py`, `draft_shapes.py`, `roofline.py`, `costs.py` and `measure.py`.
#
# ## Glossary
#
# - **E**: tokens that a round brings on average. **Judged**: a draft token that the rule was applied to.
# - **Bill**: what a round costs, K T_d + T_v. **Break-even α**: where E T_t equals the bill.
# - **Survival curve**: the share of rounds in which at least i drafts passed.
# - **Time to the first token**: reading the prompt, and the first round. **Time between tokens**: what follows.
# - **Totals**: seconds added up over a workload, on each side, before anything is divided.
# - **Idle share**: paid time in which nobody asks.
#
# ## What next?
#
# Open `exercises/05_when_it_pays.ipynb`: you write the formulas, read a trace and an experiment, and give a
# recommendation that somebody could act on.
