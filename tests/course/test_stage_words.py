"""What the texts of every stage promise: sections that are there, tables as the checks have them, answers explained."""

import re
from importlib import import_module

import pytest

from specdec_course.building.products import ROOT
from specdec_course.checks import all_exercises

STAGES = sorted(path.parent.name for path in (ROOT / "source").glob("*/exercise.py"))
stages = pytest.mark.parametrize("stage", STAGES)


def text(stage, part):
    return (ROOT / "source" / stage / f"{part}.py").read_text(encoding="utf-8")


def exercises(stage):
    return [one for one in all_exercises().values() if one.stage == stage[:2]]


@stages
def test_every_section_that_a_message_names_is_a_heading_of_the_lesson(stage):
    headings = set(re.findall(r"^# #+ (.+)$", text(stage, "lesson"), re.MULTILINE))
    for exercise in exercises(stage):
        sections = {exercise.section, *(mistake.section for mistake in exercise.mistakes if mistake.section)}
        assert sections <= headings, sections - headings


@pytest.mark.parametrize("stage", [stage for stage in STAGES if "| exercise |" in text(stage, "exercise")])
def test_the_table_of_exercises_says_what_the_checks_say(stage):
    found = exercises(stage)
    assert found
    for one in found:
        table = f"| {one.id} {one.title} | {one.points} | {one.difficulty} of 5 | {one.minutes} |"
        assert table in text(stage, "exercise")
        assert f"## {one.id} {one.title}" in text(stage, "exercise")
        stated = f"*{one.points} points, difficulty {one.difficulty} of 5, {one.minutes} minutes"
        assert stated in text(stage, "exercise")


@stages
def test_every_concept_check_is_asked_and_explains_every_choice(stage):
    questions = import_module(f"specdec_course.checks.stage_{stage[:2]}").QUESTIONS
    assert len(questions) >= 2
    for question in questions:
        assert f'quiz("{question.id}")' in text(stage, "exercise")
        assert all(len(choice.explanation) > 20 for choice in question.choices)
