"""nbgrader itself releases and grades the exercises: set up as docs/INSTRUCTORS.md says, from `solutions/`."""

import os
import re
import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from nbgrader.api import Gradebook
from nbgrader.apps import NbGraderAPI
from traitlets.config import PyFileConfigLoader

from specdec_course.building.products import ROOT, products
from specdec_course.building.up_to_date import build
from tests.notebooks.toy_course import EXERCISE, MANUAL, POINTS, toy

SOLUTIONS = [pytest.param(product, id=product.name) for product in products() if product.kind == "solution"]


class Classroom:
    """A course of nbgrader in a folder, with one of our solutions as its source, set up as docs/INSTRUCTORS.md says."""

    def __init__(self, folder, solution, monkeypatch):
        self.folder, self.name = folder, solution.goal.name
        (folder / "source" / "specdec").mkdir(parents=True)
        shutil.copy(solution.goal, folder / "source" / "specdec")
        guide = (ROOT / "docs" / "INSTRUCTORS.md").read_text(encoding="utf-8")
        (code,) = re.findall(r"^```python\n(c = get_config.*?)^```", guide, re.DOTALL | re.MULTILINE)
        (folder / "nbgrader_config.py").write_text(code, encoding="utf-8")
        monkeypatch.setenv("SPECDEC_PROGRESS", "")  # the set-up sets it, and this takes that back after the test
        config = PyFileConfigLoader("nbgrader_config.py", path=str(folder)).load_config()
        config.CourseDirectory.root = str(folder)
        self.api = NbGraderAPI(config=config)
        monkeypatch.chdir(folder)
        # As in an activated environment: nbgrader calls a program that lies there.
        monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))

    def release(self):
        done = self.api.generate_assignment("specdec")
        assert done["success"], done
        return nbformat.read(self.folder / "release" / "specdec" / self.name, as_version=4)

    def grade(self, student, notebook):
        """Return what nbgrader gives for a student's notebook, as points by the id of the cell."""
        goal = self.folder / "submitted" / student / "specdec" / self.name
        goal.parent.mkdir(parents=True)
        nbformat.write(notebook, goal)
        done = self.api.autograde("specdec", student)
        assert done["success"], done
        with Gradebook(f"sqlite:///{self.folder / 'gradebook.db'}") as book:
            submission = book.find_submission("specdec", student)
            grades = [grade for notebook in submission.notebooks for grade in notebook.grades]
            return {grade.name: grade.auto_score for grade in grades}


def solve(release, solution, exercises):
    """Return the released notebook with the answers of some exercises copied from the solution."""
    solved = nbformat.from_dict(release)
    for ours, theirs in zip(solved.cells, solution.cells, strict=True):
        if theirs.metadata.specdec.role == "answer" and theirs.metadata.specdec.exercise in exercises:
            ours.source = theirs.source
    return solved


def grades_of_three_students(classroom, exercise, solution):
    """Release and grade, and return the points of a student who did nothing, one who did half, one who did all."""
    released = classroom.release()
    assert released.cells == exercise.cells
    checks = [cell.metadata.specdec.exercise for cell in exercise.cells if cell.metadata.specdec.role == "check"]
    return [
        classroom.grade(student, solve(released, solution, checks[:number]))
        for student, number in (("nobody", 0), ("somebody", len(checks) // 2), ("everybody", len(checks)))
    ]


def test_a_small_set_is_released_as_our_exercise_and_graded_by_what_was_solved(tmp_path, monkeypatch):
    made = toy(tmp_path, EXERCISE + MANUAL)
    for kind in ("exercise", "solution"):
        build(made[kind], POINTS, run_cells=False)
    exercise, solution = (nbformat.read(made[kind].goal, as_version=4) for kind in ("exercise", "solution"))
    classroom = Classroom(tmp_path / "a class", made["solution"], monkeypatch)
    nobody, somebody, everybody = grades_of_three_students(classroom, exercise, solution)
    assert nobody == {"07-check-1": 0, "07-check-2": 0, "07-manual-1": 0}  # no answer by hand: nothing to read
    assert somebody == {"07-check-1": 2, "07-check-2": 0, "07-manual-1": 0}
    assert everybody == {"07-check-1": 2, "07-check-2": 3, "07-manual-1": 0}


@pytest.mark.parametrize("product", SOLUTIONS)
def test_what_nbgrader_releases_from_a_solution_is_our_exercise(product, tmp_path, monkeypatch):
    released = Classroom(tmp_path / "a class", product, monkeypatch).release()
    shipped = nbformat.read(ROOT / "exercises" / product.goal.name, as_version=4)
    assert released.cells == shipped.cells  # cell for cell, with ids, metadata, locks and checksums


@pytest.mark.slow
@pytest.mark.smol
@pytest.mark.parametrize("product", SOLUTIONS)
def test_a_stage_is_released_as_our_exercise_and_graded_by_what_was_solved(product, tmp_path, monkeypatch):
    shipped = ROOT / "exercises" / product.goal.name
    exercise, solution = (nbformat.read(path, as_version=4) for path in (shipped, product.goal))
    classroom = Classroom(tmp_path / "a class", product, monkeypatch)
    nobody, somebody, everybody = grades_of_three_students(classroom, exercise, solution)
    worth = {
        cell.metadata.nbgrader.grade_id: cell.metadata.nbgrader.points
        for cell in exercise.cells
        if cell.metadata.specdec.role == "check"
    }
    assert {name: nobody[name] for name in worth} == dict.fromkeys(worth, 0)
    half = list(worth)[: len(worth) // 2]
    assert {name: somebody[name] for name in worth} == {n: worth[n] if n in half else 0 for n in worth}
    assert {name: everybody[name] for name in worth} == worth
