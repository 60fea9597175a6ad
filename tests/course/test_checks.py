"""What a check says: the verdict, the message, the points; on the exercise 2.1 that authors copy from."""

import json
import sys
import threading
import time

import numpy as np
import pytest
import torch

import specdec_course
from specdec_course.checks import exercise as parts
from specdec_course.checks import find_exercise, notebook
from specdec_course.checks.judge import judge
from specdec_course.checks.observe import observe
from specdec_course.errors import CourseError
from tests.course.mistakes import stage_02


@pytest.fixture(autouse=True)
def own_record(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_PROGRESS", str(tmp_path / "progress.json"))


def verdict_on(function, exercise=None, seed=0):
    exercise = exercise or find_exercise("2.1")
    through_json = json.loads(json.dumps(observe(exercise, function, seed), allow_nan=False))
    return judge(exercise, through_json, seed)


def small_exercise(reference, arguments, **more):
    """An exercise whose one function takes `arguments`; used to try one property at a time."""
    about = {"title": "T", "points": 1, "difficulty": 1, "minutes": 1, "section": "S", "rule": "R."}
    cases = more.pop("cases", lambda seed: [parts.Case(arguments)])
    return parts.Exercise(
        id="9.1", function="f", **about, hints=("a", "b", "c"), cases=cases, reference=reference, **more
    )


def test_a_right_answer_gets_all_points_and_no_message():
    verdict = verdict_on(stage_02.clamped)
    assert (verdict.status, verdict.points, verdict.message) == ("passed", 2, "")


def test_the_stub_is_not_attempted_rather_than_wrong():
    def accept_token(target_probs, draft_probs, token, uniform):
        raise NotImplementedError

    verdict = verdict_on(accept_token)
    assert (verdict.status, verdict.points) == ("not attempted", 0)
    assert "accept_token" in verdict.message


def test_a_message_says_what_was_seen_what_was_expected_why_and_where_to_read():
    exercise = find_exercise("2.1")
    verdict = verdict_on(stage_02.swapped)
    lines = dict(line.split(": ", 1) for line in verdict.message.splitlines())
    assert verdict.status == "not yet"
    assert lines["This looks like"] == "p and q swapped."
    assert lines["Seen"].startswith("accept_token(target_probs=tensor([")
    assert lines["Expected"] in ("True", "False")
    assert lines["Why"] == next(one.why for one in exercise.mistakes if one.name == verdict.mistake)
    assert exercise.section in lines["Read again"]


def test_an_exception_of_the_learner_is_shown_with_its_line_and_the_arguments():
    def accept_token(target_probs, draft_probs, token, uniform):
        return target_probs[token + 7] > uniform

    verdict = verdict_on(accept_token)
    assert verdict.mistake == "own exception"
    assert "IndexError" in verdict.headline
    assert "return target_probs[token + 7] > uniform" in verdict.headline
    assert "token=0" in verdict.seen
    assert "Traceback" not in verdict.message


def test_exit_in_an_answer_is_an_exception_like_any_other():
    verdict = verdict_on(lambda p, q, token, uniform: sys.exit(0))
    assert (verdict.status, verdict.mistake) == ("not yet", "own exception")


def test_what_is_no_function_or_cannot_be_called_is_said_before_anything_runs():
    assert verdict_on(True).mistake == "not a function"
    assert verdict_on(lambda p, q: True).mistake == "wrong signature"


def endless(p, q, token, uniform):
    while True:
        try:
            while True:
                pass
        except Exception:
            continue


@pytest.mark.parametrize("thread", [False, True])
def test_an_endless_loop_is_left_after_the_time_limit(thread, monkeypatch):
    exercise = small_exercise(lambda p, q, t, u: 1, {"p": 1, "q": 1, "t": 1, "u": 1}, seconds=0.3)
    found = []
    if thread:  # the way it works on Windows, and where a notebook's kernel runs cells in a thread
        worker = threading.Thread(target=lambda: found.append(verdict_on(endless, exercise)))
        worker.start()
        worker.join(60)
    else:
        found.append(verdict_on(endless, exercise))
    assert found[0].mistake == "too slow"


@pytest.mark.parametrize(
    ("reference", "answer", "mistake"),
    [
        (lambda x: x.sum(), lambda x: None, "missing return"),
        (lambda x: x * 2, lambda x: (x * 2)[:1], "wrong shape"),
        (lambda x: x * 2, lambda x: (x * 2)[None], "wrong shape"),
        (lambda x: x * 2, lambda x: (x * 2).double(), "wrong dtype"),
        (lambda x: x * 2, lambda x: (x * 2).numpy(), "wrong device"),
        (lambda x: x * 2, lambda x: (x * 2).tolist(), "wrong type"),
        (lambda x: x * 2, lambda x: torch.zeros_like(x, device="meta"), "wrong device"),
        (lambda x: x * 2, lambda x: x.mul_(2), "changed input"),
        (lambda x: x * 2, lambda x: x * 2 + 0 * torch.rand(3), "wrong random generator"),
        (lambda x: x * 2, lambda x: x * 2 + 0 * float(np.random.rand()), "wrong random generator"),
        (lambda x: 3, lambda x: 3.5, "wrong type"),
        (lambda x: (1, x), lambda x: 1, "wrong type"),
        (lambda x: (1, x), lambda x: (1, x[:2]), "wrong shape"),
        (lambda x: True, lambda x: 1, "wrong type"),
    ],
)
def test_the_form_of_an_answer_is_judged_before_its_numbers(reference, answer, mistake):
    exercise = small_exercise(reference, {"x": torch.tensor([1.0, 2.0, 3.0])})
    verdict = verdict_on(answer, exercise)
    assert (verdict.status, verdict.mistake) == ("not yet", mistake)


@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        (lambda x: 6.0, lambda x: x.sum()),
        (lambda x: 6.0, lambda x: 6),
        (lambda x: 3, lambda x: torch.tensor(3)),
        (lambda x: True, lambda x: np.bool_(True)),
        (lambda x: [1, 2], lambda x: (1, 2)),
        (lambda x: x.sum(), lambda x: float(x.sum())),
        (lambda x: iter([1, 2]), lambda x: [1, 2]),
        (lambda x: float("nan"), lambda x: float("nan")),
        (lambda x: float("inf"), lambda x: float("inf")),
    ],
)
def test_forms_that_mean_the_same_pass(reference, answer):
    exercise = small_exercise(reference, {"x": torch.tensor([1.0, 2.0, 3.0])})
    assert verdict_on(answer, exercise).status == "passed"


def test_an_answer_larger_than_any_task_is_refused_without_being_written_down():
    exercise = small_exercise(lambda x: x, {"x": torch.ones(3)})
    seen = observe(exercise, lambda x: torch.ones(4000, 4000))
    assert len(json.dumps(seen)) < 1000
    assert judge(exercise, seen).status == "not yet"


def test_code_that_ignores_its_uniforms_is_told_so():
    cases = [parts.Case({"x": 1, "uniform": uniform}) for uniform in (0.1, 0.9)]
    exercise = small_exercise(lambda x, u: u < 0.5, {}, cases=lambda seed: cases, uniforms=("uniform",))
    assert verdict_on(lambda x, u: True, exercise).mistake == "wrong random generator"


def drawn_exercise():
    law = torch.tensor([0.5, 0.3, 0.2])
    cases = [parts.Case({"law": law, "generator": parts.generator(7)}, repeats=1000)]
    uniform = parts.Mistake("drawn evenly", None, "W.", law=lambda law, generator: torch.ones(3) / 3)
    return small_exercise(
        lambda law, generator: 0, {}, cases=lambda seed: cases, law=lambda law, generator: law, mistakes=[uniform]
    )


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda law, g: torch.multinomial(law, 1, generator=g), "wrong shape"),
        (lambda law, g: torch.multinomial(law, 1, generator=g).item(), None),
        (lambda law, g: int((law.cumsum(0) <= torch.rand((), generator=g)).sum()), None),
        (lambda law, g: int((law.log() - (-torch.rand(3, generator=g).log()).log()).argmax()), None),
        (lambda law, g: int(torch.randint(3, (), generator=g)), "drawn evenly"),
        (lambda law, g: torch.multinomial(law, 1).item(), "wrong random generator"),
    ],
)
def test_drawn_answers_are_judged_by_their_law_whatever_the_method(answer, mistake):
    verdict = verdict_on(answer, drawn_exercise())
    assert verdict.mistake == mistake
    assert verdict.status == ("not yet" if mistake else "passed")


@pytest.mark.parametrize("seen", [None, [], {}, {"callable": True, "cases": [1], "printed": ""}, {"cases": 3}])
def test_a_malformed_observation_is_not_yet_and_never_an_exception(seen):
    assert judge(find_exercise("2.1"), seen).status == "not yet"


def test_an_observation_with_forged_parts_is_not_yet():
    exercise = find_exercise("2.1")
    for key, value in [("value", {"kind": "tensor", "shape": [-1], "values": []}), ("error", "x"), ("none", "yes")]:
        seen = observe(exercise, stage_02.clamped)
        seen["cases"][3][key] = value
        assert judge(exercise, seen).status == "not yet", key
    seen = observe(exercise, stage_02.clamped)
    seen["cases"] = seen["cases"][:4]
    assert judge(exercise, seen).status == "not yet"


def test_check_returns_a_bare_number_and_writes_nothing_to_stderr(capfd):
    def noisy(target_probs, draft_probs, token, uniform):
        print("hello", file=sys.stderr)
        return stage_02.clamped(target_probs, draft_probs, token, uniform)

    earned = specdec_course.check("2.1", noisy)
    out, err = capfd.readouterr()
    assert type(earned) is int
    assert earned == 2
    assert err == ""
    assert out == "✓ 2.1 passed: 2 of 2 points\n"


def test_what_a_failing_answer_printed_is_shown_with_the_message(capfd):
    def noisy(target_probs, draft_probs, token, uniform):
        print("my own trace")
        return True

    assert specdec_course.check("2.1", noisy) == 0
    out, err = capfd.readouterr()
    assert "Your code printed: my own trace" in out
    assert err == ""


def test_after_three_failures_the_next_hint_is_offered(capsys):
    for turn in range(3):
        specdec_course.check("2.1", stage_02.swapped)
        assert ("hint('2.1')" in capsys.readouterr().out) == (turn == 2)


def test_hints_say_more_each_time_and_then_all_of_it(capsys):
    said = []
    for _ in range(4):
        specdec_course.hint("2.1")
        said.append(capsys.readouterr().out)
    for number, text in enumerate(said[:3], 1):
        assert text.startswith(f"Hint {number} of 3")
    assert said[3] == "".join(said[:3])


def test_an_unknown_exercise_is_a_sentence():
    with pytest.raises(CourseError, match=r"no exercise '9\.9'.*2\.1"):
        specdec_course.check("9.9", print)


def test_in_a_notebook_a_failure_is_html_with_all_text_escaped(monkeypatch):
    shown = []
    monkeypatch.setattr(notebook, "show_html", lambda html, text: shown.append((html, text)))

    def accept_token(target_probs, draft_probs, token, uniform):
        raise ValueError("<b>bold</b>")

    specdec_course.check("2.1", accept_token)
    html, text = shown[0]
    assert "&lt;b&gt;bold" in html
    assert "<b>bold" not in html
    assert "<b>bold</b>" in text


def test_a_check_answers_quickly():
    verdict_on(stage_02.swapped)
    start = time.process_time()
    verdict_on(stage_02.swapped)
    assert time.process_time() - start < 0.5  # CPU time; typically under 20 ms


def test_the_package_loads_without_torch():
    import subprocess

    code = "import specdec_course.cli, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
