"""Grids: the cells of a product of parameters, by number, and the samplers that take them all, in
their order or in a random one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from hashlib import shake_256

from regrow.search.chance import uniform_draw
from regrow.search.errors import SpecError
from regrow.search.samplers.base import Proposal, Result
from regrow.search.space import Parameter, Space
from regrow.search.space.domains import Choice, Constant, Domain, Float, Grid, Int, Json, value_key
from regrow.search.space.setting import Setting

LARGEST = 1000
"""Most values of an int or quniform in a grid; with more, a step was probably forgotten."""


ROUNDS = 8
"""Rounds of the Feistel network. 4 suffice (Luby and Rackoff, 1988); small ones gain from more."""


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
        """Return the product of all parameters. Raises SpecError for one with too many values, or a
        continuous one: with the consequence `problem`, and `hint` (and `continuous`, if a step is
        no alternative).
        """
        for parameter in space.flat:
            cells = parameter.domain.cells
            if cells is None or (cells > LARGEST and not isinstance(parameter.domain, Choice)):
                many = "is continuous" if cells is None else f"has {cells} values"
                also = ", or a step" if cells else continuous
                key, form = f"space.{parameter.name}", parameter.domain.to_json()
                raise SpecError(key, form, f"{many}, so {problem}", hint + also)
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

    def placed(self, number: int, seed: int, coordinates: Mapping[str, float]) -> dict[str, Json]:
        """Return the flat configuration of trial `number`: the next cell, and other parameters at
        their coordinates in the unit cube, or at random by `seed` if they have none.
        """

        def draw(p: Parameter) -> Json:
            at = coordinates.get(p.name)
            return p.domain.quantile(uniform_draw(seed, p.name) if at is None else at)

        return self.config(number, draw)

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
        """Return the number of cells from `position` on, given the values before it."""
        if position == len(self._product):
            return 1
        known = tuple(
            (name, value_key(config[name])) for name in self._relevant[position] if name in config
        )
        key = (position, known)
        if key not in self._counts:
            parameter, cells = self._product[position], self._sizes[position]
            if not self._active(parameter, config):
                found = self._count(position + 1, config)
            elif parameter.name not in self._relevant[position + 1]:
                found = cells * self._count(position + 1, config)
            else:
                values = map(parameter.domain.cell, range(cells))
                found = sum(
                    self._count(position + 1, {**config, parameter.name: value}) for value in values
                )
            self._counts[key] = found
        return self._counts[key]


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


class BruteForce:
    """Draws without replacement from the cells of a finite space; there are `size` trials.

    Equivalent to Optuna's BruteForceSampler, but without a list of tried cells: the order is a
    permutation of the cell numbers, drawn from the experiment's seed, and any place in it can be
    computed. So 10**29 cells cost no more than ten. A trial that the user proposed takes no place
    in it. Raises SpecError for a parameter with too many values, or a continuous one.
    """

    several = True

    def __init__(self, setting: Setting) -> None:
        self._cells = Cells.of_all(
            setting.space,
            problem="its values cannot be tried one by one",
            hint="use choice: [...] with the values to try",
            continuous=", or quniform",
        )
        self._seed = setting.seed
        self.size = self._cells.count
        self._users: set[int] = set()

    def ask(self, number: int, seed: int) -> Proposal | None:
        """Return the next cell of the order, None after the last one. `seed` is not used."""
        place = number - sum(other < number for other in self._users)
        if place >= self.size:
            return None
        return Proposal(
            config=self._cells.at(permuted(place, self.size, self._seed)), state={"place": place}
        )

    def tell(self, result: Result) -> None:
        """Remember which trials the user proposed; ignore everything else."""
        if result.number >= 0 and "place" not in result.state:
            self._users.add(result.number)


def permuted(index: int, size: int, seed: int) -> int:
    """Return where a permutation of range(size), drawn from `seed`, takes `index`.

    A balanced Feistel network over the next larger even number of bits, repeated until the result
    is below `size` (Black and Rogaway, CT-RSA 2002, section 4: "cycle-walking"): less than 4
    repetitions on average, up to 256 if size is tiny. Its round function is SHAKE-256, which is the
    same everywhere. Raises ValueError unless 0 <= index < size.
    """
    if not 0 <= index < size:
        raise ValueError(f"{index} is not in range({size})")
    half = max(4, ((size - 1).bit_length() + 1) // 2)
    mask, width = (1 << half) - 1, (half + 7) // 8
    while True:
        left, right = index >> half, index & mask
        for turn in range(ROUNDS):
            digest = shake_256(f"{seed}:{half}:{turn}:{right}".encode()).digest(width)
            left, right = right, left ^ (int.from_bytes(digest, "big") & mask)
        index = left << half | right
        if index < size:
            return index
