"""Shared parts of schedulers with rungs."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import TypeAlias

from regrow.search.errors import SpecError
from regrow.search.options import check_whole
from regrow.search.schedulers.base import Final, Layout, Verdict
from regrow.search.schedulers.guard import Guarded

Key: TypeAlias = tuple[float, int, int]
"""Sort key of a trial in a rung: its cost, the tie-breaker, its number."""


def rung_steps(max_steps: int, grace_period: int, reduction_factor: int) -> list[int]:
    """Return the steps grace_period * reduction_factor**k below `max_steps`. Raises SpecError."""
    check_whole("reduction_factor", reduction_factor, 2, "3 is usual")
    if not 1 <= grace_period <= max_steps:
        problem = f"is not between 1 and max_steps ({max_steps})"
        hint = "it is the number of steps that every trial gets"
        raise SpecError("grace_period", grace_period, problem, hint)
    steps, step = [], grace_period
    while step < max_steps:
        steps.append(step)
        step *= reduction_factor
    return steps


def check_brackets(brackets: int | None, most: int) -> None:
    """Raise SpecError unless `brackets` is a whole number from 1 to `most`, or None for all."""
    whole = isinstance(brackets, int) and not isinstance(brackets, bool)
    if brackets is not None and not (whole and 1 <= brackets <= most):
        problem = f"is not a whole number from 1 to {most}"
        raise SpecError("brackets", brackets, problem, "leave it out for all")


class Rung:
    """The trials that reached a step, best first, and those of them that wait there."""

    def __init__(self) -> None:
        self.reached: list[Key] = []
        self.waiting: list[Key] = []
        self._keys: dict[int, Key] = {}
        self._excluded: dict[int, Key] = {}

    def reached_by(self, trial: int) -> Key | None:
        """Return the key of a trial that reached the rung, None if it did not."""
        return next((key for key in self.reached if key[-1] == trial), None)

    def place(self, key: Key) -> int:
        """Return how many are better than `key`, which need not have been entered."""
        return bisect_left(self.reached, key)

    def enter(self, key: Key, *, waits: bool) -> None:
        """Add a trial permanently; `waits`: it is paused here."""
        insort(self.reached, key)
        if waits:
            insort(self.waiting, key)
            self._keys[key[-1]] = key

    def leave(self, trial: int) -> bool:
        """Stop a trial from waiting here; return whether it did. It still counts."""
        key = self._keys.pop(trial, None)
        if key is None:
            return False
        del self.waiting[bisect_left(self.waiting, key)]
        return True

    def rejoin(self, trial: int) -> bool:
        """Let a trial wait here once more; return False if it never reached the rung."""
        key = self.reached_by(trial)
        if key is not None:
            insort(self.waiting, key)
            self._keys[trial] = key
        return key is not None

    def exclude(self, trial: int) -> None:
        """Take a trial that has ended out of the rung."""
        if (key := self.reached_by(trial)) is not None:
            self.reached.remove(key)
            self._excluded[trial] = key

    def include(self, trial: int) -> None:
        """Return an excluded trial to its place."""
        if (key := self._excluded.pop(trial, None)) is not None:
            insort(self.reached, key)


class Bracketed(Guarded):
    """A scheduler whose trials each belong to one bracket, which decides for it."""

    layout: Layout = "rungs"

    def bracket_of(self, trial: int) -> Bracket:
        """Return the bracket of a trial."""
        raise NotImplementedError

    def first(self, trial: int, after: int) -> int | None:
        """Return the next step above `after` at which the trial is judged."""
        return self.bracket_of(trial).following(after)

    def is_recheck(self, trial: int, step: int) -> bool:
        """Return whether the trial is judged at this step by a rung that it has left."""
        return self.bracket_of(trial).is_recheck(step)

    def first_of_next(self, trial: int) -> int | None:
        """Return the first rung of the trial's bracket."""
        return self.first(trial, 0)

    def judge(self, trial: int, values: Sequence[float]) -> Verdict:
        """Compare the trial with the others of its bracket at this rung."""
        bracket, step = self.bracket_of(trial), len(values)
        if bracket.is_recheck(step):
            return bracket.decide_recheck(trial, step, self.least_continuing(step))
        return bracket.decide(trial, step, self.setting.sign * values[-1])

    def tell(self, trial: int, values: Sequence[float], verdict: Verdict) -> None:
        """Enter the value into its rung."""
        cost = self.setting.sign * values[-1]
        self.bracket_of(trial).enter(trial, len(values), cost, verdict)

    def started(self, trial: int) -> None:
        """Note that a trial runs; a paused one is promoted."""
        self.bracket_of(trial).started(trial)

    def dropped(self, trial: int) -> None:
        """Note that the trial no longer waits."""
        self.bracket_of(trial).ended_or_retired(trial)

    def ended(self, trial: int, how: Final) -> None:
        """Note that no other trial needs to wait for this one."""
        self.bracket_of(trial).ended_or_retired(trial)

    def revived(self, trial: int, *, held: bool) -> None:
        """Note that the trial continues towards its next rung, or waits."""
        self.bracket_of(trial).revived(trial, held=held)

    def excluded(self, trial: int, *, excluded: bool) -> None:
        """Take the trial out of all rungs, or return it."""
        for rung in self.bracket_of(trial).rungs.values():
            (rung.exclude if excluded else rung.include)(trial)


class Bracket:
    """Rungs at `steps` that trials climb; the best 1/`eta` of a rung continue to the next."""

    def __init__(self, steps: Sequence[int], eta: int) -> None:
        self.steps = list(steps)
        self.eta = eta
        self.rungs = {step: Rung() for step in steps}

    def following(self, after: int) -> int | None:
        """Return the first step above `after` at which trials are judged."""
        return next((step for step in self.steps if step > after), None)

    def is_recheck(self, step: int) -> bool:
        """Return whether trials are judged at this step by a rung that they have left."""
        return False

    def decide(self, trial: int, step: int, cost: float) -> Verdict:
        """Decide on a trial at a rung."""
        raise NotImplementedError

    def decide_recheck(self, trial: int, step: int, least: int) -> Verdict:
        """Decide on a trial that has left a rung, by its place there among all that have reached it
        by now. `least`: how many of them continue at least.
        """
        raise NotImplementedError

    def enter(self, trial: int, step: int, cost: float, verdict: Verdict) -> None:
        """Enter a trial and the decision on it into a rung."""
        raise NotImplementedError

    def started(self, trial: int) -> None:
        """Note that an attempt of the trial started; a promotion if the trial was paused."""

    def ended_or_retired(self, trial: int) -> None:
        """Note that the trial ended or was retired."""

    def revived(self, trial: int, *, held: bool) -> None:
        """Note that a failed trial is retried. It waits at the last rung that it reached if `held`,
        else it continues to the next one.
        """
        if held:
            any(self.rungs[step].rejoin(trial) for step in reversed(self.steps))
