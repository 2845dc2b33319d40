"""Attempts that each task run carries: its trial's, and those of very short trials that it was
given afterwards.
"""

from __future__ import annotations

from regrow.search.history import History

Lease = tuple[int, int]
"""(trial, attempt)."""


class TaskRunLeases:
    """Attempts by task run, so that losing one task run does not require a scan of all others."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._given: dict[Lease, str] = {}
        """Task runs that were given a further trial, until that has begun."""
        self._carried: dict[str, set[Lease]] = {}
        for n in history.running:  # after a restart
            if (a := history.trials[n].attempt) is not None and a.task_run is not None:
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

    def let_go(self, task_run: str, trial: int) -> list[Lease]:
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
