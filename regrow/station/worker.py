"""Runs what Prefect says is due: `python -m regrow.station.worker --state ROOT`.

It keeps a driver ready that waits for an order, gives it the flow runs that are due (of schedules, of triggers, retried or
resumed in Prefect's page), and says that it is there. `regrow run` gives its orders to the same drivers. What is to be run is
decided in `agenda`; how it went is the driver's to say.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import httpx
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterNextScheduledStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.states import Cancelled

from regrow.infra.local import obituary
from regrow.infra.machine.processes import is_running
from regrow.infra.prefect.deployments import FLOW, schedule_of
from regrow.infra.prefect.pool import POOL, ensure_pool
from regrow.infra.state.places import Places
from regrow.station import healing, record
from regrow.station.agenda import Due, End, Skip, Start, plan
from regrow.station.orders import hand_over

LOOK_SECONDS = 1.0
HEARTBEAT_SECONDS = 30
UNFINISHED = "unfinished.json"
"""In the station's folder: the flow runs whose sessions its end has interrupted."""
TELL_SECONDS = (20.0, 600.0)
"""Between two looks for what MLflow and Prefect were not told: at first, and at most, where it cannot be told."""
HEAL_SECONDS = 5.0
"""Between two looks for runs whose driver was lost."""
RETRIED = ("AwaitingRetry", "Resuming")
GRACE_SECONDS = 45.0
"""How long drivers may take to end: attempts save a checkpoint first."""
STARTING_SECONDS = 120.0
"""A driver that is not ready by then is ended, and another one started."""
LATER_SECONDS = 2.0
"""Before the next driver is started: the session that begins needs the processor more."""
PATIENCE_SECONDS = 5.0
"""Before the next driver is started, where one ended before it was ready."""


class Worker:
    """Looks what is due until it is told to end."""

    def __init__(self, places: Places) -> None:
        self._places, self._folder = places, record.folder_of(places)
        self._ended = threading.Event()
        self._children: list[subprocess.Popen[bytes]] = []
        self._spare: subprocess.Popen[bytes] | None = None
        self._telling: list[subprocess.Popen[bytes]] = []
        self._since = self._not_before = self._beat = self._healed = self._tell_at = 0.0
        self._tell_pause = TELL_SECONDS[0]
        self._handed: dict[str, tuple[int, float, str | None]] = {}
        """Flow runs that were given to a driver: which, when, and their schedules; until Prefect shows that they run."""

    def run(self) -> None:
        """Returns when all drivers have ended."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._ended.set())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        prepared = False
        with get_client(sync_client=True) as client:
            while not self._ended.is_set():
                self._keep_spare()
                self._tell()
                try:
                    if not prepared:
                        ensure_pool(client)
                        healing.ensure(client)
                        self._take_up(client)
                        prepared = True
                    self._beat_heart(client)
                    self._look(client)
                    self._heal(client)
                except (httpx.HTTPError, PrefectException, OSError) as error:
                    logging.getLogger(__name__).warning("Prefect cannot be asked: %s", error)
                self._ended.wait(LOOK_SECONDS)
        self._end_drivers()

    def _keep_spare(self) -> None:
        """Starts a driver where none waits or is about to."""
        self._children = [child for child in self._children if child.poll() is None]
        for pid in record.stranded(self._folder):
            _signal(pid, signal.SIGKILL)
        waiting = {pid for pid, _ in record.drivers(self._folder, idle=True)}
        spare = self._spare
        if spare is not None and spare.poll() is not None and spare.pid not in waiting:
            self._not_before = time.monotonic() + (PATIENCE_SECONDS if spare.returncode else 0.0)
            self._spare = None
        elif spare is not None and self._is_taken(spare.pid):
            self._spare, self._not_before = None, time.monotonic() + LATER_SECONDS
        elif spare is not None and spare.pid not in waiting and time.monotonic() - self._since > STARTING_SECONDS:
            spare.kill()
        if self._spare is None and not waiting and time.monotonic() >= self._not_before:
            self._start_driver()

    def _is_taken(self, pid: int) -> bool:
        return any(busy == pid for busy, _ in record.drivers(self._folder, idle=False))

    def _start_driver(self) -> None:
        with (self._folder / "logs" / "drivers.log").open("ab") as log:
            command = [sys.executable, "-P", "-m", "regrow.station.driver", "--state", self._places.root]
            self._spare = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=self._folder, start_new_session=True,
                env={**os.environ, "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(healing.HEARTBEAT_SECONDS)},
            )
        self._since = time.monotonic()
        self._children.append(self._spare)

    def _beat_heart(self, client: SyncPrefectClient) -> None:
        if time.monotonic() - self._beat > HEARTBEAT_SECONDS or not self._beat:
            client.send_worker_heartbeat(POOL, f"station {platform.node()}", HEARTBEAT_SECONDS)
            # Nothing is taken from this list: who asks for it makes queue and deployments Ready in the page.
            client.get_scheduled_flow_runs_for_work_pool(POOL, scheduled_before=datetime.now(UTC))
            self._beat = time.monotonic()

    def _tell(self) -> None:
        """Has MLflow and Prefect told what sessions could not tell them, while one of them was away or slow."""
        self._telling = [one for one in self._telling if one.poll() is None]
        if not self._telling and time.monotonic() >= self._tell_at:
            self._telling = obituary.tell_in_background(self._places)
            self._tell_pause = min(2 * self._tell_pause, TELL_SECONDS[1]) if self._telling else TELL_SECONDS[0]
            self._tell_at = time.monotonic() + self._tell_pause

    def _heal(self, client: SyncPrefectClient) -> None:
        if time.monotonic() - self._healed > HEAL_SECONDS:
            self._healed = time.monotonic()
            healing.go_on(client, self._places)

    def _look(self, client: SyncPrefectClient) -> None:
        """Carries out what is to be done now."""
        found = {str(one.id): one for one in _due(client)}
        self._handed = {
            run: (driver, when, schedule) for run, (driver, when, schedule) in self._handed.items()
            if run in found and time.monotonic() - when < (STARTING_SECONDS if is_running(driver) else PATIENCE_SECONDS)
        }
        theirs = {one: client.read_deployment(one) for one in {run.deployment_id for run in found.values()} if one is not None}
        due = [_as_due(one, theirs.get(one.deployment_id or one.id)) for one in found.values() if str(one.id) not in self._handed]
        going = [(str(one.id), _schedule(one)) for one in _running(client)] if due else []
        going += [(run, schedule) for run, (_, _, schedule) in self._handed.items()]
        going += [(driver["flow_run"], None) for _, driver in record.drivers(self._folder, idle=False) if driver.get("flow_run")]
        for action in plan(due, going):
            match action:
                case Start(run):
                    self._start(client, found[run])
                case Skip(run, why):
                    client.set_flow_run_state(UUID(run), Cancelled(name="Skipped", message=why), force=True)
                case End(run):
                    healing.cancel(client, UUID(run), "a later run of its schedule takes its place")

    def _start(self, client: SyncPrefectClient, run: FlowRun) -> None:
        if healing.given_up(client, run):
            return
        if (taken := hand_over(self._folder, {"flow_run": str(run.id)})) is not None:
            line, driver = taken
            line.close()
            self._handed[str(run.id)] = driver, time.monotonic(), _schedule(run)

    def _take_up(self, client: SyncPrefectClient) -> None:
        """Has what the end of the station before this one interrupted go on."""
        file = self._folder / UNFINISHED
        for run in record.read(file).get("flow_runs", []):
            with suppress(ObjectNotFound):
                healing.take_up(client, UUID(run))
        file.unlink(missing_ok=True)

    def _end_drivers(self) -> None:
        """Ends those that wait at once, and asks those that carry something out to end as Ctrl-C would."""
        for pid in [*record.stranded(self._folder), *(pid for pid, _ in record.drivers(self._folder, idle=True))]:
            _signal(pid, signal.SIGKILL)
        for one in self._telling:
            _signal(one.pid, signal.SIGKILL)
        if self._spare is not None and self._spare.poll() is None and not self._is_taken(self._spare.pid):
            self._spare.kill()
        found = dict(record.drivers(self._folder, idle=False))
        busy = list(found)
        runs = [known.get("flow_run") or healing.flow_run_of(self._places, known["name"]) for known in found.values()]
        record.write(self._folder / UNFINISHED, {"flow_runs": [run for run in runs if run]})
        for pid in busy:
            _signal(pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline and any(map(is_running, busy)):
            for child in self._children:
                child.poll()
            time.sleep(0.1)
        for pid in filter(is_running, busy):
            _signal(pid, signal.SIGKILL)


def _due(client: SyncPrefectClient) -> list[FlowRun]:
    """Flow runs of ours whose time has come, of the station's pool or of no deployment."""
    runs = client.read_flow_runs(
        flow_filter=FlowFilter(name=FlowFilterName(any_=[FLOW])),
        flow_run_filter=FlowRunFilter(
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])),
            next_scheduled_start_time=FlowRunFilterNextScheduledStartTime(before_=datetime.now(UTC)),  # type: ignore[arg-type]  # pydantic takes it
        ),
    )
    return [run for run in runs if run.deployment_id is None or run.work_pool_name == POOL]


def _running(client: SyncPrefectClient) -> list[FlowRun]:
    states = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]
    return client.read_flow_runs(
        flow_filter=FlowFilter(name=FlowFilterName(any_=[FLOW])),
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=states))),
    )


def _as_due(run: FlowRun, deployment: Any) -> Due:
    when = (deployment.parameters.get("when") if deployment is not None else None) or {}
    again = run.state is not None and (run.state.name in RETRIED or run.run_count > 0)
    at = run.next_scheduled_start_time or run.expected_start_time or datetime.now(UTC)
    return Due(
        run=str(run.id), at=at.timestamp(), schedule=_schedule(run), by_the_clock=bool(run.auto_scheduled) and not again,
        overlap=when.get("overlap") or "skip",
    )


def _schedule(run: FlowRun) -> str | None:
    found = schedule_of(run)
    return None if found is None else str(found)


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def main() -> None:
    """Looks until SIGTERM."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--state", required=True)
    options = arguments.parse_args()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    Worker(Places.at(options.state)).run()


if __name__ == "__main__":
    main()
