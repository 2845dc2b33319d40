"""How large the cluster is, as the driver sees it: what of that is news to the planner, and how much of it is free."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from regrow.search.history import Attempt, History
from regrow.search.planning.widths import SHRINK_SECONDS, may_narrow, too_wide

WITHDRAW_SECONDS = 10.0
"""For so long an attempt may begin that has not when all is to end."""


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """How many slots the cluster has room for now at a time, and how many of them one attempt can have at most.

    `spot`: how many of `slots` are on spot machines.
    """

    slots: int
    widest: int
    spot: int = 0


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
        slots, widest = room.slots, room.widest
        if self._fixed:  # a node that was there once may come again, for an attempt that waits
            slots, widest = history.slots, max(widest, history.widest)
        return None if (slots, widest) == (history.slots, history.widest) else Room(slots=slots, widest=widest)

    def free(self, history: History) -> dict[str, float]:
        """Slots on which nobody runs, by the kind of machine that an attempt asks for (empty: any); infinitely many where the
        driver has not said how many there are.
        """
        if self._room is None:
            return dict.fromkeys(("", "spot", "on-demand"), math.inf)
        free = {"": float(self._room.slots), "spot": float(self._room.spot)}
        free["on-demand"] = free[""] - free["spot"]
        for number in history.running:
            if (a := history.trials[number].attempt) is not None and a.t_began is not None:
                free[""] -= a.width
                free["spot" if a.market == "spot" else "on-demand"] -= a.width
        return free


def nodes_of(history: History) -> tuple[str, ...]:
    """Ids of the nodes on which attempts run."""
    attempts = (history.trials[number].attempt for number in history.running)
    return tuple(dict.fromkeys(node for a in attempts if a is not None for node in a.nodes))


def fits(history: History, leases: Sequence[tuple[int, int]], attempt: Attempt) -> bool:
    """Whether these attempts, if there are any, want as much as one has that has ended, on the kind of machine that it ran on."""
    wanted = [history.trials[trial].attempts[number - 1] for trial, number in leases]
    if history.spec.resources.grouped:
        return False  # its bundles are gone with it
    return bool(wanted) and all(a.width == attempt.width and a.market in ("", attempt.market or "on-demand") for a in wanted)


def waiting_long(history: History, waits: Callable[[int, int], float]) -> list[tuple[int, int, float]]:
    """Attempts (trial, number) that have been waiting for a machine for so long that the planner may want them to wait no longer,
    and for how many seconds; each once. `waits`: for how long an attempt has, by now.
    """
    market, (least, most), found = history.spec.market, history.spec.resources.widths, list[tuple[int, int, float]]()
    usual = WITHDRAW_SECONDS if history.closing is not None else market.after if market is not None else None
    for number in sorted(history.running) if usual is not None or least < most else ():
        a = history.trials[number].attempt
        if a is None or a.t_began is not None or a.waited:
            continue
        patience = SHRINK_SECONDS if history.closing is None and may_narrow(history, a) else usual
        if history.closing is None and too_wide(history, a):
            patience = 0.0
        if patience is not None and (waited := waits(number, a.number)) >= patience:
            found.append((number, a.number, round(waited, 3)))
    return found
