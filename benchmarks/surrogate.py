"""Tasks on a continuum: every configuration of their space has a learning curve of its own, so a
search can get better than any configuration that was ever trained.

`Continuum` interpolates the tables of real training in `curves/`, `Quadratic` is made up.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import math
import statistics
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from benchmarks.clock import Config, Task
from regrow.infra.state.spec_file import read_spec
from regrow.search import samplers
from regrow.search.samplers.cube import modelled, position
from regrow.search.space.domains import Choice
from regrow.search.spec import Spec

Floats = npt.NDArray[np.float64]
Curve = tuple[list[float], list[float]]
"""The score of each step, and the seconds that it takes."""
REFERENCE = 2000
"""So many random configurations say what is good: regret 0 is the best score of any of them at any
step, 1 the median of their last scores, failures apart. A search may get below 0.
"""
MOST_KNOWN = 2000
"""Curves that are kept: those of a search, and not of all."""
COMPONENTS = 5
"""Principal components of the curves: 97 to 99.8 % of their variance."""


class Surrogate(Task):
    """A task whose curves are computed, each of them once as long as it is kept."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._known: dict[str, Curve] = {}

    def _scale(self) -> None:
        """Finds out what is good, once curves can be computed."""
        sampler = samplers.make("random", self.spec.setting)
        drawn = [sampler.ask(number, number) for number in range(REFERENCE)]
        curves = [self.curve(proposal.config) for proposal in drawn if proposal is not None]
        costs = [[self.cost(score) for score in scores] for scores, _ in curves]
        self.best = min(cost for one in costs for cost in one if not math.isnan(cost))
        self.middle = statistics.median(one[-1] for one in costs if not math.isnan(one[-1]))
        self.training = statistics.fmean(sum(seconds) for _, seconds in curves)

    def at(self, config: Config, step: int) -> tuple[float, float]:
        key = json.dumps(config, sort_keys=True, default=float)  # Ray Tune's values may be NumPy's
        if key not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = self.curve(config)
        scores, seconds = self._known[key]
        return scores[step - 1], seconds[step - 1]

    @abstractmethod
    def curve(self, config: Config) -> Curve:
        """The whole curve of a configuration, computed anew."""


class Continuum(Surrogate):
    """The space between the configurations of a table in `curves/`: a Gaussian process of the
    curves' principal components.

    Costs are taken as their logarithm above a bound a little better than the table's best. Fitted
    to four fifths of a table, the process explains 74 to 93 % of the variance of the others' last
    step; there is no chance in it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(read_spec(path))
        with gzip.open(path.with_suffix(".csv.gz"), "rt", newline="") as file:
            rows = list(csv.DictReader(file))
        points = np.array([self._point(row) for row in rows[:: self.max_steps]])
        costs, seconds = (
            np.array([float(row[name]) for row in rows]).reshape(len(points), self.max_steps)
            for name in ("score", "seconds")
        )
        costs *= self.cost(1.0)
        self._bound = costs.min() - 0.1 * (np.median(costs[:, -1]) - costs.min())
        self._costs = _Process(points, np.log(costs - self._bound), COMPONENTS)
        self._seconds = _Process(points, np.log(seconds.mean(axis=1, keepdims=True)), 1)
        self._scale()

    def curve(self, config: Config) -> Curve:
        point = np.array(self._point(config))
        costs = np.exp(self._costs.at(point)) + self._bound
        return [self.cost(cost) for cost in costs.tolist()], [
            math.exp(self._seconds.at(point)[0])
        ] * self.max_steps

    def _point(self, config: Mapping[str, Any]) -> list[float]:
        """Numbers by their place in the unit cube, a choice as a corner for each of its values."""
        point: list[float] = []
        for p in modelled(self.spec.space):
            value = config[p.name]
            if isinstance(p.domain, Choice):
                point += [0.5 * (str(value) == str(one)) for one in p.domain.values]
            else:
                point.append(position(p.domain, float(value)))
        return point


class _Process:
    """Rows of numbers over points: principal components, and a Gaussian process that they share,
    fitted to the first one.
    """

    def __init__(self, points: Floats, rows: Floats, components: int) -> None:
        self._mean = rows.mean(axis=0)
        left, sizes, directions = np.linalg.svd(rows - self._mean, full_matrices=False)
        scores = left[:, :components] * sizes[:components]
        scales = scores.std(axis=0)
        dimensions = np.ones(points.shape[1])
        kernel = ConstantKernel(1.0) * Matern(dimensions, (0.05, 50.0), nu=2.5) + WhiteKernel(
            0.05, (1e-3, 1.0)
        )
        fitted = GaussianProcessRegressor(kernel).fit(points, scores[:, :1] / scales[:1])
        same = GaussianProcessRegressor(fitted.kernel_, optimizer=None).fit(points, scores / scales)
        self._factor, self._lengths = (
            fitted.kernel_.k1.k1.constant_value,
            fitted.kernel_.k1.k2.length_scale,
        )
        self._points = points / self._lengths
        self._weights = same.alpha_.reshape(len(points), -1) * scales @ directions[:components]

    def at(self, point: Floats) -> Floats:
        """The row at a point."""
        distance = math.sqrt(5) * np.sqrt(
            np.square(self._points - point / self._lengths).sum(axis=1)
        )
        kernel = self._factor * (1 + distance + np.square(distance) / 3) * np.exp(-distance)
        return np.asarray(self._mean + kernel @ self._weights)


class Quadratic(Surrogate):
    """Six numbers, and the distance from where all is best as the loss, which a trial comes near to
    within 27 steps. What the first step says is half noise, which the configuration decides; it is
    never better than what comes later.
    """

    def __init__(self) -> None:
        space = {f"x{i}": {"uniform": [0.0, 1.0]} for i in range(6)}
        super().__init__(
            Spec.parse(
                {
                    "name": "quadratic",
                    "trainable": "m:f",
                    "metric": "score",
                    "mode": "min",
                    "space": space,
                    "trials": 1,
                    "max_steps": 27,
                }
            )
        )
        self._scale()

    def curve(self, config: Config) -> Curve:
        loss = sum(weight * (config[f"x{i}"] - best) ** 2 for i, (weight, best) in enumerate(_BOWL))
        digest = hashlib.sha256(repr(sorted(config.items())).encode()).digest()
        noise = int.from_bytes(digest[:4], "big") / 2**32
        excess = [0.5 + noise, *(1.0 / step**2 for step in range(2, self.max_steps + 1))]
        return [loss + more for more in excess], [1.0] * self.max_steps


_BOWL = ((1.0, 0.21), (0.8, 0.83), (1.2, 0.44), (0.5, 0.62), (1.5, 0.30), (0.3, 0.91))
"""The weight of each parameter, and where it is best."""
