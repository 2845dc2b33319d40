"""DEHB: HyperBand's brackets, in which differential evolution proposes the configurations.

Awad, Mallik and Hutter, "DEHB: Evolutionary HyperBand for Scalable, Robust and Efficient
Hyperparameter Optimization", IJCAI 2021, arXiv:2105.09821, section 4 and algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from regrow.search.chance import uniform_draw
from regrow.search.errors import SpecError
from regrow.search.hyperband_plan import brackets
from regrow.search.options import check_whole, check_within
from regrow.search.samplers.base import Proposal, Result
from regrow.search.samplers.cube import modelled
from regrow.search.samplers.grid import Cells
from regrow.search.space.domains import Grid
from regrow.search.space.setting import Setting

Vector: TypeAlias = Mapping[str, float]
"""A point of the unit cube: each parameter's place in its prior, also if it isn't active."""


@dataclass(frozen=True, slots=True)
class _Individual:
    """An evaluated vector."""

    cost: float
    number: int
    vector: Vector


def _order(one: _Individual) -> tuple[float, int]:
    """Of two with equal cost the later one is better: DE's selection takes u if f(u) <= f(x)."""
    return one.cost, -one.number


@dataclass(slots=True)
class _Rung:
    """Progress of a rung of a bracket."""

    begun: int = 0
    over: int = 0
    evaluated: list[_Individual] = field(default_factory=list)


class Dehb:
    """Each evaluation is a separate trial of state["budget"] steps, to be used with `schedule:
    dehb`, which ends it there.

    Brackets are HyperBand's, with budgets from `min_budget` steps to max_steps, a factor of `eta`
    apart. The first bracket is successive halving of random configurations: the best n_i of a rung
    are evaluated again at the next budget. After that each budget has a subpopulation, as large as
    its largest rung, whose members are the targets in turn: a mutant (rand/1, `mutation_factor`) is
    crossed with the target (binomial, `crossover_probability`), and replaces it if it is no worse.
    Parents of the mutant are drawn from the subpopulation itself in a bracket's first rung, and
    from the best n_i of the budget below in the others. A bracket's rung begins when the one below
    is over; until then the next bracket begins, so that no slot is idle.

    Where the paper is silent: targets that have not been evaluated are random configurations;
    parents are filled up with the members of the other subpopulations, then with random vectors; a
    coordinate that leaves the unit interval is drawn again; a trial that failed, or never reached
    its budget, has an infinite cost and does not become a member; results without a state (the
    user's points, a warm start) are ignored. Parameters under `grid` take their cells in turn.
    """

    gives_budgets = True

    def __init__(
        self,
        setting: Setting,
        *,
        eta: int = 3,
        min_budget: int = 1,
        mutation_factor: float = 0.5,
        crossover_probability: float = 0.5,
    ) -> None:
        most = setting.max_steps
        if most is None:
            raise SpecError("max_steps", None, "is missing, dehb needs it", "write max_steps: 27")
        check_whole("eta", eta, 2, "3 is usual")
        if not 1 <= min_budget <= most:
            problem = f"is not between 1 and max_steps ({most})"
            raise SpecError("min_budget", min_budget, problem, "1 is usual")
        if not 0 < mutation_factor <= 1:
            problem = "is not above 0, up to 1"
            raise SpecError("mutation_factor", mutation_factor, problem, "0.5 is usual")
        check_within("crossover_probability", crossover_probability, 0, 1, "0.5 is usual")
        self._setting = setting
        self._factor, self._crossover = mutation_factor, crossover_probability
        self._cells = Cells(setting.space, Grid)
        self._names = [p.name for p in modelled(setting.space)]
        self._plans = brackets(most, eta, min_budget)
        self._sizes: dict[int, int] = {}
        for plan in self._plans:
            for n, budget in plan:
                self._sizes[budget] = max(n, self._sizes.get(budget, 0))
        self._results: dict[int, Result] = {}

    def tell(self, result: Result) -> None:
        """See Sampler. The latest result of a trial counts."""
        if "budget" in result.state:
            self._results[result.number] = result

    def ask(self, number: int, seed: int) -> Proposal:
        """See Sampler; never None."""
        rungs, members = self._fold()
        bracket, rung = self._next(rungs)
        n, budget = self._plans[bracket % len(self._plans)][rung]
        begun = sum(state.begun for (_, _, of), state in rungs.items() if of == budget)
        target = begun % self._sizes[budget]
        own = members.get(budget, {}).get(target)
        if bracket == 0 and rung > 0:
            below = rungs[0, rung - 1, self._plans[0][rung - 1][1]]
            best = sorted(below.evaluated, key=_order)[:n]
            place = rungs[0, rung, budget].begun if (0, rung, budget) in rungs else 0
            vector = dict(best[place].vector) if place < len(best) else self._random(seed)
        elif bracket == 0 or own is None:
            vector = self._random(seed)
        else:
            vector = self._trial_vector(seed, own, self._pool(members, bracket, rung, target, seed))
        state = {"bracket": bracket, "rung": rung, "budget": budget, "target": target}
        config = self._cells.placed(number, seed, vector)
        return Proposal(config=config, state={**state, "vector": vector})

    # ---- results so far

    def _fold(self) -> tuple[dict[tuple[int, int, int], _Rung], dict[int, dict[int, _Individual]]]:
        """Return rungs by (bracket, rung, budget), and members by budget and target."""
        rungs: dict[tuple[int, int, int], _Rung] = {}
        members: dict[int, dict[int, _Individual]] = {}
        for number in sorted(self._results):
            result = self._results[number]
            state, budget = result.state, result.state["budget"]
            rung = rungs.setdefault((state["bracket"], state["rung"], budget), _Rung())
            rung.begun += 1
            if result.status == "running":
                continue
            rung.over += 1
            costs = (self._setting.sign * v for step, v in result.intermediate if step == budget)
            cost = next(costs, math.inf)
            if result.status == "failed" or not math.isfinite(cost):
                continue
            individual = _Individual(cost, number, state["vector"])
            rung.evaluated.append(individual)
            slots = members.setdefault(budget, {})
            if state["target"] not in slots or _order(individual) < _order(slots[state["target"]]):
                slots[state["target"]] = individual
        return rungs, members

    def _next(self, rungs: Mapping[tuple[int, int, int], _Rung]) -> tuple[int, int]:
        """Return bracket and rung of the next evaluation, of the oldest bracket with one."""
        bracket = 0
        while True:
            plan = self._plans[bracket % len(self._plans)]
            for rung, (n, budget) in enumerate(plan):
                state = rungs.get((bracket, rung, budget), _Rung())
                if state.begun < n:
                    return bracket, rung
                if state.over < n:
                    break
            bracket += 1

    # ---- differential evolution

    def _pool(
        self,
        members: Mapping[int, Mapping[int, _Individual]],
        bracket: int,
        rung: int,
        target: int,
        seed: int,
    ) -> list[Vector]:
        """Return at least three vectors from which a mutant is made."""
        plan = self._plans[bracket % len(self._plans)]
        n, budget = plan[rung]
        if rung == 0:
            found = [one.vector for slot, one in sorted(members[budget].items()) if slot != target]
        else:
            best = sorted(members.get(plan[rung - 1][1], {}).values(), key=_order)
            found = [one.vector for one in best[:n]]
        if len(found) < 3:
            source = plan[rung - 1][1] if rung else budget
            others = [i for of in sorted(members) if of != source for i in members[of].values()]
            found += [one.vector for one in sorted(others, key=_order)[: 3 - len(found)]]
        while len(found) < 3:
            found.append(self._random(seed, f"filler:{len(found)}:"))
        return found

    def _trial_vector(self, seed: int, target: _Individual, pool: list[Vector]) -> dict[str, float]:
        """Cross the target with a mutant (rand/1/bin)."""
        places = list(range(len(pool)))
        a, b, c = (
            pool[places.pop(int(uniform_draw(seed, f"parent:{k}") * len(places)))] for k in range(3)
        )
        sure = int(uniform_draw(seed, "sure") * len(self._names))
        vector = {}
        for place, name in enumerate(self._names):
            mutant = a[name] + self._factor * (b[name] - c[name])
            if not 0 < mutant < 1:
                mutant = uniform_draw(seed, f"boundary:{name}")
            crossed = place == sure or uniform_draw(seed, f"cross:{name}") < self._crossover
            vector[name] = mutant if crossed else target.vector[name]
        return vector

    def _random(self, seed: int, what: str = "") -> dict[str, float]:
        return {name: uniform_draw(seed, f"{what}{name}") for name in self._names}
