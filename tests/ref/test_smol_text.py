"""SmolLM2 writes the same text as under transformers' own `generate`, row by row, drafter by drafter.

Two ways to compute float32 logits differ in the last digits: where the two best tokens are closer than TIE, either is
right. A text may differ from its reference only there; the test prints where it did, and compares no further.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from specdec_ref import store
from specdec_ref.decode import generate, speculate
from specdec_ref.drafters import LayerChoice, LayerSkipDrafter, ModelDrafter
from specdec_ref.drafters.registry import DRAFTERS
from specdec_ref.pairs import load_pair
from specdec_ref.rows import Stop
from specdec_ref.sampling import GREEDY, SamplingSettings
from tests.ref.helpers import accepted_share, texts

pytestmark = pytest.mark.smol

TIE = 1e-3
NEW = 16
LICENSE = Path(__file__).parents[2] / "LICENSE"
CODE = "def area(width, height):\n    return width * height\n\n\ndef volume(width, height, depth):\n    return"


@pytest.fixture(scope="module", autouse=True)
def one_thread_for_the_module():
    """On a busy machine threads wait for each other longer than they work: one takes minutes, two can take ten."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def pair():
    if not (store.smol_folder() / store.MANIFEST).is_file():
        pytest.skip("SmolLM2 is not converted: run `specdec models fetch smol`")
    return load_pair("smol")


@pytest.fixture(scope="module")
def stock(pair):
    """The same weights with transformers' own kernels."""
    return AutoModelForCausalLM.from_pretrained(store.smol_folder(), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def prompts(pair):
    """1, about 20, 120, 300 and 500 tokens."""
    licence = pair.tokenizer(LICENSE.read_text(encoding="utf-8"))["input_ids"]
    chat = pair.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Name three rivers and one lake of Switzerland."}],
        add_generation_prompt=True,
        return_dict=True,
    )["input_ids"]
    return [licence[:1], pair.tokenizer(CODE)["input_ids"], chat + licence[:80], licence[200:500], licence[:500]]


@pytest.fixture(scope="module")
def references(pair, stock, prompts):
    """What transformers' `generate` writes, each prompt alone."""
    written = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = stock.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            max_new_tokens=NEW,
            eos_token_id=list(pair.eos_token_ids),
            pad_token_id=pair.eos_token_ids[0],
        )
        written.append(out[0, len(prompt) :].tolist())
    return written


def tie(stock, text, one, other):
    """The gap of the two tokens if they are the two best after `text` and closer than TIE, else None."""
    with torch.inference_mode():
        logits = stock(torch.tensor([text])).logits[0, -1]
    best = logits.topk(2)
    gap = float(best.values[0] - best.values[1])
    return gap if {one, other} == set(best.indices.tolist()) and gap < TIE else None


def assert_same(stock, prompt, ours, wanted, label):
    for place, (one, other) in enumerate(zip(ours, wanted, strict=False)):
        if one != other:
            gap = tie(stock, prompt + ours[:place], one, other)
            assert gap is not None, f"{label}: token {place} is {one}, not {other}, and that is no tie"
            print(f"{label}: token {place} is {one} or {other}, {gap:.1e} apart: a tie")
            return
    assert len(ours) == len(wanted), f"{label}: {len(ours)} tokens, not {len(wanted)}"


@pytest.mark.parametrize(
    ("rows", "num_draft_tokens", "drafter"),
    [
        ([0], 1, "model"),
        ([4], 5, "ngram"),
        ([1, 0], 2, "ngram"),
        ([2, 1], 6, "model"),
        ([0, 3, 1], 3, "model"),
        ([4, 1, 0], 7, "ngram"),
        ([3, 0, 2, 1], 4, "ngram"),
        ([1, 2, 0, 4], 8, "model"),
        ([1, 0], 4, "candidates"),
        ([0, 1], 4, "other-tokenizer"),
        ([1, 0], 4, "shared-tokens"),
        ([0, 1], 5, "staged"),
    ],
)
def test_greedy_text_is_that_of_transformers(pair, stock, prompts, references, rows, num_draft_tokens, drafter):
    rounds = list(
        speculate(
            pair.target,
            pair.drafter(drafter),
            [prompts[row] for row in rows],
            GREEDY,
            num_draft_tokens=num_draft_tokens,
            max_new_tokens=NEW,
            stop=Stop(token_ids=pair.eos_token_ids),
        )
    )
    for row, ours in zip(rows, texts(rounds), strict=True):
        assert_same(stock, prompts[row], ours, references[row], f"prompt {row}")


@pytest.mark.slow
@pytest.mark.parametrize("rows", [[0], [1, 0], [0, 3, 1], [3, 0, 2, 1]])
@pytest.mark.parametrize("name", list(DRAFTERS))
def test_greedy_text_of_every_drafter_in_every_batch_is_that_of_transformers(
    pair, stock, prompts, references, rows, name
):
    chosen = [prompts[row] for row in rows]
    stop = Stop(token_ids=pair.eos_token_ids)
    rounds = speculate(pair.target, pair.drafter(name), chosen, GREEDY, max_new_tokens=NEW, stop=stop)
    for row, ours in zip(rows, texts(list(rounds)), strict=True):
        assert_same(stock, prompts[row], ours, references[row], f"prompt {row}")


def test_greedy_text_with_drafts_of_the_targets_own_layers_is_that_of_transformers(pair, stock, prompts, references):
    """Every second layer: it accepts little, and slows decoding down; the text stays what it is."""
    drafter = LayerSkipDrafter(LayerChoice(tuple(range(0, 30, 2)), 0.4))
    chosen = [prompts[row] for row in (1, 0)]
    stop = Stop(token_ids=pair.eos_token_ids)
    rounds = list(speculate(pair.target, drafter, chosen, GREEDY, num_draft_tokens=3, max_new_tokens=NEW, stop=stop))
    for row, ours in zip((1, 0), texts(rounds), strict=True):
        assert_same(stock, prompts[row], ours, references[row], f"prompt {row}")


def test_plain_greedy_text_is_that_of_transformers(pair, stock, prompts, references):
    rounds = generate(pair.target, prompts, GREEDY, max_new_tokens=NEW, stop=Stop(token_ids=pair.eos_token_ids))
    for row, ours in enumerate(texts(list(rounds))):
        assert_same(stock, prompts[row], ours, references[row], f"prompt {row}")


def test_sampled_rows_write_what_they_write_alone(pair, prompts):
    """The uniforms of a row are its own; fixed seeds keep away from the rare draw that lands within 1e-5 of an edge."""
    how = SamplingSettings(temperature=0.8, top_k=50, top_p=0.95, repetition_penalty=1.1)
    chosen = [prompts[1], prompts[0], prompts[2]]

    def run(batch, seeds):
        return texts(
            list(speculate(pair.target, pair.drafter(), batch, how, num_draft_tokens=3, max_new_tokens=12, seeds=seeds))
        )

    assert run(chosen, [5, 6, 7]) == [run([prompt], [5 + row])[0] for row, prompt in enumerate(chosen)]


def test_a_target_that_drafts_for_itself_accepts_all_of_300_tokens(pair, stock, prompts):
    prompt, text = prompts[1], list(prompts[1])
    rounds = []
    for result in speculate(
        pair.target, ModelDrafter(pair.target), [prompt], GREEDY, num_draft_tokens=8, max_new_tokens=300
    ):
        accepted, drafts = result.num_accepted[0], result.drafts[0]
        if accepted < len(drafts):
            gap = tie(stock, text + drafts[:accepted], drafts[accepted], result.tokens[0][accepted])
            assert gap is not None, f"draft token {len(text) + accepted} was refused, and that is no tie"
            print(f"token {len(text) + accepted} was refused, {gap:.1e} apart: a tie")
        else:
            rounds.append(result)
        text += result.tokens[0]
    assert len(text) == len(prompt) + 300
    assert accepted_share(rounds) == 1
    assert len(rounds) >= 30, "nearly all rounds are accepted in full"


def test_loading_is_quick_once_converted(pair):
    """Under 2 s on a quiet machine; the bound is for busy ones."""
    start = time.perf_counter()
    load_pair("smol")
    seconds = time.perf_counter() - start
    print(f"load_pair('smol') took {seconds:.2f} s")
    assert seconds < 20


def test_bfloat16_decodes(pair, prompts):
    small = load_pair("smol", dtype="bfloat16")
    assert small.target.model.dtype == torch.bfloat16
    for drafter in ("model", "ngram"):
        rounds = list(
            speculate(
                small.target,
                small.drafter(drafter),
                prompts[:2],
                SamplingSettings(top_p=0.9),
                num_draft_tokens=3,
                max_new_tokens=6,
            )
        )
        assert [len(text) for text in texts(rounds)] == [6, 6]
