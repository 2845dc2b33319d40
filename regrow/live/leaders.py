"""The best trials, kept while the log grows: with ten thousand trials nothing is sorted for a picture."""

from __future__ import annotations

from bisect import insort
from heapq import nsmallest

from regrow.search.history import History, TrialRecord

KEPT = 16


class Leaders:
    """The first KEPT trials by their best value; of equal ones the lower number is first."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._kept: list[tuple[float, int]] = []
        self._stale = False

    def improved(self, number: int) -> None:
        """A trial reported something."""
        if self._stale:
            return
        key = self._key(self._history.trials[number])
        if key is None or (len(self._kept) == KEPT and key >= self._kept[-1]):
            return
        self._kept = [pair for pair in self._kept if pair[1] != number]
        insort(self._kept, key)
        del self._kept[KEPT:]

    def rewound(self, number: int) -> None:
        """A trial went back to a checkpoint: its best value may be gone, and another one may have its place."""
        if any(kept == number and self._key(self._history.trials[number]) != (cost, kept) for cost, kept in self._kept):
            self._stale = True  # found anew when somebody looks: a driver's loss takes many trials back at once

    @property
    def trials(self) -> list[TrialRecord]:
        """Best first; those without a value are left out."""
        if self._stale:
            keys = (key for trial in self._history.trials if (key := self._key(trial)) is not None)
            self._kept, self._stale = nsmallest(KEPT, keys), False
        return [self._history.trials[number] for _, number in self._kept]

    def _key(self, trial: TrialRecord) -> tuple[float, int] | None:
        if trial.best is None:
            return None
        return (self._history.objective.sign * trial.best[0], trial.number)
