"""The weights in `models/`: whole, loadable by transformers, and as good as their cards say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specdec_ref import store
from specdec_ref.decode import collect, generate
from specdec_ref.heads.eagle import load_eagle
from specdec_ref.heads.medusa import load_medusa
from specdec_ref.model import pad
from specdec_ref.pairs import Pair, load_pair
from specdec_ref.rows import Stop
from specdec_ref.sampling import GREEDY
from specdec_ref.training import corpus
from specdec_ref.training.batches import Batches, hidden_states
from specdec_ref.training.eagle import unroll
from specdec_ref.training.held_out import measure
from specdec_ref.training.stories import story
from specdec_ref.training.tiny_text import encode, openings

pytestmark = pytest.mark.usefixtures("one_thread")

ROOT = Path(__file__).parents[2]
MODELS = sorted(path.parent for path in (ROOT / "models").glob("*/manifest.json"))
LLAMAS = [folder for folder in MODELS if (folder / "tokenizer.json").is_file()]
BAND = 0.08  # a sample of some hundred judged tokens lies so near the card's figure (more than three sigma)


def names(folder: Path) -> str:
    return folder.name


def figure(folder: Path, name: str) -> float:
    """Return a figure of a model card."""
    found = re.search(rf"^\| {re.escape(name)} \| ([\d.]+) \|$", (folder / "README.md").read_text("utf-8"), re.M)
    assert found, f"the card of {folder.name} has no figure {name!r}"
    return float(found[1])


def held_out() -> corpus.Corpus:
    return corpus.load([ROOT / "data" / "corpus" / "held-out.npz"])[0]


def test_the_models_are_there_and_small_enough_for_a_repository():
    assert {"smol-draft", "tiny-target", "tiny-draft", "tiny-micro"} <= {folder.name for folder in MODELS}
    assert sum(store.total_size(folder) for folder in MODELS) < 50e6


@pytest.mark.parametrize("folder", MODELS, ids=names)
def test_every_file_has_its_checksum(folder: Path):
    manifest = store.check_folder(folder)
    assert {path.name for path in folder.iterdir()} == {*manifest["files"], store.MANIFEST}


@pytest.mark.parametrize("folder", MODELS, ids=names)
def test_a_card_tells_data_recipe_command_seed_and_licence(folder: Path):
    card = (folder / "README.md").read_text(encoding="utf-8")
    for word in ("**Data**", "**Recipe**", "**Command**: `specdec train", "**Seed**", "**Licence**: Apache-2.0"):
        assert word in card
    curve = json.loads((folder / "curve.json").read_text(encoding="utf-8"))
    assert curve["choices" if folder.name.endswith("layer-skip") else "losses"]


@pytest.mark.parametrize("folder", LLAMAS, ids=names)
def test_transformers_loads_it_and_writes_with_it(folder: Path):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) <= model.config.vocab_size
    ids = tokenizer("Once upon a time", return_tensors="pt")
    written = model.generate(**ids, max_new_tokens=4, do_sample=False)
    assert written.shape[1] > ids["input_ids"].shape[1]


def test_the_tiny_family_shares_a_tokenizer_that_begins_each_text():
    tokenizers = [
        AutoTokenizer.from_pretrained(ROOT / "models" / f"tiny-{name}") for name in ("target", "draft", "micro")
    ]
    assert all(one.get_vocab() == tokenizers[0].get_vocab() for one in tokenizers)
    text = "Grüße, 你好!\n\tfor i in range(3):  🙂"
    ids = tokenizers[0].encode(text)
    assert ids[0] == tokenizers[0].bos_token_id
    assert tokenizers[0].decode(ids, skip_special_tokens=True) == text


def test_a_damaged_model_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import shutil

    for name in ("tiny-target", "tiny-draft"):
        shutil.copytree(ROOT / "models" / name, tmp_path / name)
    monkeypatch.setattr(store, "trained_folder", lambda name: tmp_path / name)
    path = tmp_path / "tiny-draft" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged.*git checkout -- models/tiny-draft"):
        load_pair("tiny", device="cpu")


def test_smol_draft_guesses_the_targets_greedy_words_as_often_as_its_card_says():
    folder = ROOT / "models" / "smol-draft"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    text = held_out()
    greedy = text.take(text.temperatures == 0).take(range(24))
    batch = Batches(greedy, 24, seed=0).gather(np.arange(24))
    with torch.inference_mode():
        guesses = model.lm_head(hidden_states(model, batch)).argmax(-1)
    share = float((guesses == batch.labels).float().mean())
    assert share == pytest.approx(figure(folder, "alpha_greedy"), abs=BAND)


def tiny_openings(count: int) -> list[list[int]]:
    """Held-out openings, as `specdec train tiny` makes them."""
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "models" / "tiny-target")
    encoded = encode([story(number) for number in range(400)], tokenizer)
    begun = openings(encoded.take(encoded.held_out), tokenizer, (4, 12, 24))
    return [list(question.tokens) for question in begun][:count]


@pytest.mark.parametrize(("target", "draft"), [("tiny-target", "tiny-draft"), ("tiny-draft", "tiny-micro")])
def test_the_tiny_family_accepts_as_often_as_its_cards_say(target: str, draft: str):
    folders = [ROOT / "models" / name for name in (target, draft)]
    pair = load_pair("+".join(map(str, folders)), device="cpu")
    for name, temperature in (("greedy", 0.0), ("T=1", 1.0)):
        run = measure(
            pair.target,
            pair.draft,
            tiny_openings(32),
            temperature=temperature,
            stop=Stop(pair.eos_token_ids),
            max_new_tokens=192,  # as on the card: greedy texts repeat themselves towards their end
            batch_size=32,
        )
        assert run.alpha == pytest.approx(figure(folders[1], f"alpha, decoding, {name}"), abs=BAND)


@pytest.fixture(scope="module", params=["tiny", pytest.param("smol", marks=pytest.mark.smol)])
def read(request: pytest.FixtureRequest) -> tuple[Pair, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A pair, and its target's features [N, T, D] of tokens [N, T] of held-out greedy texts; `answer` [N, T] marks."""
    pair = load_pair(request.param, device="cpu")
    if request.param == "smol":
        text = held_out()
        text = text.take(text.temperatures == 0).take(range(8))
        prompts = [prompt.tolist() for prompt in text.prompts()]
        texts = [prompt + answer.tolist() for prompt, answer in zip(prompts, text.answers(), strict=True)]
    else:
        prompts, stop = tiny_openings(24), Stop(pair.eos_token_ids)
        written = collect(generate(pair.target, prompts, GREEDY, max_new_tokens=64, stop=stop))
        texts = [prompt + answer for prompt, answer in zip(prompts, written, strict=True)]
    tokens, counts = pad(texts)
    places = torch.arange(tokens.shape[1])
    answer = (places >= torch.tensor([[len(prompt)] for prompt in prompts])) & (places < counts[:, None])
    return pair, tokens, pair.target.fresh(len(texts)).prefill_with_features(texts), answer


@torch.inference_mode()
def test_an_eagle_head_guesses_the_targets_greedy_words_as_often_as_its_card_says(read):
    pair, tokens, features, answer = read
    folder = pair.head_folder("eagle")
    head = load_eagle(folder, pair.target, pair.target_folder)
    (predicted,) = unroll(head, features, tokens, 1)  # at pair i: what token i + 2 may be
    guesses = head.draft_to_target[head.logits(predicted[:, :-1]).argmax(-1)]
    share = float((guesses == tokens[:, 2:])[answer[:, 2:]].float().mean())
    assert share == pytest.approx(figure(folder, "alpha_greedy"), abs=BAND)


@torch.inference_mode()
def test_medusa_heads_guess_the_targets_greedy_words_as_often_as_their_card_says(read):
    pair, tokens, features, answer = read
    folder = pair.head_folder("medusa")
    heads = load_medusa(folder, pair.target, pair.target_folder)
    for number in (1, 2):
        ahead = 1 + number  # the target itself says the next token; head k says the k-th after it
        guesses = (heads.guess(number, features[:, :-ahead]) @ heads.output.T).argmax(-1)
        share = float((guesses == tokens[:, ahead:])[answer[:, ahead:]].float().mean())
        assert share == pytest.approx(figure(folder, f"head {number}, top-1, greedy"), abs=BAND)
