"""Attempts that hold a lease: when they and their nodes were last heard, and who carries them.

Nothing here is in the log: after a restart every attempt gets a full lease again. Only time in
which the coordinator ran counts: neither a changed clock, nor a machine that slept, nor a suspended
job makes an attempt look silent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

from regrow.search.history import Attempt, History

AVOID_SECONDS = 120.0
"""Seconds for which a node that fell silent is avoided. If it was cut off, Ray knows after 65 s
(measured, Ray 2.60).
"""
STALL_SECONDS = 5.0
"""A longer gap between two readings of the clock is no silence: this process did not run."""
Lease = tuple[int, int]
"""(trial, attempt)"""


def holders(history: History) -> Iterator[tuple[int, Attempt]]:
    """Yield the attempts that hold a lease, with the numbers of their trials, by these."""
    for number in sorted(history.running):
        if (attempt := history.trials[number].attempt) is not None:
            yield number, attempt


class Awake:
    """Clock of the seconds in which this process ran, never going backwards. `monotonic` gives
    seconds.

    A batch system may suspend the job, `docker pause` the container, a host the machine: then no
    process sends, and none receives.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic, self._last, self._seconds = monotonic, monotonic(), 0.0

    def __call__(self) -> float:
        last, self._last = self._last, self._monotonic()
        self._seconds += min(self._last - last, STALL_SECONDS)
        return self._seconds


class Leases:
    """When attempts were last heard, and which nodes go away. `clock`: seconds, never goes back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_message: dict[Lease, float] = {}
        self._speaking: dict[Lease, int] = {}
        self._suspects: dict[Lease, float] = {}
        self._waiting: dict[Lease, float] = {}
        self._avoided: dict[str, float] = {}
        self.draining: dict[str, str] = {}
        """Why each of these nodes (by ID) is about to go away."""
        self.undrained: list[tuple[str, str]] = []
        """(node ID, reason) of nodes whose draining was not reported to the cluster yet."""

    def record_message(self, trial: int, attempt: int) -> None:
        """Record a message of an attempt."""
        self._last_message[trial, attempt] = self._clock()
        self._suspects.pop((trial, attempt), None)

    def keep(self, held: Collection[Lease]) -> None:
        """Forget all leases except those that are held."""
        for memory in (self._last_message, self._suspects, self._waiting):
            for lease in memory.keys() - held:
                del memory[lease]

    @contextmanager
    def speaking(self, leases: Sequence[Lease]) -> Iterator[None]:
        """Within the block, these attempts wait for an answer, and so do not count as silent."""
        for lease in leases:
            self._speaking[lease] = self._speaking.get(lease, 0) + 1
        try:
            yield
        finally:
            for lease in leases:
                self._speaking[lease] -= 1
                if not self._speaking[lease]:
                    del self._speaking[lease]
                self.record_message(*lease)

    def suspect(self, leases: Iterable[Lease]) -> None:
        """Mark attempts that have not begun and may have been sent to a lost node."""
        for lease in leases:
            self._suspects.setdefault(lease, self._clock())

    def silent(self, trial: int, attempt: int, seconds: float, *, began: bool) -> bool:
        """Return whether an attempt was silent for longer than `seconds`. One that has not begun
        may wait forever, unless it is suspected.
        """
        lease = trial, attempt
        if lease in self._speaking:
            return False
        since = self._last_message.get(lease) if began else self._suspects.get(lease)
        if since is None:
            if began:
                self._last_message[lease] = self._clock()
            return False
        if self._clock() - since <= seconds:
            return False
        self._last_message.pop(lease, None)
        self._suspects.pop(lease, None)
        return True

    def waits(self, trial: int, attempt: int) -> float:
        """Return for how many seconds an attempt has waited for a machine since the first call."""
        return self._clock() - self._waiting.setdefault((trial, attempt), self._clock())

    def avoid(self, node_id: str) -> None:
        """Avoid a node that fell silent: Ray may not notice for a minute, and attempts sent there
        meanwhile never arrive.
        """
        if node_id:
            self._avoided[node_id] = self._clock()

    def seen(self, node_id: str) -> None:
        """Record a message from a node."""
        self._avoided.pop(node_id, None)

    def avoided(self) -> tuple[str, ...]:
        """Return the nodes to avoid for now: an attempt may have been stuck on a healthy one."""
        return tuple(
            node for node, since in self._avoided.items() if self._clock() - since < AVOID_SECONDS
        )

    def mark_draining(self, node_id: str, why: str, *, drained: bool = False) -> None:
        """Record that a node is about to go away. `drained`: whether the cluster knows."""
        if not node_id or node_id in self.draining:
            return
        self.draining[node_id] = why
        if not drained:
            self.undrained.append((node_id, why))

    def draining_of(self, node_ids: Iterable[str]) -> str | None:
        """Return why the first draining one of these nodes is about to go away; None if none is."""
        return next(
            (why for node_id in node_ids if (why := self.draining.get(node_id)) is not None), None
        )

    def pop_undrained(self) -> tuple[tuple[str, str], ...]:
        """Remove and return the draining nodes to report to the cluster."""
        taken, self.undrained = tuple(self.undrained), []
        return taken


class TaskRunLeases:
    """Attempts by the task run that carries them: its trial's, and those of very short trials that
    it was given afterwards. So losing one task run does not require a scan of all others.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._given: dict[Lease, str] = {}
        """Task runs that were given a further trial, until that has begun."""
        self._carried: dict[str, set[Lease]] = {}
        for n, a in holders(history):  # after a restart
            if a.task_run is not None:
                self._carried.setdefault(a.task_run, set()).add((n, a.number))

    def give(self, lease: Lease, task_run: str) -> None:
        """Record that a task run was given this attempt as its next one."""
        self._given[lease] = task_run
        self._carried.setdefault(task_run, set()).add(lease)

    def began(self, lease: Lease, task_run: str) -> None:
        """Record that an attempt runs in a task run."""
        self._given.pop(lease, None)
        self._carried.setdefault(task_run, set()).add(lease)

    def ended(self, lease: Lease) -> None:
        """Record that this attempt must not begin any more."""
        self._given.pop(lease, None)

    def release(self, task_run: str, trial: int) -> list[Lease]:
        """Return the attempts that a lost task run still carried, without those of its own `trial`
        that have begun.
        """
        return [
            lease
            for lease in self._carried.pop(task_run, ())
            if self._given.get(lease) == task_run
            # A later attempt of its own trial is a retry of the same task run, and runs.
            or (
                lease[0] != trial
                and (a := self._history.lease(*lease)) is not None
                and a.task_run == task_run
            )
        ]
