"""CMA-ES: the sampler "cmaes". This module chooses the results that form a generation; the
algorithm itself is the library cmaes.

The library and numpy are imported at the first `ask`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from regrow.search.errors import SpecError
from regrow.search.options import check_between, check_whole
from regrow.search.samplers.base import Proposal, Result
from regrow.search.samplers.cube import MIDDLE, inside, point, position
from regrow.search.samplers.grid import Cells
from regrow.search.samplers.result_rules import ended_value, supersedes
from regrow.search.space.domains import Choice, Constant, Grid, Json
from regrow.search.space.setting import Setting

if TYPE_CHECKING:
    from regrow.search.samplers.cmaes_model import Generation, InitialParameters

HUGE = 1e300
"""Replaces an infinite value, because the library subtracts values."""


class CmaEs:
    """CMA-ES (Hansen, 2016, arXiv:1604.00772), with populations that need not wait for each other.

    It searches the numeric parameters in the unit cube, where each prior is uniform (so
    `loguniform` in the logarithm). A proposal is drawn from the newest generation. The first
    proposal for which `popsize` trials of that generation have a value begins the next generation,
    updated by the `popsize` of them with the smallest numbers. While values are missing, or trials
    have failed, more are drawn from the same generation, so it never stalls. Trials that end after
    their generation was closed are ignored, as in Optuna. A stopped trial counts by the last value
    of its curve.

    Choices and parameters under `when` are not modelled: they are drawn at random, independently of
    everything else. Parameters under `grid` take their cells in turn. Trials that the user proposed
    are ignored.

    Args:
        setting: the experiment.
        popsize: trials of a generation, None for 4 + floor(3 ln d) with d numeric parameters.
        sigma0: the first standard deviation, in widths of the cube.
        x0: where to begin, a map from parameter to value; None, and parameters that it does not
            name: the middle. With None and ten earlier results or more, the first distribution is
            fitted to the best tenth of them (WS-CMA-ES: Nomura et al., AAAI 2021), and `sigma0` is
            not used.
        restart: whether a distribution that has converged is replaced by one with twice the
            population at a random place (IPOP: Auger and Hansen, CEC 2005).

    Raises SpecError if no parameter is numeric and unconditional.

    """

    def __init__(
        self,
        setting: Setting,
        *,
        popsize: int | None = None,
        sigma0: float = 0.3,
        x0: dict[str, Json] | None = None,
        restart: bool = True,
    ) -> None:
        check_whole("popsize", popsize, 4)  # the learning rates need two parents
        check_between("sigma0", sigma0, 0, math.inf, "write 0.3")
        self._cells = Cells(setting.space, Grid)
        unmodelled = (Choice, Constant)
        self._axes = [
            p for p in setting.space.flat if not p.when and not isinstance(p.domain, unmodelled)
        ]
        if not self._axes:
            problem = "there is no numeric parameter without a condition"
            raise SpecError("search", "cmaes", problem, "write search: tpe or random")
        self._setting, self._popsize, self._restart = setting, popsize, restart
        self._sigma0 = float(sigma0)
        self._x0 = None if x0 is None else self._point(x0)
        self._results: dict[int, Result] = {}
        self._values: dict[int, dict[int, tuple[int, float]]] = {}
        """Costs of the ended trials that have one, by generation and number."""
        self._opened: dict[int, dict[int, tuple[int, ...]]] = {}
        """For each generation, the trials that it was updated by, by who recorded them."""
        self._generation: Generation | None = None
        self._ahead: tuple[tuple[int, ...], Generation] | None = None

    def ask(self, number: int, seed: int) -> Proposal:
        """See Sampler; never None. `seed` counts modulo 2**32."""
        generation = self._folded()
        parents: tuple[int, ...] | None = None
        ended = sorted(self._values.get(generation.number, ()))
        if len(ended) >= generation.popsize:
            parents = tuple(ended[: generation.popsize])
            generation = self._next(generation, parents)
        elif (noted := self._noted(generation.number)) is not None and noted[0] == number:
            parents = noted[1]
        x = generation.draw(seed % 2**32)
        state: dict[str, Json] = {"generation": generation.number, "x": x}
        if parents is not None:
            state["told"] = list(parents)
        names = [p.name for p in self._axes]
        coordinates = dict(zip(names, map(inside, x), strict=True))
        return Proposal(config=self._cells.placed(number, seed, coordinates), state=state)

    def tell(self, result: Result) -> None:
        """See Sampler. Only ended trials with a value count, and the state of proposals."""
        before = self._results.get(result.number)
        if (value := ended_value(result)) is not None and "generation" in result.state:
            # A trial that was retried (one of its repeats had failed) keeps its first value: a
            # generation may have been updated by it.
            values = self._values.setdefault(result.state["generation"], {})
            cost = min(max(self._setting.sign * value, -HUGE), HUGE)
            values[result.number] = min(
                values.get(result.number, (result.revived, cost)), (result.revived, cost)
            )
        if not supersedes(result, before):
            return
        self._results[result.number] = result
        if result.number < 0:
            self._generation = None
        if "generation" not in result.state:
            return
        generation, number = result.state["generation"], result.number
        if "told" in result.state and before is None:
            noted = self._opened.setdefault(generation, {})
            noted[number] = tuple(result.state["told"])
            if self._generation and generation <= self._generation.number and number == min(noted):
                self._generation = None  # known late: fold again, with it

    def _folded(self) -> Generation:
        """Return the newest generation with a known trial; cached, as it takes many updates."""
        if self._generation is None:
            from regrow.search.samplers.cmaes_model import Generation

            self._generation = Generation.first(self._start())
        while (noted := self._noted(self._generation.number + 1)) is not None:
            self._generation = self._next(self._generation, noted[1])
        return self._generation

    def _noted(self, generation: int) -> tuple[int, tuple[int, ...]] | None:
        """Return the first trial that recorded what the generation was updated by, and the trials
        it recorded; None if there is none. A record with a trial that the user dropped is void.
        """
        values = self._values.get(generation - 1, {})
        notes = sorted(self._opened.get(generation, {}).items())
        return next((note for note in notes if values.keys() >= {*note[1]}), None)

    def _next(self, generation: Generation, parents: tuple[int, ...]) -> Generation:
        if (
            self._ahead
            and self._ahead[0] == parents
            and self._ahead[1].number == generation.number + 1
        ):
            return self._ahead[1]
        values = self._values.get(generation.number, {})
        following = generation.following(
            [(self._results[n].state["x"], values[n][1]) for n in parents]
        )
        self._ahead = (parents, following)
        return following

    def _start(self) -> InitialParameters:
        from regrow.search.samplers.cmaes_model import InitialParameters

        earlier = []
        for number in sorted(n for n in self._results if n < 0):
            value = ended_value(self._results[number])
            config = self._results[number].config
            x = point(self._setting.space, self._axes, config, MIDDLE)
            if value is not None and x is not None:
                earlier.append((x, self._setting.sign * value))
        return InitialParameters(
            mean=self._x0 or [0.5] * len(self._axes),
            sigma=self._sigma0,
            popsize=self._popsize,
            earlier=earlier if self._x0 is None else [],
            restart=self._restart,
            seed=self._setting.seed,
        )

    def _point(self, x0: Any) -> list[float]:
        names = [p.name for p in self._axes]
        if not isinstance(x0, dict):
            raise SpecError("x0", x0, "is not a map", f"write {{{names[0]}: value}}")
        for name in x0:
            if name not in names:
                problem = "is not a parameter that is modelled"
                raise SpecError(f"x0.{name}", x0[name], problem, f"known: {', '.join(names)}")
        found = []
        for p in self._axes:
            try:
                found.append(position(p.domain, x0[p.name]) if p.name in x0 else MIDDLE)
            except (TypeError, ValueError):
                problem, hint = f"{p.name} can never be this", f"it is one of {p.domain.to_json()}"
                raise SpecError(f"x0.{p.name}", x0[p.name], problem, hint) from None
        return found
