"""The cluster's capacity by the driver: changes that the planner must know, and free slots."""

from __future__ import annotations

import math
from collections.abc import Sequence

from regrow.flows.coordinator.leases import holders
from regrow.search.history import Attempt, History
from regrow.search.needs import ClusterCapacity


class LastCapacity:
    """The driver's last report of capacity. `fixed`: whether the number of slots was requested
    explicitly, regardless of the cluster's size. `least`: slots that the planner knows at least;
    `on_demand`: of which it knows so many as such that stay, at least.
    """

    def __init__(self, *, fixed: bool, least: int = 0, on_demand: int = 0) -> None:
        self._fixed, self._least, self._on_demand = fixed, least, on_demand
        self._room: ClusterCapacity | None = None

    def update(self, room: ClusterCapacity | None, history: History) -> ClusterCapacity | None:
        """Return the capacity to log; None if it is unchanged or the experiment is closing."""
        self._room = room
        if room is None or history.closing is not None or history.closed is not None:
            return None
        slots, widest = max(room.slots, self._least), room.widest
        spot = min(room.spot, max(0, slots - self._on_demand))
        if self._fixed:  # a lost node may return for a waiting attempt, so `widest` stays
            slots, widest, spot = history.slots, max(widest, history.widest), 0
        if (slots, widest, spot) == (history.slots, history.widest, history.spot_slots):
            return None
        return ClusterCapacity(slots=slots, widest=widest, spot=spot)

    def free(self, history: History) -> dict[str, float]:
        """Return the free slots by the kind of machine that an attempt asks for (empty: any);
        infinite if the driver has not reported capacity.
        """
        if self._room is None:
            return dict.fromkeys(("", "spot", "on-demand"), math.inf)
        free = {"": float(self._room.slots), "spot": float(self._room.spot)}
        free["on-demand"] = free[""] - free["spot"]
        for _, a in holders(history):
            if a.t_began is not None:
                free[""] -= a.width
                free["spot" if a.market == "spot" else "on-demand"] -= a.width
        return free


def nodes_of(history: History) -> tuple[str, ...]:
    """Return IDs of the nodes on which attempts run."""
    return tuple(dict.fromkeys(node for _, a in holders(history) for node in a.nodes))


def fits(history: History, leases: Sequence[tuple[int, int]], attempt: Attempt) -> bool:
    """Return whether these attempts, if any, fit in the place of an attempt that has ended."""
    wanted = [history.trials[trial].attempts[number - 1] for trial, number in leases]
    if history.spec.resources.grouped:
        return False  # its placement group's bundles are gone with it
    return bool(wanted) and all(
        a.width == attempt.width and a.market in ("", attempt.market or "on-demand") for a in wanted
    )
