"""TPE's view of a domain: its Optuna distribution, and values as coordinates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
_NARROW = 1 + 1e-9
"""A logarithmic range up to this ratio of its bounds is treated as uniform, which it is but for
rounding: the logarithms of its bounds may be the same float.
"""


@dataclass(frozen=True, slots=True)
class Axis:
    """One parameter as TPE models it.

    Attributes:
        distribution: of Optuna.
        coordinate: returns the coordinate of a value. Raises ValueError for one of another domain.
        value: returns our value for what Optuna suggests.

    """

    distribution: BaseDistribution
    coordinate: Callable[[Json], float]
    value: Callable[[Any], Json]

    def suggest(self, trial: Trial, name: str) -> Json:
        """Return the value that Optuna suggests."""
        match self.distribution:
            case FloatDistribution() as d:
                return self.value(trial.suggest_float(name, d.low, d.high, step=d.step, log=d.log))
            case IntDistribution() as d:
                return self.value(trial.suggest_int(name, d.low, d.high, step=d.step, log=d.log))
            case CategoricalDistribution() as d:
                return self.value(trial.suggest_categorical(name, d.choices))
        raise TypeError(f"{self.distribution} is none of TPE's")


def axis(domain: Domain) -> Axis:
    """Return the axis for a domain. Raises TypeError for one that TPE doesn't model."""
    match domain:
        case Float(step=None):
            log = domain.log and domain.high / domain.low > _NARROW
            continuous = FloatDistribution(domain.low, domain.high, log=log)
            return Axis(continuous, float, float)
        case Float():
            return _stepped(domain)
        case Int():
            high = domain.cell(domain.cells - 1)
            log = domain.log and high / domain.low > _NARROW
            whole = IntDistribution(domain.low, high, log=log, step=domain.step)
            return Axis(whole, float, int)
        case Normal():
            # by its quantile, as Optuna has only uniform priors
            bell = NormalDist(domain.mean, domain.sd)
            quantiles = FloatDistribution(_TAIL, 1.0 - _TAIL)
            return Axis(
                quantiles,
                lambda value: min(max(bell.cdf(value), _TAIL), 1.0 - _TAIL),
                domain.quantile,
            )
        case Choice():
            return _categories(domain)
    raise TypeError(f"TPE has no axis for {type(domain).__name__}")


def _stepped(domain: Float) -> Axis:
    """Return the axis of a float in steps. Optuna's values carry rounding errors
    (0.30000000000000004), ours don't: coordinates are Optuna's.
    """
    step, cells = domain.step or 0.0, domain.cells or 1
    high = float(domain.cell(cells - 1))  # Optuna warns unless the steps end at high

    def coordinate(value: Json) -> float:
        return min(domain.low + domain.nearest(value) * step, high)

    steps = FloatDistribution(domain.low, high, step=step)
    return Axis(steps, coordinate, lambda value: domain.cell(domain.nearest(value)))


def _categories(domain: Choice) -> Axis:
    """Return a choice's axis, by position: Optuna takes scalars only, with True equal to 1."""

    def coordinate(value: Json) -> float:
        try:
            return float(domain.index(value))
        except KeyError:
            raise ValueError(f"{value!r} is not one of {list(domain.values)}") from None

    return Axis(CategoricalDistribution(range(len(domain.values))), coordinate, domain.cell)
