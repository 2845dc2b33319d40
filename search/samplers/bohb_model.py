"""The two kernel densities of BOHB over points of the unit cube. Knows neither results nor domains.

Falkner, Klein and Hutter, ICML 2018, section 3.2, equations 2 to 4, and their implementation
(HpBandSter), whose densities are statsmodels' KDEMultivariate: a product of one-dimensional kernels
with rule-of-thumb bandwidths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

Floats = npt.NDArray[np.float64]
LEAST = 1e-32
"""Lower bound of a density, so that the ratio of two is finite (as in HpBandSter)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kde:
    """The model.

    Attributes:
        levels: for each dimension the number of a choice's values, 0 for a numeric one. A choice's
            coordinate is (index + 1/2) / levels.
        least: fewest points of a part (`min_points_in_model` of Bohb).
        top: percent of good points (`top_n_percent`).
        samples: candidates (`num_samples`).
        factor: width of the candidates' kernels (`bandwidth_factor`).
        narrowest: smallest bandwidth (`min_bandwidth`).

    """

    levels: Sequence[int]
    least: int
    top: int
    samples: int
    factor: float
    narrowest: float

    def draw(self, ordered: Sequence[Sequence[float]], seed: int) -> list[float]:
        """Return a point, given `least` + 2 points or more, the best first, NaN if inactive."""
        rng = np.random.RandomState(seed)
        data = self._coded(np.array(ordered, dtype=np.float64))
        good, bad = (self._density(self._imputed(part, rng)) for part in self._split(data))
        candidates = self._candidates(*good, rng)
        ratio = np.maximum(self._pdf(*good, candidates), LEAST) / np.maximum(
            self._pdf(*bad, candidates), LEAST
        )
        best = candidates[int(np.argmax(ratio))]
        return [(u + 0.5) / n if n else u for u, n in zip(best.tolist(), self.levels, strict=True)]

    def _coded(self, points: Floats) -> Floats:
        """Replace the coordinates of choices by their index."""
        for d, n in enumerate(self.levels):
            if n:
                points[:, d] = np.floor(points[:, d] * n)
        return points

    def _split(self, data: Floats) -> tuple[Floats, Floats]:
        """Split by equation 3: the best max(N_min, q N), the worst max(N_min, N - N_good)."""
        count = len(data)
        good = max(self.least, self.top * count // 100)
        bad = max(self.least, count - good)
        return data[:good], data[count - bad :]

    def _imputed(self, data: Floats, rng: np.random.RandomState) -> Floats:
        """Fill inactive coordinates with the values of a random point of the same part where the
        parameter is active, or with a random value if there is none. So a parameter does not count
        against points without it.
        """
        full = data.copy()
        for d, n in enumerate(self.levels):
            rows = np.flatnonzero(np.isnan(full[:, d]))
            known = np.flatnonzero(~np.isnan(data[:, d]))
            if known.size:
                part, donors = full[rows], data[known[rng.randint(known.size, size=rows.size)]]
                full[rows] = np.where(np.isnan(part), donors, part)
            else:
                full[rows, d] = (
                    rng.randint(n, size=rows.size) if n else rng.random_sample(rows.size)
                )
        return full

    def _density(self, data: Floats) -> tuple[Floats, Floats]:
        """Return the points and bandwidths, by Scott's rule: 1.06 sd n^(-1/(4 + d))."""
        count, dimensions = data.shape
        widths = 1.06 * np.std(data, axis=0) * count ** (-1.0 / (4 + dimensions))
        widths = np.maximum(widths, self.narrowest)
        for d, n in enumerate(self.levels):
            # at (n - 1) / n the kernel is uniform; beyond, a value would count against itself
            if n:
                widths[d] = min(widths[d], (n - 1) / n)
        return data, widths

    def _candidates(self, data: Floats, widths: Floats, rng: np.random.RandomState) -> Floats:
        """Draw points around random good ones.

        Numeric coordinates come from a normal distribution truncated to the cube, `factor` times as
        wide as the kernel. A choice keeps its value with probability 1 - its bandwidth, otherwise
        it takes any value.
        """
        drawn = data[rng.randint(len(data), size=self.samples)]
        for d, n in enumerate(self.levels):
            u, width = rng.random_sample(self.samples), widths[d]
            if n:
                drawn[:, d] = np.where(
                    u < 1 - width, drawn[:, d], rng.randint(n, size=self.samples)
                )
            else:
                at, sd = drawn[:, d], self.factor * width
                low, high = ndtr(-at / sd), ndtr((1 - at) / sd)
                drawn[:, d] = np.clip(at + sd * ndtri(low + u * (high - low)), 0, 1)
        return drawn

    def _pdf(self, data: Floats, widths: Floats, points: Floats) -> Floats:
        """Return the density: Gaussian kernels, for choices Aitchison and Aitken's (1976)."""
        exponent = np.zeros((len(points), len(data)))
        factor, weight = 1.0, np.ones((1, 1))
        for d, n in enumerate(self.levels):
            width = widths[d]
            if n > 1:
                weight = weight * np.where(
                    points[:, d, None] == data[None, :, d], 1 - width, width / (n - 1)
                )
            elif not n:
                distance = np.subtract.outer(points[:, d] / width, data[:, d] / width)
                exponent -= np.square(distance, out=distance)
                factor /= width * math.sqrt(2 * math.pi)
        exponent /= 2
        return np.asarray(factor * (weight * np.exp(exponent, out=exponent)).mean(axis=1))
