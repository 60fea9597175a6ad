# %% [markdown]
# # Drafts with another tokenizer
#
# The best draft is a small sister of the target. What if there is none? There may be a small model that you trust, but
# from another family: with another tokenizer. Can it draft all the same?
#
# After this stage you can
#
# - say why draft and target are usually asked to share a tokenizer, and what goes wrong where they do not,
# - carry a text over from one tokenizer to the other, and a draft back, with look-behind windows,
# - keep half characters out of it,
# - say what q is for a re-encoded draft, and why,
# - draw drafts from the tokens that both have, with a q that keeps the text exact, and say what that costs,
# - use the same through transformers, and put both ways on one bill.
#
# Reading takes about 20 minutes. The exercises are in `exercises/10_other_tokenizers.ipynb`.
#
# | symbol | in code | meaning |
# |---|---|---|
# | p | `target_probs` | the target's law of the next token |
# | q | `draft_probs` | the law a draft token was really drawn from |
# | K | `num_draft_tokens` | tokens drafted in a round |
# | α | `alpha` | chance that a judged draft token is accepted |
#
# Our pair is uneven on purpose. The target is SmolLM2. The draft is `tiny-draft`, the course's own model for little
# stories. It is hundreds of times smaller, and its tokenizer is its own.

# %% [markdown]
# ## Why must both have one tokenizer?
#
# A draft is a list of numbers, the *ids* of tokens. The target compares them with what it would have said. What does a
# number mean to each of the two?

# %%
from specdec_ref.pairs import load_pair

smol, tiny = load_pair("smol"), load_pair("tiny")
theirs, own = smol.tokenizer, tiny.tokenizer  # the target's tokenizer, and the draft model's own
print(f"SmolLM2 has {len(theirs):,} tokens, tiny-draft {len(own):,}")
for token in (300, 500, 546, 1000, 1200):
    print(f"id {token:4}: {theirs.decode([token])!r:10} in SmolLM2, {own.decode([token])!r} in tiny-draft")
same = [i for i in range(len(own)) if theirs.convert_ids_to_tokens(i) == own.convert_ids_to_tokens(i)]
print("ids that mean the same in both:", len(same))

# %% [markdown]
# An id is a place in a list, and these are two lists. So what would the target read, if somebody handed it the draft's
# ids as they are?

# %%
sentence = " The hedgehog found a golden key near the river."
ids = own.encode(sentence, add_special_tokens=False)
print("the draft wrote:   ", repr(own.decode(ids)))
print("the target reads:  ", repr(theirs.decode(ids)))

# %% [markdown]
# Would a reader ever see this? No. The target checks every token, refuses the first one, and writes on by itself. The
# text would be right, and every draft for nothing: α is next to 0. As so often with drafts, **no test of the text can
# find this fault**.
#
# Is it enough that both vocabularies have the same *size*? No. Sizes such as 32,000 are round numbers that many
# tokenizers have. The lists must agree entry by entry, and a loader should compare them. (Ours does: `load_pair`
# refuses two models with different lists, and names the first token that differs.)
#
# ## What do two tokenizers have in common?
#
# Not the ids. Not the tokens. But whatever both of them cut is the same *text*. Here is one sentence, cut by each.

# %%
from specdec_ref.drafters.two_tokenizers import Bridge, Spelling

target, draft = Spelling(theirs), Spelling(own)  # what each token spells, in bytes


def cut(spelling, text):
    """The tokens of a text, as text."""
    return [spelling.bytes[token].decode() for token in spelling.encode(text.encode())]


for name, spelling in (("SmolLM2", target), ("tiny-draft", draft)):
    print(f"{name:10}", "|".join(cut(spelling, sentence)))

# %% tags=["nbval-ignore-output"]
from specdec_course.figures import show
from specdec_course.tokenizer_figures import Strip, common_starts, draw_restriction, draw_strips, plain_strip

strips = cut(target, sentence), cut(draft, sentence)
joints = common_starts(*strips)
show(
    draw_strips(
        [plain_strip("SmolLM2", strips[0]), plain_strip("tiny-draft", strips[1])], "One text, two strips", joints
    ),
    alt=f"The sentence as two strips of tokens over the same letters. SmolLM2: {' | '.join(strips[0])}. "
    f"tiny-draft: {' | '.join(strips[1])}. Dashed lines mark the letters at which a token of both begins.",
)

# %%
print(f"{len(strips[0])} tokens of SmolLM2, {len(strips[1])} of tiny-draft")
print("letters at which a token of both begins:", common_starts(*strips))

# %% [markdown]
# The two strips lie over the same letters. At some letters a token of both begins; there the strips can be cut and
# joined. Everything in this stage hangs on that: **count letters, not tokens, and never compare ids.**
#
# So here is the plan for one round:
#
# 1. the target's new tokens become text,
# 2. the text becomes tokens of the draft model,
# 3. the draft model writes on,
# 4. what it wrote becomes text, and the text tokens of the target,
# 5. the target verifies them, as always.
#
# Steps 1, 2 and 4 have a trap each.
#
# ## Half a character
#
# The first trap is in "becomes text". A token is a piece of *bytes*, and one character may be spread over several
# tokens. Stage 04 met this when it streamed text to a reader. Here the reader is a model.
#
# What if each new token is decoded by itself?

# %%
sample = target.encode("a naïve 🦊!".encode())
print("the tokens spell:", *(target.bytes[token] for token in sample))
alone = "".join(theirs.decode([token]) for token in sample)
print("decoded one by one:", repr(alone))
print("so the draft would read", len(draft.encode(alone.encode())), "tokens; right are", end=" ")
print(len(draft.encode(target.spell(sample))))

# %% [markdown]
# Each piece of a character became a **replacement mark**. The draft model would read marks that nobody wrote, and go on
# from there. The right way is to hold such bytes back until the others have come.
#
# `Bridge` is the reference's two-way bridge between the tokenizers. It is told the target's tokens, here one more each
# time. What does the draft model know after each?

# %%
bridge = Bridge(target, draft)
for n, token in enumerate(sample, 1):
    bridge.update(sample[:n])
    print(f"{target.bytes[token]!s:14} the draft knows {bridge.text.decode()!r:14} waiting: {bridge.pending!s}")

# %% [markdown]
# While something waits, the draft model does not know the end of the text. It may propose nothing, or a text whose
# first character begins with exactly these bytes.
#
# And bytes that can *never* become a character? A sampled model may write them. To wait for their rest is to wait for
# ever, and this text would never be drafted for again. They become the replacement mark at once:

# %%
bridge = Bridge(target, draft)
broken = [target.bytes.index(b"\xa6"), *target.encode(b" the fox")]
bridge.update(broken)
print("after the end of a character that never began:", repr(bridge.text.decode()), "waiting:", bridge.pending)

# %% [markdown]
# There is a second kind of token that is no text: **special tokens**, such as "end of text" or "now the user speaks".
# They are signals, and each model was trained on signals of its own. They spell nothing, so they do not cross the
# bridge. The draft model has its own: its texts begin with one.

# %%
tokens = theirs.encode("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False)
bridge = Bridge(target, draft)
bridge.update(tokens)
print("the target's tokens:", theirs.convert_ids_to_tokens(tokens))
print("the draft reads:    ", own.convert_ids_to_tokens(bridge.ids))

# %% [markdown]
# Look at the price: "user" and "assistant" arrive as bare words. The draft model was never told who speaks. A draft may
# be as confused as it likes, but it will guess the worse for it.
#
# A draft never contains the target's end-of-text token either. It is not text, so the bridge cannot bring it back. The
# target writes it by itself, as a correction or bonus.
#
# ## Bringing the text over
#
# The second trap is in "text becomes tokens of the draft model". How a word is cut depends on what stands before it.
#
# SmolLM2 writes a hedgehog in two tokens, tiny-draft reads it as one. Say the target's text grew by one token each
# round. Suppose we encode only what is new, each time. What does the draft model get to read?


# %%
def crossing(tokens, lookbehind):
    """The text in the draft's tokens, where the target's tokens came one by one; no look-behind is 0."""
    if lookbehind == 0:
        return [token for one in tokens for token in draft.encode(target.bytes[one])]
    bridge = Bridge(target, draft, target_lookbehind=lookbehind)
    for n in range(1, len(tokens) + 1):
        bridge.update(tokens[:n])
    return bridge.ids[len(draft.prefix) :]


def said(tokens):
    return "|".join(draft.bytes[token].decode() for token in tokens)


hedgehog = target.encode(b" Once there was a hedgehog.")
print("the target wrote:       ", "|".join(target.bytes[token].decode() for token in hedgehog))
for lookbehind in (0, 1, 10):
    print(f"with look-behind {lookbehind:2}:     ", said(crossing(hedgehog, lookbehind)))

# %% [markdown]
# Without look-behind the draft model reads " hedge" and "hog". The letters are right. But it has been trained on texts
# with the word in one piece. Does it mind? Ask it: how surprised is it by the same story, cut in two ways? (The story
# is one that `tiny-target` wrote.)

# %%
import torch

from specdec_ref.decode import collect, generate
from specdec_ref.sampling import GREEDY

opening = own.encode("Once upon a time there was a stubborn hedgehog named Olga.")
written = collect(generate(tiny.target, [opening], GREEDY, max_new_tokens=90))[0]
story = own.decode([*opening, *written], skip_special_tokens=True)
story_ids = target.encode(story.encode())


def surprise(tokens):
    """-log of the probability that tiny-draft gives a text, in nats."""
    ids = torch.tensor([[*draft.prefix, *tokens]])
    laws = tiny.draft.fresh(1).extend(ids)[0, :-1].log_softmax(-1)
    return -float(laws.gather(1, ids[0, 1:, None]).sum())


print("the story:", story[:76], "...")
for lookbehind in (0, 1, 10):
    tokens = crossing(story_ids, lookbehind)
    print(f"look-behind {lookbehind:2}: {len(tokens)} tokens of the draft, {surprise(tokens):.0f} nats")
print(f"cut at once:    {len(draft.encode(story.encode()))} tokens")

# %% [markdown]
# Same letters, worse guesses: twice the surprise. Where a word was cut oddly, the draft model is at a loss.
#
# The remedy: **encode a few tokens again**, those just before the new text. transformers calls their number
# `target_lookbehind`; 10 is its default and ours. Then join the result to what the draft model has read already. But
# where? Look at one step.


# %%
def step_over(tokens, before, lookbehind):
    """One update of a bridge: the old strip, the window encoded again, the new strip, and where the window begins."""
    bridge = Bridge(target, draft, target_lookbehind=lookbehind)
    bridge.update(tokens[:before])
    old = [draft.bytes[token].decode() for token in bridge.ids[len(draft.prefix) :]]
    begin = bridge.target_starts[max(before - lookbehind, 0)]
    bridge.update(tokens)
    new = [draft.bytes[token].decode() for token in bridge.ids[len(draft.prefix) :]]
    return old, cut(draft, bridge.text.decode()[begin:]), new, begin


words = target.encode(b" Tom saw a hedgehog")
old, again, new, begin = step_over(words, before=len(words) - 1, lookbehind=2)
print("the draft has read:  ", "|".join(old))
print("encoded again:       ", "|".join(again), f"- from letter {begin}")
print("joined:              ", "|".join(new))

# %% tags=["nbval-ignore-output"]
kept = len(new) - len(again)
show(
    draw_strips(
        [
            Strip(
                "target",
                [(target.bytes[t].decode(), "again") for t in words[:-1][-2:]]
                + [(target.bytes[words[-1]].decode(), "new")],
                begin,
            ),
            Strip("draft, before", [(one, "kept" if i < kept else "dropped") for i, one in enumerate(old)]),
            Strip("encoded again", [(one, "again") for one in again], begin),
            Strip("draft, after", [(one, "kept" if i < kept else "new") for i, one in enumerate(new)]),
        ],
        "The window is encoded again, and joined where a token of both begins",
        [begin],
    ),
    alt=f"Four strips over the same letters. The target's window of two tokens and its new token begin at letter "
    f"{begin}. The draft had read {' | '.join(old)}. Encoded again: {' | '.join(again)}. At letter {begin} a token of "
    f"both begins, so the old strip is kept up to there and followed by the new one: {' | '.join(new)}.",
)

# %% [markdown]
# The old strip is kept up to the first letter at which a token of both begins. From there on the new one counts. The
# draft's cache forgets the dropped tokens: a rollback, as after a refusal.
#
# Why not simply at the place where the window begins? Because the window is counted in the *target's* tokens. It may
# begin in the middle of one of the draft's. Then the first tokens of the window are cut by an accident, and the join
# must wait for the next letter that both agree on.
#
# Is a window of one enough? For the hedgehog it was. For a word that the target writes in many pieces it is not. Rare
# words are like that, and names, and numbers. Let us force it, letter by letter:

# %%
letters = [target.bytes.index(letter.encode()) for letter in " squirrel"]
for lookbehind in (1, 2, 4, 10):
    print(f"look-behind {lookbehind:2}: {said(crossing(letters, lookbehind))}")

# %% [markdown]
# A window must reach back to the beginning of the word. **A look-behind that is too short costs acceptance, never the
# text.** And one that is longer than needed costs a few microseconds for a longer string. So do not save here.
#
# ## And back: the draft's words in the target's tokens
#
# Now the way back, step 4. The draft model wrote some words. The target's text stands as it is: it is committed. Which
# tokens of the target come *after* it?
#
# Again the end of the text is encoded together with what is new. transformers calls this window `assistant_lookbehind`.
# The place where the text ends is the border. The tokens from the border on are the draft. Two cases:

# %%
for text, words in ((" He saw a hedge", "hog in"), (" They ran to the gar", "den again")):
    bridge = Bridge(target, draft)
    bridge.update(target.encode(text.encode()))
    drafted = bridge.translate(draft.encode(words.encode()))
    together = "|".join(cut(target, text + words))
    proposed = [target.bytes[token].decode() for token in drafted]
    print(f"{text!r} + {words!r}: together {together!r}, draft {proposed}")

# %% [markdown]
# In the first case a token begins at the border. Everything from there on is drafted.
#
# In the second, " garden" is one token, and it lies *across* the border. It cannot be drafted: half of it is in the
# text already. What can be done? Either propose nothing, or encode the rest alone. The reference does the latter where
# it is safe. It is a guess at what the target would say after an unusual beginning.
#
# **Question.** In the first case, would the rest be cut in the same way without any window? Let us count, over every
# border in the story.

# %%
borders = agree = 0
for place in range(1, len(story)):
    together = target.encode(story.encode())
    starts = target.starts(together, 0)
    if place in starts:
        borders += 1
        agree += target.encode(story[place:].encode()) == together[starts.index(place) :]
print(f"borders where a token begins: {borders}; the rest alone is cut the same: {agree}")

# %% [markdown]
# Always the same. For byte-level BPE this is no accident: it merges neighbours, and where no token crossed the border
# no merge did. The left side had no say. (The rules that split a text into words before that look at neighbours too, so
# there may be rare exceptions.)
#
# So why look behind on this side at all? First, because one must know *whether* a token lies across. Second, because
# half characters are completed that way. And third, because not every tokenizer is so kind. Llama 2's and others of the
# SentencePiece kind take the beginning of a string for the beginning of a word and put a space there. To them "hog"
# alone is " hog", another word. The window cures that.
#
# ### What must match?
#
# We joined at letters. There is another way, and transformers uses it: look for the longest run of equal tokens in the
# text and in the window as it is now, and take what follows the run. It is simple and needs no byte counting. When does
# it go wrong?


# %%
def after_longest_run(before, joined):
    """What follows in `joined` after its longest run of tokens that also stands in `before`."""
    best, i_best, j_best = 0, 0, 0
    for i in range(len(joined)):
        for j in range(len(before)):
            run = 0
            while i + run < len(joined) and j + run < len(before) and joined[i + run] == before[j + run]:
                run += 1
            if run > best:
                best, i_best, j_best = run, i, j
    return joined[i_best + best + len(before) - j_best - best :]


text, words = " They ran to the gar", "den. They ran to the gar and sat."
before = [target.bytes[token].decode() for token in target.encode(text.encode())]
print("the text:          ", "|".join(before))
print("with the draft:    ", "|".join(cut(target, text + words)))
print("after longest run: ", "|".join(after_longest_run(before, cut(target, text + words))))
bridge = Bridge(target, draft)
bridge.update(target.encode(text.encode()))
drafted = bridge.translate(draft.encode(words.encode()))
print("by bytes:          ", "|".join(target.bytes[token].decode() for token in drafted))

# %% [markdown]
# The draft repeats what stands before it, and the last token of the text was merged away. So the longest run lies
# *inside the draft*, and the words between are lost. Where no token matches at all, that code even drafts the whole
# window once more. The target refuses such drafts, so the text stays right. Only time is lost. Bytes need no search:
# the border is a number.
#
# ## What is q?
#
# The target is about to judge the draft. While it samples, the rule of stage 02 asks: which law was this token drawn
# from?
#
# The draft model has laws, but over *its* tokens. One text can be spelled by many sequences of them: the probability
# that it writes a given word is a sum over all of these. And what we want is even another thing, the law of a token of
# the *target*. Nobody computed that law, and nobody can afford to.
#
# There is a way out. If the draft is chosen without luck, nothing was drawn, and q is known after all: it is a **point
# mass**, 1 on the drafted token. So the draft model writes *greedily*, and each token x passes with chance p(x). A
# refused one is replaced by a draw from p without x. (Copied drafts are judged in the same way.)
#
# Does the text follow p, then? Count, as in stage 02. The draft always proposes the tokens 2, 3; beside it stands
# somebody who takes for q what the draft model said of its own tokens, say .6.

# %%
from specdec_ref.law import Drafts, fixed_draft, path_probs, sampled_drafts, speculative_law, target_law

table = (1.5 * torch.randn(5, 5, 5, generator=torch.Generator().manual_seed(10), dtype=torch.float64)).softmax(-1)
wanted = target_law(table, (0, 1), 3)  # the law of the next three tokens, [5, 5, 5]


def deviation(drafter, rounds=2):
    """The largest error of the law of three tokens, over all 125 texts."""
    return float((speculative_law(table, drafter, (0, 1), 3, rounds) - wanted).abs().max())


def believed(text):
    """The same draft, and a q that nothing was drawn from."""
    certain = fixed_draft((2, 3))
    q = torch.full((1, 2, 5), 0.1, dtype=torch.float64)
    q[0, 0, 2] = q[0, 1, 3] = 0.6
    return Drafts(certain.tokens, certain.weights, q)


exact = deviation(lambda text: fixed_draft((2, 3)))
print("point mass: exact to 1e-12:", exact < 1e-12)
print(f"an invented q: off by {deviation(believed):.3f}")

# %% [markdown]
# Among choices without luck, greedy is also the best one: a draft token passes with chance p(x), so the likeliest token
# is the best guess.
#
# ## Only what both can say
#
# Must sampling be lost? There is a second way. Many tokens stand in *both* lists, spelled the same. How many?

# %%
sharing = smol.drafter("shared-tokens")
pairs = sharing.shared.tolist()  # the id of each shared token, on both sides
print(f"{len(pairs)} of the {len(own):,} tokens of tiny-draft are tokens of SmolLM2 as well")
print("with the same id:", sum(mine == theirs_id for mine, theirs_id in pairs))
only_draft = sorted(set(range(len(own))) - {mine for mine, _ in pairs})
longest = sorted(only_draft, key=lambda token: (-len(draft.bytes[token]), token))[:8]
print("not shared, for example:", [draft.bytes[token].decode() for token in longest])
print("special, so not shared:", [own.convert_ids_to_tokens(token) for token in only_draft if not draft.bytes[token]])

# %% [markdown]
# Let the draft model draw among the shared tokens *only*. Then every draft token is one token on both sides, and its
# law is known:
#
# > q(x) = d(x) / Σ d over the shared tokens, for a shared token x, and 0 for all others,
#
# where d is the draft model's own law. Three steps: **restrict** to what is shared, **scale** so that it sums to one,
# and **write it down at the target's ids**. Then everything of stage 02 applies: this q is what the token was really
# drawn from.
#
# Let us do it with five words that the target knows and one that only the draft has.

# %%
words = [" fox", " owl", " wombat", " bear", " sat", " hedgehog"]
p = torch.tensor([0.35, 0.25, 0.05, 0.15, 0.20, 0.0], dtype=torch.float64)  # the target lacks " hedgehog"
d = torch.tensor([0.25, 0.20, 0.0, 0.05, 0.10, 0.40], dtype=torch.float64)  # the draft model lacks " wombat"
shared = torch.tensor([True, True, False, True, True, False])
q = torch.where(shared, d, 0.0)
q = q / q.sum()
print("mass of d outside: ", round(float(d[~shared].sum()), 2))
print("q:                 ", [round(float(x), 3) for x in q])
print("alpha, sum min(p, q):", round(float(torch.minimum(p, q).sum()), 3))
print("the most it can be, p on the shared tokens:", round(float(p[shared].sum()), 3))

# %% tags=["nbval-ignore-output"]
of_draft = [None if word == " wombat" else chance for word, chance in zip(words, d.tolist(), strict=True)]
show(
    draw_restriction(words, p.tolist(), of_draft),
    alt="Bars over six words. Four words are shared; wombat is the target's alone, hedgehog the draft's alone. The "
    "draft's own law has .40 on hedgehog. q is the draft's law on the four shared words, divided by .60: "
    + ", ".join(f"{word.strip()} {float(x):.2f}" for word, x in zip(words, q, strict=True))
    + ".",
)

# %% [markdown]
# Two prices are paid. What the *draft* would have said with tokens of its own is spread over others: here 40 % of its
# opinion. And what the *target* says with tokens that the draft lacks can never be drafted:
#
# $$\alpha = \sum_x \min(p(x), q(x)) \le \sum_{x \text{ shared}} p(x)$$
#
# But nothing is lost to the text. The wombat appears exactly as often as the target wants: as a correction or a bonus.
#
# Is it exact? Count again, with a draft model of six tokens of which three are shared, drafting two tokens. What it has
# read is the text in *its* tokens. And beside it stand two who got a step wrong: one who does not scale, and one who
# takes the draft's ids for the target's.

# %%
foreign = (1.5 * torch.randn(6, 6, 6, generator=torch.Generator().manual_seed(11), dtype=torch.float64)).softmax(-1)
to_draft = {0: 1, 2: 4, 3: 5}  # the target's id -> the draft's id of the same token
as_read = torch.tensor([to_draft.get(token, 0) for token in range(5)])  # a token it lacks is read as something else
raw = torch.zeros(5, 5, 5, dtype=torch.float64)
raw[:, :, list(to_draft)] = foreign[as_read][:, as_read][:, :, list(to_draft.values())]
scaled = raw / raw.sum(-1, keepdim=True)


def told(told_q):
    """Draw from the shared tokens, and tell the verifier another q."""

    def drafter(text):
        drawn = sampled_drafts(scaled, text, 2)
        return Drafts(drawn.tokens, drawn.weights, path_probs(told_q, text, drawn.tokens)[:, :2])

    return drafter


misplaced = foreign[as_read][:, as_read][:, :, :5]  # the draft's ids 0 to 4, read as the target's
print("restricted, scaled, at the target's ids: exact to 1e-12:", deviation(told(scaled)) < 1e-12)
print(f"not scaled: off by {deviation(told(raw)):.3f}")
print(f"draft ids taken for target ids: off by {deviation(told(misplaced)):.3f}")

# %% [markdown]
# Without scaling, q is too small, p / q too large, and drafts pass too often. The text leans towards the draft.
#
# One case is left: the shared tokens may have *no* mass at all. Then the sum is 0 and nothing can be drawn. So nothing
# is drafted in this round.
#
# ## How much is lost on the bridge?
#
# A refused draft has one of two causes. The models disagree, or the bridge lost something. To see the bridge alone,
# take two models that agree about everything: both know the story from above *by heart*, each in its own tokens. (They
# are made, not trained: after n tokens comes the next one of the text.) With one tokenizer, no draft would ever be
# refused. And here?

# %%
from specdec_course.by_heart import by_heart_lm
from specdec_ref.decode import speculate
from specdec_ref.drafters import ReencodingDrafter, SharedTokensDrafter
from specdec_ref.measure import Run

teller = by_heart_lm(story_ids, len(theirs))
pupil = by_heart_lm([*draft.prefix, *draft.encode(story.encode())], len(own))
start = story_ids[:12]
for kind in (ReencodingDrafter, SharedTokensDrafter):
    drafter, budget = kind(pupil, own, theirs), len(story_ids) - len(start)
    run = Run(list(speculate(teller, drafter, [start], GREEDY, num_draft_tokens=4, max_new_tokens=budget)))
    drafted = sum(result.num_drafted[0] for result in run.rounds)
    accepted = sum(result.num_accepted[0] for result in run.rounds)
    same = [*start, *collect(run.rounds)[0]] == story_ids
    print(f"{kind.__name__}: {accepted} of {drafted} drafts accepted,", end=" ")
    print(f"{run.emitted_per_round:.2f} tokens a round, the same text: {same}")
    so_far = list(start)
    for result in run.rounds:
        if result.num_accepted[0] < result.num_drafted[0]:
            refused = target.bytes[result.drafts[0][result.num_accepted[0]]].decode()
            print(f"   after {target.spell(so_far[-4:]).decode()!r}: {refused!r} was refused")
        so_far += result.tokens[0]

# %% [markdown]
# Both work, and what they lose has a reason. Look at the places that end in " Ol". The target writes the name in two
# tokens, and the text happens to end between them. The pupil has learnt it in one piece. With half a name it has lost
# its place, until the other half is there. (A trained model is more forgiving, but half a name is no help to it.)
#
# The first drafter meets this once: the prompt ends there. The second makes such places by itself. " Olga" is no token
# of the target, so it cannot be drafted. The pupil says something else, the target writes " Ol", and the text ends in
# the middle of the name.
#
# ## The real pair
#
# Now models that have opinions. How much of these lies outside of the shared tokens? SmolLM2 continues a story. At each
# place we ask both models for their laws, at temperature 1: the target after its own tokens, the draft model after the
# same text in its own.

# %%
story_prompt = theirs.encode("Once upon a time there was a brave little hedgehog named Tom. One sunny morning")
plain = collect(generate(smol.target, [story_prompt], GREEDY, max_new_tokens=24))[0]
print("SmolLM2 writes:", theirs.decode(plain))

lm = smol.target.fresh(1)
lm.prefill([story_prompt[:-1]])
p = lm.extend(torch.tensor([[story_prompt[-1], *plain[:-1]]], device=lm.device))[0].softmax(-1).cpu()  # [24, V]
shared_ids = sharing.shared.cpu()
inside_p = inside_d = overlap = 0.0
for place in range(len(plain)):
    bridge = Bridge(target, draft)
    bridge.update([*story_prompt, *plain[:place]])
    d = tiny.draft.fresh(1).extend(torch.tensor([bridge.ids], device=lm.device))[0, -1].softmax(-1).cpu()
    mass = d[shared_ids[:, 0]]
    inside_p += float(p[place, shared_ids[:, 1]].sum()) / len(plain)
    inside_d += float(mass.sum()) / len(plain)
    overlap += float(torch.minimum(p[place, shared_ids[:, 1]], mass / mass.sum()).sum()) / len(plain)
print(f"mass of the target's law on shared tokens:      {inside_p:.2f}")
print(f"mass of the draft model's law on shared tokens: {inside_d:.2f}")
print(f"alpha at temperature 1:                         {overlap:.2f}")

# %% [markdown]
# Read the three numbers from above. The first is the ceiling that the vocabularies set: a third of what SmolLM2 wants
# to say is in tokens that tiny-draft lacks. The second says how much of its opinion the draft model may utter: nearly
# all. The third is what is left once the two models have to *agree*. The largest loss is not in the tokenizers. It is
# in the models: one knows the world, the other knows little stories about hedgehogs.
#
# Now both drafters write with SmolLM2, greedily.

# %%
runs = {}
for name in ("other-tokenizer", "shared-tokens"):
    rounds = speculate(smol.target, smol.drafter(name), [story_prompt], GREEDY, num_draft_tokens=4, max_new_tokens=24)
    runs[name] = run = Run(list(rounds))
    drafted = sum(result.num_drafted[0] for result in run.rounds)
    accepted = sum(result.num_accepted[0] for result in run.rounds)
    print(f"{name:16} {len(run.rounds)} rounds, {accepted} of {drafted} drafts accepted,", end=" ")
    print("the same text:", collect(run.rounds)[0] == plain)

# %%
for result in runs["other-tokenizer"].rounds[:6]:
    drafted, text = theirs.decode(result.drafts[0]), theirs.decode(result.tokens[0])
    print(f"drafted {drafted!r:32} accepted {result.num_accepted[0]}, the text gets {text!r}")

# %% [markdown]
# ## How an engine offers this
#
# transformers has it since version 4.46, under the name *universal assisted generation*. Without tokenizers it refuses
# such a pair:

# %%
import copy

import transformers

transformers.logging.set_verbosity_error()  # the library would warn about its own arguments
assistant = copy.copy(tiny.draft.model)  # the same weights, settings of its own
assistant.generation_config = copy.deepcopy(assistant.generation_config)
assistant.generation_config.update(
    num_assistant_tokens=4, num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0
)
ids = torch.tensor([story_prompt], device=smol.target.device)
common = {
    "attention_mask": torch.ones_like(ids),
    "assistant_model": assistant,
    "do_sample": False,
    "max_new_tokens": 24,
    "eos_token_id": list(smol.eos_token_ids),
}
try:
    smol.target.model.generate(ids, **common)
except ValueError as error:
    print(str(error).partition(" Please")[0])

# %% [markdown]
# Beware: it compares the *sizes* of the vocabularies. Of two models with equally many tokens it believes that they
# share a tokenizer, and takes ids for ids.
#
# With both tokenizers it works. Greedy calls re-encode the text; sampled calls (`do_sample=True`) take the shared
# tokens, as of version 4.50. Which of the two it does is not a setting: it follows from `do_sample`. Do we write the
# same?

# %% tags=["nbval-ignore-output"]
import time

ended_by = set()
run_assistant = assistant.generate


def watched(*arguments, **settings):
    """The assistant's `generate`, with a note of the ids that end its drafts."""
    ended_by.update(settings["generation_config"].eos_token_id)
    return run_assistant(*arguments, **settings)


assistant.generate = watched
start = time.perf_counter()
theirs_text = smol.target.model.generate(ids, tokenizer=theirs, assistant_tokenizer=own, **common)
theirs_text = theirs_text[0, len(story_prompt) :].tolist()
print(f"transformers, universal assisted generation: {len(plain) / (time.perf_counter() - start):.1f} tokens/s")
ways = {"specdec_ref, plain": lambda: generate(smol.target, [story_prompt], GREEDY, max_new_tokens=24)}
for name in runs:
    ways[f"specdec_ref, {name}"] = lambda name=name: speculate(
        smol.target, smol.drafter(name), [story_prompt], GREEDY, num_draft_tokens=4, max_new_tokens=24
    )
for name, way in ways.items():
    start = time.perf_counter()
    collect(way())
    print(f"{name}: {len(plain) / (time.perf_counter() - start):.1f} tokens/s, prompt included")

# %%
print("the same tokens from transformers:", theirs_text == plain)
print("its drafts end at the ids", sorted(ended_by), "- for tiny-draft that is", repr(own.decode(sorted(ended_by))))
print("the id that ends tiny-draft's own texts:", own.eos_token_id)

# %% [markdown]
# Equal texts, by two programs that share no decoding code.
#
# The last two lines show how easily ids slip across. In the version that this course is built with, the draft model is
# told to stop at the *target's* end-of-text id. In its own list that number is something else. Again nothing is wrong
# with the text; some drafts just end early, and others run on past the end of the draft model's text. **Whenever an id
# crosses from one model to the other, ask whose id it is**: end of text, padding, forbidden words, the history of a
# repetition penalty.
#
# ## The bill of a round
#
# What does a round cost here? There are four items: the draft model's steps, the bridge (encoding a few words, on the
# processor), the pass of the target, and what the draft model takes in memory. It was trained already, for something
# else: that is the point of the method.

# %% tags=["nbval-ignore-output"]
from specdec_course.method_figures import draw_methods, measured_here, recorded

print(measured_here(smol, ["other-tokenizer", "shared-tokens"]))

# %% [markdown]
# That was this machine, just now, on a few prompts. The next table is from the course's recorded run, over all prompts
# of its suites, beside a draft model that shares the tokenizer.

# %% tags=["nbval-ignore-output"]
print(recorded(["model", "ngram", "other-tokenizer", "shared-tokens"]))

# %% tags=["nbval-ignore-output"]
strangers = ["other-tokenizer", "shared-tokens"]
figure, alt = draw_methods(["ngram", "model", *strangers], new=strangers)
show(figure, alt=alt)

# %% [markdown]
# Bars below 1 are losses, and they stay in the figure. Read the reason from the bill. A draft step of so small a model
# is cheap, and so is the pass over a few more tokens. But a round brings hardly more than the one token that plain
# decoding brings too, so there is nothing to pay even the small costs with. It is the *acceptance*. `smol-draft` shares
# the tokenizer, and above all it was trained on what *this* target writes. Even a copied n-gram knows more about the
# text at hand than a model that was trained on something else.
#
# Does the bridge itself cost anything worth speaking of? Time one round of it, beside a plain step of the target.

# %% tags=["nbval-ignore-output"]
from specdec_ref.measure import time_passes

bridge, text = Bridge(target, draft), [*story_prompt, *plain]
bridge.update(story_prompt)
guess = draft.encode(b" he walked to the river and")
start = time.perf_counter()
for n in range(1, len(plain) + 1):
    bridge.update(text[: len(story_prompt) + n])
    bridge.translate(guess)
bridge_s = (time.perf_counter() - start) / len(plain)
step_s = time_passes(smol.target, [1], context=len(text), repeats=5)[1]
print(f"the bridge, over and back: {1e3 * bridge_s:.2f} ms; a plain step of the target: {1e3 * step_s:.0f} ms")

# %% [markdown]
# ## What others report
#
# The authors of the two ways measured large pairs on GPUs. Their numbers, as they state them:

# %%
reports = [
    ("re-encoded text", "Hugging Face and Intel Labs 2024, their announcement", "1.5 to 2.0 times"),
    ("three ways, shared tokens among them", "Timor et al. 2025, arXiv 2502.05202", "up to 2.8 times"),
]
for way, source, stated in reports:
    print(f"{way:<38}| {source:<54}| {stated}")

# %% [markdown]
# Other models, other machines, other tasks: no promise for yours. In all of them the draft model was a capable one for
# the task. Our draft knows little stories, and that is what decides here.
#
# So when is this way the right one? Where there is no small sister, and there *is* a small model that is good at the
# same kind of text. Distilling a draft with the target's own tokenizer costs a training run, and its drafts are likely
# to be accepted more often. Try the stranger first: it costs nothing but an experiment.
#
# ## Recap
#
# - Ids of two tokenizers mean nothing to one another. What both spell is the same text: count letters (bytes).
# - Half a character is held back. Bytes that can never be one are not waited for. Special tokens do not cross.
# - New text is encoded together with a window before it, and joined at the first letter where a token of both begins.
#   A look-behind that is too short costs acceptance.
# - On the way back, only tokens that begin at the border are drafted. The window is never drafted again.
# - A re-encoded draft has no law: it is chosen greedily, and q is a point mass.
# - A draft from the shared tokens has q = its law on them, scaled, at the target's ids. That is exact, and α is at most
#   the target's mass on these tokens.
# - Every fault on the draft's side costs time only, so no test of the text finds it. Watch α.
#
# ## Further reading
#
# - Timor et al. 2025, "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous
#   Vocabularies" (arXiv 2502.05202): section 3 on text, algorithm 4 on the intersection of vocabularies.
# - Hugging Face and Intel Labs 2024, "Universal Assisted Generation: Faster Decoding with Any Assistant Model".
# - The transformers documentation on universal assisted decoding; its code is `candidate_generator.py`.
# - Sennrich, Haddow and Birch 2016, "Neural Machine Translation of Rare Words with Subword Units" (arXiv 1508.07909):
#   byte pair encoding.
# - In this repository: `specdec_ref/drafters/two_tokenizers.py` and `other_tokenizer.py`.
#
# ## Glossary
#
# - **Tokenizer**: cuts text into tokens and gives each an id. **Vocabulary**: its list of tokens.
# - **Byte-level**: every byte is a token, so every text can be cut. **BPE**: tokens are made by merging neighbours.
# - **Re-encode**: text of one tokenizer's tokens, cut by another one.
# - **Look-behind, window**: the tokens before the new text that are encoded again with it.
# - **Border**: where the committed text ends. **Join**: where old and new tokens are put together.
# - **Replacement mark**: �, what a decoder shows for bytes that are no character.
# - **Special token**: a signal such as "end of text"; it spells nothing.
# - **Point mass**: a law with 1 on one token. **Shared tokens**: those that two vocabularies spell the same.
# - **Restrict**: keep a law's probabilities on some tokens, and scale them to sum to one.
#
# ## What next?
#
# Open `exercises/10_other_tokenizers.ipynb`. You write the bridge in both directions, and the law on the shared tokens.
# At its end your functions let a model of little stories draft for SmolLM2.
