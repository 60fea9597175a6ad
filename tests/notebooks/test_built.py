"""The notebooks of the course are up to date, clean, and give the outputs they store when they run again."""

import json
import re
import warnings

import nbformat
import pytest
from nbgrader.nbgraderformat import reads as nbgrader_reads
from nbgrader.preprocessors import CheckCellMetadata
from nbgrader.utils import determine_grade, is_grade
from nbgrader.validator import Validator

from specdec_course.building import stored
from specdec_course.building.notebooks import make_notebook
from specdec_course.building.products import ROOT, products, strays
from specdec_course.building.up_to_date import difference
from specdec_course.checks import all_exercises

ALL = products()


def each(*kinds):
    chosen = [pytest.param(product, id=product.name) for product in ALL if product.kind in kinds]
    return pytest.mark.parametrize("product", chosen)


def read(product):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        notebook = nbformat.read(product.goal, as_version=4)
        nbformat.validate(notebook)
    return notebook


@each("lesson", "exercise", "solution")
def test_the_notebook_is_what_its_source_builds(product):
    assert difference(product) is None


def test_no_notebook_is_left_over_from_a_source_that_is_gone():
    assert strays() == []


@each("lesson", "exercise", "solution")
def test_the_notebook_is_valid_neutral_and_small(product):
    notebook, text = read(product), product.goal.read_bytes()
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata.kernelspec.name == "python3"
    assert b"\r" not in text
    assert len(text) < 1.5e6
    assert stored.faults(notebook) == []


@each("lesson", "solution")
def test_every_code_cell_was_executed(product):
    assert stored.is_executed(read(product))


@each("exercise")
def test_an_exercise_holds_no_answer_and_no_output(product):
    notebook = read(product)
    assert "SOLUTION" not in product.goal.read_text(encoding="utf-8")
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)


@each("lesson", "solution")
def test_most_cells_that_show_something_are_compared(product):
    assert stored.compared_share(read(product)) >= stored.LEAST_COMPARED


def test_cell_ids_are_unique_over_the_course():
    ids = [cell["id"] for product in ALL if product.kind != "solution" for cell in read(product).cells]
    assert len(set(ids)) == len(ids)


@each("lesson", "exercise", "solution")
def test_every_file_of_the_course_that_a_text_names_is_there(product):
    text = "\n".join(cell.source for cell in read(product).cells)
    named = re.findall(r"`((?:notebooks|exercises|solutions|models|source|specdec_ref|docs|data)/[\w./-]+)`", text)
    missing = [name for name in named if not (ROOT / name).exists() and not (ROOT / f"{name}.ipynb").exists()]
    assert not missing


@each("lesson", "solution")
def test_every_picture_has_a_text_for_those_who_do_not_see_it(product):
    outputs = [output for cell in read(product).cells for output in cell.get("outputs", [])]
    assert not [o for o in outputs if "image/png" in o.get("data", {})]  # JupyterLab shows no text for it
    pages = [output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    pictures = [tag for page in pages for tag in re.findall(r"<img[^>]*>", page)]
    assert pictures or product.kind == "solution"
    assert all(len(re.search(r'alt="([^"]*)"', tag)[1]) > 20 for tag in pictures)


@each("lesson", "exercise", "solution")
def test_the_validator_of_nbgrader_accepts_the_notebook(product):
    nbgrader_reads(product.goal.read_text(encoding="utf-8"), as_version=4)
    if product.kind != "exercise":  # with the outputs it stores, which nbval holds to be true
        assert Validator(preprocessors=[CheckCellMetadata]).validate(str(product.goal)) == {}


@each("solution")
def test_the_solution_earns_all_points_as_nbgrader_reads_them(product):
    for cell in read(product).cells:
        if is_grade(cell) and cell.cell_type == "code":
            earned, most = determine_grade(cell)
            assert earned == most, cell["id"]
            assert [float(o.data["text/plain"]) for o in cell.outputs if o.output_type == "execute_result"] == [most]


@each("exercise")
def test_the_exercise_asks_all_that_is_checked_and_states_what_it_is_worth(product):
    notebook, wanted = make_notebook(product), {e.id: e for e in all_exercises().values() if e.stage == product.stage}
    roles = [(cell.metadata.specdec.role, cell.metadata.specdec.get("exercise")) for cell in notebook.cells]
    assert [name for role, name in roles if role == "check"] == list(wanted)
    assert 2 <= sum(role == "quiz" for role, _ in roles) <= 4
    texts = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    for name, exercise in wanted.items():
        worth = (
            f"{exercise.points} points?, difficulty {exercise.difficulty}( of 5)?, (about )?{exercise.minutes} minutes"
        )
        assert re.search(rf"^## {re.escape(name)} .*\n\n\*{worth}", texts, re.MULTILINE), name


@pytest.mark.smol
@each("lesson", "solution")
def test_running_the_notebook_gives_the_outputs_it_stores(product, nbval_runs):
    done = nbval_runs[product.name].result()
    assert done.passed, done.text


@pytest.mark.smol
@each("exercise")
def test_the_exercise_as_shipped_runs_through_with_no_points_and_says_not_attempted(product, nbval_runs):
    done = nbval_runs[product.name].result()
    assert done.passed, done.text
    for cell in read(product).cells:
        shown = done.outputs.get(cell["id"], [])
        assert not [o for o in shown if o.output_type == "error" or o.get("name") == "stderr"], cell["id"]
        if cell.metadata.specdec.role == "check":
            cell.outputs = shown
            assert determine_grade(cell)[0] == 0, cell["id"]
            assert "not attempted" in json.dumps(shown).lower(), cell["id"]
