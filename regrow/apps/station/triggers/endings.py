"""Experiments whose ends trigger a schedule: each session that ended as finished, read from the
logs.

An ending is the event `closed` of a log. Its identity is the experiment's id and the number of its
segment, so each ending is found once, however often the logs are polled. Each poll continues where
the last one stopped; running experiments are not disturbed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from regrow.apps.station.triggers.journal import Cursor
from regrow.apps.station.triggers.trigger import GIVEN, Step, since
from regrow.infra.log.follower import Follower, Vanished
from regrow.infra.log.log import CorruptLog
from regrow.infra.log.reading import first_event
from regrow.infra.log.subscription import available
from regrow.infra.state.places import Places
from regrow.search.events import Closed, Created, decode
from regrow.search.recurrence import experiments_of

LOCAL_SECONDS, S3_SECONDS = 2.0, 10.0
"""Seconds between two polls."""
_CLOSED = b'"closed"'
"""Text that every line with the event contains; other lines are not decoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A session that ended as finished, at `ended` (seconds since the epoch)."""

    experiment: str
    id: str
    ended: float

    def event(self) -> dict[str, Any]:
        """Return the event as a run receives it."""
        return {"kind": "after", "id": self.id, "experiment": self.experiment, "ended": self.ended}


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """The result of one poll.

    Attributes:
        reached: by experiment, how far its log was read: its id, the last segment, and why it
            cannot be read further, if so.
        gone: experiments that no longer exist.
        endings: the endings found.
        damaged: logs that were found damaged by this poll, with the reason.

    """

    reached: dict[str, list[Any]]
    gone: list[str]
    endings: list[Ending]
    damaged: list[tuple[str, str]]


def look(places: Places, name: str, reached: Mapping[str, list[Any]]) -> Looked:
    """Read the logs beyond `reached`; a damaged log does not block the others. Raises UserError or
    StoreError.
    """
    names = places.experiments()
    there = [*experiments_of(name, names), *([name] if name in names else [])]
    new: dict[str, list[Any]] = {}
    endings: list[Ending] = []
    damaged: list[tuple[str, str]] = []
    gone = [one for one in reached if one not in there]
    for experiment in there:
        known = reached.get(experiment)
        try:
            now, found = _read(places, experiment, known)
        except Vanished:  # removed; a new experiment with the same name is read from its beginning
            gone.append(experiment)
            continue
        except (CorruptLog, ValueError) as error:
            now, found = [*(known or ["", 0])[:2], str(error)], []
            damaged += [(experiment, str(error))] if now != known else []
        if now != known:
            new[experiment] = now
        endings += found
    return Looked(
        reached=new, gone=gone, endings=sorted(endings, key=lambda one: one.ended), damaged=damaged
    )


def _read(
    places: Places, experiment: str, known: list[Any] | None
) -> tuple[list[Any], list[Ending]]:
    store = places.store(experiment)
    identity, after = (known or ["", 0])[:2]
    follower = Follower(store, after)
    closed = [(number, one.t) for number, one in _closed(follower) if one.status == "finished"]
    if follower.after == after:
        return [identity, after], []
    first = first_event(store)
    now = first.id if isinstance(first, Created) else ""
    if after and now != identity:
        return _read(places, experiment, None)  # another experiment with the same name
    return [now, follower.after], [
        Ending(experiment=experiment, id=f"{now}/{number}", ended=t) for number, t in closed
    ]


def _closed(follower: Follower) -> Iterator[tuple[int, Closed]]:
    for number, lines in chain.from_iterable(available(follower)):
        for line in lines:
            if _CLOSED in line and isinstance(event := decode(line), Closed):
                yield number, event


class EndingsTrigger:
    """Trigger on the endings of an experiment, or of a schedule's experiments."""

    def __init__(self, places: Places, name: str) -> None:
        self.interval = S3_SECONDS if places.storage.metered else LOCAL_SECONDS
        self._places, self._name = places, name

    def look(self, cursor: Cursor) -> Looked:
        """Read the logs from the cursor on."""
        return look(
            self._places, self._name, {name: at for name, at in cursor.items() if name != GIVEN}
        )

    def take(self, seen: Looked, cursor: Cursor) -> Step | None:
        """Make an event for each ending since the schedule was created."""
        if not (seen.reached or seen.gone):
            return None
        events = [one.event() for one in seen.endings if one.ended > since(cursor)]
        return Step(
            put=seen.reached,
            drop=set(seen.gone) - seen.reached.keys(),
            events=events,
            refused=seen.damaged,
        )
