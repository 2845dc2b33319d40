"""Spaces of Ray Tune's that are functions: `sample_from` in a population, and define-by-run."""

from __future__ import annotations

import random
from importlib import import_module
from typing import Any

import pytest
from ray import tune

from regrow.integrations.tune.results import ResultGrid
from regrow.search.errors import SpecError
from regrow.search.spec import Spec
from tests.unit.tuned import Tuned, translate, tuned

__all__ = ["tuned"]
PopulationBasedTraining = import_module("regrow.tune").schedulers.PopulationBasedTraining
OptunaSearch = import_module("regrow.tune.search.optuna").OptunaSearch


def reports(config: dict[str, Any]) -> None:
    tune.report({"score": 1.0, "config": "not this"})


def test_a_population_begins_from_the_values_of_sample_from() -> None:
    late: Any = tune.sample_from
    scheduler = PopulationBasedTraining(
        "training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"lr": tune.loguniform(1e-3, 0.1), "units": [64, 128]},
    )
    space = {
        "base": tune.grid_search([0.5, 0.25]),
        "lr": late(lambda spec: spec.config.base * 2),
        "units": late(lambda: random.choice([16, 32])),
        "other": late(lambda spec: spec.config.base),
    }
    found = translate(reports, space, scheduler=scheduler, num_samples=2)
    spec = Spec.parse({"trainable": "pickled", **found.options})
    assert spec.space.to_json()["lr"] == {"loguniform": [1e-3, 1.0]}
    begins = [point.config for point in spec.points]
    assert [one["lr"] for one in begins] == [one["base"] * 2 for one in begins]
    assert {one["base"] for one in begins} == {0.5, 0.25}
    assert {one["units"] for one in begins} <= {16, 32}


def define(trial: Any) -> dict[str, Any]:
    kind = trial.suggest_categorical("kind", ["a", "b"])
    if kind == "a":
        trial.suggest_float("rate", 0.0, 1.0)
    return {"constant": 3}


def keeps(config: dict[str, Any]) -> None:
    assert (config["kind"] == "a") == ("rate" in config)
    tune.report({"score": config.get("rate", 0.5), "n": config["constant"] + config["given"]})


def test_a_space_that_is_a_function_of_optunas_trial_is_suggested_as_it_runs(tuned: Tuned) -> None:
    searcher = OptunaSearch(
        space=define,
        metric="score",
        mode="max",
        points_to_evaluate=[{"kind": "a", "rate": 0.25}, {"kind": "b"}],
    )
    grid: ResultGrid = tuned(keeps, {"given": 4}, search_alg=searcher, num_samples=4)
    assert [result.error for result in grid] == [None] * 4
    assert grid[0].config == {"given": 4, "kind": "a", "rate": 0.25}
    assert grid[1].config["kind"] == "b"
    assert all(result.metrics["n"] == 7 for result in grid)
    with pytest.raises(SpecError, match="is beside a function's space"):
        translate(keeps, {"x": tune.uniform(0, 1)}, search_alg=searcher)


def test_resources_that_are_a_function_are_those_of_one_configuration_which_is_told() -> None:
    def needs(config: dict[str, Any]) -> Any:
        return {"cpu": 2 * config["n"]}

    found = translate(tune.with_resources(reports, needs), {"n": tune.grid_search([1, 1])})
    assert found.options["resources"]["cpu"] == 2
    assert any(line.startswith("with_resources: ") for line in found.notes)
