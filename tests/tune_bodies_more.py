"""Experiments for `compared.py`: what guides show beside the plain cases."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.tune_fitting import (
    body,
    configs,
    counted,
    ends,
    fit,
    last,
    lines,
    note,
    part,
    raised,
    run_config,
)


@body("reuse_actors with reset_config")
def reused(tune: Any, folder: str) -> Any:
    class Model(tune.Trainable):  # type: ignore[misc] # the class of either module
        def setup(self, config: dict[str, Any]) -> None:
            self.a = config["a"]

        def step(self) -> dict[str, Any]:
            return {"m": self.a, "done": True}

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.a = new_config["a"]
            return True

        def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
            return {"a": self.a}

        def load_checkpoint(self, checkpoint: Any) -> None:
            self.a = checkpoint["a"]

    space = {"a": tune.grid_search([1, 2, 3, 4])}
    grid = fit(tune, folder, Model, space, reuse_actors=True, max_concurrent_trials=1)
    return ends(grid), last(grid, "m", "training_iteration")


@body("default_resource_request of a class")
def own_request(tune: Any, folder: str) -> Any:
    class Model(tune.Trainable):  # type: ignore[misc] # the class of either module
        @classmethod
        def default_resource_request(cls, config: dict[str, Any]) -> Any:
            return tune.PlacementGroupFactory([{"CPU": config["cpu"]}])

        def step(self) -> dict[str, Any]:
            return {"cpu": float(self.trial_resources.required_resources["CPU"]), "done": True}

    return last(fit(tune, folder, Model, {"cpu": 2}), "cpu")


@body("with_parameters within with_resources, and the other way round")
def both_with(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any], data: Any) -> None:
        amounts = tune.get_context().get_trial_resources().required_resources
        tune.report({"cpu": float(amounts["CPU"]), "data": data})

    inner = tune.with_resources(tune.with_parameters(train, data=5), {"cpu": 2})
    outer = tune.with_parameters(tune.with_resources(train, {"cpu": 2}), data=6)
    return [
        last(fit(tune, folder, one, run={"name": f"e{number}"}), "cpu", "data")
        for number, one in enumerate((inner, outer))
    ]


@body("a custom LoggerCallback")
def own_logger(tune: Any, folder: str) -> Any:
    class Own(tune.logger.LoggerCallback):  # type: ignore[misc] # the class of either module
        def log_trial_start(self, trial: Any) -> None:
            note(folder, "calls", f"start {trial.config['a']}")

        def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
            note(folder, "calls", f"result {trial.config['a']} {result['deep']['er']['m']}")

        def log_trial_end(self, trial: Any, failed: bool = False) -> None:
            note(folder, "calls", f"end {trial.config['a']} {failed}")

    def train(config: dict[str, Any]) -> None:
        counted(tune, 2)(config)
        if config["a"] == 2:
            raise ValueError("two")

    fit(tune, folder, train, {"a": tune.grid_search([1, 2])}, run={"callbacks": [Own()]})
    return lines(folder, "calls")


@body("JsonLoggerCallback and CSVLoggerCallback")
def loggers(tune: Any, folder: str) -> Any:
    run = {"callbacks": [tune.logger.JsonLoggerCallback(), tune.logger.CSVLoggerCallback()]}
    (result,) = fit(tune, folder, counted(tune, 2), {"a": 1}, run=run)
    names = ("params.json", "params.pkl", "result.json", "progress.csv")
    return [Path(result.path, name).exists() for name in names]


@body("a Stopper that ends the experiment")
def stop_all(tune: Any, folder: str) -> Any:
    class Own(tune.Stopper):  # type: ignore[misc] # the class of either module
        def __init__(self) -> None:
            self.over = False

        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            self.over = self.over or result["m"] > 2
            return self.over

        def stop_all(self) -> bool:
            return self.over

    def train(config: dict[str, Any]) -> None:
        for i in range(1000):
            time.sleep(0.3)
            tune.report({"m": i})

    space = {"a": tune.grid_search([1, 2])}
    grid = fit(tune, folder, train, space, run={"stop": Own()})
    return ends(grid), all(result.metrics["m"] < 100 for result in grid)


@body("a checkpoint of one experiment in the configuration of the next")
def from_checkpoint(tune: Any, folder: str) -> Any:
    def first(config: dict[str, Any]) -> None:
        with tempfile.TemporaryDirectory() as files:
            Path(files, "x").write_text(str(config["a"]))
            tune.report({"m": config["a"]}, checkpoint=tune.Checkpoint.from_directory(files))

    def second(config: dict[str, Any]) -> None:
        with config["start"].as_directory() as files:
            tune.report({"m": int(Path(files, "x").read_text()) * config["b"]})

    space = {"a": tune.grid_search([1, 2])}
    best = fit(tune, folder, first, space, metric="m", mode="max").get_best_result()
    space = {"b": tune.grid_search([10, 20]), "start": best.checkpoint}
    return last(fit(tune, folder, second, space, run={"name": "second"}), "m")


@body("a nested metric in the TuneConfig, a scheduler with a metric of its own")
def nested_metric(tune: Any, folder: str) -> Any:
    grid = fit(tune, folder, counted(tune, 3), {"a": 1}, metric="deep/er/m", mode="max")
    best = grid.get_best_result()
    scheduler = part(tune, "schedulers").ASHAScheduler(metric="m", mode="max", max_t=2)
    run = {"name": "second"}
    other = fit(tune, folder, counted(tune, 5), {"a": 1}, scheduler=scheduler, run=run)
    return best.metrics["deep"], last(other, "m")


@body("stop by time_total_s")
def stop_seconds(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any]) -> None:
        for i in range(1000):
            time.sleep(0.2)
            tune.report({"m": i})

    grid = fit(tune, folder, train, run={"stop": {"time_total_s": 1}})
    (result,) = grid
    return ends(grid), 2 <= result.metrics["m"] <= 6, result.metrics["time_total_s"] >= 1


@body("errors in setup, step and save_checkpoint of a class")
def class_errors(tune: Any, folder: str) -> Any:
    class Model(tune.Trainable):  # type: ignore[misc] # the class of either module
        def setup(self, config: dict[str, Any]) -> None:
            self.where = config["where"]
            self.fail("setup")

        def fail(self, where: str) -> None:
            if self.where == where:
                raise ValueError(f"in {where}")

        def step(self) -> dict[str, Any]:
            self.fail("step")
            return {"m": 1, "done": self.iteration == 2}

        def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
            self.fail("save")
            return {"a": 1}

        def load_checkpoint(self, checkpoint: Any) -> None:
            """Nothing is needed of it."""

    space = {"where": tune.grid_search(["setup", "step", "save", "nowhere"])}
    run = {"checkpoint_config": tune.CheckpointConfig(checkpoint_frequency=1)}
    grid = fit(tune, folder, Model, space, run=run)
    found = [f"in {where}" in str(error) for where in ("setup", "step") for error in grid.errors]
    return ends(grid), sum(found)


@body("np.random.seed before, the same configurations")
def reproducible(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any]) -> None:
        np.random.seed(config["seed"])  # noqa: NPY002 - as guides do
        tune.report({"m": float(np.random.uniform())})  # noqa: NPY002

    found = []
    for name in ("one", "two"):
        np.random.seed(1234)  # noqa: NPY002
        search = part(tune, "search.basic_variant").BasicVariantGenerator(random_state=5)
        space = {"seed": tune.randint(0, 1000)}
        more: dict[str, Any] = {"num_samples": 3, "search_alg": search, "run": {"name": name}}
        found.append(last(fit(tune, folder, train, space, **more), "m"))
    return found[0] == found[1], len(set(found[0]))


@body("grids of maps and of lists")
def grid_of_maps(tune: Any, folder: str) -> Any:
    space = {
        "model": tune.grid_search([{"kind": "a", "n": [1, 2]}, {"kind": "b", "n": []}]),
        "pair": tune.grid_search([(1, 2), (3, 4)]),
    }
    return configs(fit(tune, folder, counted(tune, 1), space))


@body("callbacks: errors, checkpoints")
def more_callbacks(tune: Any, folder: str) -> Any:
    class Own(tune.Callback):  # type: ignore[misc] # the class of either module
        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **_: Any) -> None:
            note(folder, "calls", f"error {trial.status}")

        def on_checkpoint(
            self, iteration: int, trials: Any, trial: Any, checkpoint: Any, **_: Any
        ) -> None:
            note(folder, "calls", "checkpoint")

    def train(config: dict[str, Any]) -> None:
        with tempfile.TemporaryDirectory() as files:
            Path(files, "x").write_text("1")
            tune.report({"m": 1}, checkpoint=tune.Checkpoint.from_directory(files))
        raise ValueError("over")

    fit(tune, folder, train, run={"callbacks": [Own()]})
    return lines(folder, "calls")


@body("callbacks: on_step_begin, on_step_end")
def step_callbacks(tune: Any, folder: str) -> Any:
    class Own(tune.Callback):  # type: ignore[misc] # the class of either module
        def on_step_begin(self, iteration: int, trials: Any, **_: Any) -> None:
            note(folder, "steps", "begin")

        def on_step_end(self, iteration: int, trials: Any, **_: Any) -> None:
            note(folder, "steps", "end")

    fit(tune, folder, counted(tune, 2), run={"callbacks": [Own()]})
    return sorted(set(lines(folder, "steps")))


@body("fit of the same Tuner twice; results before fit")
def fit_twice(tune: Any, folder: str) -> Any:
    tuner = tune.Tuner(counted(tune, 2), run_config=run_config(tune, folder))
    before = raised(tuner.get_results)
    first = tuner.fit()
    return before, last(first, "m"), last(tuner.get_results(), "m"), len(tuner.fit())


@body("PopulationBasedTraining of a function with checkpoints")
def population_of_functions(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any]) -> None:
        step, at = 0.0, 0.0
        if (checkpoint := tune.get_checkpoint()) is not None:
            with checkpoint.as_directory() as files:
                step, at = (float(x) for x in Path(files, "x").read_text().split())
        while True:
            step, at = int(step) + 1, at + config["lr"]
            with tempfile.TemporaryDirectory() as files:
                Path(files, "x").write_text(f"{step} {at}")
                files_of = tune.Checkpoint.from_directory(files)
                tune.report({"m": at, "lr": config["lr"]}, checkpoint=files_of)

    scheduler = part(tune, "schedulers").PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"lr": [0.1, 0.2, 0.4], "other": {"deep": tune.uniform(0, 1)}},
    )
    space = {"lr": tune.choice([0.1, 0.2, 0.4]), "other": {"deep": 0.5}}
    run = {"stop": {"training_iteration": 6}}
    more: dict[str, Any] = {"metric": "m", "mode": "max", "num_samples": 4}
    grid = fit(tune, folder, train, space, scheduler=scheduler, run=run, **more)
    known = {round(result.config["lr"], 3) for result in grid} <= {0.1, 0.2, 0.4}
    return ends(grid), last(grid, "training_iteration"), known


@body("OptunaSearch with two metrics")
def two_metrics(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any]) -> None:
        tune.report({"loss": config["x"], "gain": -config["x"]})

    search = part(tune, "search.optuna").OptunaSearch(
        metric=["loss", "gain"], mode=["min", "max"], seed=1
    )
    grid = fit(tune, folder, train, {"x": tune.uniform(0, 5)}, search_alg=search, num_samples=3)
    best = grid.get_best_result("loss", "min")
    return ends(grid), best.metrics["loss"] == min(result.config["x"] for result in grid)


def suggesting(trial: Any) -> dict[str, Any]:
    """A space as a function: Ray pickles it by its name."""
    if trial.suggest_categorical("kind", ["a", "b"]) == "a":
        trial.suggest_float("x", 0, 1)
    return {"constant": 3}


@body("OptunaSearch with a function that suggests")
def define_by_run(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any]) -> None:
        tune.report({"m": config.get("x", -1.0), "c": config["constant"]})

    search = part(tune, "search.optuna").OptunaSearch(suggesting, metric="m", mode="max", seed=1)
    grid = fit(tune, folder, train, search_alg=search, num_samples=3)
    right = [("x" in result.config) == (result.config["kind"] == "a") for result in grid]
    return ends(grid), right, last(grid, "c")


@body("no space, num_samples")
def no_space(tune: Any, folder: str) -> Any:
    grid = fit(tune, folder, counted(tune, 1), num_samples=3)
    return len(grid), configs(grid)
