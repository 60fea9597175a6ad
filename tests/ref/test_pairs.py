"""Loading a pair by name: from two folders, wherever they lie; and one clear sentence for whatever is wrong."""

from __future__ import annotations

import json
import shutil
import socket
import time

import pytest
import torch
from huggingface_hub import constants
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, PreTrainedTokenizerFast

from specdec_ref.decode import collect, generate, speculate
from specdec_ref.pairs import load_pair
from specdec_ref.sampling import GREEDY

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = ["<s>", "</s>", "<unk>", "a", "cat", "dog", "sat", "ran", "on", "the", "mat", "log", "and", "then", "slept"]
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}


def write_tokenizer(folder, words=WORDS):
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")
    tokenizer.save_pretrained(folder)


def write_model(folder, width, seed=0, words=WORDS):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(vocab_size=width, bos_token_id=0, eos_token_id=1, **SIZES))
    model.save_pretrained(folder)
    write_tokenizer(folder, words)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A target and a draft whose vocabularies are padded to different widths."""
    root = tmp_path_factory.mktemp("two models")
    return write_model(root / "the target", width=20, seed=0), write_model(root / "the draft", width=24, seed=1)


def name_of(folders):
    return "+".join(map(str, folders))


def test_two_folders_make_a_pair(folders):
    pair = load_pair(name_of(folders), device="cpu")
    assert pair.name == name_of(folders)
    assert pair.dtype == "float32"
    assert pair.target.vocab_size == pair.draft.vocab_size == len(WORDS)
    assert pair.eos_token_ids == (1,)
    prompt = pair.tokenizer("the cat sat on the mat and the cat")["input_ids"]
    plain = collect(generate(pair.target, [prompt], GREEDY, max_new_tokens=20))
    for drafter in ("model", "ngram"):
        assert collect(speculate(pair.target, pair.drafter(drafter), [prompt], GREEDY, max_new_tokens=20)) == plain


def test_folder_names_with_a_plus_and_spaces(folders, tmp_path):
    """The split that gives two real folders is meant, wherever the plus signs are."""
    target, draft = tmp_path / "a+b target" / "c+d", tmp_path / "x + y"
    shutil.copytree(folders[0], target)
    shutil.copytree(folders[1], draft)
    pair = load_pair(f"{target}+{draft}", device="cpu")
    assert pair.target.model.config.vocab_size == 20
    assert pair.draft.model.config.vocab_size == 24


def test_the_same_folder_twice_is_a_pair(folders):
    assert load_pair(f"{folders[0]}+{folders[0]}", device="cpu").draft.vocab_size == len(WORDS)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8"])
def test_every_dtype_decodes(folders, dtype):
    pair = load_pair(name_of(folders), dtype=dtype, device="cpu")
    assert pair.dtype == dtype
    text = collect(speculate(pair.target, pair.drafter(), [[3, 4], [5]], max_new_tokens=6))
    assert [len(row) for row in text] == [6, 6]


@pytest.mark.parametrize(("ids", "wanted"), [(1, (1,)), ([1, 2], (1, 2)), (None, ())])
def test_end_of_text_ids_come_from_the_generation_config(folders, tmp_path, ids, wanted):
    copy = tmp_path / "target"
    shutil.copytree(folders[0], copy)
    for file in ("generation_config.json", "config.json"):
        config = json.loads((copy / file).read_text(encoding="utf-8"))
        config["eos_token_id"] = ids
        (copy / file).write_text(json.dumps(config), encoding="utf-8")
    assert load_pair(f"{copy}+{folders[1]}", device="cpu").eos_token_ids == wanted


# --- what is refused


@pytest.mark.parametrize("name", ["small", "", "+", "a+", "+a"])
def test_a_name_that_is_no_pair_is_refused(name):
    with pytest.raises(ValueError, match="is not known: it is"):
        load_pair(name)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dtype": "float8"}, "dtype='float8' is not known; known are float32"),
        ({"device": "tpu"}, "device='tpu' is not present on this machine; present: .*cpu"),
        ({"device": "cuda:7"}, "device='cuda:7' is not present"),
    ],
)
def test_an_unknown_dtype_or_device_is_refused_before_anything_is_loaded(wrong, message):
    with pytest.raises(ValueError, match=message):
        load_pair("absent/target+absent/draft", **wrong)


def test_an_unknown_drafter_is_refused(folders):
    with pytest.raises(ValueError, match=r"drafter='magic' is not known; known are .*model, ngram"):
        load_pair(name_of(folders), device="cpu").drafter("magic")


@pytest.mark.parametrize("words", [[*WORDS, "more"], WORDS[:-1], [*WORDS[:3], *WORDS[4:], "a"]])
def test_different_tokenizers_are_refused(folders, tmp_path, words):
    draft = write_model(tmp_path / "draft", words=words, width=20)
    with pytest.raises(ValueError, match=r"the tokenizers differ .* must share one"):
        load_pair(f"{folders[0]}+{draft}", device="cpu")


@pytest.mark.parametrize("name", ["/no/such/folder", "owner/model", "no such folder", "a/b/c"])
def test_an_absent_model_offline_is_a_clear_error_at_once(folders, name):
    start = time.perf_counter()
    with pytest.raises(ValueError, match=f"model '{name}' is no folder here"):
        load_pair(f"{folders[0]}+{name}", device="cpu")
    with pytest.raises(ValueError, match=f"model '{name}' is no folder here"):
        load_pair(f"{name}+{folders[0]}", device="cpu")
    assert time.perf_counter() - start < 10


def test_a_hub_that_does_not_answer_is_tried_once(folders, monkeypatch):
    tried = []

    def fails(address, *args, **kwargs):
        tried.append(address)
        raise OSError("no route to host")

    monkeypatch.setattr(socket, "create_connection", fails)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE")
    with pytest.raises(ValueError, match=r"model 'owner/model' is no folder here, .* the hub cannot be reached"):
        load_pair(f"{folders[0]}+owner/model", device="cpu")
    assert len(tried) == 1


def test_smol_that_was_never_fetched_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDEC_HOME", str(tmp_path))
    with pytest.raises(ValueError, match="is not there: run `specdec models fetch smol`"):
        load_pair("smol")


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: (folder / "model.safetensors").write_bytes(b"nonsense"),
        lambda folder: (folder / "config.json").unlink(),
        lambda folder: (folder / "config.json").write_text("{", encoding="utf-8"),
        lambda folder: (folder / "config.json").write_text('{"model_type": "no such"}', encoding="utf-8"),
        lambda folder: (folder / "tokenizer.json").write_text("{", encoding="utf-8"),
        lambda folder: [path.unlink() for path in folder.glob("tokenizer*")],
        lambda folder: [path.unlink() for path in folder.iterdir()],
    ],
    ids=[
        "no weights",
        "bad weights",
        "no config",
        "bad config",
        "unknown kind",
        "bad tokenizer",
        "no tokenizer",
        "empty",
    ],
)
def test_a_damaged_folder_is_named(folders, tmp_path, damage):
    broken = tmp_path / "broken"
    shutil.copytree(folders[1], broken)
    damage(broken)
    with pytest.raises(ValueError, match="broken"):
        load_pair(f"{folders[0]}+{broken}", device="cpu")


def test_a_model_that_rows_cannot_serve_is_refused_by_its_folder(folders, tmp_path):
    folder = tmp_path / "windowed"
    MistralForCausalLM(MistralConfig(vocab_size=20, sliding_window=8, **SIZES)).save_pretrained(folder)
    write_tokenizer(folder)
    with pytest.raises(ValueError, match=r"model '.*windowed' cannot be used here: .*sliding"):
        load_pair(f"{folders[0]}+{folder}", device="cpu")
