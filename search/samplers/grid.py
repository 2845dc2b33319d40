"""Grids: the cells of a product of parameters, by number, and the samplers that take them all, in
their order or in a random one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import shake_256

from regrow.search.chance import uniform_draw
from regrow.search.errors import SpecError
from regrow.search.samplers.base import Proposal, Result
from regrow.search.space import Condition, Parameter, Space
from regrow.search.space.domains import Choice, Constant, Domain, Float, Grid, Int, Json
from regrow.search.space.setting import Setting

LARGEST = 1000
"""Most values of an int or quniform in a grid; with more, a step was probably forgotten."""


ROUNDS = 8
"""Rounds of the Feistel network. 4 suffice (Luby and Rackoff, 1988); small ones gain from more."""


class _ConnectedParameters:
    """Parameters of a product that are connected by conditions, in their order.

    How many cells are left depends on which later parameters are `broken`, those with a condition
    that cannot hold any more, and not on the values that broke it. So twenty switches and one
    parameter that needs all of them on have 40 states, not a million.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self._sizes = [parameter.domain.cells or 0 for parameter in parameters]
        places = {parameter.name: place for place, parameter in enumerate(parameters)}
        children: list[dict[int, Condition]] = [{} for _ in parameters]
        for child, parameter in enumerate(parameters):
            for condition in parameter.when:
                if condition.parameter in places:
                    children[places[condition.parameter]][child] = condition
        self._children = [frozenset(conditions) for conditions in children]
        self._breaks = [
            [_broken_by(parameter, value, conditions) for value in range(size)]
            if conditions
            else []
            for parameter, size, conditions in zip(parameters, self._sizes, children, strict=True)
        ]
        """For a parameter with conditions on it, what each of its values breaks."""
        self._counts = self._counted()

    def left(self, place: int, broken: frozenset[int] = frozenset()) -> int:
        """Return the number of cells from a place on."""
        return self._counts[place][broken]

    def skipped(self, place: int, broken: frozenset[int]) -> frozenset[int]:
        """Return what is broken after a place whose parameter is not active."""
        return (broken | self._children[place]) - {place}

    def taken(
        self, place: int, broken: frozenset[int], index: int, others: int
    ) -> tuple[int, frozenset[int], int]:
        """Return which value the parameter has in cell `index` of those that are left, what is
        broken after it, and the cell's index among those of this value. `others`: number of cells
        of all other parts, which change faster.
        """
        if not self._breaks[place]:
            value, rest = divmod(index, others * self.left(place + 1, broken))
            return value, broken, rest
        for value, breaks in enumerate(self._breaks[place]):
            inner = others * self.left(place + 1, broken | breaks)
            if index < inner:
                return value, broken | breaks, index
            index -= inner
        raise IndexError(index)

    def _after(self, place: int, broken: frozenset[int]) -> Mapping[frozenset[int], int]:
        """Return what may be broken after a place, each with the number of values for it."""
        if place in broken:
            return {self.skipped(place, broken): 1}
        if not self._breaks[place]:
            return {broken: self._sizes[place]}
        return Counter(broken | breaks for breaks in self._breaks[place])

    def _counted(self) -> list[dict[frozenset[int], int]]:
        """Return the number of cells from each place on, by what is broken. Not by recursion: there
        may be more parameters than Python has levels of calls.
        """
        steps: list[dict[frozenset[int], Mapping[frozenset[int], int]]] = []
        states = {frozenset[int]()}
        for place in range(len(self._sizes)):
            steps.append({broken: self._after(place, broken) for broken in states})
            states = {after for found in steps[-1].values() for after in found}
        counts = [dict.fromkeys(states, 1)]
        for step in reversed(steps):
            counts.append(
                {
                    broken: sum(many * counts[-1][after] for after, many in found.items())
                    for broken, found in step.items()
                }
            )
        return counts[::-1]


def _broken_by(
    parameter: Parameter, value: int, conditions: Mapping[int, Condition]
) -> frozenset[int]:
    """Return whose conditions do not hold with value number `value` of a parameter."""
    config = {parameter.name: parameter.domain.cell(value)}
    return frozenset(child for child, one in conditions.items() if not one.holds(config))


def _connected(parameters: Sequence[Parameter]) -> list[list[int]]:
    """Return the places of parameters in groups that conditions connect, each in their order."""
    groups: dict[str, list[int]] = {}
    for place, parameter in enumerate(parameters):
        parents = [groups[c.parameter] for c in parameter.when if c.parameter in groups]
        joined = sorted({place}.union(*parents))
        for other in joined:
            groups[parameters[other].name] = joined
    return list({id(group): group for group in groups.values()}.values())


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
        groups = _connected(self._product)
        self._parts = [
            _ConnectedParameters([self._product[place] for place in group]) for group in groups
        ]
        self._places = {
            place: (number, inside)
            for number, group in enumerate(groups)
            for inside, place in enumerate(group)
        }
        """For each parameter of the product its part, and its place there."""
        self.count = math.prod(part.left(0) for part in self._parts)

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
        left, broken = self.count, [frozenset[int]()] * len(self._parts)
        for position, parameter in enumerate(self._product):
            number, place = self._places[position]
            part, before = self._parts[number], broken[number]
            others = left // part.left(place, before)
            if place in before:
                after = part.skipped(place, before)
            else:
                value, after, index = part.taken(place, before, index, others)
                config[parameter.name] = parameter.domain.cell(value)
            broken[number], left = after, others * part.left(place + 1, after)
        return config


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
