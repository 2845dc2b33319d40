"""The distributions of CMA-ES, one for each generation, by the library cmaes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from cmaes import CMA, get_warm_start_mgd  # type: ignore[import-untyped]  # it has annotations, but no py.typed

from regrow.search.chance import uniform_draw

GAMMA = 0.1
"""Share of earlier results that the first distribution is fitted to (Nomura et al., section 4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialParameters:
    """Parameters of the first generation.

    Attributes:
        mean: in the unit cube.
        sigma: the standard deviation.
        popsize: trials of a generation, None for the library's default.
        earlier: points of earlier results and their costs.
        restart: whether to restart after convergence.
        seed: the experiment's.

    """

    mean: list[float]
    sigma: float
    popsize: int | None
    earlier: list[tuple[list[float], float]]
    restart: bool
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Generation `number`, and how often the search was restarted before it. Immutable."""

    number: int
    restarts: int
    start: InitialParameters
    _cma: CMA

    @classmethod
    def first(cls, start: InitialParameters) -> Generation:
        """Return the generation before any result."""
        mean, sigma, covariance = np.array(start.mean), start.sigma, None
        if len(start.earlier) * GAMMA >= 1:
            earlier = [(np.array(x), cost) for x, cost in start.earlier]
            mean, sigma, covariance = get_warm_start_mgd(earlier, gamma=GAMMA)
        made = CMA(
            np.clip(mean, 0, 1),
            sigma,
            _box(len(mean)),
            seed=0,
            population_size=start.popsize,
            cov=covariance,
        )
        return cls(number=0, restarts=0, start=start, _cma=made)

    @property
    def popsize(self) -> int:
        """How many trials update it."""
        return int(self._cma.population_size)

    def draw(self, seed: int) -> list[float]:
        """Return a point in the unit cube that depends only on the generation and `seed`."""
        self._cma.reseed_rng(seed)
        return [float(u) for u in self._cma.ask()]

    def following(self, solutions: Sequence[tuple[list[float], float]]) -> Generation:
        """Return the next generation, updated by `popsize` points and their costs."""
        after = _copied(self._cma)
        after.tell([(np.array(x), cost) for x, cost in solutions])
        if self.start.restart and after.should_stop():
            names = [f"restart {self.restarts}: {d}" for d in range(after.dim)]
            mean = np.array([uniform_draw(self.start.seed, name) for name in names])
            after = CMA(
                mean, self.start.sigma, _box(after.dim), seed=0, population_size=2 * self.popsize
            )
            return replace(self, number=self.number + 1, restarts=self.restarts + 1, _cma=after)
        return replace(self, number=self.number + 1, _cma=after)


def _box(dimensions: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.array([[0.0, 1.0]] * dimensions)


def _copied(cma: CMA) -> CMA:
    """Return an exact copy. The library's own way (`copy`, pickle) keeps one triangle of a
    covariance that is symmetric only up to rounding, so results would depend on when a copy was
    made.
    """
    made = object.__new__(CMA)
    vars(made).update({name: copy.deepcopy(value) for name, value in vars(cma).items()})
    return made
