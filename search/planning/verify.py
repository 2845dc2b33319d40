"""Recomputes every decision of a log: proof that decisions depend on nothing outside of it."""

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
    """The first event that does not follow from those before it.

    Attributes:
        position: counted from 1.
        found: the event in the log.
        expected: the decision that was due, None for none.
        why: the difference in words.

    """

    position: int
    found: AnyEvent
    expected: AnyEvent | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The result of a verification.

    Attributes:
        events: number of events that were checked.
        decisions: how many of them are decisions.
        kinds: number of events by kind.
        history: the history that the events fold to.
        difference: the first difference, None if there is none.

    """

    events: int
    decisions: int
    kinds: dict[str, int]
    history: History
    difference: Difference | None


def verify(events: Iterable[AnyEvent]) -> Verified:
    """Fold the events, recompute each decision among them, and compare. Stops at the first
    difference.

    A missing decision counts too: an observation must not come while a decision was due, unless the
    writer was cut off before it could take the decision (then the next event is that of a new
    writer).
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
            # Observations that cannot be folded occur only in a log that was tampered with.
            why = f"{type(error).__name__}: {error}"
        if why:
            difference = Difference(position=position, found=event, expected=expected, why=why)
            break
        last = event.t
    return Verified(
        events=position,
        decisions=decisions,
        kinds=dict(kinds),
        history=planner.history,
        difference=difference,
    )
