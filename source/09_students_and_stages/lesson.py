# %% [markdown]
# # Students and stages: distilled drafts, and drafts for the draft
#
# Where does a good draft model come from? And if drafting is slow, who drafts for the draft?
#
# After this stage you can
#
# - name three ways to teach a student, and say which of them measures acceptance itself,
# - say at which positions, and at which temperature, a loss must be measured,
# - teach a student in seconds, and choose among students by what they are paid for,
# - build a draft that is itself a speculative decoder, exact at both levels,
# - say which q the target must be told, and why no greedy test can find a wrong one,
# - read statistics of three levels, write their bill, and say when a third model pays.
#
# Reading takes about 20 minutes. The exercises are in `exercises/09_students_and_stages.ipynb`.
#
# | symbol | in code | meaning |
# |---|---|---|
# | p, q | `target_probs`, `draft_probs` | law of the target, law of the student that drafts |
# | α | `alpha` | chance that a judged draft token is accepted |
# | K | `num_draft_tokens` | tokens that the target judges in a round |
# | k | `inner_draft_tokens` | tokens that the micro model drafts for one pass of the draft model |
# | T_t, T_d, T_m | `..._step_s` | one step of target, draft and micro model |
# | T_v | `verify_s` | one pass of the target over K + 1 tokens |
# | T_vd | `draft_verify_s` | one pass of the draft model over k + 1 tokens |

# %% [markdown]
# ## Three ways to be wrong
#
# A draft model need not be clever. It must *say what the target will say*. So take a small untrained model, let the
# target write, and teach the small one to imitate it. That is **distillation**. The small model is the **student**.
#
# At each position the student has a law q, and the target has p. How wrong is q? Stage 02 has answered that already: a
# token drawn from q is accepted with chance
#
# $$\alpha = \sum_x \min(p(x), q(x)) = 1 - \mathrm{TV}(p, q), \qquad
# \mathrm{TV}(p, q) = \tfrac12 \sum_x |p(x) - q(x)|$$
#
# TV is the **total variation**: how much mass must be moved to turn q into p. Why the half? Let us look.

# %%
import numpy as np

p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.3])
print("missing in q, and too much in q:", (p - q).clip(min=0).sum().round(3), (q - p).clip(min=0).sum().round(3))
print("sum of |p - q|:", np.abs(p - q).sum().round(3), " TV:", (np.abs(p - q).sum() / 2).round(3))
print("accepted, sum of min(p, q):", np.minimum(p, q).sum().round(3))

# %% [markdown]
# Each misplaced piece of mass shows up twice in Σ|p − q|: once where it is missing and once where it is too much. It
# is moved once. Without the half, two laws with nothing in common would be at distance 2, and "1 − TV" would be −1.
#
# Two older measures come from information theory. They are called **KL divergences**, and they are not symmetric:
#
# $$\mathrm{KL}(p \,\|\, q) = \sum_x p(x) \log\frac{p(x)}{q(x)} \qquad
# \mathrm{KL}(q \,\|\, p) = \sum_x q(x) \log\frac{q(x)}{p(x)}$$
#
# The first is the *forward* KL: the target's law weighs the logarithms. The second is the *reverse* KL: the student's
# own law does. All three are 0 exactly when q = p. So with a student of unlimited size it would not matter which one is
# made small. Where does it matter? Where the student is *too small* to become p. That is every draft model.


# %%
def forward_kl(p, q):
    """KL(p || q): dear where the target says what the student does not."""
    return (p * np.log(p / q)).sum(-1)


def reverse_kl(p, q):
    """KL(q || p): dear where the student says what the target does not."""
    return (q * np.log(q / p)).sum(-1)


def total_variation(p, q):
    """TV: the share of drafts that is refused."""
    return np.abs(p - q).sum(-1) / 2


measures = {"forward KL": forward_kl, "reverse KL": reverse_kl, "TV": total_variation}
print("p against q:", {name: round(float(measure(p, q)), 3) for name, measure in measures.items()})
print("q against p:", {name: round(float(measure(q, p)), 3) for name, measure in measures.items()})

# %% [markdown]
# ### What a small student can do
#
# Take a target that hesitates between two things: its law over 24 tokens has two bumps. And take a student that can
# only ever say *one* thing, more or less precisely: one bump, of which it chooses the place and the width. There are
# few enough such students to try them all. For each measure, which one is the best?


# %%
def bump(place, width):
    """A law over 24 tokens with one bump."""
    scores = -(((np.arange(24) - place) / width) ** 2) / 2
    weights = np.exp(scores - scores.max()) + 1e-12  # nobody is ever quite sure
    return weights / weights.sum()


target_law = 0.6 * bump(5, 1.0) + 0.38 * bump(16, 1.4) + 0.02 / 24
candidates = [(place, width) for place in np.arange(0, 23.1, 0.25) for width in np.arange(0.5, 8.1, 0.25)]
laws = np.array([bump(place, width) for place, width in candidates])
best = {}
for name, measure in measures.items():
    number = int(measure(target_law, laws).argmin())
    best[name] = laws[number]
    place, width = (float(value) for value in candidates[number])
    print(f"least {name:<10}: bump at {place:5.2f}, width {width:.2f};", end=" ")
    print(", ".join(f"{other} {check(target_law, laws[number]):.2f}" for other, check in measures.items()), end="; ")
    print(f"accepted {np.minimum(target_law, laws[number]).sum():.2f}")

# %% tags=["nbval-ignore-output"]
from specdec_course import staged_figures as figures
from specdec_course.figures import show

show(
    figures.draw_students(target_law, {f"least {name}": law for name, law in best.items()}),
    alt="Three panels with the same two-bumped law of a target as grey bars. The student with the least forward KL is "
    "one wide bump that covers both bumps and the valley between them. Those with the least reverse KL and least TV "
    "are narrow bumps on the larger one. What student and target have in common is filled: more of it on the right.",
)

# %% [markdown]
# The forward KL is **mode-covering**. Where p has mass and q has none, log(p / q) explodes. So the student spreads over
# everything that the target might say, the valley in between included, which the target hardly ever says. There its
# drafts are refused.
#
# The reverse KL is **mode-seeking**. Now it is dear to say what the target would not. So the student picks one bump
# and is silent about the other. For a text generator that would be a loss of variety. For a *draft* it is none: variety
# comes from the target's corrections.
#
# And TV? It counts what is accepted, no more and no less. By definition no student of this family is accepted more
# often than the one in the last line. Here it is nearly the one of the reverse KL.
#
# ### A small KL is a promise, not an order
#
# Pinsker's inequality ties them together: TV ≤ √(KL / 2), with either KL. So a student with a small KL *must* be
# accepted often. Does a smaller KL mean a better draft? Meet two students of one law.

# %%
p = np.array([0.5, 0.49, 0.01])
students = {
    "forgetful": np.array([0.5, 0.499999, 0.000001]),  # never says the rare token
    "blurred": np.array([0.35, 0.64, 0.01]),  # gets the frequent ones wrong
}
for name, q in students.items():
    forward, reverse, tv = (float(measure(p, q)) for measure in measures.values())
    print(f"{name:<9}: forward KL {forward:.3f}, reverse KL {reverse:.3f}, TV {tv:.3f}", end="; ")
    print(f"Pinsker promises TV <= {(forward / 2) ** 0.5:.3f} and {(reverse / 2) ** 0.5:.3f}; accepted {1 - tv:.3f}")

# %% [markdown]
# By forward KL the blurred student is the better one. It is accepted far less. The forgetful one pays dearly for a
# token that comes once in a hundred. The promise holds for both, but it does not say who is better.
#
# ## Where is a loss measured?
#
# A student's capacity is small, so it should be spent where a draft is judged. That is one place for each token that
# the *target writes*: not inside of the prompt, which is given, and not in the padding, which is no text. Row t of the
# logits predicts token t + 1. So the rows that count run from the last token of the prompt to the last but one of the
# answer.

# %%
prompts, answers = [["Once", "a"], ["Tom"]], [["fox", "ran", "."], ["slept", "."]]
for prompt, answer in zip(prompts, answers, strict=True):
    read = [*prompt, *answer][:-1]  # the last token predicts nothing that was written
    counts = [place >= len(prompt) - 1 for place in range(len(read))]
    padding = ["-"] * (4 - len(read))
    print("read:  ", *(f"{word:>6}" for word in read + padding))
    print("counts:", *(f"{'yes' if yes else 'no':>6}" for yes in counts + [False] * len(padding)))

# %% [markdown]
# Three faults are common here, and none of them shows as an error. *The mean over all positions*: much of the loss is
# then about prompts and padding. *Zeros for masked positions, and a mean that divides by all of them*: the loss looks
# small before anything is learned. *The mask one place to the right*: the first token of each answer is never taught.
#
# One more thing belongs to the place: **temperature**. A draft is judged under the settings of the user. If those say
# temperature .5, then p *and* q are at .5. What if the loss forgets it for the student? Then the student learns to be
# sharp all by itself. And later, when it drafts, it is sharpened once more.


# %%
def at(logits, temperature):
    """The law that is drawn from."""
    weights = np.exp((logits - logits.max()) / temperature)
    return weights / weights.sum()


target_logits = np.array([2.0, 1.5, 0.5, 0.0])
taught = {
    "both at .5": target_logits,  # a student that reached its goal: q = p at the same temperature
    "only the target at .5": target_logits / 0.5,  # q at 1 is p at .5: a loss of 0, by mistake
}
for name, logits in taught.items():
    alpha = np.minimum(at(target_logits, 0.5), at(logits, 0.5)).sum()
    print(f"taught with {name}: accepted when it drafts at .5: {alpha:.2f}")

# %% [markdown]
# ## A few seconds of teaching
#
# Now a real one. `tiny-target` goes on with openings of little stories, at temperature 1. We keep its laws at each
# position. Why let the target write? A draft is judged along the *target's own* text, so that is what it should learn
# from, and not the text that once taught the target.
#
# The student has one layer. Loop, batches and optimiser are those that made the models of this course
# (`specdec_ref/training`). Only the loss is ours. Here are the three measures again, from logarithms:


# %%
import torch

losses = {
    "forward KL": lambda log_p, log_q: (log_p.exp() * (log_p - log_q)).sum(-1),
    "reverse KL": lambda log_p, log_q: (log_q.exp() * (log_q - log_p)).sum(-1),
    "TV": lambda log_p, log_q: (log_p.exp() - log_q.exp()).abs().sum(-1) / 2,
}
check_p, check_q = torch.tensor([0.5, 0.3, 0.2]).log(), torch.tensor([0.2, 0.5, 0.3]).log()
print({name: round(float(loss(check_p, check_q)), 3) for name, loss in losses.items()})

# %% [markdown]
# TV is what we are paid for. So the student that learns by TV should win, and by far. Do you agree? Write down your
# guess.

# %% tags=["nbval-ignore-output"]
import time

from specdec_course import student_lab as lab
from specdec_ref.pairs import load_pair

tiny = load_pair("tiny", device="cpu")  # small enough to learn without a GPU
start = time.perf_counter()
text = lab.write_text(tiny)
print(f"{tiny.target.name} wrote {text.num_tokens} tokens in {time.perf_counter() - start:.0f} s")

from_scratch, taught_by = {}, {}
for name, loss in losses.items():
    start = time.perf_counter()
    taught_by[name] = lab.new_student(tiny, seed=0)
    from_scratch[name] = lab.teach(taught_by[name], text, loss, steps=160)
    reached = list(from_scratch[name].values())[-1]
    print(f"{name}: {time.perf_counter() - start:.0f} s, acceptance on held-out text {reached:.2f}", end="; ")
    favourites, confidence = lab.habits(taught_by[name], text.look_at)
    print(f"{favourites} different favourites, which get {confidence:.2f} on average")

# %%
ends = {name: list(curve.values())[-1] for name, curve in from_scratch.items()}
habits = {name: lab.habits(student, text.look_at) for name, student in taught_by.items()}
print("forward KL and TV end close together:", abs(ends["forward KL"] - ends["TV"]) < 0.1)
print("reverse KL has learned next to nothing:", ends["reverse KL"] < ends["forward KL"] / 3)
print("TV has fewer favourites than forward KL:", habits["TV"][0] < habits["forward KL"][0] / 1.5)
print("and is surer of them:", habits["TV"][1] > habits["forward KL"][1] + 0.1)

# %% [markdown]
# There you see the panels again, in a language model. By forward KL the student has many favourites and is less sure of
# them: it covers. By TV it has fewer and backs them: it seeks. And by reverse KL it has one favourite for all places.
# How can a loss that worked on bumps fail like that? Look at what a loss says to somebody who knows nothing, so that
# all 1,000 tokens are equally likely. The target says token 0 with .7, token 1 with .2, token 2 with .05. How strongly
# does each loss pull at them?

# %%
start_p = torch.full((1000,), 0.05 / 997, dtype=torch.float64)
start_p[:3] = torch.tensor([0.7, 0.2, 0.05])
for name, loss in losses.items():
    logits = torch.zeros(1000, dtype=torch.float64, requires_grad=True)
    loss(start_p.log(), logits.log_softmax(-1)).backward()
    pull = -logits.grad[:3]
    print(f"{name:<10}: " + ", ".join(f"{value:.5f}" for value in pull.tolist()), end="; ")
    print("over the pull on token 0: " + ", ".join(f"{value:.2f}" for value in (pull / pull[0]).tolist()))

# %% [markdown]
# The forward KL pulls at each token as strongly as it is missing. The other two multiply by q, and q is a thousandth.
# Our optimiser, Adam, makes small steps larger, so the size is no obstacle. But the *direction* says less. TV pulls at
# all three equally: it asks only where p is larger than q, and not how much. The reverse KL hardly tells .7 from .05
# either. What it minds are the tokens that the target never says. So the student first learns *one* law for all places,
# of tokens that are nowhere quite forbidden, and our few steps do not take it further.
#
# So let the forward KL begin. Each loss may take over where the student has learned where the mass is.

# %% tags=["nbval-ignore-output"]
import copy

taken_over, grown = {}, {}
for name, loss in losses.items():
    grown[name] = copy.deepcopy(taught_by["forward KL"])
    taken_over[name] = lab.teach(grown[name], text, loss, steps=160, learning_rate=2e-3)
    print(f"{name} takes over: {taken_over[name][0]:.3f} -> {list(taken_over[name].values())[-1]:.3f}")

show(
    figures.draw_curves({"from scratch": from_scratch, "after a start by forward KL": taken_over}),
    alt="Acceptance on held-out text against training steps, in two panels. From scratch: "
    + ", ".join(f"{name} reaches {value:.2f}" for name, value in ends.items())
    + ". After a start by forward KL: "
    + ", ".join(f"{name} reaches {list(curve.values())[-1]:.2f}" for name, curve in taken_over.items())
    + ".",
)

# %%
later = {name: list(curve.values())[-1] for name, curve in taken_over.items()}
print("all three go on learning:", all(later[name] > taken_over[name][0] + 0.05 for name in later))
print("now TV is ahead of forward KL:", later["TV"] > later["forward KL"])

# %% [markdown]
# With a good start, TV pays off. That is why the recipe of the course's own drafts adds KL and TV
# (`specdec_ref/training/distill.py`). DistillSpec (Zhou et al. 2024) tried such losses on larger pairs and found that
# the best one depends on the task and on how one decodes. Nobody can tell you in advance. You can measure.
#
# ## Choose by acceptance
#
# Three students are there. Which one do you take? Not the one with the smallest loss: their losses are different
# quantities. Take the one with the largest mean of Σ min(p, q), on text that none of them has learned from. That needs
# no decoding, only two passes over a text. And then check with the real thing.

# %% tags=["nbval-ignore-output"]
counted = {}
for name, student in grown.items():
    runs = {t: lab.decode_with(tiny, student, text.prompts, temperature=t) for t in (1.0, 0.0)}
    counted[name] = {t: run.alpha for t, run in runs.items()}
    print(f"{name}: overlap {later[name]:.3f}; counted while decoding", end=" ")
    print(", ".join(f"{alpha:.2f} at temperature {t:g}" for t, alpha in counted[name].items()))

# %%
print("at temperature 0 forward KL is ahead of TV:", counted["forward KL"][0.0] > counted["TV"][0.0])

# %% [markdown]
# Did you expect the last line? The overlap and the count at temperature 1 ask for the same number: the first adds up
# chances, the second tosses coins, and with so few of them it is rough. At temperature 0 acceptance is another
# question: do both have the same favourite? Here the student with many favourites does better. **So choose with the
# settings of your users**, and teach for them too.
#
# What did it cost? Here are the drafts of the course, from their cards.

# %%
import json

from specdec_ref import store

for name in ("tiny-draft", "tiny-micro", "smol-draft"):
    record = json.loads((store.trained_folder(name) / "curve.json").read_text(encoding="utf-8"))
    first, last = record["looks"][0], record["looks"][-1]
    seen = last["step"] * record["recipe"]["plan"]["batch_size"]
    print(f"{name}: {last['step']} steps, {seen} texts read", end="; ")
    common = [f"{look['alpha_greedy']:.2f} after {look['step']} steps" for look in (first, last)]
    print("favourites in common:", ", ".join(common))

# %% [markdown]
# Writing the text and training is paid *once*; the memory for a second model is paid as long as it serves.
# `specdec train --help` lists the commands. Neither a shared family nor distillation guarantees the best speedup:
# acceptance and price both count (stage 05).
#
# ## A draft for the draft
#
# A round of K = 6 makes six steps of the draft, one after the other. Why one after the other? Because each token needs
# the one before it. You have heard that sentence about the target. So the same medicine should help: let a still
# smaller model, the **micro** model, draft for the draft. That is **staged speculation** (Spector and Ré 2023).

# %% tags=["nbval-ignore-output"]
show(
    figures.draw_stages([(3, 3), (1, 1)]),
    alt="Two timelines. With two models: six steps of the draft one after the other, then one pass of the target. With "
    "three: three short steps of the micro model, a pass of the draft that yields four tokens, one micro step, a pass "
    "that yields two more, then the same pass of the target, which begins earlier.",
)

# %%
inner = [(3, 3), (1, 1)]  # micro tokens and accepted ones of each inner round in the picture
print("tokens of the draft:", sum(accepted + 1 for _, accepted in inner))
print("passes of the draft model: 6 alone,", len(inner), "with help; micro steps:", sum(n for n, _ in inner))

# %% [markdown]
# ### One inner round
#
# Inside, the roles move down by one. The micro model proposes, the *draft model* judges, in one pass, by the rule of
# stage 02: keep x with chance min(1, q(x) / m(x)), m being the micro model's law. After a refusal the replacement comes
# from the residual max(0, q − m). If all were kept, one bonus token.
#
# Here is one on tables, with numbers that we choose. Micro proposes tokens 1 and 2.

# %%
from specdec_ref.acceptance import verify_chain

draft_law, micro_law = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([0.2, 0.5, 0.3]).double()
draft_rows, micro_rows = draft_law.expand(1, 3, 3), micro_law.expand(1, 2, 3)  # the same law everywhere, for once
proposal = torch.tensor([[1, 2]])
for numbers in ([0.55, 0.6], [0.55, 0.7], [0.65, 0.1]):
    verdict = verify_chain(
        draft_rows, proposal, micro_rows, torch.tensor([numbers]).double(), torch.tensor([0.9]).double()
    )
    kept = int(verdict.num_accepted)
    written = [*proposal[0, :kept].tolist(), int(verdict.next_token)]
    print(f"u = {numbers}, to be below {0.3 / 0.5:.2f} and {0.2 / 0.3:.2f}: kept {kept}, written {written}")

# %% [markdown]
# ### Whose q?
#
# Now the target judges these tokens, and for that it needs q, "the law that each token was really drawn from". Some of
# them were proposed by the micro model. One was drawn from a residual. So which law do you report? Three answers are
# tempting:
#
# 1. the micro model's law for what it proposed,
# 2. the residual for the correction,
# 3. the draft model's law for all of them.
#
# Remember what stage 02 proved. Whatever was proposed, what *comes out* of the rule follows the judging model's law.
# Proposal, verdict and correction are one draw. Inside, the judge is the draft model. So each token follows the draft
# model's q, as if it had drawn it itself: answer 3.
#
# We can count it. `specdec_ref/law.py` adds up the exact law of the text, over all drafts and all uniform numbers, with
# no luck left. Three tables, three tokens, K = 2 outside and k = 2 inside.

# %%
from functools import partial

from specdec_ref.law import Drafts, path_probs, sampled_drafts, speculative_law, staged_drafts, target_law

luck = torch.Generator().manual_seed(9)
large, middle, micro = (torch.randn(3, 3, 3, generator=luck, dtype=torch.float64).softmax(-1) for _ in range(3))
so_far = (0, 1)  # a text to go on with
micro_drafts = partial(sampled_drafts, micro, num_draft_tokens=2)


def staged(text):
    """All drafts that the inner level can write, each with its chance; q is the draft model's."""
    return staged_drafts(middle, micro_drafts, text, 2)


def distance(drafter, target=large, length=3):
    """The total variation between what speculation writes and what the target alone would write."""
    found = speculative_law(target, drafter, so_far, length, rounds=length)
    return float((found - target_law(target, so_far, length)).abs().sum()) / 2


drafts = staged(so_far)
by_itself = drafts.probs.gather(-1, drafts.tokens[..., None]).squeeze(-1).prod(-1)  # if the draft model drew alone
print("inner level, from the draft model's own law:", f"{float((drafts.weights - by_itself).abs().sum()) / 2:.6f}")
print(f"both levels, from the target's law: {distance(staged):.6f}")

# %% [markdown]
# Both levels are exact. Now the two mistakes. The first reports the micro model's q. The second has an inner level that
# draws its replacement from q instead of the residual, "since the outer level corrects everything anyway". Does it?

# %%
from specdec_ref.acceptance import Verification
from specdec_ref.sampling import draw


def micros_q(text):
    """The right drafts, reported with the micro model's law."""
    right = staged(text)
    return Drafts(right.tokens, right.weights, path_probs(micro, text, right.tokens)[:, :2])


def second_chance(target_probs, draft_tokens, draft_probs, accept_uniforms, correct_uniforms, num_drafted=None):
    """A verdict with a fault: the replacement does not come from the residual."""
    verdict = verify_chain(target_probs, draft_tokens, draft_probs, accept_uniforms, correct_uniforms, num_drafted)
    after = target_probs[torch.arange(len(draft_tokens)), verdict.num_accepted]
    return Verification(verdict.num_accepted, draw(after, correct_uniforms))


def careless_inside(text):
    """Drafts of an inner level with that fault, reported with the draft model's law."""
    weights = speculative_law(middle, micro_drafts, text, 2, 2, second_chance).flatten()
    right = sampled_drafts(middle, text, 2)
    return Drafts(right.tokens, weights, right.probs)


print(f"the micro model's q reported: {distance(micros_q):.3f} of the text's law is wrong")
print(f"a careless inner level:       {distance(careless_inside):.3f} of the text's law is wrong")
honest = partial(sampled_drafts, middle, num_draft_tokens=2)
print(f"the outer level, checked alone with honest drafts: {distance(honest):.6f}")

# %% [markdown]
# The outer level corrects what q *says* is wrong with the draft. If q is not the law of the tokens, it corrects the
# wrong thing. And look at the last line: a test of the outer level alone sees nothing. **Two levels, three checks**:
# the inner one against the draft model's law, the outer one against the target's, and both together.
#
# Would a test with greedy decoding find it? We break the real drafter as badly as we can: the laws that it reports are
# shifted by one token, which is complete nonsense.

# %%
from specdec_course.demo import encode_prompt
from specdec_ref.decode import collect, generate, speculate
from specdec_ref.drafters import ModelDrafter, StagedDrafter
from specdec_ref.pairs import load_trained
from specdec_ref.sampling import GREEDY, SamplingSettings


class Nonsense(StagedDrafter):
    """Reports laws that are shifted by one token."""

    def _inner_round(self, level):
        law, healthy = super()._inner_round(level)
        return law.roll(1, dims=-1), healthy


micro_lm, _ = load_trained("tiny-micro", tiny.target.device)
beginnings = (
    "Once upon a time there was a shy fox named Tom.",
    "One windy morning Mia walked to the market.",
    "There once was a brave girl whose name was Lily.",
    "In the garden Ben found a silver key.",
)
openings = [encode_prompt(tiny, words) for words in beginnings]
plain = [collect(generate(tiny.target, [opening], GREEDY, max_new_tokens=48))[0] for opening in openings]
broken = Nonsense(tiny.draft, ModelDrafter(micro_lm), num_draft_tokens=3)
greedy = [
    collect(speculate(tiny.target, broken, [opening], GREEDY, num_draft_tokens=6, max_new_tokens=48))[0]
    for opening in openings
]
print("greedy texts are still right:", greedy == plain)
warm = collect(speculate(tiny.target, broken, openings[:1], SamplingSettings(1.0), max_new_tokens=24, seeds=9))
print("sampling raises no error, and writes", len(warm[0]), "tokens")

# %% [markdown]
# **No greedy test can find it**: at temperature 0 a draft token passes if it is the target's favourite, and q is never
# asked. Sampling does not complain either. It writes a text, only of another law. So look at the law.
#
# ### The loop inside
#
# One inner round writes 1 to k + 1 tokens. The target wants K. So there is a loop, and it is the loop of stage 04, one
# level down: limit, draft, one pass, judge, go on. With room for r more tokens, how many may the micro model draft? At
# most r − 1, since a round brings one more than it keeps. For the last token it drafts none, and the draft model takes
# a plain step.
#
# After the target's verdict *both* caches roll back, the draft model's and the micro model's. All of this is
# `specdec_ref/drafters/staged.py`.
#
# ## Statistics of every level
#
# Three models at work, greedily, on four stories. The drafter can be watched: it tells of each inner round.

# %%
from specdec_ref.measure import Run

inner, outer, alone = Run(), Run(), Run()
three = StagedDrafter(tiny.draft, ModelDrafter(micro_lm), num_draft_tokens=3, watch=inner.rounds.append)
for opening in openings:
    options = {"num_draft_tokens": 6, "max_new_tokens": 48}
    outer.rounds += speculate(tiny.target, three, [opening], GREEDY, **options)
    alone.rounds += speculate(tiny.target, ModelDrafter(tiny.draft), [opening], GREEDY, **options)

texts = [[token for one in rounds for token in one] for rounds in ([r.tokens[0] for r in outer.rounds], plain)]
print("the text is the target's own:", texts[0] == texts[1])
print("round by round the same drafts as from the draft model alone:", outer.rounds == alone.rounds)
print("level   passes  tokens  a pass  alpha of who drafts for it")
print(f"target  {len(outer.rounds):>6} {outer.new_tokens:>7} {outer.emitted_per_round:>7.2f}  {outer.alpha:.2f}")
print(f"draft   {len(inner.rounds):>6} {inner.new_tokens:>7} {inner.emitted_per_round:>7.2f}  {inner.alpha:.2f}")
print(f"micro   {inner.drafted:>6} {inner.drafted:>7} {1:>7.2f}")

# %% [markdown]
# Read it line by line.
#
# - The **target** made as many passes as without a micro model, and judged the same drafts. The micro model cannot
#   change α: what the inner level writes follows the draft model, whoever helped.
# - The **draft model** wrote the tokens of all drafts. Alone it would need a step for each. It made fewer passes.
# - The **micro model** made a step for each token that it drafted, the refused ones too.
#
# Inner rounds are *not* passes of the target. Who adds them to the outer rounds finds more passes than tokens, and so a
# decoder that cannot win. And what the inner rounds "emit" is draft, not text.

# %%
print("tokens of all drafts:", outer.drafted, "- steps that the draft model would make alone")
print("passes it makes with help:", len(inner.rounds))
print(
    "added up with the target's, by mistake:", len(inner.rounds) + len(outer.rounds), "for", outer.new_tokens, "tokens"
)
print("of its drafts the text got", outer.accepted, "and from the target itself", outer.new_tokens - outer.accepted)

# %% [markdown]
# ## The bill of a staged round
#
# Without a third model a round costs K T_d + T_v. With one, the K draft steps are replaced by inner rounds: a pass of
# the draft model over k + 1 tokens, and k micro steps. An inner round brings E(α', k) tokens of the draft, with α' the
# inner acceptance and E of stage 05. So in long drafts a draft token costs
#
# $$T_d' = \frac{k \, T_m + T_{vd}}{E(\alpha', k)}$$
#
# When does the third model pay? When T_d' < T_d. Write it down:
#
# $$\frac{E(\alpha', k) \, T_d}{k \, T_m + T_{vd}} > 1$$
#
# You know this formula. It is the speedup of stage 05, **one level down**. The draft model takes the place of the
# target. So: *a third model pays exactly where speculation pays for the draft model.*
#
# A draft ends after K tokens, so the last inner rounds are short. `staged_draft_cost` takes that into account, by a
# recursion over the tokens still missing. Is it right? Let us toss coins. (Until the times of this machine come in, we
# take T_vd = T_d.)

# %%
from specdec_ref.draft_shapes import staged_draft_cost
from specdec_ref.economics import expected_tokens, speedup

coins = np.random.default_rng(9)


def played(alpha, count, most, draft_step, micro_step):
    """Cost of one draft of `count` tokens, in target steps: inner rounds of coin tosses."""
    cost, left = 0.0, count
    while left:
        drafted = min(most, left - 1)
        passed = (coins.random(drafted) < alpha).cumprod().sum()
        cost += drafted * micro_step + draft_step
        left -= int(passed) + 1
    return cost


T_d, T_m, inner_alpha = 0.3, 0.02, 0.8
limit = (3 * T_m + T_d) / expected_tokens(inner_alpha, 3)
print(f"a draft step alone: {T_d:.3f}; with help in an endless draft {limit:.3f}")
for count in (1, 2, 4, 6, 12):
    tossed = np.mean([played(inner_alpha, count, 3, T_d, T_m) for _ in range(4000)]) / count
    print(f"K = {count:2}: by recursion {staged_draft_cost(inner_alpha, count, 3, T_d, T_m):.3f}, tossed {tossed:.2f}")

# %% [markdown]
# For K = 1 there is nothing to help with. Short drafts end in short inner rounds. With longer ones the price comes near
# the limit.
#
# How good must the micro model be? Here is the price of a draft token, in draft steps.

# %% tags=["nbval-ignore-output"]
show(
    figures.draw_draft_cost([0.02, 0.2, 0.5], 6, 3),
    alt="Price of a draft token against inner acceptance, for K = 6 and k = 3. With a micro step of .02 draft "
    "steps the price falls from a little above 1 to about a third. With .2 it starts at 1.4 and crosses 1 before an "
    "acceptance of .4. With .5 it starts at 2 and crosses 1 near .7.",
)

# %%
print("price of a draft token, in draft steps, K = 6, k = 3")
print("inner acceptance:   ", *(f"{value:5.1f}" for value in (0.0, 0.3, 0.5, 0.7, 0.9, 1.0)))
for ratio in (0.02, 0.2, 0.5):
    prices = staged_draft_cost([0.0, 0.3, 0.5, 0.7, 0.9, 1.0], 6, 3, 1.0, ratio)
    print(f"T_m = {ratio:4.2f} T_d:       ", *(f"{price:5.2f}" for price in prices))

# %% [markdown]
# So the micro model must be much cheaper than the draft, not just smaller. A lookup in the text, which costs nearly
# nothing, may be the best micro model of all.
#
# ### What is there to gain?
#
# A third model can only save what drafting costs. If drafting is a tenth of the bill, then even free drafts would save
# only that tenth. Let α = .8 and T_v = T_t; the micro model costs a twentieth of the draft, and α' = .8 as well.

# %%
from specdec_ref.economics import best_num_draft_tokens

bills = {}
print("T_d    two models     three, same K          three, best K and k     free drafts, that K")
for draft_step in (0.02, 0.1, 0.3, 0.6):
    micro_step, two_k = draft_step / 20, int(best_num_draft_tokens(0.8, draft_step, max_draft_tokens=24))
    prices = {
        (count, most): float(staged_draft_cost(0.8, count, most, draft_step, micro_step))
        for count in range(1, 25)
        for most in range(min(count, 9))  # most = 0: the draft model works alone
    }
    gains = {lengths: float(speedup(0.8, lengths[0], price)) for lengths, price in prices.items()}
    same = max((one for one in gains if one[0] == two_k), key=gains.get)
    best_lengths = max(gains, key=gains.get)
    print(f"{draft_step:<5}  K = {two_k:2}: {gains[two_k, 0]:.2f}x", end="  ")
    print(f"K = {two_k:2}, k = {same[1]}: {gains[same]:.2f}x", end="   ")
    print(f"K = {best_lengths[0]:2}, k = {best_lengths[1]}: {gains[best_lengths]:.2f}x", end="    ")
    print(f"{float(expected_tokens(0.8, best_lengths[0])):.2f}x")
    if draft_step in (0.02, 0.3):
        tokens = float(expected_tokens(0.8, two_k))
        of_draft = two_k * float(staged_draft_cost(0.8, *same, draft_step, 0.0))
        of_micro = two_k * prices[same] - of_draft
        bills[f"T_d = {draft_step}, K = {two_k}, two"] = (0.0, two_k * draft_step, 1.0, tokens)
        bills[f"T_d = {draft_step}, K = {two_k}, three"] = (of_micro, of_draft, 1.0, tokens)

# %% tags=["nbval-ignore-output"]
show(
    figures.draw_bills(bills),
    alt="Bars of what a round costs. "
    + " ".join(
        f"{name}: micro {a:.2f}, draft {b:.2f}, target {c:.2f}, together {a + b + c:.2f} for {t:.2f} tokens."
        for name, (a, b, c, t) in bills.items()
    ),
)

# %% [markdown]
# Where the draft is cheap, little is left to save. Where it is dear, the third model does two things: it makes drafts
# cheaper, and *because* they are cheaper, longer drafts pay. At T_d = .6 the pair drafts one token, for which nobody
# can help; with three models a longer draft pays. So choose k and K together, or k first, inside, for the lowest price
# of a draft token, and then K for that price.
#
# And look at the last column: what entirely free drafts would give at that K. Nothing inside of the draft can beat it.
#
# ## On this machine
#
# The tiny family has all three levels. What do its steps cost here?

# %% tags=["nbval-ignore-output"]
from specdec_ref.measure import time_passes

times = {lm.name: time_passes(lm, (1, 4, 7), context=64, repeats=7) for lm in (tiny.target, tiny.draft, micro_lm)}
t, d, m = times.values()
for name, seconds in times.items():
    print(f"{name}: a step {1e3 * seconds[1]:.2f} ms, a pass over 4 tokens {1e3 * seconds[4]:.2f} ms")
price = staged_draft_cost(inner.alpha, 6, 3, d[1] / t[1], m[1] / t[1], d[4] / d[1])
print(f"T_d {d[1] / t[1]:.2f} T_t, T_m {m[1] / d[1]:.2f} T_d", end="; ")
print(f"a staged draft token {float(price) / (d[1] / t[1]):.2f} T_d")
for name, cost in (("two models", d[1] / t[1]), ("three models", float(price))):
    print(f"{name}: speedup by the bill, K = 6: {float(speedup(outer.alpha, 6, cost, t[7] / t[1])):.2f}")

# %% [markdown]
# How much smaller is the micro model?

# %%
for lm in (tiny.target, tiny.draft, micro_lm):
    weights = sum(weight.numel() for weight in lm.model.parameters())
    print(f"{lm.name}: {weights:,} weights, layers: {lm.model.config.num_hidden_layers}")

# %% [markdown]
# If the third model loses here, look at T_m. `tiny-micro` has a sixth of the weights of `tiny-draft`, but its step is
# far from six times as fast. At this size a step is not so much arithmetic as the *starting* of operations, layer by
# layer, and one layer against two is about a half. On a large draft model, whose step is bound by memory, the ratio of
# sizes would show. A loss is a loss all the same, and it stays in the table.
#
# ## SmolLM2
#
# For SmolLM2 the course has no third model. But remember what a good micro model needs: hardly any cost. So `staged`
# lets the *text itself* draft for `smol-draft`: an n-gram lookup, as in stage 06. Greedy, on two texts:

# %%
from specdec_course.benchmark import suites
from specdec_ref.rows import Stop

smol = load_pair("smol")
stop = Stop(token_ids=smol.eos_token_ids)
for task in ("code-edit", "story"):
    prompt = encode_prompt(smol, suites.load(task).tuning[0].text)
    by_hand = collect(generate(smol.target, [prompt], GREEDY, max_new_tokens=16, stop=stop))
    staged_drafter, inside = smol.drafter("staged"), Run()
    staged_drafter.watch = inside.rounds.append
    options = {"num_draft_tokens": 4, "max_new_tokens": 16, "stop": stop}
    run = Run(list(speculate(smol.target, staged_drafter, [prompt], GREEDY, **options)))
    print(f"{task}: the same tokens as plain decoding: {collect(run.rounds) == by_hand}", end="; ")
    print(f"{len(run.rounds)} passes of the target, {len(inside.rounds)} of the draft, {run.drafted} drafts", end="; ")
    print(f"looked up {inside.drafted}, accepted {inside.accepted}")

# %% [markdown]
# The lookups cost next to nothing, and where the text repeats they write most of the draft. Where it does not, the
# draft model makes nearly a pass for each of its tokens, as if it were alone, and each pass carries refused guesses.
#
# ## The methods side by side
#
# What does a round cost here, with one draft model and with stages?

# %% tags=["nbval-ignore-output"]
from specdec_course.method_figures import draw_methods, measured_here, published, recorded

print(measured_here(smol, ["model", "staged"]))

# %% [markdown]
# And in the recorded run of all methods, on one machine, with the same prompts:

# %% tags=["nbval-ignore-output"]
print(recorded(["ngram", "layer-skip", "medusa", "eagle", "model", "staged"]))
figure, alt = draw_methods(["ngram", "layer-skip", "medusa", "eagle", "model", "staged"], new=["model", "staged"])
show(figure, alt=alt)

# %% [markdown]
# Compare the two blue bars on each kind of prompts: who wins over all need not win everywhere. The drafting time in
# these tables comes from rounds in which the target refuses everything; what the inner level saves depends on the
# text. The extra memory is that of the draft model. The lookup needs none, and it was not trained.
#
# What was published? These are other models on other machines. The staged decoder of the paper drafts trees as well,
# and its third model is an n-gram model.

# %%
print(published(["draft model", "staged drafts"]))

# %% [markdown]
# ## Recap
#
# - Acceptance is 1 − TV. Forward KL covers everything the target may say, reverse KL seeks one thing, TV counts what
#   is paid for.
# - TV is the goal and a bad first teacher: begin with KL. Choose students by acceptance, never by their losses.
# - Measure a loss where drafts are judged, along the target's own text, with p and q at the users' temperature.
# - Staged: speculation inside of the draft. What comes out follows the draft model's q, so that is the q to report.
# - The inner level must be as exact as the outer, and greedy tests cannot tell. Check the law over both levels.
# - Inner rounds are passes of the draft, not of the target. The micro model's steps are on the bill.
# - A third model pays where speculation pays for the draft model, and it saves at most what drafting costs.
#
# ## Further reading
#
# - Spector and Ré 2023, "Accelerating LLM Inference with Staged Speculative Decoding" (arXiv 2308.04623): trees, and a
#   draft for the draft.
# - Zhou et al. 2024, "DistillSpec: Improving Speculative Decoding via Knowledge Distillation" (arXiv 2310.08461),
#   section 4: losses, and whose text to learn from.
# - Chen et al. 2023, "Cascade Speculative Drafting for Even Faster LLM Inference" (arXiv 2312.11462): stages, and
#   which of them should write which token.
# - Leviathan, Kalman and Matias 2023 (arXiv 2211.17192), section 3.2 and appendix: acceptance as 1 − TV.
# - In this repository: `specdec_ref/training/distill.py`, `tiny.py` and `loop.py`, `specdec_ref/drafters/staged.py`,
#   `specdec_ref/draft_shapes.py`, and the cards of `models/tiny-draft`, `tiny-micro` and `smol-draft`.
#
# ## Glossary
#
# - **Distillation**: teaching a small model, the **student**, to imitate the laws of a large one.
# - **Total variation (TV)**: half of Σ|p − q|; the share of drafts that is refused.
# - **Forward KL**: KL(p ‖ q), mode-covering. **Reverse KL**: KL(q ‖ p), mode-seeking.
# - **Pinsker's inequality**: TV ≤ √(KL / 2).
# - **Staged speculation**: a draft that is itself decoded speculatively. **Micro model**: who drafts for the draft.
# - **Inner round**: the micro model drafts, the draft model judges. **Inner acceptance**: its α.
#
# ## What next?
#
# Open `exercises/09_students_and_stages.ipynb`. You write the losses, choose a student and build the stages. At the end
# three real models work through your code.
