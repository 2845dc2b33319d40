"""TPE is Optuna's where Optuna's is right: its proposals, its densities and its split of the
trials, beside plain Optuna.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.samplers._tpe._truncnorm import _log_gauss_mass
from optuna.samplers._tpe.parzen_estimator import _ParzenEstimator, _ParzenEstimatorParameters
from optuna.samplers._tpe.sampler import _split_trials, default_weights

from regrow.search.mode import Mode
from regrow.search.samplers.base import Result, TrialStatus
from regrow.search.samplers.tpe_history import TpeHistory
from regrow.search.samplers.tpe_model import FastDensity, log_mass
from tests.unit.sampling import SPACE, loss, make, seed_of


class PlainOptuna:
    """A study as a user of Optuna writes it, over SPACE."""

    def __init__(self, mode: Mode, options: dict[str, Any]) -> None:
        self.options = options
        self.study = optuna.create_study(direction="minimize" if mode == "min" else "maximize")

    def ask(self, seed: int) -> dict[str, Any]:
        self.study.sampler = optuna.samplers.TPESampler(seed=seed, **self.options)
        trial = self.study.ask()
        config: dict[str, Any] = {"lr": trial.suggest_float("lr", 1e-5, 1e-1, log=True)}
        config["optimizer"] = trial.suggest_categorical("optimizer", ["sgd", "adam", "lamb"])
        if config["optimizer"] == "sgd":
            config["momentum"] = trial.suggest_float("momentum", 0.5, 0.99)
        config["layers"] = trial.suggest_int("layers", 1, 6)
        config["width"] = trial.suggest_int("width", 16, 512, step=16)
        config["units"] = trial.suggest_int("units", 16, 1024, log=True)
        config["drop"] = trial.suggest_float("drop", 0, 0.6, step=0.05)
        tail = 2.866515718791933e-07
        config["init"] = 1 + 2 * statistics.NormalDist().inv_cdf(
            trial.suggest_float("init", tail, 1 - tail)
        )
        shapes = {"one": [1], "two": [1, 2], "none": None}
        config["model.shape"] = shapes[trial.suggest_categorical("model.shape", list(shapes))]
        return config

    def tell(self, result: Result) -> None:
        trial_id = self.study.trials[result.number]._trial_id
        for step, value in result.intermediate:
            self.study._storage.set_trial_intermediate_value(trial_id, step, value)
        state = {"done": "COMPLETE", "stopped": "PRUNED", "failed": "FAIL"}[result.status]
        self.study.tell(
            result.number,
            result.value if state == "COMPLETE" else None,
            optuna.trial.TrialState[state],
        )


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Plain Optuna's own words, of the studies that the tests compare with."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield
    optuna.logging.set_verbosity(verbosity)


def run_beside_plain_optuna(mode: Mode, options: dict[str, Any], trials: int) -> None:
    """Runs both in step: every trial ends three proposals after its own, so two others run at each
    proposal."""
    plain, ours = (
        PlainOptuna(mode, options),
        make({"tpe": options | {"like_optuna": True}}, SPACE, mode),
    )
    pending: list[Result] = []
    for number in range(trials):
        proposal = ours.ask(number, seed_of(number))
        expected = plain.ask(seed_of(number) % 2**32)
        assert proposal is not None
        assert proposal.config.pop("model.act") == "relu"
        approximate = {
            name: pytest.approx(expected.pop(name), abs=1e-12) for name in ("drop", "init")
        }
        assert proposal.config == expected | approximate, f"trial {number}"
        config = proposal.config | {"model.act": "relu"}
        ours.tell(Result(number=number, config=config, state=proposal.state, status="running"))
        value = loss(config) * (1 if mode == "min" else -1)
        curve = [(step, value + 1 / step) for step in range(1, 1 + number % 5)]
        end: Any = ("done", "stopped", "done", "failed", "done", "stopped", "done")[number % 7]
        result = Result(
            number=number,
            config=config,
            state=proposal.state,
            status=end,
            value=value,
            intermediate=curve,
        )
        pending.append(result)
        if len(pending) > 2:
            ended = pending.pop(0)
            ours.tell(ended)
            plain.tell(ended)


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("min", {}),
        ("max", {}),
        ("max", {"multivariate": False}),
        ("min", {"multivariate": True, "group": True}),
        ("max", {"constant_liar": False, "n_startup_trials": 3}),
        ("min", {"n_startup_trials": 0, "n_ei_candidates": 5}),
    ],
    ids=str,
)
def test_tpe_proposes_what_plain_optuna_proposes(mode: Mode, options: dict[str, Any]) -> None:
    run_beside_plain_optuna(mode, options, trials=30)


@pytest.mark.parametrize("options", [{}, {"multivariate": False}, {"group": True}], ids=str)
def test_tpe_proposes_what_plain_optuna_proposes_above_the_exact_size(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The faster densities differ from Optuna's by rounding only, which the same proposals show."""
    monkeypatch.setattr("regrow.search.samplers.tpe_model.EXACT", -1)
    run_beside_plain_optuna("min", options, trials=30)


FLOATS = {
    "x": FloatDistribution(-1, 2),
    "y": FloatDistribution(1e-4, 1, log=True),
    "z": FloatDistribution(0, 1, step=0.01),
}

WHOLES = {
    "i": IntDistribution(1, 1000),
    "j": IntDistribution(1, 10**6, log=True),
    "k": IntDistribution(0, 90, step=3),
}


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 400), st.integers(0, 2**32 - 1))
def test_the_fast_density_is_optunas(count: int, seed: int) -> None:
    rng = np.random.RandomState(seed)
    space: dict[str, BaseDistribution] = {**FLOATS, **WHOLES}
    observed = {
        "x": rng.uniform(-1, 2, count),
        "y": 10 ** rng.uniform(-4, 0, count),
        "z": rng.randint(0, 101, count) * 0.01,
        "i": rng.randint(1, 1001, count).astype(float),
        "j": np.round(10 ** rng.uniform(0, 6, count)),
        "k": 3.0 * rng.randint(0, 31, count),
    }
    options = _ParzenEstimatorParameters(1.0, True, False, default_weights, True)
    theirs, ours = _ParzenEstimator(observed, space, options), FastDensity(observed, space, options)
    samples = theirs.sample(rng, 24)
    np.testing.assert_allclose(ours.log_pdf(samples), theirs.log_pdf(samples), rtol=1e-9, atol=1e-9)


def test_the_fast_density_is_zero_outside_of_the_domain() -> None:
    options = _ParzenEstimatorParameters(1.0, True, False, default_weights, True)
    space: dict[str, BaseDistribution] = {"x": FLOATS["x"]}
    density = FastDensity({"x": np.array([0.0, 0.5, 1.0])}, space, options)
    assert np.isneginf(density.log_pdf({"x": np.array([-1.001, 0.0, 2.001])})).tolist() == [
        True,
        False,
        True,
    ]


def test_the_mass_in_both_tails_is_precise() -> None:
    a, b = np.array([3.0, 8.0, 37.0, -0.1]), np.array([3.1, 9.0, 38.0, 0.1])
    np.testing.assert_allclose(log_mass(a, b), log_mass(-b, -a), rtol=1e-12)
    np.testing.assert_allclose(log_mass(a, b), _log_gauss_mass(a, b), rtol=1e-9)


ends = st.tuples(
    st.sampled_from(["done", "done", "stopped", "stopped", "running", "failed"]),
    st.sampled_from([-1.0, 0.0, 0.5, 2.0, math.inf, math.nan]),
    st.lists(st.sampled_from([-1.0, 0.0, 0.5, math.nan]), max_size=3),
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(ends, min_size=10, max_size=16) | st.lists(ends, max_size=3),
    st.integers(0, 6),
    st.sampled_from(["min", "max"]),
    st.booleans(),
)
def test_the_good_trials_are_those_that_optuna_calls_so(
    told_ends: list[tuple[TrialStatus, float, list[float]]], n_below: int, mode: Mode, liar: bool
) -> None:
    """Against Optuna's own split, with ties, infinities, curves of any length and none."""
    study = optuna.create_study(direction="minimize" if mode == "min" else "maximize")
    ours, theirs = TpeHistory({"x": float}, mode), []
    states = {"running": "RUNNING", "done": "COMPLETE", "stopped": "PRUNED"}
    for number, (status, value, curve) in enumerate(told_ends):
        steps = dict(enumerate(curve, start=1))
        result = Result(
            number=number,
            config={"x": 0.5},
            status=status,
            value=value,
            intermediate=list(steps.items()),
        )
        ours.tell(result, {})
        if (
            status == "failed"
            or (status == "done" and math.isnan(value))
            or (status == "running" and not liar)
        ):
            continue
        final = {"value": value} if status == "done" else {}
        state = optuna.trial.TrialState[states[status]]
        trial = optuna.trial.create_trial(state=state, intermediate_values=steps, **final)  # type: ignore[arg-type]  # a float
        trial.number = number
        theirs.append(trial)
    below, above = ours.split(n_below, liar=liar, number=99)
    expected = _split_trials(study, theirs, n_below)
    assert ([*below], [*above]) == tuple([t.number for t in part] for part in expected)
