"""Which attempts each task run carries: its trial's, and those of very short trials that it was given after that one."""

from __future__ import annotations

from regrow.search.history import History

Lease = tuple[int, int]
"""(trial, attempt)"""


class Carriers:
    """Task runs by what they carry, so that the loss of one costs no look at all the others."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._given: dict[Lease, str] = {}
        """Task runs that were given a further trial to run, until that has begun."""
        self._carried: dict[str, set[Lease]] = {}
        for n in history.running:  # after a restart
            if (a := history.trials[n].attempt) is not None and a.task_run is not None:
                self._carried.setdefault(a.task_run, set()).add((n, a.number))

    def give(self, lease: Lease, task_run: str) -> None:
        """A task run is to go on with this attempt."""
        self._given[lease] = task_run
        self._carried.setdefault(task_run, set()).add(lease)

    def began(self, lease: Lease, task_run: str) -> None:
        """An attempt runs in a task run."""
        self._given.pop(lease, None)
        self._carried.setdefault(task_run, set()).add(lease)

    def ended(self, lease: Lease) -> None:
        """Nobody is to begin this attempt any more."""
        self._given.pop(lease, None)

    def let_go(self, task_run: str, trial: int) -> list[Lease]:
        """What a task run that is gone still carried, but for what began of its own `trial`."""
        return [
            lease for lease in self._carried.pop(task_run, ())
            if self._given.get(lease) == task_run
            # A later attempt of its own trial is the same task run's retry, and alive.
            or (lease[0] != trial and (a := self._history.lease(*lease)) is not None and a.task_run == task_run)
        ]
