"""What the kinds of triggers have in common: one look at the world, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from regrow.station.triggers.journal import Cursor

GIVEN = ""
"""The key of a cursor that says what was waited for, and since when (seconds since the epoch); the others are the trigger's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a look changes: keys of the cursor that are put or dropped, and events that were found, each with its `id`."""

    put: Mapping[str, Any] = field(default_factory=dict)
    drop: Iterable[str] = ()
    events: Iterable[dict[str, Any]] = ()


class Trigger(Protocol):
    """One thing that one schedule waits for."""

    @property
    def interval(self) -> float:
        """Seconds between two looks."""

    def look(self, cursor: Cursor) -> Any:
        """What there is to see, in a thread of its own; it may take long, and raise. It changes nothing."""

    def take(self, seen: Any, cursor: Cursor) -> Step | None:
        """What follows from a look; None: nothing."""


def since(cursor: Cursor) -> float:
    """From when on things are events, in seconds since the epoch."""
    return float(cursor[GIVEN]["since"])
