"""Prefect's events for which a schedule waits, by their names, as the server has them.

The server tells events by the time at which they occurred, and some come later than others. So each look goes back a minute, and
now and then an hour; one that comes later than that is not seen. What was seen is known by its id.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.events import Event
from prefect.events.filters import EventFilter, EventNameFilter, EventOccurredFilter, EventOrder

from regrow.station.triggers.journal import Cursor
from regrow.station.triggers.payloads import acceptable
from regrow.station.triggers.trigger import Step, since

LATE_SECONDS = 3600.0
"""How late an event may come to the server."""
OVERLAP_SECONDS = 60.0
"""How late most of them come at most."""
_FAR_EVERY = 30
"""Looks between two that go back by `LATE_SECONDS`."""
_KEEP_SECONDS = 600.0
"""Between two notes of how far one has looked, if there is nothing else to note."""
_AT = "at"
_PAGE = 50
_PAYLOAD_BYTES = 200_000


def named(pattern: str) -> EventNameFilter:
    """The filter for a name, or for all names that begin like `name.*`."""
    if pattern.endswith("*"):
        return EventNameFilter(prefix=[pattern[:-1]])
    return EventNameFilter(name=[pattern])


def read(client: SyncPrefectClient, pattern: str, start: float, end: float) -> Iterator[Event]:
    """The events of that name that occurred between two times, in seconds since the epoch, oldest first."""
    occurred = EventOccurredFilter(since=_time(start), until=_time(end))
    wanted = EventFilter(occurred=occurred, event=named(pattern), order=EventOrder.ASC)
    page = client.read_events(wanted, limit=_PAGE)
    yield from page.events
    while page.next_page is not None:
        page = client.read_events_page(str(page.next_page))
        yield from page.events


def told(event: Event) -> dict[str, Any]:
    """What a run hears of an event. A payload that Prefect would not take as a parameter is left out."""
    payload: Any = event.payload
    if (why := acceptable(payload)) is None and len(json.dumps(payload)) > _PAYLOAD_BYTES:
        why = "too long"
    return {
        "kind": "event", "id": str(event.id), "name": event.event, "resource": dict(event.resource.root),
        "payload": payload if why is None else {}, "time": event.occurred.timestamp(), **({"omitted": why} if why else {}),
    }


class EventsTrigger:
    """The name of an event for which one schedule waits."""

    interval = 2.0

    def __init__(self, client: SyncPrefectClient, pattern: str) -> None:
        self._client, self._pattern = client, pattern
        self._looks = 0
        self._reached: float | None = None

    def look(self, cursor: Cursor) -> tuple[float, list[dict[str, Any]]]:
        """When it began, and the events of the last minute, or hour."""
        now = time.time()
        # From what is on disk: had it not been possible to note what was found, it is found again.
        start = float(cursor.get(_AT, since(cursor))) - LATE_SECONDS
        if self._reached is not None and self._looks % _FAR_EVERY:
            start = self._reached - OVERLAP_SECONDS
        start = max(since(cursor), start)
        # Somebody else's clock may be ahead, and until when does not matter: what is seen once is known.
        found = [told(event) for event in read(self._client, self._pattern, start, now + LATE_SECONDS)]
        self._looks, self._reached = self._looks + 1, now
        return now, found

    def take(self, seen: tuple[float, list[dict[str, Any]]], cursor: Cursor) -> Step | None:
        """An event for each one that was not seen before."""
        now, found = seen
        new = [event for event in found if event["id"] not in cursor]
        if not new and now - float(cursor.get(_AT, since(cursor))) < _KEEP_SECONDS:
            return None
        old = [key for key, at in cursor.items() if key not in ("", _AT) and at < now - 2 * LATE_SECONDS]
        return Step(put={_AT: now, **{event["id"]: event["time"] for event in new}}, drop=old, events=new)


def _time(t: float) -> Any:
    """Seconds since the epoch as Prefect's models take it: their type for it is another class for each Python."""
    return datetime.fromtimestamp(t, UTC)
