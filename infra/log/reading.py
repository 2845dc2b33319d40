"""Reading the log of an experiment: its events, the history that they make, or only how it begins and ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from regrow.infra.log.log import Log
from regrow.infra.log.rows import Rows
from regrow.search.events import AnyEvent, Created, Opened, decode
from regrow.search.history import History
from regrow.tasks.ports import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a log begins with, the last time it was opened, the last time by a driver that told its environment, and its newest
    event; None each for none.
    """

    created: Created | None
    opened: Opened | None
    told: Opened | None
    last: AnyEvent | None


def survey(store: Store) -> Survey:
    """Looks through a whole log once, and verifies it, without folding it. Raises CorruptLog."""
    first = last = None
    opened = told = None
    for _, lines in Log.read(store):
        for line in lines:
            first, last = first or line, line
            if b'"opened"' in line and isinstance(event := decode(line), Opened):
                opened = event
                told = event if event.environment else told
    created = decode(first) if first else None
    return Survey(
        created=created if isinstance(created, Created) else None, opened=opened, told=told, last=decode(last) if last else None
    )


def read_events(store: Store) -> list[AnyEvent]:
    """All events of a log, oldest first, for who has room for them; empty if there is none. Raises CorruptLog."""
    return list(stream_events(store))


def stream_events(store: Store) -> Iterator[AnyEvent]:
    """The same, one by one."""
    for _, lines in Log.read(store):
        yield from map(decode, lines)


def first_event(store: Store) -> AnyEvent | None:
    """The event that created the log, None for an empty log."""
    return next(stream_events(store), None)


def replay(store: Store, called: str | None = None) -> History:
    """The history as the log leaves it. `called`: the experiment's name, if that is another one by now; None: as it has it."""
    return replayed(store, called).history


def replayed(store: Store, called: str | None = None) -> Rows:
    """The same with the way to its rows."""
    history = History(called)
    for event in stream_events(store):
        history.apply(event)
    rows = Rows.logged(history, store)
    rows.recall()
    return rows
