"""Recovery of flow runs whose driver was lost, by two Prefect automations, a few times a day."""

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
from prefect.states import AwaitingRetry, Failed

from regrow.infra.log.reading import survey
from regrow.infra.prefect.deployments import FLOW
from regrow.infra.state import resume_failures
from regrow.infra.state import station_record as record
from regrow.infra.state.places import Places
from regrow.tasks.errors import RegrowError

HEARTBEAT_SECONDS = 30
"""Interval of a driver's heartbeats."""
SILENT_SECONDS = 100
"""A driver without a heartbeat for this long is considered lost."""
UNHEARD_SECONDS = 30.0
"""Seconds for the automation to reschedule a crashed run; normal are 0.2. Then the worker does."""
PER_DAY = 3
"""How often a flow run is retried automatically in 24 hours, if its schedule does not set a limit.
"""
SILENT = "its driver sent no more signs of life"
AGAIN = "goes on by itself after its driver was lost"
_OURS: Any = {"prefect.resource.role": "flow", "prefect.resource.name": FLOW}
_ENDS = (
    "Completed",
    "Failed",
    "Crashed",
    "Cancelled",
    "Cancelling",
    "Paused",
    "Suspended",
    "AwaitingRetry",
    "Interrupted",
    "Stopped",
)


def automations() -> list[AutomationCore]:
    """Return the automations of a station; people find them by name in Prefect's page."""

    def automation(name: str, why: str, to: ChangeFlowRunState, **when: Any) -> AutomationCore:
        runs: Any = {"prefect.resource.id": "prefect.flow-run.*"}  # pydantic converts the dict
        trigger = EventTrigger(match=runs, match_related=_OURS, threshold=1, **when)
        return AutomationCore(
            name=f"regrow: {name}", description=why, trigger=trigger, actions=[to]
        )

    return [
        automation(
            "a run whose driver was lost goes on",
            "A crashed run of an experiment is scheduled again; the station's worker continues from"
            " the log.",
            ChangeFlowRunState(
                state=StateType.SCHEDULED, name="AwaitingRetry", message=AGAIN, force=True
            ),
            expect={"prefect.flow-run.Crashed"},
            posture=Posture.Reactive,
            within=timedelta(0),
        ),
        automation(
            "a run that is not heard of any more has crashed",
            f"A driver sends a sign of life every {HEARTBEAT_SECONDS} s; its machine may be gone.",
            ChangeFlowRunState(state=StateType.CRASHED, name=None, message=SILENT, force=False),
            after={"prefect.flow-run.heartbeat"},
            for_each={"prefect.resource.id"},
            expect={f"prefect.flow-run.{state}" for state in ("heartbeat", *_ENDS)},
            posture=Posture.Proactive,
            within=timedelta(seconds=SILENT_SECONDS),
        ),
    ]


def ensure(client: SyncPrefectClient) -> None:
    """Install the missing automations; one that a person disabled stays disabled."""
    for automation in automations():
        if not client.read_automations_by_name(automation.name):
            client.create_automation(automation)


def reschedule_lost(client: SyncPrefectClient, places: Places) -> None:
    """Reschedule the flow runs of lost drivers that no automation rescheduled.

    A state change sent to a server that is just starting triggers no automation, and neither does
    one sent to a server without a station.
    """
    for file, known in record.lost(record.folder_of(places)):
        try:
            done = _is_settled(client, places, known)
        except (ValueError, TypeError, KeyError):  # not the record of a driver
            done = True
        if done:
            record.forget(file)


def _is_settled(client: SyncPrefectClient, places: Places, known: dict[str, Any]) -> bool:
    """Return whether a lost driver's run is seen to; False: an automation may still act."""
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
    if since > known["lost"] and not state.is_crashed():  # another driver runs it
        return True
    # A run that is still recorded as running is set to crashed by the driver's guard, or at the
    # latest by the other automation.
    patience = UNHEARD_SECONDS if state.is_crashed() else 2 * SILENT_SECONDS
    # Both are in the future if the machine's clock was set back by hours.
    if abs(time.time() - max(since, known["lost"])) < patience:
        return False
    client.set_flow_run_state(UUID(run_id), AwaitingRetry(message=AGAIN), force=True)
    return True


def flow_run_of(places: Places, name: str) -> str | None:
    """Return the flow run of an experiment's last session, None if it has none or is unread."""
    try:
        opened = survey(places.known(name)).opened
    except RegrowError:
        return None
    return None if opened is None else opened.flow_run


def end_if_lost_too_often(client: SyncPrefectClient, run: FlowRun, places: Places) -> bool:
    """Return whether a flow run was recovered automatically too often; if so, end it as failed."""
    if run.state is None or run.state.message != AGAIN:
        return False
    when = run.parameters.get("when")
    given = when.get("retries_per_day") if isinstance(when, dict) else None
    most = given if isinstance(given, int) else PER_DAY
    yesterday = datetime.now(UTC) - timedelta(days=1)
    count = times_lost(
        [state for state in client.read_flow_run_states(run.id) if state.timestamp > yesterday]
    )
    if count <= most:
        return False
    why = f"its driver was lost {count} times in 24 hours"
    client.set_flow_run_state(
        run.id, Failed(message=f"{why}; `regrow resume` or Retry continues"), force=True
    )
    if flow_run_of(places, name := str(run.parameters.get("name"))) == str(run.id):
        resume_failures.record(places, name, why)
    return True


def times_lost(states: Iterable[State[Any]]) -> int:
    """Count how often a flow run was recovered automatically.

    Several such states in a row count once: Prefect's server executes an automation's action up to
    four times if its database was busy at the end of it (seen with Prefect 3.8.8 and SQLite).
    """
    recovered = [
        state.message == AGAIN for state in sorted(states, key=lambda state: state.timestamp)
    ]
    return sum(now and not before for before, now in pairwise([False, *recovered]))


def reschedule(client: SyncPrefectClient, run_id: UUID) -> None:
    """Reschedule a flow run that is still as the station's end left it."""
    state = client.read_flow_run(run_id).state
    if state is not None and state.name == "Interrupted":
        client.set_flow_run_state(
            run_id, AwaitingRetry(message="continues, as the station is up again"), force=True
        )
