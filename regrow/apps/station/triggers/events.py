"""Prefect events that trigger a schedule, by name, read from the server.

The server orders events by the time at which they occurred, and some arrive late. Each poll
therefore goes back a minute, and every 30th poll an hour; later arrivals are missed. Events already
seen are recognized by their ids.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.events import Event
from prefect.events.filters import EventFilter, EventNameFilter, EventOccurredFilter, EventOrder
from pydantic import ValidationError

from regrow.apps.station.triggers.journal import Cursor
from regrow.apps.station.triggers.payloads import acceptable
from regrow.apps.station.triggers.tries import TRIES, reason
from regrow.apps.station.triggers.trigger import CHAIN, GIVEN, Step, chain_of, circle, since
from regrow.infra.prefect.events import EXPERIMENT_RESOURCE
from regrow.search.recurrence import experiments_of

LATE_SECONDS = 3600.0
"""How late an event may reach the server."""
OVERLAP_SECONDS = 60.0
"""How late most events are, at most."""
_FAR_EVERY = 30
"""Every so many polls, one goes back by `LATE_SECONDS`."""
_KEEP_SECONDS = 600.0
"""Interval in which the reached time is recorded if there is nothing else to record."""
_AT = "at"
_PAGE = 50
_PAYLOAD_BYTES = 200_000
_FLOW_RUN = "prefect.flow-run."
_RUNS_KEPT = 1000
"""Number of flow runs whose chain is remembered."""


def named(pattern: str) -> EventNameFilter:
    """Return the filter for a name, or for all names with a prefix, like `name.*`."""
    if pattern.endswith("*"):
        return EventNameFilter(prefix=[pattern[:-1]])
    return EventNameFilter(name=[pattern])


def read(
    client: SyncPrefectClient, pattern: str, start: float, end: float
) -> Iterator[Event | tuple[str, str]]:
    """Yield the events of that name between two times (seconds since the epoch), oldest first; of
    one that Prefect's own class refuses, its id, and why.
    """
    occurred = EventOccurredFilter(since=_time(start), until=_time(end))
    wanted = EventFilter(occurred=occurred, event=named(pattern), order=EventOrder.ASC)
    body = {"filter": wanted.model_dump(mode="json"), "limit": _PAGE}
    # Its `read_events` would fail for a page with such an event.
    page = client.request("POST", "/events/filter", json=body).json()
    while True:
        for one in page["events"]:
            try:
                yield Event.model_validate(one)
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                where = ".".join(map(str, first["loc"]))
                yield str(one.get("id")), f"Prefect cannot read it: {where}: {first['msg']}"
        if page.get("next_page") is None:
            return
        page = client.request("GET", page["next_page"]).json()


def event_data(event: Event) -> dict[str, Any]:
    """Return an event as a run receives it, without a payload that Prefect would refuse."""
    payload: Any = event.payload
    if (why := acceptable(payload)) is None and len(json.dumps(payload)) > _PAYLOAD_BYTES:
        why = "too long"
    return {
        "kind": "event",
        "id": str(event.id),
        "name": event.event,
        "resource": dict(event.resource.root),
        "payload": payload if why is None else {},
        "time": event.occurred.timestamp(),
        **({"omitted": why} if why else {}),
    }


class EventsTrigger:
    """Trigger on the Prefect events with one name."""

    interval = 2.0

    def __init__(
        self, client: SyncPrefectClient, pattern: str, schedule: str, deployment: str
    ) -> None:
        """`schedule`, `deployment`: its name and its id. What its own runs report starts none."""
        self._client, self._pattern = client, pattern
        self._schedule, self._own = schedule, f"prefect.deployment.{deployment}"
        self._chains: dict[str, list[str]] = {}
        """The schedules that led to each flow run."""
        self._failures = Counter[str]()
        """How often the server failed to tell them, by event."""
        self._looks = 0
        self._reached: float | None = None

    def poll(self, cursor: Cursor) -> Step | None:
        """Read the last minute or hour, and make an event for each one that was not seen before."""
        now = time.time()
        # From the journaled cursor: events whose journaling failed are found again.
        known = float(cursor.get(_AT, since(cursor)))
        start = known - LATE_SECONDS
        if self._reached is not None and self._looks % _FAR_EVERY:
            start = self._reached - OVERLAP_SECONDS
        # This machine's clock may have been ahead.
        start = max(since(cursor), min(start, now - OVERLAP_SECONDS))
        # The sender's clock may be ahead. The upper limit is uncritical, since seen events are
        # recognized by their ids.
        new, refused = list[dict[str, Any]](), list[tuple[str, str]]()
        for event in read(self._client, self._pattern, start, now + LATE_SECONDS):
            if not isinstance(event, Event):
                refused += [event] if event[0] not in cursor else []
            elif str(event.id) not in cursor and not self._is_own(event):
                chain, why = self._chain(event)
                if why := why or circle(self._schedule, chain):
                    refused.append((str(event.id), why))
                else:
                    new.append({**event_data(event), CHAIN: chain})
        self._looks, self._reached = self._looks + 1, now
        if not new and not refused and now - known < _KEEP_SECONDS:
            return None
        old = [
            key
            for key, at in cursor.items()
            if key not in (GIVEN, _AT) and at < now - 2 * LATE_SECONDS
        ]
        seen = {event["id"]: event["time"] for event in new} | {one: now for one, _ in refused}
        named_refused = [(f"event {one}", why) for one, why in refused]
        return Step(put={_AT: now, **seen}, drop=old, events=new, refused=named_refused)

    def _chain(self, event: Event) -> tuple[list[str], str]:
        """Return the schedules that led to the flow run that the event is about, if any; and why
        they are not known, if the server fails each time. Raises httpx.HTTPError for a failure that
        may pass.
        """
        try:
            chains = [
                self._chain_of_run(one.id.removeprefix(_FLOW_RUN))
                for one in event.involved_resources
                if one.id.startswith(_FLOW_RUN)
            ]
        except httpx.HTTPStatusError as error:
            # such as for a run with a parameter of more than 64 bits
            self._failures[str(event.id)] += error.response.is_server_error
            if self._failures[str(event.id)] < TRIES:
                raise
            return [], f"Prefect does not tell which schedules led to it: {reason(error)}"
        return max(chains, key=len, default=[]), ""

    def _chain_of_run(self, run: str) -> list[str]:
        if run not in self._chains:
            if len(self._chains) >= _RUNS_KEPT:
                del self._chains[next(iter(self._chains))]
            self._chains[run] = chain_of(self._event_of_run(run))
        return self._chains[run]

    def _event_of_run(self, run: str) -> Any:
        """Return the event that started a flow run; None: none did, or the run is gone. Raises
        httpx.HTTPError if the server does not tell: the event is then read again.
        """
        try:
            of_run = {"id": UUID(run)}
        except ValueError:  # an event may name anything
            return None
        try:
            found = self._client.request("GET", "/flow_runs/{id}", path_params=of_run).json()
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.NOT_FOUND:
                raise
            return None
        return found["parameters"].get("event")

    def _is_own(self, event: Event) -> bool:
        """Return whether it is about the schedule, one of its runs, or one of its experiments."""
        for resource in event.involved_resources:
            name = resource.id.removeprefix(EXPERIMENT_RESOURCE)
            if resource.id == self._own or (
                name != resource.id
                and (name == self._schedule or experiments_of(self._schedule, [name]))
            ):
                return True
        return False


def _time(t: float) -> Any:
    """Convert seconds since the epoch for Prefect, whose time type depends on the Python."""
    return datetime.fromtimestamp(t, UTC)
