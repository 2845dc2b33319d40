"""Many points of the unit cube at once, and the one of the largest expected improvement, found by
random points and steps from good ones. For single values see `cube.py`.

Jones, Schonlau and Welch, 1998, section 4.1. The logarithm distinguishes points even if hardly any
improvement is expected, as in Ament et al., NeurIPS 2023. A few rounds of steps from several starts
suffice: the maximum need not be exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from scipy.special import ndtr

from regrow.search.samplers.cube import EDGE, MIDDLE, inside
from regrow.search.samplers.curve_process import Floats
from regrow.search.space import Parameter, Space
from regrow.search.space.domains import Choice, Constant, Domain, Int, Json

Expected = Callable[[Floats], tuple[Floats, Floats]]
"""Maps points (n, d) to the mean and the standard deviation of their cost."""

_ANYWHERE: Final = 300
_FIRST: Final = ((40, 0.1), (20, 0.03))
"""Steps from each good point, and their standard deviation in widths of the cube."""
_LATER: Final = (0.05, 0.02)
_KEPT: Final = 4
_EACH: Final = 25
_MOVED: Final = 0.3
"""Probability that a step changes a parameter; on average at least two are changed."""
_CHANGED: Final = 0.15
"""Probability that a step changes a choice."""
_AGAIN: Final = 1e6
"""Penalty on the log improvement of a point that was tried."""
_SAME: Final = 9
"""Points are equal if their coordinates agree to this many decimals."""
_FAR: Final = -6.0
"""Below this value the improvement is computed by its asymptotic series."""


class CubePoints:
    """Points of a space, whose `parameters` (in the order of `Space.flat`) are the dimensions.

    A model must evaluate a point where its trial will be: in the middle of a cell, and in the
    middle of the cube for an inactive parameter.
    """

    def __init__(self, space: Space, parameters: Sequence[Parameter]) -> None:
        self.domains = [p.domain for p in parameters]
        self._parameters = parameters
        self._constants = {
            p.name: p.domain.value for p in space.flat if isinstance(p.domain, Constant)
        }
        place = {p.name: d for d, p in enumerate(parameters)}
        self._parents: dict[int, list[int]] = {}
        """For each conditional dimension, those that it depends on. Dimensions that also depend on
        a parameter under `grid` are not included.
        """
        for d, p in enumerate(parameters):
            names = {condition.parameter for condition in p.when} - self._constants.keys()
            if p.when and names <= place.keys():
                self._parents[d] = sorted(place[name] for name in names)

    def settled(self, points: Floats) -> Floats:
        """Move points (n, d) to where their configurations are, in place; returns the array."""
        for d, domain in enumerate(self.domains):
            points[:, d] = _middles(domain, points[:, d])
        active = np.ones(points.shape, dtype=np.bool_)
        for d, parents in self._parents.items():
            seen, which = np.unique(
                np.hstack([points[:, parents], active[:, parents]]), axis=0, return_inverse=True
            )
            holds = np.array(
                [self._parameters[d].active(self._values(parents, row.tolist())) for row in seen]
            )
            active[:, d] = holds[which.ravel()]
            points[~active[:, d], d] = MIDDLE
        return points

    def _values(self, dimensions: Sequence[int], row: Sequence[float]) -> Mapping[str, Json]:
        """Return the active parameters' values. `row`: first coordinates, then activity."""
        found = dict(self._constants)
        for place, d in enumerate(dimensions):
            if row[len(dimensions) + place]:
                found[self._parameters[d].name] = self.domains[d].quantile(inside(row[place]))
        return found


def _middles(domain: Domain, at: Floats) -> Floats:
    """Move coordinates to the middle of their cells, if any, as `cube.position` does."""
    cells = domain.cells
    if cells is None:
        return at
    if isinstance(domain, Int) and domain.log:
        low, high = math.log(domain.low - 0.5), math.log(domain.high + 0.5)
        whole = np.clip(np.round(np.exp(low + (high - low) * at)), domain.low, domain.high)
        return np.asarray((np.log(whole) - low) / ((high - low) or 1.0))
    return np.asarray((np.minimum(np.floor(at * cells), cells - 1) + 0.5) / cells)


def largest_improvement(
    expected: Expected,
    least: float,
    good: Floats,
    taken: Floats,
    cube: CubePoints,
    rng: np.random.Generator,
    log_success: Callable[[Floats], Floats] | None = None,
    noise: float | None = None,
) -> list[float]:
    """Return the point with the largest expected improvement over the cost `least`.

    The search also starts near the points `good` (n, d). Points `taken` (m, d) are not proposed
    again while there are others. `log_success`: logarithm of the probability that a trial at a
    point does not fail; None: it never fails. `noise`: the variance of repeats, by which the
    improvement is augmented (`_log_informative`); None: it is not.
    """
    known = {row.tobytes() for row in np.round(taken, _SAME)}

    def promise(points: Floats) -> Floats:
        mean, spread = expected(points)
        again = np.array([row.tobytes() in known for row in np.round(points, _SAME)])
        improvement = np.log(spread) + _log_improvement((least - mean) / spread) - _AGAIN * again
        if noise is not None:
            improvement += _log_informative(spread, noise)
        return np.asarray(improvement if log_success is None else improvement + log_success(points))

    points = np.vstack(
        [
            cube.settled(rng.random((_ANYWHERE, len(cube.domains)))),
            *(_near(good, cube, rng, each, width) for each, width in _FIRST),
        ]
    )
    promises = promise(points)
    for width in _LATER:
        kept = np.argsort(-promises, kind="stable")[:_KEPT]
        more = _near(points[kept], cube, rng, _EACH, width)
        points, promises = np.vstack([points[kept], more]), np.append(promises[kept], promise(more))
    found: list[float] = points[int(np.argmax(promises))].tolist()
    return found


def _log_improvement(z: Floats) -> Floats:
    """Return the logarithm of z * cdf(z) + pdf(z) of the standard normal distribution."""
    near = np.maximum(z, _FAR)
    exact = np.log(near * ndtr(near) + np.exp(-near * near / 2) / np.sqrt(2 * np.pi))
    far = np.minimum(z, _FAR)
    series = (
        -far * far / 2
        - 0.5 * np.log(2 * np.pi)
        - 2 * np.log(-far)
        + np.log1p(-3 / far**2 + 15 / far**4 - 105 / far**6)
    )
    return np.asarray(np.where(z > _FAR, exact, series))


def _log_informative(spread: Floats, noise: float) -> Floats:
    """Return the logarithm of how much a trial tells: 1 - sqrt(noise / (spread**2 + noise)), the
    factor of the augmented expected improvement (Huang, Allen, Notz and Zeng, Journal of Global
    Optimization 34, 2006). It is near 0 where the outcome is known but for noise.
    """
    ratio = np.square(spread) / noise
    root = np.sqrt(1 + ratio)
    return np.asarray(np.log(ratio) - np.log(root) - np.log1p(root))


def _near(
    points: Floats, cube: CubePoints, rng: np.random.Generator, each: int, width: float
) -> Floats:
    """Return points a random step away from `points`."""
    base = np.repeat(points, each, axis=0)
    moved = base + (rng.random(base.shape) < max(2 / len(cube.domains), _MOVED)) * rng.normal(
        0, width, base.shape
    )
    anew, elsewhere = rng.random(base.shape) < _CHANGED, rng.random(base.shape)
    for d, domain in enumerate(cube.domains):
        if isinstance(domain, Choice):
            moved[:, d] = np.where(anew[:, d], elsewhere[:, d], base[:, d])
    return cube.settled(np.clip(moved, EDGE, 1 - EDGE))
