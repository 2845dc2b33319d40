"""Samplers with schedulers, by night each with each: killed at any event and resumed, an experiment
decides what it decides uninterrupted.
"""

from __future__ import annotations

from typing import Any

import pytest

from regrow.search import samplers, schedulers
from regrow.testing import FunctionObjective, Spec, availability, check_log, check_resumes, simulate

SPACE = {
    "x": {"uniform": [0.0, 1.0]},
    "lr": {"loguniform": [1e-4, 1.0]},
    "kind": {"choice": ["a", "b"]},
}
FINITE = {"x": {"grid": [0.1, 0.5, 0.9]}, "lr": {"choice": [0.01, 0.1]}}
SAMPLERS: dict[str, dict[str, Any]] = {
    "random": {},
    "qmc": {},
    "grid": {},
    "brute_force": {},
    "tpe": {"n_startup_trials": 2},
    "cmaes": {"popsize": 4},
    "bohb": {"min_points_in_model": 4},
    "nsga2": {"population_size": 2},
    "nsga3": {"population_size": 2},
    "gp": {"n_startup_trials": 4},
    "mobster": {"n_startup_trials": 3},
    "optuna": {"sampler": "optuna.samplers:TPESampler", "options": {"n_startup_trials": 2}},
}
SCHEDULERS: dict[str, dict[str, Any]] = {
    name: {} for name in {*schedulers.NAMES} - {"dehb", "pbt_replay"}
} | {
    "asha": {"reduction_factor": 2},
    "median": {"min_samples_required": 1},
    "percentile": {"min_samples_required": 1, "percentile": 50},
    "successive_halving": {"n": 4, "reduction_factor": 2},
    "hyperband": {"reduction_factor": 2},
    "async_hyperband": {"reduction_factor": 2},
    "pasha": {"reduction_factor": 2},
    "pbt": {"perturbation_interval": 1},
    "pb2": {"perturbation_interval": 1},
    "resource_changing": {"schedule": {"asha": {"reduction_factor": 2}}},
}
"""All that are registered; with options where the default ones would decide nothing in so small an
experiment.
"""
VARIANTS = [
    *sorted(SCHEDULERS.items()),
    ("asha", {"type": "promotion", "reduction_factor": 2}),
    ("async_hyperband", {"guard": True, "recheck": True, "reduction_factor": 2}),
]
BY_DAY = ("fifo", "asha", "pbt")
"""Schedulers that each sampler meets by day: trials that run to their end, are stopped, and are exchanged.
tpe meets each scheduler by day, the others the rest of them by night.
"""
PAIRS = [
    pytest.param(
        search,
        schedule,
        options,
        id=f"{search}-{schedule}{'-promotion' if 'type' in options else ''}{'-guard' if 'guard' in options else ''}",
        marks=[]
        if search == "tpe" or (schedule in BY_DAY and options == SCHEDULERS[schedule])
        else [pytest.mark.nightly],
    )
    for search in SAMPLERS
    for schedule, options in VARIANTS
    if (search != "gp" or schedule in ("fifo", "asha"))  # a proposal costs it 0.3 s
    # which explores what is continuous
    and (search not in ("grid", "brute_force") or schedule != "pb2")
]


def test_every_registered_sampler_is_here() -> None:
    """But for the one whose trials ask while they run, which test_crash_equivalence.py has."""
    assert {*SAMPLERS, "dehb", "define_by_run"} == set(samplers.NAMES)


@pytest.mark.parametrize(("search", "schedule", "options"), PAIRS)
def test_killed_at_every_event_it_decides_the_same(
    search: str, schedule: str, options: dict[str, Any]
) -> None:
    if search == "gp":
        # With one thread: several of them that wait for each other on a busy machine take minutes.
        pytest.importorskip(
            "torch", reason="PyTorch is not installed; `make test` installs it"
        ).set_num_threads(1)
    space = FINITE if search in ("grid", "brute_force") else SPACE
    smaller = {"trials": 5, "max_steps": 2} if search == "gp" else {}
    _check(search={search: SAMPLERS[search]}, schedule={schedule: options}, space=space, **smaller)


def test_dehb() -> None:
    _check(search={"dehb": {"eta": 2}}, schedule="dehb", trials=12)


def test_a_found_schedule_that_is_replayed() -> None:
    policy = [[1, {"lr": 0.1}], [3, {"x": 0.5, "lr": 0.01}]]
    _check(search="random", schedule={"pbt_replay": {"policy": policy}}, trials=1)


def _check(**changes: Any) -> None:
    spec = Spec.parse(
        {
            "name": "pair",
            "trainable": "a.py:b",
            "metric": "score",
            "mode": "max",
            "space": SPACE,
            "trials": 6,
            "max_steps": 4,
            **changes,
        }
    )
    objective = FunctionObjective(function=_score, spec=spec)
    check_resumes(spec, objective)
    comes_and_goes = availability([1, 1, 1, 0, 1, 1, 0, 1, 1], 2.5, 3)
    run = simulate(spec, objective, workers=3, availability=comes_and_goes)
    assert run.history.closed is not None
    assert all(trial.state.final for trial in run.history.trials)
    check_log(run.events)


def _score(config: dict[str, Any], step: int) -> float:
    return round(float(config["x"]) * (1 - 0.7**step) + float(config["lr"]) / (1 + step), 9)
