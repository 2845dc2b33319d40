"""Studies as scripts of Optuna's have them, each run by Optuna and by `regrow.optuna`, and compared.

Each function gets the module and a study's name that is new, and returns what has to be the same.
`python -m tests.optuna_bodies` runs them with real sessions, and prints a table;
`tests/unit/test_optuna_bodies.py` runs them in one process.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import logging
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import optuna

from regrow.tasks.errors import UserError

BODIES: dict[str, Callable[[Any, str], Any]] = {}
TOPICS: dict[str, str] = {}


def body(topic: str) -> Callable[[Callable[[Any, str], Any]], Callable[[Any, str], Any]]:
    """Registers a case under its function's name."""

    def register(function: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
        BODIES[function.__name__] = function
        TOPICS[function.__name__] = topic
        return function

    return register


def states(study: Any) -> dict[str, int]:
    """How many trials are in each state."""
    return dict(sorted(Counter(trial.state.name for trial in study.trials).items()))


def kinds(values: dict[str, Any]) -> dict[str, str]:
    """The types of values."""
    return {name: type(value).__name__ for name, value in sorted(values.items())}


def raised(function: Callable[[], Any]) -> str:
    """The class of Optuna's or Python's that is raised, and the message's last line."""
    try:
        function()
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - the outcome that is compared
        named = (cls for cls in type(error).__mro__ if cls.__module__.split(".")[0] != "regrow")
        return next(named).__name__
    return "nothing"


def square(trial: Any) -> float:
    return float(trial.suggest_float("x", -10, 10) ** 2)


# ---- parameters


@body("one float")
def quadratic(optuna: Any, name: str) -> Any:
    study = optuna.create_study(study_name=name)
    study.optimize(square, n_trials=4)
    best = min(study.trials, key=lambda trial: trial.value)
    assert study.best_trial.number == best.number
    assert study.best_value == study.best_params["x"] ** 2
    return states(study), kinds(study.best_params), study.direction.name


@body("all kinds of suggest_")
def all_kinds(optuna: Any, name: str) -> Any:
    def objective(trial: Any) -> float:
        trial.suggest_float("f", 0, 1)
        trial.suggest_float("log", 1e-5, 1e-1, log=True)
        assert trial.suggest_float("step", 0, 1, step=0.25) in (0, 0.25, 0.5, 0.75, 1)
        trial.suggest_int("i", 1, 3)
        assert trial.suggest_int("istep", 0, 100, step=25) % 25 == 0
        trial.suggest_int("ilog", 1, 1024, log=True)
        trial.suggest_categorical("c", ["a", "b"])
        assert trial.suggest_float("single", 2, 2) == 2
        return 1.0

    study = optuna.create_study(study_name=name)
    study.optimize(objective, n_trials=3)
    found = {key: repr(one) for key, one in sorted(study.trials[0].distributions.items())}
    return states(study), kinds(study.best_params), found


@body("a conditional space")
def conditional(optuna: Any, name: str) -> Any:
    def objective(trial: Any) -> float:
        if trial.suggest_categorical("kind", ["svc", "forest"]) == "svc":
            return float(trial.suggest_float("C", 1e-3, 1e3, log=True))
        return float(trial.suggest_int("depth", 1, 8))

    study = optuna.create_study(study_name=name)
    for kind in ("svc", "forest", "svc"):
        study.enqueue_trial({"kind": kind})
    study.optimize(objective, n_trials=3)
    return [sorted(trial.params) for trial in study.trials]


@body("parameters named in a loop")
def loops(optuna: Any, name: str) -> Any:
    def objective(trial: Any) -> float:
        layers = trial.suggest_int("layers", 1, 3)
        return float(sum(trial.suggest_int(f"units_{i}", 4, 64, log=True) for i in range(layers)))

    study = optuna.create_study(study_name=name)
    study.enqueue_trial({"layers": 3})
    study.enqueue_trial({"layers": 1})
    study.optimize(objective, n_trials=2)
    return [sorted(trial.params) for trial in study.trials]


@body("choices of mixed types")
def mixed_choices(optuna: Any, name: str) -> Any:
    choices = [None, True, 1.5, "a"]
    study = optuna.create_study(study_name=name)
    for choice in choices:
        study.enqueue_trial({"c": choice})
    study.optimize(lambda t: float(t.suggest_categorical("c", choices) is None), n_trials=4)
    return [(trial.params["c"], kinds(trial.params)) for trial in study.trials]


@body("choices that are tuples and lists")
def sequences_as_choices(optuna: Any, name: str) -> Any:
    def objective(trial: Any) -> float:
        sizes = trial.suggest_categorical("sizes", [(50, 50), (100,)])
        return float(sum(sizes) + len(trial.suggest_categorical("list", [[1, 2]])))

    study = optuna.create_study(study_name=name)
    study.enqueue_trial({"sizes": (100,)})
    study.optimize(objective, n_trials=2)
    return study.trials[0].params, kinds(study.best_params), study.trials[1].params["list"]


class Small:
    """A class that is a choice."""

    size = 1


@body("choices that are classes and functions")
def classes_as_choices(optuna: Any, name: str) -> Any:
    study = optuna.create_study(study_name=name)
    study.optimize(
        lambda t: (
            t.suggest_categorical("model", [Small]).size
            + t.suggest_categorical("f", [math.sqrt])(4)
        ),
        n_trials=2,
    )
    assert study.best_params["model"] is Small
    return study.best_value, study.best_params["f"](9)


@body("choices that are NumPy's numbers")
def numpy_choices(optuna: Any, name: str) -> Any:
    study = optuna.create_study(study_name=name)
    study.optimize(
        lambda t: float(t.suggest_categorical("batch", list(np.array([32, 64])))), n_trials=2
    )
    frame = study.trials_dataframe()
    return kinds(study.best_params), str(frame["params_batch"].dtype)


@body("the same name twice in a trial")
def twice(optuna: Any, name: str) -> Any:
    def objective(trial: Any) -> float:
        x = trial.suggest_float("x", 0, 1)
        with warnings.catch_warnings(record=True) as met:
            warnings.simplefilter("always")
            assert trial.suggest_float("x", 0, 2) == x
        trial.set_user_attr("warned", len(met))
        return float(x)

    study = optuna.create_study(study_name=name)
    study.optimize(objective, n_trials=2)
    return states(study), [trial.user_attrs for trial in study.trials]


@body("bounds that change, a kind that changes")
def dynamic(optuna: Any, name: str) -> Any:
    study = optuna.create_study(study_name=name)
    study.optimize(lambda t: t.suggest_int("n", 0, 5 + t.number), n_trials=3)
    highs = [trial.distributions["n"].high for trial in study.trials]
    error = raised(
        lambda: study.optimize(lambda t: t.suggest_categorical("n", ["a"]) == "a", n_trials=1)
    )
    return highs, error, states(study)


# ---- attributes


@body("attributes: numbers of NumPy, lists, NaN")
def attributes(optuna: Any, name: str) -> Any:
    def objective(trial: Any) -> float:
        scores = np.array([0.5, 1.0])
        trial.set_user_attr("mean", scores.mean())
        trial.set_user_attr("scores", scores.tolist())
        trial.set_user_attr("about", {"n": 3, "names": ["a", None]})
        trial.set_user_attr("nan", math.nan)
        trial.set_user_attr("mean", scores.max())
        assert trial.user_attrs["about"]["n"] == 3
        return float(scores.mean())

    study = optuna.create_study(study_name=name)
    study.optimize(objective, n_trials=2)
    found = dict(study.best_trial.user_attrs)
    assert math.isnan(found.pop("nan"))
    assert isinstance(found["mean"], float)
    return states(study), found | {"mean": float(found["mean"])}


@body("the best model kept as an attribute")
def model_as_attribute(optuna: Any, name: str) -> Any:
    def objective(trial: Any) -> float:
        from sklearn.linear_model import Ridge

        model = Ridge(alpha=trial.suggest_float("alpha", 1, 2)).fit([[0.0], [1.0]], [0.0, 1.0])
        trial.set_user_attr("model", model)
        trial.set_user_attr("array", np.arange(3))
        return float(model.score([[0.0], [1.0]], [0.0, 1.0]))

    study = optuna.create_study(study_name=name, direction="maximize")
    study.optimize(objective, n_trials=2)
    kept = study.best_trial.user_attrs
    return (
        type(kept["model"]).__name__,
        kept["model"].predict([[0.5]]).tolist(),
        kept["array"].sum(),
    )


@body("attributes of the study, names of its values")
def study_attributes(optuna: Any, name: str) -> Any:
    study = optuna.create_study(study_name=name, directions=["minimize", "maximize"])
    study.set_user_attr("data", {"rows": 10})
    study.set_metric_names(["loss", "score"])
    study.optimize(lambda t: (square(t), t.study.user_attrs["data"]["rows"]), n_trials=2)
    frame = study.trials_dataframe()
    return study.user_attrs, study.metric_names, sorted(c for c in frame if c.startswith("values"))


# ---- values and ends


@body("NaN, None, text and too many values")
def odd_values(optuna: Any, name: str) -> Any:
    study = optuna.create_study(study_name=name)
    given = [math.nan, None, "a", (1.0, 2.0), 3, np.float32(1.5), [2.0], True, 1 << 70]
    study.optimize(lambda t: given[t.number], n_trials=len(given))
    return [(trial.state.name, trial.value) for trial in study.trials]


@body("infinite values")
def infinite(optuna: Any, name: str) -> Any:
    study = optuna.create_study(study_name=name)
    given = [math.inf, 1.0, -math.inf]
    study.optimize(lambda t: given[t.number], n_trials=3)
    return [trial.value for trial in study.trials], study.best_trial.number


@body("catch= for some trials")
def caught(optuna: Any, name: str) -> Any:
    def objective(trial: Any) -> float:
        if trial.number % 2:
            raise KeyError("odd")
        return square(trial)

    study = optuna.create_study(study_name=name)
    study.optimize(objective, n_trials=5, catch=(KeyError,))
    return states(study), [sorted(trial.params) for trial in study.trials]


@body("catch= where every trial fails")
def all_caught(optuna: Any, name: str) -> Any:
    def objective(trial: Any) -> float:
        trial.suggest_float("x", 0, 1)
        raise ValueError("always")

    study = optuna.create_study(study_name=name)
    study.optimize(objective, n_trials=7, catch=(ValueError, KeyError))
    return states(study), raised(lambda: study.best_trial)


@body("an error that is not caught, and callbacks")
def uncaught(optuna: Any, name: str) -> Any:
    def objective(trial: Any) -> float:
        if trial.number == 2:
            raise FileNotFoundError("data.csv")
        return square(trial)

    def best(study: Any, trial: Any) -> None:
        seen.append((trial.number, study.best_value is None))

    seen: list[Any] = []
    study = optuna.create_study(study_name=name)
    error = raised(lambda: study.optimize(objective, n_trials=6, callbacks=[best]))
    return error, states(study), seen


@body("an error at once: no callback hides it")
def error_at_once(optuna: Any, name: str) -> Any:
    def objective(trial: Any) -> float:
        raise FileNotFoundError("data.csv")

    study = optuna.create_study(study_name=name)
    show = [lambda study, trial: print(study.best_value)]
    return raised(lambda: study.optimize(objective, n_trials=3, callbacks=show)), states(study)


class Odd(Exception):
    """A script's own class."""


@body("an exception class of one's own")
def own_exception(optuna: Any, name: str) -> Any:
    def objective(trial: Any) -> float:
        raise Odd(trial.number)

    study = optuna.create_study(study_name=name)
    study.optimize(objective, n_trials=2, catch=Odd)
    return states(study)


@body("timeout=")
def timeout(optuna: Any, name: str) -> Any:
    def objective(trial: Any) -> float:
        time.sleep(0.2)
        return square(trial)

    study = optuna.create_study(study_name=name)
    study.optimize(objective, timeout=1.0)
    done = states(study).get("COMPLETE", 0)
    study.optimize(objective, n_trials=2)
    return done >= 1, states(study).get("COMPLETE", 0) - done


@body("two calls of optimize")
def two_calls(optuna: Any, name: str) -> Any:
    study = optuna.create_study(study_name=name)
    study.optimize(square, n_trials=0)
    study.optimize(square, n_trials=2)
    first = len(study.trials)
    study.optimize(lambda t: t.suggest_int("y", 0, 3), n_trials=2)
    return first, [sorted(trial.params) for trial in study.trials]


@body("n_jobs=2")
def jobs(optuna: Any, name: str) -> Any:
    study = optuna.create_study(study_name=name)
    study.optimize(square, n_trials=4, n_jobs=2)
    return states(study), sorted(trial.number for trial in study.trials)


# ---- callbacks


@body("callbacks see each trial in order")
def callbacks(optuna: Any, name: str) -> Any:
    seen: list[Any] = []

    def callback(study: Any, trial: Any) -> None:
        best = study.best_trial
        seen.append((trial.number, trial.state.name, best.value <= trial.value, len(study.trials)))

    study = optuna.create_study(study_name=name)
    study.optimize(square, n_trials=4, callbacks=[callback])
    return seen, states(study)


@body("MaxTrialsCallback")
def most_trials(optuna: Any, name: str) -> Any:
    from optuna.study import MaxTrialsCallback
    from optuna.trial import TrialState

    study = optuna.create_study(study_name=name)
    most = MaxTrialsCallback(5, states=(TrialState.COMPLETE,))
    study.optimize(square, n_trials=20, callbacks=[most])
    return states(study)


@body("study.stop in a callback")
def stop_in_callback(optuna: Any, name: str) -> Any:
    def stop(study: Any, trial: Any) -> None:
        if trial.number == 2:
            study.stop()

    study = optuna.create_study(study_name=name)
    study.optimize(square, n_trials=20, callbacks=[stop])
    return states(study), raised(study.stop)


@body("trial.study in an objective")
def study_in_objective(optuna: Any, name: str) -> Any:
    def objective(trial: Any) -> float:
        study = trial.study
        trial.set_user_attr("seen", [study.study_name == name, study.direction.name])
        trial.set_user_attr("done", sum(one.state.is_finished() for one in study.trials))
        return square(trial)

    study = optuna.create_study(study_name=name, direction="maximize")
    study.optimize(objective, n_trials=3)
    return [trial.user_attrs for trial in study.trials]


@body("a callback that raises")
def failing_callback(optuna: Any, name: str) -> Any:
    def wrong(study: Any, trial: Any) -> None:
        raise ZeroDivisionError

    study = optuna.create_study(study_name=name)
    return raised(lambda: study.optimize(square, n_trials=3, callbacks=[wrong])), states(study)


# ---- pruning


def curve(optuna: Any, trial: Any, steps: range = range(4)) -> float:
    """A loss that is worse for each further trial."""
    for step in steps:
        trial.report(trial.number + 1 / (step + 1), step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return float(trial.number)


@body("pruning by the median")
def median(optuna: Any, name: str) -> Any:
    pruner = optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=1)
    study = optuna.create_study(study_name=name, pruner=pruner)
    study.optimize(lambda t: curve(optuna, t), n_trials=4)
    found = [(t.state.name, t.value, sorted(t.intermediate_values)) for t in study.trials]
    return found, study.best_trial.number


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


# ---- the comparison


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Within the block, nothing is printed, and warnings are not shown."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
    optuna.logging.set_verbosity(level)


def compared(name: str) -> tuple[str, str]:
    """Runs one with both: "alike", "refused" or "wrong", and what is said or differs."""
    import regrow.optuna as ours

    with quietly():
        theirs = BODIES[name](optuna, f"{name}-theirs")
        try:
            found = BODIES[name](ours, f"{name}-ours")
        except UserError as error:
            return "refused", str(error)
        except Exception as error:
            logging.getLogger(__name__).debug(name, exc_info=True)
            return "wrong", f"{type(error).__name__}: {error}"
    if repr(found) == repr(theirs):
        return "alike", ""
    return "wrong", f"{found!r}, not {theirs!r}"


def _alone(name: str) -> tuple[str, list[str], float]:
    """Runs one in a process of its own, as a script."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        done = subprocess.run(
            [sys.executable, __file__, "--one", name],
            cwd=folder,
            env={**os.environ, "REGROW_STATE": folder},
            text=True,
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    lines = done.stdout.strip().splitlines()
    told = json.loads(lines[-1]) if lines and not done.returncode else ["wrong", done.stderr[-200:]]
    return name, told, time.monotonic() - began


def main() -> int:
    """Prints a line for each, and how many there are of each outcome."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="part of a name")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--one", default="", help="a name, whose outcome is printed as JSON")
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(compared(chosen.one)))
        return 0
    names = [name for name in BODIES if chosen.only in name]
    counts: Counter[str] = Counter()
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for name, (outcome, told), seconds in pool.map(_alone, names):
            counts[outcome] += 1
            print(f"{TOPICS[name]:60} {outcome:8} {seconds:5.1f} s  {told[:200]!r}", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    return int(counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
