"""How often attempts are to speak, and which nodes are to have a relay: both by how many there
are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from regrow.flows.coordinator import callers as calling
from regrow.flows.coordinator.callers import MANY, MANY_OF_A_NODE, SLOWEST_SECONDS, Callers
from regrow.search.events import Ended, Place, Reported, Row
from regrow.tasks.ports.messages import Progress
from regrow.tasks.trial.reporter import FLUSH_SECONDS
from tests.unit.office import MakeOffice, began_at, offices


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def looked(callers: Callers, clock: Clock, *nodes: str, lease: float = 30.0) -> tuple[str, ...]:
    """A moment later; the nodes that are to have a relay."""
    clock.now += 1.5
    assert callers.due()
    callers.adjust(nodes, lease)
    assert not callers.due()
    return tuple(node for node, _ in callers.pop_wanted())


def test_the_pace_is_that_of_as_many_calls_as_the_coordinator_can_take() -> None:
    clock = Clock()
    callers = Callers(clock, "s")
    for n in range(40):
        callers.record_call((n, 1))
    looked(callers, clock, *["n"] * 40)
    assert callers.pace <= FLUSH_SECONDS, "few attempts send as often as they like to"
    for n in range(1_000):
        callers.record_call((n, 1))
    looked(callers, clock, *["n"] * 1_000)
    assert callers.pace == pytest.approx(1_000 / calling.CALLS_A_SECOND)
    looked(callers, clock, *["n"] * 1_000, lease=6.0)
    assert callers.pace == 1.0, "an attempt is heard often enough to keep its lease"


def test_relays_count_as_one_and_who_is_gone_does_not_count() -> None:
    clock = Clock()
    callers = Callers(clock, "s")
    for n in range(10_000):
        callers.record_call((n, 1))
    nodes = [f"n{n % 300}" for n in range(10_000)]
    looked(callers, clock, *nodes)
    assert callers.pace == SLOWEST_SECONDS
    clock.now += 60.0
    for n in range(300):
        callers.record_call(f"relay-{n}", relay=True)
    looked(callers, clock, *nodes)
    assert callers.pace == pytest.approx(10_000 / calling.NEWS_A_SECOND)


def test_nodes_with_many_attempts_of_many_want_a_relay_once() -> None:
    clock = Clock()
    callers = Callers(clock, "s")
    assert looked(callers, clock, *["big"] * MANY) == (), (
        "a small experiment pays for no other process"
    )
    crowd = ["big"] * MANY + ["small"] * (MANY_OF_A_NODE - 1)
    assert looked(callers, clock, *crowd) == ("big",)
    assert looked(callers, clock, *crowd) == (), "it is on its way"
    clock.now += calling.ASK_SECONDS
    assert looked(callers, clock, *crowd) == ("big",), "it did not come"
    assert callers.relay("big") == ""
    name = "regrow-relay-s-big"
    callers.record_call(name, relay=True)
    assert callers.relay("big") == name
    clock.now += calling.ASK_SECONDS
    assert looked(callers, clock, *crowd) == ()


# ---- the coordinator, spoken to by a relay


@pytest.fixture
def make() -> Iterator[MakeOffice]:
    with offices(schedule="fifo", trials=60, slots=60) as make:
        yield make


def news(
    trial: int, attempt: int = 1, *, steps: int = 0, node: str = "n1", **more: Any
) -> Progress:
    came = began_at(Place("node", node), task_run=f"run-{trial}")
    rows = tuple(Row(step, 0.0, {"score": 1.0}) for step in range(1, steps + 1))
    return Progress(trial=trial, attempt=attempt, began=came, rows=rows, **more)


def test_the_answers_to_a_batch_are_in_its_order_each_as_it_would_be_alone(
    make: MakeOffice,
) -> None:
    office = make()
    office.instructions()
    ended = Ended(t=0.0, trial=2, attempt=1, outcome="done", step=1)
    batch = [
        news(0, steps=2),
        news(1, 7, steps=1),
        news(2, steps=1),
        news(2, steps=1, ended=ended),
        news(59, steps=1),
    ]
    replies = office.wait(office.coordinator.report_all(batch, "relay"))
    assert [reply.reason for reply in replies] == ["", "fenced", "", "", ""]
    assert {event.trial for event in office.events if isinstance(event, Reported)} == {0, 2, 59}, (
        "durable by then"
    )
    again = office.wait(office.coordinator.report_all(batch, "relay"))
    assert [reply.reason for reply in again] == ["", "fenced", "fenced", "", ""]
    assert len([event for event in office.events if isinstance(event, Reported)]) == 3


def test_a_message_that_cannot_be_taken_in_ends_its_own_attempt_alone(make: MakeOffice) -> None:
    office = make()
    office.instructions()
    office.report(news(0))
    absurd = Progress(trial=0, attempt=1, ended=Ended(t=0.0, trial=0, attempt=1, outcome="absurd"))  # type: ignore[arg-type]
    one, other = office.wait(office.coordinator.report_all([absurd, news(1, steps=1)], "relay"))
    assert one.reason == "fenced"
    assert one.why
    assert other.reason == ""
    assert [event.trial for event in office.events if isinstance(event, Reported)] == [1]


def test_attempts_are_told_of_their_node_s_relay_once_it_was_heard(make: MakeOffice) -> None:
    office = make()
    office.instructions()
    for trial in range(45):
        office.report(news(trial))
    office.monotonic += 2.0
    ((node, name),) = office.instructions().relay
    assert node == "n1"
    assert office.report(news(0)).relay == ""
    office.wait(office.coordinator.report_all([], name))
    assert office.report(news(0)).relay == name
    assert office.report(news(50, node="n2")).relay == ""

    office.open("driver-1")
    assert office.report(news(0)).relay == "", "the next coordinator has not heard it yet"
    (reply,) = office.wait(office.coordinator.report_all([news(0)], name))
    assert reply.relay == name


def test_the_loss_of_a_task_run_looks_at_what_it_carries_alone(make: MakeOffice) -> None:
    office = make(slots=2, trials=4)
    office.instructions()
    office.report(news(0, steps=1))
    office.report(news(1, steps=1))
    ended = Ended(t=0.0, trial=0, attempt=1, outcome="done", step=1)
    following = office.report(Progress(trial=0, attempt=1, ended=ended, carry_on=True)).next
    assert following is not None
    carried = began_at(Place("node", "n1"), task_run="run-0")
    office.report(Progress(trial=following.trial, attempt=1, began=carried))
    office.open("driver-1")
    office.lost(0, 1, task_run="run-0")
    assert [
        event.trial
        for event in office.events
        if isinstance(event, Ended) and event.outcome == "lost"
    ] == [following.trial]
    assert office.history.lease(1, 1) is not None
