"""A Gaussian process over configuration and step, which learns from learning curves that were cut
off. Knows neither results nor domains.

The kernel over points of the unit cube is Matern's with 5/2 and a length for each dimension. Over
the logarithm of the step it is that of an Ornstein-Uhlenbeck process, so that the fit learns how
much an early step tells about the last one (MOBSTER, Klein et al., 2020, arXiv:2003.10865, section
4.1, has other kernels over the step). Trials that reach a late step are a selection; as the process
also has their early steps, it does not take them for average. Hyperparameters are those of largest
posterior density (Rasmussen and Williams, 2006, section 5.4.1, for the gradient).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

Floats = npt.NDArray[np.float64]

_JITTER: Final = 1e-6
_LEVEL: Final = 4.0
"""Prior variance of the mean, for values about as wide as a standard normal."""
_STEPS_OF_FIT: Final = 30
_TRUST: Final = 1.0
"""Prior standard deviation of the advisers' weight; its mean is their full weight."""

Beforehand = Callable[[Floats], Floats]
"""Maps points (m, d) to what each of k advisers expects at the last step, (m, k)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Observed values.

    Attributes:
        points: (n, d).
        times: (n,), from 0 at the first step to 1 at the last.
        values: (n,).
        choice: (d,), whether two coordinates of a dimension are only equal or unequal.
        beforehand: what advisers expect; None: no advisers. With advisers the process has their
            mean, each weighted by a number that is inferred together with everything else.

    """

    points: Floats
    times: Floats
    values: Floats
    choice: npt.NDArray[np.bool_]
    beforehand: Beforehand | None = None

    def squared_distances(self, others: Floats) -> Floats:
        """Return squared distances by dimension to the points (m, d): (d, n, m)."""
        gaps = self.points.T[:, :, None] - others.T[:, None, :]
        squares = np.square(gaps, out=gaps)
        squares[self.choice] = squares[self.choice] > 0
        return squares

    def advice(self, points: Floats) -> Floats:
        """Return what advisers expect at points, (m, k); k may be 0."""
        return np.zeros((len(points), 0)) if self.beforehand is None else self.beforehand(points)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyperparameters:
    """Natural logarithms of the hyperparameters.

    Attributes:
        lengths: (d,).
        variance: of the process.
        time: the length of time.
        noise: the variance of the noise.

    """

    lengths: Floats
    variance: float
    time: float
    noise: float

    @classmethod
    def of(cls, vector: Floats) -> Hyperparameters:
        """Return the hyperparameters from a vector of them in this order."""
        *lengths, variance, time, noise = vector.tolist()
        return cls(lengths=np.array(lengths), variance=variance, time=time, noise=noise)


def prior(dimensions: int) -> tuple[Floats, Floats]:
    """Return means and standard deviations of the logarithms, each with a normal distribution.

    Lengths grow with the root of the number of dimensions (Hvarfner et al., ICML 2024, section 4).
    """
    mean = [np.log(0.5) + 0.5 * np.log(dimensions)] * dimensions + [0.0, np.log(2.0), np.log(0.01)]
    spread = [0.8] * dimensions + [0.5, 1.0, 1.5]
    return np.array(mean), np.array(spread)


def fit(seen: Observations) -> Hyperparameters:
    """Return the hyperparameters of largest posterior density, searched from the prior's mean."""
    mean, spread = prior(seen.points.shape[1])
    squares, gaps = seen.squared_distances(seen.points), _gaps(seen.times, seen.times)
    count, advice = len(seen.values), seen.advice(seen.points)
    values, fixed = seen.values - _agreed(advice), _LEVEL + _weighing(advice, advice)

    def loss(vector: Floats) -> tuple[float, Floats]:
        h = Hyperparameters.of(vector)
        scaled = np.exp(-2 * h.lengths)
        r = np.sqrt(5 * np.tensordot(scaled, squares, 1))
        decay = np.exp(h.variance - r - gaps * np.exp(-h.time))
        kernel = (1 + r + r * r / 3) * decay
        full = kernel + fixed
        full.flat[:: count + 1] += np.exp(h.noise) + _JITTER
        try:
            factor = cholesky(full, lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            return 1e10, np.zeros_like(vector)
        weights = cho_solve((factor, True), values, check_finite=False)
        inverse = cho_solve((factor, True), np.eye(count), check_finite=False)
        inner = inverse - np.outer(weights, weights)
        off = (vector - mean) / spread
        value = 0.5 * values @ weights + np.log(np.diag(factor)).sum() + 0.5 * off @ off
        shared = inner * ((1 + r) * decay * (5 / 3))
        explained = inner * kernel
        others = (
            explained.sum(),
            (explained * gaps).sum() * np.exp(-h.time),
            np.trace(inner) * np.exp(h.noise),
        )
        gradient = 0.5 * np.concatenate([scaled * np.tensordot(squares, shared, 2), others])
        return float(value), gradient + off / spread

    bounds = [(m - 3 * s, m + 3 * s) for m, s in zip(mean, spread, strict=True)]
    found = minimize(
        loss, mean, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _STEPS_OF_FIT}
    )
    return Hyperparameters.of(found.x)


def _gaps(one: Floats, other: Floats) -> Floats:
    return np.abs(np.subtract.outer(one, other))


def _agreed(advice: Floats) -> Floats:
    """Return the mean of the advisers, 0 without advisers."""
    return np.asarray(advice.sum(axis=1) / max(advice.shape[1], 1))


def _weighing(one: Floats, other: Floats) -> Floats:
    """Return the covariance by the unknown weights of advisers: (n, k), (m, k) to (n, m)."""
    return np.asarray(_TRUST**2 / max(one.shape[1], 1) ** 2 * one @ other.T)


class Process:
    """The process, given observations."""

    def __init__(self, seen: Observations, h: Hyperparameters) -> None:
        self._seen, self._h = seen, h
        self._advice = seen.advice(seen.points)
        full = self._between(seen.points, seen.times, self._advice)
        full.flat[:: len(seen.values) + 1] += np.exp(h.noise) + _JITTER
        self._factor = cholesky(full, lower=True, check_finite=False)
        self._weights = cho_solve(
            (self._factor, True), seen.values - _agreed(self._advice), check_finite=False
        )

    def _between(self, points: Floats, times: Floats, advice: Floats) -> Floats:
        h = self._h
        r = np.sqrt(
            5 * np.tensordot(np.exp(-2 * h.lengths), self._seen.squared_distances(points), 1)
        )
        kernel = (1 + r + r * r / 3) * np.exp(
            h.variance - r - _gaps(self._seen.times, times) * np.exp(-h.time)
        )
        return np.asarray(kernel + _LEVEL + _weighing(self._advice, advice))

    @property
    def noise(self) -> float:
        """The variance of the noise."""
        return float(np.exp(self._h.noise))

    def at_the_end(self, points: Floats) -> tuple[Floats, Floats]:
        """Return mean and standard deviation at the last step, without noise, of points (m, d)."""
        advice = self._seen.advice(points)
        cross = self._between(points, np.ones(len(points)), advice)
        mean = cross.T @ self._weights + _agreed(advice)
        solved = solve_triangular(self._factor, cross, lower=True, check_finite=False)
        own = (
            np.exp(self._h.variance)
            + _LEVEL
            + np.square(advice).sum(axis=1) * _TRUST**2 / max(advice.shape[1], 1) ** 2
        )
        return mean, np.sqrt(np.maximum(own - np.square(solved).sum(axis=0), 1e-12))

    def with_fantasies(self, points: Floats) -> Process:
        """Return the process as if points (m, d) had ended as expected ("kriging believer")."""
        mean, _ = self.at_the_end(points)
        seen = self._seen
        more = Observations(
            points=np.vstack([seen.points, points]),
            times=np.append(seen.times, np.ones(len(points))),
            values=np.append(seen.values, mean),
            choice=seen.choice,
            beforehand=seen.beforehand,
        )
        return Process(more, self._h)
