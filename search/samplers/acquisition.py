"""The next point to try: the largest expected improvement over the unit cube, found by random
points and steps from good ones.

Jones, Schonlau and Welch, 1998, section 4.1. The logarithm distinguishes points even if hardly any
improvement is expected, as in Ament et al., NeurIPS 2023. A few rounds of steps from several starts
suffice: the maximum need not be exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from regrow.search.samplers.cube import EDGE
from regrow.search.samplers.cube_points import CubePoints
from regrow.search.space.domains import Choice

Floats = npt.NDArray[np.float64]
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


def largest_improvement(
    expected: Expected,
    least: float,
    good: Floats,
    taken: Floats,
    cube: CubePoints,
    rng: np.random.Generator,
    log_success: Callable[[Floats], Floats] | None = None,
) -> list[float]:
    """Return the point with the largest expected improvement.

    Args:
        expected: mean and standard deviation of the cost at points.
        least: the cost to improve on.
        good: points (n, d); the search also starts near them.
        taken: points (m, d) that are not proposed again while there are others.
        cube: moves points to where their configurations are.
        rng: source of randomness.
        log_success: logarithm of the probability that a trial at a point does not fail; None: it
            never fails.

    """
    known = {row.tobytes() for row in np.round(taken, _SAME)}

    def promise(points: Floats) -> Floats:
        mean, spread = expected(points)
        again = np.array([row.tobytes() in known for row in np.round(points, _SAME)])
        improvement = np.log(spread) + _log_improvement((least - mean) / spread) - _AGAIN * again
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
