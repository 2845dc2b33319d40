"""TPE's view of a domain: the Optuna distribution that represents it, and the conversion of values
to coordinates and back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from statistics import NormalDist
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import Trial

from regrow.search.space.domains import Choice, Domain, Float, Int, Json, Normal

# 3 in 10 million: a normal parameter ends 5 sd from its mean on either side
_TAIL = NormalDist().cdf(-5.0)


class Axis(ABC):
    """One parameter as TPE models it."""

    distribution: BaseDistribution

    @abstractmethod
    def coordinate(self, value: Json) -> float:
        """Return the coordinate of `value`. Raises ValueError if it can't be a value of the
        parameter.
        """

    @abstractmethod
    def suggest(self, trial: Trial, name: str) -> Json:
        """Return the value that Optuna suggests."""


class _Continuous(Axis):
    def __init__(self, domain: Float) -> None:
        self.distribution = FloatDistribution(domain.low, domain.high, log=domain.log)
        self._domain = domain

    def coordinate(self, value: Json) -> float:
        return float(value)

    def suggest(self, trial: Trial, name: str) -> Json:
        return trial.suggest_float(name, self._domain.low, self._domain.high, log=self._domain.log)


class _Stepped(Axis):
    """A float in steps. Optuna's values carry rounding errors (0.30000000000000004), ours don't:
    coordinates are Optuna's.
    """

    def __init__(self, domain: Float) -> None:
        if domain.step is None or domain.cells is None:
            raise TypeError(f"{domain} has no step")
        self._domain = domain
        self._step = domain.step
        # Optuna warns unless the steps end at high
        self._high = float(domain.cell(domain.cells - 1))
        self.distribution = FloatDistribution(domain.low, self._high, step=domain.step)

    def coordinate(self, value: Json) -> float:
        return min(self._domain.low + self._domain.nearest(value) * self._step, self._high)

    def suggest(self, trial: Trial, name: str) -> Json:
        value = trial.suggest_float(name, self._domain.low, self._high, step=self._step)
        return self._domain.cell(self._domain.nearest(value))


class _Whole(Axis):
    def __init__(self, domain: Int) -> None:
        self._low, self._step, self._log = domain.low, domain.step, domain.log
        self._high = domain.cell(domain.cells - 1)
        self.distribution = IntDistribution(self._low, self._high, log=self._log, step=self._step)

    def coordinate(self, value: Json) -> float:
        return float(value)

    def suggest(self, trial: Trial, name: str) -> Json:
        return trial.suggest_int(name, self._low, self._high, step=self._step, log=self._log)


class _Bell(Axis):
    """A normal parameter by its quantile: Optuna has only uniform priors, and this makes the prior
    normal.
    """

    def __init__(self, domain: Normal) -> None:
        self.distribution = FloatDistribution(_TAIL, 1.0 - _TAIL)
        self._normal = NormalDist(domain.mean, domain.sd)

    def coordinate(self, value: Json) -> float:
        return min(max(self._normal.cdf(value), _TAIL), 1.0 - _TAIL)

    def suggest(self, trial: Trial, name: str) -> Json:
        return self._normal.inv_cdf(trial.suggest_float(name, _TAIL, 1.0 - _TAIL))


class _Categories(Axis):
    """A choice by position: Optuna takes scalars only, and can't tell True from 1."""

    def __init__(self, domain: Choice) -> None:
        self._domain = domain
        self._positions = range(len(domain.values))
        self.distribution = CategoricalDistribution(self._positions)

    def coordinate(self, value: Json) -> float:
        try:
            return float(self._domain.index(value))
        except KeyError:
            raise ValueError(f"{value!r} is not one of {list(self._domain.values)}") from None

    def suggest(self, trial: Trial, name: str) -> Json:
        position: Any = trial.suggest_categorical(name, self._positions)
        return self._domain.cell(position)


def axis(domain: Domain) -> Axis:
    """Return the axis for a domain. Raises TypeError for one that TPE doesn't model."""
    match domain:
        case Float(step=None):
            return _Continuous(domain)
        case Float():
            return _Stepped(domain)
        case Int():
            return _Whole(domain)
        case Normal():
            return _Bell(domain)
        case Choice():
            return _Categories(domain)
    raise TypeError(f"TPE has no axis for {type(domain).__name__}")
