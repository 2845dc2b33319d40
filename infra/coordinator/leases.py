"""Who was heard when: the coordinator's memory of attempts and nodes that may have gone away in silence.

Nothing here is in the log, and nothing need be: after a restart every attempt gets a full lease again. Time is that in which
the coordinator ran: neither a clock that is set, nor a machine that slept, nor a job that was suspended makes an attempt look
silent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

AVOID_SECONDS = 120.0
"""How long a node that fell silent is avoided. If it was cut off, Ray knows after 65 s (measured, Ray 2.60)."""
STALL_SECONDS = 5.0
"""The clock is read every second; beyond this it was not the attempts that were silent, but this process that did not run."""
Lease = tuple[int, int]
"""(trial, attempt)"""


class Awake:
    """A clock of the seconds in which this process ran, never backwards. `monotonic` gives seconds.

    A batch system suspends a job, `docker pause` a container, a host a machine: then nobody says anything, and nobody hears.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic, self._last, self._seconds = monotonic, monotonic(), 0.0

    def __call__(self) -> float:
        last, self._last = self._last, self._monotonic()
        self._seconds += min(self._last - last, STALL_SECONDS)
        return self._seconds


class Leases:
    """When each attempt was last heard, and which nodes are about to go away. `clock` gives seconds, never backwards."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heard: dict[Lease, float] = {}
        self._speaking: dict[Lease, int] = {}
        self._suspects: dict[Lease, float] = {}
        self._waiting: dict[Lease, float] = {}
        self._avoided: dict[str, float] = {}
        self.draining: dict[str, str] = {}
        """Why each of these nodes (by id) is about to go away."""
        self.undrained: list[tuple[str, str]] = []
        """(node id, why) of those that the cluster was not told of yet."""

    def heard(self, trial: int, attempt: int) -> None:
        """It just said something."""
        self._heard[trial, attempt] = self._clock()
        self._suspects.pop((trial, attempt), None)

    def keep(self, held: Collection[Lease]) -> None:
        """Forgets all leases but those that are held."""
        for memory in (self._heard, self._suspects, self._waiting):
            for lease in memory.keys() - held:
                del memory[lease]

    @contextmanager
    def speaking(self, leases: Sequence[Lease]) -> Iterator[None]:
        """Within the block they wait for an answer, and so are not silent."""
        for lease in leases:
            self._speaking[lease] = self._speaking.get(lease, 0) + 1
        try:
            yield
        finally:
            for lease in leases:
                self._speaking[lease] -= 1
                if not self._speaking[lease]:
                    del self._speaking[lease]
                self.heard(*lease)

    def suspect(self, leases: Iterable[Lease]) -> None:
        """These have not begun, and a node was lost to which they may have been sent."""
        for lease in leases:
            self._suspects.setdefault(lease, self._clock())

    def silent(self, trial: int, attempt: int, seconds: float, *, began: bool) -> bool:
        """Whether nothing was heard for longer than `seconds`. One that has not begun may wait forever, unless suspected."""
        lease = trial, attempt
        if lease in self._speaking:
            return False
        since = self._heard.get(lease) if began else self._suspects.get(lease)
        if since is None:
            if began:
                self._heard[lease] = self._clock()
            return False
        if self._clock() - since <= seconds:
            return False
        self._heard.pop(lease, None)
        self._suspects.pop(lease, None)
        return True

    def waits(self, trial: int, attempt: int) -> float:
        """For how many seconds one that has not begun has been waiting for a machine, since this was first asked."""
        return self._clock() - self._waiting.setdefault((trial, attempt), self._clock())

    def avoid(self, node_id: str) -> None:
        """A node fell silent: Ray may not know it for a minute yet, and what it sends there meanwhile never arrives."""
        if node_id:
            self._avoided[node_id] = self._clock()

    def seen(self, node_id: str) -> None:
        """Something was heard from a node."""
        self._avoided.pop(node_id, None)

    def avoided(self) -> tuple[str, ...]:
        """Nodes that are better avoided. Not forever: an attempt may have been stuck on a node that is well."""
        return tuple(node for node, since in self._avoided.items() if self._clock() - since < AVOID_SECONDS)

    def mark_draining(self, node_id: str, why: str, *, drained: bool = False) -> None:
        """A node is about to go away; `drained`: the cluster knows."""
        if not node_id or node_id in self.draining:
            return
        self.draining[node_id] = why
        if not drained:
            self.undrained.append((node_id, why))

    def draining_of(self, node_ids: Iterable[str]) -> str | None:
        """Why the first of these nodes that is about to go away is; None if none is."""
        return next((why for node_id in node_ids if (why := self.draining.get(node_id)) is not None), None)

    def take_undrained(self) -> tuple[tuple[str, str], ...]:
        """Those of which the cluster is to be told now."""
        taken, self.undrained = tuple(self.undrained), []
        return taken
