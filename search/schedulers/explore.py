"""The explore step of population based training: a configuration near a good one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from regrow.search.space import Space
from regrow.search.space.domains import Choice, Constant, Domain, Float, Grid, Int, Json, Normal

FACTORS = (1.2, 0.8)
"""Jaderberg et al., 2017, appendix A.1."""


def mutable(space: Space) -> list[str]:
    """Return the parameters that are explored if none are named: all but constants and grids."""
    return [p.name for p in space.flat if not isinstance(p.domain, (Constant, Grid))]


def explore(
    space: Space,
    config: Mapping[str, Json],
    names: Sequence[str],
    draw: Callable[[str], float],
    *,
    resample_probability: float,
    factors: Sequence[float],
) -> dict[str, Json]:
    """Return `config` with each parameter in `names` resampled from its domain, or else perturbed.

    Numbers are multiplied by one of `factors`, then clipped to their bounds and rounded to their
    steps; a whole number that this does not change moves by one step in that direction. A choice
    becomes its left or right neighbour, or at the ends possibly itself. Parameters become active or
    inactive by their conditions; new ones are sampled. `draw` gives a number in (0, 1) by name:
    "NAME:resample" decides, "NAME:perturb" selects the change and "NAME:value" gives a new value.
    """
    found: dict[str, Json] = {}
    for parameter in space.flat:
        name, domain = parameter.name, parameter.domain
        if not parameter.active(found):
            continue
        if name not in config:
            found[name] = domain.quantile(draw(f"{name}:value"))
        elif name not in names:
            found[name] = config[name]
        elif draw(f"{name}:resample") < resample_probability:
            found[name] = domain.quantile(draw(f"{name}:value"))
        else:
            found[name] = _perturbed(domain, config[name], draw(f"{name}:perturb"), factors)
    return found


def _perturbed(domain: Domain, value: Json, u: float, factors: Sequence[float]) -> Json:
    if isinstance(domain, Choice):
        index = domain.index(value) + (-1 if u < 0.5 else 1)
        return domain.cell(min(max(index, 0), domain.cells - 1))
    factor = factors[int(u * len(factors))]
    if isinstance(domain, Float):
        return (
            _in_steps(domain, value, value * factor)
            if domain.step
            else min(max(value * factor, domain.low), domain.high)
        )
    if isinstance(domain, Int):
        return _in_steps(domain, value, value * factor)
    return value * factor if isinstance(domain, Normal) and math.isfinite(value * factor) else value


def _in_steps(domain: Float | Int, value: float, wanted: float) -> Json:
    before, index = domain.nearest(value), domain.nearest(wanted)
    if index == before and wanted != value:
        index += 1 if wanted > value else -1
    return domain.cell(min(max(index, 0), (domain.cells or 1) - 1))
