"""Which parameters' best values lie at a bound of their domain: a wider one may be better."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from regrow.search.history.fold import History
from regrow.search.space.domains import Float, Int

BEST = 6
"""How many of the best trials are looked at."""
LEAST = 12
"""Trials with a value below which nothing can be said."""
MOST_OTHERS = 1
"""How many of the best may lie elsewhere."""
NEAR = 0.03
"""Share of a real domain's width, of its logarithm for a logarithmic one, that counts as its bound;
of a whole number the bound itself does.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AtBound:
    """A parameter whose best values lie at a bound.

    Attributes:
        name: of the parameter, dotted.
        side: the bound.
        count: how many of the `of` best trials lie there.
        wider: the domain with that bound moved: by its width, or a factor of ten for a logarithmic
            one.

    """

    name: str
    side: Literal["lower", "upper"]
    count: int
    of: int
    wider: Float | Int


def at_bounds(history: History) -> Iterator[AtBound]:
    """Yield the numeric parameters whose best values lie at a bound. A bound of 0, and of 1 above
    it, is taken for the quantity's own limit, as of a dropout, and left out.
    """
    sign = history.objective.sign
    valued = [(t.best[0], t.number) for t in history.trials if t.best is not None]
    if len(valued) < LEAST or len(history.spec.metrics) > 1:
        return
    best = [number for _, number in sorted((sign * value, number) for value, number in valued)]
    configs = [history.trials[number].config for number in best[:BEST]]
    for parameter in history.spec.space.flat:
        domain = parameter.domain
        values = [config[parameter.name] for config in configs if parameter.name in config]
        if not isinstance(domain, Float | Int) or len(values) < BEST or domain.low == domain.high:
            continue
        near = 0.0 if isinstance(domain, Int) else NEAR
        places = [_place(domain, value) for value in values]
        for side, count in (
            ("lower", sum(place <= near for place in places)),
            ("upper", sum(place >= 1 - near for place in places)),
        ):
            if count >= BEST - MOST_OTHERS and (wider := _wider(domain, side == "upper")):
                yield AtBound(
                    name=parameter.name,
                    side="upper" if side == "upper" else "lower",
                    count=count,
                    of=BEST,
                    wider=wider,
                )


def _place(domain: Float | Int, value: float) -> float:
    """Return where a value lies between the bounds, 0 to 1."""
    if domain.log:
        return math.log(value / domain.low) / math.log(domain.high / domain.low)
    return (value - domain.low) / (domain.high - domain.low)


def _wider(domain: Float | Int, upper: bool) -> Float | Int | None:
    """Return the domain with a bound moved; None if the bound is a limit of the quantity itself."""
    low, high = domain.low, domain.high
    if (not upper and low == 0) or (upper and high == 1 and low >= 0 and not domain.log):
        return None
    if domain.log:
        far = high * 10 if upper else low / 10
        if isinstance(domain, Int):
            far = max(1, int(far))
    else:
        far = high + (high - low) if upper else low - (high - low)
        if not upper and low > 0:
            far = max(far, 0)
    bound = float(f"{far:.12g}")
    if bound in (low, high):
        return None
    if isinstance(domain, Int):
        return replace(domain, high=int(bound)) if upper else replace(domain, low=int(bound))
    return replace(domain, high=bound) if upper else replace(domain, low=bound)
