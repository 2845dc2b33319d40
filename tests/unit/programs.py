"""Programs as trials: real processes, run by an attempt against a real coordinator, with a store in
memory. No test lives here.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from regrow.tasks.ports.executor import Finished
from regrow.tasks.ports.messages import Assignment
from tests.unit.attempting import run
from tests.unit.office import Bench, MakeOffice, Office, offices

COUNTING = """
    import json, os
    from pathlib import Path

    import regrow as rg

    restored, step = os.environ["REGROW_RESTORED"], 0
    if restored:
        step = int((Path(restored) / "step").read_text())
    while step < 5:
        step += 1
        (Path(os.environ["REGROW_CHECKPOINT"]) / "step").write_text(str(step))
        rg.report({"score": step / 10})
"""
"""A script that saves and reports five steps."""


class Programs:
    """A folder with a program, and attempts that run it."""

    def __init__(self, folder: Path, make_office: MakeOffice) -> None:
        self.folder = folder
        self.make_office = make_office
        self.bench = Bench()

    def office(
        self, program: str, *, run: tuple[str, ...] = ("python", "train.py"), **changes: Any
    ) -> Office:
        """An experiment whose trials are this program."""
        (self.folder / "train.py").write_text(textwrap.dedent(program))
        return self.make_office(
            **{"command": list(run), "working_dir": str(self.folder), **changes}
        )

    def attempt(self, office: Office, assignment: Assignment | None = None) -> Finished:
        """One attempt, by default that which the driver is to submit."""
        return run(office, assignment, bench=self.bench)

    def done(self, program: str, **changes: Any) -> Office:
        """The experiment, after an attempt that has ended well."""
        office = self.office(program, **changes)
        ended = self.attempt(office).ended
        assert ended.outcome == "done", ended.message
        return office


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    """Programs in a folder of the test's; what they report is sent in the background, as in a
    worker.
    """
    with offices(trainable="command", schedule="fifo", max_steps=5) as make_office:
        yield Programs(tmp_path, make_office)


def rows(office: Office, trial: int = 0) -> list[tuple[int, float]]:
    return list(enumerate(office.history.trials[trial].values, start=1))


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # it ends just now
        return False


def children_of(pid: int) -> str:
    """The processes that this one has, as text; none once they were waited for."""
    return "".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))


def await_true(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()
