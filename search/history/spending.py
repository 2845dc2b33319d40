"""What an experiment has spent: its nodes as a whole, and attempts on nodes without a price."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from regrow.search.events import Priced


@dataclass(slots=True)
class Spending:
    """Folds the prices of the cluster. Money is in the currency of the prices."""

    per_hour: float = 0.0
    """What the nodes with a price cost an hour altogether, now; 0 between sessions."""
    nodes: int = 0
    """Number of these nodes."""
    apart: defaultdict[float | None, float] = field(default_factory=lambda: defaultdict(float))
    """Slot-seconds of ended attempts on nodes without a price, by the price of a slot and hour that
    the specification had (None: none).
    """
    _last: float = 0.0
    """The last price that was not 0."""
    _paid: float = 0.0
    _since: float = 0.0

    def priced(self, event: Priced) -> None:
        self.rest(event.t)
        self.per_hour, self.nodes = event.per_hour, event.nodes

    def rest(self, t: float) -> None:
        """End the time of the last price: no session runs after `t` (seconds since the epoch)."""
        self._paid, self._since = self.of_nodes(t), t
        self._last = self.per_hour or self._last
        self.per_hour, self.nodes = 0.0, 0

    def stayed(self, t: float) -> None:
        """Count the time until `t` as well, at the last price: the machines have stayed between two
        sessions.
        """
        self._paid += self._last * max(0.0, t - self._since) / 3600.0
        self._since = t

    def of_nodes(self, now: float) -> float:
        """Return what the nodes with a price have cost while sessions ran."""
        return self._paid + self.per_hour * max(0.0, now - self._since) / 3600.0
