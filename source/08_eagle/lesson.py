# %% [markdown]
# # EAGLE: drafting from features
#
# A separate draft model reads the whole text for itself, from the first token on, with a small network. But the target
# has read that text already, with a large one. Can a draft begin where the target ended?
#
# After this stage you can
#
# - say what a *feature* is, and why it is easier to predict than a token,
# - build the pair that an EAGLE head reads, and train such a head in seconds,
# - draft a chain from the head's own features, and say which of them must be forgotten afterwards,
# - draft from a small part of the vocabulary, and show that the text stays exact,
# - put EAGLE's bill beside those of the methods before it.
#
# Reading takes about 20 minutes. The exercises are in `exercises/08_eagle.ipynb`.
#
# | symbol | in code | meaning |
# |---|---|---|
# | f | `features` | the target's last hidden states, one for each token it has read |
# | g | `outputs` | features that the head predicted |
# | D, V, R | `width`, `target_vocab`, `draft_vocab` | size of a feature, and of the two vocabularies |
# | p, q, K, α | as before | the target's law, the draft's law, tokens drafted, acceptance |

# %% [markdown]
# ## What is a feature?
#
# A language model turns each token into numbers, passes them through its layers, and ends with D numbers for each
# token: the last hidden state. One matrix, the *output layer*, turns these into V logits. We call the last hidden state
# the **feature** of that token. The target computes it anyway.
#
# Does a feature really hold the whole law? We take a text of `tiny-target`, and apply the output layer ourselves.

# %%
import torch

from specdec_course.demo import encode_prompt
from specdec_ref.decode import collect, generate, speculate
from specdec_ref.heads import stored
from specdec_ref.pairs import load_pair
from specdec_ref.sampling import GREEDY

tiny = load_pair("tiny")
target, tokenizer = tiny.target, tiny.tokenizer
prompt = encode_prompt(tiny, "Once upon a time there was a shy fox named Tom.")
answer = collect(generate(target, [prompt], GREEDY, max_new_tokens=48))[0]
text = [*prompt, *answer]

features = target.fresh(1).prefill_with_features([text])[0]  # [T, D]
output_layer = stored.output_layer(target.model)  # [V, D]
favourites = (features @ output_layer.T).argmax(-1).tolist()
print("tokens of the text:", len(text))
print("features:", tuple(features.shape), "- output layer:", tuple(output_layer.shape))
right = sum(favourites[place - 1] == text[place] for place in range(len(prompt), len(text)))
print(f"the feature before it gives the answer's token: {right} of {len(answer)}")

# %% [markdown]
# Each feature gives the next token, as it must: that is how the target wrote the text. So the *next* token is no riddle
# for somebody who holds the feature. A draft has to know the token *after* that one. For it, two things are at hand:
# the feature of token t, and the token t+1 that was drawn from its law.
#
# ## Why is a feature easier to predict than a token?
#
# Say the text is "I". Its feature knows that "am" and "always" may come next. What comes after *that*? After "am"
# perhaps "happy", after "always" perhaps "begin". Whoever has only the feature must guess a mixture of the two worlds.
# Once "am" was drawn, the mixture is gone. And whoever has only the word "am" does not know what stood before it.
#
# So the pair (feature at t, token t+1) should beat both of its halves. By how much? In a small world this can be
# computed exactly. Here are four words and a target whose law depends on the last two of them. Its feature at t is what
# it knows: the words at t-1 and t. Each drafter guesses the mean law of token t+2, given what it knows.

# %%
table = (2.0 * torch.randn(4, 4, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)).softmax(-1)
seen = torch.full((4, 4), 1 / 16, dtype=torch.float64)  # how often the last two words are (a, b)
for _ in range(200):
    seen = torch.einsum("ab,abc->bc", seen, table)  # one word later

chance = torch.einsum("ab,abc->abc", seen, table)  # of the words a, b, c in a row: c was drawn from the feature (a, b)
p = table[None].expand(4, -1, -1, -1)  # [a, b, c, next]: the law after a, b, c looks at b and c
by_feature = torch.einsum("abc,abcd->abd", chance, p) / chance.sum(2)[..., None]  # c is not known: average over it
by_token = torch.einsum("abc,abcd->cd", chance, p) / chance.sum((0, 1))[:, None]  # b is not known
guesses = {
    "the feature": by_feature[:, :, None].expand_as(p),
    "the token": by_token[None, None].expand_as(p),
    "both": p,
}
small_world = {
    known: float((chance * torch.minimum(p, q).sum(-1)).sum()) for known, q in guesses.items()
}  # alpha = sum min(p, q)
for known, alpha in small_world.items():
    print(f"a drafter that knows {known}: alpha {alpha:.2f}")

# %% [markdown]
# The pair reaches 1 because this small feature holds everything. No training can close the gap between the first line
# and the last: nothing in the feature says what will be drawn.
#
# Is it so in a real model? There the mean law cannot be computed, but a simple guess can. We let `tiny-target` read 80
# stories, and fit three straight lines, that is, three matrices: from the feature alone, from the token's embedding
# alone, and from both, each to the *next feature*. The target's own output layer makes laws of the guesses. The last
# 20 stories are kept for measuring.

# %%
from specdec_ref.training.stories import story

stories = [tokenizer.encode(story(number, seed=8)) for number in range(80)]
read = target.fresh(len(stories)).prefill_with_features(stories)  # [B, T, D]
embedding = stored.input_embedding(target.model)  # [V, D]


def examples(rows):
    """Feature t, embedding of token t+1, and feature t+1, for all places of these stories."""
    now = torch.cat([read[row, : len(stories[row]) - 1] for row in rows])
    after = torch.cat([read[row, 1 : len(stories[row])] for row in rows])
    tokens = torch.tensor([token for row in rows for token in stories[row][1:]])
    return now.double(), embedding[tokens].double(), after.double()


def straight_line(inputs, goal):
    """The matrix that takes inputs nearest to the goal."""
    inputs = torch.nn.functional.pad(inputs, (0, 1), value=1.0)
    return torch.linalg.solve(inputs.T @ inputs + torch.eye(inputs.shape[1]).double(), inputs.T @ goal)


def alpha_of(matrix, inputs, true_features):
    """Mean of sum min(p, q), where q comes from the guessed features."""
    guessed = torch.nn.functional.pad(inputs, (0, 1), value=1.0) @ matrix
    p, q = ((one @ output_layer.double().T).softmax(-1) for one in (true_features, guessed))
    return float(torch.minimum(p, q).sum(-1).mean())


now, token, after = examples(range(60))
now_kept, token_kept, after_kept = examples(range(60, 80))
real_world = {
    "the feature": alpha_of(straight_line(now, after), now_kept, after_kept),
    "the token": alpha_of(straight_line(token, after), token_kept, after_kept),
    "both": alpha_of(
        straight_line(torch.cat([now, token], -1), after), torch.cat([now_kept, token_kept], -1), after_kept
    ),
}
for known, alpha in real_world.items():
    print(f"a straight line from {known}: alpha {alpha:.1f}")

# %% tags=["nbval-ignore-output"]
from specdec_course import eagle_figures as figures
from specdec_course.figures import show

worlds = {"four words, the mean law": small_world, "tiny-target, a straight line": real_world}
show(
    figures.draw_knowledge(worlds),
    alt="Two groups of three bars: alpha of a drafter that knows the feature, the token, or both. "
    + " ".join(
        f"{world}: {found['the feature']:.2f}, {found['the token']:.2f} and {found['both']:.2f}."
        for world, found in worlds.items()
    ),
)

# %% [markdown]
# Each half alone gets a third of the way, both together half of it. And that with a mere matrix, fitted on 60 stories:
# it guesses *features*, and leaves the words to the target's own output layer. This is the first idea of EAGLE (Li et
# al. 2024). The second is the pair. What is left to do is a better network than a matrix.
#
# ## What does the head read?
#
# The network is called a *head*, since it sits on the target. It is one decoder layer:
#
# 1. Put feature t and the embedding of token t+1 side by side: 2D numbers. A matrix brings them down to D.
# 2. One layer of attention over all pairs so far, with a small MLP, as in any decoder.
# 3. Out comes g, a guess of feature t+1. The target's output layer turns it into the law of token t+2.
#
# Embedding and output layer are the target's: borrowed, not trained, not stored again. What does that leave?

# %%
from specdec_ref.heads import load_eagle

head = load_eagle(tiny.head_folder("eagle"), target, tiny.target_folder)
own = sum(weight.numel() for weight in head.parameters())
model = sum(weight.numel() for weight in tiny.draft.model.parameters())
whole = sum(weight.numel() for weight in target.model.parameters())
print(f"the head: {own:,} weights of its own; tiny-draft: {model:,}; tiny-target: {whole:,}")
for name, weight in head.named_parameters():
    if weight.dim() > 1:
        print(f"   {name:<13} {tuple(weight.shape)}")

# %% [markdown]
# Now the pairs of a real text, and the commonest mistake of this stage. With n committed tokens the target has read
# n-1 of them: the last one is not in its cache yet (stage 04). So there are n-1 features. The token that *completes*
# feature i is token i+1. So there are n-1 pairs as well, and the newest pair holds the last committed token.

# %%
n = len(prompt)
print("pair | feature of | with token | says what may come after it")
for i in (0, 1, n - 3, n - 2):
    words = [tokenizer.decode([text[place]]) for place in (i, i + 1)]
    print(f"{i:4} | {words[0]!r:10} | {words[1]!r:10} | {tokenizer.decode([text[i + 2]])!r}")

# %% [markdown]
# What if feature i is put beside token i? It is a natural slip, since both "are at place i". The head then hears twice
# what it knows, and never what was drawn. We run the head along the text both ways, without any cache, and count how
# often its favourite is the target's token.


# %%
@torch.inference_mode()
def run_head(head, features, tokens):
    """Run the head over pairs: features [m, D] and a token id for each. Returns what it predicts, [m, D]."""
    positions = torch.arange(1, len(tokens) + 1)[None]

    def attend(query, key, value):  # all pairs up to its own
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

    return head(features[None], torch.tensor([tokens]), positions, attend)[0]


def draft_ids(head, outputs):
    """The head's favourite token for each output [m, D], as the target's id."""
    return head.draft_to_target[head.logits(outputs).argmax(-1)].tolist()


for name, tokens in (("the token after it", text[1:]), ("its own token", text[:-1])):
    drafted = draft_ids(head, run_head(head, features[:-1], tokens))  # entry i: what may be token i + 2
    right = sum(drafted[place - 2] == text[place] for place in range(len(prompt), len(text)))
    print(f"each feature with {name}: {right} of {len(answer)} tokens of the answer")

# %% [markdown]
# ## Train one yourself
#
# The head's teacher is the target. One reading of a text gives a law and a feature for each of its places. The head is
# pulled towards both. Towards the law, by two distances: the KL divergence, and the total variation, which is 1 - α
# itself. And, a little, towards the feature.
#
# The next cell trains a head from random weights, with the code that `specdec train eagle --target tiny` runs. The
# command learns from text that the target wrote. To save time we let the target *read* 300 new stories instead. Watch
# two numbers: the loss, and the share of first drafts that held-out text would accept. (`alpha` here is a lower bound:
# the recipe records only the 16 likeliest tokens.) It takes about 20 seconds.

# %% tags=["nbval-ignore-output"]
import tempfile
from pathlib import Path

from specdec_course.eagle_training import along, read_stories, train_head

workshop = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
folder = Path(workshop.name)
print(f"{read_stories(tiny, folder, 300):,} tokens of stories were read")
mine = train_head(tiny, folder, epochs=3, passes=2)
for steps, alpha in mine.looks:
    print(f"after {steps} steps: alpha at temperature 1 at least {alpha:.2f}")
show(
    figures.draw_training({"two passes": mine.losses}, {"two passes": mine.looks}),
    alt=f"Left, the loss falls over {len(mine.losses)} steps from {mine.losses[0]:.1f} to {mine.losses[-1]:.2f}. "
    f"Right, alpha on held-out stories rises from {mine.looks[0][1]:.2f} to {mine.looks[-1][1]:.2f}.",
)

# %%
print("the loss fell to less than a tenth:", mine.losses[-1] < mine.losses[0] / 10)
print("alpha at the last look is higher than at the first:", mine.looks[-1][1] > mine.looks[0][1])
print("and above what the straight line reached:", mine.looks[-1][1] > real_world["both"])

# %% [markdown]
# ## The chain: on with its own features
#
# One pair gives one token. For the second we would need the feature at t+1, and the target has not computed it. But the
# head has just *guessed* it. So it goes on with its own guess:
#
#     pair of the target:   (f_t     ; x_{t+1})  ->  g_{t+1}  ->  d1
#     pair of its own:      (g_{t+1} ; d1)       ->  g_{t+2}  ->  d2
#     pair of its own:      (g_{t+2} ; d2)       ->  g_{t+3}  ->  d3
#
# Note what goes into the second pair: the token that was *drawn*, d1. And the last drafted token is not fed at all,
# since nothing comes after it in this round. So a draft of K tokens adds K-1 pairs of its own.


# %%
def draft_chain(head, known, text, count):
    """Draft `count` tokens after a text, greedily: returns them, and the features that the head guessed, [count, D]."""
    inputs, tokens = known, text[1:]
    drafted, outputs = [], []
    for _ in range(count):
        output = run_head(head, inputs, tokens)[-1:]  # [1, D]
        drafted += draft_ids(head, output)
        outputs.append(output)
        inputs, tokens = torch.cat([inputs, output]), [*tokens, drafted[-1]]
    return drafted, torch.cat(outputs)


known = features[: len(prompt) - 1]  # what the target has read when the first round begins
drafted, own_features = draft_chain(head, known, prompt, 4)
print("by hand:     ", drafted, "-", repr(tokenizer.decode(drafted)))
first = next(speculate(target, tiny.drafter("eagle"), [prompt], GREEDY, num_draft_tokens=4, max_new_tokens=20))
print("the drafter: ", first.drafts[0], "- accepted", first.num_accepted[0])
print("the target:  ", answer[:4], "-", repr(tokenizer.decode(answer[:4])))

# %% [markdown]
# By hand we run the head over all pairs again for each token. The drafter of `specdec_ref/drafters/eagle.py` has a
# cache, as a model has, and feeds new pairs only. It gives the same tokens.
#
# How good are the head's own features? At each place of some greedy texts we count how often draft token 1, 2, 3, 4 is
# right, given that those before it were. Beside it: how often a draft that *begins* at these places, with the target's
# features, is right. And how far the predicted feature is from the true one, as a share of its size.

# %%
openings = [
    encode_prompt(tiny, words)
    for words in (
        "One windy morning Mia walked to the market.",
        "There once was a brave girl whose name was Lily.",
        "In the garden Ben found a silver key.",
        "This is the story of Otto, a sleepy bear.",
    )
]
answers = collect(generate(target, openings, GREEDY, max_new_tokens=48))
quality = along(head, target, openings, answers, 4)
print("draft token                          ", *(f"{m:>5}" for m in range(1, 5)))
print("right, from its own features         ", *(f"{one['hit']:5.2f}" for one in quality))
print("same places, from the target's       ", *(f"{one['fresh']:5.2f}" for one in quality))
print("distance from the true feature       ", *(f"{one['away']:5.2f}" for one in quality))

# %% [markdown]
# Three things to see.
#
# - The later tokens are right *more* often than the first. That is selection: whoever gets to the third token stands in
#   an easy stretch (stage 05).
# - So compare the first line with the second, not with itself. Drafting on from own features costs next to nothing
#   here.
# - The predicted features are far from the true ones, and yet the words are right. The head was taught the target's
#   *laws* first of all, and the laws do not hang on every direction of a feature.
#
# That own features cost so little is no gift. A head that was trained on true features alone never meets a guess in
# training, and in its second step it reads one. So training should look like the draft: let the head read its own
# guesses, and teach it to go on from there. EAGLE-3 calls this **training-time test** (Li et al. 2025). In our command
# it is `--passes 2`, with which `models/tiny-eagle` was made too: pass 1 reads the target's features, pass 2 what
# pass 1 guessed, and the loss counts both.
#
# Does it matter? We train a second head with `--passes 1`, for as many steps on the same stories.

# %% tags=["nbval-ignore-output"]
plain_head = train_head(tiny, folder, epochs=3, passes=1, say=False)
curves = {
    name: [one["hit"] for one in along(trained.head, target, openings, answers, 4)]
    for name, trained in (("trained with --passes 2", mine), ("trained with --passes 1", plain_head))
}
workshop.cleanup()
curves["models/tiny-eagle, --passes 2"] = [one["hit"] for one in quality]
for name, hits in curves.items():
    print(f"{name:<30}", ", ".join(f"{hit:.2f}" for hit in hits))
show(
    figures.draw_chain_quality(curves, "Is draft token m right, if those before it were?"),
    alt="Curves over draft tokens 1 to 4. "
    + " ".join(f"{name}: " + ", ".join(f"{hit:.2f}" for hit in hits) + "." for name, hits in curves.items()),
)

# %%
one, two = curves["trained with --passes 1"], curves["trained with --passes 2"]
print("at the first token the two heads are within .1 of each other:", abs(one[0] - two[0]) < 0.1)
print(
    "at each later token the head with two passes is right more often:",
    all(b > a for a, b in zip(one[1:], two[1:], strict=True)),
)

# %% [markdown]
# At the first token the two are alike: both read true features there. From the second on, the head that has never read
# its own features falls behind. One pass is cheaper to train, and the drafts pay for it. The authors of EAGLE-3 report
# that such training, and no longer aiming at the exact feature, is what lets a head gain from more text.
#
# ## What must be forgotten after a round?
#
# The target has judged: a of the K drafts pass, and it adds its own token. Its pass read the last committed token and
# all K drafts, so it brings K+1 *true* features. What may stay in the head's memory?
#
# - Pairs of refused tokens: no. They hold words that are not in the text.
# - Pairs of *accepted* tokens: their words are right. But their features are the head's guesses, and the true ones are
#   at hand now.
#
# So all K-1 pairs of the draft go, and 1+a pairs are read with the target's features: that of the last committed token
# and those of the accepted drafts, each with the token that followed it in the text. Compare this with stage 04, where
# a draft model fed one token or, after full acceptance, two.

# %% tags=["nbval-ignore-output"]
show(
    figures.draw_pairs(num_tokens=5, num_draft_tokens=5, num_accepted=2),
    alt="Two rows of boxes, each a feature above a token. While drafting: four pairs with the target's features f0 to "
    "f3, then four pairs with the head's own guesses g4 to g7 and drafted tokens d1 to d4. Before the next proposal, "
    "two of five drafts accepted: the same four pairs, then three that were read again with the target's features f4 "
    "to f6 and the tokens d1, d2 and the correction; one place is forgotten.",
)

# %% [markdown]
# Is all this care needed? Let us write the loop by hand, three times: once right, once with the guesses of accepted
# tokens kept, and once with the features of *all* drafts kept, refused ones too. Each decodes the same four openings.


# %%
def decode(remember, head, prompts, count=4, budget=40):
    """Greedy EAGLE by hand. `remember` returns the features that the head goes on with, after each round."""
    texts, accepted, rounds = [], 0, 0
    for prompt in prompts:
        lm, text = target.fresh(1), list(prompt)
        known = lm.prefill_with_features([text[:-1]])[0]  # [n-1, D]
        while len(text) < len(prompt) + budget:
            drafted, own = draft_chain(head, known[: len(text) - 1], text, count)
            logits, true = lm.extend_with_features(torch.tensor([[text[-1], *drafted]]))  # true is [1, K+1, D]
            wanted = logits[0].argmax(-1).tolist()
            a = next((i for i in range(count) if drafted[i] != wanted[i]), count)
            lm.rollback([count - a])
            known = remember(known, own, true[0], a)
            text += [*drafted[:a], wanted[a]]
            accepted, rounds = accepted + a, rounds + 1
        texts.append(text[: len(prompt) + budget])
    return texts, accepted / rounds


memories = {
    "true features only": lambda known, own, true, a: torch.cat([known, true[: 1 + a]]),
    "own features of accepted tokens": lambda known, own, true, a: torch.cat([known, own[:a], true[a : 1 + a]]),
    "features of refused tokens too": lambda known, own, true, a: torch.cat([known, true]),
}
results = {name: decode(remember, head, openings) for name, remember in memories.items()}
for name, (_, accepted) in results.items():
    print(f"keeps {name:<32} accepted a round: {accepted:.2f}")
plain_texts = [[*opening, *tokens[:40]] for opening, tokens in zip(openings, answers, strict=True)]
print("all three wrote the texts of plain decoding:", all(texts == plain_texts for texts, _ in results.values()))

# %% [markdown]
# As in stage 04: **no test of the text can find such a fault.** The target repairs every bad guess. Features of refused
# tokens are the worst: they push every later feature away from its token, round by round, and the pairs are wrong for
# the rest of the text. Guesses in place of true features are a quieter loss.
#
# And what does the real drafter keep? A listener on its cache tells.


# %%
from specdec_ref.drafters import EagleDrafter


class Listening(EagleDrafter):
    """Notes how many pairs it holds: before a proposal, while drafting, and after the verdict."""

    ledger: list = []  # noqa: RUF012 - shared with the copy that does the work

    def propose(self, rows, limits):
        before, fed = int(self.cache.lengths[0]), int(self.counts[0])
        draft = super().propose(rows, limits)
        entry = {"n": rows.lengths[0], "before": before, "fed": fed, "drafted": draft.width}
        self.ledger.append(entry | {"while drafting": int(self.cache.lengths[0])})
        return draft

    def commit(self, verification):
        super().commit(verification)
        self.ledger[-1] |= {"accepted": int(verification.num_accepted[0]), "after": int(self.cache.lengths[0])}


for _ in speculate(target, Listening(head), openings[1:2], GREEDY, num_draft_tokens=4, max_new_tokens=24):
    pass
print("\t".join(Listening.ledger[0]))
for entry in Listening.ledger:
    print("\t".join(f"{value:>{len(name)}}" for name, value in entry.items()))

# %% [markdown]
# Go along the lines. The first round feeds the n - 1 pairs of the prompt. Each later round feeds the pairs of the one
# before it: `fed` is one more than was accepted there. While K tokens are drafted, the cache holds n - 1 true pairs and
# K - 1 of its own. After the verdict it holds n - 1 again.

# %% [markdown]
# ## A smaller vocabulary
#
# Look at the bill of a head. Its own weights are few. But for each drafted token the whole output layer must be read,
# one row for each token of the vocabulary. How do the two compare?

# %%
smol = load_pair("smol")
smol_head = load_eagle(smol.head_folder("eagle"), smol.target, smol.target_folder)
for name, one in (("tiny", head), ("smol", smol_head)):
    shape, own = one.shape, sum(weight.numel() for weight in one.parameters())
    whole, part = (size * shape.width for size in (shape.target_vocab, shape.draft_vocab))
    print(f"{name}, in million weights: the head {own / 1e6:.2f}, the whole output layer {whole / 1e6:.2f},", end=" ")
    print(f"its rows for {shape.draft_vocab:,} draft tokens {part / 1e6:.2f}")

# %% [markdown]
# For SmolLM2 the output layer would be eight times the head. So the head takes only some of its rows: those of the R
# tokens that the target writes most often. Is that not a great loss? Words are not equally common. Here is the share of
# the 80 stories that their R commonest tokens cover, and the share that the head's own draft vocabulary covers. (It was
# chosen on other text.)

# %%
from collections import Counter

count = Counter(token for one in stories for token in one[1:])
ordered = [number for _, number in count.most_common()]
for size in (16, 64, 128, 256):
    print(f"the {size:3} commonest tokens cover {sum(ordered[:size]) / count.total():.2f}")
inside = sum(count[token] for token in head.draft_to_target.tolist())
print(f"the {len(head.draft_to_target)} of the head cover {inside / count.total():.3f}")

# %% [markdown]
# ### Draft ids and target ids
#
# The head has R logits. Entry i is not token i of the target: it is token `draft_to_target[i]`. Three slips are common
# here. The ids are not mapped. The absent tokens get a logit of 0, which softmax turns into weight. Or the law is cut
# after the softmax and not scaled to 1 again.

# %%
from specdec_ref.sampling import SamplingSettings, draw, probabilities

outputs = run_head(head, features[:-1], text[1:])
logits = head.logits(outputs)  # [m, R]
wide = logits.new_full((len(logits), target.vocab_size), -torch.inf).index_copy(-1, head.draft_to_target, logits)
q = probabilities(wide, SamplingSettings(1.0))  # [m, V]
places = range(len(prompt), len(text))
mapped = sum(int(q[place - 2].argmax()) == text[place] for place in places)
unmapped = sum(int(logits[place - 2].argmax()) == text[place] for place in places)
print(f"right tokens, ids mapped: {mapped} of {len(answer)}; draft ids taken for target ids: {unmapped}")

zeros = torch.zeros_like(wide).index_copy(-1, head.draft_to_target, logits).softmax(-1)
outside = torch.ones(target.vocab_size, dtype=torch.bool).index_fill(0, head.draft_to_target, False)
print(f"q outside of the draft vocabulary: {float(q[:, outside].sum(-1).max()):.1f}", end="; ")
print(f"with zeros for the absent logits, at worst: {float(zeros[:, outside].sum(-1).max()):.3f}")
print("q sums to 1 at every place:", torch.allclose(q.sum(-1), torch.ones(len(q))))

# %% [markdown]
# ### Why does the text stay exact?
#
# The head can never draft "zebra". May the text still say "zebra"? It must, as often as the target wants. The rule of
# stage 02 sees to it: outside of the draft vocabulary q is 0, so the residual max(0, p - q) is p itself there. What the
# head cannot say, the correction says.
#
# We compute the law of one emitted token, for a target over five tokens and a head that knows only three of them. For
# each version: from which law is the draft *drawn*, and with which q is it *judged*?


# %%
def emitted(p, drawn, judged):
    """The law of the token that a round with one draft token emits, [V]."""
    passes = torch.where(drawn > 0, drawn * (p / judged.clamp(min=1e-300)).clamp(max=1), 0.0)
    missing = (p - judged).clamp(min=0)
    return passes + (1 - passes.sum()) * missing / missing.sum()


p = torch.tensor([0.3, 0.3, 0.2, 0.1, 0.1], dtype=torch.float64)
kept = torch.tensor([1, 2, 4])
head_law = torch.tensor([0.7, 0.1, 0.2], dtype=torch.float64)  # over draft ids 0, 1, 2
q = torch.zeros(5, dtype=torch.float64).index_copy(0, kept, head_law)
cut = torch.tensor([0.25, 0.15, 0.2, 0.3, 0.1], dtype=torch.float64) * (q > 0)  # a law over all five, masked: sum .45
print("the target's law:                    ", [round(x, 3) for x in p.tolist()])
for name, drawn, judged in (
    ("drawn from q, judged with q", q, q),
    ("masked law, scaled to 1 for both", cut / cut.sum(), cut / cut.sum()),
    ("scaled to draw, NOT scaled to judge", cut / cut.sum(), cut),
    ("ids mapped to draw, not to judge", q, torch.nn.functional.pad(head_law, (0, 2)) + 1e-12),
):
    law = emitted(p, drawn, judged)
    verdict = "exact" if torch.allclose(law, p) else "WRONG"
    print(f"{name:<36} ", [round(x, 3) for x in law.tolist()], verdict)

# %% [markdown]
# A small vocabulary costs *acceptance*, never exactness. How much can it cost? A drafted token passes with chance
# Σ min(p, q), and q is 0 outside. So whatever the head has learned, **α is at most the mass that p has inside of the
# draft vocabulary.** In the example:

# %%
print(f"alpha: {float(torch.minimum(p, q).sum()):.2f}; at most: {float(p[kept].sum()):.2f}")

# %% [markdown]
# The last two lines of the list above are wrong for the old reason: the q that judges is not the law that the token was
# drawn from. With temperature or filters it is the same. `probabilities` makes q from the head's logits with the *same*
# settings as p, and only then a token is drawn. Here is such a draft at temperature 0.8, with its q.

# %%
settings = SamplingSettings(0.8, top_k=50)
sampled = []


class Watching(EagleDrafter):
    """Keeps its drafts."""

    def propose(self, rows, limits):
        sampled.append(super().propose(rows, limits))
        return sampled[-1]


for _ in speculate(target, Watching(head), openings, settings, num_draft_tokens=4, max_new_tokens=24, seeds=8):
    pass
laws = torch.cat([draft.probs.flatten(0, 1) for draft in sampled if draft.width])
tokens = torch.cat([draft.tokens.flatten() for draft in sampled if draft.width])
print("each q sums to 1:", torch.allclose(laws.sum(-1), torch.ones(len(laws))))
print("tokens that a q allows, at most:", int((laws > 0).sum(-1).max()), "- outside of the draft vocabulary:", end=" ")
print(int((laws[:, outside] > 0).sum()))

# %% [markdown]
# ## A tree over EAGLE
#
# Nothing in the head says that only its favourite may be drafted. After each feature there is a whole law, so second
# and third choices can be hung beside the first: a tree, as in stage 07. Each node of it reads the feature of its own
# *parent*, and attends to its own path. The registry calls it `eagle-tree`. Its shape is fixed and small: second
# choices near the root, and a branch of first choices. Path 01 is the second child of the first child.

# %%
from specdec_ref import trees
from specdec_ref.drafters.eagle import TREE

print(f"the {len(TREE)} nodes as paths:", *("".join(map(str, path)) for path in TREE))
per_round = {}
for name in ("eagle", "eagle-tree"):
    rounds = list(speculate(target, tiny.drafter(name), openings, GREEDY, num_draft_tokens=3, max_new_tokens=48))
    row_rounds = sum(1 for result in rounds for tokens in result.tokens if tokens)
    per_round[name] = sum(map(len, collect(rounds))) / row_rounds
    print(f"{name}: {per_round[name]:.2f} tokens a round, the same text as plain: {collect(rounds) == answers}")

# %% [markdown]
# And here is one round of a tree by the head *you* trained, with its words. It is one in which a second choice was
# right, if there was one: a chain would have had nothing accepted.

# %% tags=["nbval-ignore-output"]
trained_rounds = speculate(
    target, EagleDrafter(mine.head, TREE), [openings[1]], GREEDY, num_draft_tokens=3, max_new_tokens=40
)
parents = trees.parents_of(TREE)
chosen = max(
    (one for one in trained_rounds if len(one.drafts[0]) == len(TREE)),
    key=lambda one: (one.tokens[0][:1] == one.drafts[0][1:2], one.num_accepted[0]),  # a second choice, if there is one
)
path, node = [], -1
for word in chosen.tokens[0][: chosen.num_accepted[0]]:
    node = next(child for child, parent in enumerate(parents) if parent == node and chosen.drafts[0][child] == word)
    path.append(node)
words = [tokenizer.decode([word]).strip() or "␣" for word in chosen.drafts[0]]
show(
    figures.draw_word_tree(words, parents, path, "the text"),
    alt=f"A tree of {len(words)} words after the text; accepted: {', '.join(words[node] for node in path) or 'none'}; "
    f"then the target added {tokenizer.decode(chosen.tokens[0][-1:])!r}.",
)

# %% [markdown]
# A tree buys tokens a round with nodes: each is one more row in the target's pass. Where a pass costs about as much for
# a tree as for a chain, that is a good bargain. Where it does not, it is not. For the *head* a level with several nodes
# is still one pass.
#
# The trees of the papers have dozens of nodes; this one is small because it must pay on a CPU. EAGLE-2 goes further
# and lets the head's own probabilities decide, round by round, which nodes the tree gets.
#
# ## On SmolLM2
#
# Now the real target. Its head was trained on text that SmolLM2 wrote; `models/smol-eagle/README.md` has the recipe and
# its held-out figures. First the promise: greedy text is the text of plain decoding.

# %%
from specdec_ref.measure import Run, timed
from specdec_ref.rows import Stop

question = encode_prompt(smol, "What do plants need to grow?")
limits = {"max_new_tokens": 24, "stop": Stop(token_ids=smol.eos_token_ids)}
plain = collect(generate(smol.target, [question], GREEDY, **limits))[0]
print("plain:     ", smol.tokenizer.decode(plain, skip_special_tokens=True))
runs = {}
for name in ("eagle", "eagle-tree"):
    runs[name] = Run()
    rounds = speculate(smol.target, smol.drafter(name), [question], GREEDY, num_draft_tokens=3, **limits)
    for _ in timed(rounds, runs[name], smol.target.device):
        pass
    print(f"{name + ':':<11} the same tokens as plain decoding:", collect(runs[name].rounds)[0] == plain)

# %% tags=["nbval-ignore-output"]
for name, run in runs.items():
    print(f"{name}: {len(run.rounds)} rounds for {run.new_tokens} tokens, {run.emitted_per_round:.2f} a round")
known_ids = set(smol_head.draft_to_target.tolist())
inside = sum(token in known_ids for token in plain)
print(f"tokens of this answer inside of the draft vocabulary: {inside} of {len(plain)}")

# %% [markdown]
# ## The bill of a round
#
# What is on it?
#
# - **Drafting**: K passes of one decoder layer, one after the other, and the rows of the draft vocabulary. The first
#   pass of a round reads 1+a pairs, the others one each.
# - **Verifying**: one pass of the target, as always, plus handing its features over, which costs next to nothing.
# - **Memory**: the head's weights, a copy of the output layer's rows for the draft vocabulary, and a cache of one
#   layer. The embedding is the target's.
# - **Training**: once for each target. A head fits the weights it was trained for and no others; loading checks that.
#
# First measured here and now, on a few prompts, beside the draft model:

# %% tags=["nbval-ignore-output"]
from specdec_course.method_figures import draw_methods, measured_here, published, recorded

print(measured_here(smol, ["model", "eagle", "eagle-tree"]))

# %% [markdown]
# A few prompts are few. Here is the recorded run of `specdec bench drafters` over four kinds of tasks, with the machine
# it was made on.

# %% tags=["nbval-ignore-output"]
methods = ["model", "ngram", "layer-skip", "medusa", "eagle", "eagle-tree"]
print(recorded(methods))
figure, alt = draw_methods(methods, new=["eagle", "eagle-tree"])
show(figure, alt)

# %% [markdown]
# Read the columns from left to right. A head that guesses better brings more tokens a round; a draft step is what it
# costs; each node of a tree is one more row of the check. On the machine of the record a few more rows cost the check
# next to nothing, so there the small tree pays. Where rows are dear it would lose to the chain. One method loses in
# this table, layer skipping: it guesses as well as any, but each draft step costs nearly a whole check. Compare both
# tables: your machine may order the methods in another way.
#
# ### What others measured
#
# Other models, other machines, and no promise for yours:

# %%
print(published(["EAGLE", "EAGLE-2", "EAGLE-3"]))

# %% [markdown]
# Why are these so much larger? The targets have 7 to 70 billion weights, not 0.135. Their heads see wider features and
# learn from more text, so they guess better. A draft step is small beside such a target's step. And a GPU with one text
# to decode has arithmetic to spare for a tree (stage 05).
#
# ## Recap
#
# - A feature is the last hidden state, what the output layer reads. Guess the feature, and the target's own output
#   layer finds the word.
# - A feature knows a law, not what was drawn from it. The pair (feature t, token t+1) settles that.
# - A chain goes on with the head's own guesses; training lets it read them too (training-time test, `--passes 2`).
# - After a round all pairs of the draft are forgotten, and 1+a pairs are read again with true features.
# - Draft ids are not target ids. q is 0 outside of the draft vocabulary and sums to 1 inside. The residual supplies the
#   rest, so the text stays exact; α is at most p's mass inside.
# - A tree adds second choices and rows. Whether rows are cheap is a question to your machine.
#
# ## Further reading
#
# - Li et al. 2024, "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty" (arXiv 2401.15077), sections 1
#   and 3: features, and the "I am / I always" example. "EAGLE-2" (arXiv 2406.16858): dynamic trees.
# - Li et al. 2025, "EAGLE-3" (arXiv 2503.01840), section 3: training-time test, and heads that no longer aim at
#   features.
# - Zhang et al. 2025, "Learning Harmonized Representations for Speculative Sampling" (arXiv 2408.15766): the same idea.
# - Zhao et al. 2025, "FR-Spec" (arXiv 2502.14856): drafting from frequent tokens only.
# - In this repository: `specdec_ref/heads/eagle.py`, `specdec_ref/drafters/eagle.py`, `specdec_ref/training/eagle.py`.
#
# ## Glossary
#
# - **Feature**: the last hidden state of a token. **Head**: a small network that reads the target's features.
# - **Pair**: feature t and the embedding of token t+1. **Own feature**: one that the head guessed.
# - **Training-time test**: training on own features, as drafting will have to.
# - **Draft vocabulary**: the tokens that can be drafted. **Draft id**: a token's place in it; `draft_to_target` maps.
# - **Ceiling**: p's mass inside of the draft vocabulary, which α cannot pass.
#
# ## What next?
#
# Open `exercises/08_eagle.ipynb` and build it: pairs, ids, chain, and what is forgotten. At its end your functions
# draft for SmolLM2.
