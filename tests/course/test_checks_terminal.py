"""`specdec check`: the same verdicts from the terminal, and one question's trouble is no other question's."""

import json

import nbformat
import pytest
from typer.testing import CliRunner

from specdec_course.checks import all_exercises, carry, find_exercise, terminal
from specdec_course.checks.answers import answer_in_file, answers
from specdec_course.checks.runner import check_answers
from specdec_course.cli import build_app
from specdec_course.errors import CourseError

IMPORTS = "import os, sys, time\nimport torch\nfrom specdec_course import check"
HEAD = "def accept_token(target_probs, draft_probs, token, uniform):\n"
RIGHT = (
    HEAD + "    if draft_probs[token] <= 0:\n        raise ValueError('not drawn from q')\n"
    "    return bool(uniform < target_probs[token] / draft_probs[token])"
)
CHECK = 'check("2.1", accept_token)'


@pytest.fixture(autouse=True)
def own_record(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_PROGRESS", str(tmp_path / "progress.json"))


def write(path, *cells):
    path.parent.mkdir(parents=True, exist_ok=True)
    nodes = [nbformat.v4.new_code_cell(cell) for cell in cells]
    nbformat.write(nbformat.v4.new_notebook(cells=nodes), path)
    return path


def found(path, *cells):
    return answers(write(path, *cells), all_exercises(), {})


def run(*arguments):
    return CliRunner().invoke(build_app(), ["check", *map(str, arguments)])


HOSTILE = {
    "right": (RIGHT, "passed"),
    "leaves the process": (HEAD + "    os._exit(0)", "not yet"),
    "calls exit": (HEAD + "    exit(0)", "not yet"),
    "sleeps": (HEAD + "    time.sleep(1000)", "not yet"),
    "prints without end": (HEAD + "    while True: print('x' * 1000)", "not yet"),
    "shouts past python": (HEAD + "    os.write(1, b'x' * 100000); return True", "not yet"),
    "is huge": (HEAD + "    return torch.zeros(5000, 5000)", "not yet"),
    "has bad syntax": (HEAD + "    return (", "not yet"),
    "leaves at the top": ("sys.exit(0)\n" + RIGHT, "not yet"),
    "speaks in the channel": (
        HEAD + "    for fd in range(3, 64):\n        try: os.write(fd, b'x' * 2000 + b'\\n')\n"
        "        except OSError: pass\n    return True",
        "not yet",
    ),
    "fails below its function": (RIGHT + "\nprint(undefined)", "passed"),
    "stub": (HEAD + "    raise NotImplementedError()", "not attempted"),
}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """All of them one after another, in as few processes as they leave alive."""
    folder = tmp_path_factory.mktemp("hostile answers")
    asked = [
        found(folder / f"{place}.ipynb", IMPORTS, cell, CHECK)[0] for place, (cell, _) in enumerate(HOSTILE.values())
    ]
    return dict(zip(HOSTILE, check_answers(asked, folder), strict=True))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_costs_its_own_question_and_the_others_go_on(hostile, name):
    verdict = hostile[name][1]
    assert verdict.status == HOSTILE[name][1], verdict.message
    assert verdict.points == (2 if verdict.status == "passed" else 0)


def test_what_ended_the_process_is_said_in_words(hostile):
    assert "exit or quit" in hostile["leaves the process"][1].message
    assert "Too slow" in hostile["sleeps"][1].message
    assert "cannot be read as Python in line 2: return (" in hostile["has bad syntax"][1].message


def test_the_command_gives_points_messages_and_its_exit_code(tmp_path):
    folder = tmp_path / "my notebooks"
    write(folder / "a.ipynb", IMPORTS, RIGHT, CHECK)
    write(folder / "b.ipynb", IMPORTS, HEAD + "    return uniform < target_probs[token]", CHECK)
    done = run(folder, "--json")
    assert done.exit_code == 1
    report = json.loads(done.stdout)
    assert (report["points"], report["possible"], report["passed"]) == (2, 4, False)
    assert [one["status"] for one in report["exercises"]] == ["passed", "not yet"]
    assert report["exercises"][1]["mistake"] in report["exercises"][1]["message"]

    done = run(folder / "a.ipynb")
    assert done.exit_code == 0
    assert "✓ 2.1 passed: 2 of 2 points" in done.stdout
    assert done.stdout.endswith("2 of 2 points: 1 passed\n")


def test_a_plain_file_is_judged_by_the_name_of_its_function(tmp_path):
    path = tmp_path / "my answer.py"
    path.write_text(RIGHT.replace("<=", "<"), encoding="utf-8")
    done = run("--function", path, "2.1", "--json")
    assert json.loads(done.stdout)["exercises"][0]["mistake"] == "q = 0 is not refused"
    assert done.exit_code == 1


@pytest.mark.parametrize("what", ["2.77", "77", "no/such/folder"])
def test_what_is_not_there_is_one_sentence(what):
    done = run(what)
    assert done.exit_code == 1
    assert done.stderr.startswith("specdec: there is no ")
    assert done.stderr.count("\n") == 1


def test_a_file_that_is_no_notebook_is_one_sentence(tmp_path):
    (tmp_path / "x.ipynb").write_text("{", encoding="utf-8")
    with pytest.raises(CourseError, match="not a readable notebook"):
        answers(tmp_path / "x.ipynb", {}, {})


def test_only_the_cells_that_a_function_needs_are_run(tmp_path):
    cells = [
        "import torch\nfrom specdec_course import check",
        "raise SystemExit('never mind')",
        "LIMIT = 0.0",
        "def helper(q):\n    return q <= LIMIT",
        "%timeit 1\n!ls",
        "x = [1]",
        "def accept_token(p, q, token, uniform):\n    return helper(q[token])",
        CHECK,
        "LIMIT = 5",
    ]
    answer = found(tmp_path / "n.ipynb", *cells)[0]
    assert [name for name, _ in answer.sources] == ["cell 3", "cell 4", "cell 7"]
    assert (answer.exercise, answer.expression, answer.problem) == ("2.1", "accept_token", None)


def test_of_two_definitions_the_last_above_the_check_counts(tmp_path):
    answer = found(tmp_path / "n.ipynb", "def f(): return 1", "def f(): return 2", 'check("2.1", f)', "f = 3")[0]
    assert [name for name, _ in answer.sources] == ["cell 2"]


def test_a_lost_check_cell_does_not_lose_the_exercise(tmp_path):
    path = write(tmp_path / "n.ipynb", IMPORTS, RIGHT)
    answer = answers(path, all_exercises(), {"2.1": "accept_token"})[0]
    assert [name for name, _ in answer.sources] == ["cell 2"]


def test_a_file_in_another_encoding_is_one_sentence(tmp_path):
    path = tmp_path / "f.py"
    path.write_bytes("# é".encode("latin-1"))
    with pytest.raises(CourseError, match="cannot be read"):
        answer_in_file(path, "2.1", "accept_token")


def test_own_functions_are_carried_forward_and_the_solution_stands_in(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(carry, "ROOT", tmp_path)
    monkeypatch.setattr(carry, "all_exercises", lambda: {"2.1": find_exercise("2.1")})
    mine = tmp_path / "exercises" / "02_x.ipynb"
    write(tmp_path / "solutions" / "02_x.ipynb", IMPORTS, "WHOSE = 'solution'\n" + RIGHT, CHECK)
    monkeypatch.chdir(mine.parent if mine.parent.exists() else tmp_path)

    write(mine, IMPORTS, HEAD + "    raise NotImplementedError()", CHECK)
    carried = carry.carry("02")
    assert capsys.readouterr().out.splitlines() == [
        "Stage 02, yours: none",
        "Stage 02, from the solution: accept_token (not attempted)",
    ]
    assert carried.accept_token.__globals__["WHOSE"] == "solution"

    write(mine, IMPORTS, "WHOSE = 'mine'\n" + RIGHT + "\nprint(undefined)", CHECK)
    carried = carry.carry("2")
    assert capsys.readouterr().out == "Stage 02, yours: accept_token\n"
    assert carried.accept_token.__globals__["WHOSE"] == "mine"
    assert carried.accept_token(torch_like([0.5, 0.5]), torch_like([0.5, 0.5]), 0, 0.3) is True
    with pytest.raises(AttributeError, match="no exercise whose function is 'residual'"):
        carried.residual  # noqa: B018


def torch_like(values):
    import torch

    return torch.tensor(values)


def test_a_stage_without_exercises_cannot_be_carried():
    with pytest.raises(CourseError, match="no exercises"):
        carry.carry("77")


def test_the_terminal_writes_the_learners_record_for_their_own_notebooks_only(tmp_path, monkeypatch):
    remembered = []
    monkeypatch.setattr(terminal, "remember", remembered.append)
    monkeypatch.setattr(terminal, "ROOT", tmp_path)
    write(tmp_path / "elsewhere" / "a.ipynb", IMPORTS, RIGHT, CHECK)
    assert run(tmp_path / "elsewhere").exit_code == 0
    assert remembered == []
    write(tmp_path / "exercises" / "a.ipynb", IMPORTS, RIGHT, CHECK)
    assert run().exit_code == 0
    assert [verdict.status for verdict in remembered] == ["passed"]
