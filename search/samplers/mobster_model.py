"""From curves to the next point: which observations the process of "mobster" gets, their scores,
its hyperparameters, and the most promising point.

Points are in the unit cube. Costs: less is better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from regrow.search.one_thread import on_one_thread
from regrow.search.samplers.acquisition import CubePoints, largest_improvement
from regrow.search.samplers.curve_process import (
    Beforehand,
    Floats,
    Hyperparameters,
    Observations,
    Process,
    fit,
)
from regrow.search.samplers.outcomes import Outcomes
from regrow.search.space.domains import Choice

Rows = npt.NDArray[np.intp]
Curve = Sequence[tuple[float, float]]
"""(time, least cost so far); time is logarithmic, 0 at the first step, 1 at `max_steps`."""

MOST_SEEN: Final = 400
"""Most observations that the process gets; its time grows with their cube."""
MOST_FITTED: Final = 120
"""Most observations that hyperparameters are fitted to."""
GROWTH: Final = 1.2
"""Hyperparameters are fitted again when the number of trials has grown by this factor."""
LEADERS: Final = 5
"""Number of trials with the best expected end near which better points are searched."""
_BEST: Final = -4.0
_WORST: Final = 2.0
"""Bounds of a distance from the median, in standard deviations: a diverged trial is a bad one."""
_MOST: Final = 1e300
"""Largest cost that differs from a larger one: differences of larger ones may exceed a float."""
_LEAST_WIDTH: Final = 0.25
"""Least standard deviation, as a share of the distance between the quantiles of 16 and 84 %."""


class MobsterModel:
    """Proposes points. It caches the last fit with its data, which alone determine it. `by_step`:
    costs are scored within their step, not by rank over all. `augmented`: less is expected where
    the outcome is known but for noise.
    """

    def __init__(
        self,
        cube: CubePoints,
        startup: int,
        beforehand: Beforehand | None = None,
        *,
        by_step: bool = False,
        augmented: bool = False,
    ) -> None:
        self._by_step, self._augmented = by_step, augmented
        self._cube, self._beforehand = cube, beforehand
        self._choice = np.array([isinstance(domain, Choice) for domain in cube.domains])
        self._startup = startup
        self._fitted: tuple[bytes, Hyperparameters] | None = None
        self._outcomes = Outcomes(self._choice)

    @on_one_thread
    def propose(
        self,
        points: Mapping[int, Sequence[float]],
        curves: Mapping[int, Curve],
        cut: Mapping[int, Curve],
        pending: Iterable[int],
        failed: AbstractSet[int],
        seed: int,
    ) -> list[float]:
        """Return the point of the largest expected improvement at the last step, by points and
        curves of trials. `cut`: curves of trials that failed, none of which is the best. Around
        `failed` ones less is expected. `seed`: of the random candidates.
        """
        process = self.process(points, {**curves, **cut})
        known = np.array([points[number] for number in sorted(curves)])
        expected, _ = process.at_the_end(known)
        leaders = known[np.argsort(expected, kind="stable")[:LEADERS]]
        running = [points[number] for number in sorted(pending)]
        if running:
            process = process.with_fantasies(np.array(running))
        taken = np.array(
            [*known.tolist(), *running, *(points[number] for number in sorted(failed))]
        )
        success = None
        if failed:
            success = self._outcomes.log_success(points, failed, curves.keys())
        rng = np.random.default_rng(seed)
        return largest_improvement(
            process.at_the_end,
            float(expected.min()),
            leaders,
            taken,
            self._cube,
            rng,
            success,
            process.noise if self._augmented else None,
        )

    def process(
        self, points: Mapping[int, Sequence[float]], curves: Mapping[int, Curve]
    ) -> Process:
        """Return the process given curves, in scores of their costs."""
        numbers = sorted(curves)
        whose = np.array([number for number in numbers for _ in curves[number]])
        times, costs = np.array(
            [observation for number in numbers for observation in curves[number]]
        ).T
        at = np.array([points[number] for number in whose.tolist()])
        rows = _chosen(whose, times, costs, MOST_SEEN)
        seen = self._observations(at[rows], times[rows], self._scores(whose, times, costs, rows))
        return Process(seen, self._fit(numbers, whose, at, times, costs))

    def _fit(
        self, numbers: Sequence[int], whose: Rows, at: Floats, times: Floats, costs: Floats
    ) -> Hyperparameters:
        """Fit to the first trials; their number grows in large steps, so fits are few."""
        count = self._startup
        while count * GROWTH + 1 <= len(numbers):
            count = int(count * GROWTH + 1)
        first = np.flatnonzero(whose <= numbers[:count][-1])
        rows = first[_chosen(whose[first], times[first], costs[first], MOST_FITTED)]
        data = b"".join(part[rows].tobytes() for part in (at, times, costs))
        if self._fitted is None or self._fitted[0] != data:
            scores = self._scores(whose[rows], times[rows], costs[rows], np.arange(len(rows)))
            self._fitted = data, fit(self._observations(at[rows], times[rows], scores))
        return self._fitted[1]

    def _scores(self, whose: Rows, times: Floats, costs: Floats, rows: Rows) -> Floats:
        """Return the scores of some of the costs."""
        if self._by_step:
            return step_scores(whose, times, costs, rows)
        return normal_scores(costs)[rows]

    def _observations(self, at: Floats, times: Floats, values: Floats) -> Observations:
        return Observations(
            points=at, times=times, values=values, choice=self._choice, beforehand=self._beforehand
        )


def advice(advisers: Sequence[Callable[[Floats], Floats]]) -> Beforehand:
    """Return the predictions of several advisers as a function from points (m, d) to (m, k)."""
    return lambda points: np.stack([expected(points) for expected in advisers], axis=1)


def normal_scores(costs: Floats) -> Floats:
    """Return costs as normal scores by their rank; equal ones have equal scores, NaN is worst."""
    costs = np.where(np.isnan(costs), np.inf, costs)
    _, place, counts = np.unique(costs, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - counts / 2
    return np.asarray(ndtri(middle[place] / len(costs)))


def step_scores(whose: Rows, times: Floats, costs: Floats, rows: Rows) -> Floats:
    """Return the scores, within their step, of some `rows` among all looks: the trial of each, its
    time and its least cost so far, ordered by trial, then by time.

    Ranks over all steps say mostly how early a value is, and stretch tiny differences among the
    leaders. Here a cost is compared with those of the same step: half of a score is its rank
    (Salinas, Shen and Perrone, ICML 2020, section 4), the other half its distance from the step's
    median, which keeps small differences small.

    Who was stopped before a step is counted there, too, as if it had changed like the median of
    those that went on: these are a selection, in which an average value would be taken for average.
    """
    starts = np.flatnonzero(np.append(True, whose[1:] != whose[:-1]))
    ends = np.append(starts[1:], len(whose))
    columns, column = np.unique(times, return_inverse=True)
    costs = _finite(costs)
    curves = np.stack(
        [np.interp(columns, times[a:b], costs[a:b]) for a, b in zip(starts, ends, strict=True)]
    )
    last = column[ends - 1]
    for step in range(1, curves.shape[1]):
        reached = last >= step
        change = np.median(curves[reached, step] - curves[reached, step - 1])
        curves[~reached, step] = curves[~reached, step - 1] + change
    at, mine = column[rows], costs[rows]
    return np.asarray((_ranks(curves, at, mine) + _distances(curves, at, mine)) / 2)


def _finite(costs: Floats) -> Floats:
    """Return costs with NaN and infinite ones as the worst or best that is finite, up to _MOST."""
    finite = costs[np.isfinite(costs)]
    if not len(finite):
        return np.zeros_like(costs)
    costs = np.where(np.isnan(costs), np.inf, costs)
    return np.asarray(np.clip(costs, max(finite.min(), -_MOST), min(finite.max(), _MOST)))


def _ranks(curves: Floats, at: Rows, costs: Floats) -> Floats:
    """Return normal scores by rank within the step."""
    count, theirs = len(curves), curves[:, at]
    better = (theirs < costs).sum(axis=0) + (theirs == costs).sum(axis=0) / 2
    return np.asarray(ndtri(np.clip(better / count, 0.5 / count, 1 - 0.5 / count)))


def _distances(curves: Floats, at: Rows, costs: Floats) -> Floats:
    """Return distances from the median of each step, in widths of its better half."""
    low, middle, high = np.quantile(curves, [0.16, 0.5, 0.84], axis=0)
    width = np.maximum(np.maximum(middle - low, _LEAST_WIDTH * (high - low)), 1e-12)
    return np.asarray(np.clip((costs - middle[at]) / width[at], _BEST, _WORST))


def _chosen(whose: Rows, times: Floats, costs: Floats, most: int) -> Rows:
    """Return the rows to use if there are too many.

    First all rows of the trials with the best ends, then those at the last step, the last ones of
    other trials, and the rest. Within each class the order is a hash of the trials' numbers, which
    mixes older and newer ones.
    """
    count = len(whose)
    if count <= most:
        return np.arange(count)
    last = np.append(whose[1:] != whose[:-1], True)
    best = whose[np.argsort(np.where(last, costs, np.inf), kind="stable")[: most // 4]]
    urgency = np.where(np.isin(whose, best), 0, np.where(times >= 1.0, 1, np.where(last, 2, 3)))
    mixed = whose.astype(np.uint64) * np.uint64(2654435761) % np.uint64(2**32)
    return np.sort(np.lexsort((mixed, urgency))[:most])
