# %% [markdown]
# # Drafting without a second model
#
# A draft model must be found or trained. It takes memory, and each of its K steps is on the bill. Do we need one?
#
# In this stage you will
#
# - let the *text* draft for itself: copy what followed the same words before,
# - judge a copy exactly when the target samples, though nobody drew it from any law,
# - see, token by token, where repetition wins and where it loses,
# - let the *target* draft for itself, with some of its layers left out,
# - learn why a draft may end early, and for which reasons it must not,
# - compute from the bill why layer skipping loses on a small model, before measuring that it does.
#
# Reading takes about 20 minutes. The exercises are in `exercises/06_no_second_model.ipynb`.
#
# | symbol | in code | meaning |
# |---|---|---|
# | p | `target_probs` | the target's law of the next token |
# | q | `draft_probs` | the law a draft token was really drawn from |
# | K | `num_draft_tokens` | the most tokens drafted in a round |
# | n | `max_ngram`, `min_ngram` | how many tokens must match before something is copied |
# | α | `alpha` | chance that a *judged* draft token is accepted |

# %% [markdown]
# ## The text drafts for itself
#
# Somebody writes: *the cat sat on the mat. the dog sat on the …* What comes next? You need no language model for a
# guess. These words stood here before, and you can look up how it went on then.
#
# That is the whole method: take the last n tokens, find them earlier in the text, and copy what followed. The text may
# be the prompt or what the target has written since. Where do the last tokens stand?

# %%
text = ["the", "cat", "sat", "on", "the", "mat", ".", "the", "dog", "sat", "on", "the"]
for n in (4, 3, 2, 1):
    suffix = text[-n:]
    places = [place for place in range(len(text) - n) if text[place : place + n] == suffix]
    follows = [text[place + n] for place in places]
    print(f"the last {n}: {' '.join(suffix):<16} stand earlier at {places}, followed by {follows}")

# %% [markdown]
# Four tokens were never seen together. Three were, once. One was, three times, and each time something else followed.
# So there are three decisions.
#
# - **Which n?** The largest that matches. "the" says little about the next word, "sat on the" says more.
# - **Which place, if there are several?** The newest. What a text said last is the better guess: a variable that was
#   renamed, a list that goes on.
# - **What counts as earlier?** Every place but the end itself. There the last n tokens always stand, and nothing
#   follows them. In the cell above it is `range(len(text) - n)` that leaves this one place out.
#
# The reference does the same with an index, of which more below. It proposes up to four tokens:

# %%
from specdec_ref.drafters.ngram import SuffixIndex

draft = SuffixIndex(max_ngram=3, min_ngram=1).continuation(text, limit=4)
print("proposed:", draft)

# %% tags=["nbval-ignore-output"]
from specdec_course import lookup_figures as figures
from specdec_course.figures import show

show(
    figures.draw_match(text, match=range(2, 5), suffix=range(9, 12), source=range(5, 9), draft=draft),
    alt="The text as a row of boxes: the cat sat on the mat . the dog sat on the. The last three, sat on the, are "
    "marked, and so are the same three words earlier. The four words that followed there, mat . the dog, are copied "
    "behind the text as the draft.",
)

# %% [markdown]
# The copy is cheap: no pass, no weights, no training. And it is blind. "mat" may be wrong, and the target will say so.
#
# May a match *overlap* the suffix? Take *ha ha ha*. The last two tokens stand at place 1, and also at place 0: these
# two share the middle token. Nothing is wrong with that, and for a text that has begun to repeat itself it is the best
# match there is.

# %%
for words in ("ha ha ha", "a b a b a b a", "x"):
    some = words.split()
    print(f"{words!r}: proposed {SuffixIndex(max_ngram=3, min_ngram=1).continuation(some, limit=4)}")

# %% [markdown]
# A text of a single token has no earlier place, at any n. The answer is an empty draft, not an error.
#
# *ha ha ha* shows a price of "newest": close to the end few tokens are left to copy. One may take an older place there,
# with more tokens behind it. That is a matter of speed alone; any copy is a fair guess, as the next sections show.
#
# ## What if nothing matches?
#
# Then there is nothing to propose. Some implementations propose *something* all the same, a dummy token such as id 0,
# "so that the pass is not wasted". Is it wrong? Is it free? `tiny-target` writes two stories, and we count.

# %%
import torch

from specdec_course.demo import encode_prompt
from specdec_ref.decode import collect, generate, speculate
from specdec_ref.drafters import Draft, NgramDrafter
from specdec_ref.pairs import load_pair
from specdec_ref.sampling import GREEDY

tiny = load_pair("tiny")
beginnings = ("Once upon a time there was a shy fox named Tom.", "One windy morning Mia walked to the market.")
openings = [encode_prompt(tiny, words) for words in beginnings]


class WithDummy(NgramDrafter):
    """Proposes token 0 where nothing was found."""

    def propose(self, rows, limits):
        draft = super().propose(rows, limits)
        if draft.width == 0 and limits[0] > 0:
            return Draft(torch.zeros(1, 1, dtype=torch.int64, device=rows.device), torch.tensor([1]))
        return draft


stories = []
for opening in openings:
    plain = collect(generate(tiny.target, [opening], GREEDY, max_new_tokens=64))
    stories.append((opening, plain[0]))
    for name, drafter in (("an empty draft", NgramDrafter()), ("a dummy token ", WithDummy())):
        rounds = list(speculate(tiny.target, drafter, [opening], GREEDY, num_draft_tokens=4, max_new_tokens=64))
        drafted, accepted = (sum(sum(getattr(one, what)) for one in rounds) for what in ("num_drafted", "num_accepted"))
        print(f"{name}: {len(rounds)} rounds, {drafted} drafted, {accepted} accepted,", end=" ")
        print(f"the target read {len(rounds) + drafted} tokens, text as plain: {collect(rounds) == plain}")

# %% [markdown]
# The text stays right: the target checks every token, so a bad guess costs time and never quality. But the dummies made
# the target read more tokens for the same number of rounds. A pass over two tokens is dearer than one over a single
# token (stage 03: on many machines the *first* further token costs most). With an empty draft the round is a plain
# step, at a plain step's price. So: **no match, no draft**.
#
# ## Which law was a copy drawn from?
#
# Now the target samples. Stage 02 accepts a draft token x with chance min(1, p(x)/q(x)), where q is the law that x was
# *really* drawn from. Which law was a copy drawn from?
#
# None. The drafter looked it up. Whoever had asked it again would have got the same token. So it was proposed with
# certainty: q(x) = 1, and 0 for everything else, a **point mass**. Then
#
# - accept x with chance p(x) / 1 = **p(x)**,
# - correct from max(0, p − q): **p without x**, scaled to sum to one.
#
# With p = .5/.3/.2 and the copied token 1:

# %%
p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
copied = 1
rest = p.clone()
rest[copied] = 0
rest = rest / rest.sum()  # 5/7, 0, 2/7
emitted = (1 - p[copied]) * rest
emitted[copied] += p[copied]
print("kept with chance", float(p[copied]), "- else drawn from", [round(one, 4) for one in rest.tolist()])
print("so the text gets", [round(one, 4) for one in emitted.tolist()])

# %% [markdown]
# Exactly p. Sometimes a q is invented instead: "the drafter has no law, so let us say that all tokens are equally
# likely". What comes out?
#
# We need not argue: the law can be *counted*. The reference's proof by counting (`specdec_ref/law.py`) runs the shipped
# verifier in every cell of uniform space and adds up what it emits. First our rule and the invented one for the pair
# above. Then texts of three tokens, on a model that looks at two, with a drafter that copies the last two tokens.

# %%
from specdec_ref.law import Drafts, fixed_draft, speculative_law, target_law

same_everywhere = p.expand(3, 3, 3)  # a model whose law is p after every text


def invented(text):
    """One certain draft, said to have been drawn from a law that is the same for every token."""
    return Drafts(torch.tensor([[copied]]), torch.ones(1).double(), torch.full((1, 1, 3), 1 / 3).double())


for name, drafts in (("point mass", lambda text: fixed_draft((copied,))), ("invented q", invented)):
    law = speculative_law(same_everywhere, drafts, (0, 0), length=1, rounds=1)
    print(f"{name}: the law of the text is", [round(one, 4) for one in law.tolist()])

table = torch.randn(3, 3, 3, generator=torch.Generator().manual_seed(6), dtype=torch.float64).softmax(-1)
counted = speculative_law(table, lambda text: fixed_draft(text[-2:]), (0, 1), length=3, rounds=3)
error = (counted - target_law(table, (0, 1), 3)).abs().max()
print("copies of two tokens, texts of three: exact to 1e-12:", bool(error < 1e-12))

# %% [markdown]
# With the invented q the copied token gets .9 where the target wanted .3. The text would repeat itself far more than
# the target does, and it would look fluent.
#
# So how good can a copy be? A token that was *drawn* from q passes with Σ min(p, q), and that is 1 where q = p. A copy
# passes with p(x): never more often than the target's favourite has probability. What does temperature do to the two?

# %%
logits = torch.tensor([4.0, 2.0, 1.0, 0.0], dtype=torch.float64)
for temperature in (0.25, 0.5, 1.0, 1.5):
    warm = (logits / temperature).softmax(-1)
    print(f"T = {temperature}: a copy of the favourite passes with {warm[0]:.2f}, a draw from the same law with 1.00")

# %% [markdown]
# The warmer the sampling, the worse for a copy, even for the right one. Lookup is at its best where the target is sure.
#
# ## What does looking cost?
#
# Nothing, compared with a pass of the target? Let us count, for an answer of 2,000 tokens after a prompt of 500, five
# tokens a round and n up to 3. A search looks at every place of the text, for each n, in each round.

# %%
lengths = range(500, 2500, 5)  # of the text, at the start of each round
print(f"places looked at by searching: {3 * sum(lengths):,}")
print(f"entries written by an index:   {3 * 2500:,}")

# %% [markdown]
# The first is some 240 times the second, and it grows with the square of the length. An **index** remembers, for each
# n-gram, where it was last followed by something. A round then writes only what its new tokens make known, and a lookup
# is three questions to a dictionary.
#
# One detail decides whether the index is right: *when* does an n-gram become known?

# %%
index = SuffixIndex(max_ngram=2, min_ngram=1)
for words in ("a b", "a b a", "a b a c"):
    index.continuation(words.split(), limit=1)
    print(f"{words!r}:", {" ".join(key): place for key, place in index.follower.items()})

# %% [markdown]
# An n-gram is known **once a token follows it**. While it stands at the very end it is not in the index, so the suffix
# cannot match itself. And in the next round the first new token makes the old text's last n-grams known: whoever
# indexes only the new tokens among themselves loses these at every seam. (Watch "a": its entry moves from 1 to 3. The
# newest occurrence replaces the older.)
#
# Two more ends to think of. A copy may contain the token that ends a text, because the prompt did. It is an ordinary
# draft token until it is accepted; then the text ends there (stage 04). And the draft is never longer than the budget
# minus one. The loop sees to both, for every drafter.

# %% [markdown]
# ## Where repetition wins, and where it loses
#
# Now SmolLM2. Two tasks: change one name in a program, and write a poem. The target is greedy, so we can compare token
# for token.

# %%
from specdec_course.benchmark import suites
from specdec_ref.measure import Run
from specdec_ref.rows import Stop

smol = load_pair("smol")
stop = Stop(token_ids=smol.eos_token_ids)
tasks = {name: encode_prompt(smol, suites.load(name).tuning[0].text) for name in ("code-edit", "story")}
answers, runs = {}, {}
for name, prompt in tasks.items():
    plain = collect(generate(smol.target, [prompt], GREEDY, max_new_tokens=56, stop=stop))
    runs[name] = Run(
        list(speculate(smol.target, NgramDrafter(), [prompt], GREEDY, num_draft_tokens=5, max_new_tokens=56, stop=stop))
    )
    answers[name] = plain[0]
    empty = sum(figures.outcome(one) == "none" for one in runs[name].rounds)
    run = runs[name]
    print(f"{name}: {run.new_tokens} tokens in {len(run.rounds)} rounds, {empty} without a draft;", end=" ")
    print(f"{run.accepted} of {run.drafted} drafts accepted; text as plain: {collect(run.rounds) == plain}")

# %% tags=["nbval-ignore-output"]
whole = {name: sum(len(one.tokens[0]) == 6 for one in run.rounds) for name, run in runs.items()}
show(
    figures.draw_along({name: run.rounds for name, run in runs.items()}),
    alt=f"Two panels, a bar for each round along the answer. In the code edit {whole['code-edit']} of "
    f"{len(runs['code-edit'].rounds)} bars are six tokens wide and high: five accepted and a bonus. In the story most "
    f"of {len(runs['story'].rounds)} bars are a single token, with a refused draft or none; where the answer repeats "
    f"its own words the bars grow, and {whole['story']} of them is six tokens high.",
)

# %%
print(smol.tokenizer.decode(answers["story"]))

# %% [markdown]
# The same drafter, the same target. The program is copied from the prompt, in most rounds five tokens and a bonus. In
# the poem nothing is worth copying for a long time: now and then something matches, and its draft is refused. Then the
# little model begins to repeat its own words, and the lookup copies *those*.
#
# Look at a match as the drafter sees it: the text of the edit just before its best round.

# %% tags=["nbval-ignore-output"]
rounds = runs["code-edit"].rounds
best = max(range(len(rounds)), key=lambda i: rounds[i].num_accepted[0])
so_far = tasks["code-edit"] + [token for one in rounds[:best] for token in one.tokens[0]]
draft = rounds[best].drafts[0]
wanted = so_far[-3:] + draft
match = next(i for i in range(len(so_far) - 4, 0, -1) if so_far[i : i + len(wanted)] == wanted)
near, end = so_far[match - 2 : match + len(wanted) + 3], so_far[-7:]
pieces = [*(smol.tokenizer.decode([token]) for token in near), "...", *(smol.tokenizer.decode([t]) for t in end)]
show(
    figures.draw_match(
        pieces,
        match=range(2, 5),
        suffix=range(len(pieces) - 3, len(pieces)),
        source=range(5, 5 + len(draft)),
        draft=[smol.tokenizer.decode([token]) for token in draft],
        width=11,
    ),
    alt="A piece of the prompt's program and the end of the text as boxes, one for each token. The last three tokens "
    "are marked, the same three in the program, the tokens that follow them there, and their copy behind the text. All "
    "of the copy was accepted.",
)

# %% [markdown]
# ### Which n, which K?
#
# Is a longer match really the better guess? At every place of both answers we ask for a match of exactly n tokens, and
# whether the one token that followed it comes next here too.

# %%
texts = {name: (tasks[name], answers[name]) for name in tasks} | {"tiny story": stories[0]}
for name, (prompt, answer) in texts.items():
    whole = prompt + answer
    for n in (1, 2, 3):
        index, right = SuffixIndex(n, n), []
        for place in range(len(prompt), len(whole)):
            guess = index.continuation(whole[:place], 1)
            right += [guess[0] == whole[place]] if guess else []
        share = f", right in {sum(right) / len(right):.0%}" if right else ""
        print(f"{name}, n = {n}: a match at {len(right)} of {len(answer)} places{share}")

# %% [markdown]
# In both texts of SmolLM2 a match of two or three tokens is a far better guess than a match of one. That is why the
# longest is tried first, and why one may refuse the short ones. In the story of `tiny-target` hardly anything helps: no
# three tokens in a row ever come back.
#
# Each setting could be tried with the model. There is a cheaper way. The target's greedy text is what it is, whoever
# drafts. So we *know* the verdict on every draft: it is accepted as far as it agrees with the answer. The rounds can be
# walked along the finished answer, without any model, in a moment.


# %%
def walk(prompt, answer, count, min_ngram, max_ngram=3):
    """Return (drafted, accepted) of each round that a lookup would have made along this answer."""
    whole, index, rounds = prompt + answer, SuffixIndex(max_ngram, min_ngram), []
    written = len(prompt)
    while written < len(whole):
        draft = index.continuation(whole[:written], min(count, len(whole) - written - 1))
        accepted = 0
        while accepted < len(draft) and draft[accepted] == whole[written + accepted]:
            accepted += 1
        rounds.append((len(draft), accepted))
        written += accepted + 1
    return rounds


for name, run in runs.items():
    counted = [(one.num_drafted[0], one.num_accepted[0]) for one in run.rounds]
    print(f"{name}: walking gives the rounds of decoding:", walk(tasks[name], answers[name], 5, 1) == counted)

for name, (prompt, answer) in texts.items():
    print(f"{name}, {len(answer)} tokens")
    for min_ngram, count in ((1, 3), (1, 5), (1, 10), (2, 5), (3, 5)):
        rounds = walk(prompt, answer, count, min_ngram)
        drafted, accepted = (sum(column) for column in zip(*rounds, strict=True))
        print(f"   n from {min_ngram}, K = {count:2}: {len(rounds):2} rounds, accepted {accepted:2} of {drafted:3}")

# %% [markdown]
# A longer draft helps where whole lines repeat. Elsewhere it adds hardly more than refused tokens. To demand three
# tokens costs the edit no round at all. It saves the poem most of its refused tokens, for a few rounds more, and the
# tiny story all of them.
#
# What is a refused draft worth, in time? The bill of stage 05, with T_d = 0: each round with a draft costs T_v, each
# round without costs T_t. So the speedup is tokens over rounds, weighed:

# %%
for name, (prompt, answer) in texts.items():
    for min_ngram in (1, 3):
        rounds = walk(prompt, answer, 5, min_ngram)
        with_draft = sum(drafted > 0 for drafted, _ in rounds)
        gains = [len(answer) / (len(rounds) - with_draft + cost * with_draft) for cost in (1.0, 1.2, 1.5, 2.0)]
        words = ", ".join(f"{gain:.2f}" for gain in gains)
        print(f"{name}, n from {min_ngram}: speedup for T_v = 1, 1.2, 1.5, 2 T_t: {words}")

# %% [markdown]
# With free verification lookup never loses: a round brings at least its one token. It loses through T_v alone, by
# drafts that are proposed and refused: see the tiny story, and the poem where a pass costs two steps.
#
# So it **wins** where the answer quotes: edits of code, summaries, extraction, answers that repeat a form, long chats
# about one thing, and texts that go round in circles. It **loses** in free text, in translation, at high temperature,
# and at the start of a text, where there is nothing to look up. The loss has a limit: with T_d = 0 decoding takes at
# most T_v / T_t times as long as plain decoding. Whoever demands longer matches pays T_v in fewer rounds.

# %% [markdown]
# ## The target drafts for itself
#
# A text without repetition needs somebody who knows the language. The target does. Could it draft for itself, cheaply?
#
# A target is a stack of layers. Each reads a vector for each token and adds something to it. How much does it add? We
# measure the cosine between what goes into a layer and what comes out: near 1 means that it hardly turned the vector.


# %%
def layer_cosines(lm, tokens):
    """Return the mean cosine between input and output of each layer, over the tokens of a text."""
    found = []

    def watch(layer, inputs, output):
        out = output[0] if isinstance(output, tuple) else output
        found.append(torch.nn.functional.cosine_similarity(inputs[0].float(), out.float(), dim=-1).mean().item())

    hooks = [layer.register_forward_hook(watch) for layer in lm.model.model.layers]
    try:
        lm.fresh(1).extend(torch.tensor([tokens], device=lm.device))
    finally:
        for hook in hooks:
            hook.remove()
    return found


cosines = {
    "SmolLM2, 30 layers": layer_cosines(smol.target, tasks["story"] + answers["story"]),
    "tiny-target, 4 layers": layer_cosines(tiny.target, stories[0][0] + stories[0][1]),
}
for name, values in cosines.items():
    above = sum(value > 0.9 for value in values)
    print(f"{name}: {above} with a cosine above .9; layer 0 has {values[0]:.1f}")

# %% [markdown]
# Most layers of SmolLM2 hardly turn the vector. Can they be spared? A cosine does not say so: a small turn may be the
# one that decides. What counts is the token that comes out. So we leave out one layer at a time, let the others draft
# one token at each place of an answer, and count how often it is the target's own.

# %%
from specdec_ref.training.layer_skip import Judge, SkipPlan


def agreement(judge, kept):
    """Return how often the first draft token of these layers is the target's token."""
    hits, _ = judge.draft_everywhere(kept)
    return sum(int(one[0].sum()) for one in hits) / sum(one.shape[1] for one in hits)


agreements = {}
for name, pair, known in (
    ("SmolLM2, 30 layers", smol, [(tasks["story"], answers["story"][:40])]),
    ("tiny-target, 4 layers", tiny, stories),
):
    judge, every = Judge(pair.target, known, SkipPlan(num_draft_tokens=1)), range(len(cosines[name]))
    agreements[name] = [agreement(judge, [one for one in every if one != layer]) for layer in every]
    dear = sorted(every, key=lambda layer: agreements[name][layer])[:4]
    print(f"{name}: with all layers {agreement(judge, every):.2f};", end=" ")
    print("dearest to leave out:", ", ".join(f"layer {layer} ({agreements[name][layer]:.1f})" for layer in dear))

# %% tags=["nbval-ignore-output"]
show(
    figures.draw_layers({"cosine of a layer's input and output": cosines, "agreement when it is left out": agreements}),
    alt="Two panels over the layers of SmolLM2 and of tiny-target. Left, the cosine between a layer's input and "
    "output: for SmolLM2 low in the first layers, then above .9 nearly everywhere; for tiny-target below .9 in all. "
    "Right, how often the others still give the target's token when one layer is left out. For SmolLM2 "
    f"{agreements['SmolLM2, 30 layers'][0]:.2f} without layer 0, and about "
    f"{sorted(agreements['SmolLM2, 30 layers'])[15]:.2f} in the middle of the order.",
)

# %% [markdown]
# SmolLM2 cannot do without its first layers, and its last ones are hard to spare. The others can be spared, *one at a
# time*, at the price of some agreement.
#
# ### One cache for both
#
# A draft model has a cache of its own. What does a draft of the same target need? The kept layers must see the text,
# and the target has read it already: the keys and values of these very layers are in *its* cache, computed by the
# whole stack. So the draft reads them. What a draft step computes itself it writes to the slots behind the text. Then
# the target verifies, with all layers, over the same tokens at the same positions, and overwrites them.

# %% tags=["nbval-ignore-output"]
show(
    figures.draw_shared_cache(num_layers=6, kept=(0, 1, 3, 5), text=7, drafted=4),
    alt="Two grids of layers against slots of one cache. After drafting, slots 0 to 6 were written by the whole "
    "target; slots 7 to 10 only in the layers 0, 1, 3 and 5, by the draft. After verification the whole target has "
    "written all slots of all layers.",
)

# %% [markdown]
# To forget the draft is to set the lengths back; nothing is copied, and there is no second cache. Is that true? A view
# with fewer layers must own no weights. The text must be the plain one, or the draft has spoilt the cache. And with
# *all* layers kept every draft token must be accepted: one wrong slot or position would show as a refusal.

# %%
from specdec_ref.drafters import LayerChoice, LayerSkipDrafter
from specdec_ref.drafters.layer_skip import keep_layers

view = keep_layers(tiny.target.model, [0, 3])
own = {id(module) for module in tiny.target.model.modules()}
new = [type(module).__name__ for module in view.modules() if id(module) not in own]
print("layers of the view:", len(view.model.layers), "- modules that are not the target's own:", new)

for kept in ((0, 1, 2, 3), (0, 1, 3), (0,)):
    drafter = LayerSkipDrafter(LayerChoice(kept))
    rounds = list(speculate(tiny.target, drafter, openings[:1], GREEDY, num_draft_tokens=4, max_new_tokens=64))
    run = Run(rounds)
    print(f"layers {kept}: alpha {run.alpha:.2f}, {run.emitted_per_round:.2f} tokens a round,", end=" ")
    print("text as plain:", collect(rounds)[0] == stories[0][1])

# %% [markdown]
# The modules that are new are mere containers on the way to a shorter list of layers.
#
# ## Which layers should draft?
#
# With all layers α is 1, and a draft step costs a target step. With one layer it is cheap and often wrong. In all there
# are 2^30 − 2 choices for SmolLM2. We need a score and a way to search.
#
# **The score** is the bill of stage 05. A small step waits for its weights, so say that a draft step costs the share of
# the weights that it reads: its layers, and the output layer, which every step reads. Verification is taken to cost 1.1
# plain steps. Tokens a round come from walking along texts of the target, as we did above. No clock is asked, so the
# answer is the same on every machine.
#
# **The search** is greedy: leave out the layer that can best be spared, then ask *anew* which of the others can. (Two
# layers may stand in for each other; each can be spared, but not both.) It goes on when the score falls, since the next
# step may be better, and keeps the best set that it met. How often does it ask?

# %%
print("sets of 30 layers:", f"{2**30 - 2:,}", "- asked by greedy removal:", sum(range(2, 31)))

from specdec_ref.training.layer_skip import search

plan = SkipPlan(tokens=64, num_draft_tokens=4, verify_cost=1.1)
judge = Judge(tiny.target, stories, plan)
choice, path = search(judge, 4, plan, {}, lambda journal: None)
for step in path:
    print(f"tiny-target, layers {step['kept']}: {step['tokens_per_round']:.2f} tokens a round,", end=" ")
    print(f"speedup promised {step['speedup']:.2f}")
print("chosen:", choice.kept)

# %% [markdown]
# The course has done this for both targets, with more texts (`specdec train layer-skip`). What it found is a few
# numbers, no weights:

# %%
import json

from specdec_ref import store

for name in ("tiny", "smol"):
    folder = store.trained_folder(f"{name}-layer-skip")
    shape = json.loads((folder / "config.json").read_text(encoding="utf-8"))["shape"]
    curve = json.loads((folder / "curve.json").read_text(encoding="utf-8"))["choices"]
    found = max(curve, key=lambda one: one["speedup"])
    print(f"{name}: layers that draft: {len(shape['kept'])}, up to {found['num_draft_tokens']} tokens,", end=" ")
    print(f"stop below {shape['stop_below']}; promised: {found['tokens_per_round']:.2f} tokens a round,", end=" ")
    print(f"{found['speedup']:.3f} times as fast as plain decoding")

# %% [markdown]
# For SmolLM2 the search ended early: to leave out a second layer made the score worse. So a single layer is left out,
# and the promise is a *loss*: .958. We shall see why.
#
# ## When does a draft end?
#
# What is `stop_below`? A draft that is unsure of itself will probably be refused, and every further token costs a step.
# So the draft ends with a token whose law was not sure of anything: *no* token had as much as `stop_below`.
#
# There is a near relative of this rule that looks just as sensible: draw a token, and if it turns out to be unlikely,
# q(x) < .3, drop it and end the draft. What does that do to the text? With p = .2/.4/.4 and q = .4/.4/.2, by hand:

# %%
p, q = (torch.tensor(law, dtype=torch.float64) for law in ([0.2, 0.4, 0.4], [0.4, 0.4, 0.2]))


def law_of_text(dropped):
    """The law of one token if drawn tokens in `dropped` are thrown away and the target writes instead."""
    law = torch.zeros_like(p)
    missing = (p - q).clamp(min=0)
    for x in range(3):
        if x in dropped:
            law += q[x] * p  # no draft: a plain draw
        else:
            accept = min(1.0, float(p[x] / q[x]))
            law[x] += q[x] * accept
            law += q[x] * (1 - accept) * missing / missing.sum()
    return [round(one, 4) for one in law.tolist()]


print("the target's law:                 ", p.tolist())
print("every drawn token stays:          ", law_of_text(dropped=()))
print("drawn tokens with q < .3 dropped: ", law_of_text(dropped=(2,)))

# %% [markdown]
# The rule of stage 02 needs every token to be proposed as often as q says. Token 2 never is. But the correction still
# counts on it, and pays out what is missing *beside* it.
#
# So: how long a draft gets may depend on laws, and on tokens that stay in it. It must not depend on a token that is
# then thrown away. Decide from what was known **before the token was drawn**, or keep the token. The reference looks at
# the law's largest probability, and keeps the last token too: its law is paid for.
#
# (At temperature 0 nothing is drawn, and the question does not arise: q is a point mass.)

# %% [markdown]
# ## Why it loses here
#
# SmolLM2 has 30 layers and a large vocabulary. Which share of its weights does a draft step read?

# %%
from specdec_ref.economics import expected_tokens, speedup
from specdec_ref.training.layer_skip import count_weights

layer_weights, output_weights = count_weights(smol.target)
total = sum(layer_weights) + output_weights


def draft_share(skipped):
    """Return the share of the weights that a step reads with `skipped` layers left out; all are of one size."""
    return 1 - skipped * layer_weights[0] / total


print(f"{len(layer_weights)} layers of {layer_weights[0] / 1e6:.2f} million weights, output {output_weights / 1e6:.1f}")
for skipped in (1, 5, 10, 15):
    share = draft_share(skipped)
    most = [float(speedup(1.0, count, share, 1.1)) for count in (1, 3, 5)]
    print(f"layers left out: {skipped:2}; a draft step costs {share:.3f};", end=" ")
    print("with ALL drafts accepted K = 1, 3, 5 give", ", ".join(f"{one:.2f}" for one in most))

# %% [markdown]
# The first line ends the discussion. With one layer left out, K = 3 loses even if *no* draft is ever refused: four
# tokens for three draft steps of .974 and a pass of 1.1. The most that endless perfect drafts could gain is 1 / .974.
# To gain a fifth, a third of the layers must go, and the others must still be right every time. Are they?

# %% tags=["nbval-ignore-output"]
known = [(tasks["story"], answers["story"][:24])]
judge = Judge(smol.target, known, SkipPlan(num_draft_tokens=1))
order = sorted(range(1, 29), key=lambda layer: -agreements["SmolLM2, 30 layers"][layer])  # the most dispensable first
losing = {}
for count in (1, 3, 6, 10):
    share = draft_share(count)
    alpha = agreement(judge, sorted(set(range(30)) - set(order[:count])))
    losing[f"{count} left out"] = (share, float(speedup(alpha, 1, share, 1.1)))
    print(f"most dispensable layers left out: {count:2}; agreement {alpha:.2f}, step {share:.2f},", end=" ")
    print(f"K = 1 gives {losing[f'{count} left out'][1]:.2f}")
show(
    figures.draw_limit([1, 3, 5], 1.1, losing),
    alt="The speedup with all drafts accepted against the cost of a draft step, for K = 1, 3 and 5. All three lines "
    "fall below plain decoding before the cost reaches 1. Points show SmolLM2 with some layers left out: "
    + "; ".join(f"{name}: step {share:.2f}, {gain:.2f} times" for name, (share, gain) in losing.items())
    + ".",
)

# %% [markdown]
# A small model has few layers, and each does its share. A deep one has layers to spare: Zhang et al. 2023 report up to
# 1.99x for models of the LLaMA-2 family. Suppose that half of a deep target's layers still agree nine times in ten.
# What would the bill say then?

# %%
for name, alpha, share in (("one of 30 layers, SmolLM2", 0.77, 0.974), ("half of the layers, a deep target", 0.9, 0.5)):
    gains = {count: float(speedup(alpha, count, share, 1.1)) for count in (1, 3, 5)}
    words = ", ".join(f"K = {count}: {gain:.2f}" for count, gain in gains.items())
    print(f"{name}: alpha {alpha}, step {share}; {words}; tokens a round at K = 3: {expected_tokens(alpha, 3):.2f}")

# %% [markdown]
# (The .77 is what decoding found, on the model's card. The .9 and the half are assumptions for the sake of the sum.)
# With a stop threshold the search does better than the first line: .958, by drafting less where the draft is unsure.
# What it comes closer to in that way is not drafting at all, which is 1.
#
# Layer skipping is a method for *deep* targets: it needs no training, no second model, and no extra memory.
#
# ## The bill of a round
#
# What do the two methods cost on your machine? Look at each term: drafting, verification, tokens a round, memory.

# %% tags=["nbval-ignore-output"]
from specdec_course.method_figures import draw_methods, measured_here, published, recorded

print(measured_here(smol, ["ngram", "layer-skip"]))

# %% [markdown]
# These are seconds of measuring. The recorded run took its time, on a quiet machine, with the prompts of all suites and
# the draft model of stage 04 beside them:

# %% tags=["nbval-ignore-output"]
print(recorded(["model", "ngram", "layer-skip"]))
figure, alt = draw_methods(["model", "ngram", "layer-skip"], new=["ngram", "layer-skip"])
show(figure, alt)

# %% [markdown]
# Read it by its terms.
#
# - **n-gram**: drafting costs nothing and takes no memory. Here it gains on every suite, most on the edits of code. Two
#   things help it: a check costs no more than a step on that machine, so refused drafts are cheap, and a small model
#   that decodes greedily repeats itself, as the poem did. Where neither holds, remember the tiny story.
# - **Layer skipping**: more tokens a round than lookup, and a loss on every suite. Its draft step costs nearly as much
#   as a check.
# - **The draft model** of stage 04 gains more over all. It is also the only one that had to be trained, and that takes
#   memory.
#
# (In the table of your own machine a few per cent are noise, and the loss of layer skipping is of that size.)
#
# What did others find, elsewhere?

# %%
print(published(["n-gram lookup", "layer skipping"]))

# %% [markdown]
# Both numbers are real and neither is yours: lookup's is for summaries and other copying, that of layer skipping for
# targets of many billion weights.
#
# ## Recap
#
# - n-gram lookup: the last n tokens, the longest n first, the newest place, never the end itself. No match, no draft.
# - A copy was proposed with certainty: accept with p(x), correct from p without x. An invented q changes the text.
# - An index learns an n-gram when a token follows it. A round then costs what is new.
# - Lookup can lose only through T_v. Demand longer matches where the text is free.
# - Layer skipping: one set of weights, one cache. Verification overwrites what the draft wrote.
# - Choose layers by the bill, greedily. With a draft step of .97 even perfect drafts gain next to nothing.
# - A draft may end for what was known before a token was drawn. A drawn token stays.
#
# ## Further reading
#
# - Saxena 2023, "Prompt lookup decoding" (a repository with a note); transformers offers it as
#   `prompt_lookup_num_tokens`, vLLM as the method `ngram`.
# - Yang et al. 2023, "Inference with reference" (arXiv 2304.04487): copying from given documents.
# - Zhang et al. 2023, "Draft & Verify: Lossless large language model acceleration via self-speculative decoding"
#   (arXiv 2309.08168), sections 3.1 (which layers) and 3.3 (when a draft ends).
# - Elhoushi et al. 2024, "LayerSkip" (arXiv 2404.16710): training a model so that its early layers can draft.
# - Leviathan et al. 2023 (arXiv 2211.17192), section 3: what T_d and T_v do to the gain.
# - In this repository: `specdec_ref/drafters/ngram.py`, `specdec_ref/drafters/layer_skip.py`,
#   `specdec_ref/training/layer_skip.py`.
#
# ## Glossary
#
# - **n-gram**: n tokens in a row. **Suffix**: the last n tokens of the text. **Match**: the same tokens earlier.
# - **Miss**: no match for any n; the draft is empty and the round a plain step.
# - **Point mass**: a law that gives one token everything. The q of a draft that nobody drew.
# - **Seam**: where the tokens of one round meet those of the next.
# - **Self-speculation**: the target drafts for itself, as with skipped layers.
# - **View**: the target with a shorter list of layers; all weights are shared.
# - **Greedy removal**: leave out what can best be spared, ask anew, keep the best that was met.
# - **Stop threshold**: a draft ends with a token whose law gave no token as much.
#
# ## What next?
#
# Open `exercises/06_no_second_model.ipynb`: you write the lookup, its index, the verdict on a copy, the search for
# layers and the stop rule. At its end your lookup drafts for SmolLM2.
