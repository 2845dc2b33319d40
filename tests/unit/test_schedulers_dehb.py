"""DEHB: the order of its brackets, its selection and evolution, and the scheduler that ends trials
at their budgets.
"""

from __future__ import annotations

import json
import random
import statistics
from collections import Counter
from typing import Any

import pytest

from regrow.search.errors import SpecError
from regrow.search.hyperband_plan import brackets
from regrow.search.mode import Mode
from regrow.search.samplers import make
from regrow.search.samplers.base import Proposal, Result, TrialStatus
from regrow.search.samplers.dehb import Dehb
from regrow.search.samplers.random_search import RandomSearch
from regrow.search.space import Space
from tests.unit.sampling import seed_of
from tests.unit.scheduling import Run, scheduler, setting

SPACE = Space.parse(
    {
        "x": {"uniform": [0, 1]},
        "lr": {"loguniform": [1e-4, 1]},
        "layers": {"int": [1, 8]},
        "act": {"choice": ["relu", "tanh"]},
        "slope": {"uniform": [0, 1], "when": {"act": "tanh"}},
        "fold": {"grid": [0, 1, 2]},
        "size": 3,
    }
)
LINE = Space.parse({"x": {"uniform": [0, 1]}, "y": {"uniform": [0, 1]}})


def sampler(max_steps: int = 9, mode: Mode = "min", space: Space = LINE, **options: Any) -> Dehb:
    return Dehb(setting(max_steps, mode, space=space), **options)


def result(
    number: int, proposal: Proposal, cost: float | None, status: TrialStatus = "stopped"
) -> Result:
    """`cost` at every step up to its budget."""
    budget = proposal.state["budget"]
    steps = [] if cost is None else [(step, cost) for step in range(1, budget + 1)]
    return Result(
        number=number,
        config=proposal.config,
        state=proposal.state,
        status=status,
        value=cost,
        intermediate=steps,
    )


def search(dehb: Dehb, count: int, cost: Any, failed: set[int] = frozenset()) -> list[Proposal]:  # type: ignore[assignment]
    """One after the other; `cost(number, proposal)`."""
    proposals = []
    for number in range(count):
        proposal = dehb.ask(number, seed_of(number))
        proposals.append(proposal)
        dehb.tell(
            result(
                number,
                proposal,
                None if number in failed else cost(number, proposal),
                "failed" if number in failed else "stopped",
            )
        )
    return proposals


def where(proposals: list[Proposal]) -> list[tuple[int, int, int]]:
    return [(p.state["bracket"], p.state["rung"], p.state["budget"]) for p in proposals]


def test_brackets_follow_one_another_as_in_hyperband() -> None:
    # max_steps 9: [9 at 1, 3 at 3, 1 at 9], [5 at 3, 1 at 9], [3 at 9], and again
    expected = (
        [(0, 0, 1)] * 9
        + [(0, 1, 3)] * 3
        + [(0, 2, 9)]
        + [(1, 0, 3)] * 5
        + [(1, 1, 9)]
        + [(2, 0, 9)] * 3
        + [(3, 0, 1)] * 9
    )
    assert where(search(sampler(), 31, lambda number, p: float(number))) == expected


def test_budgets_begin_at_the_smallest() -> None:
    assert brackets(100, 3, 5) == [[(9, 11), (3, 33), (1, 100)], [(5, 33), (1, 100)], [(3, 100)]]
    budgets = {
        p.state["budget"]
        for p in search(sampler(100, min_budget=5), 40, lambda number, p: float(number))
    }
    assert min(budgets) >= 5
    assert max(budgets) == 100


def test_the_first_bracket_evaluates_the_best_again() -> None:
    costs = [5.0, 3.0, 8.0, 1.0, 9.0, 4.0, 7.0, 6.0, 2.0, 20.0, 21.0, 10.0, 0.0]
    proposals = search(sampler(), 13, lambda number, p: costs[number])
    best = [3, 8, 1]
    for place, number in enumerate(best):
        assert proposals[9 + place].config == proposals[number].config
    assert proposals[12].config == proposals[1].config  # 10.0 is the best of the three at 3 steps
    upside_down = search(sampler(mode="max"), 13, lambda number, p: -costs[number])
    assert [p.config for p in upside_down] == [p.config for p in proposals]


def test_its_random_configurations_are_those_of_random_search() -> None:
    dehb, plain = sampler(27, space=SPACE), RandomSearch(setting(27, space=SPACE))
    for number in range(20):
        assert dehb.ask(number, seed_of(number)).config == plain.ask(number, seed_of(number)).config


def test_a_failed_trial_takes_no_place_and_holds_up_nobody() -> None:
    proposals = search(sampler(), 13, lambda number, p: float(number), failed={0, 1})
    assert [p.config for p in proposals[9:12]] == [proposals[n].config for n in (2, 3, 4)]
    # with all but one failed, the other places are taken by random configurations
    proposals = search(sampler(), 13, lambda number, p: float(number), failed=set(range(8)))
    assert proposals[9].config == proposals[8].config
    assert where(proposals)[9:] == [(0, 1, 3)] * 3 + [(0, 2, 9)]
    assert len({json.dumps(p.config) for p in proposals[9:12]}) == 3


def test_while_a_rung_is_not_over_the_next_bracket_begins() -> None:
    dehb = sampler()
    proposals = [dehb.ask(0, seed_of(0))]
    for number in range(1, 16):
        dehb.tell(result(number - 1, proposals[-1], None, "running"))
        proposals.append(dehb.ask(number, seed_of(number)))
    assert where(proposals) == [(0, 0, 1)] * 9 + [(1, 0, 3)] * 5 + [(2, 0, 9)] * 2
    for number in range(9):
        dehb.tell(result(number, proposals[number], float(number)))
    dehb.tell(result(15, proposals[15], None, "running"))
    assert where([dehb.ask(16, seed_of(16))]) == [(0, 1, 3)]


def test_a_mutant_takes_the_targets_place_if_it_is_no_worse() -> None:
    dehb = sampler(1)  # one budget, one bracket of one
    first = dehb.ask(0, 0)
    assert (first.state["budget"], first.state["target"]) == (1, 0)
    dehb.tell(result(0, first, 5.0, "done"))
    dehb.tell(result(1, (second := dehb.ask(1, 1)), 6.0, "done"))
    assert dehb._fold()[1][1][0].number == 0
    dehb.tell(result(2, dehb.ask(2, 2), 5.0, "done"))
    assert dehb._fold()[1][1][0].number == 2
    assert second.config != first.config


def test_a_mutant_is_made_as_in_the_paper() -> None:
    dehb = sampler(9, crossover_probability=1.0)
    proposals = search(
        dehb, 22, lambda number, p: abs(p.config["x"] - 0.5) + abs(p.config["y"] - 0.5)
    )
    mutant = dehb.ask(22, seed_of(22))
    assert where([mutant]) == [(3, 0, 1)]
    pool = [p.state["vector"] for p in proposals[:9]]  # the subpopulation of budget 1
    target = mutant.state["target"]
    assert target == 0
    pool.pop(0)
    made = [
        (a["x"] + 0.5 * (b["x"] - c["x"]), a["y"] + 0.5 * (b["y"] - c["y"]))
        for a in pool
        for b in pool
        for c in pool
        if a is not b and b is not c and a is not c
    ]
    inside = [m for m in made if all(0 < v < 1 for v in m)]
    assert (mutant.config["x"], mutant.config["y"]) in inside


def test_without_crossover_one_parameter_comes_from_the_mutant() -> None:
    dehb = sampler(9, crossover_probability=0.0)
    proposals = search(dehb, 31, lambda number, p: float(number))
    for number in range(22, 31):
        target = proposals[proposals[number].state["target"]]
        changed = [n for n in ("x", "y") if proposals[number].config[n] != target.config[n]]
        assert len(changed) == 1


def test_parents_at_higher_budgets_are_the_best_of_the_budget_below() -> None:
    dehb = sampler(27, crossover_probability=1.0)
    proposals = search(dehb, 120, lambda number, p: p.config["x"])
    later = [p for p in proposals if (p.state["bracket"], p.state["rung"]) == (4, 1)]
    assert len(later) == 9
    assert later[0].state["budget"] == 3
    first = proposals.index(later[0])
    evaluated: dict[int, Any] = {}
    for number, p in enumerate(proposals[:first]):
        if p.state["budget"] == 1:
            slot = p.state["target"]
            if slot not in evaluated or proposals[number].config["x"] <= evaluated[slot]["x"]:
                evaluated[slot] = p.state["vector"]
    pool = sorted(evaluated.values(), key=lambda v: v["x"])[:9]
    made = {
        (a["x"] + 0.5 * (b["x"] - c["x"]), a["y"] + 0.5 * (b["y"] - c["y"]))
        for a in pool
        for b in pool
        for c in pool
        if a is not b and b is not c and a is not c
    }
    vector = later[0].state["vector"]
    close = [m for m in made for n, v in zip(("x", "y"), m, strict=True) if vector[n] == v]
    assert close, "neither coordinate is a mutant's"


def test_it_is_a_function_of_the_set_of_results() -> None:
    dehb = sampler(9, space=SPACE)
    proposals = search(dehb, 60, lambda number, p: p.config["x"] + p.config["layers"])
    told = [
        result(
            n,
            Proposal(config=p.config, state=json.loads(json.dumps(p.state))),
            p.config["x"] + p.config["layers"],
        )
        for n, p in enumerate(proposals)
    ]
    for turn in range(3):
        shuffled = list(told)
        random.Random(turn).shuffle(shuffled)
        again = sampler(9, space=SPACE)
        for entry in shuffled:
            again.tell(
                Result(
                    number=entry.number, config=entry.config, state=entry.state, status="running"
                )
            )
            again.tell(entry)
        assert again.ask(60, seed_of(60)) == dehb.ask(60, seed_of(60))
    assert all(
        p.domain.contains(proposal.config[p.name])
        for proposal in proposals
        for p in SPACE.flat
        if p.name in proposal.config
    )
    assert all(set(proposal.config) == set(SPACE.active(proposal.config)) for proposal in proposals)
    assert [proposal.config["fold"] for proposal in proposals[:4]] == [0, 1, 2, 0]


def test_what_has_no_state_takes_no_part() -> None:
    dehb, plain = sampler(), sampler()
    dehb.tell(Result(number=-1, config={"x": 0.5, "y": 0.5}, status="done", value=0.0))
    dehb.tell(
        Result(
            number=0, config={"x": 0.5, "y": 0.5}, status="done", value=0.0, intermediate=[(1, 0.0)]
        )
    )
    assert dehb.ask(1, 5) == plain.ask(1, 5)


def test_evolution_finds_better_than_chance() -> None:
    def cost(x: float, y: float) -> float:
        return (x - 0.7123) ** 2 + (y - 0.2345) ** 2

    better = 0
    for seed in range(10):
        dehb = sampler(9, space=LINE)
        found, chance = [], []
        for number in range(150):
            proposal = dehb.ask(number, seed_of(number) + seed * 10**9)
            value = cost(proposal.config["x"], proposal.config["y"])
            found.append(value)
            dehb.tell(result(number, proposal, value))
            other = (
                RandomSearch(setting(space=LINE)).ask(number, seed_of(number) + seed * 10**9).config
            )
            chance.append(cost(other["x"], other["y"]))
        better += statistics.median(found[-50:]) < 0.2 * statistics.median(chance[-50:])
    assert better >= 9


@pytest.mark.parametrize(
    "options",
    [
        {"eta": 1},
        {"min_budget": 0},
        {"min_budget": 10},
        {"mutation_factor": 0.0},
        {"crossover_probability": 1.5},
        {"f": 1},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=rf"search\.dehb\.{next(iter(options))}"):
        make({"dehb": options}, setting(9, space=LINE))
    with pytest.raises(SpecError, match="max_steps"):
        make("dehb", setting(None, space=LINE))


# ---- the scheduler


def test_a_trial_ends_when_its_budget_is_used() -> None:
    states = [{"budget": 3}, {"budget": 9}, {}, {"budget": 1}, {"budget": 3}]
    run = Run(
        scheduler("dehb", max_steps=9),
        lambda t, s, c: 0.0,
        5,
        2,
        states=states,
        lost={(4, 2)},
        breaks={3: 1},
    ).go()
    assert {t: len(v) for t, v in run.values.items()} == {0: 3, 1: 9, 2: 9, 3: 0, 4: 3}
    assert run.outcome == {0: "stopped", 1: "done", 2: "done", 3: "failed", 4: "stopped"}
    assert [(t, verdict.why) for t, _, verdict in run.log] == [
        (t, "its budget of 3 steps is used") for t in (0, 4)
    ]


def test_both_together() -> None:
    dehb, made = sampler(9), scheduler("dehb", max_steps=9, mode="min", space=LINE)
    used: Counter[int] = Counter()
    for number in range(31):
        proposal = dehb.ask(number, seed_of(number))
        run = Run(
            made,
            lambda t, s, c: c["x"] / s,
            number + 1,
            1,
            configs=[proposal.config] * (number + 1),
            states=[proposal.state] * (number + 1),
        )
        run.values.update({t: [] for t in range(number)})
        run.go()
        values = run.values[number]
        used[len(values)] += 1
        status: TrialStatus = "done" if run.outcome[number] == "done" else "stopped"
        dehb.tell(
            Result(
                number=number,
                config=proposal.config,
                state=proposal.state,
                status=status,
                value=min(values),
                intermediate=list(enumerate(values, start=1)),
            )
        )
    assert used == {1: 18, 3: 8, 9: 5}
