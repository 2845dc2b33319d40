"""A cluster that becomes larger and smaller while an experiment runs: an observation in the log,
from which decisions follow.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from regrow.flows.coordinator.capacity import fits
from regrow.search.events import Capacity, Ended, Place, Proposed, Row, Started
from regrow.search.needs import ClusterCapacity
from regrow.search.planning.verify import verify
from regrow.show.live.board import Board
from regrow.show.live.grid import Signs
from regrow.show.live.sections import compose
from regrow.show.live.viewer import status_line
from regrow.tasks.ports.messages import Progress
from tests.unit.office import Office, began_at, offices
from tests.unit.simulated import created, opened
from tests.unit.told import folded


@pytest.fixture
def office() -> Iterator[Office]:
    with offices(schedule="fifo", trials=6, max_steps=1, slots=1) as make:
        yield make()


def grow(office: Office, slots: int) -> list[int]:
    """The cluster has room for so many from now on; the trials that start."""
    return start(office, ClusterCapacity(slots=slots, widest=max(1, slots)))


def start(office: Office, room: ClusterCapacity | None = None) -> list[int]:
    submitted = office.wait(office.coordinator.instructions(0.0, room)).submit
    for one in submitted:
        began = began_at(Place("node", "n1"), task_run=f"run-{one.trial}", restored=0)
        office.report(Progress(trial=one.trial, attempt=one.attempt, began=began))
    return [one.trial for one in submitted]


def finish(office: Office, trial: int) -> None:
    ended = Ended(t=0.0, trial=trial, attempt=1, outcome="done", step=1)
    office.report(
        Progress(trial=trial, attempt=1, rows=(Row(1, 0.0, {"score": 1.0}),), ended=ended)
    )


def test_more_trials_start_as_soon_as_there_is_more_room(office: Office) -> None:
    assert start(office) == [0]
    assert grow(office, 3) == [1, 2]
    assert grow(office, 3) == []
    assert [event.slots for event in office.events if isinstance(event, Capacity)] == [3], (
        "what is as it was is no event"
    )
    assert verify(office.events).difference is None


def test_where_machines_may_come_on_need_a_smaller_cluster_has_attempts_that_wait() -> None:
    with offices(schedule="fifo", trials=6, max_steps=1, slots=2, least=2, on_demand=3) as make:
        office = make()
        assert start(office) == [0, 1]
        assert grow(office, 1) == []
        finish(office, 0)
        assert start(office, ClusterCapacity(slots=1, widest=1)) == [2], "it waits for a machine"
        assert grow(office, 4) == [3, 4], "machines have room for several"
        start(office, ClusterCapacity(slots=5, widest=5, spot=4))
        told = [(e.slots, e.spot) for e in office.events if isinstance(e, Capacity)]
        assert told[-1] == (5, 2), "three of the slots may be had on demand"
        assert min(told)[0] == 2
        assert verify(office.events).difference is None


def test_where_so_many_were_asked_for_only_larger_nodes_are_news() -> None:
    with offices(schedule="fifo", trials=6, max_steps=1, slots=2, fixed=True) as make:
        office = make()
        assert start(office, ClusterCapacity(slots=0, widest=1)) == [0, 1], (
            "they wait in the cluster, which may grow for them"
        )
        for widest in (1, 4, 2):
            assert start(office, ClusterCapacity(slots=widest, widest=widest)) == []
        assert [
            (event.slots, event.widest) for event in office.events if isinstance(event, Capacity)
        ] == [(2, 4)]
        assert verify(office.events).difference is None


def test_what_the_cluster_has_room_for_is_no_news_once_all_is_ending(office: Office) -> None:
    assert start(office) == [0]
    office.interrupt()
    grow(office, 3)
    assert not any(isinstance(event, Capacity) for event in office.events)


def test_people_are_told_how_large_the_cluster_is_and_who_waits(office: Office) -> None:
    start(office)
    board = Board()
    told = [line for event in office.events for line in board.apply(event)]
    now = board.history.t_last
    for slots, widest in ((3, 1), (3, 2), (0, 1)):
        told += board.apply(Capacity(t=now, slots=slots, widest=widest))
    assert told == [
        "the cluster has room for 3 trials at a time now",
        "the cluster has no room for a trial now: they wait for a node",
    ]
    board.apply(Proposed(t=now, trial=1, config={"x": 0.5}))
    board.apply(Started(t=now, trial=1, attempt=1))
    assert "waits for room" not in status_line(board, now + 20)
    assert "1 waits for room on a node" in status_line(board, now + 240)
    drawn = "\n".join(
        line.plain for line in compose(board, width=160, height=40, now=now + 240, signs=Signs())
    )
    assert "1 waits for room on a node" in drawn
    assert "waits 4 min" in drawn


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


def test_whether_a_later_attempt_fits_is_told_by_its_own_width() -> None:
    history = folded(
        [created(), opened(1.0), Proposed(t=2.0, trial=0, config={"x": 0.5, "kind": "a"})]
    )
    for number, width in enumerate((1, 1, 2), start=1):
        history.apply(Started(t=3.0, trial=0, attempt=number, width=width))
        if number < 3:
            history.apply(Ended(t=4.0, trial=0, attempt=number, outcome="lost", cause="preempted"))
    first, _, third = history.trials[0].attempts
    assert fits(history, [(0, 3)], third)
    assert not fits(history, [(0, 3)], first)
    assert not fits(history, [], first)
