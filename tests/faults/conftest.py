"""What the fault tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults import tally
from tests.faults.sitting import stillness


@pytest.fixture(autouse=True)
def still() -> Iterator[None]:
    """Nothing depends on time."""
    with stillness():
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how many transitions were covered."""
    if lines := tally.table():
        terminalreporter.section("faults")
        for line in lines:
            terminalreporter.write_line(line)
