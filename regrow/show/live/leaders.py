"""The best trials, updated as the log grows, so that no picture sorts ten thousand trials."""

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
        """Update after a report of a trial."""
        if self._stale:
            return
        key = self._key(self._history.trials[number])
        if key is None or (len(self._kept) == KEPT and key >= self._kept[-1]):
            return
        self._kept = [pair for pair in self._kept if pair[1] != number]
        insort(self._kept, key)
        del self._kept[KEPT:]

    def rewound(self, number: int) -> None:
        """Update after a trial went back to a checkpoint: its best value may be gone, and another
        trial may replace it.
        """
        if any(
            kept == number and self._key(self._history.trials[number]) != (cost, kept)
            for cost, kept in self._kept
        ):
            # recomputed on the next read, as a driver's loss takes many trials back at once
            self._stale = True

    @property
    def trials(self) -> list[TrialRecord]:
        """Best first; trials without a value are omitted."""
        if self._stale:
            keys = (key for trial in self._history.trials if (key := self._key(trial)) is not None)
            self._kept, self._stale = nsmallest(KEPT, keys), False
        return [self._history.trials[number] for _, number in self._kept]

    def _key(self, trial: TrialRecord) -> tuple[float, int] | None:
        if trial.best is None:
            return None
        return (self._history.objective.sign * trial.best[0], trial.number)
