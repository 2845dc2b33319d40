"""Groups of workers: when an attempt starts, how wide it is, and when it waits for so many no
longer. A slot is one worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from regrow.search.events import AnyEvent, Capacity, Closing, Ended, Place, Started, Waited
from regrow.search.lifecycle import TrialState
from regrow.search.needs import ClusterCapacity
from regrow.search.planning.simulator import Availability, FunctionObjective, simulate
from regrow.search.planning.verify import verify
from regrow.search.spec import Spec
from regrow.show.live.board import Board
from regrow.tasks.ports.messages import Progress
from tests.unit.office import Office, began_at, offices
from tests.unit.scripted import Desk
from tests.unit.simulated import SPEC, score


def desk(workers: Any, *, slots: int, trials: int = 6, **changes: Any) -> Desk:
    return Desk(
        {},
        slots=slots,
        trials=trials,
        **{"schedule": "fifo", "resources": {"workers": workers}, **changes},
    )


def widths(events: Sequence[AnyEvent]) -> list[tuple[int, int]]:
    """Trial and width of the attempts that are started."""
    return [(event.trial, event.width) for event in events if isinstance(event, Started)]


def grow(at: Desk, slots: int, widest: int | None = None) -> list[tuple[int, int]]:
    at.t += 1
    return widths(
        at.tell(Capacity(t=at.t, slots=slots, widest=slots if widest is None else widest))
    )


def wait(at: Desk, trial: int, seconds: float) -> list[AnyEvent]:
    at.t += seconds
    return at.tell(Waited(t=at.t, trial=trial, attempt=at.attempt(trial), seconds=seconds))


# ---- how wide


def test_a_group_starts_only_as_a_whole() -> None:
    at = desk(2, slots=5)
    assert widths(at.events) == [(0, 2), (1, 2)]
    assert at.planner.history.occupied == 4
    assert widths(at.end(0, "done")) == [(2, 2)]


def test_a_range_gets_all_that_is_free_and_no_less_than_it_must_have() -> None:
    assert widths(desk([2, 4], slots=10).events) == [(0, 4), (1, 4), (2, 2)]
    assert widths(desk([2, 4], slots=5).events) == [(0, 4)]
    assert widths(desk([2, 4], slots=1).events) == []
    assert widths(desk([1, 2], slots=3, trials=1).events) == [(0, 2)]


def test_the_next_attempt_has_what_the_cluster_has_by_then() -> None:
    at = desk([2, 4], slots=8)
    assert widths(at.events) == [(0, 4), (1, 4)]
    assert grow(at, 3) == [], "what runs continues as it is"
    assert widths(at.end(0, "lost", "preempted")) == []
    assert widths(at.end(1, "lost", "preempted")) == [(0, 3)]
    assert grow(at, 12) == [(1, 4), (2, 4)], "one slot is left over, which is no group"
    assert grow(at, 0) == []
    assert widths(at.end(0, "lost", "preempted")) == []
    assert grow(at, 13) == [(0, 4)]


def test_it_is_no_wider_than_the_cluster_can_hold_of_one() -> None:
    at = desk([2, 8], slots=1)
    assert grow(at, 9, widest=3) == [(0, 3), (1, 3), (2, 3)]


def test_concurrency_counts_attempts_however_narrow_they_are() -> None:
    at = desk([1, 4], slots=8, concurrency=2)
    assert widths(at.events) == [(0, 4), (1, 4)]
    assert widths(wait(at, 0, 30.0)) == [(0, 1)]
    assert at.planner.history.occupied == 5, "three slots are free, and nobody gets them"


def test_a_scheduler_that_says_how_wide_has_its_way_within_the_range() -> None:
    said = {"widths": {"0": 1, "1": 9, "2": 3}}
    for workers, found in (([2, 4], [2, 4, 3]), (3, [3, 3, 3])):
        at = Desk({}, slots=9, trials=3, options=said, resources={"workers": workers})
        assert [width for _, width in widths(at.events)] == found
    children = Desk({}, slots=9, trials=3, options=said, resources={"children": {"cpu": 1}})
    assert [width for _, width in widths(children.events)] == [1, 1, 1]


# ---- fewer than wanted


def test_a_group_that_waits_in_vain_goes_on_with_the_least_that_it_must_have() -> None:
    at = desk([1, 3], slots=3, trials=1)
    assert widths(at.events) == [(0, 3)]
    assert wait(at, 0, 29.9) == []
    ended, began = wait(at, 0, 30.0)
    assert isinstance(ended, Ended)
    assert (ended.outcome, ended.by, ended.narrower) == ("paused", "planner", True)
    assert ended.message == "it waited 30 s for 3 workers, and goes on with fewer"
    assert widths([began]) == [(0, 1)]
    assert wait(at, 0, 600.0) == [], "less is no group"
    at.begin(0)
    assert widths(at.end(0, "lost", "preempted")) == [(0, 3)], "what held it up may be over"
    trial = at.of(0)
    assert (trial.evictions, dict(trial.ended_by)) == (1, {"": 1, "preempted": 1})
    board = Board()
    told = [line for event in at.events for line in board.apply(event)]
    assert "trial 0 asks for 1 worker: it waited 30 s for 3 workers, and goes on with fewer" in told


def test_where_the_cluster_has_not_so_many_any_more_it_goes_on_at_once_with_as_many_as_that_has() -> (
    None
):
    at = desk([1, 4], slots=4, trials=1)
    assert widths(at.events) == [(0, 4)]
    assert grow(at, 3) == [], "that it waits is for the coordinator to say"
    ended, began = wait(at, 0, 0.0)
    assert isinstance(ended, Ended)
    assert ended.message == "there is no room for 4 workers any more, and it goes on with fewer"
    assert widths([began]) == [(0, 3)]
    assert grow(at, 4) == [], "it waits for three, which may be there in a moment"
    assert widths(wait(at, 0, 30.0)) == [(0, 1)]


def test_one_of_a_fixed_size_waits_on() -> None:
    at = desk(3, slots=3, trials=1)
    assert wait(at, 0, 3600.0) == []
    assert grow(at, 2) == []
    assert wait(at, 0, 3600.0) == []


def test_it_asks_for_fewer_machines_before_it_asks_for_others() -> None:
    at = desk([1, 2], slots=2, trials=1, market={"first": "spot", "after": "10s"})
    assert wait(at, 0, 20.0) == []
    *_, began = wait(at, 0, 31.0)
    assert isinstance(began, Started)
    assert (began.width, began.market) == (1, "spot")
    *_, began = wait(at, 0, 11.0)
    assert isinstance(began, Started)
    assert (began.width, began.market) == (2, "on-demand"), "there may be two of these"


def test_an_ending_is_not_kept_waiting() -> None:
    at = desk([1, 2], slots=2, trials=1)
    at.tell(Closing(t=at.t, status="interrupted", why="by the user", by="user"))
    ended, *_ = wait(at, 0, 10.5)
    assert isinstance(ended, Ended)
    assert not ended.narrower
    assert widths(at.open(slots=2, trials=1)) == [(0, 2)]


@pytest.fixture
def office() -> Iterator[Office]:
    resources = {"workers": [1, 2]}
    with offices(schedule="fifo", trials=2, slots=4, max_steps=3, resources=resources) as make:
        yield make()


def test_the_coordinator_says_who_has_been_waiting_for_so_long(office: Office) -> None:
    given = office.instructions().submit
    assert [(a.width, a.needs.bundles, a.needs.strategy) for a in given] == [
        (2, ({"CPU": 1}, {"CPU": 1}), "PACK")
    ] * 2
    came = began_at(Place("a", "n1"), others=[Place("b", "n2")], task_run="run-1")
    office.report(Progress(trial=1, attempt=1, began=came))
    office.instructions()
    office.monotonic = 29.0
    office.report(Progress(trial=1, attempt=1))
    assert office.instructions().forget == ()
    office.monotonic = 30.5
    told = office.instructions()
    assert told.forget == ((0, 1),)
    (again,) = told.submit
    assert (again.trial, again.attempt, again.width, len(again.needs.bundles)) == (0, 2, 1, 1)
    assert (
        "attempt 1 was withdrawn (it waited 30.5 s for 2 workers, and goes on with fewer)"
        in again.explanation
    )
    office.monotonic = 45.0
    office.report(Progress(trial=1, attempt=1))
    office.instructions()
    office.monotonic = 100.0
    office.report(Progress(trial=1, attempt=1))
    office.instructions()
    assert [(e.trial, e.attempt) for e in office.events if isinstance(e, Waited)] == [(0, 1)], (
        "nor is there less to ask for"
    )
    assert office.history.trials[1].attempts[0].width == 2


def test_the_coordinator_says_at_once_who_waits_for_more_than_the_cluster_has(
    office: Office,
) -> None:
    office.instructions()
    office.report(
        Progress(
            trial=1,
            attempt=1,
            began=began_at(Place("a", "n1"), others=[Place("b", "n2")], task_run="run-1"),
        )
    )
    told = office.instructions(ClusterCapacity(slots=3, widest=1))
    assert told.forget == ((0, 1),)
    assert [(a.trial, a.attempt, a.width) for a in told.submit] == [(0, 2, 1)]


# ---- whole experiments


def simulated(machines: Sequence[Availability] = (), *, workers: int, **changes: Any) -> Any:
    spec = Spec.parse({**SPEC, "schedule": "fifo", "max_steps": 20, **changes})
    objective = FunctionObjective(function=score, spec=spec, seconds=10.0)
    return simulate(spec, objective, workers=workers, availability=machines)


def test_a_machine_that_is_gone_for_good_makes_groups_smaller() -> None:
    machines = [Availability(), Availability(), Availability(changes=(0.0, 15.0))]
    done = simulated(machines, workers=3, trials=2, resources={"workers": [2, 3]})
    assert widths(done.events) == [(0, 3), (0, 3), (0, 2), (1, 3), (1, 2)]
    first, _, again = done.history.trials[0].attempts
    assert (first.outcome, again.outcome) == ("lost", "done")
    assert again.t_began == pytest.approx(first.t_ended + 30.0)
    assert all(trial.state is TrialState.DONE for trial in done.history.trials)
    assert verify(done.events).difference is None


@pytest.mark.parametrize("workers", [2, [1, 3], [2, 2]])
def test_groups_on_machines_that_come_and_go_finish(workers: Any) -> None:
    machines = [
        Availability(),
        Availability(),
        Availability(),
        Availability(changes=(0.0, 37.0, 95.0, 130.0, 180.0)),
    ]
    done = simulated(machines, workers=4, trials=5, resources={"workers": workers})
    assert all(trial.state is TrialState.DONE for trial in done.history.trials)
    assert verify(done.events).difference is None
    again = simulated(machines, workers=4, trials=5, resources={"workers": workers})
    assert again.events == done.events


def test_the_last_trials_take_over_what_others_leave_within_their_range() -> None:
    schedule = {"resource_changing": {"interval": 3}}
    done = simulated(
        workers=8, trials=3, schedule=schedule, resources={"workers": [1, 4]}, max_steps=30
    )
    found = [[attempt.width for attempt in trial.attempts] for trial in done.history.trials]
    assert [wide[0] for wide in found[:2]] == [1, 1], (
        "as long as trials are left to be started, each has the least"
    )
    assert max(map(max, found)) == 4
    assert all(wide == sorted(set(wide)) for wide in found), (
        "nobody starts anew for what it has already"
    )
    assert verify(done.events).difference is None


def test_where_too_few_machines_are_there_for_a_group_that_is_told() -> None:
    with pytest.raises(RuntimeError, match="nothing happens any more on 2 workers"):
        simulated(workers=2, trials=1, resources={"workers": 3})
