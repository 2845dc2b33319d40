"""The unit cube: values as points of (0, 1), the inverse of `Domain.quantile`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist

from regrow.search.space import Parameter, Space
from regrow.search.space.domains import Choice, Constant, Domain, Float, Grid, Int, Json, Normal

EDGE = 2.0**-40
"""Smallest distance of a point from 0 and 1. `quantile` takes the open interval, and a normal
parameter ends 7 sd from its mean.
"""

MIDDLE = 0.5
"""Coordinate of an inactive parameter."""


def modelled(space: Space) -> list[Parameter]:
    """Return the parameters that have a dimension: all but constants and those under `grid`."""
    return [p for p in space.flat if not isinstance(p.domain, (Constant, Grid))]


def inside(u: float) -> float:
    """Return the point of [EDGE, 1 - EDGE] nearest to `u`."""
    return min(max(float(u), EDGE), 1.0 - EDGE)


def point(
    space: Space, parameters: Sequence[Parameter], config: Mapping[str, Json], inactive: float
) -> list[float] | None:
    """Return the point of a configuration, with `inactive` for parameters that it does not have;
    None if it does not fit the space.
    """
    active = set(space.active(config))
    try:
        return [
            position(p.domain, config[p.name]) if p.name in active else inactive for p in parameters
        ]
    except (KeyError, ValueError):
        return None


def position(domain: Domain, value: Json) -> float:
    """Return the point whose quantile is `value`; for a domain with cells the middle of the cell.

    Raises ValueError for a value that the domain does not contain, TypeError for a domain that has
    no dimension.
    """
    if not domain.contains(value):
        raise ValueError(f"{value!r} is not a value of {domain.to_json()}")
    match domain:
        case Float(step=None):
            low, high, at = domain.low, domain.high, float(value)
            if domain.log:
                low, high, at = math.log(low), math.log(high), math.log(at)
            return inside((at - low) / ((high - low) or 1.0))
        case Int(log=True):
            low, high = math.log(domain.low - 0.5), math.log(domain.high + 0.5)
            return inside((math.log(value) - low) / ((high - low) or 1.0))
        case Float() | Int():
            return (domain.nearest(value) + 0.5) / (domain.cells or 1)
        case Normal():
            return inside(NormalDist(domain.mean, domain.sd).cdf(value))
        case Choice():
            return (domain.index(value) + 0.5) / domain.cells
    raise TypeError(f"{type(domain).__name__} has no dimension in the unit cube")
