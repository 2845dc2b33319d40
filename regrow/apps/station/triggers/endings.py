"""Experiments whose ends trigger a schedule: each session that ended as finished, read from the
logs.

An ending is the event `closed` of a log. Its identity is the experiment's id and the number of its
segment, so each ending is found once, however often the logs are polled. Each poll continues where
the last one stopped; running experiments are not disturbed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain as chained
from typing import Any

from regrow.apps.station.triggers.journal import Cursor
from regrow.apps.station.triggers.trigger import CHAIN, GIVEN, Step, chain_of, circle, since
from regrow.infra.log.follower import Follower, LogGone
from regrow.infra.log.log import CorruptLog
from regrow.infra.log.reading import first_event, survey
from regrow.infra.log.subscription import available
from regrow.infra.state.places import Places
from regrow.search.events import Closed, Created, decode
from regrow.search.recurrence import experiments_of

LOCAL_SECONDS, S3_SECONDS = 2.0, 10.0
"""Seconds between two polls."""
_CLOSED = b'"closed"'
"""Text that every line with the event contains; other lines are not decoded."""
_UNREAD: list[Any] = ["", 0]


class EndingsTrigger:
    """Trigger on the endings of an experiment, or of a schedule's experiments.

    Its cursor has how far each log was read: the experiment's id, the last segment, and why it
    cannot be read further, if so.
    """

    def __init__(self, places: Places, name: str, schedule: str) -> None:
        """`name`: whose ends count; `schedule`: whose runs they start."""
        self.interval = S3_SECONDS if places.storage.metered else LOCAL_SECONDS
        self._places, self._name, self._schedule = places, name, schedule

    def poll(self, cursor: Cursor) -> Step | None:
        """Read the logs from the cursor on, and make an event for each ending since the schedule
        was created; a damaged log does not block the others. Raises UserError or StoreError.
        """
        names = self._places.experiments()
        existing = experiments_of(self._name, names)
        existing += [self._name] if self._name in names else []
        reached: dict[str, list[Any]] = {}
        gone = {one for one in cursor if one != GIVEN and one not in existing}
        events: list[dict[str, Any]] = []
        refused: list[tuple[str, str]] = []
        for experiment in existing:
            known = cursor.get(experiment)
            try:
                now, found = self._read(experiment, known or _UNREAD)
            except LogGone:  # a new experiment with the same name is read from its beginning
                gone |= {experiment} & cursor.keys()
                continue
            except (CorruptLog, ValueError) as error:
                now, found = [*(known or _UNREAD)[:2], str(error)], []
                refused += [(experiment, str(error))] if now != known else []
            if now != known:
                reached[experiment] = now
            new = [event for event in found if event["ended"] > since(cursor)]
            chain = self._chain(experiment) if new else []
            if why := circle(self._schedule, chain):
                refused += [(f"the end of {experiment}", why)]
            else:
                events += [{**event, CHAIN: chain} for event in new]
        if not (reached or gone):
            return None
        events.sort(key=lambda event: float(event["ended"]))
        return Step(put=reached, drop=gone, events=events, refused=refused)

    def _chain(self, experiment: str) -> list[str]:
        """Return the schedules that led to an experiment's last session."""
        found = survey(self._places.store(experiment))
        spec = found.created.spec if found.created is not None else {}
        settings = found.opened.settings if found.opened is not None else {}
        return chain_of({**spec, **settings}.get("event"))

    def _read(self, experiment: str, known: list[Any]) -> tuple[list[Any], list[dict[str, Any]]]:
        """Return how far the log is read now, and the endings beyond `known`."""
        store = self._places.store(experiment)
        identity, after = known[:2]
        follower = Follower(store, after)
        closed = [(number, one.t) for number, one in _closed(follower) if one.status == "finished"]
        if follower.after == after:
            return [identity, after], []
        first = first_event(store)
        now = first.id if isinstance(first, Created) else ""
        if after and now != identity:
            return self._read(experiment, _UNREAD)  # another experiment with the same name
        return [now, follower.after], [
            {"kind": "after", "id": f"{now}/{number}", "experiment": experiment, "ended": t}
            for number, t in closed
        ]


def _closed(follower: Follower) -> Iterator[tuple[int, Closed]]:
    for number, lines in chained.from_iterable(available(follower)):
        for line in lines:
            if _CLOSED in line and isinstance(event := decode(line), Closed):
                yield number, event
