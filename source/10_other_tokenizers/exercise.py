# %% [markdown]
# # Exercises: drafts with another tokenizer
#
# You build both ways across: the text over to the draft model and back (10.1 to 10.3), and the law on the tokens that
# both models have (10.4, 10.5). At the end your functions let a model of little stories draft for SmolLM2.
#
# | exercise | points | difficulty | minutes |
# |---|---|---|---|
# | 10.1 Hold back half a character | 2 | 3 of 5 | 8 |
# | 10.2 The text in the draft's tokens | 3 | 4 of 5 | 14 |
# | 10.3 The draft's words in the target's tokens | 2 | 3 of 5 | 10 |
# | 10.4 The tokens that both have | 2 | 2 of 5 | 8 |
# | 10.5 The law on the shared tokens | 3 | 3 of 5 | 10 |
#
# Read the lesson first: `notebooks/10_other_tokenizers.ipynb`.
#
# Replace each `raise NotImplementedError()` by your answer, run the cell, then run the check below it. `hint("10.1")`
# helps a little, and more each time. After a failed check, `replay()` shows the case that failed.

# %%
import torch

from specdec_course import check, hint, logbook, progress, quiz, replay

# %% [markdown]
# ## 10.1 Hold back half a character
#
# *2 points, difficulty 3 of 5, 8 minutes.* Lesson: "Half a character".
#
# The target's tokens are pieces of bytes. `held` are the bytes that have come and were not handed on yet, as numbers
# from 0 to 255. Split them:
#
# - the text of all that is finished,
# - the bytes of a character that has begun and may still be finished: the rest, to be held back.
#
# Bytes that can *never* become a character, whatever comes, are not waited for. They become the replacement mark, �.
#
# | bytes | text | rest |
# |---|---|---|
# | `h` `i` | "hi" | none |
# | `a` C3 | "a" | C3, the first half of an ü |
# | `a` C3 BC | "aü" | none |
# | `a` FF | "a�" | none: no character begins with FF |
# | F0 9F `a` | "�a" | none: a beginning that was broken off is *one* mark |


# %%
def whole_characters(held):
    """Split bytes into text and the beginning of a character.

    Parameters
    ----------
    held : list of int
        Bytes of a text in UTF-8.

    Returns
    -------
    (text, rest): a str, and a list of int.
    """
    ### BEGIN SOLUTION
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = decoder.decode(bytes(held))
    return text, list(decoder.getstate()[0])
    ### END SOLUTION


# %%
check("10.1", whole_characters)

# %% [markdown]
# ## 10.2 The text in the draft's tokens
#
# *3 points, difficulty 4 of 5, 14 minutes.* Lesson: "Bringing the text over".
#
# To keep things in sight, a token is its text here: `[" the", " squ"]`. The text of a list of tokens is
# `"".join(tokens)`.
#
# - `own` is the text so far in the draft's tokens.
# - `window` is the end of this text: the letters of the target's last few tokens. It may begin inside of a token of
#   `own`.
# - `new_text` is what has come.
# - `encode(text)` cuts a text into the draft's tokens.
#
# Encode the window and the new text together. Then join: keep old tokens up to the first place where a token of both
# begins, and go on with the new ones. The end of the old text counts as a place where an old token begins. If there is
# no such place, encode the whole text.
#
# For example, `own = [" the", " squ"]`, `window = " squ"`, `new_text = "irrel"`: together they are `[" squirrel"]`,
# which begins where the old `" squ"` began. So the result is `[" the", " squirrel"]`.


# %%
def rejoin(own, window, new_text, encode):
    """Return the text, new text included, in the draft's tokens.

    Parameters
    ----------
    own : list of str
        The text so far in the draft's tokens; leave it as it is.
    window : str
        The end of that text.
    new_text : str
        What follows it; at least one letter.
    encode : function (str) -> list of str

    Returns
    -------
    list of str
    """
    ### BEGIN SOLUTION
    text = "".join(own)
    before = {0: 0}  # a place, in letters -> how many old tokens end there
    for piece in own:
        before[max(before) + len(piece)] = len(before)
    again = encode(window + new_text)
    place = len(text) - len(window)
    for i, piece in enumerate(again):
        if place in before:
            return own[: before[place]] + again[i:]
        place += len(piece)
    return encode(text + new_text)
    ### END SOLUTION


# %%
check("10.2", rejoin)

# %% [markdown]
# ## 10.3 The draft's words in the target's tokens
#
# *2 points, difficulty 3 of 5, 10 minutes.* Lesson: "And back: the draft's words in the target's tokens".
#
# `window` is the end of the target's text and `written` is what the draft model wrote after it. `encode` is the
# *target's* tokenizer now. Encode both together, and return the tokens that begin where the window ends, or later.
# They must spell `written`.
#
# If a token lies across that border, nothing can be proposed: return an empty list.
#
# One warning. This tokenizer puts a space in front of a text that has none, as many do. The window always begins with
# a space.


# %%
def translate(window, written, encode):
    """Return the draft in the target's tokens, a list of str; empty where a token lies across the border.

    Parameters
    ----------
    window : str
        The end of the target's text.
    written : str
        What the draft model wrote after it.
    encode : function (str) -> list of str
        The target's tokenizer.
    """
    ### BEGIN SOLUTION
    place = 0
    joined = encode(window + written)
    for i, piece in enumerate(joined):
        if place == len(window):
            return joined[i:]
        place += len(piece)
    return []
    ### END SOLUTION


# %%
check("10.3", translate)

# %% [markdown]
# ### Over and back
#
# Try your functions on the lesson's sentence, with the real tokenizers. The target's tokens come one at a time, and the
# window has 3 of them.

# %%
from specdec_course.translated_drafts import Pieces
from specdec_ref.drafters.two_tokenizers import Spelling
from specdec_ref.pairs import load_pair

smol, tiny = load_pair("smol"), load_pair("tiny")
target_pieces, draft_pieces = Pieces(Spelling(smol.tokenizer)), Pieces(Spelling(tiny.tokenizer))
try:
    own, text = [], ""
    tokens = target_pieces.encode(" The hedgehog found a golden key near the river.")
    for n, token in enumerate(tokens):
        window = "".join(tokens[max(0, n - 3) : n])
        own = rejoin(own, window, token, draft_pieces.encode)
    print("the draft reads:    ", "|".join(own))
    print("as it is cut at once:", own == draft_pieces.encode("".join(tokens)))
    print("and back:           ", "|".join(translate(" He saw a hedge", "hog near the river", target_pieces.encode)))
except NotImplementedError:
    print("Answer 10.2 and 10.3 first. Then run this cell again.")

# %% [markdown]
# ## 10.4 The tokens that both have
#
# *2 points, difficulty 2 of 5, 8 minutes.* Lesson: "Only what both can say".
#
# Now the other way: drafts from the tokens that both vocabularies have. Each vocabulary is a list: entry i is what
# token i spells, in the letters of `convert_ids_to_tokens` (`Ġ` is a space). `draft_special` and `target_special` are
# the ids of special tokens. They are never shared, not even where two are called alike: they spell nothing.
#
# Return a list with one entry for each id of the draft: the *target's* id of the same token, or -1 where there is none.


# %%
def shared_tokens(draft_tokens, target_tokens, draft_special, target_special):
    """Return the target's id of each token of the draft, a list of int; -1 where it has none.

    Parameters
    ----------
    draft_tokens, target_tokens : list of str
        What each token spells; its place in the list is its id.
    draft_special, target_special : list of int
        Ids of special tokens.
    """
    ### BEGIN SOLUTION
    special = set(target_special)
    ids = {name: i for i, name in enumerate(target_tokens) if i not in special}
    return [-1 if i in draft_special else ids.get(name, -1) for i, name in enumerate(draft_tokens)]
    ### END SOLUTION


# %%
check("10.4", shared_tokens)

# %% [markdown]
# ## 10.5 The law on the shared tokens
#
# *3 points, difficulty 3 of 5, 10 minutes.* Lesson: "Only what both can say".
#
# `draft_probs` is the draft model's law over its own vocabulary, `to_target` a list as in 10.4. Return q over the
# *target's* vocabulary: the law of a token that is drawn among the shared ones only.
#
# Where the shared tokens have no mass at all, return zeros: nothing is drafted then.


# %%
def restrict_law(draft_probs, to_target, target_size):
    """Return q, the law of a draft among the shared tokens, at the target's ids.

    Parameters
    ----------
    draft_probs : Tensor [V_draft] float
        The draft model's law.
    to_target : list of V_draft int
        The target's id of each token, or -1.
    target_size : int
        How many tokens the target has.

    Returns
    -------
    Tensor [target_size] float; it sums to one, or is all zeros.
    """
    ### BEGIN SOLUTION
    ids = torch.tensor(to_target)
    shared = ids >= 0
    q = draft_probs.new_zeros(target_size)
    q[ids[shared]] = draft_probs[shared]
    total = q.sum()
    return q / total if total > 0 else q
    ### END SOLUTION


# %%
check("10.5", restrict_law)

# %% [markdown]
# ## Your bridge, a real pair
#
# Now `tiny-draft` drafts for SmolLM2, over *your* bridge: 10.1 to 10.3. What is around it, running the draft model and
# keeping its cache, is in `specdec_course/translated_drafts.py`.

# %%
from specdec_course.translated_drafts import TranslatedDrafts
from specdec_ref.decode import collect, generate, speculate
from specdec_ref.measure import Run
from specdec_ref.sampling import GREEDY

prompt = smol.tokenizer.encode("Once upon a time there was a brave little hedgehog named Tom. One sunny morning")
plain = collect(generate(smol.target, [prompt], GREEDY, max_new_tokens=20))[0]
print("plain decoding:", smol.tokenizer.decode(plain))
drafter = TranslatedDrafts(
    tiny.draft, Spelling(tiny.tokenizer), Spelling(smol.tokenizer), whole_characters, rejoin, translate
)
run = Run()
try:
    run = Run(list(speculate(smol.target, drafter, [prompt], GREEDY, num_draft_tokens=4, max_new_tokens=20)))
except NotImplementedError:
    print("Answer 10.1, 10.2 and 10.3 first. Then run this cell again.")
else:
    mine = collect(run.rounds)[0]
    print("your bridge:   ", smol.tokenizer.decode(mine))
    print("the same tokens:", mine == plain)
    drafted = sum(result.num_drafted[0] for result in run.rounds)
    print(f"{len(run.rounds)} rounds, {sum(result.num_accepted[0] for result in run.rounds)} of {drafted} accepted")

# %% [markdown]
# And with your law? `SharedTokensDrafter` of the reference draws its drafts from what your 10.4 and 10.5 hand back.

# %%
from specdec_ref.drafters import SharedTokensDrafter


class WithYourLaw(SharedTokensDrafter):
    """The reference's drafter, with your map and your law."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        names = [t.convert_ids_to_tokens(list(range(len(t)))) for t in (tiny.tokenizer, smol.tokenizer)]
        self.to_target = shared_tokens(*names, tiny.tokenizer.all_special_ids, smol.tokenizer.all_special_ids)

    def _restrict(self, logits):
        laws = [restrict_law(law, self.to_target, self.vocab_size) for law in logits.softmax(-1).cpu()]
        return torch.stack(laws).log().to(logits.device)


try:
    sharing = WithYourLaw(tiny.draft, tiny.tokenizer, smol.tokenizer)
    shared_run = Run(list(speculate(smol.target, sharing, [prompt], GREEDY, num_draft_tokens=4, max_new_tokens=20)))
    print("tokens that both have:", sum(token >= 0 for token in sharing.to_target))
    print("the same tokens as plain decoding:", collect(shared_run.rounds)[0] == plain)
except NotImplementedError:
    print("Answer 10.4 and 10.5 first. Then run this cell again.")

# %% [markdown]
# What did the stranger bring? The logbook keeps the figures of your bridge.

# %% tags=["nbval-ignore-output"]
import time

if run.rounds:
    start = time.perf_counter()
    mine = collect(speculate(smol.target, drafter, [prompt], GREEDY, num_draft_tokens=4, max_new_tokens=20))[0]
    logbook(
        "10",
        exact=mine == plain,
        alpha=round(run.alpha, 3),
        tokens_per_round=round(run.emitted_per_round, 3),
        tokens_per_second=round(len(mine) / (time.perf_counter() - start), 1),
    )
else:
    print("Answer 10.1, 10.2 and 10.3, then run this cell again.")

# %% [markdown]
# ## Do you see why?
#
# Four questions, without points. Pick an answer; every choice has an explanation. In a notebook without buttons, answer
# with the letter: `quiz("10.a", "b")`.

# %%
quiz("10.a")

# %%
quiz("10.b")

# %%
quiz("10.c")

# %%
quiz("10.d")

# %% [markdown]
# ## What next?
#
# You have seen every way to draft of this course: a smaller sister, the text itself, the target's own layers, heads, a
# student, a chain of three, and a stranger. Try your bridge with two models of your own: `load_pair` wants a shared
# tokenizer, but `TranslatedDrafts` does not. Then run `specdec experiment` on your own prompts. Let the bill decide.

# %% tags=["nbval-ignore-output"]
progress()
