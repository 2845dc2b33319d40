"""Experiments for `compared.py`: trainables, reports, results, search spaces."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.tune_fitting import body, configs, ends, fit, kinds, last, raised

# ---- what a function reports


@body("grids, times num_samples")
def grids(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any]) -> None:
        tune.report({"score": config["a"] * config["b"]})

    space = {"a": tune.grid_search([1, 2]), "b": tune.grid_search([3, 4, 5]), "c": "constant"}
    grid = fit(tune, folder, train, space, num_samples=2)
    best = grid.get_best_result("score", "max")
    return len(grid), configs(grid, "a", "b", "c"), best.config, best.metrics["score"]


@body("a function that returns a map, or yields maps")
def returned(tune: Any, folder: str) -> Any:
    def answer(config: dict[str, Any]) -> dict[str, Any]:
        return {"score": config["a"]}

    def answers(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for step in range(3):
            yield {"score": step * config["a"]}

    space = {"a": tune.grid_search([1, 2])}
    found = [
        last(
            fit(tune, folder, one, space, run={"name": one.__name__}),
            "score",
            "training_iteration",
        )
        for one in (answer, answers)
    ]
    number = fit(tune, folder, lambda config: 1.5, run={"name": "number"})
    return found, last(number, "_metric", "training_iteration")


@body("a function that reports nothing")
def nothing_reported(tune: Any, folder: str) -> Any:
    grid = fit(tune, folder, lambda config: None, {"a": tune.grid_search([1, 2])})
    why = raised(lambda: grid.get_best_result("score", "max"))
    told = last(grid, "training_iteration", "done")
    return ends(grid), told, grid.num_terminated, grid[0].checkpoint, configs(grid, "a"), why


@body("types of what is reported")
def reported_types(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any]) -> None:
        tune.report(
            {
                "score": 1,
                "float": 2.0,
                "flag": True,
                "text": "abc",
                "none": None,
                "list": [1, 2],
                "nested": {"a": {"b": 3}},
            }
        )

    (result,) = fit(tune, folder, train)
    told = result.metrics
    names = ("score", "float", "flag", "text", "none", "list", "nested", "training_iteration")
    return {name: told[name] for name in names}, kinds(told, *names), told["nested"]["a"]["b"]


@body("numbers of NumPy's, read as numbers")
def numpy_reported(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any]) -> None:
        tune.report({"f": np.float32(1.5), "i": np.int64(7), "m": np.array([1.0, 2.0]).mean()})

    (result,) = fit(tune, folder, train)
    return [float(result.metrics[name]) for name in ("f", "i", "m")]


@body("metrics whose names are columns of ours")
def our_columns(tune: Any, folder: str) -> Any:
    names = ("step", "trial", "attempt", "state", "time", "value", "score", "reason", "t", "node")

    def train(config: dict[str, Any]) -> None:
        for i in range(2):
            tune.report(dict.fromkeys(names, i + 10))

    (result,) = fit(tune, folder, train, metric="step", mode="max")
    frame = result.metrics_dataframe
    return {name: result.metrics[name] for name in names}, {n: list(frame[n]) for n in names}


@body("infinite and NaN metrics beside the one that is searched for")
def not_finite_beside(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any]) -> None:
        tune.report({"score": config["a"], "up": math.inf, "nan": math.nan})

    space = {"a": tune.grid_search([1, 2])}
    grid = fit(tune, folder, train, space, metric="score", mode="max")
    best = grid.get_best_result()
    return ends(grid), best.metrics["up"], str(best.metrics["nan"]), best.config


@body("NaN and infinity as the metric: filter_nan_and_inf")
def not_finite(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any]) -> None:
        tune.report({"score": config["a"]})

    space = {"a": tune.grid_search([1.0, math.nan, math.inf])}
    grid = fit(tune, folder, train, space)
    best = grid.get_best_result("score", "max")
    every = grid.get_best_result("score", "max", filter_nan_and_inf=False)
    return ends(grid), best.config["a"], every.config["a"]


@body("NaN as the metric of the TuneConfig")
def not_finite_searched(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any]) -> None:
        for i in range(2):
            tune.report({"score": math.nan if config["a"] == 2 else i})

    space = {"a": tune.grid_search([1, 2])}
    grid = fit(tune, folder, train, space, metric="score", mode="max")
    return ends(grid), grid.get_best_result().config["a"]


# ---- classes


class Counting:
    """Steps of a class, to be mixed with Ray's Trainable."""

    def setup(self, config: dict[str, Any]) -> None:
        self.count, self.by = 0, config["by"]

    def step(self) -> dict[str, Any]:
        self.count += self.by
        return {"count": self.count, "done": self.count >= 6}

    def save_checkpoint(self, folder: str) -> None:
        Path(folder, "count").write_text(str(self.count))

    def load_checkpoint(self, folder: str) -> None:
        self.count = int(Path(folder, "count").read_text())


@body("a class with setup, step, save_checkpoint, load_checkpoint")
def class_trainable(tune: Any, folder: str) -> Any:
    cls = type("Model", (Counting, tune.Trainable), {})
    run = {"checkpoint_config": tune.CheckpointConfig(checkpoint_at_end=True)}
    grid = fit(tune, folder, cls, {"by": tune.grid_search([1, 2])}, run=run)
    found = []
    for result in grid:
        with result.checkpoint.as_directory() as files:
            found.append(Path(files, "count").read_text())
    return last(grid, "count", "training_iteration", "done"), sorted(found)


@body("a class whose checkpoint is a map")
def class_with_map(tune: Any, folder: str) -> Any:
    class Model(tune.Trainable):  # type: ignore[misc] # the class of either module
        def setup(self, config: dict[str, Any]) -> None:
            self.state = {"steps": 0}

        def step(self) -> dict[str, Any]:
            self.state["steps"] += 1
            fails = self.state["steps"] == 3 and not Path(self.config["once"]).exists()
            if fails:
                Path(self.config["once"]).touch()
                raise RuntimeError("once")
            return {"steps": self.state["steps"]}

        def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
            return self.state

        def load_checkpoint(self, checkpoint: Any) -> None:
            self.state = dict(checkpoint)

    config = {"once": f"{folder}/once"}
    run = {
        "stop": {"training_iteration": 4},
        "failure_config": tune.FailureConfig(max_failures=1),
        "checkpoint_config": tune.CheckpointConfig(checkpoint_frequency=1),
    }
    grid = fit(tune, folder, Model, config, run=run)
    return ends(grid), last(grid, "steps", "training_iteration")


@body("a class knows its trial, and cleans up")
def class_knows(tune: Any, folder: str) -> Any:
    class Model(tune.Trainable):  # type: ignore[misc] # the class of either module
        def step(self) -> dict[str, Any]:
            amounts = dict(self.trial_resources.required_resources)
            return {
                "named": self.trial_name,
                "id": self.trial_id,
                "cpu": amounts["CPU"],
                "there": os.path.isdir(self.logdir),
                "iteration": self.iteration,
            }

        def cleanup(self) -> None:
            Path(self.config["cleaned"]).touch()

    config = {"cleaned": f"{folder}/cleaned"}
    (result,) = fit(tune, folder, Model, config, run={"stop": {"training_iteration": 2}})
    told = result.metrics
    same = told["id"] == told["trial_id"]
    return same, kinds(told, "named"), told["cpu"], told["there"], told["iteration"]


@body("partial functions, lambdas and registered names")
def other_functions(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any], steps: int) -> None:
        tune.report({"steps": steps})

    tune.register_trainable("by_name", functools.partial(train, steps=3))
    named = fit(tune, folder, "by_name", run={"name": "named"})
    partial = fit(tune, folder, functools.partial(train, steps=5), run={"name": "partial"})
    short = fit(tune, folder, lambda config: tune.report({"steps": 7}), run={"name": "short"})
    return [last(grid, "steps") for grid in (named, partial, short)]


@body("a name that is not registered")
def unknown_name(tune: Any, folder: str) -> Any:
    return raised(lambda: fit(tune, folder, "nobody_registered_this"))


@body("tune.get_context")
def context(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any]) -> None:
        told = tune.get_context()
        tune.report(
            {
                "experiment": told.get_experiment_name(),
                "named": bool(told.get_trial_name()),
                "same": told.get_trial_id(),
                "cpu": told.get_trial_resources().required_resources["CPU"],
                "there": os.path.isdir(told.get_trial_dir()),
            }
        )

    (result,) = fit(tune, folder, train)
    told = result.metrics
    return told["experiment"], told["named"], told["same"] == told["trial_id"], told["cpu"]


@body("with_parameters of a function and of a class")
def parameters(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any], data: Any, factor: int = 1) -> None:
        tune.report({"sum": int(data.sum()) * factor * config["a"]})

    class Model(tune.Trainable):  # type: ignore[misc] # the class of either module
        def setup(self, config: dict[str, Any], data: Any = None) -> None:
            self.data = data

        def step(self) -> dict[str, Any]:
            return {"size": len(self.data), "done": True}

    data = np.ones(100_000)
    space = {"a": tune.grid_search([1, 2])}
    one = fit(
        tune, folder, tune.with_parameters(train, data=data, factor=3), space, run={"name": "one"}
    )
    two = fit(tune, folder, tune.with_parameters(Model, data=data), run={"name": "two"})
    return last(one, "sum"), last(two, "size")


@body("a trainable that cannot be pickled")
def unpicklable(tune: Any, folder: str) -> Any:
    import threading

    lock = threading.Lock()

    def train(config: dict[str, Any]) -> None:
        tune.report({"locked": lock.locked()})

    return raised(lambda: fit(tune, folder, train))
