"""Spot first, on-demand when it must be, and back: decisions of the log, made of how long attempts
waited and how often they were evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from regrow.search.errors import SpecError
from regrow.search.events import Ended, Place, Row, Started, Waited
from regrow.search.needs import ClusterCapacity
from regrow.search.spec import Spec
from regrow.show.live.board import Board
from regrow.tasks.ports.messages import Progress
from tests.unit.office import Office, began_at, offices
from tests.unit.simulated import SPEC

Make = Callable[..., Office]
MARKET = {"first": "spot", "after": "10min", "evictions": 2}


@pytest.fixture
def make() -> Iterator[Make]:
    with offices(
        schedule="fifo",
        trials=2,
        max_steps=3,
        market=MARKET,
        retries={"infrastructure": 0, "error": 0},
    ) as make:
        yield make


def begin(
    office: Office, trial: int = 0, attempt: int = 1, *, on: str = "spot", node: str = "n1"
) -> str:
    place = Place("node", node, market=on)
    return office.report(
        Progress(trial=trial, attempt=attempt, began=began_at(place, task_run=f"run-{trial}"))
    ).reason


def asked(office: Office) -> list[tuple[int, int, str]]:
    """What the driver is to submit now: trial, attempt, market."""
    return [(a.trial, a.attempt, a.market) for a in office.instructions().submit]


def wait(office: Office, seconds: float) -> None:
    office.instructions()
    office.monotonic += seconds


def test_an_attempt_that_waited_too_long_for_a_spot_machine_asks_for_another_at_no_cost(
    make: Make,
) -> None:
    office = make()
    assert asked(office) == [(0, 1, "spot")]
    wait(office, 599.0)
    assert office.instructions().forget == ()
    wait(office, 1.5)
    told = office.instructions()
    assert told.forget == ((0, 1),), "it is taken back from the cluster"
    assert [(a.trial, a.attempt, a.market) for a in told.submit] == [(0, 2, "on-demand")]
    assert (
        "attempt 1 was withdrawn (it waited 10 min for a spot machine)"
        in told.submit[0].explanation
    )
    assert begin(office) == "fenced", "a machine that comes after all is too late"
    assert begin(office, attempt=2, on="") == ""
    history = office.history
    assert [(e.seconds > 600, e.attempt) for e in office.events if isinstance(e, Waited)] == [
        (True, 1)
    ]
    trial = history.trials[0]
    assert (trial.evictions, trial.ended_by["preempted"], history.lost_steps) == (0, 0, 0)
    board = Board()
    lines = [line for event in office.events for line in board.apply(event)]
    assert lines == ["trial 0 asks for an on-demand machine: it waited 10 min for a spot machine"]
    assert board.incidents.count == 0


def test_a_machine_that_comes_in_time_is_used(make: Make) -> None:
    office = make()
    asked(office)
    wait(office, 590.0)
    assert begin(office) == ""
    wait(office, 25.0)
    assert office.instructions().forget == ()
    assert not any(isinstance(e, Waited) for e in office.events)


def test_after_so_many_evictions_it_asks_for_a_machine_that_stays(make: Make) -> None:
    office = make(lease=3600)
    for attempt in (1, 2):
        assert asked(office) == [(0, attempt, "spot")]
        begin(office, attempt=attempt, node=f"n{attempt}")
        office.wait(office.coordinator.node_lost(f"n{attempt}"))
    assert asked(office) == [(0, 3, "on-demand")]
    assert not any(e.avoid_spot for e in office.events if isinstance(e, Started))
    wait(office, 601.0)
    assert asked(office) == [(0, 4, "spot")], (
        "there is none: better a spot machine than to wait for ever"
    )
    wait(office, 601.0)
    assert asked(office) == [(0, 5, "on-demand")]
    assert office.history.trials[0].evictions == 2


def end(office: Office, trial: int, attempt: int) -> None:
    office.lost(trial, attempt, f"run-{trial}")


def test_it_goes_back_to_spot_once_somebody_has_found_a_machine(make: Make) -> None:
    office = make(slots=2, market={**MARKET, "evictions": None})
    assert asked(office) == [(0, 1, "spot"), (1, 1, "spot")]
    wait(office, 601.0)
    assert asked(office) == [(0, 2, "on-demand"), (1, 2, "on-demand")]
    begin(office, 0, 2, on="on-demand")
    end(office, 0, 2)
    assert asked(office) == [(0, 3, "on-demand")], "nobody has found a spot machine since"
    wait(office, 601.0)
    assert asked(office) == [(0, 4, "spot"), (1, 3, "spot")], "nor is there one on demand"
    begin(office, 1, 3)
    wait(office, 300.0)
    office.report(Progress(trial=1, attempt=3))
    wait(office, 301.0)
    office.report(Progress(trial=1, attempt=3))
    assert asked(office) == [(0, 5, "on-demand")]
    begin(office, 0, 5, on="on-demand")
    end(office, 0, 5)
    assert asked(office) == [(0, 6, "on-demand")]
    end(office, 1, 3)
    assert asked(office) == [(1, 4, "spot")]
    begin(office, 1, 4)
    begin(office, 0, 6, on="on-demand")
    end(office, 0, 6)
    assert asked(office) == [(0, 7, "spot")], "trial 1 has found one since"
    assert office.history.trials[0].attempts[-1].market == "spot"


def test_one_kind_alone_is_waited_for_as_long_as_it_takes(make: Make) -> None:
    for market in ("spot", "on-demand"):
        office = make(market=market)
        assert asked(office) == [(0, 1, market)]
        wait(office, 1e6)
        assert office.instructions().forget == ()
    office = make(market=None)
    assert asked(office) == [(0, 1, "")]


def test_a_coordinator_that_comes_back_takes_what_was_withdrawn_back_again(make: Make) -> None:
    office = make()
    asked(office)
    wait(office, 601.0)
    office.wait(office.coordinator.instructions(0.0))
    office.open("driver-1")  # who knows whether the driver has heard of it
    told = office.instructions()
    assert told.forget == ((0, 1),)
    assert [(a.trial, a.attempt, a.market) for a in told.submit] == [(0, 2, "on-demand")]


def test_who_waits_for_a_machine_does_not_hold_an_ending_up() -> None:
    with offices(schedule="fifo", trials=2, slots=2, max_steps=3) as make:
        office = make()
        office.instructions()
        begin(office, 0)
        wait(office, 5.0)
        office.interrupt()
        office.instructions()
        office.monotonic += 9.0
        assert office.instructions().forget == ()
        office.monotonic += 2.0
        assert office.instructions().forget == ((1, 1),)
        ended = Ended(t=0.0, trial=0, attempt=1, outcome="paused", step=1)
        office.report(
            Progress(trial=0, attempt=1, rows=(Row(1, 0.0, {"score": 1.0}),), ended=ended)
        )
        assert office.instructions().finished == "interrupted"
        assert office.history.trials[1].state.value == "paused"
        office.open("driver-2")
        assert asked(office) == [(0, 2, ""), (1, 2, "")]
        assert office.history.trials[1].ended_by["preempted"] == 0


def test_one_that_waits_for_spot_is_no_suspect_where_only_other_machines_are_free(
    make: Make,
) -> None:
    office = make(lease=10, slots=2)
    asked(office)
    begin(office, 1)
    office.wait(office.coordinator.node_lost("n9"))
    for office.monotonic, spot in ((11.0, 0), (22.0, 1), (33.0, 1)):  # trial 1 has the one
        office.report(Progress(trial=1, attempt=1))
        room = ClusterCapacity(slots=4 + spot, widest=1, spot=spot)
        assert office.wait(office.coordinator.instructions(0.0, room)).forget == ()
    office.monotonic = 44.0
    office.report(Progress(trial=1, attempt=1))
    assert office.wait(
        office.coordinator.instructions(0.0, ClusterCapacity(slots=6, widest=1, spot=2))
    ).forget == ((0, 1),)


@pytest.mark.parametrize(
    ("market", "told"),
    [
        ("cheap", 'market: "cheap"'),
        ({"first": "spot", "after": "soon"}, 'market.after: "soon"'),
        ({"first": "spot", "evictions": 0}, "market.evictions: 0"),
        ({"after": "10min"}, "market.first"),
        ({"first": "spot", "ater": 3}, "market.ater"),
    ],
)
def test_what_is_wrong_with_it_is_told(market: Any, told: str) -> None:
    with pytest.raises(SpecError) as error:
        Spec.parse({**SPEC, "market": market})
    assert told in str(error.value)


def test_the_short_form_is_the_same() -> None:
    assert Spec.parse({**SPEC, "market": "spot"}) == Spec.parse(
        {**SPEC, "market": {"first": "spot"}}
    )
    whole = Spec.parse({**SPEC, "market": MARKET}).market
    assert whole is not None
    assert (whole.first, whole.after, whole.evictions) == ("spot", 600.0, 2)
