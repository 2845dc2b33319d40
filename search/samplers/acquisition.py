"""Where to look next: the largest expected improvement over points of the unit cube, by random points and steps from good ones.

Jones, Schonlau and Welch, 1998, section 4.1; its logarithm, which tells points apart where hardly anything is to be gained, as in
Ament et al., NeurIPS 2023. Several starts and a few rounds of steps: what is found a little less exactly costs nothing.
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
"""Points (n, d) to the mean and the standard deviation of their cost."""

_ANYWHERE: Final = 300
_FIRST: Final = ((40, 0.1), (20, 0.03))
"""Steps from each good point, and their standard deviation in widths of the cube."""
_LATER: Final = (0.05, 0.02)
_KEPT: Final = 4
_EACH: Final = 25
_MOVED: Final = 0.3
"""A step changes a parameter with this probability, two of them at least on average."""
_CHANGED: Final = 0.15
"""That of a choice."""
_AGAIN: Final = 1e6
"""By so much less promises what was tried."""
_SAME: Final = 9
"""Points are the same if so many decimals are."""
_FAR: Final = -6.0
"""Below, the improvement is taken from its asymptotic series."""


def largest_improvement(
    expected: Expected, least: float, good: Floats, taken: Floats, cube: CubePoints, rng: np.random.Generator,
    log_success: Callable[[Floats], Floats] | None = None,
) -> list[float]:
    """The point that promises the largest improvement below `least`. `good`: (n, d), near which it is looked for as well;
    `taken`: (m, d), which are not proposed again while there are others; `log_success`: the logarithm of the probability that
    anything comes of a point, None: of each."""
    known = {row.tobytes() for row in np.round(taken, _SAME)}

    def promise(points: Floats) -> Floats:
        mean, spread = expected(points)
        again = np.array([row.tobytes() in known for row in np.round(points, _SAME)])
        improvement = np.log(spread) + _log_improvement((least - mean) / spread) - _AGAIN * again
        return np.asarray(improvement if log_success is None else improvement + log_success(points))

    points = np.vstack([
        cube.settled(rng.random((_ANYWHERE, len(cube.domains)))),
        *(_near(good, cube, rng, each, width) for each, width in _FIRST),
    ])
    promises = promise(points)
    for width in _LATER:
        kept = np.argsort(-promises, kind="stable")[:_KEPT]
        more = _near(points[kept], cube, rng, _EACH, width)
        points, promises = np.vstack([points[kept], more]), np.append(promises[kept], promise(more))
    found: list[float] = points[int(np.argmax(promises))].tolist()
    return found


def _log_improvement(z: Floats) -> Floats:
    """The logarithm of z * cdf(z) + pdf(z) of the standard normal distribution."""
    near = np.maximum(z, _FAR)
    exact = np.log(near * ndtr(near) + np.exp(-near * near / 2) / np.sqrt(2 * np.pi))
    far = np.minimum(z, _FAR)
    series = -far * far / 2 - 0.5 * np.log(2 * np.pi) - 2 * np.log(-far) + np.log1p(-3 / far**2 + 15 / far**4 - 105 / far**6)
    return np.asarray(np.where(z > _FAR, exact, series))


def _near(points: Floats, cube: CubePoints, rng: np.random.Generator, each: int, width: float) -> Floats:
    """Steps from points."""
    base = np.repeat(points, each, axis=0)
    moved = base + (rng.random(base.shape) < max(2 / len(cube.domains), _MOVED)) * rng.normal(0, width, base.shape)
    anew, elsewhere = rng.random(base.shape) < _CHANGED, rng.random(base.shape)
    for d, domain in enumerate(cube.domains):
        if isinstance(domain, Choice):
            moved[:, d] = np.where(anew[:, d], elsewhere[:, d], base[:, d])
    return cube.settled(np.clip(moved, EDGE, 1 - EDGE))
