"""The watcher of triggers with a real Prefect server: one flow run for each event, whatever kills
the watcher and when.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
from prefect.client.schemas.objects import FlowRun
from prefect.events import Event, Resource

from regrow.apps.station import worker
from regrow.apps.station.triggers.aside import found, lines
from regrow.apps.station.triggers.events import EventsTrigger
from regrow.apps.station.triggers.inbox import files, folder_of, put
from regrow.apps.station.triggers.trigger import GIVEN
from regrow.infra.prefect.deployments import POOL, ensure_pool, listed
from regrow.infra.prefect.server import CLIENT_ENVIRONMENT, PrefectServerHandle, station_server
from regrow.infra.state.places import Places
from regrow.infra.stores.s3 import open_s3
from tests.unit.test_trigger_endings import session

SECONDS = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServerHandle]:
    """A station's server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PREFECT_API_URL", raising=False)
        with station_server(tmp_path_factory.mktemp("prefect")) as handle:
            for name, value in handle.server.environment().items():
                patch.setenv(name, value)
            yield handle


@pytest.fixture
def client(server: PrefectServerHandle) -> Iterator[SyncPrefectClient]:
    from regrow.infra.prefect.private import reread_settings

    reread_settings()
    with get_client(sync_client=True) as made:
        yield made


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places.at(str(tmp_path / "state")).writable()


@pytest.fixture(autouse=True)
def _schedules_are_the_tests_own(client: SyncPrefectClient) -> Iterator[None]:
    yield
    for one in client.read_deployments():
        client.delete_deployment(one.id)


def deployment(client: SyncPrefectClient, when: Mapping[str, Any], name: str = "") -> UUID:
    """A schedule that waits for something; nobody runs its runs."""
    flow_id = client.create_flow_from_name("regrow")
    return client.create_deployment(
        flow_id,
        name or f"sweep-{uuid4().hex}",
        parameters={"name": "sweep", "when": dict(when)},
        tags=["regrow"],
        enforce_parameter_schema=False,
        parameter_openapi_schema={},
    )


def runs(client: SyncPrefectClient, deployment_id: UUID) -> list[FlowRun]:
    """All flow runs of a schedule."""
    wanted = DeploymentFilter(id=DeploymentFilterId(any_=[deployment_id]))
    return client.read_flow_runs(deployment_filter=wanted, limit=200)


def events_of(client: SyncPrefectClient, deployment_id: UUID) -> list[dict[str, Any]]:
    return [run.parameters["event"] for run in runs(client, deployment_id)]


def watcher(places: Places) -> subprocess.Popen[bytes]:
    log = (Path(places.root) / "watcher.log").open("ab")
    with log:
        return subprocess.Popen(
            [sys.executable, "-m", "regrow.apps.station.triggers", "--state", places.root],
            env={**os.environ, **CLIENT_ENVIRONMENT},
            stdout=log,
            stderr=log,
        )


@contextmanager
def watching(places: Places) -> Iterator[None]:
    process = watcher(places)
    try:
        yield
    finally:
        process.terminate()
        assert process.wait(20) == 0, (Path(places.root) / "watcher.log").read_text()


def until(holds: Callable[[], bool], what: str, places: Places) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, (
            f"{what}; the watcher said: {(Path(places.root) / 'watcher.log').read_text()}"
        )
        time.sleep(0.1)


def journal_of(places: Places) -> bytes:
    file = folder_of(places) / "journal.jsonl"
    return file.read_bytes() if file.exists() else b""


def test_each_kind_of_trigger_starts_one_run_that_knows_why_and_a_second_watcher_is_refused(
    client: SyncPrefectClient, places: Places, tmp_path: Path, s3: str
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "old.csv").write_text("1")
    open_s3(s3).create("in/old.parquet", b"1")
    time.sleep(1.1)  # S3 tells times of change in whole seconds
    kinds: dict[str, dict[str, Any]] = {
        "files": {"files": str(data / "*.csv"), "settle": 1},
        "objects": {"files": f"{s3}/in/*.parquet", "settle": 0},
        "after": {"after": "etl"},
        "event": {"event": "shop.order.*"},
        "hook": {"hook": True},
        "nothing": {"each": "new"},
    }
    made = {kind: deployment(client, when, name=f"a-{kind}") for kind, when in kinds.items()}
    with watching(places):
        until(
            lambda: journal_of(places).count(b'"begun":true') == 2,
            "the triggers have not begun",
            places,
        )
        (data / "new.csv").write_text("12")
        (data / "other.csv").write_text("123")
        (data / "other.txt").write_text("123")
        open_s3(s3).create("in/new.parquet", b"1234")
        session(places, "etl", time.time())
        happened = Event(
            event="shop.order.paid",
            resource=Resource({"prefect.resource.id": "shop.1"}),
            payload={"sum": 7},
        )
        other = Event(event="shop.visit", resource=Resource({"prefect.resource.id": "shop.1"}))
        client.request(
            "POST",
            "/events",
            json=[one.model_dump(mode="json") for one in (happened, other, happened)],
        )
        put(places, "a-hook", {"n": 1}, "delivery")
        expected = [one for one in made if one != "nothing"]
        until(
            lambda: all(runs(client, made[one]) for one in expected),
            "not every trigger started a run",
            places,
        )
    with watching(places):  # another one finds nothing new
        put(places, "a-hook", {"n": 2}, "delivery")
        put(places, "a-hook", {"n": 3}, "another delivery")
        until(
            lambda: len(runs(client, made["hook"])) == 2,
            "the second delivery started nothing",
            places,
        )
        assert watcher(places).wait(60) == 2  # the first one is surely there by now
    assert "watched by another process already" in (Path(places.root) / "watcher.log").read_text()
    found = {kind: events_of(client, made[kind]) for kind in made}
    assert {kind: len(events) for kind, events in found.items()} == {
        "files": 1,
        "objects": 1,
        "after": 1,
        "event": 1,
        "hook": 2,
        "nothing": 0,
    }
    assert [(f["path"], f["size"]) for f in found["files"][0]["files"]] == [
        (str(data / "new.csv"), 2),
        (str(data / "other.csv"), 3),
    ]
    assert [(f["path"], f["size"]) for f in found["objects"][0]["files"]] == [
        (f"{s3}/in/new.parquet", 4)
    ]
    assert (found["after"][0]["kind"], found["after"][0]["experiment"]) == ("after", "etl")
    told = found["event"][0]
    assert (told["id"], told["name"], told["payload"]) == (
        str(happened.id),
        "shop.order.paid",
        {"sum": 7},
    )
    assert told["resource"] == {"prefect.resource.id": "shop.1"}
    assert sorted(event["payload"]["n"] for event in found["hook"]) == [1, 3]


@pytest.mark.nightly
def test_a_watcher_that_is_killed_at_any_moment_makes_one_run_of_each_event(
    client: SyncPrefectClient, places: Places, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    hooked = deployment(client, {"hook": True}, name="b-hook")
    waits = deployment(client, {"files": f"{data}/*", "settle": 0}, name="b-files")
    with watching(places):
        until(lambda: b'"begun":true' in journal_of(places), "the trigger has not begun", places)
    chance = random.Random(11)
    sent: list[str] = []
    caught = 0
    for turn in range(6):
        (data / f"{turn}.csv").write_text("1")
        sent += [put(places, "b-hook", {"n": n}, f"{turn}/{n}") for n in range(10)]
        journaled = len(journal_of(places))
        process = watcher(places)
        try:
            until(lambda: len(journal_of(places)) > journaled, "nothing was journaled", places)  # noqa: B023
            # Every second turn at any moment, else where the server has made a run of which the
            # journal does not know.
            while turn % 2 and len(runs(client, hooked)) < len(sent):
                process.send_signal(signal.SIGSTOP)
                time.sleep(0.05)
                if len(runs(client, hooked) + runs(client, waits)) > journal_of(places).count(
                    b'"did":"made"'
                ):
                    caught += 1
                    break
                process.send_signal(signal.SIGCONT)
                time.sleep(chance.random() * 0.02)
            time.sleep(chance.random() * 0.3 * (turn % 2 == 0))
        finally:
            process.kill()
            process.wait()
    assert caught, "no kill came between a run and its record"
    with watching(places):
        until(lambda: len(runs(client, hooked)) >= len(sent), "runs are missing", places)
        until(lambda: not files(places), "the inbox is not empty", places)
        until(
            lambda: (
                {f["path"] for event in events_of(client, waits) for f in event["files"]}
                == {str(p) for p in data.iterdir()}
            ),
            "files are missing",
            places,
        )
    assert Counter(event["id"] for event in events_of(client, hooked)) == Counter(sent)
    paths = Counter(f["path"] for event in events_of(client, waits) for f in event["files"])
    assert paths == Counter(str(path) for path in data.iterdir())


def test_a_paused_schedule_is_not_started_and_a_removed_one_is_forgotten(
    client: SyncPrefectClient, places: Places
) -> None:
    paused, other = (
        deployment(client, {"hook": True}, name=name) for name in ("c-paused", "c-other")
    )
    client.pause_deployment(paused)
    put(places, "c-paused", None, None)
    put(places, "c-other", None, None)
    with watching(places):
        until(
            lambda: not files(places) and len(runs(client, other)) == 1,
            "the other one was not started",
            places,
        )
        assert runs(client, paused) == []
        client.delete_deployment(other)
        until(lambda: b'"did":"forget"' in journal_of(places), "it is remembered", places)


def test_events_that_come_late_or_in_crowds_are_found_once_also_by_another_watcher(
    client: SyncPrefectClient,
) -> None:
    now, name = time.time(), f"crowd.{uuid4().hex}"

    def told(count: int, ago: float, about: str = "x") -> list[str]:
        resource = Resource({"prefect.resource.id": about})
        occurred: Any = datetime.fromtimestamp(now - ago, UTC)
        made = [
            Event(event=f"{name}.came", resource=resource, occurred=occurred) for _ in range(count)
        ]
        client.request("POST", "/events", json=[one.model_dump(mode="json") for one in made])
        return [str(one.id) for one in made]

    def found(trigger: EventsTrigger, count: int) -> list[str]:
        ids: list[str] = []
        deadline = time.monotonic() + SECONDS
        # the server stores them a moment later
        while len(ids) < count and time.monotonic() < deadline:
            step = trigger.poll(dict(cursor))
            for key in step.drop if step else ():
                del cursor[key]
            cursor.update(step.put if step else {})
            ids += [event["id"] for event in step.events] if step else []
        return ids

    cursor: dict[str, Any] = {GIVEN: {"since": now - 5000}, "at": now}
    told(1, ago=5100)  # before the schedule was made
    crowd = told(120, ago=0)
    trigger = EventsTrigger(client, f"{name}.*", "a", "7")
    assert sorted(found(trigger, len(crowd))) == sorted(crowd)
    late = told(2, ago=1800)
    assert found(EventsTrigger(client, f"{name}.*", "a", "7"), 2) in (late, late[::-1])
    for own in ("prefect.deployment.7", "regrow.experiment.a", "regrow.experiment.a-2026-11-29T02"):
        told(1, ago=0, about=own)  # what a run reports would start the next one
    others = told(1, ago=0, about="regrow.experiment.ab")
    assert found(EventsTrigger(client, f"{name}.*", "a", "7"), 1) == others


def test_two_schedules_that_start_each_other_by_events_come_to_an_end(
    client: SyncPrefectClient, places: Places
) -> None:
    both = [
        deployment(client, {"event": "prefect.flow-run.Scheduled"}, name=name)
        for name in ("c-one", "c-two")
    ]
    with watching(places):
        until(
            lambda: all(str(one).encode() in journal_of(places) for one in both),
            "the triggers have not begun",
            places,
        )
        client.create_flow_run_from_deployment(both[0])
        until(lambda: bool(found(places)), "the circle is not noticed", places)
    assert all(one.reason.endswith("c-two -> c-one -> c-two") for one in found(places))
    assert [len(runs(client, one)) for one in both] == [2, 1]


def test_a_server_that_is_killed_meanwhile_is_waited_for(
    client: SyncPrefectClient, places: Places, server: PrefectServerHandle
) -> None:
    hooked = deployment(client, {"hook": True}, name="d-hook")
    with watching(places):
        sent = [put(places, "d-hook", None, None) for _ in range(5)]
        until(lambda: len(runs(client, hooked)) == len(sent), "the first were not started", places)
        sent += [put(places, "d-hook", None, None) for _ in range(20)]
        until(lambda: len(runs(client, hooked)) > 5, "the next were not started", places)
        server.replace()
        server.wait()
        until(lambda: len(runs(client, hooked)) >= len(sent), "not all were started", places)
    assert Counter(event["id"] for event in events_of(client, hooked)) == Counter(sent)


def test_an_event_that_cannot_be_handled_is_set_aside_and_holds_up_none_after_it(
    client: SyncPrefectClient, places: Places, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    hooked = deployment(client, {"hook": True}, name="e-hook")
    waits = deployment(client, {"files": f"{data}/*", "settle": 0}, name="e-files")
    deployment(client, {"files": 7, "settle": "soon", "after": ["x"]}, name="e-nonsense")
    put(places, "e-hook", {"text": "\ud800"}, "lone")
    put(places, "e-hook", {"number": 1 << 70}, "large")
    inbox = folder_of(places) / "inbox"
    (inbox / "folder.json").mkdir()
    (inbox / "deep.json").write_text("[" * 100_000)
    (inbox / "without.json").write_text(json.dumps({"name": "e-hook", "event": {}}))
    with watching(places):
        until(lambda: b'"begun":true' in journal_of(places), "the trigger has not begun", places)
        Path(os.fsdecode(os.fsencode(data) + b"/\xff.csv")).write_text("1")
        (data / "loop.csv").symlink_to(data / "loop.csv")
        (data / "line\nend.csv").write_text("1")
        put(places, "e-hook", {"n": 1}, "good")
        until(
            lambda: bool(runs(client, hooked)) and bool(runs(client, waits)),
            "what came after it starts nothing",
            places,
        )
        until(lambda: len(found(places)) == 7, "not all are set aside", places)
    assert [event["payload"] for event in events_of(client, hooked)] == [{"n": 1}]
    assert [
        [Path(f["path"]).name for f in event["files"]] for event in events_of(client, waits)
    ] == [["line\nend.csv"]]
    reasons = {one.what: one.reason for one in found(places)}
    with watching(places):  # nor is anything of it tried again by another one
        put(places, "e-hook", {"n": 2}, None)
        until(lambda: len(runs(client, hooked)) == 2, "another watcher is held up", places)
    assert {one.what: one.reason for one in found(places)} == reasons
    told = "\n".join(lines(places, ["e-files"]))
    assert "e-files: set aside " in told
    assert "\\udcff.csv: its name is not UTF-8" in told


def test_a_flow_run_that_the_server_cannot_tell_of_hides_no_other(
    client: SyncPrefectClient,
) -> None:
    large, good = deployment(client, {"overlap": 7, "retries_per_day": "x"}), deployment(client, {})
    ensure_pool(client)
    for one in (large, good):
        client.update_deployment(one, DeploymentUpdate(work_pool_name=POOL))
    for one, number in ((good, 1), (large, 1 << 70), (large, 2), (good, 3)):
        with suppress(httpx.HTTPStatusError):  # whose answer it cannot write either
            client.create_flow_run_from_deployment(one, parameters={"n": number})
    found = worker._due(client)
    assert [run.parameters["n"] for run in found if run.deployment_id in (large, good)] == [3, 2, 1]
    assert {one.id: len(one.runs) for one in listed(client) if one.id in (large, good)} == {
        large: 0,
        good: 2,
    }
    assert {worker._as_due(run, client.read_deployment(large)).overlap for run in found} == {"skip"}
