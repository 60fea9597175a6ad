# %% [markdown]
# # Stage 05, exercises: when it pays
#
# You write the formulas that decide whether speculation is worth its bill, read traces and an experiment, and end with
# a recommendation that somebody could act on.
#
# | exercise | points | difficulty | minutes |
# |---|---|---|---|
# | 5.1 How many tokens does a round bring? | 2 | 2 of 5 | 6 |
# | 5.2 What a round is worth | 2 | 2 of 5 | 6 |
# | 5.3 The best K | 2 | 3 of 5 | 8 |
# | 5.4 Alpha from traces | 3 | 3 of 5 | 8 |
# | 5.5 Reading an experiment | 3 | 3 of 5 | 12 |
# | 5.6 A recommendation, in writing | 4 | 3 of 5 | 15 |
#
# Read the lesson first: `notebooks/05_when_it_pays.ipynb`.
#
# Replace each `raise NotImplementedError()` by your answer, run the cell, then run the check below it. A check says
# *passed*, *not yet* (with the reason), or *not attempted*. Stuck? `hint("5.1")` gives one more hint each time, and
# `replay()` shows the case on which the last check failed. The last question is read by a person, or by yourself with
# the rubric beside it.

# %%
from specdec_course import check, hint, progress, quiz, replay

# %% [markdown]
# ## 5.1 How many tokens does a round bring?
#
# *2 points, difficulty 2 of 5, 6 minutes*
#
# K tokens are drafted. Each judged one passes with chance α. How many tokens does the text get on average, the
# correction or bonus included?
#
# Your answer must be good for every α from 0 to 1. That includes 1 itself: a model that drafts for itself has it.


# %%
def expected_tokens(alpha, num_draft_tokens):
    """Return E, the tokens that a round brings on average: a float from 1 to K + 1.

    alpha: chance that a judged draft token is accepted, a float in [0, 1]
    num_draft_tokens: K, an int >= 0
    """
    ### BEGIN SOLUTION
    return float(sum(alpha**i for i in range(num_draft_tokens + 1)))
    ### END SOLUTION


# %%
check("5.1", expected_tokens)

# %% [markdown]
# ## 5.2 What a round is worth
#
# *2 points, difficulty 2 of 5, 6 minutes*
#
# Return the speedup over plain decoding: how long plain decoding would take for the tokens of a round, over how long
# the round takes. Below 1 it is a slowdown; return it as it is.


# %%
def speedup(alpha, num_draft_tokens, target_step_s, draft_step_s, verify_s):
    """Return how many times faster than plain decoding a round brings its tokens, a float.

    alpha, num_draft_tokens: as in `expected_tokens`
    target_step_s: T_t, seconds of one plain step of the target
    draft_step_s: T_d, seconds of one step of the draft
    verify_s: T_v, seconds of one pass of the target over K + 1 tokens
    """
    ### BEGIN SOLUTION
    round_s = num_draft_tokens * draft_step_s + verify_s
    return expected_tokens(alpha, num_draft_tokens) * target_step_s / round_s
    ### END SOLUTION


# %%
check("5.2", speedup)

# %% [markdown]
# ### The three bills of the lesson
#
# Do yours agree? 2.46, 1.48 and .881 are wanted.

# %%
try:
    for bill in ((0.8, 5, 1.0, 0.1, 1.0), (0.8, 5, 1.0, 0.1, 2.0), (0.5, 4, 1.0, 0.3, 1.0)):
        print("alpha {}, K = {}, T_t {}, T_d {}, T_v {}:".format(*bill), round(speedup(*bill), 3))
except NotImplementedError:
    print("Answer 5.1 and 5.2 first. Then run this cell again.")

# %% [markdown]
# ## 5.3 The best K
#
# *2 points, difficulty 3 of 5, 8 minutes*
#
# You measured how long a pass of the target takes, for every length: `verify_s[K]` are the seconds of a pass over K + 1
# tokens. So `verify_s[0]` is a plain step, T_t.
#
# Return the K with the largest speedup, from 0 up to `len(verify_s) - 1`. K = 0 is plain decoding: its speedup is 1. If
# several K are equally good, return the smallest.


# %%
def best_num_draft_tokens(alpha, draft_step_s, verify_s):
    """Return the best K, an int; 0 means: do not speculate.

    alpha: chance that a judged draft token is accepted
    draft_step_s: T_d, seconds of one step of the draft
    verify_s: list of floats, seconds of a pass over 1, 2, 3, ... tokens
    """
    ### BEGIN SOLUTION
    best, most = 0, 1.0
    for count in range(1, len(verify_s)):
        gain = speedup(alpha, count, verify_s[0], draft_step_s, verify_s[count])
        if gain > most:
            best, most = count, gain
    return best
    ### END SOLUTION


# %%
check("5.3", best_num_draft_tokens)

# %% [markdown]
# ### Your machine
#
# With your functions, and the times of `tiny-target` and `tiny-draft` on this machine: which K is the best for which α?
# (The models are tiny. What counts here is that the numbers are yours.)

# %% tags=["nbval-ignore-output"]
from specdec_ref.measure import time_draft_step, time_passes
from specdec_ref.pairs import load_pair
from specdec_ref.sampling import GREEDY

pair = load_pair("tiny")
passes = time_passes(pair.target, range(1, 10), context=48, repeats=5)
step = time_draft_step(pair.drafter(), pair.target, [[1] * 48], 4, GREEDY, repeats=5)
print("T_v / T_t:", ", ".join(f"{seconds / passes[1]:.2f}" for seconds in passes.values()))
print(f"T_d / T_t: {step / passes[1]:.2f}")
try:
    for alpha in (0.3, 0.5, 0.7, 0.9):
        best = best_num_draft_tokens(alpha, step, list(passes.values()))
        gain = speedup(alpha, best, passes[1], step, passes[best + 1])
        print(f"alpha {alpha}: best K = {best}", f"with a speedup of {gain:.2f}" if best else "- do not speculate")
except NotImplementedError:
    print("Answer 5.1, 5.2 and 5.3 first. Then run this cell again.")

# %% [markdown]
# ## 5.4 Alpha from traces
#
# *3 points, difficulty 3 of 5, 8 minutes*
#
# Several texts were decoded. For each there is a trace: a list with (drafted, accepted) of each round. Drafts may be
# shorter than K, and some rounds have none at all.
#
# Return α, over all texts together. Where nothing was judged nothing is known: return `float("nan")`.


# %%
def estimate_alpha(traces):
    """Return the chance that a judged draft token is accepted, a float; NaN where none was judged.

    traces: list of traces, one for each text; a trace is a list of (drafted, accepted), one for each round
    """
    ### BEGIN SOLUTION
    rounds = [one for trace in traces for one in trace]
    accepted = sum(passed for _, passed in rounds)
    judged = accepted + sum(1 for drafted, passed in rounds if passed < drafted)
    return accepted / judged if judged else float("nan")
    ### END SOLUTION


# %%
check("5.4", estimate_alpha)

# %% [markdown]
# ### Is yours unbiased?
#
# Do not take the check's word for it. Toss coins with a known α, and see whether it comes back.

# %%
import random


def coin_rounds(alpha, rounds, source):
    """A trace of drafts of 0 to 6 tokens, each of which passes with chance alpha."""
    trace = []
    for _ in range(rounds):
        drafted, passed = source.randint(0, 6), 0
        while passed < drafted and source.random() < alpha:
            passed += 1
        trace.append((drafted, passed))
    return trace


try:
    for alpha in (0.3, 0.6, 0.9):
        source = random.Random(5)
        traces = [coin_rounds(alpha, 20_000, source) for _ in range(2)]
        per_drafted = sum(a for t in traces for _, a in t) / sum(d for t in traces for d, _ in t)
        print(f"alpha {alpha}: yours {estimate_alpha(traces):.2f}, accepted / drafted {per_drafted:.2f}")
except NotImplementedError:
    print("Answer 5.4 first. Then run this cell again.")

# %% [markdown]
# ## 5.5 Reading an experiment
#
# *3 points, difficulty 3 of 5, 12 minutes*
#
# An experiment decoded prompts with speculation off and on. It left a list of records, in no particular order:
#
# ```python
# {"prompt": "poem", "speculation": True, "prompt_s": 0.4, "decode_s": 2.5}
# ```
#
# `prompt_s` is the time until the first token, `decode_s` the time from there to the last. Both sides wrote texts of
# the same length. The run was killed at some point, so a few prompts were measured only one way. They cannot be
# compared: leave them out everywhere.
#
# Return a dict with
#
# - `"decode_speedup"`: seconds of decoding without speculation over seconds with it, of the whole workload,
# - `"request_speedup"`: the same for whole requests, prompt and decoding together,
# - `"slower"`: the names of the prompts whose *request* took longer with speculation, sorted.


# %%
def read_experiment(records):
    """Return what the records of an experiment amount to: a dict with two floats and a list of str.

    records: list of dicts with "prompt" (str), "speculation" (bool), "prompt_s" and "decode_s" (floats)
    """
    ### BEGIN SOLUTION
    off = {record["prompt"]: record for record in records if not record["speculation"]}
    on = {record["prompt"]: record for record in records if record["speculation"]}
    both = sorted(off.keys() & on.keys())

    def request_s(record):
        return record["prompt_s"] + record["decode_s"]

    return {
        "decode_speedup": sum(off[name]["decode_s"] for name in both) / sum(on[name]["decode_s"] for name in both),
        "request_speedup": sum(request_s(off[name]) for name in both) / sum(request_s(on[name]) for name in both),
        "slower": [name for name in both if request_s(on[name]) > request_s(off[name])],
    }
    ### END SOLUTION


# %%
check("5.5", read_experiment)

# %% [markdown]
# ## 5.6 A recommendation, in writing
#
# *4 points, difficulty 3 of 5, 15 minutes, read by a person*
#
# A team runs an assistant on one GPU. It has four kinds of requests. They tried speculation with a draft model of a
# tenth of the target's size, and they bring you two experiments: one text at a time, and sixteen at a time. The service
# and its numbers are made up for this exercise; they were computed with the formulas of this stage, so they are
# consistent. Run the cell to read them.

# %%
from specdec_ref.economics import expected_tokens as tokens_of_a_round

KINDS = {  # kind: (prompt tokens, answer tokens, alpha, share of the requests)
    "code edit": (600, 400, 0.85, 0.30),
    "chat": (100, 200, 0.60, 0.40),
    "translation": (150, 150, 0.35, 0.10),
    "yes or no": (3000, 2, 0.70, 0.20),
}
BATCHES = {1: (0.030, 0.0035, 0.032), 16: (0.036, 0.0060, 0.078)}  # texts at once: T_t, T_d, T_v at K = 4, seconds
READ_S, DRAFT_READ_S = 0.0004, 0.00005  # for each prompt token


def experiment(texts_at_once):
    """The records that this service gives: seconds of a request of each kind, off and on."""
    step, draft, verify = BATCHES[texts_at_once]
    found = []
    for kind, (prompt, answer, alpha, _) in KINDS.items():
        round_s, rounds = 4 * draft + verify, answer / tokens_of_a_round(alpha, 4)
        for speculation, read, decode in (
            (False, READ_S, answer * step),
            (True, READ_S + DRAFT_READ_S, rounds * round_s),
        ):
            decode_s = round(float(decode), 2)
            found.append({"prompt": kind, "speculation": speculation, "prompt_s": prompt * read, "decode_s": decode_s})
    return found


for texts_at_once in BATCHES:
    print(f"{texts_at_once} at a time:")
    for record in experiment(texts_at_once):
        way = "on " if record["speculation"] else "off"
        print(f"   {record['prompt']:<12} {way} prompt {record['prompt_s']:.2f} s, decoding {record['decode_s']:.2f} s")
print("shares of the requests:", {kind: share for kind, (_, _, _, share) in KINDS.items()})
print("memory: the draft and its cache take the place of 5 of 48 texts")

# %%
try:
    for texts_at_once in BATCHES:
        found = read_experiment(experiment(texts_at_once))
        print(f"{texts_at_once} at a time, one request of each kind:", end=" ")
        print({name: value if name == "slower" else round(value, 2) for name, value in found.items()})
except NotImplementedError:
    print("Answer 5.5 first. Then run this cell again.")

# %% [markdown]
# Write your recommendation below, about 150 words, for someone who has to decide tomorrow. Rubric, one point each:
#
# 1. **A verdict that splits**: for which requests and which load on, for which off. Not one yes or no for everything.
# 2. **Numbers from the records**: each part of the verdict rests on a number, prompt time and decoding apart, totals
#    where a whole is meant.
# 3. **The rest of the bill**: what memory, load or idle time do to the cost, in at least one sentence with a number.
# 4. **What would change your mind**: which measurement is missing, or which change of the workload should make them
#    look again.

# %% [markdown] manual_points=4
# *Your recommendation:*
#
# <!-- BEGIN SOLUTION -->
# **While the machine is quiet, switch it on for code edits and chat. Leave it off for yes-or-no requests and
# translations, and off for all but code edits when it is full.**
#
# One text at a time, decoding a code edit falls from 12.00 s to 4.96 s and a chat from 6.00 s to 3.99 s. Translation
# gains nothing: 4.50 s and 4.51 s. A yes-or-no request spends 1.20 s on its prompt and 0.06 s on decoding; the draft
# has to read the prompt too, which takes it to 1.35 s, so the request becomes slower.
#
# Sixteen at a time code edits still gain: 14.40 s to 11.00 s. Chats lose, 7.20 s to 8.85 s, and translations lose more.
# One request of each kind together would take longer with speculation than without: 0.9 times the speed.
#
# The bill: the draft takes the place of 5 of 48 texts, a tenth of the capacity at peak. If the peak is what machines
# are bought for, only the code edits can pay that back.
#
# Missing: records at the load of a real day, and at the temperature that users have (these are one α a kind). Look
# again if prompts get longer, the share of code edits falls below a tenth, or K is chosen by load.
# <!-- END SOLUTION -->

# %% [markdown]
# ## Do you see why?
#
# Four questions, without points. Pick an answer; every choice has an explanation. In a notebook without buttons, answer
# with the letter: `quiz("5.a", "b")`.

# %%
quiz("5.a")

# %%
quiz("5.b")

# %%
quiz("5.c")

# %%
quiz("5.d")

# %% [markdown]
# ## What next?
#
# You can say when speculation pays, and when it does not. The map shows what is left. The drafter of this course so far
# is a smaller model, or a copy of the text. There are others, and each changes one term of the bill: a better α, a
# cheaper T_d, or a T_v that checks several guesses at once. Stages 06 to 10 build them. They need not be taken in
# order; `notebooks/06_no_second_model.ipynb` is the first.

# %% tags=["nbval-ignore-output"]
progress()
