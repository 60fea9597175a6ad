"""What all tests share: no network but loopback, and no silent skip of the tests on the real model."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

attempts: list[str] = []  # addresses that the running test tried to reach


def is_local(address: Any) -> bool:
    """Unix sockets and loopback addresses; a host name other than localhost counts as far away."""
    if not isinstance(address, tuple):
        return True
    host = address[0]
    if host in ("localhost", "", None):
        return True
    try:
        return ipaddress.ip_address(host.split("%")[0]).is_loopback
    except ValueError:
        return False


def _guarded(name: str) -> None:
    original = getattr(socket.socket, name)

    def guard(self: socket.socket, address: Any) -> Any:
        if not is_local(address):
            attempts.append(repr(address))
            raise OSError(f"the tests may not connect to {address!r}")
        return original(self, address)

    setattr(socket.socket, name, guard)


def pytest_configure(config: pytest.Config) -> None:
    for name in ("connect", "connect_ex"):
        _guarded(name)
    config.stash[smol_outcomes] = {}


@pytest.fixture(autouse=True)
def no_network() -> Iterator[None]:
    """Fails a test that tried to reach the network, even where the code under test swallowed the error."""
    attempts.clear()
    yield
    if attempts:
        pytest.fail(f"tried to connect to {', '.join(attempts)}: tests use loopback only")


smol_outcomes = pytest.StashKey[dict[str, str]]()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = (yield).get_result()
    if item.get_closest_marker("smol") and (report.when == "call" or report.outcome != "passed"):
        item.config.stash[smol_outcomes][item.nodeid] = report.outcome


def smol_complaint(outcomes: dict[str, str]) -> str | None:
    """Why a run that must include the real model does not count; None where it does."""
    skipped = [name for name, outcome in outcomes.items() if outcome == "skipped"]
    if skipped:
        return f"{len(skipped)} tests on SmolLM2 were skipped, the first is {skipped[0]}"
    return None if outcomes else "no test on SmolLM2 was run"


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    config = session.config
    complaint = smol_complaint(config.stash[smol_outcomes])
    if os.environ.get("SPECDEC_REQUIRE_SMOL") == "1" and complaint:
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter:
            reporter.write_line(f"\nSPECDEC_REQUIRE_SMOL: {complaint}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    yield
