"""The notebooks that a session's tests want to see run: all of them are begun at the first such test, two at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.notebooks.nbval_run import Run, nbval

AT_ONCE = 2  # one notebook keeps little more than one core busy, and holds its own copy of SmolLM2 in memory
MODES = {"lesson": "--nbval", "solution": "--nbval", "exercise": "--nbval-lax"}


@pytest.fixture(scope="session")
def nbval_runs(request, tmp_path_factory) -> Iterator[dict[str, Future[Run]]]:
    """The runs by the product's name, begun in the order of the tests that ask for them; `result()` waits for one."""
    wanted = [item for item in request.session.items if "nbval_runs" in getattr(item, "fixturenames", ())]
    products = [item.callspec.params["product"] for item in wanted]
    threads = max(1, (os.cpu_count() or 1) // AT_ONCE)  # more threads than cores would wait for each other
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {
            product.name: pool.submit(
                nbval,
                product.goal.read_text(encoding="utf-8"),
                tmp_path_factory.mktemp(product.name.replace("/", "-").replace(" ", "-")),
                MODES[product.kind],
                threads,
            )
            for product in products
        }
        pool.shutdown(cancel_futures=True)  # a session that was stopped does not begin the rest
