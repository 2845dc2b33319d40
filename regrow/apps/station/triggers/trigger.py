"""The interface of triggers: one poll, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from regrow.apps.station.triggers.journal import Cursor

GIVEN = ""
"""Key of a cursor with the setting and the start (seconds since the epoch); others are its own."""
CHAIN = "chain"
"""Key of an event with the schedules that led to its run, oldest first; the last is the run's own.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a poll changes.

    Attributes:
        put: keys of the cursor to set.
        drop: keys of the cursor to remove.
        events: found events, each with its `id`.
        refused: findings that cannot become events, and why, for people.

    """

    put: Mapping[str, Any] = field(default_factory=dict)
    drop: Iterable[str] = ()
    events: Iterable[dict[str, Any]] = ()
    refused: Iterable[tuple[str, str]] = ()


class Trigger(Protocol):
    """One condition that starts runs of one schedule."""

    @property
    def interval(self) -> float:
        """Seconds between two polls."""

    def poll(self, cursor: Cursor) -> Step | None:
        """Poll, in a separate thread, and return what follows; None: nothing. May take long, and
        may raise. `cursor` is a copy.
        """


def since(cursor: Cursor) -> float:
    """Return from which time on findings are events, in seconds since the epoch."""
    return float(cursor[GIVEN]["since"])


def chain_of(event: Any) -> list[str]:
    """Return the schedules that led to a run, given its event; none for a run without one."""
    found = event.get(CHAIN) if isinstance(event, dict) else None
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


def circle(schedule: str, chain: list[str]) -> str:
    """Return why an event of a run with this chain starts no run of the schedule; "": it does."""
    if schedule not in chain:
        return ""
    way = " -> ".join([*chain[chain.index(schedule) :], schedule])
    return f"it comes of a run of {schedule} itself, and schedules would start each other: {way}"
