"""Distillation at toy size: the loss, a run that survives a kill, and both recipes from text to a model on disk."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specdec_ref import store
from specdec_ref.model import CachedLM
from specdec_ref.rows import Stop
from specdec_ref.training import artefact, corpus, smol_draft, tiny
from specdec_ref.training.answering import Question, answer_all
from specdec_ref.training.artefact import Shape
from specdec_ref.training.batches import Batches, hidden_states
from specdec_ref.training.corpus import Corpus
from specdec_ref.training.distill import Plan, distill, dropping, log_probabilities, loss
from specdec_ref.training.held_out import estimate, measure
from specdec_ref.training.loop import CHECKPOINT, CURVE, Schedule, train
from specdec_ref.training.prompts import all_prompts

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
END = 2
SHAPE = Shape(width=32, layers=1, heads=2, mlp=64, context=256)
PLAN = Plan(epochs=3, batch_size=4, learning_rate=1e-2, save_every=10, look_every=20, num_negatives=64)


class KilledError(Exception):
    """Stands for a kill: nothing gets a chance to tidy up."""


def quiet(name: str, done: int, total: int, remark: str) -> None:
    del name, done, total, remark


@pytest.fixture(scope="module", autouse=True)
def single_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def teacher_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random llama that reads bytes, stored as SmolLM2 is."""
    folder = tmp_path_factory.mktemp("models") / "a teacher"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=259,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.4,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=END,
        pad_token_id=END,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():  # of low rank, so that a smaller model can learn it from little text
        model.get_input_embeddings().weight.copy_(0.2 * torch.randn(259, 3) @ torch.randn(3, 48))
    model.save_pretrained(folder)
    symbols = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE(vocab={symbol: number for number, symbol in enumerate(symbols)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token=SPECIAL[0], bos_token=SPECIAL[1], eos_token=SPECIAL[2], pad_token=SPECIAL[2]
    ).save_pretrained(folder)
    store.write_manifest(folder, {"name": "a teacher"})
    return folder


@pytest.fixture(scope="module")
def shards(teacher_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the teacher answers to a hundred prompts, a dozen of them held out."""
    prompts = all_prompts()
    chosen = [one for one in prompts if one.held_out][:12] + [one for one in prompts if not one.held_out][:100]
    tokenizer = AutoTokenizer.from_pretrained(teacher_folder)
    weights = store.read_manifest(teacher_folder)["files"]["model.safetensors"]["sha256"]
    held = corpus.Shards(tmp_path_factory.mktemp("corpus"), {"model_sha256": weights})
    questions = [Question(one, tuple(tokenizer.encode(one.text)[:16])) for one in chosen]
    passes = answer_all(
        artefact.load(teacher_folder), questions, batch_size=32, max_new_tokens=24, eos_token_ids=(END,)
    )
    for _ in corpus.collect(passes, held, 1000):
        pass
    return held.folder


@pytest.fixture(scope="module")
def text(shards: Path) -> Corpus:
    return corpus.load(corpus.shard_paths(shards))[0]


def student(teacher_folder: Path, shape: Shape = SHAPE) -> LlamaForCausalLM:
    return artefact.new_llama(AutoTokenizer.from_pretrained(teacher_folder), 259, shape, seed=0)


def weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


# Batches


def test_a_batch_predicts_every_token_of_its_answers_and_nothing_of_its_prompts(text: Corpus):
    batches = Batches(text, 3, seed=0)
    chosen = np.array([5, 0, 40])
    batch = batches.gather(chosen)
    answers, prompts = text.answers(), text.prompts()
    assert batch.labels.tolist() == [token for row in chosen for token in answers[row].tolist()]
    for place, (row, column) in enumerate(zip(batch.rows.tolist(), batch.columns.tolist(), strict=True)):
        whole = np.concatenate([prompts[chosen[row]], answers[chosen[row]]]).tolist()
        assert batch.tokens[row, : column + 1].tolist() == whole[: column + 1]
        assert batch.labels[place] == whole[column + 1]
        assert column + 1 >= len(prompts[chosen[row]])
    assert batch.top_ids.tolist() == text.take(chosen).top_ids.tolist()


def test_each_epoch_reads_every_answer_once_in_an_order_of_its_own(text: Corpus):
    batches = Batches(text, 7, seed=3)
    epochs = [
        sorted(label for step in range(start, start + len(batches)) for label in batches[step].labels.tolist())
        for start in (0, len(batches))
    ]
    assert epochs[0] == epochs[1] == sorted(text.tokens.tolist())
    assert batches[0].labels.tolist() != batches[len(batches)].labels.tolist()
    assert batches[0].labels.tolist() == Batches(text, 7, seed=3)[0].labels.tolist()
    assert batches[0].labels.tolist() != Batches(text, 7, seed=4)[0].labels.tolist()


def test_padding_changes_no_hidden_state(text: Corpus, teacher_folder: Path):
    model, batches = student(teacher_folder), Batches(text, 4, seed=0)
    together = hidden_states(model, batches.gather(np.arange(4)))
    alone = torch.cat([hidden_states(model, batches.gather(np.array([row]))) for row in range(4)])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)


# The loss


def test_all_others_as_negatives_are_the_exact_softmax():
    hidden, head = torch.randn(5, 8), torch.randn(40, 8)
    wanted = torch.randint(0, 40, (5, 3))
    exact = (hidden @ head.T).log_softmax(-1).gather(1, wanted)
    torch.testing.assert_close(log_probabilities(hidden, head, wanted, 0), exact)
    torch.testing.assert_close(log_probabilities(hidden, head, wanted, 1000), exact)


def test_drawn_negatives_estimate_the_normaliser_without_bias():
    torch.manual_seed(0)
    hidden, head = torch.randn(4, 8), torch.randn(400, 8)
    wanted = torch.randint(0, 400, (4, 3))
    exact = log_probabilities(hidden, head, wanted)
    # log q = score - log Z, so 1/q is proportional to the estimate of Z.
    seen = torch.stack([(-log_probabilities(hidden, head, wanted, 50, seed)).exp() for seed in range(2000)])
    error = seen.std(0) / len(seen) ** 0.5
    assert ((seen.mean(0) - (-exact).exp()).abs() < 6 * error).all()
    assert error.max() > 0


def test_the_loss_is_zero_for_the_teacher_and_more_for_any_other(text: Corpus, teacher_folder: Path):
    teacher = artefact.load(teacher_folder).model
    assert isinstance(teacher, LlamaForCausalLM)
    batch = Batches(text, 16, seed=0)[0]
    inside = replace(batch, labels=batch.top_ids[:, 0])  # no label from the tail, so only the 17 events count
    at_home, tv_alone = (float(loss(teacher, inside, tv_weight=weight).detach()) for weight in (0.0, 1.0))
    assert abs(at_home) < 2e-3  # the record is float16
    assert abs(tv_alone - at_home) < 2e-3
    assert float(loss(student(teacher_folder), inside).detach()) > 0.1


def test_a_label_outside_the_top_teaches_the_shape_of_the_tail(text: Corpus, teacher_folder: Path):
    model, batch = student(teacher_folder), Batches(text, 16, seed=0)[0]
    outside = (batch.top_ids != batch.labels[:, None]).all(1)
    assert outside.any()
    log_q = model.lm_head(hidden_states(model, batch)).log_softmax(-1)
    inside = replace(batch, labels=batch.top_ids[:, 0])
    tail = (1 - log_q.gather(1, batch.top_ids).exp().sum(1)).log()
    extra = (tail - log_q.gather(1, batch.labels[:, None])[:, 0])[outside].sum() / len(outside)
    torch.testing.assert_close(loss(model, batch) - loss(model, inside), extra, atol=1e-4, rtol=1e-3)


def test_without_laws_the_loss_is_the_cross_entropy_of_the_labels(text: Corpus, teacher_folder: Path):
    model, batch = student(teacher_folder), Batches(text.without_laws(), 4, seed=0)[0]
    logits = model.lm_head(hidden_states(model, batch))
    torch.testing.assert_close(loss(model, batch), torch.nn.functional.cross_entropy(logits, batch.labels))


def test_the_teacher_accepts_all_of_its_own_drafts_as_estimated_from_the_record(text: Corpus, teacher_folder: Path):
    teacher = artefact.load(teacher_folder).model
    assert isinstance(teacher, LlamaForCausalLM)
    found = estimate(teacher, text)
    assert found["alpha_greedy"] == 1
    assert found["alpha_high"] == pytest.approx(1, abs=1e-3)
    assert found["alpha_low"] is not None
    assert found["alpha_low"] < 1  # the tail may hold anything


# The loop


def toy_run(folder: Path, *, die_after: int | None = None, ask_after: int | None = None) -> torch.nn.Module:
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 3)

    def loss_of(step: int) -> torch.Tensor:
        data = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
        return (model(data) - data[:, :3]).square().mean()

    def advance(done: int, value: float) -> None:
        del value
        if done == die_after:
            raise KilledError
        if done == ask_after:
            signal.raise_signal(signal.SIGTERM)

    schedule = Schedule(30, warmup_steps=5, save_every=7, look_every=10)
    history = train(model, loss_of, schedule, folder, {"toy": 1}, look=lambda: {"x": 1.5}, advance=advance)
    assert len(history.losses) == 30
    assert [look["step"] for look in history.looks] == [10, 20, 30]
    return model


def test_a_killed_run_ends_with_the_weights_and_the_curve_of_a_run_that_was_not(tmp_path: Path):
    whole = weights_of(toy_run(tmp_path / "whole"))
    for _ in range(2):
        with pytest.raises(KilledError):
            toy_run(tmp_path / "killed", die_after=17)
    assert_same(weights_of(toy_run(tmp_path / "killed")), whole)
    curves = [json.loads((tmp_path / name / CURVE).read_text(encoding="utf-8")) for name in ("whole", "killed")]
    assert curves[0] == curves[1]


def test_a_request_to_end_costs_no_step(tmp_path: Path):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        toy_run(tmp_path / "asked", ask_after=11)
    assert signal.getsignal(signal.SIGTERM) == before
    assert len(json.loads((tmp_path / "asked" / CURVE).read_text(encoding="utf-8"))["losses"]) == 12
    assert_same(weights_of(toy_run(tmp_path / "asked")), weights_of(toy_run(tmp_path / "whole")))


def test_a_finished_run_is_not_trained_again(tmp_path: Path):
    first = weights_of(toy_run(tmp_path))
    assert_same(weights_of(toy_run(tmp_path, die_after=1)), first)


def test_a_folder_belongs_to_one_recipe_and_a_damaged_checkpoint_is_named(tmp_path: Path):
    toy_run(tmp_path)
    model = torch.nn.Linear(6, 3)
    with pytest.raises(ValueError, match="made otherwise \\(another schedule, toy\\)"):
        train(model, lambda step: model.weight.sum() * step, Schedule(5), tmp_path, {"toy": 2})
    (tmp_path / CHECKPOINT).write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"checkpoint.*is damaged"):
        toy_run(tmp_path)


def test_the_learning_rate_rises_then_falls_to_its_final_share():
    schedule = Schedule(100, learning_rate=1.0, warmup_steps=10, final_share=0.1)
    rates = [schedule.rate(step) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == pytest.approx(1.0)
    assert rates[100] == pytest.approx(0.1)
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_a_loss_that_is_no_number_stops_the_run(tmp_path: Path):
    model = torch.nn.Linear(2, 1)
    with pytest.raises(ValueError, match="step 0: loss nan"):
        train(model, lambda step: model.weight.sum() * float("nan"), Schedule(5), tmp_path, {})


# smol-draft


def test_distillation_raises_acceptance_as_estimated_and_as_decoded(text: Corpus, teacher_folder: Path, tmp_path: Path):
    learned, held_out = text.take(~text.held_out), text.take(text.held_out)
    teacher, model = artefact.load(teacher_folder), student(teacher_folder)
    prompts = [prompt.tolist() for prompt in held_out.prompts()]

    def figures() -> dict[str, float]:
        lm = CachedLM(model)
        decoded = {
            f"decoded at {temperature}": measure(
                teacher, lm, prompts, temperature=temperature, stop=Stop((END,)), max_new_tokens=24
            ).alpha
            for temperature in (0.0, 1.0)
        }
        return {name: value or 0.0 for name, value in (estimate(model, held_out) | decoded).items()}

    before = figures()
    plan = replace(PLAN, epochs=10)
    history = distill(model, learned, held_out, plan, tmp_path, seed=0, recipe={}, tell=quiet)
    after = figures()
    assert all(after[name] > before[name] + 0.05 for name in before if name != "cross_entropy"), (before, after)
    assert after["cross_entropy"] < before["cross_entropy"]
    assert np.mean(history.losses[-10:]) < np.mean(history.losses[:10])


RECIPE = smol_draft.Recipe(SHAPE, replace(PLAN, dropout=0.1), num_prompts=6, max_new_tokens=16)


def run_smol_draft(
    folder: Path, shards: Path, teacher_folder: Path, tell=quiet, recipe: smol_draft.Recipe = RECIPE
) -> dict[str, float | None]:
    return smol_draft.run(
        recipe,
        shards=shards,
        target_folder=teacher_folder,
        work=folder / "work",
        out=folder / "models" / "smol-draft",
        command="specdec train smol-draft",
        tell=tell,
    )


def test_a_killed_smol_draft_becomes_the_same_file_and_loads_everywhere(
    shards: Path, teacher_folder: Path, tmp_path: Path
):
    def kill(name: str, done: int, total: int, remark: str) -> None:
        del total, remark
        if name == "work" and done == 37:
            raise KilledError

    with pytest.raises(KilledError):
        run_smol_draft(tmp_path / "killed", shards, teacher_folder, kill)
    figures = run_smol_draft(tmp_path / "killed", shards, teacher_folder)
    assert run_smol_draft(tmp_path / "whole", shards, teacher_folder) == figures
    killed, whole = (tmp_path / name / "models" / "smol-draft" for name in ("killed", "whole"))
    manifest = store.check_folder(killed)
    assert manifest["files"] == store.check_folder(whole)["files"]
    assert [path.name for path in killed.parent.iterdir()] == ["smol-draft"]

    model = AutoModelForCausalLM.from_pretrained(killed)
    assert model.dtype == torch.float16
    assert model.config.tie_word_embeddings
    assert model.generation_config.eos_token_id == END
    tokenizer, theirs = (AutoTokenizer.from_pretrained(folder) for folder in (killed, teacher_folder))
    assert tokenizer.get_vocab() == theirs.get_vocab()
    card = (killed / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlicense: apache-2.0\n")
    for name, value in figures.items():
        assert value is not None, name
        assert f"| {name} | {value:.3f} |" in card

    with (killed / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        artefact.load(killed)


def test_dropout_is_for_training_alone_and_ends_with_it(text: Corpus, teacher_folder: Path):
    model = student(teacher_folder)
    tokens = Batches(text, 2, seed=0)[0].tokens

    def logits() -> torch.Tensor:
        return model(input_ids=tokens).logits

    expected = logits()
    with dropping(model, 0.5):
        assert not torch.equal(logits(), logits())  # new luck each time
        model.eval()
        assert torch.equal(logits(), expected)
    model.train()
    assert torch.equal(logits(), expected)


def test_training_goes_on_from_an_earlier_draft_of_the_same_shape(shards: Path, teacher_folder: Path, tmp_path: Path):
    first = run_smol_draft(tmp_path / "first", shards, teacher_folder)
    earlier = tmp_path / "first" / "models" / "smol-draft"
    slow = replace(RECIPE.plan, epochs=0.1, learning_rate=1e-6)
    onward = replace(RECIPE, plan=slow, begin_with=earlier)
    second = run_smol_draft(tmp_path / "second", shards, teacher_folder, recipe=onward)
    assert second["cross_entropy"] == pytest.approx(first["cross_entropy"], abs=0.01)
    card = (tmp_path / "second" / "models" / "smol-draft" / "README.md").read_text(encoding="utf-8")
    assert store.read_manifest(earlier)["files"]["model.safetensors"]["sha256"] in card
    wider = replace(onward, shape=replace(SHAPE, mlp=80))
    with pytest.raises(ValueError, match="it cannot go on as one"):
        run_smol_draft(tmp_path / "third", shards, teacher_folder, recipe=wider)


def test_text_of_another_target_is_refused(shards: Path, teacher_folder: Path, tmp_path: Path):
    other = tmp_path / "other"
    student(teacher_folder).save_pretrained(other)
    store.write_manifest(other, {"name": "other"})
    with pytest.raises(ValueError, match="was not written by the target"):
        run_smol_draft(tmp_path, shards, other)


def test_principal_components_keep_dot_products_of_an_embedding_of_low_rank():
    torch.manual_seed(0)
    embedding = torch.randn(50, 4) @ torch.randn(4, 16)
    reduced = smol_draft.principal_components(embedding, 4)
    ours, theirs = reduced @ reduced.T, embedding @ embedding.T
    torch.testing.assert_close(ours / ours.norm(), theirs / theirs.norm(), atol=1e-5, rtol=1e-4)
    assert float(reduced.square().mean().sqrt()) == pytest.approx(0.5)


# The tiny family


def tiny_recipe() -> tiny.Recipe:
    shapes = (Shape(32, 2, 2, 64, 256), Shape(24, 1, 2, 48, 256), Shape(16, 1, 1, 32, 256))
    students = tuple(
        replace(one, shape=shape, plan=replace(PLAN, epochs=2, num_negatives=0))
        for one, shape in zip(tiny.Recipe().students, shapes, strict=True)
    )
    return tiny.Recipe(
        students,
        300,
        400,
        num_texts=150,
        max_new_tokens=16,
        write_batch=32,
        opening_tokens=(3, 6),
        num_prompts=4,
    )


def run_tiny(folder: Path, tell=quiet) -> dict[str, dict[str, float | None]]:
    place = tiny.Place(folder / "work", folder / "models", "specdec train tiny", tell)
    return tiny.run(tiny_recipe(), place)


def test_the_tiny_family_is_made_from_nothing_and_survives_a_kill(tmp_path: Path):
    def kill(name: str, done: int, total: int, remark: str) -> None:
        del total, remark
        if name == "tiny-draft" and done == 25:
            raise KilledError

    with pytest.raises(KilledError):
        run_tiny(tmp_path / "killed", kill)
    figures = run_tiny(tmp_path / "killed")
    assert run_tiny(tmp_path / "whole") == figures
    sizes = []
    for name in ("tiny-target", "tiny-draft", "tiny-micro"):
        killed, whole = (tmp_path / run / "models" / name for run in ("killed", "whole"))
        assert store.check_folder(killed)["files"] == store.check_folder(whole)["files"]
        model = AutoModelForCausalLM.from_pretrained(killed)
        sizes.append(sum(weight.numel() for weight in model.parameters()))
        tokenizer = AutoTokenizer.from_pretrained(killed)
        assert len(tokenizer) == model.config.vocab_size <= 300
        assert tokenizer.decode(tokenizer.encode("A fox, naïve.\n")) == "<|begin|>A fox, naïve.\n"
        assert CachedLM(model.float()).vocab_size == len(tokenizer)
    assert sizes == sorted(sizes, reverse=True)
    assert figures["tiny-draft"]["alpha, decoding, greedy"] is not None
