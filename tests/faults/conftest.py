"""What the fault tests share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.faults import tally
from tests.faults.still import stillness


@pytest.fixture(autouse=True)
def still() -> Iterator[None]:
    """Nothing depends on time."""
    with stillness():
        yield


def pytest_sessionfinish(session: pytest.Session) -> None:
    """One of several processes that share the tests sends what it counted."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["transitions"] = tally.counted()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """The process that prints the summary takes it; one that died has sent nothing."""
    tally.add(getattr(node, "workeroutput", {}).get("transitions", ({}, {}, {})))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how many transitions were covered."""
    if lines := tally.table():
        terminalreporter.section("faults")
        for line in lines:
            terminalreporter.write_line(line)
