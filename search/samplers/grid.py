"""Grids: the cells of a product of parameters, by number, and the sampler that takes them one after
the other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from regrow.search.errors import SpecError
from regrow.search.samplers.base import Proposal, Result
from regrow.search.space import Parameter, Space
from regrow.search.space.domains import Choice, Constant, Domain, Float, Grid, Int, Json, value_key
from regrow.search.space.setting import Setting

LARGEST = 1000
"""Most values of an int or quniform parameter in a grid. A larger number means that the step was
probably forgotten.
"""


class Cells:
    """The product of those parameters of a space whose domain is of a type in `kinds`. The first
    one changes slowest.

    A parameter adds cells only if it is active. If that depends on a parameter outside of the
    product, it always adds them. Nothing is enumerated: counting and finding a cell take about one
    step for each value.
    """

    def __init__(self, space: Space, *kinds: type[Domain]) -> None:
        self._flat = space.flat
        self._product = [p for p in space.flat if isinstance(p.domain, (*kinds, Constant))]
        self._sizes = [p.domain.cells or 0 for p in self._product]
        inside = {p.name for p in self._product}
        # For each i, the earlier parameters that are named in the conditions of parameters from i
        # on: the number of cells from i on depends only on them.
        self._relevant: list[list[str]] = []
        for position in range(len(self._product) + 1):
            named = {c.parameter for p in self._product[position:] for c in p.when}
            self._relevant.append(
                [p.name for p in self._product[:position] if p.name in named & inside]
            )
        self._inside = inside
        self._counts: dict[tuple[int, Hashable], int] = {}
        self.count = self._count(0, {})

    @classmethod
    def of_all(cls, space: Space, *, problem: str, hint: str, continuous: str = "") -> Cells:
        """Return the product of all parameters. Raises SpecError for a parameter with too many
        values, or a continuous one.

        Args:
            space: the space.
            problem: the consequence, for the error.
            hint: what to write instead.
            continuous: added to the hint if a step is no alternative.

        """
        for parameter in space.flat:
            cells = parameter.domain.cells
            if cells is None or (cells > LARGEST and not isinstance(parameter.domain, Choice)):
                many = "is continuous" if cells is None else f"has {cells} values"
                also = ", or a step" if cells else continuous
                raise SpecError(
                    f"space.{parameter.name}",
                    parameter.domain.to_json(),
                    f"{many}, so {problem}",
                    hint + also,
                )
        return cls(space, Choice, Grid, Int, Float)

    def config(self, number: int, draw: Callable[[Parameter], Json]) -> dict[str, Json]:
        """Return the flat configuration of trial `number`: the next cell, and other parameters from
        `draw`.

        `draw` is called only for active parameters, in the order of `Space.flat`.
        """
        fixed = self.at(number % self.count)
        config: dict[str, Json] = {}
        for parameter in self._flat:
            if parameter.active(config):
                name = parameter.name
                config[name] = fixed[name] if name in fixed else draw(parameter)
        return config

    def at(self, index: int) -> dict[str, Json]:
        """Return the values of cell `index`, 0 <= index < count, without inactive parameters."""
        config: dict[str, Json] = {}
        for position, parameter in enumerate(self._product):
            if not self._active(parameter, config):
                continue
            for number in range(self._sizes[position]):
                config[parameter.name] = parameter.domain.cell(number)
                inner = self._count(position + 1, config)
                if index < inner:
                    break
                index -= inner
        return config

    def _active(self, parameter: Parameter, config: dict[str, Json]) -> bool:
        return all(c.holds(config) for c in parameter.when if c.parameter in self._inside)

    def _count(self, position: int, config: dict[str, Json]) -> int:
        """Return the number of cells of the parameters from `position` on, given the values of
        those before it.
        """
        if position == len(self._product):
            return 1
        known = tuple(
            (name, value_key(config[name])) for name in self._relevant[position] if name in config
        )
        key = (position, known)
        if key not in self._counts:
            self._counts[key] = self._count_once(position, config)
        return self._counts[key]

    def _count_once(self, position: int, config: dict[str, Json]) -> int:
        parameter = self._product[position]
        if not self._active(parameter, config):
            return self._count(position + 1, config)
        cells = self._sizes[position]
        if parameter.name not in self._relevant[position + 1]:
            return cells * self._count(position + 1, config)
        name = parameter.name
        return sum(
            self._count(position + 1, {**config, name: parameter.domain.cell(number)})
            for number in range(cells)
        )


class GridSearch:
    """Trial n is cell n of the product of all parameters; there are `size` trials.

    The first parameter changes slowest; one that is written before the parameter it depends on
    comes after it. Raises SpecError for a parameter with too many values, or a continuous one.
    """

    several = True

    def __init__(self, setting: Setting) -> None:
        self._cells = Cells.of_all(
            setting.space, problem="it has no grid", hint="use grid: [...] with the values to try"
        )
        self.size = self._cells.count

    def ask(self, number: int, seed: int) -> Proposal | None:
        """Return cell `number`, None after the last one. The seed is not used."""
        return Proposal(config=self._cells.at(number)) if number < self.size else None

    def tell(self, result: Result) -> None:
        """Ignore the result."""
