"""Rules that compare a trial with all others at its step: the median and the percentile rule.

Golovin et al., "Google Vizier: A Service for Black-Box Optimization", KDD 2017, section 3.2.1, and
Optuna's PercentilePruner (Akiba et al., KDD 2019, section 3.3), which compares with finished
trials; here with all values so far, because a decision must not wait for the first to finish.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from regrow.search.numbers import mean
from regrow.search.options import check_between, check_whole
from regrow.search.schedulers.base import Verdict
from regrow.search.schedulers.guard import Guarded
from regrow.search.schedulers.rungs import rung_steps
from regrow.search.space.setting import Setting
from regrow.search.step_metric import stretches

ONE_BY_ONE = 100_000
"""Up to this many equal values are summed one by one, as a product's last digits may differ."""


@dataclass(frozen=True, slots=True)
class _Sofar:
    """A trial's costs up to a step."""

    step: int = 0
    total: float = 0.0
    best: float = math.inf


class Median(Guarded):
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
        guard: bool | float | None = None,
    ) -> None:
        super().__init__(setting)
        check_whole("grace_period", grace_period, 1)
        check_whole("min_samples_required", min_samples_required, 1)
        check_whole("interval", interval, 1)
        self._grace, self._enough, self._interval = grace_period, min_samples_required, interval
        self._trials: dict[int, _Sofar] = {}
        self._others: dict[int, list[float]] = {}
        """By step, what counts of all trials that were decided on there, in order."""
        self._by_trial: dict[int, list[tuple[int, float]]] = {}  # the same by trial
        if guard is not None and guard is not False:
            self.guard(rung_steps(setting.max_steps or grace_period, grace_period, 3), guard)

    def first(self, trial: int, after: int) -> int | None:
        """Return the next of grace_period, grace_period + interval, ..., below max_steps."""
        return self.regular(after, self._grace, self._interval)

    def judge(self, trial: int, values: Sequence[float]) -> Verdict:
        """Compare the best of `values` with what counts of the others at this step."""
        step, best = len(values), self._sofar(trial, values).best
        others, until = self._others.get(step, []), self.first(trial, step)
        n = len(others)
        if n < self._enough:
            why = f"{n} others have reached step {step}, {self._enough} are needed"
            return Verdict(until=until, why=why)
        stops, why = self._judged(best, others, step)
        return Verdict(action="stop", why=why) if stops else Verdict(until=until, why=why)

    def tell(self, trial: int, values: Sequence[float], verdict: Verdict) -> None:
        """Store what counts of the trial at this step."""
        sofar = self._trials[trial] = self._sofar(trial, values)
        if (counts := self._counting(sofar)) is not None:
            insort(self._others.setdefault(sofar.step, []), counts)
            self._by_trial.setdefault(trial, []).append((sofar.step, counts))

    def excluded(self, trial: int, *, excluded: bool) -> None:
        """Take what counts of the trial away, or return it."""
        for step, counts in self._by_trial.get(trial, ()):
            if excluded:
                self._others[step].remove(counts)
            else:
                insort(self._others[step], counts)

    def _judged(self, best: float, others: Sequence[float], step: int) -> tuple[bool, str]:
        """Return whether a trial with this best cost stops, and the comparison in words."""
        n, sign = len(others), self.setting.sign
        median = mean([others[(n - 1) // 2], others[n // 2]])
        why = (
            f"its best {sign * best:g} against {sign * median:g}, the median of {n} running"
            f" averages at step {step}"
        )
        return best > median, why

    def _counting(self, sofar: _Sofar) -> float | None:
        average = sofar.total / sofar.step
        return average if math.isfinite(average) else None

    def _sofar(self, trial: int, values: Sequence[float]) -> _Sofar:
        """Return the trial's costs so far. Only values since the last decision are added."""
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


class Percentile(Median):
    """At step s a trial continues if fewer than `percentile` percent of the trials that reached s,
    itself included, had a better best value by then. A tie continues. Decisions are due as with
    "median", and the other options are the same.
    """

    def __init__(self, setting: Setting, *, percentile: float = 25.0, **options: Any) -> None:
        super().__init__(setting, **options)
        check_between("percentile", percentile, 0, 100, "25 keeps a quarter")
        self._percentile = percentile

    def _judged(self, best: float, others: Sequence[float], step: int) -> tuple[bool, str]:
        better, n = bisect_left(others, best), len(others) + 1
        why = f"{better} of {n} were better at step {step}, {self._percentile:g} % go on"
        return better * 100 >= self._percentile * n, why

    def _counting(self, sofar: _Sofar) -> float | None:
        return sofar.best
