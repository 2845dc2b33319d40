"""The bandit of PB2: a Gaussian process over time, score and parameters, and the maximum of its
upper confidence bound.

numpy is imported here; the scheduler imports this module at the first explore step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

NEWEST = 100
"""Most observations that are modelled, the last ones; an inversion takes cubic time."""
_LENGTHS, _FORGETS, _NOISES = (0.1, 0.2, 0.5, 1.0, 2.0), (0.01, 0.1, 0.3), (1e-3, 1e-1)
_CANDIDATES, _ROUNDS, _NEAR = 256, 4, 32
JITTER = 1e-8


def kernel(a: Array, b: Array, length: float, forget: float) -> Array:
    """Return the kernel: squared exponential over all columns but the first, which is time: (1 -
    forget) ** (|t - t'| / 2) (section 4).
    """
    apart = ((a[:, None, 1:] - b[None, :, 1:]) ** 2).sum(axis=2)
    found: Array = np.exp(-apart / (2 * length**2)) * (1 - forget) ** (
        np.abs(a[:, None, 0] - b[None, :, 0]) / 2
    )
    return found


def likelihood(x: Array, y: Array, length: float, forget: float, noise: float) -> float:
    """Return the log marginal likelihood, without a constant term."""
    root = np.linalg.cholesky(kernel(x, x, length, forget) + (noise + JITTER) * np.eye(len(x)))
    whitened = np.linalg.solve(root, y)
    return float(-0.5 * whitened @ whitened - np.log(np.diag(root)).sum())


class Bandit:
    """The model and its bound.

    Args:
        x: observations by row: time in intervals, the score before and parameters in [0, 1].
        y: improvement for each step.
        pending: rows of running stretches. Their improvement is unknown, but they reduce the
            variance.

    """

    def __init__(self, x: Array, y: Array, pending: Array) -> None:
        x, y = x[-NEWEST:], y[-NEWEST:]
        spread = y.std()
        self._y = np.clip((y - y.mean()) / spread, -2, 2) if spread > 0 else np.zeros(len(y))
        options = [(a, b, c) for a in _LENGTHS for b in _FORGETS for c in _NOISES]
        scores = [likelihood(x, self._y, *option) for option in options]
        self._length, self._forget, noise = options[int(np.argmax(scores))]
        self._x = x
        self._mean = self._root(x, noise)
        self._all = np.vstack([x, pending])
        self._variance = self._root(self._all, noise)
        self._beta = 0.2 + max(0.0, math.log(0.4 * len(x)))

    def bound(self, at: Array) -> Array:
        """Return mean + sqrt(beta) * sd; beta = 0.2 + log(0.4 n), as in the authors' code."""
        near = kernel(at, self._x, self._length, self._forget)
        mean = near @ np.linalg.solve(self._mean.T, np.linalg.solve(self._mean, self._y))
        whitened = np.linalg.solve(
            self._variance, kernel(at, self._all, self._length, self._forget).T
        )
        return np.asarray(
            mean + math.sqrt(self._beta) * np.sqrt(np.maximum(0.0, 1 - (whitened**2).sum(axis=0)))
        )

    def best(self, fixed: Sequence[float], size: int, draw: Callable[[str], float]) -> list[float]:
        """Return parameters in [0, 1] with the highest bound, given time and score."""
        points = np.array(
            [[draw(f"candidate:{n}:{d}") for d in range(size)] for n in range(_CANDIDATES)]
        )
        best = points[int(np.argmax(self._at(fixed, points)))]
        for turn in range(_ROUNDS):
            reach = 0.2 * 0.4**turn
            moves = np.array(
                [[draw(f"near:{turn}:{n}:{d}") for d in range(size)] for n in range(_NEAR)]
            )
            points = np.vstack([best, np.clip(best + reach * (2 * moves - 1), 0, 1)])
            best = points[int(np.argmax(self._at(fixed, points)))]
        return [float(v) for v in best]

    def _at(self, fixed: Sequence[float], points: Array) -> Array:
        return self.bound(
            np.hstack([np.tile(np.asarray(fixed, dtype=float), (len(points), 1)), points])
        )

    def _root(self, x: Array, noise: float) -> Array:
        found = np.linalg.cholesky(
            kernel(x, x, self._length, self._forget) + (noise + JITTER) * np.eye(len(x))
        )
        return np.asarray(found)
