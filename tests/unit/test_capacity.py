"""A cluster that becomes larger and smaller while an experiment runs: an observation in the log, from which decisions follow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from regrow.search.events import Capacity, Ended, Row
from regrow.search.planning.verify import verify
from regrow.tasks.messages import Arrival, Place, Progress
from tests.unit.office import Office, offices


@pytest.fixture
def office() -> Iterator[Office]:
    with offices(schedule="fifo", trials=6, max_steps=1, slots=1) as make:
        yield make()


def grow(office: Office, slots: int) -> list[int]:
    """The cluster has room for so many from now on; the trials that start."""
    office.wait(office.coordinator.capacity(slots, max(1, slots)))
    return start(office)


def start(office: Office) -> list[int]:
    submitted = office.instructions().submit
    for one in submitted:
        began = Arrival(place=Place("node", "n1"), task_run=f"run-{one.trial}", restored=0)
        office.report(Progress(trial=one.trial, attempt=one.attempt, began=began))
    return [one.trial for one in submitted]


def finish(office: Office, trial: int) -> None:
    ended = Ended(t=0.0, trial=trial, attempt=1, outcome="done", step=1)
    office.report(Progress(trial=trial, attempt=1, rows=(Row(1, 0.0, {"score": 1.0}),), ended=ended))


def test_more_trials_start_as_soon_as_there_is_more_room(office: Office) -> None:
    assert start(office) == [0]
    assert grow(office, 3) == [1, 2]
    assert grow(office, 3) == []
    assert [event.slots for event in office.events if isinstance(event, Capacity)] == [3], "what is as it was is no event"
    assert verify(office.events).difference is None


def test_where_there_is_room_for_none_nothing_starts_and_nothing_ends(office: Office) -> None:
    assert start(office) == [0]
    assert grow(office, 0) == []
    finish(office, 0)
    assert start(office) == []
    assert office.instructions().finished is None
    assert grow(office, 2) == [1, 2]
    assert verify(office.events).difference is None


def test_a_coordinator_that_comes_back_knows_how_large_the_cluster_was(office: Office) -> None:
    assert start(office) == [0]
    assert grow(office, 2) == [1]
    office.open("driver-1")
    finish(office, 0)
    assert start(office) == [2]
    assert office.history.slots == 2
    office.open("driver-2")  # a new session looks by itself
    assert office.history.slots == 1
    assert verify(office.events).difference is None
