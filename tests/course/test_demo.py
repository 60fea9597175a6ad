"""The demo: what each token was, what the eye sees, and figures that say None where nothing is known."""

import io
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from specdec_course import demo
from specdec_course.cli import build_app
from specdec_course.demo import Painter, Request, figures, report, run_demo, token_kinds, verdict
from specdec_ref.measure import Run
from specdec_ref.rows import Round
from specdec_ref.sampling import GREEDY, SamplingSettings
from tests.course.toy_pair import toy_pair

KEYS = [
    "pair",
    "drafter",
    "device",
    "dtype",
    "prompt_tokens",
    "new_tokens",
    "num_draft_tokens",
    "rounds",
    "drafted",
    "accepted",
    "emitted_per_round",
    "acceptance_rate",
    "alpha",
    "text_equal",
    "plain_tokens_per_s",
    "spec_tokens_per_s",
    "speedup",
    "target_step_ms",
    "verify_ms",
    "draft_step_ms",
    "predicted_speedup",
]


@pytest.fixture(scope="module")
def pair():
    toy = toy_pair()
    return replace(toy, draft=toy.target)  # a draft that is always right


def request(**changes):
    values = {"num_draft_tokens": 3, "settings": GREEDY, "max_new_tokens": 12, "batch": 1, "seed": 0}
    return Request("hello hello", **{**values, **changes})


def test_every_token_is_accepted_corrected_a_bonus_or_plain():
    rounds = Round([[1, 2, 3], [4, 5], [6], []], [[1, 2, 9], [4], [], []], [2, 1, 0, 0], [None] * 4)
    kinds = [[kind for _, kind in token_kinds(rounds, row)] for row in range(4)]
    assert kinds == [["accepted", "accepted", "correction"], ["accepted", "bonus"], ["plain"], []]


@pytest.mark.parametrize("drafter", ["model", "ngram"])
@pytest.mark.parametrize("batch", [1, 3])
def test_greedy_text_equals_plain_text(pair, drafter, batch):
    numbers = run_demo(pair, pair.drafter(drafter), request(batch=batch), lambda _: None)
    assert numbers["text_equal"] is True
    assert numbers["new_tokens"] == 12 * batch
    assert set(KEYS) - {"drafter"} <= set(numbers)


def test_a_self_draft_accepts_everything_and_rounds_are_counted(pair):
    numbers = run_demo(pair, pair.drafter("model"), request(), lambda _: None)
    assert (numbers["rounds"], numbers["alpha"], numbers["acceptance_rate"]) == (3, 1.0, 1.0)
    assert numbers["emitted_per_round"] == 4.0


def test_the_text_is_finished_before_a_bar_can_wipe_its_last_line(pair, monkeypatch):
    events = []
    bar = demo.progress
    monkeypatch.setattr(demo, "progress", lambda: events.append("bar") or bar())
    run_demo(pair, pair.drafter("model"), request(), lambda _: events.append("show"), lambda: events.append("finish"))
    assert events == ["show"] * 3 + ["finish", "bar", "bar"]


def test_unknown_figures_are_none_and_never_zero(pair):
    numbers = run_demo(pair, pair.drafter("ngram"), request(num_draft_tokens=0, max_new_tokens=1), lambda _: None)
    unknown = ["acceptance_rate", "alpha", "draft_step_ms", "plain_tokens_per_s", "spec_tokens_per_s", "speedup"]
    assert [numbers[key] for key in unknown] == [None] * 6
    assert "too short" in verdict(numbers)
    report(numbers, "ngram")  # and the table can say so


def test_an_empty_answer_is_no_crash(pair):
    numbers = run_demo(pair, pair.drafter("ngram"), request(max_new_tokens=0), lambda _: None)
    assert (numbers["new_tokens"], numbers["rounds"], numbers["predicted_speedup"]) == (0, 0, None)


def test_sampled_texts_are_not_said_to_be_equal_or_different(pair):
    numbers = run_demo(pair, pair.drafter("model"), request(settings=SamplingSettings()), lambda _: None)
    assert numbers["text_equal"] is None


def test_a_slowdown_is_called_one():
    sentence = verdict({"text_equal": True, "speedup": 0.87})
    assert "slower" in sentence


def test_the_speedup_is_a_ratio_of_speeds_of_whole_runs(pair):
    def run(seconds):
        return Run([Round([[1]], [[]], [0], [None])] * 5, [9.0] + [seconds] * 4)

    numbers = figures(pair, request(), 11, run(1.0), run(2.0), {1: 1.0, 4: 1.0}, 0.1)
    assert numbers["speedup"] == pytest.approx(2.0)


def painted(pair, **console):
    buffer = io.StringIO()
    painter = Painter(pair, Console(file=buffer, **console))
    text = [*b"abc"]
    tokens = [pair.tokenizer.encode(chr(letter))[0] for letter in text]
    painter.show(Round([tokens], [[tokens[0], tokens[1], 0]], [2], [None]))
    painter.show(Round([[tokens[2]]], [[]], [0], [None]))
    painter.finish()
    return buffer.getvalue()


def test_a_terminal_shows_colours(pair):
    assert "\x1b[32ma" in painted(pair, force_terminal=True, color_system="standard", no_color=False)


def test_a_terminal_without_colour_shows_marks(pair):
    shown = painted(pair, force_terminal=True, no_color=True)
    assert shown.endswith("\nab[c]c\n")
    assert "[the target's correction" in shown  # the legend comes first, in the same marks


def test_a_pipe_shows_plain_text(pair):
    assert painted(pair, force_terminal=False) == "abcc\n"


def specdec(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "specdec_course", *arguments],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONUTF8": "1", **environment},
        timeout=570,
    )


@pytest.mark.smol
def test_json_prints_one_object_and_nothing_else():
    done = specdec("demo", "--json", "--max-new-tokens", "24")
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout)
    assert set(KEYS) <= set(numbers)
    assert (numbers["drafter"], numbers["pair"], numbers["dtype"]) == ("model", "smol", "float32")
    assert numbers["text_equal"] is True
    assert numbers["new_tokens"] == 24
    assert numbers["accepted"] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--k", "-1"], "num_draft_tokens=-1"),
        (["--temperature", "-1"], "temperature=-1"),
        (["--dtype", "int4"], "dtype='int4'"),
        (["--device", "abacus"], "device='abacus'"),
        (["--pair", "nowhere"], "pair='nowhere'"),
        (["--pair", "no/where+no/where"], "'no/where'"),
        (["--batch", "0"], "batch=0"),
        (["--max-new-tokens", "-3"], "max_new_tokens=-3"),
        (["--prompt", ""], "prompt is empty"),
        pytest.param(["--drafter", "oracle"], "drafter='oracle'", marks=pytest.mark.smol),
    ],
)
def test_bad_input_is_one_clear_line(arguments, words):
    done = CliRunner().invoke(build_app(), ["demo", *arguments])
    assert done.exit_code == 1
    assert done.stdout == ""
    assert words in done.stderr.splitlines()[-1]
    assert done.exception is None or isinstance(done.exception, SystemExit)
