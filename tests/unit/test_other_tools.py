"""What somebody writes who comes from another tool, or half remembers ours: the answer has their
own names and numbers in it.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import regrow as rg
from regrow import Experiment, SpecError
from regrow.search.space import Space
from regrow.search.spec import Spec
from tests.unit.refusing import SPEC


def said(**changes: Any) -> str:
    """What is said of a specification with changes; a value of ... leaves the key out."""
    with pytest.raises(SpecError) as caught:
        Spec.parse({key: value for key, value in {**SPEC, **changes}.items() if value is not ...})
    return str(caught.value)


# ---- domains


@pytest.mark.parametrize(
    ("lr", "right"),
    [
        # W&B sweeps
        ({"min": 0.0, "max": 0.1}, "{uniform: [0.0, 0.1]}"),
        ({"min": 1, "max": 8}, "{int: [1, 8]}"),
        ({"max": 8, "min": 1}, "{int: [1, 8]}"),
        ({"values": [16, 32]}, "{choice: [16, 32]}"),
        ({"value": 3}, "3"),
        ({"value": "sgd"}, "sgd"),
        ({"distribution": "uniform", "min": 0, "max": 1}, "{uniform: [0, 1]}"),
        (
            {"distribution": "log_uniform_values", "min": 1e-4, "max": 0.1},
            "{loguniform: [0.0001, 0.1]}",
        ),
        ({"distribution": "log_uniform", "min": -9.21, "max": -2.3}, "{loguniform: [0.0001, 0.1]}"),
        ({"distribution": "int_uniform", "min": 1, "max": 4}, "{int: [1, 4]}"),
        ({"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.25}, "{quniform: [0, 1, 0.25]}"),
        ({"distribution": "normal", "mu": 0, "sigma": 2}, "{normal: [0, 2]}"),
        ({"distribution": "categorical", "values": ["a", "b"]}, "{choice: [a, b]}"),
        ({"distribution": "constant", "value": 2}, "2"),
        # Ray Tune and Optuna as data, Determined, NNI, Ax, Katib
        ({"low": 0, "high": 1.0}, "{uniform: [0, 1.0]}"),
        ({"lower": 1e-4, "upper": 0.1, "log": True}, "{loguniform: [0.0001, 0.1]}"),
        ({"type": "loguniform", "lower": 1e-4, "upper": 0.1}, "{loguniform: [0.0001, 0.1]}"),
        ({"type": "float", "low": 0.1, "high": 1, "log": True}, "{loguniform: [0.1, 1]}"),
        ({"type": "int", "low": 1, "high": 9, "step": 2}, "{int: [1, 9], step: 2}"),
        ({"type": "randint", "lower": 1, "upper": 9}, "{int: [1, 8]}"),
        ({"type": "categorical", "choices": [1, 2]}, "{choice: [1, 2]}"),
        ({"type": "double", "minval": 0.1, "maxval": 0.9}, "{uniform: [0.1, 0.9]}"),
        ({"type": "log", "minval": -4, "maxval": -1, "base": 10}, "{loguniform: [0.0001, 0.1]}"),
        ({"_type": "choice", "_value": [1, 2]}, "{choice: [1, 2]}"),
        ({"_type": "uniform", "_value": [0, 1]}, "{uniform: [0, 1]}"),
        ({"type": "range", "bounds": [0.1, 1.0], "log_scale": True}, "{loguniform: [0.1, 1.0]}"),
        ({"min": "0.01", "max": "0.03"}, "{uniform: [0.01, 0.03]}"),
        # a domain's name, and a map instead of a list
        ({"uniform": {"min": 0, "max": 1}}, "{uniform: [0, 1]}"),
        ({"loguniform": {"min": 0.1, "max": 1}}, "{loguniform: [0.1, 1]}"),
        ({"log_uniform": {"low": 0.1, "high": 1}}, "{loguniform: [0.1, 1]}"),
        ({"unifrom": {"min": 0, "max": 1}}, "{uniform: [0, 1]}"),
        ({"categorical": {"choices": ["a", "b"]}}, "{choice: [a, b]}"),
        # calls, as text
        ("tune.loguniform(1e-4, 1e-1)", "{loguniform: [0.0001, 0.1]}"),
        ("tune.uniform(low=0, high=1)", "{uniform: [0, 1]}"),
        ("tune.randint(1, 9)", "{int: [1, 8]}"),
        ("tune.grid_search([16, 32])", "{grid: [16, 32]}"),
        ("trial.suggest_float('lr', 1e-4, 1e-1, log=True)", "{loguniform: [0.0001, 0.1]}"),
        ("suggest_categorical('o', ['a', 'b'])", "{choice: [a, b]}"),
        ("interval(0, 1)", "{uniform: [0, 1]}"),
        ("tag(log, interval(0.1, 1))", "{loguniform: [0.1, 1]}"),
        ("choice(adam, sgd)", "{choice: [adam, sgd]}"),
    ],
)
@pytest.mark.parametrize("deep", [False, True])
def test_a_range_in_other_words_is_answered_with_the_domain_and_its_numbers(
    lr: Any, right: str, deep: bool
) -> None:
    message = said(
        space={"other": {"uniform": [0, 1]}, **({"net": {"lr": lr}} if deep else {"lr": lr})}
    )
    assert message.startswith("space.net.lr" if deep else "space.lr")
    assert f"write lr: {right}" in message, message


def test_the_message_says_what_it_would_have_been_and_how_that_is_written() -> None:
    assert said(space={"lr": {"min": 0.0, "max": 0.1}}) == (
        'space.lr: {"min": 0.0, "max": 0.1}: searches nothing: it would be two constants, lr.min and lr.max; '
        "write lr: {uniform: [0.0, 0.1]}, or lr: {constant: {min: 0.0, max: 0.1}} if constants are meant"
    )
    assert said(space={"lr": {"value": 3}}) == (
        'space.lr: {"value": 3}: searches nothing: it would be the constant lr.value; '
        "write lr: 3, or lr: {constant: {value: 3}} if constants are meant"
    )


@pytest.mark.parametrize(
    ("lr", "message"),
    [
        ({"unifrom": [0, 1]}, "did you mean {uniform: [0, 1]}?"),
        ({"log_uniform": [0.1, 1]}, "did you mean {loguniform: [0.1, 1]}?"),
        ({"randint": [1, 5]}, "did you mean {int: [1, 4]}?"),
        ({"categorical": ["a", "b"]}, "did you mean {choice: [a, b]}?"),
        ({"grid_search": [1, 2]}, "did you mean {grid: [1, 2]}?"),
        ({"suggest_float": [0, 1]}, "did you mean {uniform: [0, 1]}?"),
        ({"zzz": [0, 1]}, "known: uniform, "),
    ],
)
def test_a_misspelt_domain_is_answered_with_the_one_that_was_meant(lr: Any, message: str) -> None:
    assert message in said(space={"lr": lr})


@pytest.mark.parametrize(
    "group",
    [
        {"min": {"uniform": [0, 1]}, "max": 1},  # a group with a real domain
        {"min": {"constant": 0}, "max": {"constant": 1}},  # constants, said so
        {"min": 0, "max": 10, "name": "clip"},
        {"type": "adam", "min": 0, "max": 1},
        {"type": "relu"},
        {"mean": 0, "std": 1},
        {"low": 0},
        {"step": 3},
        {"log": True},
        {"value": {"uniform": [0, 1]}},
        {"min": "never", "max": "always"},
        "relu()",
        "conv(3, 3)",
        "f(x)",
        "a (b)",
    ],
)
def test_a_group_that_is_no_range_is_taken_as_it_is_and_again_from_its_written_form(
    group: Any,
) -> None:
    space = Space.parse({"x": {"uniform": [0, 1]}, "g": group})
    assert Space.parse(space.to_json()) == space


@pytest.mark.parametrize(
    "value", [{"min": 0.0, "max": 0.1}, {"type": "normal", "mean": 0, "std": 1}, "choice(a, b)"]
)
def test_what_a_constant_says_is_never_a_range(value: Any) -> None:
    space = Space.parse({"g": {"constant": value}})
    assert Space.parse(space.to_json()) == space
    assert space.flat[0].domain.cell(0) == value


def test_a_log_from_before_is_read_as_it_was_meant_then() -> None:
    old = Spec.recorded({**SPEC, "space": {"lr": {"min": 0.0, "max": 0.1}}})
    assert [p.name for p in old.space.flat] == ["lr.min", "lr.max"]
    assert Spec.recorded(old.to_json()) == old


# ---- a space that searches nothing


def test_a_space_of_constants_is_refused() -> None:
    assert said(space={"lr": 0.1}) == (
        'space: {"lr": 0.1}: searches nothing: all 3 trials would be the same; '
        "give a range, lr: {uniform: [0, 1]}; or write trials: 1, or repeats: 3 for as many seeds"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"trials": 1},
        {"repeats": 3},
        {"points": [{"lr": 0.1}]},
        {"search": "grid", "trials": ...},
        {"search": "own:Sampler"},
    ],
)
def test_unless_one_trial_is_meant_or_each_has_its_seed(changes: dict[str, Any]) -> None:
    Spec.parse(
        {
            key: value
            for key, value in {**SPEC, "space": {"lr": 0.1}, **changes}.items()
            if value is not ...
        }
    )


# ---- keys and names


@pytest.mark.parametrize(
    ("key", "value", "right"),
    [
        ("program", "train.py", "`trainable: train.py:FUNCTION`"),
        ("method", "bayes", "`search: tpe`"),
        ("method", "grid", "`search: grid`"),
        (
            "parameters",
            {"lr": {"min": 0.0, "max": 0.1}, "n": {"value": 2}},
            "`space: {lr: {uniform: [0.0, 0.1]}, n: 2}`",
        ),
        (
            "parameters",
            {"o": {"parameters": {"lr": {"values": [1, 2]}}}},
            "`space: {o: {lr: {choice: [1, 2]}}}`",
        ),
        (
            "early_terminate",
            {"type": "hyperband", "min_iter": 3, "max_iter": 27},
            "`schedule: {asha: {grace_period: 3, reduction_factor: 3}}` and `max_steps: 27`",
        ),
        ("project", "mnist", "`mlflow: {experiment: mnist}`"),
        ("run_cap", 40, "`trials: 40`"),
        ("goal", "minimize", "`mode: min`"),
        ("num_samples", 40, "`trials: 40`"),
        ("param_space", {"lr": "tune.uniform(0, 1)"}, "`space: {lr: {uniform: [0, 1]}}`"),
        (
            "tune_config",
            {"num_samples": 8, "metric": "acc"},
            "no key; at the top: `trials: 8`, `metric: acc`",
        ),
        ("max_concurrent_trials", 4, "`concurrency: 4`"),
        ("time_budget_s", 7200, "`stop: {hours: 2}`"),
        ("run_config", {"name": "a"}, "no key; at the top: `name: a`"),
        ("resources_per_trial", {"CPU": 2, "gpu": 1}, "`resources: {cpu: 2, gpu: 1}`"),
        ("scheduler", "AsyncHyperBandScheduler", "`schedule: async_hyperband`"),
        ("n_trials", 100, "`trials: 100`"),
        ("direction", "maximize", "`mode: max`"),
        ("sampler", "TPESampler", "`search: tpe`"),
        ("pruner", "optuna.pruners.MedianPruner()", "`schedule: median`"),
        ("n_jobs", 4, "`concurrency: 4`"),
        ("n_jobs", -1, "`concurrency:`; without it, as many as fit"),
        ("timeout", 600, "`stop: {hours: 0.1667}`"),
        ("storage", "sqlite:///a.db", "`state:`, a folder or a bucket"),
        ("study_name", "digits", "`name: digits`"),
        ("defaults", ["_self_"], "nothing: one file is the whole specification"),
        (
            "hydra",
            {"sweeper": {"n_trials": 20, "params": {"lr": "interval(0, 1)"}}},
            "no key; at the top: `trials: 20`, `space: {lr: {uniform: [0, 1]}}`",
        ),
        ("sweeper", {"direction": "minimize"}, "no key; at the top: `mode: min`"),
        (
            "searcher",
            {
                "name": "adaptive_asha",
                "metric": "loss",
                "smaller_is_better": True,
                "max_length": {"batches": 100},
            },
            "`schedule: asha`, `metric: loss`, `mode: min`, `max_steps: 100`",
        ),
        ("searcher", "bayesopt", "`search: tpe`"),
        (
            "hyperparameters",
            {"lr": {"type": "log", "minval": -3, "maxval": -1, "base": 10}},
            "`space: {lr: {loguniform: [0.001, 0.1]}}`",
        ),
        ("entrypoint", "model_def:Trial", '`trainable: "model_def:Trial"`'),
        ("max_length", {"epochs": 9}, "`max_steps: 9`"),
        ("epochs", 9, "`max_steps: 9`"),
    ],
)
def test_a_key_of_another_tool_is_answered_with_ours_and_the_users_value(
    key: str, value: Any, right: str
) -> None:
    message = said(**{key: value})
    assert message.startswith(f"{key}: ")
    assert f"here it is {right}" in message, message


def test_a_whole_file_of_another_tool_is_answered_in_one_message() -> None:
    wandb = {
        "program": "train.py",
        "method": "bayes",
        "metric": {"name": "val_loss", "goal": "minimize"},
        "parameters": {
            "lr": {"distribution": "log_uniform_values", "min": 1e-4, "max": 0.1},
            "hidden": {"values": [32, 64]},
        },
    }
    with pytest.raises(SpecError) as caught:
        Spec.parse(wandb)
    assert str(caught.value) == (
        'program: "train.py": is a key of W&B sweeps; here it is `trainable: train.py:FUNCTION`; `method`: `search: tpe`; '
        "`parameters`: `space: {lr: {loguniform: [0.0001, 0.1]}, hidden: {choice: [32, 64]}}`; "
        "`metric`: `metric: val_loss` and `mode: min`; "
        "the documentation has both side by side, under Coming from W&B sweeps"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"search": "bayes"},
            'search: "bayes": is not known; here it is tpe, or one of: auto, random, grid, tpe, ',
        ),
        ({"search": "TPE"}, "did you mean 'tpe'?"),
        ({"search": "TPESampler"}, "here it is tpe"),
        ({"search": {"CmaEsSampler": {}}}, "here it is cmaes"),
        (
            {"search": {"name": "tpe", "n_startup_trials": 5}},
            "write search: {tpe: {n_startup_trials: 5}}",
        ),
        ({"schedule": "hyperbnad"}, "did you mean 'hyperband'?"),
        ({"schedule": "MedianStoppingRule"}, "here it is median"),
        (
            {"schedule": {"type": "asha", "grace_period": 1}},
            "write schedule: {asha: {grace_period: 1}}",
        ),
        ({"schedule": {"type": "HyperBandScheduler"}}, "write schedule: hyperband"),
        ({"metric": {"name": "loss", "goal": "minimize"}}, "write `metric: loss` and `mode: min`"),
        ({"mode": "minimize"}, "did you mean 'min'?"),
        ({"mode": "maximise"}, "did you mean 'max'?"),
    ],
)
def test_a_name_of_another_tool_is_answered_with_ours(
    changes: dict[str, Any], message: str
) -> None:
    assert message in said(**changes)


def test_parameters_that_are_not_indented_below_space_are_told_as_such() -> None:
    assert said(space=None, lr={"uniform": [0, 1]}, hidden=64) == (
        "space: null: is empty: lr, hidden stand beside it instead of below; indent what belongs to it by two spaces"
    )


# ---- numpy


def test_numpys_scalars_are_taken_and_kept_as_pythons_numbers() -> None:
    untyped: Any = np  # whose scalars are no int and no float to a type checker
    experiment = Experiment(
        lambda trial: None,
        name="n",
        metric="a",
        mode="max",
        trials=untyped.int64(4),
        max_steps=untyped.int32(2),
        seed=untyped.uint8(1),
        stop={"target": untyped.float32(0.5)},
        search={"tpe": {"n_startup_trials": untyped.int64(3)}},
        working_dir="/",
        points=[
            {
                "width": untyped.int64(32),
                "lr": untyped.float64(0.5),
                "kind": untyped.str_("a"),
                "on": untyped.bool_(True),
                "n": untyped.int16(2),
            }
        ],
        space={
            "width": rg.choice([untyped.int64(16), untyped.int64(32)]),
            "lr": rg.uniform(untyped.float32(0), untyped.float64(1)),
            "kind": {"choice": [untyped.str_("a"), untyped.str_("b")]},
            "on": rg.choice([untyped.bool_(True), untyped.bool_(False)]),
            "n": rg.randint(untyped.int64(1), untyped.int32(4)),
            "fixed": untyped.float32(0.25),
            "shape": {"constant": untyped.arange(2)},
            "more": {
                "when": {"kind": untyped.str_("b")},
                "at": rg.choice(untyped.linspace(0, 1, 3)),
            },
        },
    )
    plain = {
        "name": "n",
        "trainable": "pickled",
        "metric": "a",
        "mode": "max",
        "trials": 4,
        "max_steps": 2,
        "seed": 1,
        "stop": {"target": 0.5},
        "search": {"tpe": {"n_startup_trials": 3}},
        "working_dir": "/",
        "points": [{"width": 32, "lr": 0.5, "kind": "a", "on": True, "n": 2}],
        "space": {
            "width": {"choice": [16, 32]},
            "lr": {"uniform": [0, 1]},
            "kind": {"choice": ["a", "b"]},
            "on": {"choice": [True, False]},
            "n": {"int": [1, 4]},
            "fixed": 0.25,
            "shape": {"constant": [0, 1]},
            "more": {"when": {"kind": "b"}, "at": {"choice": [0.0, 0.5, 1.0]}},
        },
    }
    assert json.dumps(experiment.spec.to_json()) == json.dumps(Spec.parse(plain).to_json())
    assert type(experiment.spec.trials) is int
