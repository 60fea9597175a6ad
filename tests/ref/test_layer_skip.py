"""The target drafts with some of its layers: on one cache, exact, and with layers that a search has found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specdec_ref import store
from specdec_ref.decode import collect, generate, speculate
from specdec_ref.drafters import Draft, Drafter, LayerChoice, LayerSkipDrafter, StagedDrafter, layer_skip
from specdec_ref.drafters.layer_skip import keep_layers
from specdec_ref.measure import time_draft_step
from specdec_ref.model import CachedLM
from specdec_ref.pairs import Pair
from specdec_ref.rows import Rows, Stop
from specdec_ref.sampling import GREEDY, SamplingSettings, probabilities
from specdec_ref.training.layer_recipe import run
from specdec_ref.training.layer_skip import Judge, SkipPlan, answer, open_journal, search
from tests.ref.helpers import Watched, random_table_lm, tiny_lm, uncached

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = [[5, 9, 2], [7], [1, 2, 3, 4, 5, 6, 7, 8], [40, 41]]
HALF = LayerChoice((0, 3))


def deep_lm(name: str = "llama") -> CachedLM:
    return tiny_lm(name, 0, **{"n_layer" if name == "gpt2" else "num_hidden_layers": 4})


@torch.inference_mode()
def drafted_without_tricks(lm: CachedLM, kept: tuple[int, ...], text: list[int], draft: list[int]) -> torch.Tensor:
    """Logits [len(draft), V]: the text is read by all layers, all but its last token; the rest by the kept ones."""
    side = lm.fresh(1)
    side.prefill([text[:-1]])
    side.model = keep_layers(lm.model, kept)
    return side.extend(torch.tensor([[text[-1], *draft[:-1]]]))[0]


# The view


@pytest.mark.parametrize("name", ["llama", "gpt2", "neox", "opt"])
def test_a_view_runs_the_kept_layers_and_shares_every_weight(name: str):
    lm = tiny_lm(name)
    view = keep_layers(lm.model, [1])
    count = sum(weight.numel() for weight in lm.model.parameters())
    few = {weight.data_ptr() for weight in view.parameters()}
    assert few < {weight.data_ptr() for weight in lm.model.parameters()}
    assert sum(weight.numel() for weight in view.parameters()) < count
    text = torch.tensor([[3, 1, 4]])
    before = lm.model(input_ids=text, use_cache=False).logits
    assert not torch.allclose(view(input_ids=text, use_cache=False).logits, before)
    torch.testing.assert_close(lm.model(input_ids=text, use_cache=False).logits, before)  # the target is whole
    whole = keep_layers(lm.model, [0, 1])
    torch.testing.assert_close(whole(input_ids=text, use_cache=False).logits, before)


def test_what_is_no_choice_is_refused():
    for kept in ((), (2, 1), (1, 1), (-1, 0)):
        with pytest.raises(ValueError, match="must be ascending numbers of layers"):
            LayerChoice(kept)
    with pytest.raises(ValueError, match=r"stop_below=1\.5"):
        LayerChoice((0,), 1.5)
    with pytest.raises(ValueError, match="which has 2"):
        keep_layers(tiny_lm().model, [0, 2])
    with pytest.raises(ValueError, match="TableModel has no list of layers"):
        speculate(random_table_lm(), LayerSkipDrafter(HALF), [[1]])


# Drafting


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("batch", [1, 2, 3, 4])
def test_greedy_text_is_the_targets_own(name: str, batch: int):
    target, prompts, stop = deep_lm(name), PROMPTS[:batch], Stop((11,))
    plain = collect(generate(target, prompts, GREEDY, max_new_tokens=15, stop=stop))
    for choice in (HALF, LayerChoice((1,), 0.3)):
        rounds = list(speculate(target, LayerSkipDrafter(choice), prompts, GREEDY, max_new_tokens=15, stop=stop))
        assert collect(rounds) == plain
        assert sum(map(sum, (one.num_drafted for one in rounds))) > 0


@pytest.mark.parametrize("stop_below", [0.0, 0.35])
def test_the_law_handed_in_is_that_of_the_kept_layers_on_the_targets_cache(stop_below: float):
    target, how = deep_lm(), SamplingSettings(0.8, top_p=0.9, repetition_penalty=1.2)
    rows: list[Rows] = []
    checked, lengths = 0, set[int]()

    def look(event: str, _: Drafter, value: object) -> None:
        nonlocal checked
        if isinstance(value, Rows):
            rows.append(value)
        if not isinstance(value, Draft) or value.probs is None:
            return
        for row, text in enumerate(rows[0].tokens):
            drafted = value.tokens[row, : int(value.counts[row])].tolist()
            lengths.add(len(drafted))
            if not drafted:
                continue
            logits = drafted_without_tricks(target, HALF.kept, text, drafted)
            sure = logits.softmax(-1).amax(-1)
            for i in range(len(drafted)):
                law = probabilities(logits[i : i + 1], how, torch.tensor([text + drafted[:i]]))[0]
                torch.testing.assert_close(value.probs[row, i], law, atol=1e-10, rtol=0)
                assert i + 1 == len(drafted) or sure[i] >= stop_below  # it went on because the law was sure
                checked += 1
            if len(drafted) < 4 and rows[0].remaining[row] > 5:
                assert sure[len(drafted) - 1] < stop_below  # it ended because the law was not, and kept the token

    drafter = Watched(LayerSkipDrafter(LayerChoice(HALF.kept, stop_below)), look)
    list(speculate(target, drafter, PROMPTS, how, num_draft_tokens=4, max_new_tokens=20))
    assert checked > 50
    assert stop_below == 0 or len(lengths & {1, 2, 3, 4}) > 1


def test_with_all_layers_everything_is_accepted_for_more_than_a_hundred_tokens():
    """A wrong slot, position or length anywhere in the shared cache would show as a refusal."""
    target = deep_lm()
    drafter = LayerSkipDrafter(LayerChoice((0, 1, 2, 3)))
    rounds = list(speculate(target, drafter, [[5, 9, 2], [7]], GREEDY, num_draft_tokens=5, max_new_tokens=120))
    assert all(one.num_accepted == one.num_drafted for one in rounds)


def test_the_targets_cache_is_left_as_it_was_found():
    target = deep_lm().fresh(2)
    rows = Rows([[5, 9, 2], [7, 8]], SamplingSettings(), 9, 512, Stop(), [0, 1], target.device)
    drafter = LayerSkipDrafter(HALF).fresh(target, rows)
    target.prefill([[5, 9], [7]])
    before = [store[:, :1].clone() for store in target.cache.keys]
    drafter.propose(rows, [3, 2])
    assert target.cache.lengths.tolist() == [2, 1]
    for layer, keys in enumerate(target.cache.keys):
        torch.testing.assert_close(keys[:, :1], before[layer])
    logits = target.extend(rows.last_tokens())
    torch.testing.assert_close(logits[0, 0], uncached(target, [5, 9, 2])[-1])
    torch.testing.assert_close(logits[1, 0], uncached(target, [7, 8])[-1])


def test_it_refuses_to_draft_for_a_target_that_has_not_read_the_text():
    target = deep_lm().fresh(1)
    rows = Rows([[5, 9, 2]], GREEDY, 9, 512, Stop(), [0], target.device)
    with pytest.raises(ValueError, match=r"holds \[0\] tokens of texts of \[3\]"):
        LayerSkipDrafter(HALF).fresh(target, rows).propose(rows, [2])
    with pytest.raises(ValueError, match="cannot take text back"):
        StagedDrafter(target, LayerSkipDrafter(HALF))


def test_a_row_does_not_depend_on_the_rows_beside_it():
    target, drafter = deep_lm(), LayerSkipDrafter(LayerChoice((0, 2), 0.2))
    settings, options = SamplingSettings(0.9, top_p=0.95), {"num_draft_tokens": 3, "max_new_tokens": 15}
    together = collect(speculate(target, drafter, PROMPTS, settings, seeds=[1, 2, 3, 4], **options))
    alone = [
        collect(speculate(target, drafter, [prompt], settings, seeds=[seed], **options))[0]
        for seed, prompt in enumerate(PROMPTS, start=1)
    ]
    assert together == alone


def test_its_draft_step_can_be_timed():
    assert time_draft_step(LayerSkipDrafter(HALF), deep_lm(), PROMPTS[:2], 3, GREEDY, repeats=2) is not None


# The search


def test_hits_are_what_the_drafter_says_in_a_round_that_began_there():
    """Each place and depth, against drafts made without any trick."""
    target, plan = deep_lm(), SkipPlan(tokens=9, num_draft_tokens=3)
    texts = answer(target, PROMPTS[:3], 9, Stop((11,)))
    hits, sure = Judge(target, texts, plan).draft_everywhere((0, 2))
    for row, (prompt, text) in enumerate(texts):
        assert hits[row].shape == sure[row].shape == (3, len(text))
        for j in range(len(text)):
            for k in range(min(j + 1, 3)):
                begun, right = prompt + text[: j - k], text[j - k : j + 1]
                logits = drafted_without_tricks(target, (0, 2), begun, right)[-1]
                assert bool(hits[row][k, j]) == (int(logits.argmax()) == text[j])
                assert float(sure[row][k, j]) == pytest.approx(float(logits.softmax(-1).max()), abs=1e-5)


def test_the_promised_tokens_per_round_are_those_of_decoding():
    target, prompts = deep_lm(), PROMPTS[:3]
    texts = answer(target, prompts, 30, Stop())
    judge = Judge(target, texts, SkipPlan(tokens=30, num_draft_tokens=3))
    hits, sure = judge.draft_everywhere((0, 1, 3))
    rounds = list(
        speculate(
            target, LayerSkipDrafter(LayerChoice((0, 1, 3))), prompts, GREEDY, num_draft_tokens=3, max_new_tokens=30
        )
    )
    passes = sum(bool(tokens) for one in rounds for tokens in one.tokens)
    assert judge.bill(hits, sure, 3, 0.0, (0, 1, 3))["tokens_per_round"] == pytest.approx(90 / passes)


def test_the_share_counts_layers_and_the_output_layer():
    judge = Judge(deep_lm(), [([1, 2], [3])], SkipPlan())
    assert judge.share(range(4)) == 1
    assert judge.share((0,)) == pytest.approx((judge.rest + judge.weights[0]) / (judge.rest + 4 * judge.weights[0]))


def test_the_search_spares_the_layers_that_can_best_be_spared_and_knows_when_to_end():
    asked: list[tuple[int, ...]] = []

    def worth(kept):
        asked.append(tuple(kept))
        return {"speedup": 2.0 if set(kept) == {0, 4} else 1 / (1 + len(set(kept) - {0, 4})), "stop_below": 0.4}

    choice, path = search(worth, 5, SkipPlan(patience=1), {}, lambda journal: None)
    assert choice == LayerChoice((0, 4), 0.4)
    assert [len(one["kept"]) for one in path] == [4, 3, 2, 1]
    assert len(asked) == len(set(asked)) == 5 + 4 + 3 + 2


def write_target(folder: Path) -> Path:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2}
        config = LlamaConfig(vocab_size=40, bos_token_id=0, eos_token_id=1, initializer_range=0.3, **sizes)
        LlamaForCausalLM(config).save_pretrained(folder)
    store.write_manifest(folder, {"name": "toy"})
    return folder


def test_the_recipe_goes_on_from_its_journal_and_ends_in_a_folder_that_drafts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    target, plan = write_target(tmp_path / "toy-target"), SkipPlan(tokens=8, num_draft_tokens=2)
    said: list[int] = []

    def go(work: str, give_up_after: int = 99) -> dict:
        def tell(name: str, done: int, total: int, remark: str) -> None:
            said.append(done)
            if name == "choices" and done >= give_up_after:
                raise KeyboardInterrupt

        options = {"prompts": None, "count": 2, "seed": 3, "command": "specdec train layer-skip", "tell": tell}
        return run(target, plan, work=tmp_path / work, out=tmp_path / "toy-layer-skip", **options)  # pyright: ignore

    with pytest.raises(KeyboardInterrupt):
        go("stopped", give_up_after=2)
    assert len(json.loads((tmp_path / "stopped" / "search.json").read_text(encoding="utf-8"))["journal"]) == 2
    said.clear()
    after_a_stop = go("stopped")
    assert min(said[2:]) == 3  # nothing was asked twice
    first = (tmp_path / "toy-layer-skip" / "config.json").read_bytes()
    assert go("whole") == after_a_stop
    assert (tmp_path / "toy-layer-skip" / "config.json").read_bytes() == first
    assert after_a_stop["alpha, decoding, greedy"] is not None

    lm = CachedLM(LlamaForCausalLM.from_pretrained(target))
    pair = Pair("toy", lm, lm, None, "float32", target)  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(Pair, "head_folder", lambda pair, kind: tmp_path / f"toy-{kind}")
    drafter = layer_skip.for_pair(pair)
    plain = collect(generate(lm, [[0, 5]], GREEDY, max_new_tokens=12))
    assert collect(speculate(lm, drafter, [[0, 5]], GREEDY, max_new_tokens=12)) == plain

    other = shutil.copytree(target, tmp_path / "other")
    model = LlamaForCausalLM.from_pretrained(other)
    model.model.norm.weight.data += 1
    model.save_pretrained(other)
    store.write_manifest(other, {"name": "other"})
    with pytest.raises(ValueError, match="use the head made for it"):
        layer_skip.for_pair(Pair("toy", lm, lm, None, "float32", other))  # pyright: ignore[reportArgumentType]


def test_a_journal_belongs_to_one_recipe(tmp_path: Path):
    journal, keep = open_journal(tmp_path, {"seed": 1})
    assert journal == {}
    keep({"0 1": {"speedup": 1.0}})
    assert open_journal(tmp_path, {"seed": 1})[0] == {"0 1": {"speedup": 1.0}}
    with pytest.raises(ValueError, match="another seed"):
        open_journal(tmp_path, {"seed": 2})
    (tmp_path / "search.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="is damaged"):
        open_journal(tmp_path, {"seed": 1})
