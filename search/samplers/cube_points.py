"""Moves many points of the unit cube at once to where their configurations are. For single values
see `cube.py`.

A model must evaluate a point where its trial will be: in the middle of a cell, and in the middle of
the cube for an inactive parameter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from regrow.search.samplers.cube import MIDDLE, inside
from regrow.search.space import Parameter, Space
from regrow.search.space.domains import Constant, Domain, Int, Json

Floats = npt.NDArray[np.float64]


class CubePoints:
    """The points of a space, whose `parameters` (in the order of `Space.flat`) are the
    dimensions.
    """

    def __init__(self, space: Space, parameters: Sequence[Parameter]) -> None:
        self.domains = [p.domain for p in parameters]
        self._parameters = parameters
        self._constants = {
            p.name: p.domain.value for p in space.flat if isinstance(p.domain, Constant)
        }
        place = {p.name: d for d, p in enumerate(parameters)}
        self._parents: dict[int, list[int]] = {}
        """For each conditional dimension, those that it depends on. Dimensions that also depend on
        a parameter under `grid` are not included.
        """
        for d, p in enumerate(parameters):
            names = {condition.parameter for condition in p.when} - self._constants.keys()
            if p.when and names <= place.keys():
                self._parents[d] = sorted(place[name] for name in names)

    def settled(self, points: Floats) -> Floats:
        """Move each of the points (n, d) to where its configuration is. Changes and returns the
        array.
        """
        for d, domain in enumerate(self.domains):
            points[:, d] = _middles(domain, points[:, d])
        active = np.ones(points.shape, dtype=np.bool_)
        for d, parents in self._parents.items():
            seen, which = np.unique(
                np.hstack([points[:, parents], active[:, parents]]), axis=0, return_inverse=True
            )
            holds = np.array(
                [self._parameters[d].active(self._values(parents, row.tolist())) for row in seen]
            )
            active[:, d] = holds[which.ravel()]
            points[~active[:, d], d] = MIDDLE
        return points

    def _values(self, dimensions: Sequence[int], row: Sequence[float]) -> Mapping[str, Json]:
        """Return the values of active parameters. `row` has first their coordinates, then whether
        each is active.
        """
        found = dict(self._constants)
        for place, d in enumerate(dimensions):
            if row[len(dimensions) + place]:
                found[self._parameters[d].name] = self.domains[d].quantile(inside(row[place]))
        return found


def _middles(domain: Domain, at: Floats) -> Floats:
    """Move coordinates to the middle of their cells, as `cube.position` does; without cells they
    are unchanged.
    """
    cells = domain.cells
    if cells is None:
        return at
    if isinstance(domain, Int) and domain.log:
        low, high = math.log(domain.low - 0.5), math.log(domain.high + 0.5)
        whole = np.clip(np.round(np.exp(low + (high - low) * at)), domain.low, domain.high)
        return np.asarray((np.log(whole) - low) / (high - low))
    return np.asarray((np.minimum(np.floor(at * cells), cells - 1) + 0.5) / cells)
