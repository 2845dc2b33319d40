"""The rows behind a history that a test folded: as the log has them, and as the plainest fold that
keeps all finds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from weakref import WeakKeyDictionary

from regrow.infra.log.rows import LogRows
from regrow.search.events import AnyEvent, Began, Reported, Row
from regrow.search.history import History, TrialRecord

_EVENTS: WeakKeyDictionary[History, Sequence[AnyEvent]] = WeakKeyDictionary()


def folded(events: Iterable[AnyEvent]) -> History:
    """What the events fold to."""
    history = History()
    for event in events:
        history.apply(event)
    return history


def remember(history: History, events: Sequence[AnyEvent]) -> History:
    """Its events are these, also those that come later; returns the history."""
    _EVENTS[history] = events
    return history


def rows_of(history: History) -> LogRows:
    """How the product reads the rows of a history whose events are remembered."""
    return rows_in(history, _EVENTS[history])


def rows_in(history: History, events: Sequence[AnyEvent]) -> LogRows:
    """The same for a history with these events."""
    return LogRows(history, lambda: (event for event in events if isinstance(event, Reported)))


def kept(events: Iterable[AnyEvent]) -> dict[int, list[tuple[int, Row]]]:
    """(attempt, row) of each step that counts, by trial: everything is kept, and what was
    superseded taken out again.
    """
    found: dict[int, list[tuple[int, Row]]] = {}
    for event in events:
        if isinstance(event, Reported):
            found.setdefault(event.trial, []).extend((event.attempt, row) for row in event.rows)
        elif isinstance(event, Began):
            rows = found.setdefault(event.trial, [])
            found[event.trial] = [
                (attempt, row) for attempt, row in rows if row.step <= event.restored
            ]
    return found


def its_rows(history: History, trial: TrialRecord | int) -> list[Row]:
    """The rows of one trial that count."""
    number = trial if isinstance(trial, int) else trial.number
    return [row for _, row in kept(_EVENTS[history]).get(number, [])]
