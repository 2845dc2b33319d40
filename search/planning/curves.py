"""Recorded learning curves: which are nearest to a configuration, and whole curves drawn from them
for configurations that nobody has tried.

The model: of the curves, as many are drawn with replacement as there are, once for each simulation,
so that simulations differ by what few curves leave open. A trial then takes one whole curve, with
its durations, by chance: that of its own configuration if it is there, else one of the nearest, as
many as the square root of their number. All its values are shifted by one normal error, so that
what comes may be better than all that was seen: a smoothed bootstrap with an adaptive kernel. The
error of a curve is as large as the distance of its last value to the k-th nearest of the other
curves' (k: the cube root of their number), times a factor between 0 and 2 that is drawn for each
simulation, as the curves do not tell it: with it, 80 % intervals held about 80 % of the best values
of made-up searches (`tests/unit/test_estimate_model.py` has some). Values that are never below 0,
or always within 0 and 1, stay so. All durations of a simulation have a common normal factor, as no
two machines are equally fast.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from regrow.search.chance import seed_for
from regrow.search.numbers import finite
from regrow.search.space import Parameter, Space
from regrow.search.space.domains import Choice, Constant, Float, Int, Json, Normal

WIDEST = 2.0
"""The most that the errors of a simulation are multiplied by."""
PACE = 0.1
"""Standard deviation of the factor of durations, around 1."""
Distances: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCurve:
    """One trial that was run.

    Attributes:
        config: the flat configuration; a parameter that was not active is missing.
        rows: metrics by step; that of step s is at s - 1.
        seconds: duration of each step, on one slot.
        whole: whether the trial ran to its end; else it was stopped, and may be `completed`.

    """

    config: Mapping[str, Json]
    rows: Sequence[Mapping[str, float]]
    seconds: Sequence[float]
    whole: bool = True


class Neighbours:
    """Distances of configurations to the recorded ones: how many choices differ, then the Euclidean
    distance in the unit cube of the space, with logarithmic ranges measured by their logarithm.
    """

    def __init__(
        self, space: Space, configs: Iterable[Mapping[str, Json]], *, fixed: Collection[str] = ()
    ) -> None:
        """Place the configurations. `fixed`: constants that count as choices."""
        self._ranges = [p for p in space.flat if not isinstance(p.domain, Choice | Constant)]
        self._choices = [p.name for p in space.flat if isinstance(p.domain, Choice)]
        self._choices += [name for name in fixed if name not in self._choices]
        configs = list(configs)
        points = [
            [coordinate(p, config[p.name]) if p.name in config else 0.5 for p in self._ranges]
            for config in configs
        ]
        kinds = [[word(config.get(name)) for name in self._choices] for config in configs]
        self._points = np.array(points, dtype=float).reshape(len(configs), len(self._ranges))
        self._kinds = np.array(kinds, dtype=str).reshape(len(configs), len(self._choices))

    def distances(self, config: Mapping[str, Json]) -> tuple[Distances, Distances]:
        """Return for each recorded configuration the number of other choices, and the square of the
        distance. A parameter that `config` does not have counts as equal.
        """
        differ, distance = np.zeros(len(self._points)), np.zeros(len(self._points))
        for place, name in enumerate(self._choices):
            differ += self._kinds[:, place] != word(config.get(name))
        for place, parameter in enumerate(self._ranges):
            if parameter.name in config:
                here = coordinate(parameter, config[parameter.name])
                distance += (self._points[:, place] - here) ** 2
        return differ, distance

    def key(self, config: Mapping[str, Json]) -> tuple[str, ...]:
        """Return a key of what the distances depend on."""
        names = [*(parameter.name for parameter in self._ranges), *self._choices]
        return tuple(word(config.get(name)) for name in names)


def coordinate(parameter: Parameter, value: Json) -> float:
    """Return the position of a value in the unit interval of its domain."""
    number = float(value)
    match parameter.domain:
        case Float() | Int() as domain:
            low, high = float(domain.low), float(domain.high)
            if domain.log:
                low, high, number = math.log(low), math.log(high), math.log(number)
            return (number - low) / (high - low) if high > low else 0.5
        case Normal() as domain:
            return NormalDist(domain.mean, domain.sd).cdf(number)
        case _:
            return 0.5


def word(value: object) -> str:
    """Normalize a value to compare: 1, 1.0 and "1" are the same, as are True and "true"."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False).lower()
    try:
        return repr(float(value))  # type: ignore[arg-type]  # a wrong type raises TypeError
    except (TypeError, ValueError):
        return str(value).lower()


def completed(curves: Sequence[RecordedCurve], metric: str, steps: int) -> list[RecordedCurve]:
    """Return the curves with those of stopped trials continued up to `steps`, as far as one is that
    long: by the changes of the longer curve whose value at that step is nearest.
    """
    found: list[RecordedCurve] = []
    longest = sorted(range(len(curves)), key=lambda n: -len(curves[n].rows))
    done: dict[int, RecordedCurve] = {}
    for number in longest:
        curve, length = curves[number], len(curves[number].rows)
        longer = [other for other in found if len(other.rows) > length]
        if not curve.whole and length < steps and longer:
            last = curve.rows[-1][metric]
            donor = min(longer, key=lambda other: abs(other.rows[length - 1][metric] - last))
            shift = finite(last - donor.rows[length - 1][metric])
            rest = [{**row, metric: finite(row[metric] + shift)} for row in donor.rows[length:]]
            pace = float(np.median(curve.seconds)) / (float(np.median(donor.seconds)) or 1.0)
            seconds = [one * pace for one in donor.seconds[length:]]
            curve = replace(
                curve, rows=(*curve.rows, *rest), seconds=(*curve.seconds, *seconds), whole=True
            )
        found.append(curve)
        done[number] = curve
    return [done[number] for number in range(len(curves))]


def errors(values: Sequence[float]) -> list[float]:
    """Return for each value its distance to the k-th nearest other one, with k the cube root of
    their number. 0 for a single value.
    """
    k = max(1, round(len(values) ** (1 / 3)))
    if len(values) < 2:
        return [0.0] * len(values)
    found = []
    for place, value in enumerate(values):
        others = (other for n, other in enumerate(values) if n != place)
        apart = sorted(finite(abs(value - other)) for other in others)
        found.append(apart[min(k, len(apart)) - 1])
    return found


def bounds(curves: Iterable[RecordedCurve], metric: str) -> tuple[float, float]:
    """Return the bounds that values seem to have: 0 and 1, 0, or those of a float."""
    values = [row[metric] for curve in curves for row in curve.rows]
    if min(values) < 0:
        return -sys.float_info.max, sys.float_info.max
    return 0.0, 1.0 if max(values) <= 1 else sys.float_info.max


@dataclass(slots=True)
class Drawn:
    """An objective that draws curves, as the module says. The same arguments draw the same ones.

    Attributes:
        curves: the recorded ones, at least one.
        space: the parameters.
        metric: the name of the objective.
        seed: of the simulation.

    """

    curves: Sequence[RecordedCurve]
    space: Space
    metric: str
    seed: int
    _neighbours: Neighbours = field(init=False)
    _errors: list[float] = field(init=False)
    _bounds: tuple[float, float] = field(init=False)
    _pace: float = field(init=False)
    _known: dict[int, tuple[Mapping[str, Json], RecordedCurve, float]] = field(init=False)
    """By a trial's seed: its configuration, its curve, its error."""

    def __post_init__(self) -> None:
        chance = random.Random(seed_for(self.seed, 0, "curves"))  # noqa: S311 - no secret
        wide = chance.uniform(0.0, WIDEST)
        found = errors([curve.rows[-1][self.metric] for curve in self.curves])
        drawn = chance.choices(range(len(self.curves)), k=len(self.curves))
        self._pace = max(0.5, chance.gauss(1.0, PACE))
        self._errors = [finite(wide * found[place]) for place in drawn]
        self._bounds = bounds(self.curves, self.metric)
        self.curves = [self.curves[place] for place in drawn]
        self._neighbours = Neighbours(self.space, (curve.config for curve in self.curves))
        self._known = {}

    def at(
        self, config: Mapping[str, Json], step: int, seed: int
    ) -> tuple[Mapping[str, float], float]:
        """See Objective. A shorter curve is extended by its last step."""
        known = self._known.get(seed)
        if known is None or known[0] != config:
            known = self._known[seed] = (config, *self._draw(config, seed))
        _, curve, error = known
        place = min(step, len(curve.rows)) - 1
        row = curve.rows[place]
        value = self._inside(row[self.metric] + error)
        return {**row, self.metric: value}, curve.seconds[place] * self._pace

    def _inside(self, value: float) -> float:
        """Return a value, reflected at the bounds: at them, values would pile up."""
        low, high = self._bounds
        value = low + abs(value - low) if value < low else value
        value = high - abs(value - high) if value > high else value
        return min(max(value, low), high)

    def _draw(self, config: Mapping[str, Json], seed: int) -> tuple[RecordedCurve, float]:
        chance = random.Random(seed_for(self.seed, seed, "curve"))  # noqa: S311 - no secret
        differ, distance = self._neighbours.distances(config)
        order = np.lexsort((distance, differ))
        same = int(np.sum((differ == 0) & (distance < 1e-18)))
        most = same or max(1, round(math.sqrt(len(self.curves))))
        place = int(order[chance.randrange(most)])
        return self.curves[place], self._errors[place] * chance.gauss(0.0, 1.0)
