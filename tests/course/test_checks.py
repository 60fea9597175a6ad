"""What a check says: the verdict, the message, the points; on the exercise 2.1 that authors copy from."""

import json

import pytest

from specdec_course.checks import find_exercise
from specdec_course.checks.judge import judge
from specdec_course.checks.observe import observe
from tests.course.mistakes import stage_02


@pytest.fixture(autouse=True)
def own_record(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_PROGRESS", str(tmp_path / "progress.json"))


def verdict_on(function, seed=0, name="2.1"):
    exercise = find_exercise(name)
    through_json = json.loads(json.dumps(observe(exercise, function, seed), allow_nan=False))
    return judge(exercise, through_json, seed)


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
    verdict = verdict_on(stage_02.swapped)
    assert verdict.status == "not yet"
    assert verdict.message.splitlines() == [
        "This looks like: p and q swapped.",
        "Seen: accept_token(target_probs=tensor([0.5, 0.3, 0.2]), draft_probs=tensor([0.2, 0.5, 0.3]), token=0, "
        "uniform=0.58) gave False",
        "Expected: True",
        "Why: The ratio is target over draft: a token that is drafted too often must be refused some of the time.",
        "Read again: “When is a draft token kept?” in the lesson of stage 02",
    ]
