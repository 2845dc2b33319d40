"""The loop: it looks after the triggers of all schedules, and makes one flow run for each event.

An event is journaled first; then its flow run is made with a key that Prefect takes only once; then that is journaled. Cut off
anywhere, it goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from http import HTTPStatus
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import ObjectNotFound

from regrow.infra.prefect.deployments import FLOW
from regrow.infra.state import served
from regrow.infra.state.places import Places
from regrow.station.triggers.inbox import is_unwanted, waiting
from regrow.station.triggers.journal import Journal
from regrow.station.triggers.schedules import KINDS, Schedule, schedules
from regrow.station.triggers.watch import Watch, begin, end

POLL_SECONDS = 2.0
SCHEDULES_SECONDS = 5.0
"""How old the list of schedules may be."""
_OWN = ""
"""What the journal knows of itself, and that it knows a schedule at all, is under this name."""
_MOST_WAIT = 60.0
"""Seconds between two tries to make the flow run of an event that the server could not make before."""
_PASSING = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
_log = logging.getLogger("regrow.triggers")


class Loop:
    """Runs until `stop` is set."""

    def __init__(self, places: Places, client: SyncPrefectClient, journal: Journal, stop: threading.Event) -> None:
        self._places, self._client, self._journal, self._stop = places, client, journal, stop
        self._schedules: dict[str, Schedule] = {}
        self._read_at = 0.0
        self._watches: dict[tuple[str, str], Watch] = {}
        self._again: dict[tuple[str, str], tuple[float, float]] = {}
        self._trouble = ""
        if journal.cursor(_OWN, _OWN) is None:
            journal.begin(_OWN, _OWN, {"begun": time.time()})

    def run(self) -> None:
        """One round after the other. What is in the way (no server, no room on the disk) is said once, and waited for."""
        while not self._stop.is_set():
            try:
                self._round()
                trouble = ""
            except Exception as error:  # noqa: BLE001 - whatever it is, what is journaled is not lost, and the next round may do it
                trouble = f"{type(error).__name__}: {error}"
            if trouble != self._trouble:
                _log.warning("%s", f"cannot go on: {trouble}" if trouble else "goes on again")
            self._trouble = trouble
            self._stop.wait(POLL_SECONDS)

    def _round(self) -> None:
        self._refresh()
        for (schedule_id, _), watch in self._watches.items():
            watch.go_on(self._schedules[schedule_id], self._journal)
        self._take_in()
        for schedule_id, event in self._journal.pending():
            self._make(schedule_id, event)

    def _refresh(self) -> None:
        if self._read_at and time.monotonic() - self._read_at < SCHEDULES_SECONDS:
            return
        self._schedules = {one.id: one for one in schedules(self._client)}
        self._read_at = time.monotonic()
        self._forget_served()
        waited = {schedule_id for schedule_id, _ in self._journal.pending()}
        for gone in set(self._journal.deployments()) - self._schedules.keys() - waited - {_OWN}:
            if self._is_gone(gone):
                self._journal.forget(gone)
        watches, self._watches = self._watches, {}
        for one in self._schedules.values():
            for kind in KINDS:
                given = one.wants(kind)
                if given is None:
                    end(one, kind, self._journal)
                    continue
                watch = watches.get((one.id, kind))
                if watch is None or (watch.given, watch.settle) != (given, one.settle):
                    begin(one, kind, given, self._journal, self._since(one))
                    watch = Watch(one.trigger(kind, given, self._places, self._client), kind, given, one.settle)
                self._watches[one.id, kind] = watch
            if one.id not in self._journal.deployments():
                self._journal.begin(one.id, _OWN, {})

    def _forget_served(self) -> None:
        """A schedule that was deleted in Prefect's page is served no more; `regrow schedules --delete` sees to it itself."""
        for name in {*served.names(self._places)} - {one.name for one in self._schedules.values()}:
            there = served.read(self._places, name)
            if there is None or not there.schedule:
                continue
            try:
                self._client.read_deployment_by_name(f"{FLOW}/{name}")
            except ObjectNotFound:
                served.forget(self._places, name, schedule=True)

    def _is_gone(self, schedule_id: str) -> bool:
        """Asks for it: a list of several pages may leave one out, and what is forgotten would happen again."""
        try:
            self._client.read_deployment(UUID(schedule_id))
        except ObjectNotFound:
            return True
        return False

    def _since(self, schedule: Schedule) -> float:
        """From when on what a new trigger finds is an event. Of a schedule that was changed, what was before is no news."""
        if schedule.id in self._journal.deployments():
            return time.time()
        own = self._journal.cursor(_OWN, _OWN)
        if own is None:
            raise RuntimeError("the journal has no beginning")
        return max(schedule.created, float(own["begun"]))

    def _take_in(self) -> None:
        """Takes over what came to hooks."""
        for file, name, event in waiting(self._places):
            wanting = [one for one in self._schedules.values() if one.hook == name]
            for one in wanting:
                if one.paused:
                    _log.info("%s is paused: its hook starts nothing", name)
                elif not self._journal.knows(one.id, event["id"]):
                    self._journal.moved(one.id, "hook", {}, events=[event])
            if not wanting and not is_unwanted(file):
                continue
            if not wanting:
                _log.warning("a request to /hooks/%s is given up: no schedule of that name has a hook", name)
            file.unlink()

    def _make(self, schedule_id: str, event: dict[str, Any]) -> None:
        key = (schedule_id, event["id"])
        due, wait = self._again.get(key, (0.0, POLL_SECONDS))
        if time.monotonic() < due:
            return
        try:
            made = self._client.create_flow_run_from_deployment(
                UUID(schedule_id), parameters={"event": event}, idempotency_key=idempotency_key(*key)
            )
        except ObjectNotFound:
            self._journal.made(*key, "the schedule is gone")
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            if status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in _PASSING:
                _log.error("no flow run for an event of %s: %s", self._name(schedule_id), error)
                self._journal.made(*key, f"refused: {error}")
                return
            self._again[key] = time.monotonic() + wait, min(2 * wait, _MOST_WAIT)
            _log.warning("the flow run for an event of %s is made later: %s", self._name(schedule_id), error)
        else:
            self._journal.made(*key, str(made.id))
            self._again.pop(key, None)
            _log.info("%s: %s %s starts flow run %s", self._name(schedule_id), event["kind"], event["id"], made.name)

    def _name(self, schedule_id: str) -> str:
        known = self._schedules.get(schedule_id)
        return known.name if known else schedule_id


def idempotency_key(schedule_id: str, event_id: str) -> str:
    """The key with which Prefect makes one flow run of an event, however often it is asked to."""
    return hashlib.sha256(json.dumps([schedule_id, event_id]).encode()).hexdigest()
