"""A plugin for the run of nbval: writes what each cell showed to the file that `SPECDEC_RECORD` names, as JSON lines.

So one run of a notebook serves both nbval and the tests that read its outputs.
"""

import json
import os
from pathlib import Path

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "call" and hasattr(item, "test_outputs"):
        line = json.dumps({"cell": item.cell["id"], "outputs": item.test_outputs or []})
        with Path(os.environ["SPECDEC_RECORD"]).open("a", encoding="utf-8", newline="\n") as record:
            record.write(line + "\n")
    return report
