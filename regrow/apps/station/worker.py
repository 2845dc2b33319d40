"""Runs the flow runs that Prefect has scheduled: `python -m regrow.apps.station.worker --state
ROOT`.

It keeps an idle driver ready, gives it the due flow runs (of schedules, of triggers, retried or
resumed in Prefect's page), and sends heartbeats. `regrow run` uses the same drivers. `due_runs`
decides what is to run; the drivers report the results.
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
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, get_args
from uuid import UUID

import httpx
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.states import Cancelled, Cancelling, Failed

from regrow.apps.station import auto_restart
from regrow.apps.station.auto_restart import HEARTBEAT_SECONDS
from regrow.apps.station.due_runs import Action, Due, Overlap, plan
from regrow.apps.station.orders import hand_over
from regrow.apps.station.triggers.tries import TRIES, Tries, Trouble, reason
from regrow.flows import crash_report
from regrow.infra.machine import private_files
from regrow.infra.machine.private_files import read_record
from regrow.infra.machine.processes import is_running
from regrow.infra.machine.supervised import Backoff, spawn, until
from regrow.infra.prefect.deployments import FLOW, POOL, ensure_pool, schedule_of
from regrow.infra.state import station_record as record
from regrow.infra.state.places import Places
from regrow.tasks.process import temporary

LOOK_SECONDS = 1.0
UNFINISHED = "unfinished.json"
"""File in the station's folder with the flow runs whose sessions the station's end has interrupted.
"""
TELL_SECONDS = (20.0, 600.0)
"""Interval of the attempts to deliver what MLflow and Prefect have not received: at first, and at
most, while it cannot be delivered.
"""
HEAL_SECONDS = 5.0
"""Interval of the checks for runs whose driver was lost."""
RETRIED = ("AwaitingRetry", "Resuming")
GRACE_SECONDS = 45.0
"""How long drivers may take to end: attempts save a checkpoint first."""
STARTING_SECONDS = 120.0
"""A driver that is not ready after this time is killed, and another one started."""
LATER_SECONDS = 2.0
"""Delay before the next driver is started: the session that begins needs the processor more."""
PATIENCE_SECONDS = 5.0
"""Delay before the next driver is started, if one ended before it was ready."""
_UNDER_WAY = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]
MOST_ASKED = 200
"""Maximum number of flow runs that are read one by one, if the server cannot list all at once."""
_LOG = logging.getLogger(__name__)


class Worker:
    """Polls Prefect for due flow runs until it is asked to end."""

    def __init__(self, places: Places) -> None:
        self._places, self._folder = places, record.folder_of(places)
        self._ended = threading.Event()
        self._children: list[subprocess.Popen[bytes]] = []
        self._spare: subprocess.Popen[bytes] | None = None
        self._deliveries: list[subprocess.Popen[bytes]] = []
        self._since = self._not_before = self._beat = self._healed = self._deliver_at = 0.0
        self._deliver_backoff = Backoff(*TELL_SECONDS, steady=0.0)
        self._handed: dict[str, tuple[int, float, str | None]] = {}
        """Flow runs given to a driver: process id, when, schedule; until Prefect says running."""
        self._prepared = False
        self._tries = Tries()
        """Flow runs that could not be started, by id."""

    def run(self) -> None:
        """Run until asked to end and all drivers have ended."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._ended.set())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with get_client(sync_client=True) as client:
            while not self._ended.is_set():
                _alone(self._keep_spare)
                _alone(self._deliver)
                if self._prepared or _alone(self._prepare, client):
                    for act in (self._beat_heart, self._start_due, self._heal):
                        _alone(act, client)
                self._ended.wait(LOOK_SECONDS)
        self._end_drivers()

    def _prepare(self, client: SyncPrefectClient) -> None:
        """Do the one-time setup once Prefect answers."""
        ensure_pool(client)
        auto_restart.ensure(client)
        # Reschedule the flow runs that the end of the previous station interrupted.
        file = self._folder / UNFINISHED
        for run in read_record(file).get("flow_runs", []):
            with suppress(ObjectNotFound, ValueError):
                auto_restart.reschedule(client, UUID(run))
        file.unlink(missing_ok=True)
        self._prepared = True

    def _keep_spare(self) -> None:
        """Start a driver if none is idle or starting."""
        self._children = [child for child in self._children if child.poll() is None]
        for pid in record.stranded(self._folder):
            _signal(pid, signal.SIGKILL)
        waiting = {pid for pid, _ in record.drivers(self._folder, idle=True)}
        if (spare := self._spare) is not None:
            now = time.monotonic()
            if spare.poll() is not None and spare.pid not in waiting:
                self._spare = None
                self._not_before = now + (PATIENCE_SECONDS if spare.returncode else 0.0)
            elif self._is_taken(spare.pid):
                self._spare, self._not_before = None, now + LATER_SECONDS
            elif spare.pid not in waiting and now - self._since > STARTING_SECONDS:
                spare.kill()
        if self._spare is None and not waiting and time.monotonic() >= self._not_before:
            self._start_driver()

    def _is_taken(self, pid: int) -> bool:
        return any(busy == pid for busy, _ in record.drivers(self._folder, idle=False))

    def _start_driver(self) -> None:
        # Ray's workers search the working directory for modules first.
        nothing = private_files.folder(temporary.process_temp_dir() / "nothing")
        module = "regrow.apps.station.driver"
        beat = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS)}
        self._spare = spawn(
            [sys.executable, "-P", "-m", module, "--state", self._places.root],
            self._folder / "logs" / "drivers.log",
            environment={**os.environ, **beat},
            folder=nothing,
            stdin=subprocess.PIPE,
        )
        self._since = time.monotonic()
        self._children.append(self._spare)

    def _beat_heart(self, client: SyncPrefectClient) -> None:
        if time.monotonic() - self._beat > HEARTBEAT_SECONDS or not self._beat:
            client.send_worker_heartbeat(POOL, f"station {platform.node()}", HEARTBEAT_SECONDS)
            # The result is not used: the request makes the queue and its deployments Ready in
            # Prefect's page.
            client.get_scheduled_flow_runs_for_work_pool(POOL, scheduled_before=datetime.now(UTC))
            self._beat = time.monotonic()

    def _deliver(self) -> None:
        """Deliver to MLflow and Prefect what sessions could not, as one was away or slow."""
        self._deliveries = [one for one in self._deliveries if one.poll() is None]
        if not self._deliveries and time.monotonic() >= self._deliver_at:
            self._deliveries = crash_report.deliver_in_background(self._places)
            if not self._deliveries:
                self._deliver_backoff.reset()
            self._deliver_at = time.monotonic() + self._deliver_backoff.after(0.0)

    def _heal(self, client: SyncPrefectClient) -> None:
        if time.monotonic() - self._healed > HEAL_SECONDS:
            self._healed = time.monotonic()
            auto_restart.reschedule_lost(client, self._places)

    def _start_due(self, client: SyncPrefectClient) -> None:
        found = {str(one.id): one for one in _due(client)}
        self._tries.keep(found.keys())
        for run, (driver, when, _) in list(self._handed.items()):
            if run not in found:
                del self._handed[run]
            elif time.monotonic() - when > (
                STARTING_SECONDS if is_running(driver) else PATIENCE_SECONDS
            ):
                del self._handed[run]
                self._failed(
                    client,
                    found[run],
                    "its driver ended before it began; see the station's logs/drivers.log",
                )
        waiting = [
            one for run, one in found.items() if run not in self._handed and self._tries.is_due(run)
        ]
        theirs = {
            one: _deployment(client, one)
            for one in {run.deployment_id for run in waiting}
            if one is not None
        }
        due = [_as_due(one, theirs.get(one.deployment_id or one.id)) for one in waiting]
        going = [(str(one.id), _schedule(one)) for one in _ours(client, _UNDER_WAY)] if due else []
        going += [(run, schedule) for run, (_, _, schedule) in self._handed.items()]
        going += [
            (driver["flow_run"], None)
            for _, driver in record.drivers(self._folder, idle=False)
            if driver.get("flow_run")
        ]
        for action in plan(due, going):
            try:
                self._do(client, action, found)
            except httpx.TransportError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, the other runs are independent of it
                _LOG.warning("flow run %s: %s", action.run, reason(error), exc_info=True)
                if action.run in found:
                    self._failed(client, found[action.run], reason(error))

    def _do(self, client: SyncPrefectClient, action: Action, found: Mapping[str, FlowRun]) -> None:
        run = action.run
        if action.do == "start":
            if auto_restart.end_if_lost_too_often(client, found[run], self._places):
                return
            if (taken := hand_over(self._folder, {"flow_run": run})) is not None:
                line, driver = taken
                line.close()
                self._handed[run] = driver, time.monotonic(), _schedule(found[run])
        elif action.do == "skip":
            client.set_flow_run_state(
                UUID(run), Cancelled(name="Skipped", message=action.why), force=True
            )
        else:
            why = "a later run of its schedule takes its place"
            client.set_flow_run_state(UUID(run), Cancelling(message=why), force=True)

    def _failed(self, client: SyncPrefectClient, run: FlowRun, why: str) -> None:
        """Count a failed start of a flow run; after TRIES failures, end it as failed."""
        if self._tries.failed(
            str(run.id), Trouble(schedule="", what=f"flow run {run.name}", reason=why)
        ):
            client.set_flow_run_state(
                run.id, Failed(message=f"it could not be begun {TRIES} times: {why}"), force=True
            )

    def _end_drivers(self) -> None:
        """Kill idle drivers, and ask busy ones to end as Ctrl-C would."""
        spare, idle = self._spare, [pid for pid, _ in record.drivers(self._folder, idle=True)]
        for pid in (*record.stranded(self._folder), *idle, *(one.pid for one in self._deliveries)):
            _signal(pid, signal.SIGKILL)
        if spare is not None and spare.poll() is None and not self._is_taken(spare.pid):
            spare.kill()
        found = dict(record.drivers(self._folder, idle=False))
        busy = list(found)
        runs = [
            known.get("flow_run") or auto_restart.flow_run_of(self._places, known["name"])
            for known in found.values()
        ]
        try:
            record.write(self._folder / UNFINISHED, {"flow_runs": [run for run in runs if run]})
        except OSError as error:  # a full disk
            _LOG.warning("no next station continues what ran here: %s", error)
        for pid in busy:
            _signal(pid, signal.SIGTERM)

        def ended() -> bool:
            for child in self._children:
                child.poll()
            return not any(map(is_running, busy))

        until(ended, seconds=GRACE_SECONDS, tick=0.1)
        for pid in filter(is_running, busy):
            _signal(pid, signal.SIGKILL)


def _alone(act: Callable[..., None], *given: Any) -> bool:
    """Do one part of a round; return whether it succeeded. A failure does not affect other parts,
    and is retried in the next round.
    """
    try:
        act(*given)
    except (httpx.HTTPError, PrefectException, OSError) as error:
        _LOG.warning("Prefect cannot be asked: %s", error)
        return False
    except Exception:  # noqa: BLE001 - whatever it is, the rest of the round is independent of it
        _LOG.exception("a part of the worker's round")
        return False
    return True


def _due(client: SyncPrefectClient) -> list[FlowRun]:
    """Return the flow runs whose time has come, in the station's pool or without a deployment."""
    at = {"before_": datetime.now(UTC)}
    runs = _ours(client, [StateType.SCHEDULED], next_scheduled_start_time=at)
    return [run for run in runs if run.deployment_id is None or run.work_pool_name == POOL]


def _ours(client: SyncPrefectClient, states: list[StateType], **more: Any) -> list[FlowRun]:
    """Return flow runs of experiments, in one of the states.

    The server fails the whole query if it cannot read one of them, such as one with a parameter of
    more than 64 bits; then they are read one by one.
    """
    wanted: dict[str, Any] = {
        "flow_filter": FlowFilter.model_validate({"name": {"any_": [FLOW]}}),
        "flow_run_filter": FlowRunFilter.model_validate(
            {"state": {"type": {"any_": states}}, **more}
        ),
    }
    try:
        return client.read_flow_runs(**wanted)
    except httpx.HTTPStatusError as error:
        if error.response.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
            raise
    found: list[FlowRun] = []
    wanted |= {"sort": FlowRunSort.EXPECTED_START_TIME_DESC, "limit": 1}
    for place in range(MOST_ASKED):
        try:
            one = client.read_flow_runs(**wanted, offset=place)
        except httpx.HTTPStatusError as error:
            _LOG.warning(
                "the server cannot tell of a flow run, which starts nothing; delete it in Prefect's"
                " page: %s",
                error,
            )
            continue
        if not one:
            break
        found += one
    return found


def _deployment(client: SyncPrefectClient, deployment: UUID) -> Any:
    """Return the schedule of a flow run; None if it was deleted."""
    with suppress(ObjectNotFound):
        return client.read_deployment(deployment)
    return None


def _as_due(run: FlowRun, deployment: Any) -> Due:
    when = deployment.parameters.get("when") if deployment is not None else None
    overlap: Overlap = "skip"
    if isinstance(when, dict) and when.get("overlap") in get_args(Overlap):
        overlap = when["overlap"]
    again = run.state is not None and (run.state.name in RETRIED or run.run_count > 0)
    at = run.next_scheduled_start_time or run.expected_start_time or datetime.now(UTC)
    return Due(
        run=str(run.id),
        at=at.timestamp(),
        schedule=_schedule(run),
        by_the_clock=bool(run.auto_scheduled) and not again,
        overlap=overlap,
    )


def _schedule(run: FlowRun) -> str | None:
    found = schedule_of(run)
    return None if found is None else str(found)


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--state", required=True)
    options = arguments.parse_args()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    Worker(Places.at(options.state)).run()


if __name__ == "__main__":
    main()
