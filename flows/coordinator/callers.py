"""Callers of the coordinator and their rate: a call costs it a millisecond, whatever it contains.

If many attempts run, a relay on each node gathers the messages of the node's attempts (`relay.py`).
Nothing here is in the log: after a restart relays call again, and attempts without a relay call
directly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

CALLS_A_SECOND = 300.0
"""Most calls without urgent ones. The coordinator can process 1,000, and has other work."""
NEWS_A_SECOND = 5_000.0
"""Messages, in any number of calls: 35 to 60 us of CPU each."""
SLOWEST_SECONDS = 5.0
"""Longest pace of an attempt, also limited to a sixth of its lease."""
HEARD_SECONDS = 2 * SLOWEST_SECONDS
"""Seconds after which a silent caller is no longer counted."""
MANY = 40
"""With more attempts in total, a relay on each node (80 MB) is worth its cost."""
MANY_OF_A_NODE = 4
"""Attempts that a node must have to get a relay."""
LOOK_SECONDS = 1.0
ASK_SECONDS = 60.0
"""Seconds after which a relay that never called is requested again."""


class Callers:
    """Recent callers. `clock`: seconds, never goes back. `session`: part of relays' names."""

    def __init__(self, clock: Callable[[], float], session: str) -> None:
        self._clock, self._session = clock, session
        self._called: dict[Hashable, float] = {}
        self._relays: set[str] = set()
        self._asked: dict[str, float] = {}
        self._wanted: list[str] = []
        self._looked: float | None = None
        self.pace = 0.0
        """See Reply."""

    def record_call(self, caller: Hashable, *, relay: bool = False) -> None:
        """Record a call of an attempt, or of a relay by its name."""
        self._called[caller] = self._clock()
        if relay:
            self._relays.add(str(caller))

    def relay(self, node_id: str) -> str:
        """Return the name of a node's relay; empty if it has none."""
        name = self._name(node_id)
        return name if name in self._relays else ""

    def due(self) -> bool:
        """Return whether it is time to call `adjust` again."""
        return self._looked is None or self._clock() - self._looked >= LOOK_SECONDS

    def adjust(self, nodes: Sequence[str], lease: float) -> None:
        """Set the pace, and request relays.

        Args:
            nodes: node IDs, one for each running attempt.
            lease: the lease of attempts in seconds.

        """
        now = self._looked = self._clock()
        self._called = {
            who: when for who, when in self._called.items() if now - when < HEARD_SECONDS
        }
        needed = max(len(nodes) / NEWS_A_SECOND, len(self._called) / CALLS_A_SECOND)
        self.pace = min(needed, SLOWEST_SECONDS, lease / 6)
        if len(nodes) <= MANY:
            return
        for node_id, count in Counter(nodes).items():
            silent = node_id and not self.relay(node_id)
            if (
                count >= MANY_OF_A_NODE
                and silent
                and now - self._asked.get(node_id, -ASK_SECONDS) >= ASK_SECONDS
            ):
                self._asked[node_id] = now
                self._wanted.append(node_id)

    def pop_wanted(self) -> tuple[tuple[str, str], ...]:
        """Remove and return the requested relays: node IDs and names."""
        wanted, self._wanted = self._wanted, []
        return tuple((node_id, self._name(node_id)) for node_id in wanted)

    def _name(self, node_id: str) -> str:
        return f"regrow-relay-{self._session}-{node_id}"
