"""A small course is built, executed and run by nbval as the real one is."""

import nbformat
import pytest

from specdec_course.building import execution, stored
from specdec_course.building.notebooks import make_notebook
from specdec_course.building.up_to_date import build, difference
from specdec_course.errors import CourseError
from tests.notebooks.nbval_run import nbval
from tests.notebooks.toy_course import EXERCISE, LESSON, MANUAL, POINTS, toy

LOOKS_AROUND = """
# %% tags=["nbval-ignore-output"]
import os
from pathlib import Path

print(Path.cwd().name)
print("own progress file:", "specdec-build-" in os.environ["SPECDEC_PROGRESS"])

# %% tags=["nbval-ignore-output"]
import ipywidgets

ipywidgets.IntSlider()
"""

CALLS_OUT = """
# %%
import socket

socket.create_connection(("192.0.2.1", 80), timeout=5)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    made = toy(tmp_path_factory.mktemp("course"), EXERCISE + MANUAL, LESSON + LOOKS_AROUND)
    assert all(build(product, POINTS) for product in made.values())
    return made


def test_a_lesson_runs_in_its_folder_with_a_progress_file_of_its_own(built):
    notebook = nbformat.read(built["lesson"].goal, as_version=4)
    sum_cell, looks, slider = (cell for cell in notebook.cells if cell.cell_type == "code")
    assert sum_cell.outputs[0].text == "one plus one is 2\n"
    assert looks.outputs[0].text == "notebooks\nown progress file: True\n"
    assert list(slider.outputs[0].data) == ["text/plain"]  # no view of a widget whose state is not stored
    assert stored.is_executed(notebook)
    assert stored.faults(notebook) == []


def test_what_was_executed_is_up_to_date_and_left_alone(built):
    for product in built.values():
        before = product.goal.read_bytes()
        assert difference(product, POINTS) is None
        assert not build(product, POINTS)
        assert product.goal.read_bytes() == before


def test_a_cell_that_calls_out_stops_the_build_and_leaves_the_notebook(built, tmp_path):
    product = toy(tmp_path, lesson=LESSON + CALLS_OUT)["lesson"]
    product.goal.parent.mkdir()
    product.goal.write_bytes(b"as it was")
    with pytest.raises(CourseError, match=r"cell 07-lesson-02: (?s:.*)offline and may not connect"):
        build(product, POINTS)
    assert product.goal.read_bytes() == b"as it was"


def test_a_cell_that_does_not_end_is_stopped(tmp_path):
    product = toy(tmp_path, lesson="# %%\nwhile True:\n    pass\n")["lesson"]
    with pytest.raises(CourseError, match=r"cell 07-lesson-00: (?s:.*)timed out"):
        execution.execute(make_notebook(product), tmp_path, product.name, timeout_s=2)


def test_nbval_passes_and_finds_one_changed_character(built, tmp_path):
    text = built["lesson"].goal.read_text(encoding="utf-8")
    done = nbval(text, tmp_path / "as built")
    assert done.passed, done.text
    changed = text.replace("one plus one is 2", "one plus one is 3")
    assert changed != text
    done = nbval(changed, tmp_path / "changed")
    assert not done.passed
    assert "1 failed" in done.text
