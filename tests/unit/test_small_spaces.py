"""No configuration twice while others were never tried, whichever the sampler; and a small space
has an end, which is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from regrow.search.events import Closing, Created, Proposed
from regrow.search.planning.simulator import FunctionObjective, Simulation, simulate
from regrow.search.planning.verify import verify
from regrow.search.samplers import NAMES
from regrow.search.space.domains import value_key
from regrow.search.spec import Spec

CELLS = {"a": {"choice": [1, 2, 3]}, "b": {"choice": ["x", "y"]}, "c": {"choice": [True, False]}}
SPACES: dict[str, tuple[dict[str, Any], int]] = {
    "choices": (CELLS, 12),
    "a condition": (
        {
            "kind": {"choice": ["a", "b"]},
            "n": {"int": [1, 3], "when": {"kind": "a"}},
            "m": {"int": [1, 2]},
        },
        8,
    ),
    "quantised": ({"q": {"quniform": [0.1, 0.7, 0.1]}, "n": {"int": [2, 8], "step": 2}}, 28),
    "a logarithm": ({"n": {"logint": [1, 9]}, "fixed": 3}, 9),
    "grids beside choices": (
        {"g": {"grid": [1, 2]}, "a": {"choice": [1, 2, 3]}, "n": {"int": [1, 2]}},
        12,
    ),
}
ELSEWHERE = {"dehb", "define_by_run", "optuna", "grid", "brute_force", "gp"}
"""Those that say themselves what there is, that evaluate a configuration at several budgets, or
that need PyTorch.
"""


def run(duplicates: bool = False, **changes: Any) -> Simulation:
    spec = Spec.parse(
        {
            "name": "small",
            "trainable": "work.py:train",
            "metric": "loss",
            "mode": "min",
            "space": CELLS,
            "trials": 12,
            "max_steps": 1,
            "duplicates": duplicates,
            **changes,
        }
    )

    def loss(config: Mapping[str, Any], step: int) -> float:
        return (
            float(sum(hash(value_key(v)) % 7 for v in config.values() if not isinstance(v, str)))
            / step
        )

    return simulate(spec, FunctionObjective(function=loss, spec=spec, seconds=1.0), workers=3)


def tried(simulation: Simulation) -> list[Any]:
    return [value_key(event.config) for event in simulation.events if isinstance(event, Proposed)]


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("search", ["auto", *sorted({*NAMES} - ELSEWHERE)])
def test_each_configuration_is_tried_once(search: str, space: str) -> None:
    parameters, cells = SPACES[space]
    if search == "cmaes" and space == "choices":
        pytest.skip("it needs a number")
    simulation = run(space=parameters, trials=cells, search=search)
    assert len(set(tried(simulation))) == len(tried(simulation)) == cells
    assert verify(simulation.events).difference is None


@pytest.mark.parametrize("search", ["random", "mobster", "tpe"])
def test_where_more_trials_are_wanted_the_end_is_decided_and_told(search: str) -> None:
    simulation = run(trials=100, search=search)
    (end,) = [event for event in simulation.events if isinstance(event, Closing)]
    assert (end.why, end.status, end.by) == (
        "all 12 configurations of the space were tried",
        "finished",
        "planner",
    )
    assert len(tried(simulation)) == 12
    assert verify(simulation.events).difference is None


def test_with_repeats_each_is_tried_so_many_times() -> None:
    found = tried(run(trials=60, repeats=3, search="random"))
    assert len(found) == 36
    assert all(found.count(one) == 3 for one in found)


def test_in_a_space_with_a_continuum_none_is_tried_twice_and_there_is_no_end() -> None:
    space = {"kind": {"choice": ["a", "b", "c"]}, "x": {"uniform": [0, 1], "when": {"kind": "c"}}}
    found = tried(run(space=space, trials=40, search="random"))
    assert len(set(found)) == len(found) == 40


def test_a_user_may_want_one_twice() -> None:
    point = {"a": 1, "b": "x", "c": True}
    simulation = run(points=[{"config": point}, {"config": point}], search="random", trials=13)
    assert len(set(tried(simulation))) == 12
    assert len(tried(simulation)) == 13


def test_who_may_propose_twice_does_and_so_does_a_population() -> None:
    assert len(tried(run(trials=30, search="random", duplicates=True))) == 30
    population = run(
        trials=8,
        search="random",
        space={"a": {"choice": [1, 2]}},
        schedule={"pbt": {"perturbation_interval": 1}},
        max_steps=4,
    )
    assert len(tried(population)) == 8


def test_a_log_of_before_is_verified_as_it_was_written() -> None:
    events = run(trials=30, search="random", duplicates=True).events
    created = events[0]
    assert isinstance(created, Created)
    spec = {key: value for key, value in created.spec.items() if key != "duplicates"}
    of_before = msgspec.structs.replace(created, spec=spec)
    assert verify([of_before, *events[1:]]).difference is None
    assert (
        verify([msgspec.structs.replace(of_before, distinct=True), *events[1:]]).difference
        is not None
    )
