"""Scores of costs within their step, for the process of "mobster". Knows neither trials' results
nor the space.

Ranks over all steps say mostly how early a value is, and stretch tiny differences among the
leaders. Here a cost is compared with those of the same step: half of a score is its rank (Salinas,
Shen and Perrone, ICML 2020, section 4), the other half its distance from the step's median, which
keeps small differences small.

Who was stopped before a step is counted there, too, as if it had changed like the median of those
that went on: these are a selection, in which an average value would be taken for average.
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
_MOST: Final = 1e300
"""Costs beyond it count as it: differences of larger ones may exceed a float."""
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


def _ranks(curves: Floats, at: npt.NDArray[np.intp], costs: Floats) -> Floats:
    """Return normal scores by rank within the step."""
    count, theirs = len(curves), curves[:, at]
    better = (theirs < costs).sum(axis=0) + (theirs == costs).sum(axis=0) / 2
    return np.asarray(ndtri(np.clip(better / count, 0.5 / count, 1 - 0.5 / count)))


def _distances(curves: Floats, at: npt.NDArray[np.intp], costs: Floats) -> Floats:
    """Return distances from the median of each step, in widths of its better half."""
    low, middle, high = np.quantile(curves, [0.16, 0.5, 0.84], axis=0)
    width = np.maximum(np.maximum(middle - low, _LEAST_WIDTH * (high - low)), 1e-12)
    return np.asarray(np.clip((costs - middle[at]) / width[at], _BEST, _WORST))
