"""An attempt that went to a worker as its further trial, when the coordinator died before the
attempt began.

The coordinator that comes back does not know who has it, and hands it out again. One of the two is
fenced; its end must not be taken for the end of the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from regrow.search.events import Ended, Place, Row
from regrow.tasks.ports.messages import Progress
from tests.unit.office import Office, began_at


@pytest.fixture
def office() -> Iterator[Office]:
    made = Office(slots=1, schedule="fifo", trials=2)
    yield made
    made.close()


def news(trial: int, run: str, **more: Any) -> Progress:
    return Progress(
        trial=trial,
        attempt=1,
        began=began_at(Place("n"), task_run=run),
        rows=(Row(1, 0.0, {"score": 1.0}),),
        **more,
    )


def test_the_end_of_a_fenced_double_does_not_declare_lost_the_one_that_runs(office: Office) -> None:
    office.submitted()
    office.report(news(0, "run-0"))
    end = Ended(t=0.0, trial=0, attempt=1, outcome="done")
    following = office.report(Progress(trial=0, attempt=1, ended=end, carry_on=True)).next
    assert following is not None
    office.open("driver-1")
    again = office.submitted()
    assert (again.trial, again.attempt) == (following.trial, following.attempt) == (1, 1)
    assert office.report(news(1, "run-0")).reason == ""
    assert office.report(news(1, "run-1")).reason == "fenced"
    office.lost(1, 1, task_run="run-1")
    assert office.history.lease(1, 1) is not None
