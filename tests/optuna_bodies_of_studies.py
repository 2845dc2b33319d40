"""Studies for `compared.py`: pruning, several objectives, trials of the user's, samplers."""

from __future__ import annotations

import functools
import json
import math
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import optuna as optuna_itself

from tests.optuna_bodies import body, kinds, raised, square, states

# ---- pruning


def curve(optuna: Any, trial: Any, steps: range = range(4)) -> float:
    """A loss that is worse for each further trial."""
    for step in steps:
        trial.report(trial.number + 1 / (step + 1), step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return float(trial.number)


@body("pruning by the median and by percentiles, of curves that cross")
def median(optuna: Any, name: str) -> Any:
    def crossing(trial: Any) -> float:
        for step in range(5):
            trial.report((trial.number * 7 + step * (trial.number % 3)) % 11, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return float(trial.number)

    made, found = optuna.pruners, []
    for pruner in (
        made.MedianPruner(n_startup_trials=2, n_warmup_steps=1),
        made.PercentilePruner(25.0, n_startup_trials=1, interval_steps=2, n_min_trials=3),
    ):
        kind = type(pruner).__name__
        study = optuna.create_study(study_name=f"{name}-{kind}", pruner=pruner)
        study.optimize(crossing, n_trials=9)
        found += [(t.state.name, t.value, sorted(t.intermediate_values)) for t in study.trials]
    again = optuna.create_study(study_name=f"{name}-again")
    again.optimize(crossing, n_trials=7)
    again = again if optuna is optuna_itself else optuna.load_study(study_name=f"{name}-again")
    again.optimize(crossing, n_trials=7)
    return found, [(t.state.name, t.last_step) for t in again.trials]


@body("pruning by successive halving, steps that leave some out")
def halving(optuna: Any, name: str) -> Any:
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2)
    study = optuna.create_study(study_name=name, pruner=pruner)
    study.optimize(lambda t: curve(optuna, t, range(1, 9)), n_trials=3)
    return [(t.state.name, t.last_step) for t in study.trials]


@body("TrialPruned at will, and values of pruned trials")
def pruned_at_will(optuna: Any, name: str) -> Any:
    def objective(trial: Any) -> float:
        if trial.number == 0:
            raise optuna.TrialPruned("at once")
        trial.report(3.0, step=0)
        trial.report(4.0, step=0)
        trial.report(2.0, step=5)
        trial.report(math.nan, step=7) if trial.number == 2 else None
        raise optuna.exceptions.TrialPruned

    study = optuna.create_study(study_name=name, pruner=optuna.pruners.NopPruner())
    study.optimize(objective, n_trials=3)
    return [(t.state.name, t.value, repr(t.intermediate_values), t.last_step) for t in study.trials]


@body("pruners without a schedule of ours, and one's own")
def other_pruners(optuna: Any, name: str) -> Any:
    class Own(optuna.pruners.BasePruner):  # type: ignore[misc]  # of either module
        def prune(self, study: Any, trial: Any) -> bool:
            done = [one for one in study.trials if one.state.is_finished()]
            return len(done) == 1 and trial.last_step == 2

    found = {}
    made = optuna.pruners
    for pruner in (
        made.ThresholdPruner(upper=2.0),
        made.PatientPruner(None, patience=0),
        made.WilcoxonPruner(n_startup_steps=2),
        Own(),
    ):
        kind = type(pruner).__name__
        study = optuna.create_study(study_name=f"{name}-{kind}", pruner=pruner)
        study.optimize(lambda t: curve(optuna, t), n_trials=3)
        found[kind] = [(t.state.name, t.last_step) for t in study.trials]
    return found


# ---- several objectives and constraints


@body("two objectives")
def two_objectives(optuna: Any, name: str) -> Any:
    study = optuna.create_study(study_name=name, directions=["minimize", "maximize"])
    study.optimize(lambda t: (t.suggest_float("x", 0, 1), float(t.number)), n_trials=4)
    front = {trial.number for trial in study.best_trials}
    wrong = [raised(lambda: study.best_trial), raised(lambda: study.direction)]
    return states(study), 3 in front, wrong, [one.name for one in study.directions]


@body("two objectives do not report")
def two_and_report(optuna: Any, name: str) -> Any:
    study = optuna.create_study(study_name=name, directions=["minimize", "minimize"])

    def objective(trial: Any) -> Any:
        trial.set_user_attr(
            "raised", [raised(lambda: trial.report(1.0, 0)), raised(trial.should_prune)]
        )
        return (1.0,) if trial.number else (1.0, 2.0)

    study.optimize(objective, n_trials=2)
    return states(study), study.trials[0].user_attrs


@body("constraints of a sampler")
def constraints(optuna: Any, name: str) -> Any:
    def objective(trial: Any) -> float:
        trial.set_user_attr("c", (float(trial.number) - 1,))
        return -float(trial.number)

    sampler = optuna.samplers.TPESampler(constraints_func=lambda trial: trial.user_attrs["c"])
    study = optuna.create_study(study_name=name, sampler=sampler)
    study.optimize(objective, n_trials=3)
    return study.best_trial.number, [list(t.constraints.values()) for t in study.trials]


@body("set_constraint, twice, too")
def set_constraint(optuna: Any, name: str) -> Any:
    def objective(trial: Any) -> float:
        trial.set_constraint("c", trial.number - 1)
        with warnings.catch_warnings(record=True) as met:
            warnings.simplefilter("always")
            trial.set_constraint("c", 9)
        wrong = [
            raised(lambda: trial.set_constraint("d", math.nan)),
            raised(lambda: trial.set_constraint("d", "a")),
            raised(lambda: trial.report("a", 0)),
            raised(lambda: trial.report(1.0, -1)),
        ]
        trial.set_user_attr("wrong", [len(met), *wrong])
        return -float(trial.number)

    study = optuna.create_study(study_name=name)
    study.optimize(objective, n_trials=3)
    return study.best_trial.number, study.best_trial.constraints, study.best_trial.user_attrs


# ---- trials of the user's


@body("enqueue_trial, waiting trials")
def enqueued(optuna: Any, name: str) -> Any:
    study = optuna.create_study(study_name=name)
    study.enqueue_trial({"x": 5})
    study.enqueue_trial({"x": 1.5}, user_attrs={"memo": "start"})
    study.enqueue_trial({"x": 5}, skip_if_exists=True)
    waiting = [(t.number, t.state.name) for t in study.trials]
    study.optimize(square, n_trials=3)
    return waiting, [t.params["x"] for t in study.trials[:2]], study.trials[1].user_attrs


@body("enqueue_trial in a callback")
def enqueued_in_callback(optuna: Any, name: str) -> Any:
    def follow(study: Any, trial: Any) -> None:
        if trial.number == 0:
            study.enqueue_trial({"x": 0.25})

    study = optuna.create_study(study_name=name)
    study.optimize(square, n_trials=3, callbacks=[follow])
    return states(study), study.trials[1].params


@body("a value out of range is used, with a warning")
def out_of_range(optuna: Any, name: str) -> Any:
    def objective(trial: Any) -> float:
        with warnings.catch_warnings(record=True) as met:
            warnings.simplefilter("always")
            x = trial.suggest_float("x", 0, 1)
        trial.set_user_attr("warned", len(met))
        return float(x)

    study = optuna.create_study(study_name=name)
    study.enqueue_trial({"x": 7.0})
    study.optimize(objective, n_trials=1)
    return study.trials[0].params, study.trials[0].value, study.trials[0].user_attrs


@body("FixedTrial, and the best trial again")
def fixed(optuna: Any, name: str) -> Any:
    study = optuna.create_study(study_name=name)
    study.optimize(square, n_trials=2)
    again = square(study.best_trial)
    text = str(study.best_trial).partition("(")[0]
    return square(optuna.trial.FixedTrial({"x": 3})), again == study.best_value, text


@body("add_trial and add_trials")
def added(optuna: Any, name: str) -> Any:
    study = optuna.create_study(study_name=name)
    dist = {"x": optuna.distributions.FloatDistribution(-10, 10)}
    study.add_trial(
        optuna.create_trial(
            params={"x": 2.0}, distributions=dist, value=4.0, user_attrs={"from": "table"}
        )
    )
    study.add_trial(optuna.create_trial(state=optuna.trial.TrialState.FAIL))
    other = optuna.create_study(study_name=f"{name}-other")
    other.optimize(square, n_trials=2)
    study.add_trials(other.trials)
    study.optimize(square, n_trials=1)
    first = study.trials[0]
    wrong = raised(lambda: study.add_trial(optuna.create_trial(values=[1.0, 2.0])))
    return states(study), first.params, first.value, first.user_attrs, wrong


@body("ask and tell")
def ask_and_tell(optuna: Any, name: str) -> Any:
    study = optuna.create_study(study_name=name)
    for _ in range(3):
        trial = study.ask()
        x = trial.suggest_float("x", -10, 10)
        trial.set_user_attr("square", x * x)
        frozen = study.tell(trial, x * x)
        assert frozen.value == x * x
    trials = [study.ask() for _ in range(2)]
    running = states(study)
    study.tell(trials[1], 1000.0)
    study.tell(trials[0].number, state=optuna.trial.TrialState.PRUNED)
    return running, states(study), kinds(study.best_params)


@body("ask with distributions; what tell refuses")
def told_wrong(optuna: Any, name: str) -> Any:
    study = optuna.create_study(study_name=name)
    trial = study.ask({"n": optuna.distributions.IntDistribution(1, 3)})
    given = sorted(trial.params)
    complete = optuna.trial.TrialState.COMPLETE
    wrong = [
        raised(lambda: study.tell(trial, state=complete)),
        raised(lambda: study.tell(9, 1.0)),
        raised(lambda: study.tell("a", 1.0)),
        raised(lambda: study.tell(trial, 1.0, state=optuna.trial.TrialState.FAIL)),
    ]
    trial.report(0.5, step=3)
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        study.tell(trial, [1.0, 2.0])
    wrong.append(raised(lambda: study.tell(trial, 1.0)))
    skipped = study.tell(trial, 1.0, skip_if_finished=True).state.name
    study.optimize(square, n_trials=1)
    return given, wrong, len(met), skipped, states(study), study.trials[0].intermediate_values


# ---- studies


@body("studies before their first trial")
def studies(optuna: Any, name: str) -> Any:
    storage = f"sqlite:///{name}.db"
    study = optuna.create_study(study_name=name, storage=storage, direction="maximize")
    twice = raised(lambda: optuna.create_study(study_name=name, storage=storage))
    names = optuna.get_all_study_names(storage=storage)
    study.set_user_attr("about", [1, 2])
    loaded = optuna.load_study(study_name=name, storage=storage)
    (summary,) = optuna.get_all_study_summaries(storage=storage)
    found = loaded.direction.name, loaded.user_attrs, summary.n_trials, summary.user_attrs
    optuna.delete_study(study_name=name, storage=storage)
    gone = raised(lambda: optuna.load_study(study_name=name, storage=storage))
    return twice, names == [name], found, gone


@body("storage= is read and written")
def storage(optuna: Any, name: str) -> Any:
    import optuna as real

    url = f"sqlite:///{name}.db"
    before = real.create_study(study_name=name, storage=url)
    before.optimize(square, n_trials=2)
    study = optuna.create_study(study_name=name, storage=url, load_if_exists=True)
    there = len(study.trials)
    study.optimize(square, n_trials=2)
    after = real.load_study(study_name=name, storage=url)
    return there, states(after), [sorted(trial.params) for trial in after.trials]


@body("copy_study")
def copied(optuna: Any, name: str) -> Any:
    url = f"sqlite:///{name}.db"
    study = optuna.create_study(study_name=name, storage=url)
    study.optimize(square, n_trials=2)
    study.set_user_attr("k", 1)
    optuna.copy_study(
        from_study_name=name, from_storage=url, to_storage=url, to_study_name=f"{name}-2"
    )
    other = optuna.load_study(study_name=f"{name}-2", storage=url)
    return states(other), other.user_attrs, other.best_value == study.best_value


# ---- samplers, tables and figures


@body("a grid")
def grid(optuna: Any, name: str) -> Any:
    space = {"x": [1, 2, 3], "c": ["a", "b"]}
    study = optuna.create_study(study_name=name, sampler=optuna.samplers.GridSampler(space))
    study.optimize(
        lambda t: t.suggest_int("x", 1, 3) + (t.suggest_categorical("c", ["a", "b"]) == "a"),
        n_trials=20,
    )
    return sorted((t.params["x"], t.params["c"]) for t in study.trials), study.best_value


@body("brute force")
def brute_force(optuna: Any, name: str) -> Any:
    def objective(trial: Any) -> float:
        if trial.suggest_categorical("c", ["float", "int"]) == "float":
            return float(trial.suggest_float("x", 1, 2, step=0.5))
        return float(trial.suggest_int("a", 1, 2))

    study = optuna.create_study(study_name=name, sampler=optuna.samplers.BruteForceSampler())
    study.optimize(objective, n_trials=30)
    return sorted(json.dumps(trial.params, sort_keys=True) for trial in study.trials)


@body("other samplers: QMC, random, NSGA-II, CMA-ES, a part that is fixed")
def other_samplers(optuna: Any, name: str) -> Any:
    made = optuna.samplers
    found = {}
    for sampler in (
        made.RandomSampler(seed=1),
        made.NSGAIISampler(seed=1, population_size=4),
        made.QMCSampler(seed=1, warn_independent_sampling=False),
        made.CmaEsSampler(seed=1, warn_independent_sampling=False),
        made.PartialFixedSampler({"y": 2}, made.RandomSampler(seed=1)),
    ):
        kind = type(sampler).__name__
        study = optuna.create_study(study_name=f"{name}-{kind}", sampler=sampler)
        study.optimize(lambda t: square(t) + t.suggest_int("y", 0, 9), n_trials=4)
        fixed = {t.params["y"] for t in study.trials} if kind.startswith("Partial") else None
        found[kind] = states(study), fixed
    return found


@body("tables, importances and figures")
def tables(optuna: Any, name: str) -> Any:
    def objective(trial: Any) -> float:
        trial.set_user_attr("k", 1)
        trial.report(1.0, 0)
        return square(trial) + float(trial.suggest_int("y", 0, 9))

    study = optuna.create_study(study_name=name)
    study.optimize(objective, n_trials=6)
    frame = study.trials_dataframe()
    importance = optuna.importance.get_param_importances(study)
    drawn = [
        len(optuna.visualization.plot_optimization_history(study).data),
        len(optuna.visualization.plot_intermediate_values(study).data),
    ]
    columns = [c for c in frame if not c.startswith("system_attrs")]
    return columns, frame["state"].unique().tolist(), sorted(importance), drawn


@body("objectives: a partial, an object with a method, a lambda")
def callables(optuna: Any, name: str) -> Any:
    class Objective:
        def __init__(self, data: list[float]) -> None:
            self.data = data

        def __call__(self, trial: Any) -> float:
            return square(trial) + sum(self.data)

    def scaled(trial: Any, scale: float) -> float:
        return square(trial) * scale

    study = optuna.create_study(study_name=name)
    for objective in (Objective([1.0, 2.0]), functools.partial(scaled, scale=2.0), square):
        study.optimize(objective, n_trials=1)
    return states(study)


@body("an objective that holds a lock")
def locked(optuna: Any, name: str) -> Any:
    lock = threading.Lock()

    def objective(trial: Any) -> float:
        with lock:
            return square(trial)

    study = optuna.create_study(study_name=name)
    study.optimize(objective, n_trials=2)
    return states(study)


@body("scikit-learn, with a score by cross-validation")
def cross_validated(optuna: Any, name: str) -> Any:
    from sklearn.datasets import load_iris
    from sklearn.model_selection import cross_val_score
    from sklearn.tree import DecisionTreeClassifier

    x, y = load_iris(return_X_y=True)

    def objective(trial: Any) -> float:
        depth = trial.suggest_int("max_depth", 1, 4)
        scores = cross_val_score(DecisionTreeClassifier(max_depth=depth), x, y, cv=3)
        trial.set_user_attr("std", scores.std())
        return float(scores.mean())

    study = optuna.create_study(study_name=name, direction="maximize")
    study.optimize(objective, n_trials=3)
    assert isinstance(study.best_trial.user_attrs["std"], float)
    return states(study), kinds(study.best_params), list(study.best_trial.user_attrs)


# ---- custom samplers


class Halving(optuna_itself.samplers.BaseSampler):
    """Goes half of the way to the best value so far, writes what it sees, and stops the study."""

    def __init__(self, file: str, most: int) -> None:
        self._file, self._most = file, most

    def _saw(self, what: str, study: Any, trial: Any, *more: Any) -> None:
        states = [one.state.name for one in study.get_trials(deepcopy=False)]
        attributes = sorted(trial.system_attrs.items())
        with Path(self._file).open("a") as out:
            print(what, trial.number, states, trial.params, attributes, *more, file=out)

    def before_trial(self, study: Any, trial: Any) -> None:
        study._storage.set_trial_system_attr(trial._trial_id, "begun", len(study.trials))
        self._saw("before", study, trial)

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        return optuna_itself.search_space.intersection_search_space(study.trials)

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        self._saw("relative", study, trial, sorted(search_space), study.user_attrs)
        return {name: study.best_params[name] / 2 for name in search_space if name == "x"}

    def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
        self._saw("alone", study, trial, name, distribution)
        if isinstance(distribution, optuna_itself.distributions.CategoricalDistribution):
            return distribution.choices[trial.number % 2]
        return distribution.high

    def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
        study._storage.set_trial_system_attr(trial._trial_id, "told", values)
        self._saw("after", study, trial, trial.state.name, state.name, values)
        if trial.number == self._most:
            study.stop()


def two_of_three(trial: Any) -> float:
    """Every third trial fails."""
    value = trial.suggest_float("x", -8, 8) ** 2 + trial.suggest_categorical(
        "c", ["a", "bb"]
    ).count("b")
    if trial.number % 3 == 2:
        raise FileNotFoundError
    return float(value)


@body("a custom sampler: all that it sees and answers, in two sessions; it stops the study")
def own_sampler(optuna: Any, name: str) -> Any:
    study = optuna.create_study(study_name=name, sampler=Halving(f"{name}.txt", 5))
    study.set_user_attr("data", "digits")
    study.enqueue_trial({"c": "bb"})
    for _ in range(2):
        study.optimize(two_of_three, n_trials=4, catch=FileNotFoundError)
    asked = study.ask()
    asked.suggest_float("x", -8, 8)
    study.tell(asked, 1.0)
    params = [trial.params for trial in study.trials]
    return params, states(study), Path(f"{name}.txt").read_text()


@body("own samplers within PartialFixedSampler, and of Optuna's with objects as options")
def wrapped_samplers(optuna: Any, name: str) -> Any:
    own = optuna.samplers.PartialFixedSampler({"x": 3.0}, Halving(f"{name}.txt", 9))
    study = optuna.create_study(study_name=name, sampler=own)
    study.optimize(two_of_three, n_trials=2)
    weights = optuna.samplers.TPESampler(weights=np.ones, seed=1)
    other = optuna.create_study(study_name=f"{name}-tpe", sampler=weights)
    other.optimize(square, n_trials=12)
    warm = optuna.samplers.CmaEsSampler(source_trials=other.trials, popsize=4, seed=1)
    third = optuna.create_study(study_name=f"{name}-warm", sampler=warm)
    third.optimize(square, n_trials=10)
    generations = {t.system_attrs.get("cma:generation") for t in third.trials}
    return [trial.params for trial in study.trials], states(other), states(third), generations


# ---- storages, artifacts, terminators


@body("artifacts of a trial and of the study; scores of a cross-validation, for terminators")
def artifacts(optuna: Any, name: str) -> Any:
    from optuna.artifacts import FileSystemArtifactStore, get_all_artifact_meta, upload_artifact
    from optuna.terminator import CrossValidationErrorEvaluator, report_cross_validation_scores

    Path(name).mkdir()
    store = FileSystemArtifactStore(str(Path(name).resolve()))
    file = Path(name, "model.txt").resolve()

    def objective(trial: Any) -> float:
        file.write_text("model")
        upload_artifact(artifact_store=store, file_path=str(file), study_or_trial=trial)
        trial.storage.set_trial_system_attr(trial._trial_id, "key", {"a": [1, 2.5]})
        scores: Any = np.array([0.1, 0.2, 0.3])
        report_cross_validation_scores(trial, scores)
        assert isinstance(trial, optuna_itself.trial.Trial)
        return float(trial.suggest_float("x", 0, 1))

    study = optuna.create_study(study_name=name)
    study.optimize(objective, n_trials=2)
    upload_artifact(artifact_store=store, file_path=str(file), study_or_trial=study)
    study.set_metric_names(["loss"])
    again = study if optuna is optuna_itself else optuna.load_study(study_name=name)
    found = [
        [meta.filename for meta in get_all_artifact_meta(one, storage=again._storage)]
        for one in (*again.trials, again)
    ]
    error = CrossValidationErrorEvaluator().evaluate(again.trials, again.direction)
    return found, again.metric_names, again.trials[1].system_attrs["key"], round(error, 6)


@body("stop in an objective, and a timeout: what runs goes on to its end")
def ended_early(optuna: Any, name: str) -> Any:
    def stopping(trial: Any) -> float:
        if trial.number == 1:
            trial.study.stop()
        return square(trial)

    def slow(trial: Any) -> float:
        time.sleep(1.0)
        return square(trial)

    study = optuna.create_study(study_name=name)
    study.optimize(stopping, n_trials=5)
    first = states(study)
    other = optuna.create_study(study_name=f"{name}-2")
    other.optimize(slow, timeout=0.5)
    study.optimize(square, n_trials=1)
    return first, states(other), len(other.trials)
