# %% [markdown]
# # The pipeline: a draft model, a target, and the whole loop
#
# In this stage you will
#
# - give the draft model a cache of its own, and find out when it must be fed *two* tokens,
# - put drafting, verification, correction and rollback into one loop,
# - end a text in the middle of a block, and never write one token too many,
# - read the statistics of a run without confusing three numbers that look alike,
# - stream text as it comes, and decode several texts at once,
# - see how far "the same text" goes in float32 and in bfloat16.
#
# About 20 minutes of reading. The exercise notebook is where you build it.
#
# | symbol | in code | meaning |
# |---|---|---|
# | p | `target_probs` | the target's law of the next token |
# | q | `draft_probs` | the law a draft token was really drawn from |
# | K | `num_draft_tokens` | tokens drafted in a round |
# | α | `alpha` | chance that a *judged* draft token is accepted |

# %% [markdown]
# ## What do we have, and what is missing?
#
# - Stage 01: the plain loop, with a cache.
# - Stage 02: the rule that keeps a draft token or corrects it, so that the text follows the target exactly.
# - Stage 03: one pass of the target over a whole block, and rollback as a subtraction.
#
# What is missing is somebody who drafts, and the loop around it all. Who works when?

# %% tags=["nbval-ignore-output"]
from specdec_course.figures import show
from specdec_course.pipeline_figures import draw_batch, draw_close_calls, draw_ledger, draw_rates, draw_timeline

show(
    draw_timeline(),
    alt="Timeline. Plain decoding: five passes of the target, one token each. One round of the pipeline: four short "
    "passes of the draft one after the other, then one pass of the target over five tokens, then judge, correct and "
    "roll back.",
)

# %% [markdown]
# The draft still works one token at a time. It has to: it is an ordinary language model, and its second guess depends
# on its first. So drafting costs K small passes, and the target's work is *one* pass. The widths in this picture are
# made up. On your machine they are measured, as stage 03 did.
#
# ## Two models to watch
#
# To see what the caches do, we take two models whose next token we know in advance. The draft counts: after 5 comes 6.
# The target counts too, but after one number it *jumps* to 0. So we choose at which draft token they part.

# %%
import torch

from specdec_ref.table import table_lm


def counter(size, jump_after=None):
    """A model that counts modulo `size`; after `jump_after` it goes to 0 instead."""
    following = (torch.arange(size) + 1) % size
    if jump_after is not None:
        following[jump_after] = 0
    return table_lm(20.0 * torch.nn.functional.one_hot(following, size).double(), name="counter")


draft = counter(20).fresh(1)  # an empty cache of one row
logits = draft.extend(torch.tensor([[0, 1, 2, 3, 4]]))  # [1, 5, 20]
print("after 4 the draft says", int(logits[0, -1].argmax()))
print("its cache holds", draft.cache.lengths.tolist(), "tokens")

# %% [markdown]
# ## A cache for the draft
#
# The target's cache follows one rule: **the last committed token is not in it yet**. That token is the first of the
# next block. So with n committed tokens the target holds n − 1.
#
# The draft could follow the same rule. Let us draft K = 4 tokens by hand and see. The text is 0 1 2 3 4, so n = 5.
# The draft already read them all. How many passes does it make for four tokens?

# %%
drafted = [int(logits[0, -1].argmax())]
while len(drafted) < 4:
    logits = draft.extend(torch.tensor([[drafted[-1]]]))
    drafted.append(int(logits[0, -1].argmax()))
    print("fed", drafted[-2], "and drew", drafted[-1], "- the cache holds", draft.cache.lengths.tolist())
print("drafted:", drafted)

# %% [markdown]
# The last draft token was drawn, but nobody fed it: nothing comes after it in this round. So the draft ends with
# n + 3 tokens in its cache, not n + 4.
#
# Now the verdict. Say the target accepts a of the 4. The text gets those a tokens and one more from the target, so it
# grows to n + a + 1. What may the two caches keep?
#
# - The target read the last committed token and all four drafts: n + 4 entries. Its text without the last token is
#   n + a long. So it **forgets 4 − a**.
# - The draft holds n + 3. Of these, n + a are right, if it has that many. So it **keeps min(n + 3, n + a)**.
#
# These are equal, except in one case. Which?
#
# Here is the table. Nothing in it is typed by hand: for each a we run the decoder on two counters that part after a
# tokens, and a ledger notes what the caches really hold.

# %%
from specdec_course.ledger import Ledger
from specdec_ref.decode import collect, generate, speculate
from specdec_ref.drafters import ModelDrafter
from specdec_ref.sampling import GREEDY

prompt = [0, 1, 2, 3, 4]
print("accepted | target before, after | draft after | draft is fed in the next round")
for a in range(5):
    target = counter(20, jump_after=4 + a)  # agrees with the counting draft on the first `a` drafts
    ledger = Ledger(target, ModelDrafter(counter(20)))
    list(speculate(ledger.target, ledger.drafter, [prompt], GREEDY, num_draft_tokens=4, max_new_tokens=12))
    first, second = ledger.entries[:2]
    print(
        f"{first.accepted:8} | {first.target_before:6} {first.target_after:13} | "
        f"{first.draft_after:11} | {second.fed} {'tokens' if second.fed > 1 else 'token'}"
    )

# %% [markdown]
# **After full acceptance the draft is fed two tokens**: its own last guess, which it never read, and the bonus token.
# In every other case it is fed one, the correction.
#
# You do not need a special case for this. There is a rule that covers everything, the prompt of the first round
# included: *feed whatever is committed and not in the cache*.
#
# ## What if the second token is forgotten?
#
# Will the text be wrong? Think before you run the next cell.
#
# We build a drafter with this fault, and let a model draft *for itself*. A model that drafts for itself, greedily,
# must be accepted always. The counter is too simple for this test: it looks at one token only. So we take a table that
# maps the last *two* tokens to the next one.


# %%
class Forgetful(ModelDrafter):
    """Always feeds one token in later rounds, also when it lacks two."""

    def _feed_committed(self, rows, fits):
        if int(self.lm.cache.lengths[0]) == 0:
            return super()._feed_committed(rows, fits)  # the prompt
        return self.lm.extend(rows.last_tokens())[:, -1]


lm = table_lm(torch.randn(12, 12, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
written = {}
for name, drafter in (("feeds what is missing", ModelDrafter(lm)), ("forgets the second   ", Forgetful(lm))):
    rounds = list(speculate(lm, drafter, [[3, 1, 4]], GREEDY, num_draft_tokens=4, max_new_tokens=60))
    accepted = sum(sum(result.num_accepted) for result in rounds)
    drafted = sum(sum(result.num_drafted) for result in rounds)
    written[name] = collect(rounds)
    print(f"{name}: {accepted} of {drafted} drafts accepted, {len(rounds)} rounds")
print("the same text:", len({str(text) for text in written.values()}) == 1)

# %% [markdown]
# The text is the same. It has to be: the target checks every token, and a bad guess costs time, never quality.
# **No test of the text can find this fault.** It only makes the draft worse, round by round, because each hole in its
# cache shifts everything after it. A model that drafts for itself finds it at once.
#
# ## The loop
#
# Now the whole round, for a text of n tokens of which n − 1 are in the target's cache:
#
# 1. **Limit**: how many tokens may still be written? Draft at most that many *minus one*.
# 2. **Draft**: feed what the draft's cache lacks, draw a token, feed it, draw the next. Keep the laws q.
# 3. **Verify**: one pass of the target over the last committed token and all drafts. That is K + 1 rows of logits.
# 4. **Judge**: row i judges draft i. The leading run of accepted tokens stays. Then the correction from the row of the
#    first refusal, or the bonus from row K.
# 5. **Roll back** both caches.
# 6. **Commit**: append the tokens, cut at the end of the text. Stop if it has ended.
#
# Why "minus one" in step 1? A round emits one token more than it accepts. With room for m tokens and m drafts, full
# acceptance would write m + 1. The draft of one of them would have been for nothing.
#
# What does a longer run look like? Here the target jumps after 11.

# %% tags=["nbval-ignore-output"]
ledger = Ledger(counter(20, jump_after=11), ModelDrafter(counter(20)))
list(speculate(ledger.target, ledger.drafter, [[2]], GREEDY, num_draft_tokens=3, max_new_tokens=28))
show(
    draw_ledger(ledger.entries, "The text runs one token ahead of the target's cache, always"),
    alt="Bars for each round. The target's cache is one token shorter than the text after every round. The draft's "
    "cache is as long as the target's, except after full acceptance, when it is one shorter.",
)

# %%
ahead = {entry.committed + entry.accepted + 1 - entry.target_after for entry in ledger.entries}
behind = [entry.target_after - entry.draft_after for entry in ledger.entries]
print("tokens that the text is ahead of the target's cache, over all rounds:", ahead)
print("tokens that the draft's cache is behind the target's, round by round:", behind)

# %% [markdown]
# ## Where does a text end?
#
# A model ends its text with a special token, **EOS**. In the plain loop the last token is the only new one, so it is
# the one to look at. What changes when a round brings five?
#
# Suppose K = 4, all four drafts are accepted, and EOS is the second. The rest of the block was verified, and the target
# really would have written it. But the text had ended. A loop that looks only at the last token of the block runs on.
#
# We try every place: the target's own text is 1 2 3 4 5 6 …, and each number in turn is made the EOS.

# %%
from specdec_ref.rows import Stop

target_counter, perfect = counter(20), ModelDrafter(counter(20))
for eos in range(1, 8):
    stop = Stop(token_ids=(eos,))
    plain = collect(generate(target_counter, [[0]], GREEDY, max_new_tokens=12, stop=stop))
    fast = list(speculate(target_counter, perfect, [[0]], GREEDY, num_draft_tokens=4, max_new_tokens=12, stop=stop))
    last = fast[-1]
    print(f"EOS {eos}: round {len(fast)}, place {len(last.tokens[0])} of {last.num_accepted[0] + 1}:", end=" ")
    print(collect(fast)[0], "same as plain:", collect(fast) == plain)

# %% [markdown]
# Three more things about ends, each of them a fault that real decoders have shipped:
#
# - A model may have **several** EOS ids, one, or none. Keep a collection. A test such as `token == eos` fails for a
#   list, and silently.
# - The **draft** may contain EOS in its middle: a copied draft often does. It is an ordinary token until it is
#   accepted. Then the text ends there.
# - EOS may be the **correction** or the **bonus**. It comes from the target, and it counts.
#
# And the budget? `max_new_tokens` is a promise. Is it kept for every draft length?

# %%
print("max_new_tokens:", *range(8), sep="\t")
for k in range(1, 6):
    lengths = [
        len(collect(speculate(target_counter, perfect, [[0]], GREEDY, num_draft_tokens=k, max_new_tokens=m))[0])
        for m in range(8)
    ]
    print(f"tokens, K = {k}:   ", *lengths, sep="\t")

# %% [markdown]
# ## Three numbers that look alike
#
# A run ends, and you count. Which number tells how good the draft is?
#
# - **emitted per round**: tokens the text got, over rounds,
# - **accepted over drafted**: what engines often print as "acceptance rate",
# - **α**: accepted over *judged*.
#
# What is the difference between drafted and judged? After the first refusal the rest of the draft is thrown away
# *unjudged*. Nobody knows whether it would have passed.
#
# Let each judged token be accepted with chance α, whatever came before. Draft i counts if it and all before it
# passed, so with chance α^i. Then a round accepts on average
#
# $$A = \alpha + \alpha^2 + \dots + \alpha^K$$
#
# and emits one token more, the correction or the bonus:
#
# $$E = A + 1 = 1 + \alpha + \dots + \alpha^K = \frac{1 - \alpha^{K+1}}{1 - \alpha}$$
#
# How many does it judge? Draft i is judged if all before it passed: chance α^(i−1). So a round judges
# 1 + α + … + α^(K−1) = A / α tokens. That is why accepted over judged gives α back, and accepted over drafted, A / K,
# does not.
#
# Let us play α = .8 and K = 4: first from the formulas, then by 200,000 rounds of coin tosses.

# %%
import numpy as np

from specdec_ref.economics import estimate_alpha, expected_tokens

alpha, k = 0.8, 4
emitted = float(expected_tokens(alpha, k))
print(f"formula:  emitted {emitted:.4f}, accepted {emitted - 1:.4f}, accepted / drafted {(emitted - 1) / k:.4f}")

passes = np.random.default_rng(0).random((200_000, k)) < alpha  # would draft i pass, if it were judged?
num_accepted = passes.cumprod(axis=1).sum(axis=1)  # the leading run
print(f"counted:  emitted {num_accepted.mean() + 1:.2f}, accepted {num_accepted.mean():.2f}", end=", ")
print(f"accepted / drafted {num_accepted.mean() / k:.2f}")
print(f"accepted / judged: {estimate_alpha(num_accepted, np.full_like(num_accepted, k)):.2f}")

# %% tags=["nbval-ignore-output"]
show(
    draw_rates(0.8, 4),
    alt="Three curves over alpha from 0 to 1, for K = 4. Alpha itself is the diagonal. Accepted over drafted lies "
    "below it everywhere between 0 and 1: .590 at alpha = .8. Emitted over K + 1 starts at one fifth, for the token "
    "the target always adds, and is .672 at alpha = .8.",
)

# %%
print("alpha   accepted / drafted   emitted a round, K = 4")
for value in (0.2, 0.5, 0.8, 0.95):
    emitted = float(expected_tokens(value, 4))
    print(f"{value:5.2f}   {(emitted - 1) / 4:18.3f}   {emitted:22.3f}")

# %% [markdown]
# Whoever takes .59 for α and puts it into the formula for E predicts far too few tokens. In the last round of a text
# there is one more trap: EOS or the budget may cut off tokens that were accepted. So count emitted tokens from the
# text, never as accepted + 1.
#
# In a real text α is not one constant. It is high where the text is easy and low where it is not. The estimate is an
# average over the tokens that were judged.
#
# ## The real pair
#
# Enough counting. SmolLM2 writes, its small draft guesses. `speculate` gives one `Round` after the other, so streaming
# is a `for` loop, and statistics are a sum over rounds.

# %%
from specdec_course.demo import encode_prompt
from specdec_ref.pairs import load_pair

pair = load_pair("smol")
target, tokenizer = pair.target, pair.tokenizer
question = "What do plants need to grow?"
prompt = encode_prompt(pair, question)
stop = Stop(token_ids=pair.eos_token_ids)
plain = collect(generate(target, [prompt], GREEDY, max_new_tokens=20, stop=stop))[0]
print("plain decoding:", tokenizer.decode(plain, skip_special_tokens=True))

# %% tags=["nbval-ignore-output"]
from specdec_ref.measure import Run, timed
from specdec_ref.text import TextStream

run, stream = Run(), TextStream(tokenizer)
for result in timed(
    speculate(target, pair.drafter(), [prompt], GREEDY, num_draft_tokens=4, max_new_tokens=20, stop=stop),
    run,
    target.device,
):
    print("".join(stream.push(token) for token in result.tokens[0]), end="│", flush=True)  # a bar after each round
print(stream.finish())
print(f"{target.name}, drafted for by {pair.draft.name}")
print(
    f"alpha {run.alpha:.2f}, accepted / drafted {run.acceptance_rate:.2f}, a round {run.emitted_per_round:.2f} tokens"
)
print(f"rounds: {len(run.rounds)}; plain decoding needed {len(plain)} passes")

# %%
speculative = collect(run.rounds)[0]
print("the same tokens as plain decoding:", speculative == plain)
print("accepted / drafted is never above alpha:", run.acceptance_rate <= run.alpha)

# %% [markdown]
# ## Half a character
#
# Streaming has a trap of its own. A token is a piece of *bytes*, and one character may be spread over several tokens.
# What does a reader see if you decode each token by itself?

# %%
sample = tokenizer("naïve 🦊 日本", add_special_tokens=False)["input_ids"]
print("token by token:", "|".join(tokenizer.decode([token]) for token in sample))

stream = TextStream(tokenizer)
pieces = [stream.push(token) for token in sample]
print("held back:     ", "|".join([*pieces, stream.finish()]))

# %% [markdown]
# The question marks are parts of characters. `TextStream` holds bytes back until the character is whole: an empty piece
# between two bars means "wait". The pieces joined are exactly the text. Decode what you have so far, show what is new,
# and keep back a tail that ends in the replacement mark: that is all.
#
# ## Several texts at once
#
# The rows of a batch are independent texts. One may accept four drafts in a round and the next none. Each row has its
# own length in both caches (stage 03), its own budget, its own end, and its own random numbers. A row that has ended
# leaves the batch, so that no pass computes anything for it.
#
# What must be true of every row? It must equal the same text decoded alone.

# %%
prompts = [[0], [7, 8, 9], [14]]
jumpy = counter(20, jump_after=16)
rounds = list(
    speculate(
        jumpy,
        ModelDrafter(counter(20)),
        prompts,
        GREEDY,
        num_draft_tokens=3,
        max_new_tokens=16,
        stop=Stop(token_ids=(13,)),
    )
)
for row, text in enumerate(collect(rounds)):
    alone = collect(generate(jumpy, [prompts[row]], GREEDY, max_new_tokens=16, stop=Stop(token_ids=(13,))))[0]
    print(f"row {row}: rounds {sum(1 for r in rounds if r.tokens[row])}, {text}, as alone: {text == alone}")

# %% tags=["nbval-ignore-output"]
show(
    draw_batch(rounds, [f"row {row}" for row in range(len(prompts))]),
    alt="Three rows as chains of segments, one segment a round. The second row ends with its first round, at EOS; the "
    "others go on. The first segment of the third row is shorter: a draft in it was refused.",
)

# %%
for row in range(len(prompts)):
    print(f"row {row} got, round by round:", [len(result.tokens[row]) for result in rounds])

# %% [markdown]
# A batch shares the passes, and that is also its price: each pass is as wide as the longest draft in it, and with many
# rows the arithmetic is no longer spare (stage 03). Stage 05 comes back to that trade.
#
# ## How an engine offers this
#
# In transformers the whole surface is one argument: `generate(..., assistant_model=draft)`. Everything of this stage
# happens behind it. Do we write the same text?

# %% tags=["nbval-ignore-output"]
import time

import transformers

transformers.logging.set_verbosity_error()  # the library would warn about its own arguments
ids = torch.tensor([prompt], device=target.device)
common = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": list(pair.eos_token_ids)}
start = time.perf_counter()
assisted = target.model.generate(ids, attention_mask=torch.ones_like(ids), assistant_model=pair.draft.model, **common)[
    0, len(prompt) :
].tolist()
print(
    f"transformers with assistant_model: {len(assisted) / (time.perf_counter() - start):.1f} tokens/s, prompt included"
)
start = time.perf_counter()
ours = collect(speculate(target, pair.drafter(), [prompt], GREEDY, num_draft_tokens=4, max_new_tokens=12, stop=stop))[0]
print(f"specdec_ref:                       {len(ours) / (time.perf_counter() - start):.1f} tokens/s, prompt included")

# %%
print("the same tokens:", ours == assisted == plain[:12])
pair_of_prompts = ids.repeat(2, 1)
try:
    target.model.generate(
        pair_of_prompts,
        attention_mask=torch.ones_like(pair_of_prompts),
        assistant_model=pair.draft.model,
        **common,
    )
except ValueError as error:
    print("and for a batch of two:", error)

# %% [markdown]
# The same text from two implementations that share no decoding code. One run of 12 tokens is no benchmark: the lengths
# of the drafts differ (transformers adapts them), and a busy machine moves both numbers. How to measure honestly is the
# subject of stage 05, `when_it_pays`.
#
# ## How exact is exact?
#
# The rule is exact for the numbers it is given. But are the logits of a pass over five tokens *the same numbers* as
# those of five passes over one? In mathematics yes. In a computer the sums run in another order, and each order rounds
# differently.
#
# When can that change a greedy text? Only where the best two tokens are about as close as this noise: at most twice as
# far apart, since one logit may rise and the other fall. So we measure both, at each position of the text above: the
# lead of the best logit, and the noise. The noise is the largest difference between passes over one token and passes
# over blocks of 2, 3, 5 and 8.


# %%
def close_calls(lm, text, block_lengths=(2, 3, 5, 8)):
    """Return the lead of the best logit at each position, the largest noise, and where some choice differs."""
    block = torch.tensor([[prompt[-1], *text]], device=lm.device)

    def logits(length):
        reader = lm.fresh(1)
        reader.prefill([prompt[:-1]])
        return torch.cat([reader.extend(part)[0] for part in block.split(length, dim=1)]).float()  # [T, V]

    one = logits(1)
    many = torch.stack([logits(length) for length in block_lengths])  # [4, T, V]
    best = one.topk(2).values
    differ = (many.argmax(-1) != one.argmax(-1)).any(0)
    return (best[:, 0] - best[:, 1]).tolist(), float((one - many).abs().max()), differ.nonzero().flatten().tolist()


leads32, noise32, differ32 = close_calls(target, plain)
print("float32: every lead is larger than the noise:", min(leads32) > noise32)
print("float32: positions where block and single passes choose differently:", len(differ32))

# %% [markdown]
# In float32 no choice on this text is close. That is why greedy texts agree token for token here, and why "the same
# text" is a claim about *this* text in *this* precision.
#
# Now bfloat16, which keeps 8 significant bits of each number where float32 keeps 24. Engines use it because it halves
# the bytes to stream.

# %% tags=["nbval-ignore-output"]
half = load_pair("smol", dtype="bfloat16").target
leads16, noise16, differ16 = close_calls(half, plain)
print(f"noise in float32: {noise32:.1e}; in bfloat16: {noise16:.1e}")
print(f"positions closer than the noise: {sum(lead <= noise16 for lead in leads16)} of {len(leads16)}")
print("positions where some block pass chooses another token than single passes:", differ16 or "none, this time")
show(
    draw_close_calls({"float32": leads32, "bfloat16": leads16}, {"float32": noise32, "bfloat16": noise16}),
    alt=f"The lead of the best logit at each position, on a logarithmic axis. In float32 the noise is {noise32:.0e}, "
    f"far below every lead. In bfloat16 it is {noise16:.0e}, and {sum(lead <= noise16 for lead in leads16)} positions "
    "are closer than that.",
)

# %% [markdown]
# A position below the line is a **near tie**: the two computations may choose differently, and from there on the texts
# part. Neither is wrong. Both are texts of the bfloat16 target, up to its rounding. This is what engines mean when they
# document that they are lossless up to hardware numerics, and it is the same reason why a *larger batch* can change a
# greedy text with no speculation at all.
#
# So test a decoder for equality in float32 or float64. A difference there is a fault. In half precision, look at the
# lead where two texts part before you call it one.

# %%
print("the noise of bfloat16 is more than a hundred times that of float32:", noise16 > 100 * noise32)

# %% [markdown]
# ## Recap
#
# - One round: limit, draft, verify, judge, roll back, commit.
# - The last committed token is never in the target's cache. The draft is fed what is committed and missing: one token,
#   or two after full acceptance.
# - A text ends at the first EOS of a block, wherever it stands. Draft at most `remaining − 1`.
# - α is accepted over *judged*. Accepted over drafted is smaller. Emitted tokens are counted from the text.
# - Hold back half characters. Each row of a batch equals its solo run.
# - Exactness is exact for given logits. In half precision near ties can part two equally right texts.
#
# ## Further reading
#
# - Leviathan, Kalman and Matias 2023, "Fast Inference from Transformers via Speculative Decoding" (arXiv 2211.17192),
#   sections 2 and 3: the round and its expected tokens.
# - Chen et al. 2023, "Accelerating Large Language Model Decoding with Speculative Sampling" (arXiv 2302.01318),
#   algorithm 2: the loop. Its letters p and q are the other way round.
# - The transformers documentation on assisted decoding, and vLLM's documentation on the lossless guarantees of
#   speculative decoding and their limits.
# - In this repository: `specdec_ref/decode.py`, `specdec_ref/drafters/model.py`, `specdec_ref/rows.py`.
#
# ## Glossary
#
# - **Round**: one draft and one pass of the target; it emits 1 to K + 1 tokens.
# - **Committed**: part of the text for good. **Rollback**: forgetting cache entries of refused drafts.
# - **Bonus token**: the target's own token after a fully accepted draft. **Correction**: its token in place of the
#   first refused draft.
# - **Judged**: a draft token whose predecessors all passed, so that the rule was applied to it.
# - **EOS**: the token that ends a text. **Budget**: `max_new_tokens`.
# - **Self-draft**: a model drafts for itself; a test of the draft's cache.
# - **Near tie**: two best logits closer than the numerical noise.
#
# ## What next?
#
# Open `exercises/04_the_pipeline.ipynb` and build it. At its end, *your* functions write with SmolLM2.
