"""Smaller values of parameters, after the memory of a GPU was full. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from regrow.search.space.domains import Choice, Constant, Domain, Float, Int, Json, Normal
from regrow.search.space.space import Space


def smaller(
    config: Mapping[str, Any], factors: Mapping[str, float], space: Space
) -> dict[str, Any] | None:
    """Return the configuration with each parameter of `factors` (0 to 1) multiplied, in values of
    the space; None if none of them can become smaller.
    """
    domains = {parameter.name: parameter.domain for parameter in space.flat}
    found = {
        name: value
        for name, factor in factors.items()
        if name in config and (value := below(domains[name], config[name], factor)) is not None
    }
    return {**config, **found} if found else None


def below(domain: Domain, value: Json, factor: float) -> Json | None:
    """Return the largest value of the domain that is at most `value` times `factor`, or else its
    least one; None if that is not below `value`.
    """
    if not is_number(value) or value <= 0:
        return None
    target = value * factor
    found: Json | None = None
    match domain:
        case Choice():
            numbers = sorted(one for one in domain.values if is_number(one))
            found = max((one for one in numbers if one <= target), default=numbers[0])
        case Constant() | Normal():
            found = max(math.floor(target), 1) if isinstance(value, int) else target
        case Int() | Float(step=float()):
            # 1e-9: a quotient of floats may be just below the whole number that it is
            cell = math.floor((target - domain.low) / (domain.step or 1) + 1e-9)
            found = domain.cell(max(cell, 0))
        case Float():
            found = max(target, domain.low)
    return found if found is not None and found < value else None


def is_number(value: Json) -> bool:
    """Return whether a JSON value is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)
