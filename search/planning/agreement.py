"""Whether earlier experiments tell about each other, so that a new one may learn from them unasked.

Of each experiment the ranks of its trials are predicted from the others alone (leave one out). Only
if these predictions were right on the whole, with a margin, do the experiments count as of one
kind. All of them are judged together: a choice of those that agree would find some by chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Final

from regrow.search.measured import Known
from regrow.search.one_thread import on_one_thread
from regrow.search.samplers import cube
from regrow.search.spec import Spec

LEAST_EXPERIMENTS: Final = 3
"""Fewer tell nothing: two agree by chance."""
LEAST_TRIALS: Final = 10
"""Trials of an experiment with which it counts."""
LEAST: Final = 0.2
"""The lower bound of their mean correlation above which experiments are learnt from. Of 192 groups
of 3 to 8 unrelated random tasks 7 had more; of related ones a third with 3 experiments, two thirds
with 5, nearly all with 8.
"""
CERTAIN: Final = (2.92, 2.35, 2.13, 2.02, 1.94, 1.89)
"""Quantiles of 95 % of Student's t distribution, from two degrees of freedom on."""
_NEAR: Final = 0.25
"""Distance in the unit cube, for one dimension, over which a configuration tells about another."""
_NOISE: Final = 0.3
"""Variance of a trial's score that its configuration does not explain."""


@on_one_thread
def agreement(spec: Spec, experiments: Sequence[Sequence[Known]]) -> list[float]:
    """Return for each experiment the correlation of its trials' ranks with those that the others
    predict, from -1 to 1. The trials are ordered from the best to the worst.
    """
    import numpy as np

    from regrow.search.samplers.mobster_model import normal_scores

    parameters = cube.modelled(spec.space)
    placed, scores = [], []
    for known in experiments:
        points = [cube.point(spec.space, parameters, one.config, cube.MIDDLE) for one in known]
        fit = [point for point in points if point is not None]
        placed.append(np.array(fit, dtype=float).reshape(len(fit), len(parameters)))
        scores.append(normal_scores(np.arange(len(fit), dtype=float)))
    reach = 2.0 * _NEAR**2 * max(1, len(parameters))

    def alike(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        squares = ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2)
        return np.asarray(np.exp(-squares / reach))

    weights = [
        np.linalg.solve(alike(own, own) + _NOISE * np.eye(len(own)), score)
        for own, score in zip(placed, scores, strict=True)
    ]
    found = []
    for place, own in enumerate(placed):
        predicted = sum(
            alike(own, other) @ weight
            for number, (other, weight) in enumerate(zip(placed, weights, strict=True))
            if number != place
        )
        ranks = np.argsort(np.argsort(predicted, kind="stable"), kind="stable")
        with np.errstate(invalid="ignore", divide="ignore"):
            found.append(float(np.corrcoef(ranks, np.arange(len(own)))[0, 1]))
    return [0.0 if math.isnan(one) else one for one in found]


def least_mean(correlations: Sequence[float]) -> float:
    """Return the lower bound (95 %) of the mean of experiments' correlations; -1 for fewer than
    LEAST_EXPERIMENTS.
    """
    count = len(correlations)
    if count < LEAST_EXPERIMENTS:
        return -1.0
    t = CERTAIN[min(count - 3, len(CERTAIN) - 1)]
    return fmean(correlations) - t * stdev(correlations) / math.sqrt(count)
