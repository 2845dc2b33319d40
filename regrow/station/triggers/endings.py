"""Experiments whose end a schedule waits for: each of their sessions that ended as finished, read from their logs.

An ending is the event `closed` of a log. Its identity is the experiment's id and the number of the segment that has it, so it is
found once, however often one looks. Logs are followed from where the last look was; what is running is not disturbed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from regrow.infra.log.follower import Follower, Vanished
from regrow.infra.log.log import full
from regrow.infra.log.reading import first_event
from regrow.infra.state.places import Places
from regrow.search.events import Closed, Created, decode
from regrow.search.recurrence import experiments_of
from regrow.station.triggers.journal import Cursor
from regrow.station.triggers.trigger import GIVEN, Step, since

LOCAL_SECONDS, S3_SECONDS = 2.0, 10.0
"""Between two looks."""
_CLOSED = b'"closed"'
"""What a line has that says it; others are not decoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A session that ended as finished, at `ended` (seconds since the epoch)."""

    experiment: str
    id: str
    ended: float

    def event(self) -> dict[str, Any]:
        """What a run hears of it."""
        return {"kind": "after", "id": self.id, "experiment": self.experiment, "ended": self.ended}


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """How far the logs were read, by experiment: its id and the last segment; and the endings there."""

    reached: dict[str, list[Any]]
    gone: list[str]
    endings: list[Ending]


def look(places: Places, name: str, reached: Mapping[str, list[Any]]) -> Looked:
    """Reads what the logs have beyond `reached`. Raises UserError, StoreError or CorruptLog."""
    names = places.experiments()
    there = [*experiments_of(name, names), *([name] if name in names else [])]
    new: dict[str, list[Any]] = {}
    endings: list[Ending] = []
    gone = [one for one in reached if one not in there]
    for experiment in there:
        known = reached.get(experiment)
        try:
            now, found = _read(places, experiment, known)
        except Vanished:  # removed; if another one takes its name, that is read from its beginning
            gone.append(experiment)
            continue
        if now != known:
            new[experiment] = now
        endings += found
    return Looked(reached=new, gone=gone, endings=sorted(endings, key=lambda one: one.ended))


def _read(places: Places, experiment: str, known: list[Any] | None) -> tuple[list[Any], list[Ending]]:
    store = places.store(experiment)
    identity, after = known or ["", 0]
    follower = Follower(store, after)
    closed = [(number, one.t) for number, one in _closed(follower) if one.status == "finished"]
    if follower.after == after:
        return [identity, after], []
    first = first_event(store)
    now = first.id if isinstance(first, Created) else ""
    if known is not None and now != identity:
        return _read(places, experiment, None)  # another one of the same name
    return [now, follower.after], [Ending(experiment=experiment, id=f"{now}/{number}", ended=t) for number, t in closed]


def _closed(follower: Follower) -> Iterator[tuple[int, Closed]]:
    while segments := follower.read():
        for number, lines in segments:
            for line in lines:
                if _CLOSED in line and isinstance(event := decode(line), Closed):
                    yield number, event
        if not full(segments):
            return


class EndingsTrigger:
    """The experiment, or the schedule, for whose endings one schedule waits."""

    def __init__(self, places: Places, name: str) -> None:
        self.interval = S3_SECONDS if places.remote else LOCAL_SECONDS
        self._places, self._name = places, name

    def look(self, cursor: Cursor) -> Looked:
        """How much further the logs are."""
        return look(self._places, self._name, {name: at for name, at in cursor.items() if name != GIVEN})

    def take(self, seen: Looked, cursor: Cursor) -> Step | None:
        """An event for each ending since the schedule was made."""
        if not (seen.reached or seen.gone):
            return None
        events = [one.event() for one in seen.endings if one.ended > since(cursor)]
        return Step(put=seen.reached, drop=set(seen.gone) - seen.reached.keys(), events=events)
