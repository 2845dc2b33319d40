"""Experiments for `compared.py`: callbacks, resources, searchers, schedulers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.tune_fitting import body, configs, counted, ends, fit, last, lines, note, part

# ---- callbacks, searchers, schedulers


@body("callbacks: what is called, and how often")
def callbacks(tune: Any, folder: str) -> Any:
    class Own(tune.Callback):  # type: ignore[misc] # the class of either module
        def setup(self, **_: Any) -> None:
            note(folder, "calls", "setup")

        def on_trial_start(self, iteration: int, trials: Any, trial: Any, **_: Any) -> None:
            note(folder, "calls", f"start {trial.config['a']}")

        def on_trial_result(
            self, iteration: int, trials: Any, trial: Any, result: Any, **_: Any
        ) -> None:
            note(folder, "calls", f"result {trial.config['a']} {result['m']}")

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **_: Any) -> None:
            note(folder, "calls", f"complete {trial.config['a']} {trial.status}")

        def on_experiment_end(self, trials: Any, **_: Any) -> None:
            note(folder, "calls", f"end {len(trials)}")

    fit(tune, folder, counted(tune, 2), {"a": tune.grid_search([1, 2])}, run={"callbacks": [Own()]})
    return lines(folder, "calls")


@body("max_concurrent_trials")
def concurrent(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any]) -> None:
        note(folder, "times", f"{time.time()} +1")
        time.sleep(0.5)
        note(folder, "times", f"{time.time()} -1")
        tune.report({"m": 1})

    space = {"a": tune.grid_search([1, 2, 3])}
    grid = fit(tune, folder, train, space, max_concurrent_trials=1)
    return len(grid), [line.split()[1] for line in lines(folder, "times")]


@body("with_resources: a map, bundles, a function")
def resources(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any]) -> None:
        amounts = tune.get_context().get_trial_resources().required_resources
        tune.report({"cpu": float(amounts["CPU"])})

    found = []
    bundles = tune.PlacementGroupFactory([{"CPU": 2}])
    for number, asked in enumerate(({"cpu": 2}, bundles, lambda config: {"cpu": config["n"]})):
        given = tune.with_resources(train, asked)
        found.append(last(fit(tune, folder, given, {"n": 2}, run={"name": f"e{number}"}), "cpu"))
    return found


@body("Repeater around a searcher")
def repeated(tune: Any, folder: str) -> Any:
    search, optuna = part(tune, "search"), part(tune, "search.optuna").OptunaSearch
    repeater = search.Repeater(optuna(metric="m", mode="max", seed=1), repeat=2)

    def train(config: dict[str, Any]) -> None:
        tune.report({"m": config["a"], "index": config.get("__trial_index__")})

    space = {"a": tune.uniform(0, 1)}
    grid = fit(tune, folder, train, space, num_samples=4, search_alg=repeater)
    values = sorted(result.config["a"] for result in grid)
    return len(grid), [values.count(value) for value in values], last(grid, "index")


@body("ConcurrencyLimiter around a custom searcher")
def own_searcher(tune: Any, folder: str) -> Any:
    search = part(tune, "search")

    class Own(search.Searcher):  # type: ignore[misc, name-defined] # the class of either module
        def __init__(self) -> None:
            super().__init__(metric="m", mode="max")
            self.told: list[float] = []

        def suggest(self, trial_id: str) -> dict[str, Any]:
            return {"a": len(self.told) + 1}

        def on_trial_complete(
            self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
        ) -> None:
            self.told.append((result or {}).get("m", -1))

    def train(config: dict[str, Any]) -> None:
        tune.report({"m": config["a"] * 10})

    limited = search.ConcurrencyLimiter(Own(), max_concurrent=1)
    grid = fit(tune, folder, train, num_samples=3, search_alg=limited, metric="m", mode="max")
    return configs(grid, "a"), last(grid, "m")


def climbing(tune: Any) -> Any:
    def train(config: dict[str, Any]) -> None:
        for step in range(1, 10):
            tune.report({"m": config["a"] * step})

    return train


@body("ASHAScheduler: the best comes to max_t, nothing fails")
def asha(tune: Any, folder: str) -> Any:
    scheduler = part(tune, "schedulers").ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3)
    space = {"a": tune.grid_search([4, 3, 2, 1])}
    more: dict[str, Any] = {"metric": "m", "mode": "max", "max_concurrent_trials": 1}
    grid = fit(tune, folder, climbing(tune), space, scheduler=scheduler, **more)
    best = grid.get_best_result()
    return ends(grid), best.config["a"], best.metrics["training_iteration"]


@body("MedianStoppingRule: what lags behind is stopped")
def median(tune: Any, folder: str) -> Any:
    scheduler = part(tune, "schedulers").MedianStoppingRule(
        time_attr="training_iteration", grace_period=2, min_samples_required=2
    )
    space = {"a": tune.grid_search([4, 3, 1])}
    more: dict[str, Any] = {"metric": "m", "mode": "max", "max_concurrent_trials": 1}
    grid = fit(tune, folder, climbing(tune), space, scheduler=scheduler, **more)
    found = {result.config["a"]: result.metrics["training_iteration"] for result in grid}
    return ends(grid), found[4], found[3], found[1] < 9


@body("HyperBandScheduler of a class")
def hyperband(tune: Any, folder: str) -> Any:
    cls = type("Climbing", (Climbing, tune.Trainable), {})
    scheduler = part(tune, "schedulers").HyperBandScheduler(
        time_attr="training_iteration", max_t=9, reduction_factor=3
    )
    space = {"a": tune.grid_search([1, 2, 3])}
    more: dict[str, Any] = {"metric": "m", "mode": "max"}
    run = {"stop": {"training_iteration": 9}}
    grid = fit(tune, folder, cls, space, scheduler=scheduler, run=run, **more)
    return ends(grid), grid.get_best_result(scope="all").config["a"]


class Climbing:
    """Steps of a class, to be mixed with Ray's Trainable."""

    def setup(self, config: dict[str, Any]) -> None:
        self.at, self.by = 0.0, config["a"]

    def step(self) -> dict[str, Any]:
        self.at += self.by
        return {"m": self.at}

    def save_checkpoint(self, folder: str) -> None:
        Path(folder, "at").write_text(str(self.at))

    def load_checkpoint(self, folder: str) -> None:
        self.at = float(Path(folder, "at").read_text())


@body("PopulationBasedTraining of a class")
def population(tune: Any, folder: str) -> Any:
    cls = type("Climbing", (Climbing, tune.Trainable), {})
    scheduler = part(tune, "schedulers").PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"a": tune.uniform(0.5, 2.0)},
    )
    space = {"a": tune.uniform(0.5, 2.0)}
    more: dict[str, Any] = {"metric": "m", "mode": "max", "num_samples": 4}
    run = {"stop": {"training_iteration": 8}}
    grid = fit(tune, folder, cls, space, scheduler=scheduler, run=run, **more)
    within = [0.4 <= result.config["a"] <= 2.4 for result in grid]
    return ends(grid), last(grid, "training_iteration"), within


@body("a custom scheduler")
def own_scheduler(tune: Any, folder: str) -> Any:
    schedulers = part(tune, "schedulers")

    class Own(schedulers.FIFOScheduler):  # type: ignore[misc, name-defined] # the class of either module
        def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> str:
            note(folder, "asked", f"{result['m']}")
            return str(schedulers.TrialScheduler.CONTINUE)

    grid = fit(tune, folder, counted(tune, 3), scheduler=Own())
    return ends(grid), lines(folder, "asked")


@body("create_scheduler, create_searcher, by name")
def by_name(tune: Any, folder: str) -> Any:
    scheduler = tune.create_scheduler("async_hyperband", metric="m", mode="max", max_t=4)
    searcher = tune.create_searcher("random")
    space = {"a": tune.choice([1])}
    more: dict[str, Any] = {"num_samples": 2, "max_concurrent_trials": 1}
    grid = fit(
        tune, folder, climbing(tune), space, scheduler=scheduler, search_alg=searcher, **more
    )
    return ends(grid), configs(grid, "a")


@body("run_experiments")
def many_experiments(tune: Any, folder: str) -> Any:
    given = {"one": {"run": counted(tune, 2), "storage_path": folder, "config": {"a": 1}}}
    trials = tune.run_experiments(given, verbose=0)
    return [(trial.status, trial.last_result["m"]) for trial in trials]


@body("scikit-learn: cross-validation of a grid")
def sklearn(tune: Any, folder: str) -> Any:
    def train(config: dict[str, Any]) -> None:
        from sklearn.datasets import load_iris
        from sklearn.model_selection import cross_val_score
        from sklearn.tree import DecisionTreeClassifier

        rows, labels = load_iris(return_X_y=True)
        model = DecisionTreeClassifier(max_depth=config["depth"], random_state=0)
        tune.report({"accuracy": float(cross_val_score(model, rows, labels).mean())})

    space = {"depth": tune.grid_search([1, 2, 3])}
    grid = fit(tune, folder, train, space, metric="accuracy", mode="max")
    best = grid.get_best_result()
    return best.config, round(best.metrics["accuracy"], 6)
