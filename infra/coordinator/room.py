"""How large the cluster is, as the driver sees it: what of that is news to the planner, and how much of it is free."""

from __future__ import annotations

import math

import msgspec

from regrow.search.history import History


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """How many attempts the cluster has room for now at a time, and how many slots one of them can have at most."""

    slots: int
    widest: int


class Seen:
    """What the driver said last. `fixed`: so many slots were asked for, whatever the cluster has room for."""

    def __init__(self, *, fixed: bool) -> None:
        self._fixed = fixed
        self._room: Room | None = None

    def take(self, room: Room | None, history: History) -> Room | None:
        """What is to be written down of it, None where the planner knows it, or decides nothing any more."""
        self._room = room
        if room is None or history.closing is not None or history.closed is not None:
            return None
        known = Room(slots=history.slots, widest=history.widest)
        if self._fixed:  # a node that was there once may come again, for an attempt that waits
            room = Room(slots=known.slots, widest=max(room.widest, known.widest))
        return None if room == known else room

    def free(self, history: History) -> float:
        """Slots on which nobody runs, infinitely many where the driver has not said how many there are."""
        if self._room is None:
            return math.inf
        attempts = (history.trials[number].attempt for number in history.running)
        return self._room.slots - sum(a.width for a in attempts if a is not None and a.t_began is not None)


def nodes_of(history: History) -> tuple[str, ...]:
    """Ids of the nodes on which attempts run."""
    attempts = (history.trials[number].attempt for number in history.running)
    return tuple(dict.fromkeys(a.node_id for a in attempts if a is not None and a.node_id))
