"""Stage 04: the solution's functions do what the reference does, on the same inputs and the same uniform numbers."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specdec_course.checks.stage_04 import ToyTarget, decode_bytes
from specdec_course.ledger import Ledger
from specdec_ref.decode import collect, generate, speculate
from specdec_ref.drafters import ModelDrafter
from specdec_ref.measure import Run
from specdec_ref.rows import Round, Rows, Stop
from specdec_ref.sampling import GREEDY, Purpose, SamplingSettings, draw, probabilities, uniforms
from specdec_ref.text import TextStream
from tests.course.solutions import solution_functions
from tests.ref.helpers import PlannedDrafter, cycle_lm, position_lm, random_table_lm, texts, tiny_lm


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny models are quicker on one thread, and two tests at once do not fight for cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


MINE = solution_functions("04_the_pipeline")


class Cached:
    """A `CachedLM` of one row under the three names that the exercises use."""

    def __init__(self, lm, batch=1):
        self.lm = lm.fresh(batch)

    @property
    def lengths(self):
        return self.lm.cache.lengths

    def extend(self, block):
        return self.lm.extend(block)

    def rollback(self, counts):
        self.lm.rollback(counts)


class Luck:
    """The uniform numbers of the reference, by round and position."""

    def __init__(self, seed):
        self.seed, self.round = seed, 0

    def __call__(self, purpose, position, count):
        places = torch.arange(position, position + count)[None]
        return uniforms(torch.tensor([self.seed]), torch.tensor([self.round]), places, purpose)[0]


def my_rounds(target, draft, prompt, settings, k, budget, eos_ids, seed):
    """The solution's rounds with the reference's laws and luck."""
    luck, place = Luck(seed), [0]

    def pick(logits, uniform):
        law = probabilities(logits, settings)
        return int(draw(law, uniform)), law

    def propose(draft, text, count):
        place[0] = len(text)
        return MINE["propose"](draft, text, luck(Purpose.DRAFT, len(text), count), pick) if count else ([], [])

    def judge(logits, tokens, laws):
        from specdec_ref.acceptance import verify_chain

        p = probabilities(logits, settings)[None]
        q = torch.stack(laws)[None] if laws else p[:, :0]
        accept = luck(Purpose.ACCEPT, place[0], len(tokens))[None]
        verdict = verify_chain(
            p, torch.tensor([tokens], dtype=torch.int64), q, accept, luck(Purpose.CORRECT, place[0], 1)
        )
        luck.round += 1
        return int(verdict.num_accepted[0]), int(verdict.next_token[0])

    mine = Cached(target)
    mine.lm.prefill([prompt[:-1]])
    arguments = mine, Cached(draft), prompt, propose, judge, k, budget, eos_ids
    return list(MINE["speculative_generate"](*arguments))


def their_rounds(target, draft, prompt, settings, k, budget, eos_ids, seed):
    rounds = speculate(
        target,
        ModelDrafter(draft),
        [prompt],
        settings,
        num_draft_tokens=k,
        max_new_tokens=budget,
        stop=Stop(token_ids=eos_ids),
        seeds=seed,
    )
    return [(r.tokens[0], r.num_drafted[0], r.num_accepted[0]) for r in rounds if r.tokens[0]]


@pytest.mark.parametrize("settings", [GREEDY, SamplingSettings(temperature=0.8), SamplingSettings(top_k=3)])
@pytest.mark.parametrize("k", [0, 1, 3, 5])
def test_the_solution_writes_the_rounds_of_the_reference(settings, k):
    target, draft = random_table_lm(5, 0), random_table_lm(5, 1)
    for budget in (0, 1, 2, 7, 12):
        for eos_ids in ((), (2,), (1, 4)):
            arguments = target, draft, [3, 0], settings, k, budget, eos_ids, 100 * budget + k
            assert my_rounds(*arguments) == their_rounds(*arguments)


def test_the_solution_writes_the_rounds_of_the_reference_with_attention():
    """Real attention: a hole in a cache, a wrong position or a stale entry changes the laws."""
    target, draft = tiny_lm("llama", 0), tiny_lm("llama", 1, num_hidden_layers=1)
    for seed in range(3):
        arguments = target, draft, [5, 1, 9], SamplingSettings(temperature=1.5), 4, 20, (7,), seed
        assert my_rounds(*arguments) == their_rounds(*arguments)


def test_a_model_that_drafts_for_itself_is_always_accepted_by_the_solution():
    lm = position_lm(7)
    rounds = my_rounds(lm, lm, [3], GREEDY, 4, 200, (), 0)
    assert sum(len(new) for new, _, _ in rounds) == 200
    assert all(drafted == accepted for _, drafted, accepted in rounds)


def test_the_block_is_cut_where_the_reference_cuts_it():
    generator = torch.Generator().manual_seed(0)
    for case in range(200):
        block = torch.randint(0, 6, (1 + case % 6,), generator=generator).tolist()
        eos_ids = tuple(range(case % 3))
        remaining = 1 + case % 5
        rows = Rows([[0]], GREEDY, remaining, 100, Stop(token_ids=eos_ids), [0], torch.device("cpu"))
        kept = rows.commit([block], [[]], [0]).tokens[0]
        assert MINE["cut_block"](block, remaining, eos_ids) == kept


def test_the_three_numbers_are_those_of_the_reference():
    rounds = [([1] * 3, 4, 2), ([1] * 5, 4, 4), ([1], 0, 0), ([1], 4, 0), ([1, 1], 3, 3)]
    run = Run([Round([new], [[0] * drafted], [accepted], [None]) for new, drafted, accepted in rounds])
    mine = MINE["run_statistics"]([(drafted, accepted, len(new)) for new, drafted, accepted in rounds])
    assert mine == pytest.approx(
        {
            "alpha": run.alpha,
            "accepted_per_drafted": run.acceptance_rate,
            "emitted_per_round": run.emitted_per_round,
        }
    )


def byte_tokenizer():
    """One token for each byte: every character beyond ASCII is spread over several."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: place for place, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.mark.parametrize("text", ["plain", "naïve 🦊 日本", "é", "👩‍👩‍👧"])
def test_text_is_streamed_as_the_reference_streams_it(text):
    tokenizer = byte_tokenizer()
    tokens = tokenizer(text)["input_ids"]
    stream = TextStream(tokenizer)
    theirs = [piece for piece in [*map(stream.push, tokens), stream.finish()] if piece]
    assert [piece for piece in MINE["stream_text"](tokens, tokenizer.decode) if piece] == theirs
    assert "".join(theirs) == text
    cut = tokens[:-1]
    assert "".join(MINE["stream_text"](cut, tokenizer.decode)) == tokenizer.decode(cut)


def test_a_batched_round_brings_what_the_reference_brings():
    lm = position_lm(7)
    prompts = [[3], [1, 4, 1], [0, 2]]
    plain = texts(list(generate(lm, prompts, GREEDY, max_new_tokens=6)))
    drafts = [plain[0][:3], [*plain[1][:1], (plain[1][1] + 1) % 7], []]
    planned = PlannedDrafter(lambda text, number: drafts[[t[: len(text)] for t in prompts].index(text)])
    theirs = next(iter(speculate(lm, planned, prompts, GREEDY, num_draft_tokens=3, max_new_tokens=6)))
    mine = Cached(lm, 3)
    mine.lm.prefill([prompt[:-1] for prompt in prompts])
    assert MINE["batch_round"](mine, prompts, drafts) == theirs.tokens
    lengths = [len(prompt) + len(new) - 1 for prompt, new in zip(prompts, theirs.tokens, strict=True)]
    assert mine.lengths.tolist() == lengths


def test_the_toy_target_of_the_checks_is_the_position_model():
    toy, lm = ToyTarget([[3, 1]]), position_lm(7)
    theirs = Cached(lm)
    theirs.lm.prefill([[3, 1]])
    block = torch.tensor([[4, 0, 6]])
    assert toy.extend(block).argmax(-1).tolist() == theirs.extend(block).argmax(-1).tolist()


def test_half_characters_of_the_checks_show_as_the_replacement_mark():
    assert decode_bytes([5]).endswith("\ufffd")
    assert decode_bytes([5, 6, 7]) == "🦊"


def test_the_ledger_shows_the_round_table():
    """n committed tokens, K = 4, a accepted: the target holds n - 1, then n + a; the draft min(n + 3, n + a)."""

    def part_after(a):
        follow = [(token + 1) % 20 for token in range(20)]
        follow[4 + a] = 0
        return follow

    for a in range(5):
        from specdec_ref.table import table_lm

        logits = 20.0 * torch.nn.functional.one_hot(torch.tensor(part_after(a)), 20).double()
        ledger = Ledger(table_lm(logits), ModelDrafter(cycle_lm(20)))
        rounds = list(
            speculate(ledger.target, ledger.drafter, [[0, 1, 2, 3, 4]], GREEDY, num_draft_tokens=4, max_new_tokens=12)
        )
        first, second = ledger.entries[:2]
        assert (first.committed, first.accepted, first.fed) == (5, a, 5)
        assert (first.target_before, first.target_after) == (4, 5 + a)
        assert first.draft_after == min(5 + 3, 5 + a)
        assert second.fed == (2 if a == 4 else 1)
        assert collect(rounds)[0] == [*range(5, 5 + a), 0, *collect(rounds)[0][a + 1 :]]
