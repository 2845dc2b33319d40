"""Reading the log of an experiment: its events, the history folded from them, or a survey."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from regrow.infra.log.log import CorruptLog, Log, contradiction
from regrow.infra.log.rows import LogRows
from regrow.search.errors import SpecError
from regrow.search.events import AnyEvent, Created, Opened, decode
from regrow.search.history import History
from regrow.search.lifecycle import IllegalMove
from regrow.tasks.ports.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Key events of a log. Each is None if there is no such event."""

    created: Created | None
    """The event that created the experiment, the first of the log."""
    opened: Opened | None
    """The last `Opened` event."""
    described: Opened | None
    """The last `Opened` event whose driver reported its environment."""
    last: AnyEvent | None
    """The newest event, but for those after which a closed log stays closed: see `_BESIDE`."""
    segment: int
    """Number of the newest segment, 0 for none."""

    @property
    def snapshot(self) -> str | None:
        """The key of the last snapshot of the code; None if there is none."""
        found: str | None = (
            None if self.described is None else self.described.environment.get("snapshot")
        )
        return found


_BESIDE = tuple(f'{{"event":"{name}"'.encode() for name in ("excluded", "halted", "queued"))
"""Beginnings of lines whose events may come after the last session's end."""


def survey(store: Store) -> Survey:
    """Read and verify a whole log once, without folding it. Raises CorruptLog."""
    created = last = None
    opened = described = None
    number = 0
    for number, lines in Log.read(store):
        for place, line in enumerate(lines, start=1):
            if created is None or b'"opened"' in line:
                event = _decoded(store, number, place, line)
                created = created or event
                if isinstance(event, Opened):
                    opened = event
                    described = event if event.environment else described
            if not line.startswith(_BESIDE):
                last = number, place, line
    return Survey(
        created=created if isinstance(created, Created) else None,
        opened=opened,
        described=described,
        last=None if last is None else _decoded(store, *last),
        segment=number,
    )


def read_events(store: Store) -> list[AnyEvent]:
    """Return all events of a log, oldest first, in memory. Raises CorruptLog."""
    return list(stream_events(store))


def stream_events(store: Store) -> Iterator[AnyEvent]:
    """Yield all events of a log, oldest first. Raises CorruptLog."""
    for _, _, event in placed_events(store):
        yield event


def placed_events(store: Store) -> Iterator[tuple[int, int, AnyEvent]]:
    """Yield (segment, line, event) of all events, oldest first, from 1. Raises CorruptLog."""
    for number, lines in Log.read(store):
        for place, line in enumerate(lines, start=1):
            yield number, place, _decoded(store, number, place, line)


def first_event(store: Store) -> AnyEvent | None:
    """Return the event that created the log, None for an empty log."""
    return next(stream_events(store), None)


def fold(
    store: Store,
    apply: Callable[[AnyEvent], object],
    segments: Iterable[tuple[int, Sequence[bytes]]] | None = None,
    *,
    first: int = 0,
    on_damage: Callable[[CorruptLog], None] | None = None,
) -> None:
    """Apply the events of a log, or of the given segments of it, one after the other.

    Raises CorruptLog where the log is damaged or an event cannot follow, unless `on_damage` is
    given.

    Args:
        store: the store that holds the log.
        apply: takes each event. Raises IllegalMove or SpecError, as a History does, for an event
            that cannot follow.
        segments: (number, lines) to apply; None: the whole log.
        first: number of lines of the first segment to skip, as they were applied before.
        on_damage: called with the damage instead of raising it. Everything before the damage has
            been applied by then.

    """
    try:
        for number, lines in Log.read(store) if segments is None else segments:
            for place, line in enumerate(lines[first:], start=first + 1):
                event = _decoded(store, number, place, line)
                try:
                    apply(event)
                except (IllegalMove, SpecError) as error:
                    why = error.summary if isinstance(error, IllegalMove) else error
                    raise contradiction(store, number, place, why) from error
            first = 0
    except CorruptLog as error:
        if on_damage is None:
            raise
        on_damage(error)


def replay(
    store: Store,
    called: str | None = None,
    *,
    on_damage: Callable[[CorruptLog], None] | None = None,
) -> History:
    """Return the history folded from the log.

    `called`: the experiment's current name, if it was renamed; None: the name in the log.
    `on_damage`: see `fold`.
    """
    return replayed(store, called, on_damage=on_damage).history


def replayed(
    store: Store,
    called: str | None = None,
    *,
    on_damage: Callable[[CorruptLog], None] | None = None,
) -> LogRows:
    """Return the history folded from the log, with access to its rows. Arguments: see `replay`."""
    history = History(called)
    damage = read(store, history.apply, history, on_damage)
    rows = LogRows.logged(history, store, damage)
    rows.recall()
    return rows


def read(
    store: Store,
    apply: Callable[[AnyEvent], object],
    history: History,
    on_damage: Callable[[CorruptLog], None] | None,
) -> CorruptLog | None:
    """Fold a whole log with `apply`, which updates `history`. Returns the damage at which the fold
    ended, None for none.

    Raises CorruptLog if there is damage and `on_damage` is None, or if nothing before the damage
    can be read.
    """
    met: list[CorruptLog] = []
    fold(store, apply, on_damage=met.append)
    for damage in met:
        if on_damage is None or history.created is None:
            raise damage
        on_damage(damage)
        return damage
    return None


def _decoded(store: Store, number: int, place: int, line: bytes) -> AnyEvent:
    try:
        return decode(line)
    except msgspec.MsgspecError as error:
        raise contradiction(store, number, place, error) from error
