"""Agents as the log has them: who came and left, who leads, and that no step is begun on a machine
that ends before it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from regrow.flows.coordinator.present import NODE_LOST, SAVE_SECONDS, PresentAgents
from regrow.infra.state.driver_lock import driving
from regrow.infra.state.places import Places
from regrow.search.events import Joined, Left, Opened, Place, Row
from regrow.search.history import History
from regrow.search.lifecycle import IllegalMove
from regrow.show.views import agents
from regrow.tasks.errors import UserError
from regrow.tasks.ports.messages import Progress
from tests.unit.exported import regrow
from tests.unit.office import Office, began_at, offices
from tests.unit.simulated import created


@pytest.fixture
def office() -> Iterator[Office]:
    with offices(schedule="fifo", trials=6, max_steps=9, slots=1) as make:
        yield make()


def node(agent: str, *, node_id: str = "n1", ends: float | None = None) -> Joined:
    return Joined(
        t=0.0, agent=agent, host="host", node_id=node_id, cpus=2.0, gpus=0.0, market="", ends=ends
    )


def see(office: Office, *nodes: Joined, **left: str) -> tuple[tuple[str, str], ...]:
    """The driver sees these agents; what it is to drain."""
    present = PresentAgents(nodes=nodes, left=left)
    return office.wait(office.coordinator.instructions(0.0, None, present)).drain


def told(office: Office) -> list[tuple[str, str]]:
    return [
        (e.agent, e.why if isinstance(e, Left) else e.node_id)
        for e in office.events
        if isinstance(e, Joined | Left)
    ]


def test_arrivals_and_departures_are_recorded_once(office: Office) -> None:
    see(office, node("a"), node("b", node_id="n2"))
    see(office, node("a"), node("b", node_id="n2"))
    assert told(office) == [("a", "n1"), ("b", "n2")]
    see(office, node("a"))
    assert len(told(office)) == 2, "its node may be late; why it left is not known yet"
    see(office, node("a"), b="it received SIGTERM")
    see(office, node("a"), b="it received SIGTERM")
    assert told(office)[2:] == [("b", "it received SIGTERM")]
    see(office, node("a"), node("b", node_id="n3"), b="it received SIGTERM")
    assert told(office)[3:] == [("b", "n3")], "it is back"
    see(office, node("a"), node("b", node_id="n4"))
    assert told(office)[4:] == [("b", NODE_LOST), ("b", "n4")], "it has started another node"
    found = agents.view(office.history, alive=True)
    assert [(one["agent"], one["state"]) for one in found] == [("a", "works"), ("b", "works")]


def test_a_new_leader_records_those_that_left_while_nobody_led(office: Office) -> None:
    see(office, node("a"), node("b", node_id="n2"))
    office.open("driver-2")
    assert [one["state"] for one in agents.view(office.history, alive=True)] == ["away", "away"]
    see(office, node("b", node_id="m1"), a="it was lost")
    assert told(office)[2:] == [("a", "it was lost"), ("b", "m1")]


def test_no_step_is_begun_on_a_machine_that_ends_before_it(office: Office) -> None:
    now = time.time()
    (one,) = office.instructions().submit
    began = began_at(Place("node", "n1"), task_run="run-0", restored=0)
    rows = (Row(1, now + 40.0, {"score": 1.0}), Row(2, now + 80.0, {"score": 1.0}))
    office.report(Progress(trial=0, attempt=1, began=began, rows=rows))
    steps = 2 * 40.0 + SAVE_SECONDS
    assert see(office, node("a", ends=now + steps + 30.0)) == ()
    assert see(office, node("a", ends=now + steps - 1.0)) == (("n1", "the time of agent a ends"),)
    reply = office.report(Progress(trial=0, attempt=1))
    assert reply.reason == "preempted"
    assert one.trial == 0


def test_the_leaders_are_those_of_the_sessions() -> None:
    history = History()
    history.apply(created(trials=1))
    for t, agent in ((1.0, "a"), (2.0, "b"), (3.0, "b")):
        history.apply(Opened(t=t, by="driver", driver=f"d{t}", slots=1, trials=1, agent=agent))
        history.apply(Joined(t=t, agent=agent, host="h", node_id=f"n{t}", cpus=1.0, gpus=0.0))
    assert list(agents.line(history, alive=True)) == ["1 agent; b leads; the lead changed 1 time"]
    with pytest.raises(IllegalMove, match="be joined by agent b twice"):
        history.apply(Joined(t=4.0, agent="b", host="h", node_id="n3.0", cpus=1.0, gpus=0.0))
    with pytest.raises(IllegalMove, match="be left by agent c"):
        history.apply(Left(t=4.0, agent="c", why=""))


def test_to_join_does_not_end_a_driver_that_is_no_agent(unfinished_root: Path) -> None:
    places = Places.at(str(unfinished_root)).writable()
    (name,) = places.experiments()
    with driving(places, name):
        refused = regrow("join", name, "--state", unfinished_root)
    assert isinstance(refused.exception, UserError)
    assert f"experiment {name!r} is running already" in str(refused.exception)
