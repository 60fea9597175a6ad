"""From a text in `source/` to cells: roles, ids, stubs, and what a text must not do."""

import json
import warnings

import nbformat
import pytest

from specdec_course.building import stored
from specdec_course.building.notebooks import make_notebook, to_text
from specdec_course.building.products import products, strays
from specdec_course.building.up_to_date import build, difference
from specdec_course.errors import CourseError
from tests.notebooks.toy_course import EXERCISE, MANUAL, POINTS, toy


def cells_of(notebook, role):
    return [cell for cell in notebook.cells if cell.metadata.specdec.role == role]


def test_one_text_gives_an_exercise_and_a_solution(tmp_path):
    made = toy(tmp_path / "ein Kurs")
    assert [(product.kind, product.name) for product in made.values()] == [
        ("lesson", "notebooks/07_toy.ipynb"),
        ("exercise", "exercises/07_toy.ipynb"),
        ("solution", "solutions/07_toy.ipynb"),
    ]


def test_answers_become_the_stub_of_nbgrader_at_their_indentation(tmp_path):
    exercise = make_notebook(toy(tmp_path)["exercise"], POINTS)
    sources = [cell.source for cell in cells_of(exercise, "answer")]
    assert sources == [
        'def double(number):\n    """Return twice `number`."""\n    # YOUR CODE HERE\n    raise NotImplementedError()',
        'def helper(number):\n    """Return whatever helps."""\n    # YOUR CODE HERE\n    raise NotImplementedError()',
        'def square(number):\n    """Return `number` times itself."""\n    if number == 0:\n        return 0\n'
        "    # YOUR CODE HERE\n    raise NotImplementedError()",
    ]
    assert "SOLUTION" not in to_text(exercise)


def test_a_solution_keeps_the_marks_around_its_answers(tmp_path):
    solution = make_notebook(toy(tmp_path)["solution"], POINTS)
    assert all("### BEGIN SOLUTION" in cell.source for cell in cells_of(solution, "answer"))


def test_each_role_has_the_metadata_that_nbgrader_expects(tmp_path):
    solution = make_notebook(toy(tmp_path)["solution"], POINTS)
    flags = {
        role: {
            (c.metadata.nbgrader.grade, c.metadata.nbgrader.solution, c.metadata.nbgrader.locked)
            for c in cells_of(solution, role)
        }
        for role in ("answer", "check", "text")
    }
    assert flags == {"answer": {(False, True, False)}, "check": {(True, False, True)}, "text": {(False, False, True)}}
    assert [cell.metadata.nbgrader.points for cell in cells_of(solution, "check")] == [2, 3]
    assert all(cell.metadata.nbgrader.schema_version == 3 for cell in solution.cells)
    assert [cell["id"] for cell in cells_of(solution, "answer")] == ["07-answer-1", "07-answer-2a", "07-answer-2b"]
    assert [cell["id"] for cell in cells_of(solution, "check")] == ["07-check-1", "07-check-2"]
    assert all(cell.metadata.nbgrader.grade_id == cell["id"] for cell in solution.cells)


def test_a_concept_check_is_only_read(tmp_path):
    solution = make_notebook(toy(tmp_path, EXERCISE + '\n# %%\nquiz("7.a")\n')["solution"], POINTS)
    (cell,) = cells_of(solution, "quiz")
    assert cell["id"] == "07-quiz-a"
    assert (cell.metadata.nbgrader.grade, cell.metadata.nbgrader.locked) == (False, True)


def test_a_cell_marked_so_is_graded_by_hand(tmp_path):
    made = toy(tmp_path, EXERCISE + MANUAL)
    (asked,), (answered,) = (cells_of(make_notebook(made[kind], POINTS), "manual") for kind in ("exercise", "solution"))
    assert (answered["id"], answered.metadata.nbgrader.points) == ("07-manual-1", 4)
    assert (answered.metadata.nbgrader.grade, answered.metadata.nbgrader.solution) == (True, True)
    assert "Because the two sums" in answered.source
    assert asked.source == "Why is it exact?\n\nYOUR ANSWER HERE"


@pytest.mark.parametrize("kind", ["lesson", "exercise", "solution"])
def test_the_same_text_gives_the_same_bytes_in_a_valid_notebook(tmp_path, kind):
    product = toy(tmp_path)[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = (to_text(make_notebook(product, POINTS)) for _ in range(2))
        nbformat.validate(nbformat.reads(first, as_version=4))
    assert first == second
    assert json.loads(first)["nbformat_minor"] == 5
    assert "lines_to_next_cell" not in first


MISTAKES = {
    "a solution outside of a function": (
        "\n# %%\n### BEGIN SOLUTION\nx = 1\n### END SOLUTION\n",
        "outside of a function",
    ),
    "a mark without its other half": ("\n# %%\ndef f():\n    ### BEGIN SOLUTION\n    pass\n", "without its ### END"),
    "an answer that nothing grades": (
        "\n# %%\ndef f():\n    ### BEGIN SOLUTION\n    pass\n    ### END SOLUTION\n",
        "no check follows",
    ),
    "a check that is not the last line": ('\n# %%\ncheck("7.3", square)\nprint()\n', "last line"),
    "a check whose points are kept": ('\n# %%\nearned = check("7.3", square)\n', "last line"),
    "two checks in a cell": ('\n# %%\ncheck("7.3", square)\ncheck("7.4", square)\n', "last line"),
    "a hidden value": ('\n# %%\ncheck("7.3", square);\n', "semicolon"),
    "a check without a name": ("\n# %%\ncheck(name, square)\n", "in quotes"),
    "an exercise without points": ('\n# %%\ncheck("7.3", square)\n', "no points"),
    "an exercise of another stage": ('\n# %%\ncheck("6.1", square)\n', "another stage"),
    "an exercise checked twice": ('\n# %%\ncheck("7.1", double)\n', "stands above already"),
    "a concept check of another stage": ('\n# %%\nquiz("6.a")\n', "another stage"),
    "an answer and its check in one": (
        '\n# %%\ndef f():\n    ### BEGIN SOLUTION\n    pass\n    ### END SOLUTION\ncheck("7.3", f)\n',
        "make two cells",
    ),
    "an empty cell": ("\n# %%\n\n# %%\nprint()\n", "empty code cell"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_text_that_would_be_graded_wrongly_is_refused_with_its_place(tmp_path, mistake):
    text, words = MISTAKES[mistake]
    with pytest.raises(CourseError, match=words) as error:
        make_notebook(toy(tmp_path, EXERCISE + text)["solution"], POINTS)
    assert str(error.value).startswith(f"cell {EXERCISE.count('# %%')} of source/07_toy/exercise.py")


def test_whatever_changes_a_stored_notebook_is_found_without_executing(tmp_path):
    product = toy(tmp_path)["exercise"]
    assert difference(product, POINTS) == "exercises/07_toy.ipynb is missing"
    assert build(product, POINTS)
    assert difference(product, POINTS) is None
    first = product.goal.read_bytes()
    assert b"\r" not in first and first.endswith(b"}\n")

    def changed(change):
        notebook = json.loads(first)
        change(notebook)
        product.goal.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return difference(product, POINTS)

    check_cell = next(i for i, cell in enumerate(json.loads(first)["cells"]) if cell["id"] == "07-check-1")
    assert "07-check-1" in changed(lambda nb: nb["cells"][check_cell].update(source=['check("7.1", max)']))
    assert "07-check-1" in changed(lambda nb: nb["cells"][check_cell]["metadata"]["nbgrader"].update(points=9))
    assert "07-check-1" in changed(lambda nb: nb["cells"][check_cell].update(execution_count=3))
    assert "07-check-1" in changed(lambda nb: nb["cells"][check_cell].pop("id"))
    assert "cells or metadata" in changed(lambda nb: nb["cells"].append(nb["cells"][0]))
    assert "cells or metadata" in changed(lambda nb: nb["metadata"]["kernelspec"].update(name="my-kernel"))
    product.goal.write_bytes(first.replace(b"\n", b"\r\n"))
    assert "another program" in difference(product, POINTS)
    product.goal.write_bytes(b"{}")
    assert "not a notebook" in difference(product, POINTS)
    product.goal.write_bytes(first)
    product.source.write_text(EXERCISE.replace("Double it", "Double that"), encoding="utf-8")
    assert "another version" in difference(product, POINTS)


def test_points_that_change_in_the_checks_make_the_notebook_out_of_date(tmp_path):
    product = toy(tmp_path)["exercise"]
    build(product, POINTS)
    assert "07-check-2" in difference(product, {**POINTS, "7.2": 5})


def test_what_is_up_to_date_is_left_alone(tmp_path):
    product = toy(tmp_path)["lesson"]
    assert build(product, POINTS, run_cells=False)
    assert not build(product, POINTS, run_cells=False)


def test_a_notebook_without_its_text_is_found(tmp_path):
    build(toy(tmp_path)["exercise"], POINTS)
    left = tmp_path / "exercises" / "06_gone.ipynb"
    left.write_text("{}", encoding="utf-8")
    assert strays(tmp_path) == [left]


def test_an_unknown_stage_is_refused_with_those_there_are(tmp_path):
    toy(tmp_path)
    assert len(products(tmp_path, "7")) == 3
    with pytest.raises(CourseError, match="choose one of 07"):
        products(tmp_path, "08")


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (nbformat.v4.new_output("stream", name="stderr", text="careful!"), "stderr"),
        (nbformat.v4.new_output("stream", text="<object at 0x7f12ab34cd>"), "memory address"),
        (nbformat.v4.new_output("stream", text="loaded /home/mary/specdec/x"), "/home/m"),
        (nbformat.v4.new_output("stream", text="loaded C:\\Users\\mary"), "C:"),
        (nbformat.v4.new_output("display_data", {"image/svg+xml": "<svg/>"}), "SVG"),
    ],
)
def test_outputs_that_only_hold_on_one_machine_are_refused(output, words):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x", outputs=[output], id="07-lesson-01")])
    (fault,) = stored.faults(notebook)
    assert fault.startswith("cell 07-lesson-01")
    assert words in fault


def test_paths_of_the_web_and_of_the_course_may_be_shown():
    text = "see https://x.org/home/page and source/opt/x, 1/root/2, ~/tmp/x"
    output = nbformat.v4.new_output("stream", text=text)
    assert stored.faults(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x", outputs=[output])])) == []


def test_the_share_of_compared_cells_counts_tags_and_comments():
    def cell(source, tags=(), shown=True):
        outputs = [nbformat.v4.new_output("stream", text="1")] if shown else []
        return nbformat.v4.new_code_cell(source, outputs=outputs, metadata={"tags": list(tags)})

    cells = [cell("1"), cell("2", ["nbval-ignore-output"]), cell("# NBVAL_SKIP\n3"), cell("4"), cell("5", shown=False)]
    assert stored.compared_share(nbformat.v4.new_notebook(cells=cells)) == 0.5
