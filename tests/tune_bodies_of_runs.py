"""Experiments for `compared.py`: spaces, stopping, failures, checkpoints, files."""

from __future__ import annotations

import csv
import json
import math
import os
import sys
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
    kinds,
    last,
    lines,
    note,
    part,
    raised,
)


def saving(tune: Any, steps: int, *, fails: int | None = None) -> Any:
    """A function that saves each step, begins at its checkpoint and fails before step `fails` if it
    began anew.
    """

    def train(config: dict[str, Any]) -> None:
        first = 0
        if (checkpoint := tune.get_checkpoint()) is not None:
            with checkpoint.as_directory() as files:
                first = int(Path(files, "step").read_text()) + 1
        for step in range(first, steps):
            if step == fails and not first:
                raise RuntimeError("once")
            with tempfile.TemporaryDirectory() as files:
                Path(files, "step").write_text(str(step))
                score = -abs(step - 2)
                report = {"step": step, "first": first, "score": score}
                tune.report(report, checkpoint=tune.Checkpoint.from_directory(files))

    return train


def step_of(checkpoint: Any) -> int:
    with checkpoint.as_directory() as files:
        return int(Path(files, "step").read_text())


# ---- spaces


def shown(tune: Any) -> Any:
    """A function that reports its configuration as text."""

    def train(config: dict[str, Any]) -> None:
        tune.report({"config_was": repr(config)})

    return train


@body("grids in lists and nested maps, sample_from of other entries")
def nested_space(tune: Any, folder: str) -> Any:
    space = {
        "layers": [tune.grid_search([16, 64]), tune.grid_search([16, 256])],
        "opt": {"name": tune.grid_search(["sgd", "adam"]), "fixed": {"beta": 0.9}},
        "twice": tune.sample_from(lambda spec: spec.config.layers[0] * 2),
        "named": tune.sample_from(lambda config: config["opt"]["name"].upper()),
        "plain": tune.sample_from(lambda: 2 + 2),
    }
    grid = fit(tune, folder, shown(tune), space)
    return len(grid), configs(grid), last(grid, "config_was")


@body("a conditional space by sample_from")
def conditional(tune: Any, folder: str) -> Any:
    space = {
        "a": tune.randint(5, 10),
        "b": tune.sample_from(lambda spec: np.random.randint(0, spec.config.a)),  # noqa: NPY002
    }
    grid = fit(tune, folder, shown(tune), space, num_samples=4)
    within = [5 <= r.config["a"] < 10 and 0 <= r.config["b"] < r.config["a"] for r in grid]
    return within, len(grid)


@body("quantised and logarithmic ranges")
def ranges(tune: Any, folder: str) -> Any:
    space = {
        "q": tune.quniform(0, 1, 0.25),
        "qi": tune.qrandint(10, 50, 10),
        "log": tune.loguniform(1e-4, 1e-1),
        "logi": tune.lograndint(1, 100),
        "n": tune.randn(10, 0.001),
        "qn": tune.qrandn(10, 2, 0.5),
        "i": tune.randint(0, 3),
    }
    grid = fit(tune, folder, shown(tune), space, num_samples=4)
    for result in grid:
        c = result.config
        assert (c["q"] * 4) % 1 == 0 <= c["q"] <= 1, c
        assert c["qi"] % 10 == 0 < c["qi"] <= 50, c
        assert 1e-4 <= c["log"] <= 1e-1, c
        assert 1 <= c["logi"] < 100, c
        assert abs(c["n"] - 10) < 0.1, c
        assert (c["qn"] * 2) % 1 == 0, c
    return kinds(grid[0].config, *space)


class Small:
    """A class that is a value of a space."""

    size = 3


@body("values that are functions, classes, tuples and None")
def objects(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any]) -> None:
        tune.report({"made": config["f"](config["cls"].size), "t": type(config["t"]).__name__})

    space = {
        "f": tune.grid_search([math.sqrt, math.exp]),
        "cls": tune.choice([Small]),
        "t": tune.choice([(1, 2)]),
        "none": None,
        "tuple": (1, 2),
    }
    grid = fit(tune, folder, train, space)
    return last(grid, "made", "t"), configs(grid, "f", "cls", "t", "none", "tuple")


@body("points_to_evaluate")
def points(tune: Any, folder: str) -> Any:
    basic = part(tune, "search.basic_variant").BasicVariantGenerator
    given = [{"a": 0.25, "b": 3}, {"a": 0.75}]
    space = {"a": tune.uniform(0, 1), "b": tune.choice([1, 2, 3])}
    search = basic(points_to_evaluate=given)
    grid = fit(tune, folder, shown(tune), space, num_samples=4, search_alg=search)
    found = [result.config for result in grid]
    return len(grid), found[0], found[1]["a"]


# ---- stopping


@body("stop: a map, flat and nested names")
def stop_map(tune: Any, folder: str) -> Any:
    found = []
    for number, stop in enumerate(({"m": 6}, {"training_iteration": 3}, {"deep/er/m": 4})):
        grid = fit(tune, folder, counted(tune), run={"stop": stop, "name": f"e{number}"})
        found.append((ends(grid), last(grid, "m", "training_iteration", "done")))
    return found


@body("stop: a function, a method, a custom Stopper")
def stop_functions(tune: Any, folder: str) -> Any:
    class Own(tune.Stopper):  # type: ignore[misc] # the class of either module
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            self.calls += 1
            return self.calls >= 4

        def stop_all(self) -> bool:
            return False

        def enough(self, trial_id: str, result: dict[str, Any]) -> bool:
            return bool(result["m"] > 5)

    found = []
    for number, stop in enumerate((lambda trial_id, result: result["m"] > 6, Own().enough, Own())):
        grid = fit(tune, folder, counted(tune), run={"stop": stop, "name": f"e{number}"})
        found.append((ends(grid), last(grid, "m", "training_iteration")))
    return found


@body("MaximumIterationStopper, TrialPlateauStopper, CombinedStopper")
def stoppers(tune: Any, folder: str) -> Any:
    of = part(tune, "stopper") if tune.__name__ == "ray.tune" else tune.stopper

    def train(config: dict[str, Any]) -> None:
        for value in (10.0, 11.0, 12.0, *(20.0 for _ in range(10))):
            tune.report({"m": value})

    found = []
    for number, stop in enumerate(
        (
            of.MaximumIterationStopper(max_iter=6),
            of.TrialPlateauStopper(metric="m", num_results=4),
            of.TrialPlateauStopper(metric="m", num_results=4, grace_period=9),
            of.CombinedStopper(
                of.MaximumIterationStopper(max_iter=2), of.FunctionStopper(lambda t, r: False)
            ),
        )
    ):
        grid = fit(tune, folder, train, run={"stop": stop, "name": f"e{number}"})
        found.append((ends(grid), last(grid, "training_iteration")))
    return found


@body("a metric of stop that is not reported")
def stop_unknown(tune: Any, folder: str) -> Any:
    found = []
    why = raised(
        lambda: found.append(fit(tune, folder, counted(tune, 2), run={"stop": {"asdf": 1}}))
    )
    return why, [ends(grid) for grid in found]


@body("a metric of the TuneConfig that is not reported")
def metric_unknown(tune: Any, folder: str) -> Any:
    return raised(lambda: fit(tune, folder, counted(tune, 2), metric="acc", mode="max"))


@body("time_budget_s, TimeoutStopper")
def timeouts(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any]) -> None:
        while True:
            time.sleep(0.2)
            tune.report({"m": 1})

    grid = fit(tune, folder, train, time_budget_s=8)
    return ends(grid), grid.num_terminated, grid[0].metrics["training_iteration"] > 1


@body("done in a result; what follows it does not run")
def done(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any]) -> None:
        for i in range(5):
            tune.report({"m": i, "done": i == 2})
        note(folder, "after", "ran")

    grid = fit(tune, folder, train)
    return last(grid, "m", "done"), lines(folder, "after")


# ---- failures


@body("exceptions in trials: errors, num_errors, raise")
def errors(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any]) -> None:
        tune.report({"m": 1})
        if config["a"] == 2:
            raise ValueError("boom 17")

    grid = fit(tune, folder, train, {"a": tune.grid_search([1, 2, 3])})
    (error,) = grid.errors
    counts = grid.num_errors, grid.num_terminated
    told = "boom 17" in str(error), isinstance(error, ValueError)
    return ends(grid), counts, told, last(grid, "m"), grid.get_best_result("m", "max").config["a"]


@body("max_failures: from the last checkpoint")
def retried(tune: Any, folder: str) -> Any:
    run = {"failure_config": tune.FailureConfig(max_failures=3)}
    (result,) = grid = fit(tune, folder, saving(tune, 6, fails=3), run=run)
    frame = result.metrics_dataframe
    return ends(grid), last(grid, "step", "first"), list(frame["step"]), step_of(result.checkpoint)


@body("max_failures that do not suffice")
def failing_always(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any]) -> None:
        note(folder, "attempts", str(config["a"]))
        raise RuntimeError("always")

    run = {"failure_config": tune.FailureConfig(max_failures=2)}
    grid = fit(tune, folder, train, {"a": tune.grid_search([1, 2])}, run=run)
    return ends(grid), lines(folder, "attempts")


@body("fail_fast: True and 'raise'")
def fail_fast(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any]) -> None:
        if config["a"] == 1:
            raise ValueError("first")
        time.sleep(60)

    space = {"a": tune.grid_search([1, 2, 3])}
    run = {"failure_config": tune.FailureConfig(fail_fast=True), "name": "fast"}
    grid = fit(tune, folder, train, space, run=run, max_concurrent_trials=1)
    run = {"failure_config": tune.FailureConfig(fail_fast="raise"), "name": "raise"}
    why = raised(lambda: fit(tune, folder, train, space, run=run, max_concurrent_trials=1))
    return ends(grid)["failed"], why != "nothing"


@body("sys.exit in a trial")
def exits(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any]) -> None:
        tune.report({"m": 1})
        if config["a"] == 2:
            sys.exit(1)

    grid = fit(tune, folder, train, {"a": tune.grid_search([1, 2])})
    return ends(grid), last(grid, "m")


@body("tune.run: TuneError for failed trials, raise_on_failed_trial=False")
def run_raises(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any]) -> None:
        raise ValueError("boom")

    def run(name: str, **more: Any) -> Any:
        return tune.run(train, name=name, storage_path=folder, verbose=0, **more)

    analysis = run("kept", raise_on_failed_trial=False)
    return raised(lambda: run("raised")), [trial.status for trial in analysis.trials]


# ---- checkpoints, restoring


@body("CheckpointConfig: num_to_keep, with a score")
def kept(tune: Any, folder: str) -> Any:
    keeping = tune.CheckpointConfig(num_to_keep=2)
    scored = tune.CheckpointConfig(
        num_to_keep=2, checkpoint_score_attribute="score", checkpoint_score_order="max"
    )
    found = []
    for number, config in enumerate((keeping, scored)):
        run = {"checkpoint_config": config, "name": f"e{number}"}
        (result,) = fit(tune, folder, saving(tune, 5), run=run, metric="score", mode="max")
        best = result.get_best_checkpoint("score", "max")
        found.append((step_of(result.checkpoint), step_of(best), len(result.best_checkpoints)))
    return found


@body("all checkpoints are kept without a CheckpointConfig")
def all_kept(tune: Any, folder: str) -> Any:
    (result,) = fit(tune, folder, saving(tune, 4))
    steps = sorted(step_of(checkpoint) for checkpoint, _ in result.best_checkpoints)
    return steps, [metrics["step"] for _, metrics in result.best_checkpoints]


@body("Tuner.restore: resume_errored, restart_errored, can_restore")
def restored(tune: Any, folder: str) -> Any:
    def again(name: str) -> Any:
        train = saving(tune, 5, fails=3)
        first = fit(tune, folder, train, run={"name": name})
        assert ends(first)["failed"] == 1
        return train

    path = os.path.join(folder, "resumed")
    before = tune.Tuner.can_restore(path)
    train = again("resumed")
    tuner = tune.Tuner.restore(path, train, resume_errored=True)
    held = ends(tuner.get_results())
    resumed = tuner.fit()
    return before, tune.Tuner.can_restore(path), held, ends(resumed), last(resumed, "step", "first")


@body("Tuner.restore of what is over; results from the path")
def restored_after(tune: Any, folder: str) -> Any:
    train = counted(tune, 3)
    space = {"a": tune.grid_search([1, 2])}
    grid = fit(tune, folder, train, space, metric="m", mode="max")
    over = tune.Tuner.restore(grid.experiment_path, train).get_results()
    analysis = tune.ExperimentAnalysis(grid.experiment_path, default_metric="m", default_mode="max")
    once = type(grid[0]).from_path(grid[0].path)
    return len(over), last(over, "m"), analysis.best_result["m"], once.metrics["m"]


# ---- results and files


@body("get_best_result: scopes; without a metric; get_dataframe")
def best_results(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any]) -> None:
        for factor in (1, 4, 3):
            tune.report({"m": config["nested"]["p"] * factor})

    grid = fit(tune, folder, train, {"nested": {"p": tune.grid_search([1, 2])}})
    why = [
        raised(grid.get_best_result),
        raised(lambda: grid.get_best_result(metric="m")),
        raised(lambda: grid.get_best_result(mode="max")),
    ]
    scoped = [
        grid.get_best_result("m", "min", scope=scope).config["nested"]["p"]
        for scope in ("last", "all", "avg", "last-5-avg")
    ]
    frame = grid.get_dataframe()
    best = grid.get_dataframe(filter_metric="m", filter_mode="max")
    columns = {"m", "training_iteration", "config/nested/p", "trial_id", "time_total_s", "done"}
    return (
        why,
        scoped,
        sorted(frame["m"]),
        sorted(best["m"]),
        sorted(frame["config/nested/p"]),
        columns - set(frame.columns),
    )


@body("get_best_result of one trial without a metric")
def only_result(tune: Any, folder: str) -> Any:
    return fit(tune, folder, counted(tune, 2)).get_best_result().metrics["m"]


@body("tune.run: an ExperimentAnalysis")
def analysis(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any]) -> None:
        for i in range(3):
            tune.report({"m": i * config["a"]})

    found = tune.run(
        train,
        config={"a": tune.grid_search([1, 2])},
        metric="m",
        mode="max",
        storage_path=folder,
        name="experiment",
        verbose=0,
    )
    return (
        found.best_config,
        found.best_result["m"],
        found.best_trial.status,
        [trial.last_result["training_iteration"] for trial in found.trials],
        found.dataframe(metric="m", mode="max")["m"].tolist(),
        sorted(len(frame) for frame in found.trial_dataframes.values()),
        found.results_df["m"].tolist(),
    )


@body("files of a trial: params.json, result.json, progress.csv")
def files(tune: Any, folder: str) -> Any:
    grid = fit(tune, folder, counted(tune, 3), {"a": tune.grid_search([1, 2]), "b": {"c": 3}})
    found = []
    for result in grid:
        place = Path(result.path)
        params = json.loads((place / "params.json").read_text())
        told = [json.loads(line) for line in (place / "result.json").read_text().splitlines()]
        with (place / "progress.csv").open() as file:
            rows = [(row["m"], row["deep/er/m"]) for row in csv.DictReader(file)]
        known = set(told[-1]) - {"checkpoint_dir_name"}
        found.append((params, [one["deep"] for one in told], rows, sorted(known)))
    return sorted(found, key=repr), str(Path(grid.experiment_path)) == f"{folder}/experiment"


@body("files that a trial writes into its folder are in Result.path")
def own_files(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any]) -> None:
        Path("relative.txt").write_text("relative")
        Path(tune.get_context().get_trial_dir(), "absolute.txt").write_text("absolute")
        tune.report({"m": 1})

    (result,) = fit(tune, folder, train)
    return [Path(result.path, f"{name}.txt").exists() for name in ("relative", "absolute")]


@body("two Tuners in one script")
def twice(tune: Any, folder: str) -> Any:
    one = fit(tune, folder, counted(tune, 1), {"a": tune.grid_search([1, 2])})
    two = fit(tune, folder, counted(tune, 2), {"a": tune.grid_search([3])}, run={"name": "other"})
    return configs(one, "a"), configs(two, "a"), last(two, "m")


@body("trial_dirname_creator")
def dirnames(tune: Any, folder: str) -> Any:
    space = {"a": tune.grid_search([1, 2])}

    def named(trial: Any) -> str:
        return f"mine_{trial.config['a']}"

    grid = fit(tune, folder, counted(tune, 1), space, trial_dirname_creator=named)
    return sorted(Path(result.path).name for result in grid)


@body("timesteps_this_iter and episodes_this_iter are summed up")
def timesteps(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any]) -> None:
        for i in range(4):
            tune.report({"timesteps_this_iter": 3, "episodes_this_iter": i})

    grid = fit(tune, folder, train)
    return last(grid, "timesteps_total", "episodes_total")
