"""Live reporting to Prefect: the flow run's log, events, and an artifact with the progress.

A thread of the driver follows the log; no decision waits for it. If the server is unreachable or
slow, reports are sent later, up to a limit.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate, LogCreate
from prefect.events import Event, RelatedResource, Resource
from prefect.exceptions import ObjectNotFound

from regrow.flows.recording.artifacts import artifact_key
from regrow.infra.log.subscription import Batch, Subscription
from regrow.infra.prefect.events import EXPERIMENT_RESOURCE, PrefectEvent, PrefectEvents
from regrow.infra.prefect.run_logs import deliver
from regrow.infra.ray.coordinator_log import CoordinatorLog
from regrow.search.events import Closed, Opened

LOOK_SECONDS = (1.0, 1.0)
SEND_SECONDS = 2.0
"""Seconds between two messages: each costs the server some 10 ms of CPU."""
PROGRESS_SECONDS = 5.0
"""Seconds between two updates of the artifact, and between two reports of a new best."""
LAST_SECONDS = 5.0
"""Seconds that the end of a session waits until Prefect has everything."""
AWAY_SECONDS = 5.0
"""Seconds between two tries while the server is unreachable."""
MOST_WAITING = 5000
"""Events buffered meanwhile; then the oldest are dropped."""


class _Publisher:
    """Sends the experiment's events to Prefect, and buffers them until they are sent."""

    def __init__(self, client: SyncPrefectClient, flow_run_id: UUID, done: threading.Event) -> None:
        self._client, self._flow_run_id, self._done = client, flow_run_id, done
        self._events = PrefectEvents()
        self._waiting: deque[PrefectEvent] = deque(maxlen=MOST_WAITING)
        self._best: PrefectEvent | None = None
        self._best_sent = self._progress_sent = 0.0
        self._artifact: UUID | None = None
        self._shown: tuple[float, str] | None = None
        self._over = False
        self._quiet_until = 0.0

    def consume(self, batch: Batch) -> None:
        """Report what is new; at the end of the log or of the subscription, the rest."""
        for event in batch.events():
            self._apply(event)
        if batch.more:
            return
        if batch.last or self._over:
            while not self._flush(last=True) and not self._done.wait(1.0):
                pass
        elif time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + (SEND_SECONDS if self._flush() else AWAY_SECONDS)

    def _apply(self, event: Any) -> None:
        if isinstance(event, Opened) and event.by == "driver":
            self._waiting.clear()  # earlier sessions have reported their own events
            self._best = None
        for one in self._events.apply(event):
            if one.event == "regrow.trial.best":
                self._best = one
            else:
                self._waiting.append(one)
        self._over = isinstance(event, Closed)

    def _flush(self, *, last: bool = False) -> bool:
        """Send what is buffered; return False if the server is unreachable."""
        now = time.monotonic()
        if self._best is not None and (last or now - self._best_sent >= PROGRESS_SECONDS):
            self._waiting.append(self._best)
            self._best, self._best_sent = None, now
        shown = (
            round(self._events.progress, 1),
            self._events.progress_text if self._events.history.total else "",
        )
        due = last or now - self._progress_sent >= PROGRESS_SECONDS
        progress = deque([shown] if due and shown != self._shown else [])
        return deliver(self._client, self._waiting, self._send) and deliver(
            self._client, progress, self._show
        )

    def _send(self, batch: list[PrefectEvent]) -> None:
        batch.sort(key=lambda one: one.t)
        if events := [self._event(h).model_dump(mode="json") for h in batch if h.event]:
            self._client.request("POST", "/events", json=events)
        if lines := [
            LogCreate(
                name="regrow",
                level=h.level,
                message=h.line,
                timestamp=_when(h.t),
                flow_run_id=self._flow_run_id,
            )
            for h in batch
            if h.line
        ]:
            self._client.create_logs(lines)

    def _event(self, event: PrefectEvent) -> Event:
        name = self._events.history.spec.name
        experiment = {
            "prefect.resource.id": f"{EXPERIMENT_RESOURCE}{name}",
            "prefect.resource.name": name,
        }
        resource, related = experiment, []
        if event.trial is not None:
            trial = f"{name}.{event.trial}"
            resource = {
                "prefect.resource.id": f"regrow.trial.{trial}",
                "prefect.resource.name": f"trial {event.trial} of {name}",
            }
            related.append({**experiment, "prefect.resource.role": "experiment"})
        flow_run = {
            "prefect.resource.id": f"prefect.flow-run.{self._flow_run_id}",
            "prefect.resource.role": "flow-run",
        }
        return Event(
            id=event.id,
            event=event.event,
            occurred=_when(event.t),
            payload={**event.payload, "flow_run": str(self._flow_run_id)},
            resource=Resource.model_validate(resource),
            related=[RelatedResource.model_validate(one) for one in (*related, flow_run)],
        )

    def _show(self, shown: list[tuple[float, str]]) -> None:
        """Show the progress in one artifact per session, whose key they share as versions."""
        [(progress, summary)] = shown
        if self._artifact is not None:
            try:
                self._client.update_artifact(
                    self._artifact, ArtifactUpdate(data=progress, description=summary)
                )
            except ObjectNotFound:  # a user deleted it
                self._artifact = None
        if self._artifact is None:
            key = artifact_key(self._events.history.spec.name, "progress")
            made = ArtifactCreate(
                key=key,
                type="progress",
                data=progress,
                description=summary,
                flow_run_id=self._flow_run_id,
            )
            self._artifact = self._client.create_artifact(made).id
        self._shown, self._progress_sent = shown[0], time.monotonic()


def _when(t: float) -> Any:
    """Convert seconds since 1970; Prefect's type for it depends on the version of Python."""
    return datetime.fromtimestamp(t, UTC)


def publishing(
    coordinator: Any, client: SyncPrefectClient, flow_run_id: UUID
) -> AbstractContextManager[object]:
    """Report to Prefect within the block; its end waits up to LAST_SECONDS for the rest."""
    done = threading.Event()
    publisher = _Publisher(client, flow_run_id, done)
    log = Subscription(CoordinatorLog(coordinator), LOOK_SECONDS, done)
    return log.in_background(publisher.consume, "teller", patience=LAST_SECONDS)
