"""Built notebooks are up to date, clean, and give the outputs they store when run again."""

import json
import os
import re
import subprocess
import sys

import nbformat
import pytest

from specdec_course.build import ROOT, build, check, make_notebook, stages

LESSONS = [pytest.param(folder, id=folder.name) for folder in stages()]


def notebook_of(folder):
    return ROOT / "notebooks" / f"{folder.name}.ipynb"


@pytest.mark.parametrize("folder", LESSONS)
def test_the_notebook_is_what_its_source_builds(folder):
    assert check(folder / "lesson.py", notebook_of(folder)) is None


@pytest.mark.parametrize("folder", LESSONS)
def test_the_notebook_is_executed_and_holds_nothing_of_the_machine_it_was_built_on(folder):
    text = notebook_of(folder).read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
    assert "\r" not in text
    for forbidden in (" at 0x", str(ROOT), '"stderr"', "widget-state", "image/svg"):
        assert forbidden not in text, forbidden


@pytest.mark.parametrize("folder", LESSONS)
def test_every_picture_has_a_text_for_those_who_do_not_see_it(folder):
    notebook = nbformat.read(notebook_of(folder), as_version=4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [
        output for output in outputs if "image/png" in output.get("data", {})
    ]  # JupyterLab shows no text for it
    pages = [output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    pictures = [tag for page in pages for tag in re.findall(r"<img[^>]*>", page)]
    assert pictures
    assert all(len(re.search(r'alt="([^"]*)"', tag)[1]) > 20 for tag in pictures)


def test_an_edited_cell_and_a_changed_source_are_found(tmp_path):
    lesson = tmp_path / "07_x" / "lesson.py"
    lesson.parent.mkdir()
    lesson.write_text("# %% [markdown]\n# Hello\n\n# %%\nprint(1)\n", encoding="utf-8")
    goal = tmp_path / "07_x.ipynb"
    assert check(lesson, goal) == "07_x.ipynb is missing"
    build(lesson, goal, execute=False)
    assert check(lesson, goal) is None
    first = goal.read_bytes()
    build(lesson, goal, execute=False)
    assert goal.read_bytes() == first

    edited = json.loads(first)
    edited["cells"][1]["source"] = ["print(2)"]
    goal.write_text(json.dumps(edited), encoding="utf-8")
    assert "07-lesson-01" in check(lesson, goal)

    goal.write_bytes(first)
    lesson.write_text(lesson.read_text(encoding="utf-8") + "print(3)\n", encoding="utf-8")
    assert "another version" in check(lesson, goal)


def test_cell_ids_do_not_change_from_build_to_build():
    for folder in stages():
        ids = [cell["id"] for cell in make_notebook(folder / "lesson.py").cells]
        assert ids == [cell["id"] for cell in make_notebook(folder / "lesson.py").cells]
        assert len(set(ids)) == len(ids)


def nbval(path):
    command = [sys.executable, "-m", "pytest", "--nbval", "-q", "-p", "no:cacheprovider", "--rootdir", str(path.parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(
        [*command, "-c", os.devnull, str(path)],
        capture_output=True,
        encoding="utf-8",
        env=environment,
        cwd=path.parent,
        timeout=570,
    )


@pytest.mark.smol
@pytest.mark.parametrize("folder", LESSONS)
def test_running_the_notebook_gives_the_outputs_it_stores(folder, tmp_path):
    copy = tmp_path / "a folder" / notebook_of(folder).name
    copy.parent.mkdir()
    copy.write_bytes(notebook_of(folder).read_bytes())
    done = nbval(copy)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.smol
def test_a_stored_output_changed_by_one_character_is_found(tmp_path):
    notebook = nbformat.read(ROOT / "notebooks" / "00_start_here.ipynb", as_version=4)
    compared = [
        cell for cell in notebook.cells if cell.get("outputs") and "nbval" not in str(cell.metadata.get("tags"))
    ]
    changed = compared[-1].outputs[0]
    changed["text"] = changed["text"].replace("passes", "pazzes", 1)
    goal = tmp_path / "changed.ipynb"
    nbformat.write(notebook, goal)
    done = nbval(goal)
    assert done.returncode == 1
    assert "1 failed" in done.stdout
