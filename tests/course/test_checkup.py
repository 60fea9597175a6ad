"""The look at the environment in stage 00: every fault has a repair, and the example check names a mistake."""

from __future__ import annotations

import pytest

from specdec_course import checkup
from specdec_course.checks import all_exercises
from specdec_course.checks.example import EXAMPLE, check
from specdec_course.errors import CourseError
from specdec_ref import store


def test_each_finding_is_one_line_where_all_is_well(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("SPECDEC_PROGRESS", str(tmp_path / "a folder" / "progress.json"))
    monkeypatch.setattr(checkup, "_model", lambda: None)  # whether SmolLM2 is here is another test's business
    assert checkup.check_up()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ok"] * 5 + ["Everything"]


def test_whatever_is_missing_is_named_with_its_repair(monkeypatch, tmp_path, capsys):
    blocked = tmp_path / "a file"
    blocked.write_text("", encoding="utf-8")
    monkeypatch.setenv("SPECDEC_PROGRESS", str(blocked / "progress.json"))
    monkeypatch.setenv("SPECDEC_HOME", str(tmp_path / "nothing here"))
    monkeypatch.setattr(checkup, "PACKAGES", ("no_such_package",))
    monkeypatch.setattr(checkup, "FREE_GB", 1e9)
    assert not checkup.check_up()
    text = capsys.readouterr().out
    for word in ("no_such_package", "course.py setup", "is not there", "models fetch smol", "SPECDEC_HOME", "PROGRESS"):
        assert word in text
    assert store.home() == tmp_path / "nothing here"


def test_the_example_check_has_all_three_outcomes_and_keeps_no_points(capsys):
    def nothing(num_accepted, num_drafted):
        raise NotImplementedError

    for function, words in (
        (nothing, "0.1 not attempted"),
        (lambda num_accepted, num_drafted: num_accepted, "the target's own token is forgotten"),
        (lambda num_accepted, num_drafted: num_drafted, "all drafted tokens counted"),
        (lambda num_accepted, num_drafted: 1 + num_accepted, "0.1 passed"),
    ):
        assert check("0.1", function) is None
        assert words in capsys.readouterr().out
    assert EXAMPLE.id not in all_exercises()
    with pytest.raises(CourseError, match=r"only 0\.1"):
        check("2.1", nothing)
