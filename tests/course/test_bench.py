"""The whole benchmark at toy size: every system, one schema, equal texts, and clear words about bad input."""

import io
import json
import sys
import types

import jsonschema
import pytest
import torch
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from specdec_course.benchmark import bench, llama_engine, plot, tables, texts
from specdec_course.benchmark.hugging_face import Generator, stock_twin, transformers_systems
from specdec_course.benchmark.options import Options, parse_lengths
from specdec_course.benchmark.run import Texts
from specdec_course.benchmark.schema import SCHEMA
from specdec_course.benchmark.systems import weight_bytes
from specdec_course.cli import build_app
from specdec_course.errors import CourseError
from specdec_ref.decode import collect, generate
from specdec_ref.kernels import FastLinear
from specdec_ref.sampling import GREEDY
from tests.course.toy_pair import toy_pair

CHECK = jsonschema.Draft202012Validator(SCHEMA)
SMALL = {"pair": "toy", "prompts": 1, "max_new_tokens": 6, "lengths": (2, 5)}


@pytest.fixture(scope="module")
def pair():
    return toy_pair()


def run(pair, **changes):
    options = Options(**{**SMALL, **changes})
    return bench.bench([pair], options, transformers_systems(pair, options))


@pytest.fixture(scope="module")
def report(pair):
    return run(pair)


def test_the_report_follows_its_schema_and_is_json(report):
    CHECK.validate(json.loads(json.dumps(report)))


def test_the_schema_refuses_a_report_without_a_ratio(report):
    broken = json.loads(json.dumps(report))
    del broken["ratios"]["spec_over_best_plain"]["all"]
    assert list(CHECK.iter_errors(broken))


def test_every_speculative_system_of_ours_shows_its_bill(report):
    for system in report["systems"]:
        for suite, figures in system["results"].items():
            ours = system["engine"] == "specdec" and system["method"] != "plain"
            assert ("predicted_speedup" in figures) == ours
            assert ("bill" in figures) == (ours and suite != "all")
            assert ("reason" in figures) == (system["method"] != "plain" and suite != "all")


def test_every_system_takes_part(report):
    assert [system["name"] for system in report["systems"]] == [
        "ours, plain",
        "ours, draft model",
        "ours, n-gram",
        "transformers generate, stock layers",
        "transformers assisted, stock layers",
        "transformers prompt lookup, stock layers",
        "transformers generate, fast layers",
        "transformers assisted, fast layers",
        "transformers prompt lookup, fast layers",
    ]
    for system in report["systems"]:
        assert set(system["results"]) == {"chat", "code-edit", "story", "summary", "all"}
        assert system["results"]["all"]["new_tokens"] == 4 * 6


def test_all_greedy_texts_are_equal(report):
    assert report["texts"] == {"compared": 9 * 4, "equal": 9 * 4, "differences": []}


def test_ratios_are_given_for_each_suite_and_for_all(report):
    for name in ("spec_over_best_plain", "spec_over_transformers_assisted", "measured_over_predicted"):
        assert set(report["ratios"][name]) == {"chat", "code-edit", "story", "summary", "all"}
        assert report["ratios"][name]["all"] > 0


def test_no_report_names_a_machine(report):
    import platform

    assert platform.node() not in json.dumps(report) or not platform.node()


def test_the_tables_say_it_all(report):
    out = io.StringIO()
    tables.show(report, Console(file=out, width=140))
    shown = out.getvalue()
    for words in (
        "tokens/s on the tuning prompts",
        "spec_over_best_plain: chat ",
        "36 of 36 greedy texts",
        "at its peak",
    ):
        assert words in shown


def test_the_figure_carries_its_text(report, tmp_path):
    plot.save(report, tmp_path / "bench.png")
    with Image.open(tmp_path / "bench.png") as picture:
        assert min(picture.size) > 700
        assert picture.info["Description"] == plot.alt_text(report)


@pytest.fixture(scope="module")
def batched(pair):
    return run(pair, suite="story", batch=2, lengths="auto", temperature=0.8, drafter="best", max_new_tokens=4)


def test_a_batch_is_measured_beside_batch_one_and_the_best_drafter_alone_is_kept(batched):
    CHECK.validate(batched)
    own = [(one["method"] == "plain", one["batch"]) for one in batched["systems"] if one["engine"] == "specdec"]
    assert sorted(own) == [(False, 1), (False, 2), (True, 1), (True, 2)]
    assert batched["ratios"]["batch_over_batch_1"]["all"] > 0


def test_auto_is_shown_as_auto_and_sampled_texts_are_not_compared(batched):
    spec = next(one for one in batched["systems"] if one["engine"] == "specdec" and one["method"] != "plain")
    assert spec["results"]["story"]["num_draft_tokens"] == "auto"
    assert batched["texts"]["equal"] is None


def test_dtypes_stand_side_by_side():
    options = Options(**{**SMALL, "suite": "story", "drafter": "best", "lengths": (2,)})
    report = bench.bench([toy_pair(dtype=dtype) for dtype in ("float32", "bfloat16")], options, [])
    CHECK.validate(report)
    assert {one["dtype"] for one in report["systems"]} == {"float32", "bfloat16"}
    assert report["texts"]["compared"] == 2  # those of bfloat16 need not be the same
    assert "wins with" in report["findings"][-2]


def test_the_stock_twin_shares_every_weight_and_computes_the_same(pair):
    twin, model = stock_twin(pair.target.model), pair.target.model
    assert not any(isinstance(module, FastLinear) for module in twin.modules())
    assert any(isinstance(module, FastLinear) for module in model.modules())
    assert weight_bytes(twin, model) == weight_bytes(model)
    ids = torch.arange(6)[None]
    with torch.inference_mode():
        torch.testing.assert_close(twin(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("count", [1, 3])
def test_an_assistant_drafts_exactly_k_tokens(pair, count):
    decode = Generator(pair.target.model, pair, Options(**SMALL)).assisted_by(pair.draft.model)
    found = decode([[1, 2, 3]], count, 12)
    assert {result.num_drafted[0] for result in found.rounds[:-2]} == {count}
    assert collect(found.rounds) == collect(generate(pair.target, [[1, 2, 3]], GREEDY, max_new_tokens=12))
    assert len(found.seconds) == len(found.rounds)


def test_a_self_draft_is_always_accepted(pair):
    decode = Generator(pair.target.model, pair, Options(**SMALL)).assisted_by(stock_twin(pair.target.model))
    assert decode([[1, 2, 3]], 3, 13).alpha == 1.0


def test_prompt_lookup_drafts_at_most_k_tokens_and_rounds_without_a_match_have_none(pair):
    found = Generator(pair.target.model, pair, Options(**SMALL)).prompt_lookup([[1, 2, 3, 9, 1, 2]], 2, 12)
    assert all(result.num_drafted[0] <= 2 for result in found.rounds)
    assert found.new_tokens == 12


def test_rows_that_end_early_in_a_padded_batch_get_nothing_more(pair):
    prompts = [[1, 2, 3], [5]]
    free = collect(generate(pair.target, prompts, GREEDY, max_new_tokens=6))
    config = pair.target.model.generation_config
    config.eos_token_id = free[0][1]
    try:
        found = Generator(pair.target.model, pair, Options(**SMALL)).plain(prompts, 0, 6)
    finally:
        config.eos_token_id = None
    texts = collect(found.rounds)
    assert texts[0] == free[0][: free[0].index(free[0][1]) + 1]


def test_a_text_that_differs_is_reported_with_the_gap_of_its_two_best_tokens(pair):
    suite = Texts("story", measured=[[1, 2, 3]], tuning=[])
    options = Options(**SMALL)
    ours = Generator(pair.target.model, pair, options).plain([[1, 2, 3]], 0, 6)
    other = Generator(pair.target.model, pair, options).plain([[1, 2, 3]], 0, 6)
    other.rounds[4].tokens[0][0] ^= 1
    systems = transformers_systems(pair, options)[:2]
    measured = {(systems[0].name, "story"): [ours], (systems[1].name, "story"): [other]}
    (found,) = texts.differences(pair.target, systems, [suite], measured, systems[0].name)
    assert (found["system"], found["prompt"], found["position"]) == (systems[1].name, 0, 4)
    assert found["top_two_gap"] > 0


class FakeLlama:
    """What this course uses of `llama_cpp.Llama`: `reset`, `eval`, and `generate`, which yields token by token."""

    def __init__(self, **arguments):
        self.draft_model, self.resets = arguments.get("draft_model"), 0

    def reset(self):
        self.resets += 1

    def eval(self, tokens):
        self.evaluated = list(tokens)

    def generate(self, tokens, temp, top_k, top_p, min_p, repeat_penalty):
        assert (top_k, top_p, min_p, repeat_penalty) == (0, 1.0, 0.0, 1.0)
        token, block = 10, tokens
        while True:
            self.eval(block)
            for _ in block if block is not tokens and self.draft_model else [0]:
                token += 1
                yield token
            block = [token, *[token + 1] * (self.draft_model.num_pred_tokens if self.draft_model else 0)]


class FakeLookup:
    def __init__(self, max_ngram_size, num_pred_tokens):
        self.max_ngram_size, self.num_pred_tokens = max_ngram_size, num_pred_tokens


def test_llama_cpp_stands_beside_as_a_class_of_its_own(monkeypatch, tmp_path):
    package, speculative = types.ModuleType("llama_cpp"), types.ModuleType("llama_cpp.llama_speculative")
    package.Llama, speculative.LlamaPromptLookupDecoding = FakeLlama, FakeLookup
    monkeypatch.setitem(sys.modules, "llama_cpp", package)
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_speculative", speculative)
    gguf = tmp_path / "smol.gguf"
    gguf.write_bytes(b"weights")
    monkeypatch.setattr(llama_engine, "unpack", lambda _: gguf)
    plain, lookup = llama_engine.llama_cpp_systems(toy_pair("smol"), Options(**{**SMALL, "pair": "smol"}), tmp_path)
    assert (plain.engine, plain.weights) == ("llama.cpp", {"target": 7})
    found = plain.decode([[1, 2, 3]], 0, 4)
    assert [len(result.tokens[0]) for result in found.rounds] == [1, 1, 1, 1]
    found = lookup.decode([[1, 2, 3]], 2, 7)
    assert collect(found.rounds) == [[11, 12, 13, 14, 15, 16, 17]]
    assert [result.num_accepted[0] for result in found.rounds] == [0, 2, 2]
    assert [result.num_drafted[0] for result in found.rounds] == [0, 2, 2]
    assert len(found.seconds) == 3


def test_without_llama_cpp_the_peer_is_refused_in_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(CourseError, match="llama-cpp-python"):
        llama_engine.llama_cpp_systems(toy_pair("smol"), Options(), tmp_path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--drafter", "oracle"], "drafter='oracle'"),
        (["--suite", "poem"], "suite='poem'"),
        (["--batch", "0"], "batch=0"),
        (["--k", "two"], "k='two'"),
        (["--k", "0,2"], "k=(0, 2)"),
        (["--max-new-tokens", "1"], "max_new_tokens=1"),
        (["--prompts", "7"], "prompts=7"),
        (["--repeats", "0"], "repeats=0"),
        (["--temperature", "-1"], "temperature=-1"),
        (["--dtype", "int4"], "dtype='int4'"),
        (["--pair", "nowhere"], "pair='nowhere'"),
        (["--peer", "gpt"], "peer='gpt'"),
        (["--json", "no/such/folder/a.json"], "no folder"),
    ],
)
def test_bad_input_is_one_clear_line(arguments, words):
    done = CliRunner().invoke(build_app(), ["bench", "pair", *arguments])
    assert done.exit_code == 1
    assert words in done.stderr.splitlines()[-1]


def test_draft_lengths_are_read_as_a_sorted_set():
    assert parse_lengths("8,2,2") == (2, 8)
    assert parse_lengths("auto") == "auto"


def test_the_schema_can_be_printed():
    done = CliRunner().invoke(build_app(), ["bench", "schema"])
    assert json.loads(done.stdout) == SCHEMA


@pytest.mark.smol
def test_the_command_runs_on_the_real_model(tmp_path):
    arguments = ["--suite", "chat", "--prompts", "1", "--max-new-tokens", "4", "--k", "2", "--drafter", "ngram"]
    files = ["--json", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.png")]
    done = CliRunner().invoke(build_app(), ["bench", "pair", *arguments, "--threads", "1", *files])
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    CHECK.validate(report)
    assert report["texts"]["compared"] == 6
    assert all(one["top_two_gap"] < 1e-3 for one in report["texts"]["differences"])
    assert (tmp_path / "a.png").stat().st_size > 10_000
