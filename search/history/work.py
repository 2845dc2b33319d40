"""The steps that trials have done, and those that they may do before their next decision: what a
budget of steps counts.

Neither depends on how often attempts were lost: a trial that is to continue keeps its claim, and
the steps that it does again count once.
"""

from __future__ import annotations

from collections.abc import Iterable

from regrow.search.history.records import TrialRecord


class Work:
    """Folds the steps of trials. `whole`: the steps of a full training."""

    def __init__(self, whole: int) -> None:
        self.whole = whole
        self.used = 0
        """Steps that trials have done; at least one for each that has ended."""
        self.claimed = 0
        """The same, with those up to the next decision on each trial that is to continue."""
        self._used: list[int] = []
        self._claims: list[int] = []

    @classmethod
    def of(cls, trials: Iterable[TrialRecord], whole: int) -> Work:
        work = cls(whole)
        for trial in trials:
            work.note(trial)
        return work

    def note(self, trial: TrialRecord) -> None:
        """Update after a change of a trial."""
        while len(self._claims) <= trial.number:
            self._used.append(0)
            self._claims.append(0)
        used, claim = _used(trial), self._claim(trial)
        self.used += used - self._used[trial.number]
        self.claimed += claim - self._claims[trial.number]
        self._used[trial.number], self._claims[trial.number] = used, claim

    def claim(self, trial: TrialRecord) -> int:
        """Return the steps, from its first one, that a trial may do before its next decision."""
        return self._claims[trial.number]

    def _claim(self, trial: TrialRecord) -> int:
        if trial.state.final:
            return _used(trial)
        if trial.held:
            return max(trial.curve.time, trial.decided)
        attempt = trial.attempts[-1] if trial.attempts else None
        if attempt is not None and attempt.verdict == "stop":
            return trial.curve.time
        until = None if attempt is None else attempt.until
        return max(trial.curve.time, self.whole if until is None else until)


def _used(trial: TrialRecord) -> int:
    # A trial that fails at its first step counts: else there would be no end of them.
    return max(trial.curve.time, int(trial.state.final and bool(trial.attempts)))
