"""Teacher text: distinct prompts, answers that do not depend on their batch, shards that survive, ids that export."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

from specdec_course.cli import app
from specdec_course.teacher import stop_gently
from specdec_ref import store
from specdec_ref.decode import generate
from specdec_ref.model import CachedLM
from specdec_ref.rows import Stop
from specdec_ref.sampling import SamplingSettings
from specdec_ref.table import table_lm
from specdec_ref.training import corpus
from specdec_ref.training.answering import TOP, Answer, Question, answer_all, laws
from specdec_ref.training.prompts import COUNTS, PARTS, TEMPERATURES, TEMPLATES, Prompt, all_prompts, compose

EOS = 2
ROOT = Path(__file__).parents[2]


# Prompts


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    return all_prompts()


def test_there_are_several_thousand_prompts_and_no_two_are_equal(prompts: list[Prompt]):
    assert len(prompts) == sum(COUNTS.values()) > 8000
    assert len({prompt.text for prompt in prompts}) == len({prompt.id for prompt in prompts}) == len(prompts)
    assert Counter(prompt.kind for prompt in prompts) == COUNTS


def test_the_prompts_are_the_same_on_every_machine(prompts: list[Prompt]):
    assert [prompt.id for prompt in prompts[:3]] == ["217f8b922c98cf62", "6c8f14a2dfb7f802", "65271ebb3efad982"]
    assert [prompt.id for prompt in all_prompts(counts={"story": 20})] == [
        prompt.id for prompt in all_prompts(counts={"story": 20})
    ]


def test_no_slot_is_left_open_and_no_name_has_two_meanings(prompts: list[Prompt]):
    assert not [prompt.text for prompt in prompts if "$" in prompt.text]
    for name, values in PARTS.items():
        assert len(set(values)) == len(values), name
        assert all(values), name


def test_every_word_and_every_template_is_used(prompts: list[Prompt]):
    everything = "\n".join(prompt.text for prompt in prompts)
    unused = [
        value
        for values in (*PARTS.values(), *TEMPLATES.values())
        for value in values
        if "$" not in value and value not in everything
    ]
    assert not unused


def test_a_prefix_of_the_order_is_a_balanced_sample(prompts: list[Prompt]):
    head = prompts[:2000]
    for kind, count in Counter(prompt.kind for prompt in head).items():
        expected = 2000 * COUNTS[kind] / len(prompts)
        assert abs(count - expected) < 6 * expected**0.5, kind


def test_a_third_of_the_prompts_has_each_temperature_and_a_twentieth_is_held_out(prompts: list[Prompt]):
    shares = Counter(prompt.temperature for prompt in prompts)
    assert set(shares) == set(TEMPERATURES)
    assert all(abs(count / len(prompts) - 1 / 3) < 0.02 for count in shares.values())
    assert abs(np.mean([prompt.held_out for prompt in prompts]) - 0.05) < 0.01


def test_whether_a_prompt_is_held_out_depends_on_its_text_alone():
    first, again = Prompt("story", "Once upon a time"), Prompt("chat", "Once upon a time")
    assert (first.id, first.held_out, first.temperature, first.seed) == (
        again.id,
        again.held_out,
        again.temperature,
        again.seed,
    )
    assert first.id != Prompt("story", "Once upon a time.").id


def test_other_seeds_give_other_prompts():
    assert {prompt.id for prompt in all_prompts(1, {"story": 50})} != {
        prompt.id for prompt in all_prompts(0, {"story": 50})
    }


def test_two_slots_of_a_name_get_different_values():
    template = TEMPLATES["story"].index("Tell a funny little story: $hero meets $hero2 $place.")
    for number in range(3000):
        text = compose("story", template + len(TEMPLATES["story"]) * number).text
        heroes = [hero for hero in PARTS["hero"] if hero in text]
        assert len(heroes) == 2, text


def test_an_unknown_kind_and_a_negative_number_are_refused():
    with pytest.raises(ValueError, match="kind='sonnet' is not known"):
        compose("sonnet", 1)
    with pytest.raises(ValueError, match="number=-1"):
        compose("story", -1)


def test_more_prompts_than_the_templates_can_give_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(TEMPLATES, "story", ("Tell me of $few and $few2.",))
    values = len(PARTS["few"])
    assert len(all_prompts(counts={"story": values * (values - 1)})) == values * (values - 1)
    with pytest.raises(ValueError, match=r"counts\['story'\]"):
        all_prompts(counts={"story": values * (values - 1) + 1})


# Answers


@pytest.fixture(scope="module")
def table() -> CachedLM:
    """A model of 20 tokens; one of them ends the answer."""
    generator = torch.Generator().manual_seed(1)
    return table_lm(2 * torch.randn(20, 20, 20, generator=generator, dtype=torch.float64))


def questions(count: int = 30) -> list[Question]:
    """Questions with a common head and ragged tails, at all three temperatures."""
    made = []
    for number in range(count):
        prompt = compose("question", 7919 * number)
        tail = [3 + (prompt.seed >> 4 * place) % 17 for place in range(1 + prompt.seed % 9)]
        made.append(Question(prompt, (3, 4, 5, *tail)))
    return made


def answered(lm: CachedLM, asked: list[Question], batch_size: int = 4, max_new_tokens: int = 12) -> list[Answer]:
    passes = answer_all(lm, asked, batch_size=batch_size, max_new_tokens=max_new_tokens, eos_token_ids=(EOS,))
    return [answer for one in passes for answer in one.finished]


@pytest.mark.parametrize("batch_size", [1, 3, 30, 64])
def test_an_answer_is_the_one_the_plain_loop_writes_for_its_prompt_alone(table: CachedLM, batch_size: int):
    asked = questions()
    assert {question.prompt.temperature for question in asked} == set(TEMPERATURES)
    got = answered(table, asked, batch_size)
    assert sorted(answer.question.prompt.id for answer in got) == sorted(question.prompt.id for question in asked)
    for answer in got:
        prompt = answer.question.prompt
        rounds = generate(
            table,
            [answer.question.tokens],
            SamplingSettings(prompt.temperature),
            max_new_tokens=12,
            stop=Stop((EOS,)),
            seeds=[prompt.seed],
        )
        assert answer.tokens == [token for one in rounds for token in one.tokens[0]]


def test_an_answer_ends_with_the_first_end_of_text_or_at_its_cap(table: CachedLM):
    got = answered(table, questions())
    ended = [answer for answer in got if answer.tokens[-1] == EOS]
    assert 0 < len(ended) < len(got)
    for answer in got:
        assert EOS not in answer.tokens[:-1]
        assert len(answer.tokens) == 12 or answer.tokens[-1] == EOS


def test_a_new_question_enters_as_soon_as_a_row_is_free(table: CachedLM):
    passes = list(answer_all(table, questions(), batch_size=4, max_new_tokens=12, eos_token_ids=(EOS,)))
    total = sum(one.num_tokens for one in passes)
    assert total == sum(len(answer.tokens) for one in passes for answer in one.finished)
    full = [one.num_tokens == 4 for one in passes]
    assert full == sorted(full, reverse=True)  # the batch is full until no question waits
    assert sum(not is_full for is_full in full) < 12


def test_questions_are_taken_only_when_a_row_is_free(table: CachedLM):
    taken: list[Question] = []

    def lazily():
        for question in questions():
            taken.append(question)
            yield question

    next(iter(answer_all(table, lazily(), batch_size=4, max_new_tokens=12, eos_token_ids=(EOS,))))
    assert len(taken) == 4


def test_no_questions_need_no_pass(table: CachedLM):
    assert answered(table, []) == []


def test_the_laws_are_the_likeliest_tokens_before_temperature_in_falling_order(table: CachedLM):
    for answer in answered(table, questions()):
        before = [*answer.question.tokens, *answer.tokens]
        for place in range(len(answer.tokens)):
            last = len(answer.question.tokens) + place - 1
            law = table.model.table[before[last - 1], before[last]].log_softmax(-1)
            best = law.argsort(descending=True)[:TOP]
            assert answer.top_ids[place].tolist() == best.tolist()
            np.testing.assert_allclose(answer.top_logprobs[place], law[best].numpy(), rtol=1e-3)


def test_a_model_without_a_distribution_is_named_by_its_prompt():
    broken = table_lm(torch.zeros(20, 20, 20))
    broken.model.table[:] = float("nan")
    asked = questions(1)
    with pytest.raises(ValueError, match=asked[0].prompt.id):
        answered(broken, asked)


@pytest.fixture(scope="module")
def llama() -> CachedLM:
    return CachedLM(tiny_llama())


def tiny_llama(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=259,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.4,
        bos_token_id=1,
        eos_token_id=EOS,
    )
    return LlamaForCausalLM(config).eval()


def test_a_transformer_gives_the_same_answers_in_any_batch_and_the_same_laws_by_reading(llama: CachedLM):
    together = {answer.question.prompt.id: answer for answer in answered(llama, questions(), 7)}
    alone = list(answered(llama, questions(), 1))
    read = laws(llama, [answer.question.tokens for answer in alone], [answer.tokens for answer in alone])
    for answer, (read_ids, read_logprobs) in zip(alone, read, strict=True):
        other = together[answer.question.prompt.id]
        assert other.tokens == answer.tokens
        for top_ids, top_logprobs in ((read_ids, read_logprobs), (other.top_ids, other.top_logprobs)):
            np.testing.assert_array_equal(np.array(top_ids), np.array(answer.top_ids))
            np.testing.assert_allclose(np.array(top_logprobs), np.array(answer.top_logprobs), atol=5e-3)


# Shards


RECIPE = {"model": "table"}


def written(table: CachedLM, folder: Path, asked: list[Question], tokens_per_shard: int = 40) -> corpus.Shards:
    shards = corpus.Shards(folder, RECIPE)
    passes = answer_all(table, asked, batch_size=4, max_new_tokens=12, eos_token_ids=(EOS,))
    list(corpus.collect(passes, shards, tokens_per_shard))
    return shards


def as_texts(found: corpus.Corpus) -> dict[str, list[int]]:
    return {name: tokens.tolist() for name, tokens in zip(found.prompt_ids.tolist(), found.answers(), strict=True)}


def test_shards_hold_what_was_answered(table: CachedLM, tmp_path: Path):
    shards = written(table, tmp_path, questions())
    assert len(corpus.shard_paths(tmp_path)) > 3
    assert not list(tmp_path.glob(".*"))  # nothing unfinished is left
    found, recipe = corpus.load(corpus.shard_paths(tmp_path))
    assert recipe == RECIPE
    assert (len(found), len(found.tokens)) == (30, shards.num_tokens)
    by_id = {answer.question.prompt.id: answer for answer in answered(table, questions())}
    rows = zip(found.prompt_ids.tolist(), found.prompts(), found.answers(), found.temperatures, strict=True)
    for name, prompt, tokens, temperature in rows:
        answer = by_id[name]
        assert (prompt.tolist(), tokens.tolist()) == (list(answer.question.tokens), answer.tokens)
        assert temperature == np.float32(answer.question.prompt.temperature)
    assert found.tokens.dtype == found.top_ids.dtype == np.uint16
    assert found.top_logprobs.dtype == np.float16
    assert found.top_ids.shape == found.top_logprobs.shape == (len(found.tokens), TOP)


def test_finished_answers_are_kept_when_the_work_is_interrupted_and_the_rest_is_done_later(
    table: CachedLM, tmp_path: Path
):
    class InterruptedError(Exception):
        pass

    def interrupted():
        passes = answer_all(table, questions(), batch_size=4, max_new_tokens=12, eos_token_ids=(EOS,))
        for number, one in enumerate(passes):
            yield one
            if number == 20:
                raise InterruptedError

    with pytest.raises(InterruptedError):
        list(corpus.collect(interrupted(), corpus.Shards(tmp_path / "a", RECIPE), 40))
    resumed = corpus.Shards(tmp_path / "a", RECIPE)
    assert 0 < len(resumed.finished) < 30
    written(table, tmp_path / "a", [one for one in questions() if one.prompt.id not in resumed.finished])
    written(table, tmp_path / "b", questions())
    pair = [as_texts(corpus.load(corpus.shard_paths(tmp_path / name))[0]) for name in "ab"]
    assert pair[0] == pair[1]


def test_a_folder_of_another_recipe_is_refused(table: CachedLM, tmp_path: Path):
    written(table, tmp_path, questions(3))
    with pytest.raises(ValueError, match="holds answers made otherwise"):
        corpus.Shards(tmp_path, {"model": "another"})


def test_a_damaged_shard_is_named(table: CachedLM, tmp_path: Path):
    written(table, tmp_path, questions(3))
    path = corpus.shard_paths(tmp_path)[0]
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=path.name):
        corpus.Shards(tmp_path, RECIPE)


def test_nothing_to_load_is_said_with_the_remedy(tmp_path: Path):
    with pytest.raises(ValueError, match="run `specdec train corpus` first"):
        corpus.load(corpus.shard_paths(tmp_path))


def test_answers_can_be_taken_by_number_and_by_mask(table: CachedLM, tmp_path: Path):
    written(table, tmp_path, questions())
    found, _ = corpus.load(corpus.shard_paths(tmp_path))
    some = found.take([7, 2])
    assert as_texts(some) == {name: as_texts(found)[name] for name in found.prompt_ids[[7, 2]].tolist()}
    starts = np.cumsum(found.lengths) - found.lengths
    np.testing.assert_array_equal(some.top_ids[0], found.top_ids[starts[7]])
    parts = [found.take(found.held_out), found.take(~found.held_out)]
    assert sum(map(len, parts)) == len(found)
    assert len(found.take([])) == 0
    assert found.take([]).prompts() == []


def test_pieces_are_all_answers_in_order(table: CachedLM, tmp_path: Path):
    written(table, tmp_path, questions())
    found, _ = corpus.load(corpus.shard_paths(tmp_path))
    pieces = list(found.pieces(50))
    assert len(pieces) > 3
    assert all(len(piece.tokens) < 50 + 12 for piece in pieces)
    assert np.concatenate([piece.prompt_ids for piece in pieces]).tolist() == found.prompt_ids.tolist()


def test_the_split_is_the_ids_in_two_disjoint_halves(table: CachedLM, tmp_path: Path):
    written(table, tmp_path, questions(60))
    whole, _ = corpus.load(corpus.shard_paths(tmp_path))
    train, held_out, recipe = corpus.split(corpus.shard_paths(tmp_path))
    assert recipe == RECIPE
    assert not train.held_out.any()
    assert held_out.held_out.all()
    assert len(held_out) > 0
    assert as_texts(train) | as_texts(held_out) == as_texts(whole)
    assert not set(train.prompt_ids.tolist()) & set(held_out.prompt_ids.tolist())
    assert not train.has_laws


def test_the_ids_have_the_same_bytes_however_the_work_was_cut(table: CachedLM, tmp_path: Path):
    for name, size, asked in (("a", 40, questions()), ("b", 1000, questions()[::-1])):
        written(table, tmp_path / name, asked, size)
        train, _, recipe = corpus.split(corpus.shard_paths(tmp_path / name))
        train.save(tmp_path / name / "train.npz", recipe)
    assert (tmp_path / "a" / "train.npz").read_bytes() == (tmp_path / "b" / "train.npz").read_bytes()


# The command, on a tiny transformer in the place of SmolLM2


TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] + '\n' + message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's cache folder whose SmolLM2 is a tiny random llama that reads bytes."""
    monkeypatch.setenv("SPECDEC_HOME", str(tmp_path / "home of specdec"))
    folder = store.smol_folder()
    tiny_llama().save_pretrained(folder)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    symbols = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE(vocab={symbol: number for number, symbol in enumerate(symbols)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token=special[0], bos_token=special[1], eos_token=special[2]
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    store.write_manifest(folder, {"name": "tiny"})
    return store.home()


def specdec(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["train", "corpus", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


SMALL = ("--tokens", "1500", "--batch", "8", "--max-new-tokens", "24", "--shard-tokens", "200", "--threads", "1")


def test_the_command_survives_a_kill_exports_and_rebuilds(home: Path, tmp_path: Path):
    killed, whole, rebuilt, ids = (tmp_path / name for name in ("killed", "whole", "rebuilt", "ids"))
    command = [sys.executable, "-m", "specdec_course", "train", "corpus", *SMALL, "--out", str(killed)]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    deadline = time.monotonic() + 120
    while not corpus.shard_paths(killed) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert corpus.shard_paths(killed)

    assert "tokens/s" in specdec(*SMALL, "--out", killed)
    specdec(*SMALL, "--out", whole)
    resumed, uninterrupted = (corpus.load(corpus.shard_paths(folder))[0] for folder in (killed, whole))
    assert len(uninterrupted.tokens) >= 1500
    both = set(as_texts(resumed)) & set(as_texts(uninterrupted))
    assert len(both) > 50
    assert all(as_texts(resumed)[name] == as_texts(uninterrupted)[name] for name in both)

    specdec("--export", "--out", whole, "--data", ids)
    assert {path.name for path in ids.iterdir()} == {"train.npz", "held-out.npz", "README.md"}
    specdec("--rebuild", "--out", rebuilt, "--data", ids, "--max-new-tokens", "24", "--shard-tokens", "200")
    card = (ids / "README.md").read_text(encoding="utf-8")
    assert f"{len(uninterrupted):,} answers, {len(uninterrupted.tokens):,} tokens" in card
    assert "Apache-2.0" in card
    assert "Q4_1" in card

    again, recipe = corpus.load(corpus.shard_paths(rebuilt))
    assert recipe == corpus.load(corpus.shard_paths(whole))[1]
    order, order_again = np.argsort(uninterrupted.prompt_ids), np.argsort(again.prompt_ids)
    one, other = uninterrupted.take(order), again.take(order_again)
    for name in ("prompt_ids", "temperatures", "held_out", "tokens", "prompt_tokens", "top_ids"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    np.testing.assert_allclose(one.top_logprobs, other.top_logprobs, atol=5e-3)


def test_two_programs_share_a_folder_and_answer_every_prompt_once(home: Path, tmp_path: Path):
    folder = tmp_path / "both"
    for part in ("1/2", "2/2"):
        specdec(*SMALL, "--out", folder, "--part", part, "--dtype", "bfloat16")
    text, recipe = corpus.load(corpus.shard_paths(folder))
    assert recipe["dtype"] == "bfloat16"
    assert len(set(text.prompt_ids.tolist())) == len(text)
    assert len(text.tokens) >= 1500
    numbers = [int(path.stem.removeprefix("shard-")) for path in corpus.shard_paths(folder)]
    assert {number % 2 for number in numbers} == {0, 1}
    there = len(text)
    specdec(*SMALL, "--out", folder, "--part", "1/2", "--dtype", "bfloat16")  # nothing is left to do
    assert len(corpus.load(corpus.shard_paths(folder))[0]) == there


def test_more_text_goes_on_from_the_ids_in_the_repository(home: Path, tmp_path: Path):
    first, more, ids = (tmp_path / name for name in ("first", "more", "ids"))
    specdec(*SMALL, "--out", first, "--dtype", "bfloat16")
    specdec("--export", "--out", first, "--data", ids, "--dtype", "bfloat16")
    before, _ = corpus.load(sorted(ids.glob("*.npz")))
    for part in ("1/2", "2/2"):
        specdec(*SMALL, "--tokens", "2500", "--out", more, "--data", ids, "--extend", "--part", part)
    new, _ = corpus.load(corpus.shard_paths(more))
    assert not set(new.prompt_ids.tolist()) & set(before.prompt_ids.tolist())
    assert 2500 <= len(new.tokens) + len(before.tokens) < 2500 + 2 * 8 * 24 * 2
    specdec("--export", "--out", more, "--data", ids, "--extend")
    after, recipe = corpus.load(sorted(ids.glob("*.npz")))
    assert as_texts(after) == as_texts(before) | as_texts(new)
    assert recipe["dtype"] == "bfloat16 and float32"
    assert "--extend" in (ids / "README.md").read_text(encoding="utf-8")

    for part in ("1/2", "2/2"):  # the laws of all of it, by two programs, beside the laws that are there
        specdec("--rebuild", "--out", more, "--data", ids, "--max-new-tokens", "24", "--part", part)
    rebuilt, _ = corpus.load(corpus.shard_paths(more))
    assert rebuilt.has_laws
    assert sorted(rebuilt.prompt_ids.tolist()) == sorted(after.prompt_ids.tolist())


def test_files_may_differ_in_the_arithmetic_but_in_nothing_else(table: CachedLM, tmp_path: Path):
    folder = tmp_path / "text"
    for number, dtype in enumerate(("float32", "bfloat16", "float32")):
        shards = corpus.Shards(folder, {**RECIPE, "dtype": dtype})
        shards.append(corpus.from_answers(answered(table, questions(9)[3 * number : 3 * number + 3])))
    found, recipe = corpus.load(corpus.shard_paths(folder))
    assert (len(found), recipe) == (9, {**RECIPE, "dtype": "bfloat16 and float32"})
    with pytest.raises(ValueError, match="holds answers made otherwise"):
        corpus.Shards(folder, {"model": "another", "dtype": "float32"})


def test_a_request_to_end_is_an_interruption_so_that_what_is_finished_is_kept():
    before = signal.getsignal(signal.SIGTERM)
    stop_gently()
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--export", "--rebuild"], "ask for one of them"),
        (["--export"], "run `specdec train corpus` first"),
        (["--rebuild"], "run `specdec train corpus` first"),
        (["--part", "3/2"], "write 1/2 and 2/2"),
        (["--dtype", "float8"], "choose float32 or bfloat16"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
):
    result = CliRunner().invoke(app, ["train", "corpus", *arguments, "--data", str(tmp_path / "ids")])
    assert result.exit_code == 1
    assert message in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_answers_of_another_model_cannot_be_rebuilt(home: Path, tmp_path: Path):
    specdec("--tokens", "100", "--max-new-tokens", "8", "--batch", "4", "--out", tmp_path / "a", "--threads", "1")
    specdec("--export", "--out", tmp_path / "a", "--data", tmp_path / "ids")
    shutil.rmtree(store.smol_folder())
    tiny_llama(seed=1).save_pretrained(store.smol_folder())
    store.write_manifest(store.smol_folder(), {"name": "another"})
    result = CliRunner().invoke(app, ["train", "corpus", "--rebuild", "--data", str(tmp_path / "ids")])
    assert result.exit_code == 1
    assert "another model" in result.output
