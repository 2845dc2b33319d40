"""The sampler "cmaes": the library's own sequence where trials are synchronous, generations that
nothing stalls where not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from cmaes import CMA, get_warm_start_mgd  # type: ignore[import-untyped]  # it has annotations, but says no py.typed

from regrow.search.errors import SpecError
from regrow.search.samplers import make
from regrow.search.samplers.base import Proposal, Result, Sampler
from regrow.search.samplers.cube import position
from regrow.search.space import Space
from regrow.search.space.setting import Setting
from tests.unit.replaying import Replayed, best, on_paper, seed_of

CUBE = Space.parse({f"x{i}": {"uniform": [0, 1]} for i in range(3)})
MIXED = Space.parse(
    {
        "lr": {"loguniform": [1e-6, 1]},
        "layers": {"int": [1, 9]},
        "kind": {"choice": ["a", "b"]},
        "depth": {"int": [1, 8], "when": {"kind": "a"}},
        "g": {"grid": [1, 2, 3]},
        "z": {"normal": [0, 1]},
    }
)
BOX = np.array([[0.0, 1.0]] * 3)


def setting(space: Space = CUBE, **changes: Any) -> Setting:
    return Setting(space=space, modes=("min",), **changes)


def sphere(config: Mapping[str, Any]) -> float:
    return float(sum((config[f"x{i}"] - 0.3) ** 2 for i in range(3)))


def rosenbrock(config: Mapping[str, Any]) -> float:
    x = [4 * config[f"x{i}"] - 2 for i in range(3)]
    return float(sum(100 * (b - a * a) ** 2 + (1 - a) ** 2 for a, b in pairwise(x)))


def end(sampler: Sampler, number: int, proposal: Proposal, **end: Any) -> None:
    sampler.tell(Result(number=number, config=proposal.config, state=proposal.state, **end))


@pytest.mark.parametrize("function", [sphere, rosenbrock])
@pytest.mark.parametrize("popsize", [None, 9])
def test_synchronous_trials_are_the_librarys_own_sequence(
    function: Any, popsize: int | None
) -> None:
    """Bit for bit, over 25 generations."""
    ours = make({"cmaes": {"popsize": popsize, "restart": False}}, setting())
    theirs = CMA(np.full(3, 0.5), 0.3, BOX, seed=0, population_size=popsize)
    solutions = []
    for number in range(25 * theirs.population_size):
        theirs.reseed_rng(seed_of(number))
        x = theirs.ask()
        proposal = on_paper(ours.ask(number, seed_of(number)))
        assert proposal.state["x"] == x.tolist()
        solutions.append((x, function({f"x{i}": u for i, u in enumerate(x)})))
        end(ours, number, proposal, status="done", value=solutions[-1][1])
        if len(solutions) == theirs.population_size:
            theirs.tell(solutions)
            solutions = []


def test_it_converges_where_random_search_does_not() -> None:
    for function, ten in ((sphere, 1e-6), (rosenbrock, 0.1)):
        assert (
            best("cmaes", setting(), function, 420)
            < ten
            < best("random", setting(), function, 420) / 5
        )


def test_more_is_better_where_the_mode_says_so() -> None:
    most = Setting(space=CUBE, modes=("max",))
    sampler = make("cmaes", most)
    for number in range(250):
        proposal = on_paper(sampler.ask(number, seed_of(number)))
        end(sampler, number, proposal, status="done", value=-sphere(proposal.config))
    assert sphere(on_paper(sampler.ask(250, 1)).config) < 1e-3


def test_failed_trials_are_replaced_and_stopped_ones_count_by_their_last_value() -> None:
    sampler = make({"cmaes": {"popsize": 4}}, setting())
    states = []
    for number in range(9):
        proposal = on_paper(sampler.ask(number, number))
        states.append(proposal.state)
        ends: list[dict[str, Any]] = [
            {"status": "failed"},
            {"status": "done"},
            {"status": "done", "value": float("nan")},
            {"status": "running"},
            {"status": "stopped", "value": 0.0, "intermediate": [(1, 0.0), (2, 9.0)]},
            {"status": "stopped", "value": 3.0},
            {"status": "done", "value": 1.0},
            {"status": "done", "value": 2.0},
            {"status": "done", "value": 0.5},
        ]
        end(sampler, number, proposal, **ends[number])
    assert [s["generation"] for s in states] == [0] * 8 + [1]
    assert states[8]["told"] == [4, 5, 6, 7]
    theirs = CMA(np.full(3, 0.5), 0.3, BOX, population_size=4)
    theirs.tell(
        [(np.array(states[n]["x"]), cost) for n, cost in ((4, 9.0), (5, 3.0), (6, 1.0), (7, 2.0))]
    )
    theirs.reseed_rng(8)
    assert states[8]["x"] == theirs.ask().tolist()


def test_what_ends_after_its_generation_was_closed_changes_nothing() -> None:
    sampler = make({"cmaes": {"popsize": 4}}, setting())
    proposals = [on_paper(sampler.ask(n, n)) for n in range(5)]
    for number, proposal in enumerate(proposals):
        end(sampler, number, proposal, status="running")
        if number:
            end(sampler, number, proposal, status="done", value=float(number))
    first = on_paper(sampler.ask(5, 5))
    assert first.state["told"] == [1, 2, 3, 4]
    end(sampler, 5, first, status="running")
    following = sampler.ask(6, 6)
    end(sampler, 0, proposals[0], status="done", value=-9.0)
    assert sampler.ask(6, 6) == following
    assert "told" not in on_paper(following).state
    assert sampler.ask(5, 5) == first  # also when it is asked for once more


def test_asking_without_telling_commits_to_nothing() -> None:
    sampler = make({"cmaes": {"popsize": 4}}, setting())
    proposals = [on_paper(sampler.ask(n, n)) for n in range(5)]
    for number in (0, 2, 3, 4):
        end(sampler, number, proposals[number], status="done", value=float(number))
    assert on_paper(sampler.ask(5, 5)).state["told"] == [0, 2, 3, 4]
    fresh = make({"cmaes": {"popsize": 4}}, setting())
    for number in range(4):
        end(
            fresh,
            number,
            proposals[number],
            status="done",
            value=5.0 if number == 1 else float(number),
        )
    end(sampler, 1, proposals[1], status="done", value=5.0)
    assert on_paper(sampler.ask(5, 5)).state["told"] == [0, 1, 2, 3]
    assert sampler.ask(5, 5) == fresh.ask(5, 5)


def test_a_generation_of_a_trial_without_a_value_is_begun_anew() -> None:
    sampler = make("cmaes", setting())
    state = {"generation": 1, "x": [0.5] * 3, "told": list(range(7))}
    sampler.tell(Result(number=7, config={}, state=state, status="running"))
    assert on_paper(sampler.ask(8, 8)).state["generation"] == 0


def test_earlier_results_are_where_the_search_begins() -> None:
    """The best tenth of them, by the library's own estimate (WS-CMA-ES)."""
    sampler = make("cmaes", setting())
    rng = np.random.RandomState(0)
    earlier = []
    for number in range(-40, 0):
        config = {f"x{i}": float(rng.random_sample()) for i in range(3)}
        earlier.append((np.array(list(config.values())), sphere(config)))
        sampler.tell(Result(number=number, config=config, status="done", value=sphere(config)))
    # of another space
    sampler.tell(Result(number=-41, config={"x0": 7}, status="done", value=-1.0))
    mean, sigma, covariance = get_warm_start_mgd(earlier)
    theirs = CMA(mean, sigma, BOX, cov=covariance)
    theirs.reseed_rng(5)
    np.testing.assert_allclose(on_paper(sampler.ask(0, 5)).state["x"], theirs.ask())


def test_it_restarts_with_twice_the_population_where_it_has_converged() -> None:
    def populations(restart: bool) -> set[int]:
        sampler = make({"cmaes": {"popsize": 4, "restart": restart}}, setting())
        sizes = set()
        for number in range(260):
            proposal = on_paper(sampler.ask(number, seed_of(number)))
            sizes.add(len(proposal.state.get("told", ())))
            end(sampler, number, proposal, status="running")
            end(sampler, number, proposal, status="done", value=1.0)  # a plateau
        return sizes

    assert populations(restart=True) == {0, 4, 8}
    assert populations(restart=False) == {0, 4}


def test_what_is_not_modelled_is_drawn_at_random() -> None:
    sampler = make("cmaes", setting(MIXED))
    random = make("random", setting(MIXED))
    for number in range(20):
        ours, theirs = (on_paper(s.ask(number, seed_of(number))).config for s in (sampler, random))
        assert list(ours) == list(theirs)
        assert {n: ours[n] for n in ours if n in ("kind", "depth", "g")} == {
            n: theirs[n] for n in theirs if n in ("kind", "depth", "g")
        }
        assert ours["lr"] != theirs["lr"]


def test_x0_is_written_in_the_parameters_own_units() -> None:
    sampler = make({"cmaes": {"x0": {"lr": 1e-3, "layers": 9}, "sigma0": 1e-9}}, setting(MIXED))
    config = on_paper(sampler.ask(0, 1)).config
    assert (config["lr"], config["layers"], config["z"]) == (
        pytest.approx(1e-3),
        9,
        pytest.approx(0, abs=1e-6),
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"popsize": 3}, "search.cmaes.popsize: 3: is below 4; write 4 or more"),
        ({"popsize": 2.5}, "search.cmaes.popsize: 2.5: is not a whole number"),
        ({"sigma0": 0.0}, "search.cmaes.sigma0: 0.0: is not above 0"),
        ({"x0": [1]}, "search.cmaes.x0: .*is not a map; write {lr: value}"),
        (
            {"x0": {"kind": "a"}},
            "search.cmaes.x0.kind: .*is not a parameter that is modelled; known: lr, layers, z",
        ),
        ({"x0": {"layers": 12}}, "search.cmaes.x0.layers: 12: layers can never be this"),
    ],
)
def test_options_that_cannot_be_used(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make({"cmaes": options}, setting(MIXED))


def test_a_space_without_a_numeric_parameter_is_refused() -> None:
    with pytest.raises(
        SpecError,
        match="there is no numeric parameter without a condition; write search: tpe or random",
    ):
        make("cmaes", setting(Space.parse({"kind": {"choice": [1, 2]}, "g": {"grid": [1]}})))


def test_a_replay_proposes_the_same() -> None:
    space, options = MIXED, {"popsize": 4}
    run = Replayed(
        search={"cmaes": options},
        setting=setting(space),
        objective=lambda c: c["lr"] + c["layers"],
        count=80,
    ).run()
    assert run.compared > 100
    assert max(r.state.get("generation", 0) for r in run.told) > 8


def test_a_generation_told_late_is_folded_again() -> None:
    """The order of telling leaves no trace, even if proposals were asked for in between."""
    made = make({"cmaes": {"popsize": 4}}, setting())
    told = []
    for number in range(6):
        proposal = on_paper(made.ask(number, number))
        told.append(
            Result(
                number=number,
                config=proposal.config,
                state=proposal.state,
                status="done",
                value=number % 3,
            )
        )
    # of two that open a generation the first one counts
    for number, updated_by in ((7, [0, 1, 2, 3]), (6, [2, 3, 4, 5])):
        state = {"generation": 1, "x": [0.5] * 3, "told": updated_by}
        told.append(Result(number=number, config={}, state=state, status="running"))
    late, whole = (make({"cmaes": {"popsize": 4}}, setting()) for _ in range(2))
    for result in told[:-1]:
        late.tell(result)
    before = late.ask(8, 8)
    late.tell(told[-1])
    for result in reversed(told):
        whole.tell(result)
    assert late.ask(8, 8) == whole.ask(8, 8) != before


@pytest.mark.parametrize("domain", [
    {"uniform": [-2, 5]}, {"loguniform": [1e-6, 1e3]}, {"quniform": [0, 0.7, 0.1]}, {"int": [3, 40]}, {"logint": [1, 99]},
    {"normal": [3, 2]}, {"choice": ["a", None, [1]]},
])  # fmt: skip
def test_a_values_position_is_where_its_quantile_is(domain: Any) -> None:
    parsed = Space.parse({"x": domain}).flat[0].domain
    values = (
        [parsed.cell(k) for k in range(parsed.cells)]
        if parsed.cells
        else [parsed.quantile(k / 50) for k in range(1, 50)]
    )
    back = [parsed.quantile(position(parsed, value)) for value in values]
    assert back == values if parsed.cells else back == pytest.approx(values)
    if "logint" in domain:  # each whole number has the interval half a unit around it
        assert position(parsed, 1) == pytest.approx(math.log(2) / math.log(199), abs=1e-9)


@pytest.mark.parametrize(
    "domain", [{"loguniform": [1e16, 1e16 + 2]}, {"logint": [2**52, 2**52 + 1]}]
)
def test_a_range_without_a_width_in_the_logarithm_has_positions(domain: Any) -> None:
    parsed = Space.parse({"x": domain}).flat[0].domain
    assert 0 < position(parsed, parsed.quantile(0.5)) < 1


def test_infinite_values_and_one_dimension_are_survived() -> None:
    sampler = make({"cmaes": {"restart": True}}, setting(Space.parse({"x": {"uniform": [0, 1]}})))
    for number in range(300):
        proposal = on_paper(sampler.ask(number, seed_of(number)))
        value = (math.inf, -math.inf, proposal.config["x"])[number % 3 if number > 200 else 0]
        end(sampler, number, proposal, status="done", value=value)
