"""The end of a session: what its closed log has is recorded everywhere."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

import ray
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Failed

from regrow.flows import crash_report
from regrow.flows.attempts import Attempts
from regrow.flows.interrupts import Interrupts
from regrow.flows.recording.artifacts import PICTURES, publish
from regrow.flows.session import Session
from regrow.flows.settling import settled
from regrow.infra.log.reading import replay
from regrow.infra.prefect.server import answers
from regrow.infra.ray import cluster
from regrow.infra.state.collection import collect
from regrow.search.events import Status
from regrow.search.history import History
from regrow.tasks.checkpoint.retry import retry_while_unavailable
from regrow.tasks.ports.store import StoreError

STORE_SECONDS = 600.0
"""Seconds that the end of a session waits for an unreachable state store."""
PREFECT_SECONDS = 30.0
"""Seconds that the end of a session waits for an unreachable Prefect server."""
PICTURES_SECONDS = 5.0
"""Seconds that the end of a session waits for the figures shown in Prefect."""
QUIET_SECONDS = 15.0
"""Seconds that the end of a session waits for the MLflow recorder without a message: a report takes
that long on a busy machine.
"""
DRAIN_SECONDS = 30.0
"""Seconds of further waiting, after a message."""


def finished(
    session: Session,
    flow_run_id: UUID,
    coordinator: Any,
    recorder: Any,
    client: SyncPrefectClient,
    attempts: Attempts,
    asked: Interrupts,
) -> History:
    """Record the closed log everywhere and return its history. Failures are announced."""
    name, places, store = session.name, session.places, session.prepared.store
    last = cluster.get(coordinator.close_readers.remote())
    drawn = recorder.pictures.remote(list(PICTURES))
    trouble = _drained(session, recorder, last, asked)
    for line in cluster.get(recorder.remarks.remote()):
        session.say(line)
    if trouble:
        crash_report.mark_pending(places, name)
        session.say(
            f"MLflow does not have everything yet: {trouble};"
            f" `{places.command('resume', name)}` catches up."
        )
    history = retry_while_unavailable(
        lambda: replay(store, name),
        say=session.say,
        seconds=min(STORE_SECONDS, asked.left),
    )
    try:
        collect(store, history)
    except StoreError as error:
        session.say(
            f"Some checkpoints that nobody needs were not deleted, the next session will: {error}"
        )
    try:
        if answers(str(client.api_url), min(PREFECT_SECONDS, asked.left)):
            settled(client, flow_run_id, attempts, history)
            publish(client, flow_run_id, history, places, _pictures(drawn))
        else:
            session.say(
                "The Prefect server is away and does not have everything; the experiment's log"
                " does."
            )
    except Exception as error:  # noqa: BLE001 - Prefect only shows what the log has: not worth failing at the end
        session.say(
            f"The Prefect server does not have everything; the experiment's log does: {error}"
        )
    return history


def _drained(session: Session, recorder: Any, last: int, asked: Interrupts) -> str | None:
    """Wait until MLflow has the log up to segment `last`; return what prevents that within the time
    limit, None if nothing.
    """
    told, began = False, time.monotonic()
    while True:
        trouble: str | None = cluster.get(recorder.drained.remote(last, min(1.0, asked.left)))
        waited = time.monotonic() - began
        left = min(QUIET_SECONDS + DRAIN_SECONDS - waited, asked.left)
        if trouble is None or left <= 0:
            return trouble
        if not told and waited > QUIET_SECONDS:
            told = True
            session.say(
                f"Waiting up to {min(DRAIN_SECONDS, asked.left):.0f} s for MLflow: {trouble}"
            )


def _pictures(drawn: Any) -> dict[str, bytes]:
    """Return the recorder's figures; none if drawing fails or takes too long, as they are in the
    report as well.
    """
    try:
        found: dict[str, bytes] = ray.get(drawn, timeout=PICTURES_SECONDS)
    except ray.exceptions.RayError:  # includes a timeout
        return {}
    return found


def state_of(status: Status, history: History) -> State[None]:
    """Return the state in which the flow run ends."""
    done = sum(len(numbers) for state, numbers in history.by_state.items() if state.final)
    summary = f"{done} of {history.total} trials ended"
    if status == "finished":
        return Completed(message=summary)
    if status == "failed":
        return Failed(message=history.closing.why if history.closing else summary)
    return Cancelled(
        name=status.capitalize(),
        message=f"{summary}; continue with `regrow resume {history.spec.name}`",
    )
