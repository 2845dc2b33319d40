"""One active trigger of one schedule: it polls in its own thread, as a poll may take
long or hang.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from regrow.apps.station.triggers.journal import Journal
from regrow.apps.station.triggers.schedules import Schedule
from regrow.apps.station.triggers.tries import reason
from regrow.apps.station.triggers.trigger import GIVEN, Trigger
from regrow.tasks.process import background

AHEAD_SECONDS = 60.0
"""A start time that is further in the future than this was set while this machine's clock was
ahead, and is corrected.
"""
_log = logging.getLogger("regrow.triggers")


class Watch:
    """Polls a trigger and journals what follows. `given` is the trigger's setting, `settle` its
    settling time in seconds.

    `refuse` sets aside a finding that cannot become an event, given the schedule's name, the
    finding, and the reason.
    """

    def __init__(
        self,
        trigger: Trigger,
        kind: str,
        given: str,
        settle: float,
        refuse: Callable[[str, str, str], None],
    ) -> None:
        self.given, self.settle = given, settle
        self._trigger, self._kind, self._refuse = trigger, kind, refuse
        self._thread: threading.Thread | None = None
        self._seen: Any = None
        self._trouble: Exception | None = None
        self._told = ""
        self._due = 0.0

    def go_on(self, schedule: Schedule, journal: Journal) -> None:
        """Journal the result of the last poll, and start the next one when it is due. Never waits
        for a poll.
        """
        if self._thread is not None:
            if self._thread.is_alive():
                return
            self._thread = None
            if self._trouble is None:
                try:
                    self._take(schedule, journal)
                except Exception as error:  # noqa: BLE001 - such as a full disk: the next poll finds the same
                    self._trouble = error
            self._tell(schedule)
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._trigger.interval
            cursor = dict(journal.cursor(schedule.id, self._kind) or {})
            if cursor[GIVEN]["since"] > time.time() + AHEAD_SECONDS:
                cursor[GIVEN] = {**cursor[GIVEN], "since": time.time()}
                journal.moved(schedule.id, self._kind, {GIVEN: cursor[GIVEN]})
            self._thread = background.start(self._look, cursor, name=self._kind)

    def _look(self, cursor: dict[str, Any]) -> None:
        try:
            self._seen, self._trouble = self._trigger.look(cursor), None
        except Exception as error:  # noqa: BLE001 - reported by the loop; other triggers are unaffected
            self._trouble = error

    def _take(self, schedule: Schedule, journal: Journal) -> None:
        step = self._trigger.take(self._seen, journal.cursor(schedule.id, self._kind) or {})
        if step is None:
            return
        new = [event for event in step.events if not journal.knows(schedule.id, event["id"])]
        if schedule.paused and new:
            _log.info(
                "%s is paused: %d events of `%s` start nothing", schedule.name, len(new), self._kind
            )
            new = []
        for what, why in step.refused:
            self._refuse(schedule.name, what, why)
        journal.moved(schedule.id, self._kind, step.put, drop=step.drop, events=new)

    @property
    def trouble(self) -> str:
        """Why polling fails, "" if it works."""
        return self._told

    def _tell(self, schedule: Schedule) -> None:
        """Log once that polling fails, and once that it works again."""
        told = reason(self._trouble) if self._trouble is not None else ""
        if told != self._told:
            if told:
                _log.warning(
                    "%s: `%s: %s` cannot be looked at: %s",
                    schedule.name,
                    self._kind,
                    self.given,
                    told,
                )
            else:
                _log.info(
                    "%s: `%s: %s` can be looked at again", schedule.name, self._kind, self.given
                )
        self._told = told


def begin(schedule: Schedule, kind: str, given: str, journal: Journal, since: float) -> None:
    """Journal that a trigger waits for `given`, and from when on (seconds since the epoch), unless
    it is active already.
    """
    cursor = journal.cursor(schedule.id, kind)
    if cursor is None or cursor[GIVEN]["given"] != given:
        journal.begin(schedule.id, kind, {GIVEN: {"given": given, "since": since}})


def end(schedule: Schedule, kind: str, journal: Journal) -> None:
    """Journal that the schedule has no trigger of this kind any more: if it gets one again, that
    starts anew.
    """
    cursor = journal.cursor(schedule.id, kind)
    if cursor is not None and cursor[GIVEN]["given"] is not None:
        journal.begin(schedule.id, kind, {GIVEN: {"given": None, "since": 0.0}})
