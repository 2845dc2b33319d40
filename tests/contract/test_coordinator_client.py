"""What an attempt relies on when it reports: the CoordinatorClient port, to the actor on Ray and to
a coordinator of this process.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import ray

from regrow.flows.coordinator import actor as actors
from regrow.flows.coordinator.actor import RayCoordinatorClient, start_coordinator
from regrow.flows.coordinator.relay import Relays
from regrow.infra.log.reading import read_events
from regrow.infra.machine.processes import is_running
from regrow.infra.machine.supervised import until
from regrow.infra.ray.cluster import connect, disconnect
from regrow.infra.stores.local import LocalStore
from regrow.search.events import AnyEvent, Began, Ended, Place, Reported, Row
from regrow.search.spec import Spec
from regrow.tasks.ports.messages import CoordinatorClient, CoordinatorGone, Progress
from regrow.tasks.ports.store import Store, Unavailable
from tests.unit.office import Office, began_at, opening_of

SPEC = Spec.parse(
    {
        "name": "contract",
        "trainable": "work.py:train",
        "metric": "score",
        "mode": "max",
        "trials": 1,
        "max_steps": 9,
        "space": {"x": {"uniform": [0, 1]}},
        "schedule": {"median": {"grace_period": 3}},
    }
)
BEGAN = Progress(
    trial=0, attempt=1, began=began_at(Place("node", "n1", "spot-gpu"), task_run="run-0")
)
NEWS = Progress(trial=0, attempt=1, rows=(Row(1, 0.0, {"score": 1.0}), Row(2, 1.0, {"score": 2.0})))


@dataclass
class Line:
    """A client, with the store of its coordinator's log and what may happen to that. The first
    attempt was started.
    """

    client: CoordinatorClient
    store: Store
    restart: Callable[[], None]

    def events(self, kind: type[AnyEvent]) -> list[AnyEvent]:
        return [event for event in read_events(self.store) if isinstance(event, kind)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    connect(cpus=1, env={})
    yield
    disconnect()


@pytest.fixture(params=["ray", "relay", "here"])
def line(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Line]:
    store = LocalStore(tmp_path)
    if request.param == "here":
        office = Office(store=store, **{k: v for k, v in SPEC.to_json().items() if k != "name"})
        office.instructions()
        yield Line(office, store, lambda: office.open("driver-1"))
        office.close()
        return
    request.getfixturevalue("cluster")
    opening = opening_of(SPEC, id=str(uuid4()))
    session = uuid4().hex
    monkeypatch.setattr(actors, "driver_name", lambda: session)
    actor, _ = start_coordinator(store, opening, name=f"contract-{session}")
    ray.get(actor.instructions.remote(5.0))
    relays = Relays(actor)
    if request.param == "relay":
        relays.start([(ray.get_runtime_context().get_node_id(), f"regrow-relay-{session}-n1")])
        relay = await_relay(f"regrow-relay-{session}-n1")
        ray.get(relay.greet.remote())
    yield Line(RayCoordinatorClient(actor), store, lambda: ray.kill(actor, no_restart=False))
    relays.end()
    ray.kill(actor)


def await_relay(name: str) -> Any:
    """The relay of that name, once it is there."""
    for _ in range(2000):
        with suppress(ValueError):
            return ray.get_actor(name)
        time.sleep(0.01)
    raise AssertionError(f"{name} did not come")


def test_news_are_durable_when_it_returns(line: Line) -> None:
    line.client.report(BEGAN)
    (began,) = line.events(Began)
    assert isinstance(began, Began)
    assert (began.node, began.node_id, began.node_type, began.task_run) == (
        "node",
        "n1",
        "spot-gpu",
        "run-0",
    )

    reply = line.client.report(NEWS)
    (reported,) = line.events(Reported)
    assert isinstance(reported, Reported)
    assert reported.rows == list(NEWS.rows)
    assert (reply.reason, reply.until) == ("", 3), "it continues, until a decision is due"


def test_the_same_news_once_more_change_nothing(line: Line) -> None:
    first = [line.client.report(news) for news in (BEGAN, NEWS)]
    there = read_events(line.store)
    assert [line.client.report(news) for news in (BEGAN, NEWS)][-1] == first[-1]
    assert read_events(line.store) == there


def test_who_does_not_hold_the_lease_is_fenced_and_writes_nothing(line: Line) -> None:
    line.client.report(BEGAN)
    there = read_events(line.store)
    assert line.client.report(Progress(trial=0, attempt=2, rows=NEWS.rows)).reason == "fenced"
    assert read_events(line.store) == there


def test_the_last_message_ends_the_lease(line: Line) -> None:
    line.client.report(BEGAN)
    line.client.report(NEWS)
    ended = Ended(t=0.0, trial=0, attempt=1, outcome="done", step=2)
    line.client.report(Progress(trial=0, attempt=1, ended=ended))
    assert [
        (event.outcome, event.by) for event in line.events(Ended) if isinstance(event, Ended)
    ] == [("done", "attempt")]
    assert line.client.report(NEWS).reason == "fenced"


def test_a_coordinator_that_comes_back_answers_as_if_it_had_never_gone(line: Line) -> None:
    line.client.report(BEGAN)
    line.restart()
    assert line.client.report(NEWS).reason == ""
    assert len(line.events(Began)) == len(line.events(Reported)) == 1


def test_one_that_is_gone_for_good_is_said_to_be(cluster: None, tmp_path: Path) -> None:
    opening = opening_of(SPEC, id=str(uuid4()))
    actor, _ = start_coordinator(LocalStore(tmp_path), opening, name=f"contract-{uuid4()}")
    client = RayCoordinatorClient(actor)
    ray.get(actor.instructions.remote(5.0))
    client.report(BEGAN)
    process = ray.get(pid_of(actor))
    ray.kill(actor)
    assert until(lambda: not is_running(process), seconds=60)  # the call returns before its end
    with pytest.raises(CoordinatorGone):
        client.report(NEWS)


@pytest.mark.parametrize("line", ["relay"], indirect=True)
def test_an_attempt_whose_relay_dies_speaks_for_itself_and_nothing_is_lost_or_doubled(
    line: Line,
) -> None:
    name = line.client.report(BEGAN).relay
    assert name
    line.client.report(Progress(trial=0, attempt=1))
    relay = ray.get_actor(name)
    assert isinstance(line.client, RayCoordinatorClient)
    coordinator, process = (ray.get(pid_of(actor)) for actor in (line.client._actor, relay))

    os.kill(coordinator, signal.SIGSTOP)
    said = threading.Thread(target=line.client.report, args=(NEWS,))
    said.start()
    ray.get(relay.answers.remote())  # the news came before that
    os.kill(process, signal.SIGKILL)
    os.kill(coordinator, signal.SIGCONT)
    said.join(60)
    assert not said.is_alive()
    (reported,) = line.events(Reported)
    assert isinstance(reported, Reported)
    assert reported.rows == list(NEWS.rows)

    more = Progress(trial=0, attempt=1, rows=(Row(3, 2.0, {"score": 3.0}),))
    assert line.client.report(more).reason == ""
    assert len(line.events(Reported)) == 2


@pytest.mark.parametrize("line", ["relay"], indirect=True)
def test_an_attempt_whose_relay_is_stuck_speaks_for_itself(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors, "SILENT_SECONDS", 0.1)
    relay = ray.get_actor(line.client.report(BEGAN).relay)
    process = ray.get(pid_of(relay))
    os.kill(process, signal.SIGSTOP)
    assert line.client.report(NEWS).reason == ""
    assert len(line.events(Reported)) == 1
    os.kill(process, signal.SIGCONT)
    ray.get(relay.answers.remote())
    assert len(line.events(Reported)) == 1, "what it still delivers is known already"


def pid_of(actor: Any) -> Any:
    """A reference to the number of an actor's process."""
    return actor.__ray_call__.remote(lambda _: os.getpid())


class Gated(LocalStore):
    """One whose log is out of reach while a file is there."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Gated, (Path(str(self)),)

    def create(self, key: str, data: bytes | Path) -> None:
        """See Store."""
        if key.startswith("log/") and Path(f"{self}.gate").exists():
            raise Unavailable(key, "the gate is shut")
        super().create(key, data)


def test_however_many_wait_for_a_log_out_of_reach_the_driver_is_answered(
    cluster: None, tmp_path: Path
) -> None:
    store, gate = Gated(tmp_path / "store"), tmp_path / "store.gate"
    spec = Spec.parse({**SPEC.to_json(), "name": "contract", "trials": 1_100, "concurrency": 1_100})
    opening = opening_of(spec, id=str(uuid4()), slots=1_100)
    actor, _ = start_coordinator(store, opening, name=f"contract-{uuid4()}")
    submitted = ray.get(actor.instructions.remote(5.0)).submit
    gate.touch()
    began = [
        actor.report.remote(
            Progress(
                trial=one.trial,
                attempt=1,
                began=began_at(Place("node", "n1"), task_run=f"run-{one.trial}"),
            )
        )
        for one in submitted
    ]
    assert len(began) == 1_100
    troubles = (ray.get(actor.instructions.remote(0.0), timeout=30).trouble for _ in range(100))
    assert "the gate is shut" in next(trouble for trouble in troubles if trouble is not None)
    assert not ray.wait(began, timeout=0)[0]
    gate.unlink()
    assert {reply.reason for reply in ray.get(began, timeout=60)} == {""}
    ray.kill(actor)
