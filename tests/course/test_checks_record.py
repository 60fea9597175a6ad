"""The learner's record: it survives restarts, is written whole, and is never lost; the map, the logbook, the quiz."""

import json

import pytest

import specdec_course
from specdec_course.checks import all_questions, find_question, front_end, quiz, records, replay
from specdec_course.checks.exercise import Choice, Question
from specdec_course.errors import CourseError
from tests.course.mistakes import stage_02


@pytest.fixture(autouse=True)
def path(tmp_path, monkeypatch):
    path = tmp_path / "a folder" / "progress.json"
    monkeypatch.setenv("SPECDEC_PROGRESS", str(path))
    return path


def test_what_was_passed_is_on_the_map_after_a_restart(path, capsys):
    specdec_course.check("2.1", stage_02.clamped)
    specdec_course.check("2.1", stage_02.swapped)  # a later failure takes nothing away
    capsys.readouterr()
    assert json.loads(path.read_text(encoding="utf-8"))["exercises"]["2.1"]["status"] == "passed"
    specdec_course.progress()
    lines = capsys.readouterr().out.splitlines()
    line = next(line for line in lines if " 2.1 " in line)
    assert line.split()[0] == "✓"
    assert "2/2" in line
    assert "5 min" in line
    assert "Next: " in lines[-1]
    assert lines[-1].startswith("2 of ")


@pytest.mark.parametrize("damage", ["{", "[]", '{"exercises": 3}', '{"exercises": {"2.1": 3}}', "\x00"])
def test_a_damaged_file_is_set_aside_and_said_so(path, capsys, damage):
    path.parent.mkdir()
    path.write_text(damage, encoding="utf-8")
    specdec_course.check("2.1", stage_02.clamped)
    out = capsys.readouterr().out
    aside = next(path.parent.glob("progress.json.damaged-*"))
    assert aside.read_text(encoding="utf-8") == damage
    assert aside.name in out
    assert records.read()["exercises"]["2.1"]["status"] == "passed"


def test_a_check_works_where_nothing_can_be_saved(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("SPECDEC_PROGRESS", str(tmp_path / "file" / "progress.json"))
    assert specdec_course.check("2.1", stage_02.clamped) == 2
    assert "could not be saved" in capsys.readouterr().out


def test_writing_is_whole_or_not_at_all(path, monkeypatch):
    specdec_course.check("2.1", stage_02.clamped)
    before = path.read_bytes()

    def fails(*_, **__):
        raise RuntimeError("killed")

    monkeypatch.setattr(records.json, "dumps", fails)
    with pytest.raises(RuntimeError):
        specdec_course.check("2.1", stage_02.clamped)
    assert path.read_bytes() == before
    monkeypatch.undo()


def test_the_logbook_keeps_figures_and_the_map_shows_them(capsys):
    import torch

    specdec_course.logbook("04", exact=True, alpha=torch.tensor(0.625), tokens_per_round=2.8125)
    specdec_course.logbook("4", alpha=0.75)
    specdec_course.logbook()
    assert "04  exact, alpha 0.75, tokens per round 2.812" in capsys.readouterr().out
    with pytest.raises(CourseError, match="cannot keep alpha"):
        specdec_course.logbook("04", alpha=[1, 2])


QUESTION = Question("9.a", "Why?", (Choice("So", "No: so."), Choice("Because", "Yes: because.")), right="b")


@pytest.fixture
def question(monkeypatch):
    monkeypatch.setattr(quiz, "find_question", lambda name: QUESTION)


def test_without_someone_who_looks_a_quiz_is_text_that_never_changes(question, capsys):
    specdec_course.quiz("9.a")
    assert capsys.readouterr().out.splitlines() == [
        "9.a  Why?",
        "  a) So",
        "  b) Because",
        'Answer in a cell of your own: quiz("9.a", "a")',
    ]


def test_an_answer_in_text_explains_every_choice(question, capsys):
    specdec_course.quiz("9.a", "a")
    said = capsys.readouterr().out
    assert "a is not right" in said
    assert "No: so." in said
    assert "Yes: because." in said
    assert records.read()["quizzes"] == {"9.a": False}
    specdec_course.quiz("9.a", "b")
    assert "b is right" in capsys.readouterr().out
    with pytest.raises(CourseError, match="no choice 'c'"):
        specdec_course.quiz("9.a", "c")


def test_a_click_explains_every_choice(question, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    monkeypatch.setenv("SPECDEC_WIDGETS", "1")
    assert front_end.is_live()
    specdec_course.quiz("9.a")
    _, buttons, said = shown[0].children
    assert buttons.value is None
    buttons.value = "b"
    assert "b is right" in said.value
    assert "No: so." in said.value
    assert "Yes: because." in said.value


def test_every_question_explains_every_choice_and_its_stage_asks_two_to_four_an_exercise_stage():
    assert all_questions()
    for question in all_questions().values():
        assert 2 <= len(question.choices) <= 5
        assert all(len(choice.explanation) > 15 for choice in question.choices), question.id
    with pytest.raises(CourseError, match=r"no question '77\.a'"):
        find_question("77.a")


def test_replay_draws_the_failing_round_with_its_numbers(monkeypatch, capsys):
    shown = []
    monkeypatch.setattr("specdec_course.figures.show", lambda figure, alt: shown.append((figure, alt)))
    specdec_course.check("2.1", stage_02.swapped)
    specdec_course.replay()
    figure, alt = shown[0]
    assert "u = " in alt
    assert "accept_token gave" in alt
    assert "Right is" in alt
    assert len(figure.axes) == 1
    specdec_course.check("2.1", stage_02.clamped)
    capsys.readouterr()
    specdec_course.replay()
    assert "nothing to replay" in capsys.readouterr().out


def test_replay_draws_a_block_one_law_after_another():
    import torch

    from specdec_course.checks.plain import encode

    laws = torch.full((1, 3, 4), 0.25)
    arguments = {
        "target_probs": laws,
        "draft_probs": laws[:, :2],
        "draft_tokens": torch.tensor([[1, 3]]),
        "accept_uniforms": torch.tensor([[0.5, 0.25]]),
        "correct_uniforms": torch.tensor([0.125]),
    }
    outcome = {"value": encode({"num_accepted": 2}), "error": None}
    picture = replay.default_picture("f", {name: encode(value) for name, value in arguments.items()}, outcome, outcome)
    assert [law[0] for law in picture.laws] == ["draft token 0", "draft token 1", "after the draft"]
    assert picture.lines[1] == "draft token 1: u = 0.25, p(3)/q(3) = 0.25/0.25 = 1; u is below: keep"
    assert "correct_uniforms = tensor([0.125])" in picture.lines
    assert len(replay.draw(picture, "title").axes) == 3
