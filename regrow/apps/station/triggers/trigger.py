"""The interface of triggers: one poll, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from regrow.apps.station.triggers.journal import Cursor

GIVEN = ""
"""Key of a cursor with the setting and the start (seconds since the epoch); others are its own."""


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
