"""Scores of costs within their step, for the process of "mobster". Knows neither trials' results
nor the space.

Ranks over all steps say mostly how early a value is, and stretch tiny differences among the
leaders. Here a cost is compared with those of the same step: half of a score is its rank (Salinas,
Shen and Perrone, ICML 2020, section 4), the other half its distance from the step's median, which
keeps small differences small.

Who was stopped before a step is no stranger there: among those that continued, a selection, an
average value would be taken for average.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from regrow.search.samplers.curve_process import Floats

_BEST: Final = -4.0
_WORST: Final = 2.0
"""Bounds of a distance from the median, in standard deviations: a diverged trial is a bad one."""
_LEAST_WIDTH: Final = 0.25
"""Least standard deviation, as a share of the distance between the quantiles of 16 and 84 %."""


def step_scores(
    whose: npt.NDArray[np.intp], times: Floats, costs: Floats, rows: npt.NDArray[np.intp]
) -> Floats:
    """Return the scores of some `rows` among all looks: the trial of each, its time and its least
    cost so far, ordered by trial, then by time.
    """
    starts = np.flatnonzero(np.append(True, whose[1:] != whose[:-1]))
    ends = np.append(starts[1:], len(whose))
    columns, column = np.unique(times, return_inverse=True)
    costs = _finite(costs)
    curves = np.stack(
        [np.interp(columns, times[a:b], costs[a:b]) for a, b in zip(starts, ends, strict=True)]
    )
    last = column[ends - 1]
    own = np.searchsorted(starts, rows, side="right") - 1
    ranks = _ranks(curves, last, own, column[rows])
    return (ranks + _distances(curves, last, costs[rows], column[rows])) / 2


def _finite(costs: Floats) -> Floats:
    """Return costs with NaN and infinite ones as the worst or best that is finite."""
    finite = costs[np.isfinite(costs)]
    if not len(finite):
        return np.zeros_like(costs)
    costs = np.where(np.isnan(costs), np.inf, costs)
    return np.asarray(np.clip(costs, finite.min(), finite.max()))


def _ranks(
    curves: Floats, last: npt.NDArray[np.intp], own: npt.NDArray[np.intp], at: npt.NDArray[np.intp]
) -> Floats:
    """Return normal scores by rank among all trials, each compared at the latest step up to `at`
    that it has reached.
    """
    count = len(curves)
    common = np.minimum(last[None, :], at[:, None])
    mine, theirs = curves[own[:, None], common], curves[np.arange(count)[None, :], common]
    better = (theirs < mine).sum(axis=1) + (theirs == mine).sum(axis=1) / 2
    return np.asarray(ndtri(np.clip(better / count, 0.5 / count, 1 - 0.5 / count)))


def _distances(
    curves: Floats, last: npt.NDArray[np.intp], costs: Floats, at: npt.NDArray[np.intp]
) -> Floats:
    """Return distances from the median of each step, in widths of its better half. Trials that did
    not reach a step are thought to have changed as the median of those that did.
    """
    whole = curves.copy()
    for step in range(1, whole.shape[1]):
        reached = last >= step
        change = np.median(whole[reached, step] - whole[reached, step - 1])
        whole[~reached, step] = whole[~reached, step - 1] + change
    low, middle, high = np.quantile(whole, [0.16, 0.5, 0.84], axis=0)
    width = np.maximum(np.maximum(middle - low, _LEAST_WIDTH * (high - low)), 1e-12)
    return np.clip((costs - middle[at]) / width[at], _BEST, _WORST)
