"""Recomputing every decision of a log: the proof that nothing hides outside of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from regrow.search.errors import SpecError
from regrow.search.events import AnyEvent, Opened, is_decision
from regrow.search.history import History
from regrow.search.lifecycle import IllegalMove
from regrow.search.planning.planner import Planner


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first event that is not what follows from those before it. `position` counts from 1; `expected` is None for none."""

    position: int
    found: AnyEvent
    expected: AnyEvent | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What was checked: events by kind, how many of them were decisions, the history they fold to, the first difference."""

    events: int
    decisions: int
    kinds: dict[str, int]
    history: History
    difference: Difference | None


def verify(events: Iterable[AnyEvent]) -> Verified:
    """Folds the events, recomputes each decision among them, and compares; stops at the first that differs.

    A decision that is missing counts too: an observation must not come while a decision was due, unless the writer was
    cut off before it could take it (then the next event is that of a new writer).
    """
    planner, kinds, decisions, position = Planner(), Counter[str](), 0, 0
    difference: Difference | None = None
    last: float | None = None
    for position, event in enumerate(events, start=1):
        kinds[type(event).__name__.lower()] += 1
        expected, why = None, ""
        try:
            if is_decision(event):
                decisions += 1
                expected = planner.next(event.t)
                why = "this decision does not follow" if expected != event else ""
            elif last is not None and not isinstance(event, Opened):
                expected = planner.next(last)
                why = "a decision is missing before it" if expected is not None else ""
            if not why:
                planner.apply(event)
        except (IllegalMove, LookupError, SpecError) as error:
            # Only a log that was tampered with has observations from which nothing can be computed.
            why = f"{type(error).__name__}: {error}"
        if why:
            difference = Difference(position=position, found=event, expected=expected, why=why)
            break
        last = event.t
    return Verified(
        events=position, decisions=decisions, kinds=dict(kinds), history=planner.history, difference=difference
    )
