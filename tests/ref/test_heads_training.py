"""EAGLE and Medusa heads at toy size: features on disk, unrolled drafts, rounds along a text, and both recipes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import LlamaForCausalLM

from specdec_ref import store
from specdec_ref.heads import EagleHead, EagleShape, MedusaHeads, MedusaShape, load_eagle, load_medusa
from specdec_ref.model import CachedLM
from specdec_ref.rows import Stop
from specdec_ref.training import artefact, corpus, eagle, features, ground, heads, medusa
from specdec_ref.training.buckets import bucket_loss
from specdec_ref.training.corpus import Corpus
from specdec_ref.training.eagle import EaglePlan
from specdec_ref.training.features import FeatureBatches, Features
from specdec_ref.training.ground import Place
from specdec_ref.training.held_out import measure
from specdec_ref.training.medusa import MedusaPlan
from specdec_ref.training.rounds import draft_hits, per_answer, tokens_per_round
from tests.ref.test_training import (  # noqa: F401 - fixtures
    END,
    KilledError,
    quiet,
    shards,
    single_thread,
    student,
    teacher_folder,
    text,
)

EAGLE = EaglePlan(6, batch_size=8, learning_rate=1e-2, dtype="float32", save_every=10, look_every=40)
MEDUSA = MedusaPlan(
    6, batch_size=8, learning_rate=3e-3, num_negatives=64, dtype="float32", save_every=10, look_every=40
)


@pytest.fixture(scope="module")
def teacher(teacher_folder: Path) -> LlamaForCausalLM:  # noqa: F811 - the fixture
    model = artefact.load(teacher_folder).model
    assert isinstance(model, LlamaForCausalLM)
    return model


@pytest.fixture(scope="module")
def stored(teacher: LlamaForCausalLM, text: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Features:  # noqa: F811
    return features.compute(teacher, text, tmp_path_factory.mktemp("features"), weights="w", tell=quiet)


def new_eagle(teacher: LlamaForCausalLM, draft_ids: list[int] | None = None) -> EagleHead:
    torch.manual_seed(0)
    ids = torch.tensor(draft_ids or list(range(259)))
    head = EagleHead(EagleShape(48, 259, len(ids), heads=4, kv_heads=2, mlp=32))
    head.draft_to_target.copy_(ids)
    head.borrow(teacher)
    return head


# Features


def test_a_stored_feature_is_what_the_output_layer_reads(teacher: LlamaForCausalLM, text: Corpus, stored: Features):  # noqa: F811
    rows = np.array([3, 50, 7])
    taken = stored.take(rows)
    for line, row in zip(taken, rows, strict=True):
        ids = np.concatenate([text.prompts()[row], text.answers()[row]])[:-1].astype(np.int64)
        logits = teacher(input_ids=torch.from_numpy(ids)[None]).logits[0]
        torch.testing.assert_close(teacher.lm_head(line[: len(ids)]), logits, atol=2e-2, rtol=2e-2)
        assert not line[len(ids) :].any()


def test_features_of_a_killed_run_are_those_of_a_whole_one(
    teacher: LlamaForCausalLM,
    text: Corpus,  # noqa: F811 - the fixture
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(features, "PASS_TOKENS", 200)
    monkeypatch.setattr(features, "SAVE_EVERY", 3)
    passes = len(features.plan_passes(features.text_lengths(text)))
    told: list[int] = []

    def kill(name: str, done: int, total: int, remark: str) -> None:
        del name, total, remark
        told.append(done)
        if len(told) == passes // 2:
            raise KilledError

    with pytest.raises(KilledError):
        features.compute(teacher, text, tmp_path / "killed", weights="w", tell=kill)
    killed = features.compute(teacher, text, tmp_path / "killed", weights="w", tell=kill)
    assert passes < len(told) < 2 * passes
    assert told[-1] == len(killed.values)
    whole = features.compute(teacher, text, tmp_path / "whole", weights="w", tell=quiet)
    assert np.array_equal(killed.values, whole.values)
    features.compute(teacher, text, tmp_path / "whole", weights="w", tell=kill)  # nothing is left to do


def test_passes_hold_every_text_once_and_little_padding():
    lengths = np.random.default_rng(0).integers(2, 400, 500)
    passes = features.plan_passes(lengths)
    assert sorted(np.concatenate(passes).tolist()) == list(range(500))
    read = sum(len(rows) * int(lengths[rows].max()) for rows in passes)
    assert read < 1.1 * lengths.sum()
    assert max(len(rows) * int(lengths[rows].max()) for rows in passes) <= features.PASS_TOKENS


def test_the_first_tokens_of_a_corpus_do_not_depend_on_its_shards(text: Corpus):  # noqa: F811 - the fixture
    shuffled = text.take(np.random.default_rng(0).permutation(len(text)))
    few, same = features.first_tokens(text, 500), features.first_tokens(shuffled, 500)
    assert few.prompt_ids.tolist() == same.prompt_ids.tolist()
    assert 500 <= len(few.tokens) < 600


# The loss


def test_the_loss_of_buckets_is_zero_for_the_targets_law_cut_to_what_the_head_can_draft():
    p = torch.tensor([[0.5, 0.25, 0.125]])
    known = torch.tensor([[True, False, True]])
    q = (p / 0.75).log()  # the rest, 0.125, has no shape in the record
    none = torch.tensor([False])
    at_best = bucket_loss(p.log(), q, known, torch.zeros(1), none, 0.0)
    torch.testing.assert_close(at_best, torch.zeros(1), atol=1e-6, rtol=0)
    other = bucket_loss(p.log(), q + torch.tensor([[-0.5, 3.0, 0.3]]), known, torch.zeros(1), none, 0.0)
    assert other > 0.01
    tv = bucket_loss(p.log(), p.log(), known, torch.zeros(1), none, 1.0) - bucket_loss(
        p.log(), p.log(), known, torch.zeros(1), none, 0.0
    )
    torch.testing.assert_close(tv, torch.tensor([0.25]))  # the mass of the token it lacks cannot be accepted


# EAGLE


@torch.no_grad()
def draft_step_by_step(head: EagleHead, true: torch.Tensor, tokens: torch.Tensor, begin: int, steps: int) -> list:
    """Feed pairs 0..begin with true features, then go on with own ones, keys and values kept: what drafting does."""
    keys, values = torch.empty(1, 2, 0, 12), torch.empty(1, 2, 0, 12)

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        nonlocal keys, values
        keys, values = torch.cat([keys, key], 2), torch.cat([values, value], 2)
        return functional.scaled_dot_product_attention(query, keys, values, enable_gqa=True)

    found = []
    for pair in range(begin + steps):
        inputs = true[pair] if pair <= begin else found[-1]
        output = head(inputs[None, None], tokens[None, pair + 1, None], torch.tensor([[pair + 1]]), attend)
        if pair >= begin:
            found.append(output[0, 0])
    return found


def test_an_unrolled_pass_is_the_draft_that_a_cache_gives(teacher: LlamaForCausalLM):
    head, tokens = new_eagle(teacher), torch.randint(0, 259, (14,), generator=torch.Generator().manual_seed(1))
    true = torch.randn(14, 48, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        passes = eagle.unroll(head, true[None], tokens[None], 4)
    for begin in (0, 1, 5, 9):
        for number, feature in enumerate(draft_step_by_step(head, true, tokens, begin, 4)):
            torch.testing.assert_close(passes[number][0, begin + number], feature, atol=1e-5, rtol=1e-4)


def test_the_draft_vocabulary_is_the_commonest_ids_and_its_inverse_finds_them(text: Corpus):  # noqa: F811 - the fixture
    ids = eagle.draft_vocabulary(text, 20, 259)
    counts = np.bincount(text.tokens, minlength=259)
    assert sorted(counts[ids].tolist(), reverse=True) == sorted(counts.tolist(), reverse=True)[:20]
    back = eagle.inverse(ids, 259)
    assert back[ids].tolist() == list(range(20))
    assert int((back == -1).sum()) == 239


def test_a_head_never_drafts_outside_its_vocabulary(teacher: LlamaForCausalLM, text: Corpus, stored: Features):  # noqa: F811
    ids = eagle.draft_vocabulary(text, 12, 259)
    head = new_eagle(teacher, ids.tolist())
    assert head.logits(torch.randn(2, 3, 48)).shape == (2, 3, 12)
    torch.testing.assert_close(head.output, teacher.lm_head.weight[ids])
    batch = FeatureBatches(text, stored, 4, seed=0)[0]
    value = eagle.loss(head, batch, eagle.inverse(ids, 259), EAGLE)
    value.backward()
    assert torch.isfinite(value)
    assert all(weight.grad is not None for weight in head.parameters())


# Medusa


def test_untrained_medusa_heads_say_what_the_target_says(teacher: LlamaForCausalLM):
    module = MedusaHeads(MedusaShape(48, 259, 3))
    module.borrow(teacher)
    x = torch.randn(2, 5, 48)
    torch.testing.assert_close(module.logits(x), teacher.lm_head(x)[..., None, :].expand(2, 5, 3, 259))


def test_head_1_learns_the_token_after_the_next_one(teacher: LlamaForCausalLM, text: Corpus, stored: Features):  # noqa: F811
    """A batch whose laws are certain: the loss is the cross-entropy of the token k places after the next one."""
    torch.manual_seed(0)
    module = MedusaHeads(MedusaShape(48, 259, 2))
    module.borrow(teacher)
    for layer in module.layers:
        torch.nn.init.normal_(layer.weight, std=0.1)  # pyright: ignore[reportArgumentType]
    batch = FeatureBatches(text, stored, 4, seed=0)[0]
    certain = replace(batch, top_ids=batch.labels[:, None], log_p=torch.zeros(len(batch.labels), 1))
    found = medusa.loss(module, certain, replace(MEDUSA, num_negatives=0), seed=0)
    total, weights = 0.0, 0.0
    logits = module.logits(batch.features)  # [B, T, H, V]
    for row, column, label in zip(batch.rows, batch.columns, batch.labels, strict=True):
        for number in (1, 2):
            total += 0.8**number * functional.cross_entropy(logits[row, column - number, number - 1], label)
            weights += 0.8**number
    torch.testing.assert_close(found, total / weights, atol=1e-4, rtol=1e-4)


# Rounds


def test_rounds_are_walked_along_a_text():
    #          token  0  1  2  3  4  5
    first = np.array([1, 1, 0, 1, 1, 1], bool)
    second = np.array([0, 1, 1, 1, 0, 1], bool)
    # tokens 0, 1 and one more; then 3, not 4, so 3 and one more; then 5, and the text ends
    assert tokens_per_round([np.stack([first, second])]) == 6 / 3
    assert tokens_per_round([]) is None


def test_tokens_per_round_are_those_of_decoding(text: Corpus, teacher: LlamaForCausalLM, teacher_folder: Path):  # noqa: F811
    greedy = text.take(text.temperatures == 0)
    draft = student(teacher_folder)
    with torch.no_grad():  # a draft that agrees now and then
        draft.get_input_embeddings().weight[:, :3] = teacher.lm_head.weight[:, :3]
    prompts = [prompt.tolist() for prompt in greedy.prompts()]
    run = measure(CachedLM(teacher), CachedLM(draft), prompts, temperature=0.0, stop=Stop((END,)), max_new_tokens=24)
    assert tokens_per_round(draft_hits(draft, greedy, 4)) == pytest.approx(run.emitted_per_round)


def test_hits_are_cut_into_answers(text: Corpus, stored: Features):  # noqa: F811 - the fixture
    batch = FeatureBatches(text, stored, 4, seed=0).gather(np.array([2, 0, 9]))
    flat = torch.arange(2 * len(batch.labels)).view(2, -1)
    assert [cut.shape[1] for cut in per_answer(flat, batch)] == text.lengths[[2, 0, 9]].tolist()


# Both recipes


def place(folder: Path, name: str, shards: Path, teacher_folder: Path, tell=quiet) -> Place:  # noqa: F811
    return Place(
        target=teacher_folder,
        shards=shards,
        features=folder / "features",
        work=folder / "work" / name,
        out=folder / "models" / name,
        draft=None,
        command=f"specdec train {name}",
        tell=tell,
    )


def run(kind: str, where: Place) -> dict[str, float | None]:
    if kind == "eagle":
        return heads.run_eagle(where, EAGLE, mlp=32, vocabulary=64)
    return heads.run_medusa(where, MEDUSA, heads=2)


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_a_killed_run_becomes_the_same_head_and_has_learned(
    kind: str,
    shards: Path,  # noqa: F811 - the fixture
    teacher_folder: Path,  # noqa: F811 - the fixture
    tmp_path: Path,
):
    def kill(name: str, done: int, total: int, remark: str) -> None:
        del total, remark
        if name == kind and done == 37:
            raise KilledError

    with pytest.raises(KilledError):
        run(kind, place(tmp_path / "killed", kind, shards, teacher_folder, kill))
    figures = run(kind, place(tmp_path / "killed", kind, shards, teacher_folder))
    assert run(kind, place(tmp_path / "whole", kind, shards, teacher_folder)) == figures
    killed, whole = (tmp_path / name / "models" / kind for name in ("killed", "whole"))
    assert store.check_folder(killed)["files"] == store.check_folder(whole)["files"]
    assert {path.name for path in killed.iterdir()} == {
        "config.json",
        "model.safetensors",
        "README.md",
        "curve.json",
        "manifest.json",
    }
    card = (killed / "README.md").read_text(encoding="utf-8")
    for name, value in figures.items():
        assert value is not None, name
        assert f"| {name} | {value:.3f} |" in card
    curve = json.loads((killed / "curve.json").read_text(encoding="utf-8"))
    assert curve["losses"][-1] < curve["losses"][0]
    name = "alpha_greedy" if kind == "eagle" else "head 1, top-1"
    looks = [look[name] for look in curve["looks"]]
    assert looks[-1] > 0.3, looks


@pytest.fixture(scope="module")
def finished(shards: Path, teacher_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    folder = tmp_path_factory.mktemp("finished")
    short = place(folder, "eagle", shards, teacher_folder)
    heads.run_eagle(short, replace(EAGLE, epochs=0.1), mlp=32, vocabulary=64)
    short = place(folder, "medusa", shards, teacher_folder)
    heads.run_medusa(short, replace(MEDUSA, epochs=0.1), heads=2)
    return folder / "models"


def test_a_head_loads_for_its_own_target_only(finished: Path, teacher_folder: Path, tmp_path: Path):  # noqa: F811
    target = artefact.load(teacher_folder)
    head = load_eagle(finished / "eagle", target, teacher_folder)
    assert head.output.shape == (head.shape.draft_vocab, 48)
    assert load_medusa(finished / "medusa", target, teacher_folder).shape == MedusaShape(48, 259, 2)

    other = tmp_path / "other"
    student(teacher_folder).save_pretrained(other)
    store.write_manifest(other, {"name": "other"})
    with pytest.raises(ValueError, match="was trained on a teacher with weights"):
        load_eagle(finished / "eagle", artefact.load(other), other)
    with pytest.raises(ValueError, match="holds a head of kind 'eagle', not 'medusa'"):
        load_medusa(finished / "eagle", target, teacher_folder)


def test_a_damaged_head_is_named(finished: Path, teacher_folder: Path, tmp_path: Path):  # noqa: F811
    import shutil

    target, copy = artefact.load(teacher_folder), tmp_path / "copy"
    shutil.copytree(finished / "eagle", copy)
    with (copy / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        load_eagle(copy, target, teacher_folder)

    shutil.rmtree(copy)
    shutil.copytree(finished / "eagle", copy)
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    config["shape"]["mlp"] += 1
    (copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
    store.write_manifest(copy, {"name": "copy"})
    with pytest.raises(ValueError, match=r"down\.weight has shape"):
        load_eagle(copy, target, teacher_folder)


def test_text_of_another_target_and_text_without_laws_are_refused(
    shards: Path,  # noqa: F811 - the fixture
    teacher_folder: Path,  # noqa: F811 - the fixture
    tmp_path: Path,
):
    other = tmp_path / "other"
    student(teacher_folder).save_pretrained(other)
    store.write_manifest(other, {"name": "other"})
    with pytest.raises(ValueError, match="was not written by the target"):
        ground.prepare(place(tmp_path, "eagle", shards, other), tokens=None, look_tokens=None, dtype="float32")
    whole, recipe = corpus.load(corpus.shard_paths(shards))
    corpus.Shards(tmp_path / "narrow", recipe).append(whole.without_laws())
    narrow = place(tmp_path, "eagle", tmp_path / "narrow", teacher_folder)
    with pytest.raises(ValueError, match="no answers with laws to learn from"):
        ground.prepare(narrow, tokens=None, look_tokens=None, dtype="float32")
