"""ASHA, the stopping variant: asynchronous successive halving without waiting for a rung to fill.

Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, section 3 and algorithm 2; the stopping
variant (a trial is stopped instead of paused, so that none is ever promoted later) is the one of its section 4.2 and of
Ray Tune. Rungs are at grace_period * reduction_factor**k steps, below max_steps.

Where the paper is silent: a trial goes on at a rung if it is among the best max(1, n // reduction_factor) of the n
trials that have reached the rung, itself included; a tie with the worst of these goes on.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from regrow.search.errors import SpecError
from regrow.search.schedulers.base import Verdict
from regrow.search.space import Mode


class Asha:
    """Stops a trial at a rung unless it is among the best 1/reduction_factor there.

    `grace_period`: steps before the first decision. `reduction_factor`: an integer from 2. A decision is one bisection
    in the rung's sorted values.
    """

    def __init__(self, mode: Mode, max_steps: int, *, grace_period: int = 1, reduction_factor: int = 3) -> None:
        if reduction_factor < 2:
            raise SpecError(
                key="schedule.asha.reduction_factor", value=reduction_factor, problem="is below 2", hint="3 is usual"
            )
        if not 1 <= grace_period <= max_steps:
            raise SpecError(
                key="schedule.asha.grace_period",
                value=grace_period,
                problem=f"is not between 1 and max_steps ({max_steps})",
                hint="it is the number of steps that every trial gets",
            )
        self._sign = -1.0 if mode == "max" else 1.0
        self._eta = reduction_factor
        self._rungs: dict[int, list[float]] = {}
        step = grace_period
        while step < max_steps:
            self._rungs[step] = []
            step *= reduction_factor

    def first(self, after: int) -> int | None:
        """The next rung above `after`."""
        return next((rung for rung in self._rungs if rung > after), None)

    def decide(self, trial: int, step: int, value: float) -> Verdict:
        """Compares with all that reached this rung before."""
        rung, cost = self._rungs[step], self._sign * value
        n = len(rung) + 1
        place = bisect_left(rung, cost) + 1
        best = max(1, n // self._eta)
        why = f"place {place} of {n} at rung {step}, {best} go on"
        if place > best:
            return Verdict(go_on=False, why=why)
        return Verdict(go_on=True, until=self.first(step), why=why)

    def tell(self, trial: int, step: int, value: float) -> None:
        """Enters the value into its rung."""
        insort(self._rungs[step], self._sign * value)
