"""Tells Prefect what happens to an experiment, while it happens: the flow run's log, events, and an artifact of its progress.

A thread of the driver follows the log of events; no decision waits for it. What a server that is away or slow was not told is
told later, as far as it is worth remembering.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import httpx
import ray
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate, LogCreate
from prefect.events import Event, RelatedResource, Resource
from prefect.exceptions import ObjectNotFound

from regrow.infra.log.log import full
from regrow.infra.prefect.artifacts import artifact_key
from regrow.infra.prefect.events import PrefectEvent, PrefectEvents
from regrow.infra.prefect.run_logs import is_away
from regrow.infra.prefect.server import answers
from regrow.infra.ray import cluster
from regrow.search.events import Closed, Opened, decode

TELL_SECONDS = 2.0
"""Between two messages: a request costs the server some 10 ms of CPU, whatever is in it."""
PROGRESS_SECONDS = 5.0
"""Between two updates of the artifact, and between two words of a new best."""
LAST_SECONDS = 5.0
"""How long the end of a session waits until Prefect was told everything."""
AWAY_SECONDS = 5.0
"""Until the next try while the server is away."""
MOST_WAITING = 5000
"""Events that are remembered meanwhile; then the oldest go."""
MOST_AT_ONCE = 200


class _Teller:
    """What is still to be told, and to whom."""

    def __init__(self, coordinator: Any, client: SyncPrefectClient, flow_run_id: UUID) -> None:
        self._coordinator, self._client, self._flow_run_id = coordinator, client, flow_run_id
        self._events = PrefectEvents()
        self._waiting: deque[PrefectEvent] = deque(maxlen=MOST_WAITING)
        self._best: PrefectEvent | None = None
        self._best_told = self._progress_told = 0.0
        self._artifact: UUID | None = None
        self._shown: tuple[float, str] | None = None
        self._over = False
        self.done = threading.Event()

    def run(self) -> None:
        """Follows until the log is closed, or `done` is set; then tells the rest."""
        after, quiet_until = 0, 0.0
        while True:
            last = self.done.is_set()
            try:
                segments = cluster.get(self._coordinator.follow.remote(after, 0.0 if last else 1.0), timeout=3.0)
            except ray.exceptions.GetTimeoutError:  # busy
                segments = []
            except (ray.exceptions.RayError, cluster.ClusterLost):
                return
            for number, lines in segments:
                after = number
                for line in lines:
                    self._take(decode(line))
            if full(segments):
                continue  # a long log, of which the rest is there already
            if last or self._over:
                self._tell_the_rest()
                return
            if time.monotonic() >= quiet_until:
                quiet_until = time.monotonic() + (TELL_SECONDS if self._tell() else AWAY_SECONDS)
            self.done.wait(1.0)

    def _tell_the_rest(self) -> None:
        """Tries until the block of `publishing` has ended: the end of a session waits for a server that is away, too."""
        while not self._tell(last=True) and not self.done.wait(1.0):
            pass

    def _take(self, event: Any) -> None:
        if isinstance(event, Opened) and event.by == "driver":
            self._waiting.clear()  # what earlier sessions had to tell, they told
            self._best = None
        for one in self._events.take(event):
            if one.event == "regrow.trial.best":
                self._best = one
            else:
                self._waiting.append(one)
        self._over = isinstance(event, Closed)

    def _tell(self, *, last: bool = False) -> bool:
        """Tells what waits; False if the server is away."""
        now = time.monotonic()
        if self._best is not None and (last or now - self._best_told >= PROGRESS_SECONDS):
            self._waiting.append(self._best)
            self._best, self._best_told = None, now
        shown = round(self._events.progress, 1), self._events.standing if self._events.history.total else ""
        fresh = shown != self._shown and (last or now - self._progress_told >= PROGRESS_SECONDS)
        if not (self._waiting or fresh):
            return True
        if not answers(str(self._client.api_url), 0.0):
            return False
        try:
            while self._waiting:
                batch = sorted(list(self._waiting)[:MOST_AT_ONCE], key=lambda one: one.t)
                self._send(batch)
                for _ in batch:
                    self._waiting.popleft()
            if fresh:
                self._show(*shown)
                self._progress_told = now
        except httpx.HTTPError as error:
            if is_away(error):
                return False
            logging.getLogger("regrow").info("Prefect refuses what it is told: %s", error)
            self._waiting.clear()  # it would be refused again
        return True

    def _send(self, batch: Sequence[PrefectEvent]) -> None:
        if events := [self._event(h).model_dump(mode="json") for h in batch if h.event]:
            self._client.request("POST", "/events", json=events)
        if lines := [self._log(h) for h in batch if h.line]:
            self._client.create_logs(lines)

    def _log(self, told: PrefectEvent) -> LogCreate:
        return LogCreate(
            name="regrow", level=told.level, message=told.line, timestamp=_when(told.t),
            flow_run_id=self._flow_run_id,
        )

    def _event(self, told: PrefectEvent) -> Event:
        name = self._events.history.spec.name
        experiment = {"prefect.resource.id": f"regrow.experiment.{name}", "prefect.resource.name": name}
        resource, related = experiment, []
        if told.trial is not None:
            trial = f"{name}.{told.trial}"
            resource = {"prefect.resource.id": f"regrow.trial.{trial}", "prefect.resource.name": f"trial {told.trial} of {name}"}
            related.append({**experiment, "prefect.resource.role": "experiment"})
        flow_run = {"prefect.resource.id": f"prefect.flow-run.{self._flow_run_id}", "prefect.resource.role": "flow-run"}
        return Event(
            id=told.id, event=told.event, occurred=_when(told.t),
            payload={**told.payload, "flow_run": str(self._flow_run_id)},
            resource=Resource.model_validate(resource),
            related=[RelatedResource.model_validate(one) for one in (*related, flow_run)],
        )

    def _show(self, progress: float, standing: str) -> None:
        """One artifact a session, under one key: earlier sessions' are its earlier versions."""
        if self._artifact is not None:
            try:
                self._client.update_artifact(self._artifact, ArtifactUpdate(data=progress, description=standing))
            except ObjectNotFound:  # somebody deleted it
                self._artifact = None
        if self._artifact is None:
            key = artifact_key(self._events.history.spec.name, "progress")
            made = ArtifactCreate(
                key=key, type="progress", data=progress, description=standing, flow_run_id=self._flow_run_id,
            )
            self._artifact = self._client.create_artifact(made).id
        self._shown = progress, standing


def _when(t: float) -> Any:
    """Seconds since the epoch as Prefect's models take it: their type for it is another class for each Python."""
    return datetime.fromtimestamp(t, UTC)


@contextmanager
def publishing(coordinator: Any, client: SyncPrefectClient, flow_run_id: UUID) -> Iterator[None]:
    """Prefect is told within the block; its end waits a little until it was told the rest."""
    teller = _Teller(coordinator, client, flow_run_id)

    def run() -> None:
        try:
            teller.run()
        except Exception:  # what is shown to people is no reason to end an experiment
            logging.getLogger("regrow").info("Prefect is not told any more what happens", exc_info=True)

    thread = threading.Thread(target=run, name="regrow-teller", daemon=True)
    thread.start()
    try:
        yield
    finally:
        teller.done.set()
        thread.join(timeout=LAST_SECONDS)
