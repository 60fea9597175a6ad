"""A real JupyterLab, started as a learner starts it, and what a learner does in a notebook there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

from playwright.sync_api import Locator, Page, expect

from specdec_course.building.products import ROOT

PATIENCE_S = 600  # a busy machine is slow to start a kernel and to load a model
ADDRESS = re.compile(r"(http://127\.0\.0\.1:\d+)/\S*\?token=(\w+)")


def surroundings(scratch: Path) -> dict[str, str]:
    """Return the environment of a learner who is new: no record, no settings; none of this user's are touched."""
    theirs = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    theirs = (*theirs, "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR")
    hidden = ("SPECDEC_WIDGETS", "PYTEST_CURRENT_TEST")  # the first would decide for the front end
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    return {**kept, **{name: str(scratch / name) for name in theirs}, "SPECDEC_PROGRESS": str(scratch / "record.json")}


@contextmanager
def jupyterlab(scratch: Path) -> Iterator[tuple[str, str]]:
    """Run `course.py learn --no-browser` and give the address and the token that it prints."""
    command = [sys.executable, str(ROOT / "course.py"), "learn", "--no-browser", "--ServerApp.port=0"]
    log = scratch / "lab.log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, env=surroundings(scratch), stdout=file, stderr=file)
    try:
        address, token = _address(process, log)
        yield address, token
        stop = Request(f"{address}/api/shutdown", method="POST", headers={"Authorization": f"token {token}"})
        urlopen(stop, timeout=60).close()  # as by the menu: it ends its kernels too
        assert process.wait(60) == 0
    finally:
        process.kill()


def _address(process: subprocess.Popen, log: Path) -> tuple[str, str]:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and process.poll() is None:
        found = ADDRESS.search(log.read_text(encoding="utf-8", errors="replace"))
        if found:
            return found[1], found[2]
        time.sleep(0.2)
    raise AssertionError(f"JupyterLab printed no address:\n{log.read_text(encoding='utf-8', errors='replace')}")


class Notebook:
    """A notebook that is open in the browser."""

    def __init__(self, page: Page, pictures: Path) -> None:
        self.page, self.pictures = page, pictures
        self.wait_for_kernel()

    def wait_for_kernel(self) -> None:
        """Wait until the status bar says so; cells that are run before there is a kernel are lost."""
        expect(self.page.locator("#jp-main-statusbar")).to_contain_text("| Idle", timeout=PATIENCE_S * 1000)

    def cell(self, text: str) -> Locator:
        """The code cell with this text in its source."""
        return self.page.locator(".jp-CodeCell", has=self.page.locator(".jp-InputArea-editor", has_text=text))

    def run_all(self) -> None:
        """Use the menu, and wait until the last cell has its number."""
        self.page.locator(".lm-MenuBar-itemLabel", has_text=re.compile("^Run$")).click()
        self.page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Run All Cells$")).click()
        last = self.page.locator(".jp-CodeCell .jp-InputPrompt").last
        expect(last).to_have_text(re.compile(r"\[\d+\]"), timeout=PATIENCE_S * 1000)
        self.wait_for_kernel()

    def run(self, text: str) -> Locator:
        """Run one cell with Shift-Enter and return what it shows."""
        cell = self.cell(text)
        cell.locator(".cm-content").click()
        before = cell.locator(".jp-InputPrompt").inner_text()
        self.page.keyboard.press("Shift+Enter")
        expect(cell.locator(".jp-InputPrompt")).not_to_have_text(before)
        expect(cell.locator(".jp-InputPrompt")).to_have_text(re.compile(r"\[\d+\]"), timeout=PATIENCE_S * 1000)
        return cell.locator(".jp-OutputArea").first

    def type_over(self, cell: str, line: str, typed: str) -> None:
        """Replace the line of a cell that has `line` in it by what is typed."""
        self.cell(cell).locator(".cm-line", has_text=line).click()
        self.page.keyboard.press("End")
        self.page.keyboard.press("Shift+Home")
        self.page.keyboard.type(typed)

    def save(self) -> None:
        """Save with Ctrl-S, and wait until the tab no longer says that there is something to save."""
        self.page.keyboard.press("Control+s")
        expect(self.page.locator(".lm-DockPanel-tabBar .jp-mod-dirty")).to_have_count(0)

    def look(self, name: str, at: Locator | None = None) -> None:
        """Keep a picture of the window, scrolled to a part of it."""
        if at is not None:
            at.scroll_into_view_if_needed()
        self.page.screenshot(path=self.pictures / f"{name}.png")
