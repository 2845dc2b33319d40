"""Schedules on a real Prefect server: made, listed, changed, paused, deleted; and what their runs
become.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.client.schemas.objects import FlowRun
from prefect.states import Completed

from regrow.cli.schedule import schedule, schedules
from regrow.flows.recurring import resolved
from regrow.infra.prefect import deployments
from regrow.infra.prefect.private import reread_settings
from regrow.infra.prefect.server import PrefectServer, station_server
from regrow.infra.state import served
from regrow.infra.state.places import Places
from regrow.search.errors import SpecError
from regrow.search.events import Began, Opened, Proposed, Started
from regrow.search.recurrence import run_name, run_seed
from regrow.search.spec import Spec
from regrow.tasks.errors import UserError
from regrow.tasks.process.variables import within
from tests.system.conftest import Desk, desk_in
from tests.unit.kept import Kept

TRAIN = """
def train(trial):
    for step in trial.steps():
        trial.report({"score": trial.config["x"], "seen": len(trial.event["files"])})
"""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A desk for all tests of this module, in whose folder this process works, too."""
    with (
        desk_in(tmp_path_factory.mktemp("schedules")) as found,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name in ("PREFECT_API_URL", "REGROW_STATE"):
            patch.delenv(name, raising=False)
        patch.chdir(found.folder)
        patch.setenv("PREFECT_HOME", str(found.folder / "prefect"))
        yield found
    reread_settings()


@pytest.fixture(scope="module")
def server(desk: Desk) -> Iterator[PrefectServer]:
    """A station's Prefect server for the desk's state root."""
    home = Places.at(None).writable().prefect_home
    home.mkdir()
    with station_server(home) as handle:
        yield handle.server


def listed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """What `regrow schedules --json` prints."""
    capsys.readouterr()
    schedules(as_json=True)
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def due(server: PrefectServer, enough: Callable[[list[FlowRun]], bool]) -> list[datetime]:
    """The times of the runs that the server's scheduler has made, once there are `enough`."""
    deadline = time.monotonic() + 60
    with client_of(server) as client:
        while not enough(runs := client.read_flow_runs(limit=200)):
            assert time.monotonic() < deadline, runs
            time.sleep(0.2)
    return times(runs)


def times(runs: list[FlowRun]) -> list[datetime]:
    return sorted(run.expected_start_time for run in runs if run.expected_start_time is not None)


def client_of(server: PrefectServer) -> SyncPrefectClient:
    with within(server.environment()):
        reread_settings()
        return get_client(sync_client=True)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, "does not say when"),
        ({"cron": "0 2 * *"}, "--cron: .*has no times"),
        ({"rrule": "FREQ=SOMETIMES"}, "--rrule: .*has no times"),
        (
            {"cron": "0 2 * * *", "timezone": "Europe/Zurch"},
            "--timezone: .*did you mean 'Europe/Zurich'",
        ),
        ({"every": "soon"}, '--every: "soon"'),
        ({"cron": "0 2 * * *", "every": "2h"}, "--every: .*stands beside cron"),
        ({"cron": "0 2 * * *", "each": "continue", "keep": 2}, "--keep: .*each: new"),
        ({"on_files": ""}, '--on-files: "": is empty'),
        ({"on_files": "data/**.csv"}, r"--on-files: .*has \*\* beside .*write data/\*\*/"),
        ({"on_files": "s3://bucket/x/**.csv"}, r"--on-files: .*has \*\* beside"),
        ({"on_files": "["}, r"--on-files: .*has a \[ without a \]"),
        ({"on_files": "x[9-0]"}, "--on-files: .*has a range without any character"),
        ({"on_event": "*"}, '--on-event: "\\*": is also what its own runs report'),
        ({"on_event": "prefect.*"}, "--on-event: .*write another name"),
        ({"on_event": "prefect.artifact.updated"}, "--on-event: .*write another name"),
        ({"on_files": "s3://bucket-alone"}, "--on-files: .*cannot be listed: .*is a bucket"),
    ],
)
def test_what_is_wrong_is_told_in_a_line_that_names_the_option(
    desk: Desk, given: dict[str, Any], error: str
) -> None:
    file = desk.write("digits")
    with pytest.raises((UserError, SpecError), match=error):
        schedule(file, **given)
    assert not (desk.folder / ".regrow/.services/prefect/server.json").exists(), (
        "no server was started for it"
    )


def test_a_schedule_is_made_listed_changed_paused_and_deleted(
    server: PrefectServer, desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    file = desk.write(
        "digits", when={"each": "new", "keep": 3, "every": "6h"}, serve={"gate": "score > 0.5"}
    )
    schedule(file, every="1min", hook=True)
    told = capsys.readouterr().out
    assert "serve: the station serves the newest experiment of digits" in told
    assert served.names(Places.at(None)) == ["digits"]
    assert "every 60 s" in told
    secrets = desk.folder / ".regrow/.services/station/hooks.json"
    (secret,) = json.loads(secrets.read_text()).values()
    assert (secrets.stat().st_mode & 0o777, str(secrets) in told, secret in told) == (
        0o600,
        True,
        False,
    )
    assert "regrow up" not in told, "there is a station"
    minutes = due(server, lambda runs: len(runs) >= 3)
    assert {at.second for at in minutes} == {0}, "counted from midnight"
    assert (minutes[1] - minutes[0]).total_seconds() == 60

    schedule(file, cron="0 2 * * *", timezone="Europe/Zurich", hook=True)
    assert "in place of" in capsys.readouterr().out
    zone = ZoneInfo("Europe/Zurich")
    nights = due(
        server,
        lambda runs: len(runs) >= 3 and {at.astimezone(zone).hour for at in times(runs)} == {2},
    )
    assert {at.astimezone(zone).strftime("%H:%M:%S") for at in nights} == {"02:00:00"}
    (one,) = listed(capsys)
    assert one["name"] == "digits"
    assert one["words"] == "0 2 * * * Europe/Zurich, on POST /hooks/digits"
    assert [datetime.fromisoformat(at) for at in one["next"]] == [
        at.astimezone(zone) for at in nights[:3]
    ]
    assert (
        one["when"] | {"timezone": "Europe/Zurich", "each": "new", "keep": 3, "overlap": "skip"}
        == one["when"]
    )
    assert one["spec"] == str(file)

    schedule(desk.write("report"), after="digits")
    with pytest.raises(SpecError, match=r"--after: .*digits after report after digits"):
        schedule(file, after="report")
    capsys.readouterr()
    schedules(delete="report")

    schedules(pause="digits")
    schedule(file, cron="0 3 * * *")
    assert "paused" in capsys.readouterr().out, "a new schedule does not switch it on"
    (one,) = listed(capsys)
    assert (one["paused"], one["next"]) == (True, [])
    schedules(resume="digits")
    assert listed(capsys)[0]["next"][0].endswith("03:00:00+00:00")
    with client_of(server) as client:
        known = deployments.known(client, "digits")
        changed = DeploymentUpdate(
            parameters={**known.parameters, "when": "at night"}, enforce_parameter_schema=False
        )
        client.update_deployment(known.id, changed)
        assert deployments.listed(client)[0].words == "0 3 * * * UTC", "whatever a person wrote"
    schedules(delete="digits")
    assert listed(capsys) == []
    assert json.loads(secrets.read_text()) == {}
    assert served.names(Places.at(None)) == []
    with pytest.raises(UserError, match="no schedule 'digits'"):
        schedules(pause="digits")


def test_each_run_is_an_experiment_that_begins_with_the_last_and_old_ones_go(
    server: PrefectServer, desk: Desk
) -> None:
    file = desk.write("etl", train=TRAIN, trials=1, max_steps=1, search="tpe")
    schedule(file, hook=True, keep=1)
    places, runs = Places.at(None), [triggered(server, "etl", 1)]
    with client_of(server) as client:
        # as its driver would; test_station.py has the first run of a schedule
        first = resolved(client, runs[0], places, name="etl", spec=str(file), when={"keep": 1})
        assert first.spec is not None
        assert (first.name in places.experiments(), first.spec.warm_start) == (False, ())
        written(places, first.spec, str(runs[0]))
        client.set_flow_run_state(runs[0], Completed(), force=True)
        (shown,) = deployments.listed(client)
    assert [one.experiment for one in shown.runs] == places.experiments() == [first.name]

    time.sleep(1.0)  # names tell whole seconds
    runs.append(triggered(server, "etl", 2))
    worked(server, desk)
    with client_of(server) as client:
        run = client.read_flow_run(runs[1])
        (shown,) = deployments.listed(client)
    assert run.state is not None
    assert run.state.name == "Completed", run.state.message
    assert run.expected_start_time is not None
    names = [first.name, run.name]
    assert run.name == run_name("etl", run.expected_start_time.astimezone(UTC), ())
    assert [one.experiment for one in shown.runs] == [run.name], (
        "those of removed experiments go with them"
    )
    assert places.experiments() == [run.name], "one is kept"
    assert {point["seen"] for point in desk.points(run.name)} == {2}, "the trainable has the event"
    created = desk.events(names[1])[0]
    assert [start["experiment"] for start in created["spec"]["warm_start"]] == names[:1]
    assert created["spec"]["seed"] == run_seed(0, names[1]), (
        "else it would begin with the same random trials"
    )
    assert {known["origin"].partition(":")[0] for known in created["known"]} == {names[0]}

    with client_of(server) as client:
        again = resolved(
            client,
            runs[1],
            places,
            name="etl",
            spec=str(file),
            when={"keep": 1},
            event={"files": ["x"] * 2},
        )
        assert (
            again.name,
            again.spec and [start.experiment for start in again.spec.warm_start],
        ) == (names[1], names[:1])
        assert again.lines == ()
        other = triggered(server, "etl", 3)
        assert (
            resolved(client, other, places, name="etl", spec=str(file), when={}).name not in names
        )
        more = triggered(server, "etl", 4)
        for _ in ("its first start", "its retry"):
            found = resolved(
                client, more, places, name=names[1], spec=str(file), when={"each": "continue"}
            )
            assert (found.name, found.trials, found.spec and found.spec.trials) == (names[1], 2, 1)


def written(places: Places, spec: Spec, flow_run: str) -> None:
    """An experiment of one trial, as the driver of a flow run writes it."""
    kept, now = Kept(places.store(spec.name), **spec.to_json()), time.time()
    kept.say(
        Opened(t=now, by="driver", driver="d", slots=1, trials=1, flow_run=flow_run),
        Proposed(t=now, trial=0, config={"x": 0.5, "kind": "a"}),
        Started(t=now, trial=0, attempt=1),
        Began(t=now, trial=0, attempt=1, node="n"),
    )
    kept.report(0, 0.5)
    kept.end(0)


def triggered(server: PrefectServer, name: str, number: int) -> UUID:
    """Has a trigger start a run, with an event of so many files."""
    with client_of(server) as client:
        deployment, event = deployments.known(client, name).id, {"files": ["x"] * number}
        return client.create_flow_run_from_deployment(
            deployment, parameters={"event": event}, idempotency_key=str(number)
        ).id


def worked(server: PrefectServer, desk: Desk) -> None:
    """Prefect's own process worker runs what is due."""
    command = [
        str(Path(sys.executable).parent / "prefect"),
        "worker",
        "start",
        "--pool",
        "regrow",
        "--run-once",
    ]
    path = f"{Path(sys.executable).parent}{os.pathsep}{desk.environment['PATH']}"
    environment = {
        **desk.environment,
        **server.environment(),
        "PREFECT_HOME": str(desk.folder / "prefect"),
        "PATH": path,
    }
    done = subprocess.run(
        command,
        cwd=desk.folder,
        env=environment,
        text=True,
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
