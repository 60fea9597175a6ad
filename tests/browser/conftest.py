"""The browser, the JupyterLab and the copies of notebooks that the tests here share."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from specdec_course.bootstrap.environment import Environment
from specdec_course.building.products import ROOT
from specdec_ref import store
from tests.browser.lab import PATIENCE_S, Notebook, jupyterlab

# Everything that the tests leave: git ignores it, and JupyterLab, which serves the course's folder, can open it.
LEFT = ROOT / "build" / "browser"
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Iterator[tuple[str, str]]:
    """The address and the token of a running JupyterLab; `course.py` would set up first what is not ready."""
    environment = Environment(ROOT)
    if not (environment.is_ready(environment.wanted(None)) and store.smol_folder().exists()):
        pytest.skip("the environment or SmolLM2 is not ready: run `course.py setup`")
    with jupyterlab(tmp_path_factory.mktemp("lab")) as place:
        yield place


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium as the system has it: playwright downloads none."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium here (on Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=program, args=list(FLAGS), timeout=PATIENCE_S * 1000)


@pytest.fixture
def open_notebook(request, browser, lab) -> Iterator[Callable[[str], tuple[Notebook, Path]]]:
    """Open a copy of a notebook of the course; give it, and the copy's path."""
    address, token = lab
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(60_000)

    def open_(name: str) -> tuple[Notebook, Path]:
        copy = LEFT / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy)
        page = context.new_page()
        # A workspace of its own: JupyterLab would open again what was open before.
        where = f"{address}/lab/workspaces/{request.node.name}/tree/{copy.relative_to(ROOT).as_posix()}"
        page.goto(f"{where}?token={token}", timeout=PATIENCE_S * 1000)
        return Notebook(page, LEFT), copy

    yield open_
    for page in context.pages:
        page.screenshot(path=LEFT / f"{request.node.name}.png")  # the end, which is the fault where a test has failed
    sessions, key = f"{address}/api/sessions", {"Authorization": f"token {token}"}
    for session in context.request.get(sessions, headers=key).json():
        context.request.delete(f"{sessions}/{session['id']}", headers=key)  # the model in its kernel takes memory
    context.close()
