"""Drafts from a model with another tokenizer: bytes are kept whole, laws are known, the text is the target's own."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from specdec_ref.decode import collect, generate, speculate
from specdec_ref.drafters import Draft, Drafter, ReencodingDrafter, SharedTokensDrafter
from specdec_ref.drafters.two_tokenizers import Bridge, Spelling
from specdec_ref.law import Drafts, path_probs, sampled_drafts, speculative_law, target_law
from specdec_ref.model import CachedLM
from specdec_ref.rows import Rows, Stop
from specdec_ref.sampling import GREEDY, SamplingSettings, probabilities
from tests.ref.helpers import Watched, accepted_share, random_table, script_lm, tiny_lm, uncached

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = (
    "the world of words is wide, the word of the wordy is wider; a bird sings in the garden and the gardener sings back"
)
STORY = "The gardener sings: grüße an 🐦🐦 und die wörtliche world 😀! the bird sings back, wider than 数 words."


def byte_level(size: int, text: str, special: str | None = None, begins: bool = False) -> PreTrainedTokenizerBase:
    """A byte-level BPE of a few hundred tokens."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    names = [special] if special else []
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=names, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([text] * 3, trainer)
    if begins:
        from tokenizers import processors

        backend.post_processor = processors.TemplateProcessing(single=f"{special} $A", special_tokens=[(special, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=special)


@functools.cache
def tokenizers() -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
    """The target's, and the draft model's, which cuts words elsewhere and begins its texts with a special token."""
    return byte_level(340, WORDS + STORY, "<|stop|>"), byte_level(290, WORDS, "<|begin|>", begins=True)


@functools.cache
def spellings() -> tuple[Spelling, Spelling]:
    target, draft = tokenizers()
    return Spelling(target), Spelling(draft)


@functools.cache
def lms() -> tuple[CachedLM, CachedLM]:
    """Random models over the two vocabularies: their texts are no words, and hardly ever whole characters."""
    target, draft = tokenizers()
    return tiny_lm("llama", 0, vocab_size=len(target)), tiny_lm("llama", 1, vocab_size=len(draft))


def prompts() -> list[list[int]]:
    target = spellings()[0]
    return [target.encode(text.encode()) for text in ("the word", "a bird 🐦 sings", "w", "the garden, wider")]


# Bytes


def test_each_token_says_which_bytes_it_spells():
    target, draft = spellings()
    for spelling, tokenizer in zip((target, draft), tokenizers(), strict=True):
        ids = spelling.encode(STORY.encode())
        assert spelling.spell(ids) == STORY.encode()
        assert tokenizer.decode(ids) == STORY
        assert spelling.bytes[0] == b""  # the special token
        assert spelling.starts(ids, 5)[-1] == 5 + len(STORY.encode())
    assert target.encode(STORY.encode()) != draft.encode(STORY.encode())
    assert (target.prefix, draft.prefix) == ([], [0])


def test_text_that_looks_like_a_special_token_is_text():
    target, draft = spellings()
    assert target.spell(target.encode(b"<|stop|>")) == b"<|stop|>"
    bridge = Bridge(target, draft)
    bridge.update([*target.encode(b"the word "), 0, *target.encode(b"<|begin|>")])  # a real one is left out
    assert draft.spell(bridge.ids) == b"the word <|begin|>"
    assert bridge.ids.count(0) == 1  # the one that the draft model's texts begin with


def test_tokenizers_of_another_kind_and_no_lookbehind_are_refused():
    words = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    with pytest.raises(ValueError, match="is not byte-level"):
        Spelling(PreTrainedTokenizerFast(tokenizer_object=words))
    with pytest.raises(ValueError, match="target_lookbehind=0 must be >= 1"):
        Bridge(*spellings(), target_lookbehind=0)
    with pytest.raises(ValueError, match="assistant_lookbehind=-1"):
        Bridge(*spellings(), assistant_lookbehind=-1)


LETTERS = st.text(st.sampled_from("the word gardens, äß🐦😀数\n1"), max_size=40)


@examples(max_examples=60, deadline=None, derandomize=True)
@given(LETTERS, st.lists(st.integers(1, 9), max_size=12), st.integers(1, 12))
def test_both_sides_spell_the_same_bytes_however_the_text_grows(text: str, steps: list[int], lookbehind: int):
    target, draft = spellings()
    tokens, bridge, before = target.encode(text.encode()), Bridge(target, draft, lookbehind, lookbehind), list[int]()
    place = 0
    for step in [*steps, len(tokens)]:
        place = min(place + step, len(tokens))
        same = bridge.update(tokens[:place])
        whole = target.spell(tokens[:place])
        assert draft.spell(bridge.ids) + bridge.pending == whole
        assert bridge.text.decode().encode() == bridge.text  # whole characters only
        assert bridge.ids[:same][1:] == before[:same][1:]
        assert bridge.draft_starts == draft.starts(bridge.ids[1:], 0)
        before = bridge.ids
    if len(steps) == 0:
        assert bridge.ids == draft.prefix + draft.encode(text.encode())


@examples(max_examples=60, deadline=None, derandomize=True)
@given(LETTERS, LETTERS, st.integers(0, 30), st.integers(0, 3))
def test_what_is_translated_spells_what_was_drafted(text: str, more: str, cut: int, short: int):
    """The target's text ends anywhere, also inside of a character; the draft goes on from its last whole one."""
    target, draft = spellings()
    tokens = target.encode(text.encode())[:cut]
    bridge = Bridge(target, draft)
    bridge.update(tokens)
    said = text.encode()[len(bridge.text) :] if bridge.pending else more.encode()
    written = draft.encode(said)
    written = written[: max(len(written) - short, 0)]
    proposed, spelled = target.spell(bridge.translate(written)), draft.spell(written)
    if proposed:
        assert spelled.startswith(bridge.pending + proposed)
        assert len(spelled) - len(bridge.pending + proposed) < 4  # but for a character that is not whole
        assert (bridge.text + bridge.pending + proposed).decode()


def test_a_character_cut_in_the_middle_is_completed_or_nothing_is_proposed():
    target, draft = spellings()
    bird = "🐦".encode()
    cut = [target.bytes.index(bytes([byte])) for byte in bird]  # four tokens of one byte
    bridge = Bridge(target, draft)
    bridge.update([*target.encode(b"a "), *cut[:2]])
    assert (bridge.text, bridge.pending) == (b"a ", bird[:2])
    assert target.spell(bridge.translate(draft.encode(bird))) in (b"", bird[2:])
    assert bridge.translate(draft.encode("数".encode())) == []  # another character than the one that has begun
    assert bridge.translate(draft.encode(b"word")) == []
    bridge.update([*target.encode(b"a "), *cut])
    assert (bridge.text, bridge.pending) == (b"a " + bird, b"")


def test_bytes_that_are_no_character_do_not_stop_the_draft():
    target, draft = spellings()
    bridge = Bridge(target, draft)
    bridge.update([target.bytes.index(b"\xff"), *target.encode(b" the")])
    assert bridge.text.decode() == "\ufffd the"
    assert target.spell(bridge.translate(draft.encode(b" word"))) == b" word"


def test_a_word_that_is_half_written_is_finished_as_the_target_would_cut_it():
    """The look-behind: `gardener` after `gar` is cut as in the whole word, which its rest alone is not."""
    target, draft = spellings()
    whole = target.encode(b" the gardener sings")
    for end in range(1, len(whole)):
        bridge = Bridge(target, draft)
        bridge.update(whole[:end])
        rest = target.spell(whole[end:])
        assert bridge.translate(draft.encode(rest)) == whole[end:]


def test_a_draft_ends_before_a_special_token():
    target, draft = spellings()
    bridge = Bridge(target, draft)
    bridge.update(target.encode(b"the"))
    assert target.spell(bridge.translate([*draft.encode(b" word"), 0, *draft.encode(b" of")])) == b" word"
    assert bridge.translate([0]) == bridge.translate([]) == []


# The law


def test_a_law_on_shared_tokens_leaves_the_targets_law_unchanged():
    """Tokens 0, 2 and 3 of five are shared with a draft model that has six; q is its law on these, scaled."""
    target, foreign = random_table(5, 0).softmax(-1), random_table(6, 1)
    mine = [1, 4, 5]  # what the draft model calls the target's 0, 2 and 3
    logits = torch.full((5, 5, 5), -torch.inf, dtype=torch.float64)
    as_own = torch.tensor([1, 0, 4, 5, 0])  # a token that it lacks is told as another one
    logits[:, :, [0, 2, 3]] = foreign[as_own][:, as_own][:, :, mine]
    for how in (SamplingSettings(), SamplingSettings(0.6, top_p=0.9)):
        q = probabilities(logits, how)
        found = speculative_law(target, lambda text, q=q: sampled_drafts(q, text, 2), (0, 1), 3, 3)
        assert float((found - target_law(target, (0, 1), 3)).abs().max()) < 1e-12

    def unscaled(text):
        """Drawn from what is shared, judged by the law that it was cut from."""
        drafts, whole = sampled_drafts(q, text, 2), foreign.softmax(-1)[as_own][:, as_own]
        raw = torch.zeros(5, 5, 5, dtype=torch.float64)
        raw[:, :, [0, 2, 3]] = whole[:, :, mine]
        return Drafts(drafts.tokens, drafts.weights, path_probs(raw, text, drafts.tokens)[:, :2])

    found = speculative_law(target, unscaled, (0, 1), 3, 1)
    assert float((found - target_law(target, (0, 1), 3)).abs().max()) > 1e-3


def test_shared_tokens_are_drawn_from_the_draft_models_law_on_them():
    target, draft = lms()
    theirs, own = spellings()
    shared = {said: token for token, said in enumerate(own.bytes) if said}
    pairs = [(token, shared[said]) for token, said in enumerate(theirs.bytes) if said in shared]
    how, rows, checked = SamplingSettings(0.8, top_k=40), list[Rows](), 0

    def look(event: str, _: Drafter, value: object) -> None:
        nonlocal checked
        if isinstance(value, Rows):
            rows.append(value)
        if not isinstance(value, Draft) or value.probs is None:
            return
        for row, text in enumerate(rows[0].tokens):
            bridge = Bridge(theirs, own)
            bridge.update(rows[0].tokens[row][: rows[0].prompt_lengths[row]])
            if len(text) > rows[0].prompt_lengths[row]:
                continue  # how later text is cut depends on where the windows lay; the prompt is cut once
            for i in range(int(value.counts[row])):
                drafted = [dict(pairs)[token] for token in value.tokens[row, :i].tolist()]
                logits = uncached(draft, [*bridge.ids, *drafted])[-1]
                wide = torch.full((target.vocab_size,), -torch.inf, dtype=torch.float64)
                wide[[token for token, _ in pairs]] = logits[[token for _, token in pairs]]
                torch.testing.assert_close(value.probs[row, i], probabilities(wide, how), atol=1e-10, rtol=0)
                checked += 1

    inner = SharedTokensDrafter(draft, *reversed(tokenizers()))
    drafter = Watched(inner, look)
    list(speculate(target, drafter, prompts(), how, num_draft_tokens=3, max_new_tokens=9))
    assert checked >= 9
    assert 256 <= len(pairs) < target.vocab_size


# The drafters


def foreign(kind: type, **options: int) -> Drafter:
    return kind(lms()[1], *reversed(tokenizers()), **options)


@pytest.mark.parametrize("kind", [ReencodingDrafter, SharedTokensDrafter])
@pytest.mark.parametrize("batch", [1, 2, 3, 4])
def test_greedy_text_is_the_targets_own(kind: type, batch: int):
    """Of random models, whose texts hold broken characters everywhere."""
    target, options = lms()[0], {"max_new_tokens": 20, "stop": Stop((0,))}
    plain = collect(generate(target, prompts()[:batch], GREEDY, **options))
    rounds = list(speculate(target, foreign(kind), prompts()[:batch], GREEDY, num_draft_tokens=4, **options))
    assert collect(rounds) == plain
    assert sum(map(sum, (one.num_drafted for one in rounds))) > 0


@pytest.mark.parametrize("kind", [ReencodingDrafter, SharedTokensDrafter])
def test_two_models_that_write_the_same_text_agree_nearly_always(kind: type):
    """One story, in the tokens of each: a draft fails only where a word was cut off, or cannot be said in one token."""
    theirs, own = spellings()
    story = (STORY + " " + WORDS).encode()
    ids = theirs.encode(story)
    target = script_lm([*ids, 0], len(theirs.bytes))
    draft = script_lm([*own.prefix, *own.encode(story), 0], len(own.bytes))
    drafter = kind(draft, *reversed(tokenizers()))
    rounds = list(speculate(target, drafter, [ids[:2]], GREEDY, num_draft_tokens=5, stop=Stop((0,))))
    assert collect(rounds) == [[*ids[2:], 0]]
    if kind is ReencodingDrafter:
        assert accepted_share(rounds) > 0.8
        assert len(ids) / len(rounds) > 3


@pytest.mark.parametrize("kind", [ReencodingDrafter, SharedTokensDrafter])
def test_a_row_does_not_depend_on_the_rows_beside_it(kind: type):
    target, settings = lms()[0], SamplingSettings(0.9, top_p=0.95, repetition_penalty=1.1)
    options = {"num_draft_tokens": 3, "max_new_tokens": 12}
    together = collect(speculate(target, foreign(kind), prompts(), settings, seeds=[1, 2, 3, 4], **options))
    alone = [
        collect(speculate(target, foreign(kind), [prompt], settings, seeds=[seed], **options))[0]
        for seed, prompt in enumerate(prompts(), start=1)
    ]
    assert together == alone


@pytest.mark.parametrize("kind", [ReencodingDrafter, SharedTokensDrafter])
def test_a_text_of_special_tokens_and_a_full_context_propose_nothing(kind: type):
    theirs, own = spellings()
    target, plain = script_lm([0, *theirs.encode(WORDS.encode()), 0], len(theirs.bytes)), WORDS.encode()
    short = script_lm([*own.prefix, *own.encode(plain)][:7], len(own.bytes), max_length=6)
    drafter = kind(short, *reversed(tokenizers()))
    rounds = list(speculate(target, drafter, [[0]], GREEDY, num_draft_tokens=3, max_new_tokens=12))
    assert collect(rounds) == [theirs.encode(plain)[:12]]
    assert rounds[-1].num_drafted == [0]


def test_tokenizers_that_do_not_fit_are_refused():
    target, draft = lms()
    theirs, own = tokenizers()
    with pytest.raises(ValueError, match="the target_tokenizer knows"):
        speculate(target, ReencodingDrafter(draft, own, own), [[1]])
    with pytest.raises(ValueError, match="shares no token"):
        SharedTokensDrafter(script_lm([0], 1), own, theirs)
