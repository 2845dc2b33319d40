"""What every sampler keeps to, and how the registry makes them."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from regrow.search.errors import SpecError
from regrow.search.samplers.base import Result
from regrow.search.space import Space
from tests.unit.fresh import printed
from tests.unit.sampling import SPACE, history, make, seed_of, told

ALL = [
    "random",
    "tpe",
    {"tpe": {"like_optuna": True}},
    {"tpe": {"multivariate": False}},
    {"tpe": {"group": True}},
]


# Every sampler


@pytest.mark.parametrize("search", ALL, ids=str)
def test_a_proposal_is_valid_and_json_and_has_the_active_parameters(search: object) -> None:
    samplers = [told(search, history(5)), told(search, history(30))]
    domains = {p.name: p.domain for p in SPACE.flat}
    seen = set()
    for number in range(30, 60):
        proposal = samplers[number % 2].ask(number, seed_of(number))
        assert proposal is not None
        assert tuple(proposal.config) == SPACE.active(proposal.config)
        assert all(domains[name].contains(value) for name, value in proposal.config.items())
        assert json.loads(json.dumps([proposal.config, proposal.state])) == [
            proposal.config,
            proposal.state,
        ]
        seen.add(proposal.config["optimizer"] == "sgd")
    assert seen == {True, False}


@pytest.mark.parametrize("search", ALL, ids=str)
def test_a_proposal_depends_on_results_and_seed_alone(search: object) -> None:
    results = history(40)
    expected = told(search, results).ask(40, 7)
    # telling it again adds nothing
    shuffled = results * 2 + [replace(r, status="running") for r in results]
    random.Random(3).shuffle(shuffled)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002  # that this generator plays no part is the point
    sampler = told(search, shuffled)
    sampler.ask(99, 1)
    assert sampler.ask(40, 7) == expected
    assert sampler.ask(40, 8) != expected


@pytest.mark.parametrize("search", ALL, ids=str)
def test_results_may_arrive_between_proposals(search: object) -> None:
    results = history(40)
    sampler = make(search, SPACE, "max")
    for result in results:
        sampler.ask(result.number, seed_of(result.number))
        sampler.tell(
            Result(number=result.number, config=result.config, state=result.state, status="running")
        )
        sampler.tell(result)
    assert sampler.ask(40, 7) == told(search, results, "max").ask(40, 7)


@pytest.mark.parametrize("search", ["random", "tpe"])
def test_a_grid_parameter_takes_its_cells_in_turn(search: object) -> None:
    grids = {"fold": {"grid": [0, 1, 2]}, "lr": {"uniform": [0, 1]}, "big": {"grid": [False, True]}}
    sampler = make(search, Space.parse(grids), "min")
    proposals = [sampler.ask(number, seed_of(number)) for number in range(12)]
    cells = [(p.config["fold"], p.config["big"]) for p in proposals if p]
    assert cells == [(0, False), (0, True), (1, False), (1, True), (2, False), (2, True)] * 2
    assert len({p.config["lr"] for p in proposals if p}) == 12


def test_a_grid_below_a_sampled_choice_is_there_where_it_is_active() -> None:
    written = {"opt": {"choice": ["a", "b"]}, "m": {"grid": [1, 2]} | {"when": {"opt": "a"}}}
    sampler = make("random", Space.parse(written), "min")
    configs = [p.config for n in range(40) if (p := sampler.ask(n, seed_of(n)))]
    assert {(c["opt"], c.get("m")) for c in configs} == {("a", 1), ("a", 2), ("b", None)}


def test_an_empty_space_proposes_empty_configurations() -> None:
    for search in ("random", "tpe", "grid"):
        proposal = make(search, Space.parse({}), "min").ask(0, 0)
        assert proposal is not None
        assert proposal.config == {}


# The registry


@pytest.mark.parametrize(
    ("search", "key", "says"),
    [
        ("tpee", "search", "did you mean 'tpe'?"),
        ({"tpe": {"multivariat": True}}, "search.tpe.multivariat", "did you mean 'multivariate'?"),
        ({"tpe": {"n_startup_trials": "10"}}, "search.tpe.n_startup_trials", "not a whole number"),
        ({"tpe": {"n_startup_trials": -1}}, "search.tpe.n_startup_trials", "below 0"),
        ({"tpe": {"n_ei_candidates": 0}}, "search.tpe.n_ei_candidates", "below 1"),
        ({"tpe": {"random_fraction": 1.5}}, "search.tpe.random_fraction", "not between 0 and 1"),
        ({"tpe": {"multivariate": 1}}, "search.tpe.multivariate", "not a bool"),
        ({"tpe": {"group": True, "multivariate": False}}, "search.tpe.group", "needs multivariate"),
        ({"random": {"x": 1}}, "search.random.x", "no options"),
        ({"tpe": {}, "random": {}}, "search", "NAME"),
        ("grid", "space.lr", "use grid: [...]"),
    ],
)
def test_what_is_not_known_is_refused_with_a_hint(search: object, key: str, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        make(search, SPACE, "min")
    assert caught.value.key == key
    assert says in str(caught.value)


def test_making_samplers_and_schedulers_loads_none_of_their_libraries() -> None:
    code = """
import sys
from regrow.search import samplers, schedulers
from regrow.search.space.setting import Setting
from regrow.search.space import Space
setting = Setting(space=Space.parse({"a": {"uniform": [0, 1]}}), modes=("min",), max_steps=9)
for name in ("qmc", "cmaes", "bohb", "nsga2", "nsga3", "tpe"):
    samplers.make(name, setting)
for name in ("pb2", "dehb", "pbt"):
    schedulers.make(name, setting)
samplers.make("dehb", setting).ask(0, 0)
loaded = {"optuna", "numpy", "scipy", "cmaes", "torch", "ray"} & set(sys.modules)
assert not loaded, f"too early: {loaded}"
samplers.make("tpe", setting).ask(0, 0)
assert "optuna" in sys.modules
"""
    printed(code)
