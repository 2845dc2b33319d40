"""Flow runs whose driver was lost: two automations of Prefect's have them run again, though not for ever."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.exceptions import ObjectNotFound
from prefect.states import AwaitingRetry, Cancelling, Failed

from regrow.infra.log.reading import survey
from regrow.infra.prefect.deployments import FLOW
from regrow.infra.state.places import Places
from regrow.station import record
from regrow.tasks.errors import RegrowError

HEARTBEAT_SECONDS = 30
"""Between two heartbeats of a driver."""
SILENT_SECONDS = 100
"""A driver that was not heard of for so long is lost."""
UNHEARD_SECONDS = 30.0
"""How long the automation has for a crashed run, before the worker does its work; 0.2 s are normal."""
PER_DAY = 3
"""How often a flow run is retried by itself in 24 hours, where its schedule does not say."""
SILENT = "its driver was not heard of any more"
AGAIN = "goes on by itself after its driver was lost"
_OURS = {"prefect.resource.role": "flow", "prefect.resource.name": FLOW}
_ENDS = (
    "Completed", "Failed", "Crashed", "Cancelled", "Cancelling", "Paused", "Suspended", "AwaitingRetry", "Interrupted", "Stopped",
)


def automations() -> list[AutomationCore]:
    """What a station installs, by names that people find in Prefect's page."""
    runs = {"prefect.resource.id": "prefect.flow-run.*"}
    return [
        AutomationCore(
            name="regrow: a run whose driver was lost goes on",
            description="A crashed run of an experiment is scheduled again; the station's worker goes on from the log.",
            trigger=EventTrigger(
                expect={"prefect.flow-run.Crashed"}, match=runs, match_related=_OURS, posture=Posture.Reactive, threshold=1,  # type: ignore[arg-type]  # pydantic makes it of a dict
                within=timedelta(0),
            ),
            actions=[ChangeFlowRunState(state=StateType.SCHEDULED, name="AwaitingRetry", message=AGAIN, force=True)],
        ),
        AutomationCore(
            name="regrow: a run that is not heard of any more has crashed",
            description=f"A driver says every {HEARTBEAT_SECONDS} s that it lives; its machine may be gone.",
            trigger=EventTrigger(
                after={"prefect.flow-run.heartbeat"}, match=runs, match_related=_OURS, for_each={"prefect.resource.id"},  # type: ignore[arg-type]
                expect={"prefect.flow-run.heartbeat", *(f"prefect.flow-run.{state}" for state in _ENDS)},
                posture=Posture.Proactive, threshold=1, within=timedelta(seconds=SILENT_SECONDS),
            ),
            actions=[ChangeFlowRunState(state=StateType.CRASHED, name=None, message=SILENT, force=False)],
        ),
    ]


def ensure(client: SyncPrefectClient) -> None:
    """Installs the automations that are not there; one that a person switched off stays off."""
    for automation in automations():
        if not client.read_automations_by_name(automation.name):
            client.create_automation(automation)


def go_on(client: SyncPrefectClient, places: Places) -> None:
    """Schedules again what lost drivers were at, where no automation did so.

    What is told to a server that is just starting reaches none, and neither does what is told to one without a station.
    """
    for file, known in record.lost(record.folder_of(places)):
        if _is_seen_to(client, places, known):
            record.forget(file)


def _is_seen_to(client: SyncPrefectClient, places: Places, known: dict[str, Any]) -> bool:
    """Whether nothing is left to do for the run of a lost driver; False while others may still do it."""
    run_id = known.get("flow_run") or flow_run_of(places, str(known.get("name")))
    switch = client.read_automations_by_name(automations()[0].name)
    if run_id is None or not all(one.enabled for one in switch):
        return True
    try:
        state = client.read_flow_run(UUID(run_id)).state
    except ObjectNotFound:
        return True
    if state is None or not (state.is_crashed() or state.is_running() or state.is_pending()):
        return True
    since = state.timestamp.timestamp()
    if since > known["lost"] and not state.is_crashed():  # another driver is at it
        return True
    # One that is said to run is told to have crashed by the driver's guard, at the latest by the other automation.
    patience = UNHEARD_SECONDS if state.is_crashed() else 2 * SILENT_SECONDS
    if time.time() - max(since, known["lost"]) < patience:
        return False
    client.set_flow_run_state(UUID(run_id), AwaitingRetry(message=AGAIN), force=True)
    return True


def flow_run_of(places: Places, name: str) -> str | None:
    """The flow run of an experiment's last session, None where it has none, or its log cannot be read now."""
    try:
        opened = survey(places.known(name)).opened
    except RegrowError:
        return None
    return None if opened is None else opened.flow_run


def given_up(client: SyncPrefectClient, run: FlowRun) -> bool:
    """Whether a flow run that is about to go on by itself did so too often; then it is ended as failed."""
    if run.state is None or run.state.message != AGAIN:
        return False
    when = run.parameters.get("when") or {}
    most = int(when.get("retries_per_day", PER_DAY))
    yesterday = datetime.now(UTC) - timedelta(days=1)
    count = times_lost([state for state in client.read_flow_run_states(run.id) if state.timestamp > yesterday])
    if count <= most:
        return False
    why = f"its driver was lost {count} times in 24 hours; `regrow resume` or Retry goes on"
    client.set_flow_run_state(run.id, Failed(message=why), force=True)
    return True


def times_lost(states: Iterable[State[Any]]) -> int:
    """How often a flow run went on by itself. Several such states in a row are one: Prefect's server carries an action of an
    automation out up to four times, where its database was busy at the end of it (seen with Prefect 3.8.8 and SQLite).
    """
    told = [state.message == AGAIN for state in sorted(states, key=lambda state: state.timestamp)]
    return sum(now and not before for before, now in pairwise([False, *told]))


def take_up(client: SyncPrefectClient, run_id: UUID) -> None:
    """Schedules a flow run again that is as the station's end left it; others were taken up by somebody else."""
    state = client.read_flow_run(run_id).state
    if state is not None and state.name == "Interrupted":
        client.set_flow_run_state(run_id, AwaitingRetry(message="goes on, as the station is up again"), force=True)


def cancel(client: SyncPrefectClient, run_id: UUID, why: str) -> None:
    """Asks the driver of a flow run to stop."""
    client.set_flow_run_state(run_id, Cancelling(message=why), force=True)
