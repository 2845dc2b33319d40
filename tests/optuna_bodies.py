"""Studies for `compared.py`: parameters, attributes, values, callbacks."""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter
from typing import Any

import numpy as np

from tests.compared_cases import OPTUNA

body, raised = OPTUNA.body, OPTUNA.raised


def states(study: Any) -> dict[str, int]:
    """How many trials are in each state."""
    return dict(sorted(Counter(trial.state.name for trial in study.trials).items()))


def kinds(values: dict[str, Any]) -> dict[str, str]:
    """The types of values."""
    return {name: type(value).__name__ for name, value in sorted(values.items())}


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
    kept, other = study.best_trial.user_attrs, study.trials[0].user_attrs
    return (
        type(other.pop("array")).__name__,
        sorted(other.copy() | {"more": 1}),
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


@body("a custom exception class")
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
