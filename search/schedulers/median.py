"""The median stopping rule: a trial stops if its best value is worse than the median of the others'
running averages.

Golovin et al., "Google Vizier: A Service for Black-Box Optimization", KDD 2017, section 3.2.1.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

from regrow.search.errors import SpecError
from regrow.search.schedulers.base import Scheduler, Verdict
from regrow.search.space.setting import Setting
from regrow.search.step_metric import stretches

ONE_BY_ONE = 100_000
"""Up to this many equal values are summed by repeated addition, whose last digits may differ from a
product. More are multiplied.
"""


@dataclass(frozen=True, slots=True)
class _Sofar:
    """A trial's costs up to a step."""

    step: int = 0
    total: float = 0.0
    best: float = math.inf


class Median(Scheduler):
    """At step s a trial stops if its best objective so far is strictly worse than the median of the
    running averages, over steps 1 to s, of all other trials that have reached s (including those
    that were stopped or failed since).

    Decisions are due at `grace_period`, then every `interval` steps. With fewer than
    `min_samples_required` others no trial is stopped. The median of an even number is the mean of
    the middle two. Averages that are not finite don't count.
    """

    needs_max_steps = False

    def __init__(
        self,
        setting: Setting,
        *,
        grace_period: int = 1,
        min_samples_required: int = 3,
        interval: int = 1,
    ) -> None:
        super().__init__(setting)
        given = {
            "grace_period": grace_period,
            "min_samples_required": min_samples_required,
            "interval": interval,
        }
        for name, value in given.items():
            if value < 1:
                raise SpecError(name, value, "is below 1", "write 1 or more")
        self._grace = grace_period
        self._enough = min_samples_required
        self._interval = interval
        self._trials: dict[int, _Sofar] = {}
        self._averages: dict[int, list[float]] = {}
        """By step, the averages of all trials that were decided on there, in order."""

    def first(self, trial: int, after: int) -> int | None:
        """Return the next of grace_period, grace_period + interval, ..., below max_steps."""
        passed = max(0, after - self._grace + self._interval) // self._interval
        step = self._grace + passed * self._interval
        return step if self.setting.max_steps is None or step < self.setting.max_steps else None

    def decide(self, trial: int, values: Sequence[float]) -> Verdict:
        """Compare the best of `values` with the others' averages at this step."""
        step = len(values)
        averages, best = self._averages.get(step, []), self._sofar(trial, values).best
        n = len(averages)
        until = self.first(trial, step)
        if n < self._enough:
            return Verdict(
                until=until, why=f"{n} others have reached step {step}, {self._enough} are needed"
            )
        median = (averages[(n - 1) // 2] + averages[n // 2]) / 2
        sign = self.setting.sign
        why = (
            f"its best {sign * best:g} against {sign * median:g}, the median of {n} running"
            f" averages at step {step}"
        )
        return Verdict(action="stop", why=why) if best > median else Verdict(until=until, why=why)

    def tell(self, trial: int, values: Sequence[float], verdict: Verdict) -> None:
        """Store the trial's average at this step."""
        sofar = self._trials[trial] = self._sofar(trial, values)
        average = sofar.total / sofar.step
        if math.isfinite(average):
            insort(self._averages.setdefault(sofar.step, []), average)

    def _sofar(self, trial: int, values: Sequence[float]) -> _Sofar:
        """Return the trial's costs so far. Only values since the last decision are added, so a
        decision takes time for new values only.
        """
        before = self._trials.get(trial, _Sofar())
        total, best = before.total, before.best
        for value, count in stretches(values, before.step):
            cost = self.setting.sign * value
            if count > ONE_BY_ONE:
                total += count * cost
            else:
                for _ in range(count):
                    total += cost
            best = min(best, cost)
        return _Sofar(len(values), total, best)
