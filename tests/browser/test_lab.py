"""A learner in a real JupyterLab, with a real browser: notebooks run, widgets follow the hand, checks answer.

Pictures of what was seen stay in `build/browser`.
"""

import re

import nbformat
from playwright.sync_api import expect


def assert_ran_through(path):
    """The saved notebook has a number at each of its cells, and no error."""
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]


def test_stage_00_runs_all_its_cells(open_notebook):
    notebook, path = open_notebook("notebooks/00_start_here.ipynb")
    notebook.run_all()
    notebook.look("stage-00", at=notebook.page.locator("img[alt*='real model'], .jp-OutputArea img").last)
    notebook.save()
    assert_ran_through(path)


def test_stage_02_runs_all_its_cells_and_the_figure_of_red_and_blue_follows_a_slider(open_notebook):
    notebook, path = open_notebook("notebooks/02_accept_or_correct.ipynb")
    notebook.run_all()
    notebook.save()
    assert_ran_through(path)
    shown = notebook.cell("red_blue.explore()").locator(".jp-OutputArea").first
    figure, readout = shown.locator("img"), shown.locator(".widget-readout").first
    notebook.look("stage-02-before", at=figure)  # what is not in the window has no text and no place
    expect(readout).to_have_text("0.50")
    expect(figure).to_have_attribute("alt", re.compile("the target wants 0.50 and 0.50"))
    before = figure.get_attribute("src")
    handle = shown.locator(".noUi-handle").first
    box = handle.bounding_box()
    handle.hover()
    notebook.page.mouse.down()
    notebook.page.mouse.move(box["x"] + box["width"] / 2 + 60, box["y"] + box["height"] / 2, steps=6)
    notebook.page.mouse.up()
    expect(readout).not_to_have_text("0.50")
    expect(figure).to_have_attribute("alt", re.compile(f"the target wants {readout.inner_text()}"))
    assert figure.get_attribute("src") != before
    notebook.look("stage-02-after", at=figure)


def test_a_check_says_not_yet_to_a_wrong_answer_and_passed_to_the_right_one(open_notebook):
    notebook, _ = open_notebook("exercises/02_accept_or_correct.ipynb")
    answer, asked = "def acceptance_rate", 'check("2.4", acceptance_rate)'
    notebook.run("import torch")
    notebook.run(answer)
    assert "not attempted" in notebook.run(asked).inner_text()
    notebook.type_over(answer, "raise NotImplementedError", "return (target_probs * draft_probs).sum(-1)")
    notebook.run(answer)
    said = notebook.run(asked)
    assert "not yet" in said.inner_text()
    assert "Traceback" not in said.inner_text()
    notebook.look("check-not-yet", at=said)
    notebook.type_over(answer, "return (target", "return torch.minimum(target_probs, draft_probs).sum(-1)")
    notebook.run(answer)
    said = notebook.run(asked)
    assert "passed" in said.inner_text()
    notebook.look("check-passed", at=said)
