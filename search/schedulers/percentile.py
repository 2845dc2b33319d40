"""The percentile rule: a trial stops unless its best value so far is among the best `percentile`
percent at that step.

Optuna's PercentilePruner (Akiba et al., KDD 2019, section 3.3), which compares with finished
trials; here with all values so far, because a decision must not wait for the first trials to
finish.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from regrow.search.errors import SpecError
from regrow.search.schedulers.base import Scheduler, Verdict
from regrow.search.space.setting import Setting
from regrow.search.step_metric import stretches


class Percentile(Scheduler):
    """At step s a trial continues if fewer than `percentile` percent of the trials that reached s,
    itself included, had a better best value by then. A tie continues.

    Decisions are due at `grace_period`, then every `interval` steps. With fewer than
    `min_samples_required` others no trial is stopped.
    """

    needs_max_steps = False

    def __init__(
        self,
        setting: Setting,
        *,
        percentile: float = 25.0,
        grace_period: int = 1,
        min_samples_required: int = 3,
        interval: int = 1,
    ) -> None:
        super().__init__(setting)
        if not 0 < percentile < 100:
            raise SpecError(
                "percentile", percentile, "is not between 0 and 100", "25 keeps a quarter"
            )
        given = {
            "grace_period": grace_period,
            "min_samples_required": min_samples_required,
            "interval": interval,
        }
        for name, value in given.items():
            if value < 1:
                raise SpecError(name, value, "is below 1", "write 1 or more")
        self._percentile, self._grace, self._enough, self._interval = (
            percentile,
            grace_period,
            min_samples_required,
            interval,
        )
        self._bests: dict[int, list[float]] = {}
        """By step, the best costs of all trials that were decided on there, in order."""
        self._sofar: dict[int, tuple[int, float]] = {}
        """By trial, its last decision's step and its best cost by then."""

    def first(self, trial: int, after: int) -> int | None:
        """Return the next of grace_period, grace_period + interval, ..., below max_steps."""
        passed = max(0, after - self._grace + self._interval) // self._interval
        step = self._grace + passed * self._interval
        return step if self.setting.max_steps is None or step < self.setting.max_steps else None

    def decide(self, trial: int, values: Sequence[float]) -> Verdict:
        """Count the others that were better at this step."""
        step, best = len(values), self._best(trial, values)
        others = self._bests.get(step, [])
        until = self.first(trial, step)
        if len(others) < self._enough:
            return Verdict(
                until=until,
                why=f"{len(others)} others have reached step {step}, {self._enough} are needed",
            )
        better, n = bisect_left(others, best), len(others) + 1
        why = f"{better} of {n} were better at step {step}, {self._percentile:g} % go on"
        return (
            Verdict(until=until, why=why)
            if better * 100 < self._percentile * n
            else Verdict(action="stop", why=why)
        )

    def tell(self, trial: int, values: Sequence[float], verdict: Verdict) -> None:
        """Store the trial's best value at this step."""
        step, best = len(values), self._best(trial, values)
        self._sofar[trial] = step, best
        insort(self._bests.setdefault(step, []), best)

    def _best(self, trial: int, values: Sequence[float]) -> float:
        """Return the trial's best cost so far. Only the values since the last decision are read."""
        step, best = self._sofar.get(trial, (0, float("inf")))
        return min([best, *(self.setting.sign * value for value, _ in stretches(values, step))])
