"""The loop of the watcher: it polls the triggers of all schedules, and makes one flow run for each
event.

An event is journaled first; then its flow run is created with an idempotency key, which Prefect
accepts only once; then that is journaled. A restart resumes at the interrupted step.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import ObjectNotFound

from regrow.apps.station.triggers.aside import set_aside, write_troubles
from regrow.apps.station.triggers.inbox import MOST_WAITING, damaged, files, is_unwanted, read
from regrow.apps.station.triggers.journal import Cursor, Journal
from regrow.apps.station.triggers.payloads import DEPTH, acceptable
from regrow.apps.station.triggers.schedules import KINDS, Schedule, schedules
from regrow.apps.station.triggers.tries import Tries, Trouble, reason
from regrow.apps.station.triggers.trigger import CHAIN, GIVEN, Step, Trigger, chain_of
from regrow.infra.prefect.deployments import FLOW
from regrow.infra.state import hooks, served
from regrow.infra.state.places import Places
from regrow.tasks.output.traces import one_line
from regrow.tasks.process import background

POLL_SECONDS = 2.0
SCHEDULES_SECONDS = 5.0
"""Maximum age of the list of schedules."""
_OWN = ""
"""Name under which the journal keeps its own start, and marks a schedule as known."""
_SERVED, _HOOKS = "served", "hooks"
"""Parts of a round that belong to no schedule."""
_MOST_WAIT = 30.0
"""Maximum seconds between two tries of a failed part (not of an event)."""
_AHEAD_SECONDS = 60.0
"""A start time further ahead was set while this machine's clock was ahead, and is corrected."""
_PASSING = {
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS,
}
"""Answers of the server that the event did not cause."""
_log = logging.getLogger("regrow.triggers")


class TriggerWatch:
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
        self._step: Step | None = None
        self._error: Exception | None = None
        self._due = 0.0
        self.trouble = ""
        """Why polling fails, "" if it works."""

    def poll_when_due(self, schedule: Schedule, journal: Journal) -> None:
        """Journal the last poll's result, and start the next poll when due. Never waits."""
        if self._thread is not None:
            if self._thread.is_alive():
                return
            self._thread = None
            if self._error is None:
                try:
                    self._journal_step(schedule, journal)
                except Exception as error:  # noqa: BLE001 - such as a full disk: the next poll finds the same
                    self._error = error
            self._log_trouble(schedule)
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._trigger.interval
            cursor = dict(journal.cursor(schedule.id, self._kind) or {})
            if cursor[GIVEN]["since"] > time.time() + _AHEAD_SECONDS:
                cursor[GIVEN] = {**cursor[GIVEN], "since": time.time()}
                journal.moved(schedule.id, self._kind, {GIVEN: cursor[GIVEN]})
            self._thread = background.start(self._poll, cursor, name=self._kind)

    def _poll(self, cursor: Cursor) -> None:
        try:
            self._step, self._error = self._trigger.poll(cursor), None
        except Exception as error:  # noqa: BLE001 - reported by the loop; other triggers are unaffected
            self._error = error

    def _journal_step(self, schedule: Schedule, journal: Journal) -> None:
        if (step := self._step) is None:
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

    def _log_trouble(self, schedule: Schedule) -> None:
        """Log once that polling fails, and once that it works again."""
        trouble = reason(self._error) if self._error is not None else ""
        if trouble != self.trouble:
            level = logging.WARNING if trouble else logging.INFO
            now = f"cannot be looked at: {trouble}" if trouble else "can be looked at again"
            _log.log(level, "%s: `%s: %s` %s", schedule.name, self._kind, self.given, now)
        self.trouble = trouble


class TriggerLoop:
    """Polls triggers and makes flow runs until `stop` is set."""

    def __init__(
        self, places: Places, client: SyncPrefectClient, journal: Journal, stop: threading.Event
    ) -> None:
        self._places, self._client, self._journal, self._stop = places, client, journal, stop
        self._schedules: dict[str, Schedule] = {}
        self._read_at = 0.0
        self._watches: dict[tuple[str, str], TriggerWatch] = {}
        self._parts, self._events = Tries(_MOST_WAIT), Tries()
        self._trouble = ""
        self._published: list[Trouble] | None = None
        if journal.damaged:
            with suppress(OSError):  # such as a full disk
                self._refuse(
                    "",
                    "triggers",
                    f"{journal.damaged} damaged records of their journal were left out",
                )
        if journal.cursor(_OWN, _OWN) is None:
            journal.begin(_OWN, _OWN, {"begun": time.time()})

    def run(self) -> None:
        """Run rounds. What blocks one (no server, a full disk) is logged once, and retried."""
        while not self._stop.is_set():
            try:
                self._round()
                trouble = ""
            except Exception as error:  # noqa: BLE001 - whatever it is, journaled events are safe, and the next round may succeed
                trouble = reason(error)
            if trouble != self._trouble:
                _log.warning("%s", f"cannot continue: {trouble}" if trouble else "continues again")
            self._trouble = trouble
            self._publish()
            self._stop.wait(POLL_SECONDS)

    def _round(self) -> None:
        """Do one round. It fails without a server; each later part fails by itself."""
        self._refresh()
        for (schedule_id, kind), watch in self._watches.items():
            schedule = self._schedules[schedule_id]
            poll = partial(watch.poll_when_due, schedule, self._journal)
            self._alone((schedule_id, kind), schedule.name, f"`{kind}` cannot be looked at", poll)
        came = files(self._places)
        for file in came:
            self._alone(
                file, "", f"{one_line(str(file))} cannot be taken in", partial(self._take_in, file)
            )
        pending = self._journal.pending()
        for schedule_id, event in pending:
            self._make(schedule_id, event)
        self._parts.keep({_SERVED, _HOOKS, *self._schedules, *self._watches, *came})
        self._events.keep({(schedule_id, event["id"]) for schedule_id, event in pending})

    def _alone(self, key: Hashable, schedule: str, what: str, act: Callable[[], object]) -> None:
        """Do one part if it is due. A failure does not affect other parts, and is retried later."""
        if not self._parts.is_due(key):
            return
        try:
            act()
        except httpx.TransportError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the following parts are independent of it
            self._parts.failed(key, Trouble(schedule=schedule, what=what, reason=reason(error)))
            _log.warning("%s: %s: %s", schedule or "triggers", what, reason(error))
        else:
            self._parts.over(key)

    def _refresh(self) -> None:
        if self._read_at and time.monotonic() - self._read_at < SCHEDULES_SECONDS:
            return
        self._schedules = {one.id: one for one in schedules(self._client)}
        self._read_at = time.monotonic()
        self._alone(_SERVED, "", "what is served cannot be looked at", self._forget_served)
        # The page, which answers hooks, has to read their secrets.
        self._alone(_HOOKS, "", "no hook is answered", lambda: hooks.known(self._places))
        waited = {schedule_id for schedule_id, _ in self._journal.pending()}
        for gone in set(self._journal.deployments()) - self._schedules.keys() - waited - {_OWN}:
            # A list of several pages may miss one, and the events of a forgotten schedule would be
            # found again: the server is asked for each.
            try:
                self._client.read_deployment(UUID(gone))
            except ObjectNotFound:
                self._journal.forget(gone)
        before, self._watches = self._watches, {}
        for one in self._schedules.values():
            self._alone(
                one.id, one.name, "it cannot be read", partial(self._watch_schedule, one, before)
            )

    def _watch_schedule(
        self, one: Schedule, before: Mapping[tuple[str, str], TriggerWatch]
    ) -> None:
        """Create a watch for each trigger of a schedule; unchanged ones of `before` are kept."""
        for kind in KINDS:
            given, cursor = one.wants(kind), self._journal.cursor(one.id, kind)
            if given is None:
                if cursor is not None and cursor[GIVEN]["given"] is not None:
                    # If the schedule gets one again, that starts anew.
                    self._journal.begin(one.id, kind, {GIVEN: {"given": None, "since": 0.0}})
                continue
            watch = before.get((one.id, kind))
            if watch is None or (watch.given, watch.settle) != (given, one.settle):
                if cursor is None or cursor[GIVEN]["given"] != given:
                    begun = {"given": given, "since": self._since(one)}
                    self._journal.begin(one.id, kind, {GIVEN: begun})
                trigger = one.trigger(kind, given, self._places, self._client)
                watch = TriggerWatch(trigger, kind, given, one.settle, self._refuse)
            self._watches[one.id, kind] = watch
        if one.id not in self._journal.deployments():
            self._journal.begin(one.id, _OWN, {})

    def _forget_served(self) -> None:
        """Stop serving for schedules that were deleted in Prefect's page, not by `regrow`."""
        for name in {*served.names(self._places)} - {one.name for one in self._schedules.values()}:
            record = served.read(self._places, name)
            if record is None or not record.schedule:
                continue
            try:
                self._client.read_deployment_by_name(f"{FLOW}/{name}")
            except ObjectNotFound:
                served.forget(self._places, name, schedule=True)

    def _since(self, schedule: Schedule) -> float:
        """Return from when on a new trigger's findings are events; of a changed one, from now."""
        if schedule.id in self._journal.deployments():
            return time.time()
        own = self._journal.cursor(_OWN, _OWN)
        if own is None:
            raise RuntimeError("the journal has no beginning")
        # If a clock was ahead, both may be later than now.
        return min(max(schedule.created, float(own["begun"])), time.time())

    def _take_in(self, file: Path) -> None:
        """Move a hook's event from the inbox to the journal. Raises OSError."""
        try:
            name, event = read(file)
        except FileNotFoundError:
            return
        except (ValueError, OSError) as error:
            self._refuse("", str(damaged(file)), reason(error))
            return
        wanting = [one for one in self._schedules.values() if one.hook == name]
        for one in wanting:
            if one.paused:
                _log.info("%s is paused: its hook starts nothing", name)
            elif self._journal.waiting(one.id) >= MOST_WAITING:
                self._refuse(
                    name, f"hook {event['id']}", f"{MOST_WAITING} events of it wait already", event
                )
            elif not self._journal.knows(one.id, event["id"]):
                self._journal.moved(one.id, "hook", {}, events=[event])
        if not wanting and not is_unwanted(file):
            return
        if not wanting:
            self._refuse(name, f"hook {event['id']}", f"no schedule {name} has a hook", event)
        file.unlink(missing_ok=True)

    def _make(self, schedule_id: str, event: dict[str, Any]) -> None:
        """Create an event's flow run. Raises httpx.HTTPError if the server takes none now."""
        key, what = (schedule_id, event["id"]), f"{event['kind']} {event['id']}"
        if not self._events.is_due(key):
            return
        chain = [*chain_of(event), self._name(schedule_id)]
        try:
            # The server might store such an event, and then fail to read any flow run.
            if why := acceptable(event, DEPTH + 1):
                raise ValueError(why)
            made = self._client.create_flow_run_from_deployment(
                UUID(schedule_id),
                parameters={"event": {**event, CHAIN: chain}},
                idempotency_key=idempotency_key(*key),
            )
            self._journal.made(*key, str(made.id))
            self._events.over(key)
            _log.info("%s: %s starts flow run %s", self._name(schedule_id), what, made.name)
        except ObjectNotFound:
            self._journal.made(*key, "the schedule is gone")
        except (httpx.TransportError, OSError):
            raise
        except Exception as error:
            if isinstance(error, httpx.HTTPStatusError) and error.response.status_code in _PASSING:
                raise
            trouble = Trouble(
                schedule=self._name(schedule_id), what=f"{what} starts no run", reason=reason(error)
            )
            before = self._journal.failures(*key)
            if self._events.failed(key, trouble, before) or not _may_pass(error):
                self._refuse(trouble.schedule, what, trouble.reason, event)
                self._journal.made(*key, f"refused: {trouble.reason}")
                self._events.over(key)
            else:
                self._journal.failed(*key)
                _log.warning(
                    "%s: %s: %s; it is tried again", trouble.schedule, trouble.what, trouble.reason
                )

    def _refuse(self, schedule: str, what: str, why: str, event: Any = None) -> None:
        """Set aside an event that starts nothing."""
        set_aside(self._places, schedule, what, why, event)
        _log.error("%s: set aside: %s: %s", schedule or "triggers", one_line(what), one_line(why))

    def _publish(self) -> None:
        """Publish the current problems for `regrow status` and the page."""
        failing = [
            Trouble(
                schedule=self._schedules[of].name,
                what=f"`{kind}: {watch.given}` cannot be looked at",
                reason=watch.trouble,
            )
            for (of, kind), watch in self._watches.items()
            if watch.trouble
        ]
        own = (
            [Trouble(schedule="", what="triggers cannot continue", reason=self._trouble)]
            if self._trouble
            else []
        )
        if (found := [*own, *self._parts, *self._events, *failing]) != self._published:
            with suppress(OSError):  # a full disk: the next round may find space
                write_troubles(self._places, found)
                self._published = found

    def _name(self, schedule_id: str) -> str:
        known = self._schedules.get(schedule_id)
        return known.name if known else schedule_id


def _may_pass(error: Exception) -> bool:
    """Return whether the event may start a run later: it was not refused, and can be encoded."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR
    return not isinstance(error, ValueError | TypeError | ArithmeticError | RecursionError)


def idempotency_key(schedule_id: str, event_id: str) -> str:
    """Return the key by which Prefect makes one flow run of an event, however often asked."""
    return hashlib.sha256(json.dumps([schedule_id, event_id]).encode()).hexdigest()
