# %% [markdown]
# # Stage 09, exercises: students and stages
#
# You write the three losses that teach a student, choose a student by what it will be paid for, and build a draft that
# is itself a speculative decoder: one inner round, the loop around it, and its bill. At the end three real models work
# through your code.
#
# | exercise | points | difficulty | minutes |
# |---|---|---|---|
# | 9.1 Three losses, at the right positions | 3 | 3 of 5 | 12 |
# | 9.2 Which student drafts best? | 2 | 2 of 5 | 6 |
# | 9.3 One inner round | 3 | 4 of 5 | 12 |
# | 9.4 A draft for the draft | 2 | 3 of 5 | 10 |
# | 9.5 The bill of three levels | 3 | 3 of 5 | 12 |
#
# Read the lesson first: `notebooks/09_students_and_stages.ipynb`.
#
# Replace each `raise NotImplementedError()` by your answer, run the cell, then run the check below it. A check says
# *passed*, *not yet* (with the reason), or *not attempted*. Stuck? `hint("9.1")` gives one more hint each time, and
# `replay()` shows the case on which the last check failed.
#
# All luck comes in as an argument. Draw no random numbers of your own.

# %%
import torch

from specdec_course import carry, check, hint, logbook, progress, quiz, replay

# %% [markdown]
# A tool from stage 01. It returns the token in whose piece of the unit interval the uniform number lies.


# %%
def draw(probs, uniform):
    """Draw a token from probs [V] with a uniform number in [0, 1): an int."""
    cdf = probs.double().cumsum(-1)
    passed = (cdf <= uniform * cdf[-1]) & (cdf < cdf[-1])  # rounding must not lead past the last token with mass
    return int(passed.sum())


print([draw(torch.tensor([0.5, 0.3, 0.2]), uniform) for uniform in (0.1, 0.6, 0.9)])

# %% [markdown]
# ## 9.1 Three losses, at the right positions
#
# *3 points, difficulty 3 of 5, 12 minutes.* Lesson: "Three ways to be wrong" and "Where is a loss measured?".
#
# A batch of texts was read by the target and by a student. You have the logits of both, for each position of each row.
# `mask` says at which positions a draft would be judged: prompts and padding are False.
#
# Both models draw at `temperature`. Return the mean over the judged positions of
#
# - `"forward_kl"`: KL(p ‖ q) = Σ p log(p / q),
# - `"reverse_kl"`: KL(q ‖ p) = Σ q log(q / p),
# - `"tv"`: the total variation, so that 1 − TV is the acceptance.
#
# p is the target's law, q the student's, logarithms are natural. Each judged position counts once, whichever row it is
# in.


# %%
def distillation_losses(target_logits, draft_logits, mask, temperature):
    """Return the three losses of a student, averaged over the judged positions: a dict of floats.

    target_logits, draft_logits: tensors [B, T, V] of raw logits
    mask: tensor [B, T] of bool; True where the row of logits predicts a token that a draft would be judged on
    temperature: float > 0, of both models
    """
    ### BEGIN SOLUTION
    log_p = (target_logits[mask] / temperature).log_softmax(-1)  # [N, V]
    log_q = (draft_logits[mask] / temperature).log_softmax(-1)
    p, q = log_p.exp(), log_q.exp()
    losses = {
        "forward_kl": (p * (log_p - log_q)).sum(-1),
        "reverse_kl": (q * (log_q - log_p)).sum(-1),
        "tv": 0.5 * (p - q).abs().sum(-1),
    }
    return {name: float(values.mean()) for name, values in losses.items()}
    ### END SOLUTION


# %%
check("9.1", distillation_losses)

# %% [markdown]
# ## 9.2 Which student drafts best?
#
# *2 points, difficulty 2 of 5, 6 minutes.* Lesson: "Choose by acceptance".
#
# Several students have read the same text as the target. Which of them will be accepted most often? Return its name and
# its α: the chance that a token which it drafts, at a position of this text, is accepted.


# %%
def choose_student(target_probs, students):
    """Return (name, alpha) of the student whose drafts are accepted most often: a str and a float.

    target_probs: tensor [N, V], the target's law at N positions
    students: dict of name -> tensor [N, V], a student's laws at the same positions
    """
    ### BEGIN SOLUTION
    alphas = {name: float(torch.minimum(target_probs, q).sum(-1).mean()) for name, q in students.items()}
    best = max(alphas, key=alphas.get)
    return best, alphas[best]
    ### END SOLUTION


# %%
check("9.2", choose_student)

# %% [markdown]
# ## 9.3 One inner round
#
# *3 points, difficulty 4 of 5, 12 minutes.* Lesson: "One inner round" and "Whose q?".
#
# Now there are three models. The *micro* model has drafted k tokens for the *draft* model. The draft model has read
# them in one pass, which gave k + 1 laws. Judge the micro tokens by the draft model's laws: keep the leading run, then
# add one token of the draft model's own.
#
# The target will judge what you return. So it must be told, for each token, the law that the token *follows*. Return
# the tokens, and these laws, one row for each token.


# %%
def inner_round(draft_probs, micro_probs, micro_tokens, accept_uniforms, correct_uniform):
    """Return (tokens, laws): a list of 1 to k + 1 tokens, and a tensor with as many rows [V].

    draft_probs: tensor [k + 1, V]; row i is the draft model's law before micro token i, row k the law after all of them
    micro_probs: tensor [k, V], the laws that the micro tokens were drawn from
    micro_tokens: tensor [k] of token ids; k may be 0
    accept_uniforms: tensor [k]; micro token i is kept if its number is BELOW the chance to keep it
    correct_uniform: float in [0, 1), draws the token after the kept ones
    """
    ### BEGIN SOLUTION
    kept, k = 0, len(micro_tokens)
    while kept < k:
        token = int(micro_tokens[kept])
        if float(accept_uniforms[kept]) >= float(draft_probs[kept, token] / micro_probs[kept, token]):
            break
        kept += 1
    law = draft_probs[kept]
    if kept < k:
        missing = (draft_probs[kept] - micro_probs[kept]).clamp(min=0)
        law = missing if float(missing.sum()) > 0 else law
    tokens = [*micro_tokens[:kept].tolist(), draw(law, correct_uniform)]
    return tokens, draft_probs[: len(tokens)]
    ### END SOLUTION


# %%
check("9.3", inner_round)

# %% [markdown]
# ### Does the draft model's law come out?
#
# Do not take the check's word for it. The micro model drafts one token, again and again, and your round decides. The
# first token of the rounds must follow the draft model's law, whatever the micro model likes.

# %%
draft_law, micro_law = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.5, 0.3]], dtype=torch.float64)
luck = torch.Generator().manual_seed(9)
try:
    counts = torch.zeros(3)
    for _ in range(3000):
        numbers = torch.rand(3, generator=luck, dtype=torch.float64)
        token = draw(micro_law, float(numbers[0]))
        laws = torch.stack([draft_law, draft_law])
        tokens, _ = inner_round(laws, micro_law[None], torch.tensor([token]), numbers[1:2], float(numbers[2]))
        counts[tokens[0]] += 1
    print("the draft model's law:", draft_law.tolist())
    print("your first tokens:    ", [round(share, 1) for share in (counts / counts.sum()).tolist()])
except NotImplementedError:
    print("Answer 9.3 first. Then run this cell again.")

# %% [markdown]
# ## 9.4 A draft for the draft
#
# *2 points, difficulty 3 of 5, 10 minutes.* Lesson: "The loop inside".
#
# Fill a draft of K tokens with inner rounds. Three functions are given:
#
# - `micro(text, n)` lets the micro model draft n tokens after `text`. It returns them and their laws.
# - `draft(text, tokens)` is *one pass* of the draft model over `tokens` behind `text`. It returns 1 + n laws.
# - `judge(draft_laws, micro_tokens, micro_laws)` is the inner round of 9.3. It returns new tokens and their laws.
#
# The micro model drafts at most `inner_draft_tokens` a time. A draft is exactly K tokens long: nothing is computed that
# will be thrown away.


# %%
def staged_draft(text, num_draft_tokens, inner_draft_tokens, micro, draft, judge):
    """Return (tokens, laws): a list of K drafted tokens, and a list of the K laws they follow.

    text: list of int, the committed tokens
    num_draft_tokens: K >= 1, tokens that the target will judge
    inner_draft_tokens: the most that the micro model drafts for one pass of the draft model
    micro, draft, judge: functions, as described above
    """
    ### BEGIN SOLUTION
    tokens, laws = [], []
    while len(tokens) < num_draft_tokens:
        so_far = text + tokens
        room = num_draft_tokens - len(tokens)
        micro_tokens, micro_laws = micro(so_far, min(inner_draft_tokens, room - 1))
        new_tokens, new_laws = judge(draft(so_far, micro_tokens), micro_tokens, micro_laws)
        tokens = tokens + new_tokens
        laws = laws + list(new_laws)
    return tokens, laws
    ### END SOLUTION


# %%
check("9.4", staged_draft)

# %% [markdown]
# ## 9.5 The bill of three levels
#
# *3 points, difficulty 3 of 5, 12 minutes.* Lesson: "The bill of a staged round" and "Statistics of every level".
#
# A run with three models left a list of rounds. Each round is one pass of the target. Its draft was written by inner
# rounds, each of them one pass of the draft model:
#
# ```python
# {"emitted": 5, "inner": [(3, 3), (1, 0)]}  # tokens of the text; (micro tokens, accepted) of each inner round
# ```
#
# An inner round writes its accepted micro tokens and one token of the draft model's own. So this draft had 5 tokens. An
# inner round without micro tokens is a plain step of the draft model.
#
# Return a dict with
#
# - `"target_passes"`, `"draft_passes"`, `"micro_steps"`: what each level did,
# - `"speedup"`: plain decoding of the same tokens over this run,
# - `"without_micro"`: the speedup if the draft model had written the same drafts alone, step by step.
#
# If the first is larger than the second, the third model pays.


# %%
def staged_bill(rounds, target_step_s, verify_s, draft_step_s, draft_verify_s, micro_step_s):
    """Return what the levels did and what it was worth: a dict of three ints and two floats.

    rounds: list of dicts with "emitted" (int) and "inner" (list of (micro tokens, accepted))
    target_step_s, verify_s: seconds of a plain step of the target, and of its pass over a draft
    draft_step_s, draft_verify_s: seconds of a plain step of the draft model, and of its pass over micro tokens
    micro_step_s: seconds of one step of the micro model
    """
    ### BEGIN SOLUTION
    inner = [one for result in rounds for one in result["inner"]]
    micro_steps = sum(drafted for drafted, _ in inner)
    written = sum(accepted + 1 for _, accepted in inner)
    passes_s = sum(draft_verify_s if drafted else draft_step_s for drafted, _ in inner)
    target_s = len(rounds) * verify_s
    plain_s = sum(result["emitted"] for result in rounds) * target_step_s
    return {
        "target_passes": len(rounds),
        "draft_passes": len(inner),
        "micro_steps": micro_steps,
        "speedup": plain_s / (target_s + passes_s + micro_steps * micro_step_s),
        "without_micro": plain_s / (target_s + written * draft_step_s),
    }
    ### END SOLUTION


# %%
check("9.5", staged_bill)

# %% [markdown]
# ## Your code, three real models
#
# `tiny-target` writes a story, `tiny-draft` drafts for it, and `tiny-micro` drafts for the draft. First two students
# on one text, by your 9.1 and 9.2.

# %%
from specdec_course.demo import encode_prompt
from specdec_ref.decode import collect, generate
from specdec_ref.pairs import load_pair, load_trained
from specdec_ref.sampling import GREEDY

pair = load_pair("tiny")
micro_lm, _ = load_trained("tiny-micro", pair.target.device)
prompt = encode_prompt(pair, "Once upon a time there was a shy fox named Tom.")
plain = collect(generate(pair.target, [prompt], GREEDY, max_new_tokens=40))[0]
print(pair.tokenizer.decode(plain))


class Reader:
    """A model that reads any text; what it has in common with the text before stays in its cache."""

    def __init__(self, lm):
        self.lm, self.held = lm.fresh(1), []

    def read(self, text, count):
        """Return the logits after each of the last `count` tokens of `text`: [count, V]."""
        same = 0
        while same < min(len(self.held), len(text) - count) and self.held[same] == text[same]:
            same += 1
        self.lm.rollback([len(self.held) - same])
        block = torch.tensor([text[same:]], device=self.lm.device)
        self.held = list(text)
        return self.lm.extend(block)[0, -count:].double().cpu()


# %%
whole = [*prompt, *plain]
logits = {lm.name: Reader(lm).read(whole, len(whole))[None] for lm in (pair.target, pair.draft, micro_lm)}
judged = torch.zeros(1, len(whole), dtype=torch.bool)
judged[0, len(prompt) - 1 : -1] = True  # the row of a token predicts the next one
try:
    for name in ("tiny-draft", "tiny-micro"):
        losses = distillation_losses(logits["tiny-target"], logits[name], judged, 1.0)
        print(f"{name}: " + ", ".join(f"{loss} {value:.2f}" for loss, value in losses.items()))
    laws = {name: rows[judged].softmax(-1) for name, rows in logits.items()}
    name, alpha = choose_student(laws.pop("tiny-target"), laws)
    print(f"chosen: {name}, alpha {alpha:.2f}")
except NotImplementedError:
    print("Answer 9.1 and 9.2 first. Then run this cell again.")

# %% [markdown]
# Now all three levels. The inner round and the loop are yours. The target's verdict is your `judge_block` of stage 02,
# if it has passed its check there.

# %% tags=["nbval-ignore-output"]
two = carry("02")


# %%
def one_hot(logits):
    """Return greedy laws: all mass on the favourite."""
    return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).double()


def no_luck(count):
    """Greedy laws leave nothing to chance, so any numbers will do."""
    return torch.full((count,), 0.5, dtype=torch.float64)


target, draft, micro = Reader(pair.target), Reader(pair.draft), Reader(micro_lm)
inner_log = []


def micro_draft(text, n):
    """Let the micro model draft n tokens, greedily."""
    tokens, laws = [], [torch.zeros(0, pair.target.vocab_size).double()]
    for _ in range(n):
        laws.append(one_hot(micro.read([*text, *tokens], 1)))
        tokens.append(int(laws[-1].argmax()))
    return tokens, torch.cat(laws)


def draft_pass(text, tokens):
    """Let the draft model read the micro tokens in one pass."""
    return one_hot(draft.read([*text, *tokens], 1 + len(tokens)))


def my_inner_round(draft_laws, micro_tokens, micro_laws):
    """Your 9.3, with its counts noted."""
    ids = torch.tensor(micro_tokens, dtype=torch.int64)
    tokens, laws = inner_round(draft_laws, micro_laws, ids, no_luck(len(ids)), 0.5)
    inner_log.append((len(ids), len(tokens) - 1))
    return tokens, laws


mine, rounds = [], []
try:
    while len(mine) < len(plain):
        text, inner_log = [*prompt, *mine], []
        room = len(plain) - len(mine)
        if room == 1:
            tokens = [int(target.read(text, 1).argmax())]
        else:
            drafted, laws = staged_draft(text, min(6, room - 1), 3, micro_draft, draft_pass, my_inner_round)
            ids, count = torch.tensor(drafted), len(drafted)
            verdict_laws = one_hot(target.read([*text, *drafted], 1 + count))
            tokens = two.judge_block(verdict_laws, torch.stack(list(laws)), ids, no_luck(count), 0.5)
        mine += tokens
        rounds.append({"emitted": len(tokens), "inner": inner_log})
    print("the same tokens as plain greedy decoding:", mine == plain)
    print(f"rounds: {len(rounds)}; passes of the draft model: {sum(len(one['inner']) for one in rounds)}")
except NotImplementedError:
    print("Answer 9.3 and 9.4 first. Then run this cell again.")

# %% [markdown]
# And its bill, with the times of this machine.

# %% tags=["nbval-ignore-output"]
from specdec_ref.measure import time_passes

target_s, draft_s = (time_passes(lm, (1, 4, 7), context=48, repeats=5) for lm in (pair.target, pair.draft))
micro_s = time_passes(micro_lm, (1,), context=48, repeats=5)[1]
print(f"T_d {draft_s[1] / target_s[1]:.2f} T_t, T_m {micro_s / target_s[1]:.2f} T_t", end="; ")
print(f"a pass of the draft over 4 tokens {draft_s[4] / draft_s[1]:.2f} T_d")
try:
    bill = staged_bill(rounds, target_s[1], target_s[7], draft_s[1], draft_s[4], micro_s) if rounds else None
    if bill:
        print({name: round(value, 2) for name, value in bill.items()})
        print("the third model pays here:", bill["speedup"] > bill["without_micro"])
        logbook("09", exact=mine == plain, **{name: round(value, 2) for name, value in bill.items()})
    else:
        print("Answer 9.3 and 9.4 first. Then run this cell again.")
except NotImplementedError:
    print("Answer 9.5 first. Then run this cell again.")

# %% [markdown]
# If it does not pay, that is a finding and no failure. Look at T_m: a model with a sixth of the weights is not six
# times as fast.
#
# ## Do you see why?
#
# Three questions, without points. Pick an answer; every choice has an explanation. In a notebook without buttons,
# answer with the letter: `quiz("9.a", "b")`.

# %%
quiz("9.a")

# %%
quiz("9.b")

# %%
quiz("9.c")

# %% [markdown]
# ## What next?
#
# You can teach a draft and put drafts in stages. All models so far shared one tokenizer, since token ids are compared.
# What if the small model that you trust was made for another vocabulary? That is stage 10:
# `notebooks/10_other_tokenizers.ipynb`.

# %% tags=["nbval-ignore-output"]
progress()
