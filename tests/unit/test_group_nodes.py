"""A group of workers lies on several nodes: what is known of them, what happens where one of them
goes, and what they cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from regrow.flows.coordinator.capacity import fits
from regrow.search.events import (
    AnyEvent,
    Began,
    Created,
    Ended,
    Opened,
    Place,
    Proposed,
    Reported,
    Row,
    Started,
    decode,
    encode,
)
from regrow.search.history import History, cost, waste
from regrow.show.live.board import Board
from regrow.show.live.grid import Signs
from regrow.show.live.sections import compose
from regrow.tasks.ports.messages import Job, Progress
from tests.unit.office import Office, began_at, offices
from tests.unit.simulated import SPEC

HOUR = 3600.0


@pytest.fixture
def office() -> Iterator[Office]:
    with offices(
        schedule="fifo",
        trials=3,
        slots=6,
        lease=10,
        resources={"workers": 3},
        retries={"infrastructure": 0},
    ) as make:
        office = make()
        office.instructions()
        arrive(office, 0, "n1", "n2", "n1")
        arrive(office, 1, "n3", "n3", "n4")
        yield office


def arrive(office: Office, trial: int, *nodes: str) -> None:
    own, *others = (Place(f"host-{node}", node) for node in nodes)
    came = began_at(own, others=others, task_run=f"run-{trial}")
    assert office.report(Progress(trial=trial, attempt=1, began=came)).reason == ""


def say(office: Office, trial: int, **news: Any) -> str:
    return office.report(Progress(trial=trial, attempt=1, **news)).reason


def test_all_nodes_of_a_group_are_known(office: Office) -> None:
    assert office.instructions().nodes == ("n1", "n2", "n3", "n4")
    first, second = (trial.attempts[0] for trial in office.history.trials[:2])
    assert (first.nodes, first.where) == (("n1", "n2"), "host-n1 x2, host-n2")
    assert (second.nodes, second.where) == (("n3", "n4"), "host-n3 x2, host-n4")
    (began, _) = (event for event in office.events if isinstance(event, Began))
    assert began.others == [Place("host-n2", "n2"), Place("host-n1", "n1")]


def test_a_group_is_lost_with_any_of_its_nodes(office: Office) -> None:
    office.wait(office.coordinator.node_lost("n4"))
    told = office.instructions()
    assert told.forget == ((1, 1),)
    assert [(a.trial, a.attempt, a.width) for a in told.submit] == [(1, 2, 3)]
    assert (
        "attempt 1 was lost on host-n3 x2, host-n4 (the node was lost)"
        in told.submit[0].explanation
    )
    assert say(office, 0) == ""


def test_a_group_leaves_any_node_that_is_about_to_go_away(office: Office) -> None:
    assert say(office, 0, draining="AWS takes the node back", draining_node="n2") == "preempted"
    assert office.instructions().drain == (("n2", "AWS takes the node back"),)
    assert say(office, 1) == ""
    office.wait(office.coordinator.mark_draining("n4", "drained"))
    assert say(office, 1) == "preempted"


def test_without_a_node_it_is_that_of_the_first_worker_that_goes(office: Office) -> None:
    say(office, 1, draining="it is taken back")
    assert office.instructions().drain == (("n3", "it is taken back"),)


def test_no_other_trial_goes_on_in_the_place_of_a_group(office: Office) -> None:
    ended = Ended(t=0.0, trial=0, attempt=1, outcome="done", step=1)
    rows = (Row(1, 0.0, {"score": 1.0}),)
    answer = office.report(Progress(trial=0, attempt=1, rows=rows, ended=ended, carry_on=True))
    assert answer.next is None
    assert [a.trial for a in office.instructions().submit] == [2]
    history = office.history
    assert not fits(history, [(2, 1)], history.trials[0].attempts[0])


def test_what_attempts_share_says_that_they_are_groups(office: Office) -> None:
    resources = office.job.spec.resources
    assert (resources.grouped, resources.reduce) == (True, "rank0")
    spec = office.spec.model_copy(
        update={"resources": office.spec.resources.model_copy(update={"reduce": "mean"})}
    )
    assert Job.of(spec, folder=None).spec.resources.reduce == "mean"


# ---- cost


def events(places: Sequence[Place], **spec: object) -> Iterator[AnyEvent]:
    """One trial on these places for an hour, of which the second half is for nothing."""
    own, *others = places
    resources = {"workers": len(places)}
    changed = {
        **SPEC,
        "schedule": "fifo",
        "trials": 1,
        "max_steps": 2,
        "resources": resources,
        **spec,
    }
    yield Created(t=0.0, id="00000000-0000-0000-0000-000000000001", spec=changed)
    yield Opened(t=0.0, by="driver", driver="d", slots=len(places), trials=1)
    yield Proposed(t=0.0, trial=0, config={"x": 0.5})
    yield Started(t=0.0, trial=0, attempt=1, width=len(places))
    yield Began(
        t=0.0,
        trial=0,
        attempt=1,
        node=own.node,
        node_id=own.node_id,
        price=own.price,
        share=own.share,
        others=others,
    )
    yield Reported(t=HOUR / 2, trial=0, attempt=1, rows=[Row(1, HOUR / 2, {"score": 0.1})])
    yield Ended(t=HOUR, trial=0, attempt=1, outcome="lost", cause="preempted", step=1, by="driver")


def folded(*places: Place, **spec: object) -> History:
    history = History()
    for event in events(places, **spec):
        assert decode(encode(event)) == event
        history.apply(event)
    return history


A, B, FREE = (
    Place("a", "a", price=4.0, share=0.5),
    Place("b", "b", price=1.0, share=0.25),
    Place("c", "c"),
)


@pytest.mark.parametrize(
    ("places", "usual", "money"),
    [
        ((A, A), None, 4.0),
        ((A, B), None, 2.25),
        ((A, B, B, B), None, 2.75),
        ((A, FREE), None, 2.0),
        ((FREE, B), 3.0, 3.25),
        ((FREE, FREE), 3.0, 6.0),
        ((A, B), 3.0, 2.25),
    ],
)
def test_a_group_costs_its_part_of_each_of_its_nodes(
    places: tuple[Place, ...], usual: float | None, money: float
) -> None:
    history = folded(*places, **({} if usual is None else {"price_per_hour": usual}))
    spent = cost.of(history, history.t_last)
    assert spent.hours == len(places)
    assert spent.money == pytest.approx(money)
    assert cost.of_trial(history.trials[0], history.t_last) == pytest.approx(money)
    assert waste.money(history) == pytest.approx(money / 2)
    assert waste.of_all(history)["preempted"].seconds == pytest.approx(HOUR / 2 * len(places))


def test_where_nobody_tells_a_price_there_is_none() -> None:
    history = folded(FREE, FREE)
    assert cost.of(history, history.t_last).money is None
    assert history.trials[0].attempts[0].node_price is None


def test_what_its_nodes_cost_as_a_whole_counts_each_once() -> None:
    assert folded(A, A, B, FREE).trials[0].attempts[0].node_price == 5.0


def test_people_see_on_which_nodes_it_runs() -> None:
    board = Board()
    for event in list(events((A, A, B)))[:-1]:
        board.apply(event)
    drawn = "\n".join(
        line.plain for line in compose(board, width=160, height=40, now=HOUR, signs=Signs())
    )
    assert "a x2, b" in drawn
