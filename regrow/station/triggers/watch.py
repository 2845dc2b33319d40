"""One trigger of one schedule under way: it looks in a thread of its own, as that may take long or hang."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from regrow.station.triggers.journal import Journal
from regrow.station.triggers.schedules import Schedule
from regrow.station.triggers.trigger import GIVEN, Trigger

_log = logging.getLogger("regrow.triggers")


class Watch:
    """Has a trigger look, and journals what follows. What it waits for is `given`, and is `settle` seconds old then."""

    def __init__(self, trigger: Trigger, kind: str, given: str, settle: float) -> None:
        self.given, self.settle = given, settle
        self._trigger, self._kind = trigger, kind
        self._thread: threading.Thread | None = None
        self._seen: Any = None
        self._trouble: Exception | None = None
        self._told = ""
        self._due = 0.0

    def go_on(self, schedule: Schedule, journal: Journal) -> None:
        """Journals what the last look saw, and has the next one begin when it is due. Never waits for a look."""
        if self._thread is not None:
            if self._thread.is_alive():
                return
            self._thread = None
            if self._trouble is None:
                try:
                    self._take(schedule, journal)
                except Exception as error:  # noqa: BLE001 - such as a full disk: the next look finds the same
                    self._trouble = error
            self._tell(schedule)
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._trigger.interval
            cursor = dict(journal.cursor(schedule.id, self._kind) or {})
            self._thread = threading.Thread(target=self._look, args=(cursor,), name=f"regrow-{self._kind}", daemon=True)
            self._thread.start()

    def _look(self, cursor: dict[str, Any]) -> None:
        try:
            self._seen, self._trouble = self._trigger.look(cursor), None
        except Exception as error:  # noqa: BLE001 - told by the loop; other triggers go on
            self._trouble = error

    def _take(self, schedule: Schedule, journal: Journal) -> None:
        step = self._trigger.take(self._seen, journal.cursor(schedule.id, self._kind) or {})
        if step is None:
            return
        new = [event for event in step.events if not journal.knows(schedule.id, event["id"])]
        if schedule.paused and new:
            _log.info("%s is paused: %d events of `%s` start nothing", schedule.name, len(new), self._kind)
            new = []
        journal.moved(schedule.id, self._kind, step.put, drop=step.drop, events=new)

    def _tell(self, schedule: Schedule) -> None:
        """Says once what is in the way of looking, and once that it is not any more."""
        told = str(self._trouble or "")
        if told != self._told:
            if told:
                _log.warning("%s: `%s: %s` cannot be looked at: %s", schedule.name, self._kind, self.given, told)
            else:
                _log.info("%s: `%s: %s` can be looked at again", schedule.name, self._kind, self.given)
        self._told = told


def begin(schedule: Schedule, kind: str, given: str, journal: Journal, since: float) -> None:
    """Notes that a trigger waits for `given`, and from when on (seconds since the epoch), unless it is under way."""
    cursor = journal.cursor(schedule.id, kind)
    if cursor is None or cursor[GIVEN]["given"] != given:
        journal.begin(schedule.id, kind, {GIVEN: {"given": given, "since": since}})


def end(schedule: Schedule, kind: str, journal: Journal) -> None:
    """Notes that nothing of the kind is waited for: should it be again, that begins anew."""
    cursor = journal.cursor(schedule.id, kind)
    if cursor is not None and cursor[GIVEN]["given"] is not None:
        journal.begin(schedule.id, kind, {GIVEN: {"given": None, "since": 0.0}})
