# %% [markdown]
# # Batched verification: many tokens, one pass
#
# Stage 02 gave us a rule: keep a draft token, or correct it. The rule needs the target's law at every drafted place.
# Asking the target once per place would cost as many passes as plain decoding. Nothing would be won.
#
# So the target has to answer for all places **in one pass**. That is the subject of this stage.
#
# After it you can
#
# - give a block of tokens its positions and its mask,
# - show that one pass over a block gives the logits of many single passes,
# - say which row of logits judges which draft,
# - take refused tokens out of a cache in three ways, and say what each costs,
# - put texts of different lengths in one batch without one disturbing another,
# - measure what a pass over $1+K$ tokens costs on your device, and say why.
#
# It takes about 20 minutes. The exercises are in `exercises/03_batched_verification.ipynb`.

# %%
import torch

from specdec_ref.pairs import load_pair

pair = load_pair("smol")
target, tokenizer = pair.target, pair.tokenizer
print(target.name)


def encode(text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


# %% [markdown]
# ## What does a pass need to know?
#
# The cache holds the text so far. Now comes a **block**: the last token of the text, which is not in the cache yet, and
# the draft. Call its length $T = 1 + K$.
#
# For each token of the block the model needs two things beside the token itself.
#
# 1. Its **position** in the text. SmolLM2 rotates keys and queries by angles that depend on it; other models add a
#    vector for it to the token's input.
# 2. Its **mask**: which slots of the cache it may look at.
#
# *Question.* The cache holds 5 tokens. The block has 3. At which position does the block begin?
#
# Count from 0. The tokens in the cache sit at 0, 1, 2, 3, 4. So the block begins at 5. The token at offset $t$ of the
# block sits at position
#
# $$\text{length} + t.$$
#
# *Question.* What may that token look at?
#
# At all of the text before it, and at itself. Not at what follows it in the block. So it sees slot $s$ if
#
# $$s \le \text{length} + t.$$

# %% tags=["nbval-ignore-output"]
from specdec_course.block_figures import draw_mask
from specdec_course.figures import show

show(
    draw_mask([5], 3),
    alt="A grid of 3 tokens by 8 slots. Each token sees slots 0 to 4, the earlier text, and the block up to itself. "
    "The first token of the block does not see slots 6 and 7, the second does not see slot 7.",
)

# %% [markdown]
# ### Does the position really matter?
#
# Let us get it wrong. We give a text to the model, and count the last four tokens from 0 again, as if the block stood
# at the start of the text.

# %%
text = encode("The capital of France is Paris. The capital of Italy is")
tokens = torch.tensor([text], device=target.device)
right = torch.arange(len(text), device=target.device)[None]
restarted = right.clone()
restarted[0, -4:] = torch.arange(4, device=target.device)


@torch.inference_mode()
def next_word(position_ids):
    logits = target.model(input_ids=tokens, position_ids=position_ids, use_cache=False).logits
    return tokenizer.decode([int(logits[0, -1].argmax())]), logits[0, -1]


word, logits = next_word(right)
_, wrong_logits = next_word(restarted)
print("right positions:   ", repr(word))
print("some logit moved by more than 1:", bool((logits - wrong_logits).abs().max() > 1))

# %% [markdown]
# A nastier version of this mistake is common. The decoder adds **1** to the position after every round, because plain
# decoding did. But a round commits several tokens. The text then looks fine for a while, and gets worse as the round
# counter falls behind. Say the prompt is one token, and the rounds commit 4, 1 and 5 tokens:

# %%
length, counter = 0, 0  # the last token of the text is not in the cache yet
for committed in (4, 1, 5):
    print(f"the block begins at position {length} of the text; a counter of rounds says {counter}")
    length, counter = length + committed, counter + 1

# %% [markdown]
# Only the first round is right, which is all that a short test sees. The cure is to keep no counter of rounds at all:
# the position follows from the cache's length.

# %% [markdown]
# ### And the mask?
#
# Without the mask a token of the block would see the drafts after it. Then the law for draft 1 would depend on draft 1
# itself. The target would be reading the answer it is asked to judge.
#
# We can watch that. We change the **last** token of the text, and look at the logits of the tokens **before** it.

# %%
changed = tokens.clone()
changed[0, -1] = encode(" was")[0]
hidden = torch.finfo(target.model.dtype).min
causal = torch.full((len(text), len(text)), hidden, device=target.device).triu(1)[None, None]  # 0 where it may look
open_mask = torch.zeros_like(causal)


@torch.inference_mode()
def earlier_logits(input_ids, mask):
    return target.model(input_ids=input_ids, position_ids=right, attention_mask=mask, use_cache=False).logits[0, :-1]


for name, mask in (("causal mask", causal), ("no mask", open_mask)):
    moved = (earlier_logits(tokens, mask) - earlier_logits(changed, mask)).abs().max()
    print(f"{name}: earlier logits depend on the last token:", bool(moved > 1e-3))

# %% [markdown]
# ## Is one pass really the same as many?
#
# We read a prompt into two caches. One then gets four tokens in four passes. The other gets the same four in one pass.

# %%
prompt = encode("Water boils at one hundred degrees. Water freezes at")
block = encode(" zero degrees Celsius.")[:4]

one_by_one = target.fresh(1)
one_by_one.prefill([prompt])
steps = torch.cat([one_by_one.extend(torch.tensor([[token]], device=target.device)) for token in block], dim=1)

at_once = target.fresh(1)
at_once.prefill([prompt])
together = at_once.extend(torch.tensor([block], device=target.device))

print("shapes [B, T, V]:", tuple(steps.shape), tuple(together.shape))
print("largest difference below 0.001:", bool((steps - together).abs().max() < 1e-3))
print("same favourite after each token:", steps.argmax(-1).tolist() == together.argmax(-1).tolist())

# %% [markdown]
# Why must that be so? Follow the token at offset $t$ through the layers.
#
# - Its query meets keys and values of tokens up to itself. The mask gives all others the weight $e^{-\infty} = 0$.
# - Everything else in a layer (norms, projections, the MLP) works on each token alone.
# - So its state depends on the tokens up to $t$ only. By the same argument in the layer below, so did the keys and
#   values it read.
#
# The four passes compute these same numbers. They only wait for each other, which the block does not have to.
#
# *Question.* Then why "below 0.001" and not "equal"?
#
# A matrix product over four rows adds its terms in another order than one over a single row. Rounding differs in the
# last digits. In float32 that almost never changes a token. Stage 04 comes back to when it does.
#
# To see exact equality we need a model without rounding. Here is one: a table that maps the last token, or the last
# two, to what follows. It is small enough to see whole, and still it keeps keys and values in a cache and finds its
# text by attention.

# %%
from specdec_ref.table import table_lm

V = 5
counting = table_lm(20.0 * torch.eye(V, dtype=torch.float64).roll(1, dims=1))  # after x comes x + 1, modulo 5
random_table = table_lm(torch.randn(V, V, V, generator=torch.Generator().manual_seed(0), dtype=torch.float64))


def in_pieces(lm, prompt, pieces):
    lm = lm.fresh(1)
    lm.prefill([prompt])
    return torch.cat([lm.extend(torch.tensor([piece])) for piece in pieces], dim=1)


whole = in_pieces(random_table, [0, 3], [[1, 4, 2, 2]])
for pieces in ([[1], [4], [2], [2]], [[1, 4], [2, 2]], [[1], [4, 2, 2]]):
    print(pieces, "equal to the last bit:", torch.equal(whole, in_pieces(random_table, [0, 3], pieces)))

# %% [markdown]
# ## Which row judges which draft?
#
# Row $t$ of the logits is the law of the token **after** the block's token $t$. The block is
#
# $$[x, d_1, d_2, \dots, d_K].$$
#
# So row 0, after $x$, judges $d_1$. Row $t$ judges $d_{t+1}$. Row $K$ stands after the last draft. It has no draft to
# judge: it is the bonus.
#
# *By hand.* The counting model says $x+1$ after $x$, modulo 5. The text ends in 2. The draft is 3, 4, 1.

# %%
last, draft = 2, [3, 4, 1]
block = [last, *draft]
wanted = in_pieces(counting, [0, 1], [block])[0].argmax(-1).tolist()

for row, want in enumerate(wanted):
    if row < len(draft):
        print(
            f"row {row}, after {block[row]}: wants {want}, judges draft {row + 1} = {draft[row]}: {want == draft[row]}"
        )
    else:
        print(f"row {row}, after {block[row]}: wants {want}, the bonus if all drafts passed")

# %% tags=["nbval-ignore-output"]
from specdec_course.block_figures import draw_judges

show(
    draw_judges([str(token) for token in block], [str(want) for want in wanted], num_accepted=2),
    alt="The block 2, 3, 4, 1 with a row of logits above each token. Row 0 wants 3 and judges draft 1. Row 1 wants 4 "
    "and judges draft 2. Row 2 wants 0, refuses draft 3, and its 0 is the correction. Row 3 is unused.",
)

# %% [markdown]
# Two drafts pass. The correction comes from the row that refused: row 2, that is row $a$ when $a$ drafts passed. If all
# pass, row $K$ gives the bonus, and that is row $a$ too. One rule serves both.
#
# *Question.* Row 3 wants 2. Why may we not use it?
#
# Row 3 has read draft 3, which is refused. It says what follows a text that does not exist.
#
# ### What if the rows slip by one?
#
# It is easy to judge draft $i$ by row $i$, and to take the first draft as it comes. Say the drafter always proposes
# $x+2$: every draft is wrong.

# %%
bad_draft = [4, 1, 3]
wanted = in_pieces(counting, [0, 1], [[last, *bad_draft]])[0].argmax(-1).tolist()


def leading_run(agrees):
    run = 0
    while run < len(agrees) and agrees[run]:
        run += 1
    return run


right_count = leading_run([wanted[i] == bad_draft[i] for i in range(3)])
slipped = 1 + leading_run([wanted[i] == bad_draft[i] for i in range(1, 3)])
print("rows in place: accepted", right_count, "-> the text gets", wanted[right_count])
print("rows slipped:  accepted", slipped, "-> the text gets", bad_draft[:slipped], "and then", wanted[slipped])

# %% [markdown]
# The slipped version never judges the first draft. On a good drafter nobody notices: the first draft is mostly right.
# So test with a drafter that is always wrong. Nothing may pass, and the text must be that of plain decoding.
#
# ### Do all columns count?
#
# Many models pad their vocabulary to a round width. The columns beyond the last real token were never trained, and can
# hold anything. Two models with one tokenizer may be padded to different widths. So compare on the real ids, and cut
# the rest away **before** the softmax or the argmax.

# %%
from specdec_ref.model import CachedLM

padded_table = torch.full((V + 3, V + 3), 50.0, dtype=torch.float64)  # the padding shouts
padded_table[:V, :V] = 20.0 * torch.eye(V, dtype=torch.float64).roll(1, dims=1)
wide = table_lm(padded_table)
cut = CachedLM(wide.model, vocab_size=V)
print("all columns: the next token is", in_pieces(wide, [0, 1], [[2]]).argmax().item(), "which no tokenizer knows")
print("real columns: the next token is", in_pieces(cut, [0, 1], [[2]]).argmax().item())

# %% [markdown]
# ## How do refused tokens leave the cache?
#
# The pass wrote keys and values of all $1+K$ tokens. Say $a$ drafts were accepted. How much may stay?
#
# Let the text have $n$ tokens before the round. Its last token is not in the cache, so the cache holds $n-1$.
#
# $$\underbrace{n-1}_{\text{before}} + \underbrace{1+K}_{\text{block}} - \underbrace{(K-a)}_{\text{refused}} = n+a.$$
#
# The text got $a$ drafts and one more token, so it has $n+a+1$ tokens now. Its last token, the correction or the bonus,
# was never fed. The cache holds all but that one: $n+a$. The rule we began with holds again.
#
# There are three ways to take the $K-a$ tokens out.
#
# 1. **Recompute.** Throw the cache away and read the text again. Always right, and dear.
# 2. **Crop.** Cut the last $K-a$ slots off. transformers' `DynamicCache.crop` does that; the number is negative.
# 3. **Lengths.** Leave all slots where they are, and lower a number that says how many count. The mask hides the rest,
#    and the next pass writes over it.
#
# Do they agree? We draft nonsense after a real text, remove it in three ways, and compare the next logits.

# %%
from transformers import DynamicCache

kept = encode("The three primary colours are red, yellow and")
nonsense = encode(" seventeen umbrellas")[:3]
follow = torch.tensor([[encode(" blue")[0]]], device=target.device)


@torch.inference_mode()
def feed(cache, ids, start):
    ids = torch.tensor([ids], device=target.device)
    positions = torch.arange(start, start + ids.shape[1], device=target.device)[None]
    return target.model(input_ids=ids, position_ids=positions, cache=cache, use_cache=True).logits


fed = {}

cache = DynamicCache()
feed(cache, kept, 0)
feed(cache, nonsense, len(kept))
cache = DynamicCache()  # 1. recompute
feed(cache, kept, 0)
fed["recompute"] = len(kept)
recomputed = feed(cache, follow[0].tolist(), len(kept))

cache = DynamicCache()
feed(cache, kept, 0)
feed(cache, nonsense, len(kept))
cache.crop(-len(nonsense))  # 2. crop
fed["crop"] = 0
cropped = feed(cache, follow[0].tolist(), len(kept))

lm = target.fresh(1)
lm.prefill([kept])
lm.extend(torch.tensor([nonsense], device=target.device))
lm.rollback([len(nonsense)])  # 3. lengths
fed["lengths"] = 0
subtracted = lm.extend(follow)

for name, logits in (("recompute", recomputed), ("crop", cropped), ("lengths", subtracted)):
    same = bool((logits - recomputed).abs().max() < 1e-3)
    print(f"{name:9}  tokens fed again: {fed[name]:2}   same next logits: {same}")

# %% [markdown]
# ### And the drafter's own cache?
#
# A draft model is fed too: $x$, then each of its drafts but the last. The last one is drawn and never fed. So before
# the verdict it holds $n-1+K$ tokens. After it, whatever was refused must go.
#
# *Question.* What must it be fed in the next round? What if all drafts passed?

# %%
n, K = 10, 4
print("accepted   text has   target holds   draft holds   feed the target   feed the draft")
for a in range(K + 1):
    text_length, target_holds, draft_holds = n + a + 1, n + a, min(n - 1 + K, n + a)
    print(
        f"{a:8}   {text_length:8}   {target_holds:12}   {draft_holds:11}   "
        f"{text_length - target_holds:15}   {text_length - draft_holds:14}"
    )

# %% [markdown]
# After full acceptance the draft needs **two** tokens: its own last draft, and the bonus. A drafter that always feeds
# one has a gap in its memory, and everything behind the gap sits one position too early. The text stays right, for the
# target judges every token. Only the drafts get worse, round by round, and nobody sees why. Compare the draft's law:

# %%
held, last_draft, bonus = [0, 3, 1, 4], 2, 3
for name, feed_now in (("feeds both", [last_draft, bonus]), ("feeds the bonus only", [bonus])):
    draft_law = in_pieces(random_table, held, [feed_now])[0, -1].softmax(-1)
    print(f"{name:20}", [f"{probability:.3f}" for probability in draft_law.tolist()])

# %% [markdown]
# The test for this is called *self-draft*: let the target draft for itself, greedily. Every draft must pass, for
# hundreds of tokens.
#
# ### Traps of cutting
#
# *Question.* You keep all but the last $k$ slots with `keys[:-k]`. What if everything was accepted, and $k = 0$?

# %%
slots = torch.arange(5)
for k in (2, 1, 0):
    print(f"slots[:-{k}] keeps", slots[:-k].tolist(), "and slots[: 5 - k] keeps", slots[: 5 - k].tolist())

# %% [markdown]
# `-0` is 0, and `[:0]` is nothing. The best round of all empties the cache. Older code also meets the opposite: a
# `crop(n)` in which $n$ is the length to **keep**. Read what your library means, and refuse what makes no sense:

# %%
for wrong in ([-1], [99]):
    try:
        lm.rollback(wrong)
    except ValueError as error:
        print(error)

# %% [markdown]
# ### Is a zeroed key gone?
#
# A tempting shortcut: leave the slot in place and set its key and value to zero. Let us compute the attention weights
# of two real slots with scores 1 and 0.5, and a third slot that was refused.

# %%
scores = torch.tensor([1.0, 0.5])
zeroed = torch.cat([scores, torch.zeros(1)])  # query times a zero key is a score of 0
masked = torch.cat([scores, torch.tensor([-torch.inf])])
for name, values in (("without the slot", scores), ("key set to zero", zeroed), ("slot masked", masked)):
    print(f"{name:16}", [f"{weight:.3f}" for weight in values.softmax(-1).tolist()])

# %% [markdown]
# A score of 0 is not "nothing": $e^0 = 1$. The zeroed slot takes a share of the attention from the real ones. Hidden
# means a score of $-\infty$, whatever the slot holds.
#
# ### Whose cache is it?
#
# One more fault of memory. A decoder keeps its cache between calls, and the second text reads a little of the first.
# The test is short: decode x, then y, then x again. The first and the third answer must be equal.

# %%
x, y, question = [0, 3, 1], [4, 2], torch.tensor([[2]])


def clean(prompt):
    lm = random_table.fresh(1)  # same weights, an empty cache
    lm.prefill([prompt])
    return lm.extend(question)


reused = random_table.fresh(1)


def forgetful(prompt):
    reused.prefill([prompt])
    reused.extend(question)
    return reused.cache.lengths.item()


first, _, third = clean(x), clean(y), clean(x)
print("a fresh cache for every call, first equals third:", torch.equal(first, third))
print("one cache for all calls, tokens in it after each:", [forgetful(prompt) for prompt in (x, y, x)])

# %% [markdown]
# ### Look at the memory
#
# Two rows of a batch go through one round. Row 0 accepts 4 of 4 drafts, row 1 accepts 1.
# Choose how the rollback is done, and move through the round. What does *crop* cost row 0? What does *recompute* cost?

# %% tags=["nbval-ignore-output"]
from specdec_course.widgets.cache_viewer import view_cache

view_cache(accepted=(4, 1))

# %%
from specdec_course.widgets.cache_viewer import WAYS, memory

for way in WAYS:
    after = memory(way, 3, accepted=(4, 1))
    print(f"{way:27} tokens fed until the next pass is done: {after.fed:2}   the texts got {after.gained}")

# %% [markdown]
# For a single row, cropping is as good as a length. In a batch it is not. One cut serves all rows, so every row keeps
# only as much as the slowest one, and accepted tokens are lost. With a length per row the rollback is a subtraction.
#
# ## How do texts of different lengths share a pass?
#
# Prompts differ in length, and after one round so do all texts. We fill the block on the **right**, and each row
# writes at its own next slot. Positions and masks come from that row's own length, by the formulas above.

# %% tags=["nbval-ignore-output"]
show(
    draw_mask([5, 2], 3),
    alt="Two grids of 3 tokens by 8 slots. Row 0 has 5 tokens in the cache and its block fills slots 5 to 7. Row 1 has "
    "2 tokens in the cache: its block fills slots 2 to 4 at positions 2 to 4, and slots 5 to 7 are hidden from it.",
)

# %% [markdown]
# *Question.* Does a row then get the logits it would get alone?
#
# It should. Nothing in row $b$'s formulas mentions another row. We check it with three prompts, with an uneven
# rollback, and with rows that use different numbers of the block's tokens.

# %%
prompts = [encode(t) for t in ("Once upon a time there was", "Yes,", "The quick brown fox jumps over the lazy")]
blocks = [encode(" a small green frog who")[:4], encode(" I think so")[:2], encode(" dog and runs away")[:3]]
undo = [2, 0, 3]
then = [encode(" king")[0], encode(" too")[0], encode(" cat")[0]]

from specdec_ref.model import pad

batch = target.fresh(3)
batch.prefill(prompts)
padded, counts = pad(blocks)  # padding on the right, and how many tokens of each row are real
batch.extend(padded.to(target.device), counts)
batch.rollback(undo)
batched = batch.extend(torch.tensor(then, device=target.device)[:, None])

solo = []
for prompt, block, removed, token in zip(prompts, blocks, undo, then, strict=True):
    alone = target.fresh(1)
    alone.prefill([prompt])
    alone.extend(torch.tensor([block], device=target.device))
    alone.rollback([removed])
    solo.append(alone.extend(torch.tensor([[token]], device=target.device)))

print("lengths of the rows:", batch.cache.lengths.tolist())
print("each row as if it were alone:", bool((batched - torch.cat(solo)).abs().max() < 1e-3))

# %% [markdown]
# *Question.* Many programs pad a batch on the **left**, as transformers' `generate` expects it. What is wrong with
# that?
#
# Nothing, as long as nobody forgets it. The padding must be masked, and the positions must skip it, in the prompt's
# pass **and in every pass after it**. And it cannot last: as soon as rows accept different numbers of drafts, their
# right ends differ again. We can see what forgetting the mask does.

# %%
short, long = encode("The opposite of hot is"), encode("The sun rises in the east and sets in the")
gap = len(long) - len(short)
left = torch.tensor([[0] * gap + short, long], device=target.device)
shown = torch.ones_like(left)
shown[0, :gap] = 0
positions = (shown.cumsum(1) - 1).clamp(min=0)

with torch.inference_mode():
    remembered = target.model(input_ids=left, attention_mask=shown, position_ids=positions, use_cache=False).logits
    forgotten = target.model(input_ids=left, use_cache=False).logits
    single = target.model(input_ids=torch.tensor([short], device=target.device), use_cache=False).logits
print("left padding, masked:   like the row alone:", bool((remembered[0, -1] - single[0, -1]).abs().max() < 1e-3))
print("left padding, forgotten: like the row alone:", bool((forgotten[0, -1] - single[0, -1]).abs().max() < 1e-3))

# %% [markdown]
# ## What does the pass cost?
#
# Write $T_t$ for the time of one plain step of the target and $T_v$ for one verification pass over $1+K$ tokens. The
# hope is $T_v \approx T_t$. Where does it come from? Count what a pass reads, and what it computes.

# %%
weights = sum(weight.numel() for weight in target.model.parameters())
for length in (1, 6):
    print(
        f"a pass over {length} token{'s' if length > 1 else ' '}: reads {4 * weights / 1e6:.0f} MB of float32 weights, "
        f"does about {2 * weights * length / 1e9:.1f} billion additions and multiplications"
    )

# %% [markdown]
# Six tokens are six times the arithmetic for the same reading. So verification is **more work, not free work**. It is
# cheap only while the processor waits for memory and has arithmetic to spare: stage 01 drew that as a roofline. A
# batch uses up the same spare arithmetic. With $B$ rows a pass computes on $B(1+K)$ tokens.
#
# *Question.* What do you expect for $T_v / T_t$ with 4 rows: more or less than with 1?
#
# We measure. The lengths take turns, and of each we keep the quickest pass: another program on the machine can make a
# pass slower, never faster.

# %% tags=["nbval-ignore-output"]
from specdec_course.pass_times import device_name, pass_times, ratios

lengths = (1, 2, 4, 6, 9)
print("on", device_name(target.device), "with", target.model.dtype)
by_rows = {}
for rows in (1, 4):
    seconds = pass_times({"target": target}, lengths, batch_size=rows, turns=2)["target"]
    by_rows[f"B = {rows}"] = ratios(seconds)
    print(f"B = {rows}:", "  ".join(f"{n} tokens {1e3 * seconds[n]:.0f} ms" for n in lengths))

# %% [markdown]
# ### The surprise in the stock kernels
#
# On a CPU there is a catch that has nothing to do with the method. We run the *same weights* with `nn.Linear` as it
# comes, in turns with ours. On a GPU there is nothing to compare, and the cell says so.

# %% tags=["nbval-ignore-output"]
import copy

from specdec_ref.kernels import FastLinear, kernel_name


def with_stock_layers(lm):
    """The same model with plain nn.Linear layers: the weights are shared, nothing is copied."""
    stock = copy.copy(lm)
    stock.model = copy.deepcopy(lm.model, memo={id(weight): weight for weight in lm.model.parameters()})
    for module in stock.model.modules():
        if type(module) is FastLinear:
            module.__class__ = torch.nn.Linear
    return stock


sides = {"this course's layers": target}
if target.device.type == "cpu":
    sides["stock nn.Linear"] = with_stock_layers(target)
else:
    print("not on a CPU: the GPU's own kernels are made for few rows")
curves = {name: ratios(seconds) for name, seconds in pass_times(sides, lengths).items()}
for name, curve in curves.items():
    print(f"{name:20}  a pass over 6 tokens takes as long as {curve[6]:.2f} steps")
print("products in use here:", kernel_name(target.model))

# %% tags=["nbval-ignore-output"]
from specdec_course.block_figures import draw_costs

show(
    draw_costs({"one row": curves, "this course's layers, by rows": by_rows}),
    alt="Two plots of the time of a pass, in steps over one token, against the tokens per row. Left: "
    + "; ".join(f"{name} reaches {curve[9]:.1f} at 9 tokens" for name, curve in curves.items())
    + ". Right: "
    + "; ".join(f"{name} reaches {curve[9]:.1f} at 9 tokens" for name, curve in by_rows.items())
    + ".",
)

# %% [markdown]
# First the right-hand plot, and the question about 4 rows. A plain step of 4 rows is itself a pass over 4 tokens. So
# the jump from one token to several, if your device has one, is in $T_t$ already, and the curve may start flatter. What
# remains is arithmetic. It grows with every token, and once it is what the device waits for, six times the tokens take
# six times as long. Which of the two do you see?
#
# *Question.* Where does the stock curve jump on your machine, and how far? And why should it jump at all, if memory is
# what we wait for? (A machine that is busy with other things shows little of this. Close them and measure again.)
#
# With one row the library is asked for a matrix-**vector** product, which streams the weights once. From two rows on it
# is a matrix-**matrix** product, made for large matrices. It copies parts of its operands into a layout of its own
# before it multiplies. That copying is the likely reason, and for a handful of rows it does not pay. Take the reason as
# a guess, and what you measured as the fact.
#
# `specdec_ref/kernels.py` asks for the same numbers in another way: $W X^\top$ instead of $X W^\top$ for two to four
# rows, and from five rows on a product whose weights were put in order once, ahead of time. On processors with AVX-512
# that last product is the quickest for any number of rows, one included, and there our plain loop gains too. The line
# above names what is in use on yours. These limits come from measurements on a few processors. If the stock curve lies
# below ours somewhere, yours is another kind, and the lesson is the same: look at $T_v / T_t$ where you run.
#
# The results of both layers agree up to rounding:

# %%
torch.manual_seed(0)
x, layer = torch.randn(3, 576), torch.nn.Linear(576, 1536)
fast = copy.deepcopy(layer)
fast.__class__ = FastLinear
with torch.inference_mode():
    print("same numbers from both layers:", bool((layer(x) - fast(x)).abs().max() < 1e-4))

# %% [markdown]
# What is it worth? Leviathan et al. give the speedup of a round for $T_v = T_t$. With $T_v$ written out it is
#
# $$\frac{E \, T_t}{K\,T_d + T_v}, \qquad E = \frac{1-\alpha^{K+1}}{1-\alpha},$$
#
# with $T_d$ for a draft step and $\alpha$ for the chance that a judged draft is accepted. $E$ is the number of tokens a
# round emits: token $i+1$ is emitted if the first $i$ drafts all pass, so $E = 1 + \alpha + \dots + \alpha^K$.
# We change $T_v$ and nothing else.

# %%
alpha, K = 0.8, 5
emitted = sum(alpha**i for i in range(K + 1))
for cost in (1.0, 2.0):
    print(
        f"T_v = {cost:.0f} T_t, T_d = 0.1 T_t: {emitted:.2f} tokens a round, speedup {emitted / (K * 0.1 + cost):.2f}"
    )

# %% [markdown]
# The same drafts, the same accepted tokens, and most of the gain is gone. A kernel decides it. That is why $T_v / T_t$
# belongs in every report about speculative decoding, and why you measure it before you choose $K$.
#
# ## The same code on a GPU
#
# Nothing above names a device except by `target.device`. With CUDA present, `load_pair` puts the models there, and all
# cells of this notebook have just run on it. Two things are different on a GPU.
#
# **Spare arithmetic.** A GPU has far more of it, so curves like the ones above stay flat for longer. How much longer
# depends on the GPU, the model and the precision. We show only curves that were recorded by running there:

# %%
from specdec_course.pass_times import recorded

curves_elsewhere = recorded()
print("recorded curves of other devices:", ", ".join(report["device"] for report in curves_elsewhere) or "none so far")

# %% tags=["nbval-ignore-output"]
if curves_elsewhere:
    panels = {
        report["device"]: {f"B = {rows}": ratios(times) for rows, times in report["seconds"].items()}
        for report in curves_elsewhere
    }
    show(
        draw_costs({"this device": by_rows, **panels}),
        alt="Time of a pass in steps over one token, by tokens per row, on this device and on "
        + ", ".join(panels)
        + ".",
    )
else:
    print("Nothing is drawn here: no GPU has been at hand. On a machine with one, `specdec passes --record` adds it.")

# %% [markdown]
# **Waiting.** Python does not wait for a GPU. It queues work and runs ahead. But as soon as Python asks for a number,
# with `.item()`, `.tolist()`, `print` or an `if` on a tensor, it has to wait until the queue is empty. That is a
# *synchronisation*.
#
# *Question.* A loop asks "was this draft accepted?" for each of $K$ drafts in each of $B$ rows. How often does it wait
# in a round?
#
# $B \cdot K$ times, and $B$ times more for the next tokens. The verdict of stage 02 can be computed for all rows
# as tensors, and come to Python as one small packet. Our decoder counts each time it reads:

# %%
from specdec_ref import device as host
from specdec_ref.decode import speculate
from specdec_ref.sampling import GREEDY

story = encode("one two three one two three one two three one two")
before = host.host_reads
rounds = list(
    speculate(target, pair.drafter("ngram"), [story, story[1:]], GREEDY, num_draft_tokens=4, max_new_tokens=12)
)
print("reads from the device per round:", (host.host_reads - before) / len(rounds))

# %% [markdown]
# ## Recap
#
# - Position: the row's length plus the offset. Mask: every slot up to that position, and no other.
# - One pass over $1+K$ tokens gives the logits of $1+K$ passes, up to rounding.
# - Row $t$ judges draft $t+1$. With $a$ accepted, row $a$ gives the next token: a correction, or the bonus if $a = K$.
# - After the round the cache holds $n + a$ tokens. With a length per row the rollback is a subtraction. The draft model
#   is fed one token next, or two after full acceptance.
# - A zeroed key is not hidden. `[:-0]` is empty. Pad a block on the right. Caches belong to one call.
# - $T_v \approx T_t$ is a hope about hardware and kernels, not a law: measure it.
#
# ## Words
#
# **block**: the tokens of one pass, the last token of the text and the draft. **slot**: a place in the cache.
# **position**: a token's place in its text. **causal mask**: each token sees itself and what came before.
# **rollback**: taking refused tokens out of the cache. **ragged**: rows of different lengths. **synchronisation**:
# Python waiting for the device. **$T_v$, $T_t$**: seconds of a verification pass, and of a plain step.
#
# ## Further reading
#
# - Leviathan, Kalman, Matias 2023, *Fast Inference from Transformers via Speculative Decoding*, arXiv 2211.17192:
#   algorithm 1 and section 3 on what a round costs.
# - Chen et al. 2023, *Accelerating Large Language Model Decoding with Speculative Sampling*, arXiv 2302.01318:
#   why scoring a short block takes about as long as one token.
# - Pope et al. 2022, *Efficiently Scaling Transformer Inference*, arXiv 2211.05102: memory, arithmetic and batches.
# - The documentation of transformers on caches (`DynamicCache`, `crop`), and that of PyTorch on CUDA semantics
#   (asynchronous execution).
# - In this repository: `specdec_ref/cache.py`, `specdec_ref/model.py`, `specdec_ref/kernels.py`, in this order.
#
# ## What next?
#
# Open `exercises/03_batched_verification.ipynb` and build the pieces yourself: positions, mask, the verdict over a
# block, a cache with a length per row, and a whole verification round. Stage 04 then puts a draft model in front of it.
