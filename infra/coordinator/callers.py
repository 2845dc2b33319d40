"""Who speaks to the coordinator, and how often: a call costs it a millisecond, however much the call holds.

Where many attempts run, a relay on each node gathers the messages of the node's attempts (`relay.py`). Nothing here is in the
log, and nothing need be: after a restart relays are heard again, and attempts that are told of none speak for themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

CALLS_A_SECOND = 300.0
"""Calls that the coordinator is to take at most, but for urgent ones. It can take about 1,000, and has other things to do."""
NEWS_A_SECOND = 5_000.0
"""Messages, in however many calls: 35 to 60 us of CPU each."""
SLOWEST_SECONDS = 5.0
"""No attempt is silent for longer, nor for longer than a sixth of its lease."""
HEARD_SECONDS = 2 * SLOWEST_SECONDS
"""Who said nothing for so long is not counted any more."""
MANY = 40
"""More attempts than these, together, are worth a process on each node, about 80 MB, that speaks for them."""
MANY_OF_A_NODE = 4
"""As many of one node at least."""
LOOK_SECONDS = 1.0
ASK_SECONDS = 60.0
"""After so long a relay that was asked for and was never heard is asked for again."""


class Callers:
    """Those who called of late. `clock` gives seconds, never backwards; relays are named after `session`."""

    def __init__(self, clock: Callable[[], float], session: str) -> None:
        self._clock, self._session = clock, session
        self._called: dict[Hashable, float] = {}
        self._relays: set[str] = set()
        self._asked: dict[str, float] = {}
        self._wanted: list[str] = []
        self._looked: float | None = None
        self.pace = 0.0
        """See Reply."""

    def heard(self, caller: Hashable, *, relay: bool = False) -> None:
        """An attempt, or a relay by its name, has called."""
        self._called[caller] = self._clock()
        if relay:
            self._relays.add(str(caller))

    def relay(self, node_id: str) -> str:
        """The name of a node's relay; empty if it has none."""
        name = self._name(node_id)
        return name if name in self._relays else ""

    def due(self) -> bool:
        """Whether it is time for another `look`."""
        return self._looked is None or self._clock() - self._looked >= LOOK_SECONDS

    def look(self, nodes: Sequence[str], lease: float) -> None:
        """Sets the pace, and wants relays, for attempts that run on these nodes (ids, one for each attempt)."""
        now = self._looked = self._clock()
        self._called = {who: when for who, when in self._called.items() if now - when < HEARD_SECONDS}
        needed = max(len(nodes) / NEWS_A_SECOND, len(self._called) / CALLS_A_SECOND)
        self.pace = min(needed, SLOWEST_SECONDS, lease / 6)
        if len(nodes) <= MANY:
            return
        for node_id, count in Counter(nodes).items():
            silent = node_id and not self.relay(node_id)
            if count >= MANY_OF_A_NODE and silent and now - self._asked.get(node_id, -ASK_SECONDS) >= ASK_SECONDS:
                self._asked[node_id] = now
                self._wanted.append(node_id)

    def take_wanted(self) -> tuple[tuple[str, str], ...]:
        """Nodes that are to have a relay, and the relay's name."""
        wanted, self._wanted = self._wanted, []
        return tuple((node_id, self._name(node_id)) for node_id in wanted)

    def _name(self, node_id: str) -> str:
        return f"regrow-relay-{self._session}-{node_id}"
