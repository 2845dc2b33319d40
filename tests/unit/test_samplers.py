"""What every sampler keeps to, what each one proposes, and that TPE's proposals are those of plain Optuna."""

from __future__ import annotations

import json
import math
import random
import statistics
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
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

from regrow.search import samplers
from regrow.search.errors import SpecError
from regrow.search.samplers import Result, Sampler
from regrow.search.samplers.base import Status
from regrow.search.samplers.tpe_axes import axis
from regrow.search.samplers.tpe_budget import BudgetHistory
from regrow.search.samplers.tpe_density import FastDensity, log_mass
from regrow.search.samplers.tpe_history import TpeHistory
from regrow.search.setting import Setting
from regrow.search.space import Mode, Space, quniform


def make(search: object, space: Space, mode: Mode) -> Sampler:
    """A sampler for one metric."""
    return samplers.make(search, Setting(space=space, modes=(mode,)))


def size(search: object, space: Space) -> int | None:
    """How many trials it has to offer."""
    return samplers.size(search, Setting(space=space, modes=("min",)))


SPACE = Space.parse(
    {
        "lr": {"loguniform": [1e-5, 1e-1]},
        "momentum": {"uniform": [0.5, 0.99], "when": {"optimizer": "sgd"}},
        "optimizer": {"choice": ["sgd", "adam", "lamb"]},
        "layers": {"int": [1, 6]},
        "width": {"int": [16, 512], "step": 16},
        "units": {"logint": [16, 1024]},
        "drop": {"quniform": [0, 0.6, 0.05]},
        "init": {"normal": [1, 2]},
        "model": {"act": "relu", "shape": {"choice": [[1], [1, 2], None]}},
    }
)


def seed_of(number: int) -> int:
    return 1_000_003 * number + 17


def loss(config: dict[str, Any]) -> float:
    """Some function that depends on every parameter."""
    return float(
        abs(math.log10(config["lr"]) + 3)
        + {"sgd": 0.0, "adam": 0.5, "lamb": 1.0}[config["optimizer"]]
        + abs(config.get("momentum", 0.7) - 0.9)
        + abs(config["layers"] - 3) / 3
        + config["width"] / 512
        + config["units"] / 1024
        + config["drop"]
        + abs(config["init"])
    )


def history(count: int, space: Space = SPACE) -> list[Result]:
    """Random trials of every kind of end, two in seven done; number 5 mod 7 is still running."""
    sampler, results = make("random", space, "min"), []
    for number in range(count):
        proposal = sampler.ask(number, seed_of(number))
        assert proposal is not None
        curve = [(step, loss(proposal.config) + 1 / step) for step in range(1, 2 + number % 5)]
        common: dict[str, Any] = {"number": number, "config": proposal.config, "state": proposal.state}
        if number % 7 == 5:
            results.append(Result(**common, status="running"))
        elif number % 7 == 4:
            results.append(Result(**common, status="failed"))
        elif number % 7 in (1, 3):
            results.append(Result(**common, status="stopped", value=curve[-1][1], intermediate=curve[: number % 4]))
        else:
            results.append(Result(**common, status="done", value=loss(proposal.config), intermediate=curve))
    return results


def told(search: object, results: list[Result], mode: Mode = "min", space: Space = SPACE) -> Sampler:
    sampler = make(search, space, mode)
    for result in results:
        sampler.tell(result)
    return sampler


ALL = ["random", "tpe", {"tpe": {"like_optuna": True}}, {"tpe": {"multivariate": False}}, {"tpe": {"group": True}}]


# ---- every sampler
# -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("search", ALL, ids=str)
def test_a_proposal_is_valid_and_json_and_has_the_active_parameters(search: object) -> None:
    samplers = [told(search, history(5)), told(search, history(30))]
    domains = {p.name: p.domain for p in SPACE.flat}
    seen = set()
    for number in range(30, 60):
        proposal = samplers[number % 2].ask(number, seed_of(number))
        assert proposal is not None
        assert tuple(proposal.config) == SPACE.active(proposal.config)
        assert all(domains[name].contains(value) for name, value in proposal.config.items())
        assert json.loads(json.dumps([proposal.config, proposal.state])) == [proposal.config, proposal.state]
        seen.add(proposal.config["optimizer"] == "sgd")
    assert seen == {True, False}


@pytest.mark.parametrize("search", ALL, ids=str)
def test_a_proposal_depends_on_results_and_seed_alone(search: object) -> None:
    results = history(40)
    expected = told(search, results).ask(40, 7)
    shuffled = results * 2 + [replace(r, status="running") for r in results]  # telling it again adds nothing
    random.Random(3).shuffle(shuffled)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002  # that this generator plays no part is the point
    sampler = told(search, shuffled)
    sampler.ask(99, 1)
    assert sampler.ask(40, 7) == expected
    assert sampler.ask(40, 8) != expected


@pytest.mark.parametrize("search", ALL, ids=str)
def test_results_may_arrive_between_proposals(search: object) -> None:
    results = history(40)
    sampler = make(search, SPACE, "max")
    for result in results:
        sampler.ask(result.number, seed_of(result.number))
        sampler.tell(Result(number=result.number, config=result.config, state=result.state, status="running"))
        sampler.tell(result)
    assert sampler.ask(40, 7) == told(search, results, "max").ask(40, 7)


@pytest.mark.parametrize("search", ["random", "tpe"])
def test_a_grid_parameter_takes_its_cells_in_turn(search: object) -> None:
    grids = {"fold": {"grid": [0, 1, 2]}, "lr": {"uniform": [0, 1]}, "big": {"grid": [False, True]}}
    sampler = make(search, Space.parse(grids), "min")
    proposals = [sampler.ask(number, seed_of(number)) for number in range(12)]
    cells = [(p.config["fold"], p.config["big"]) for p in proposals if p]
    assert cells == [(0, False), (0, True), (1, False), (1, True), (2, False), (2, True)] * 2
    assert len({p.config["lr"] for p in proposals if p}) == 12


def test_a_grid_below_a_sampled_choice_is_there_where_it_is_active() -> None:
    written = {"opt": {"choice": ["a", "b"]}, "m": {"grid": [1, 2]} | {"when": {"opt": "a"}}}
    sampler = make("random", Space.parse(written), "min")
    configs = [p.config for n in range(40) if (p := sampler.ask(n, seed_of(n)))]
    assert {(c["opt"], c.get("m")) for c in configs} == {("a", 1), ("a", 2), ("b", None)}


def test_an_empty_space_proposes_empty_configurations() -> None:
    for search in ("random", "tpe", "grid"):
        proposal = make(search, Space.parse({}), "min").ask(0, 0)
        assert proposal is not None
        assert proposal.config == {}


# ---- the registry
# --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("search", "key", "says"),
    [
        ("tpee", "search", "did you mean 'tpe'?"),
        ({"tpe": {"multivariat": True}}, "search.tpe.multivariat", "did you mean 'multivariate'?"),
        ({"tpe": {"n_startup_trials": "10"}}, "search.tpe.n_startup_trials", "not a whole number"),
        ({"tpe": {"n_startup_trials": -1}}, "search.tpe.n_startup_trials", "below 0"),
        ({"tpe": {"n_ei_candidates": 0}}, "search.tpe.n_ei_candidates", "below 1"),
        ({"tpe": {"random_fraction": 1.5}}, "search.tpe.random_fraction", "not a fraction"),
        ({"tpe": {"multivariate": 1}}, "search.tpe.multivariate", "not a bool"),
        ({"tpe": {"group": True, "multivariate": False}}, "search.tpe.group", "needs multivariate"),
        ({"random": {"x": 1}}, "search.random.x", "no options"),
        ({"tpe": {}, "random": {}}, "search", "NAME"),
        ("grid", "space.lr", "use grid: [...]"),
    ],
)
def test_what_is_not_known_is_refused_with_a_hint(search: object, key: str, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        make(search, SPACE, "min")
    assert caught.value.key == key
    assert says in str(caught.value)


def test_making_a_sampler_loads_neither_optuna_nor_numpy() -> None:
    code = """
import sys
from regrow.search.samplers import make
from regrow.search.setting import Setting
from regrow.search.space import Space
sampler = make("tpe", Setting(space=Space.parse({"a": {"uniform": [0, 1]}}), modes=("min",)))
assert not {"optuna", "numpy", "scipy"} & set(sys.modules), "too early"
sampler.ask(0, 0)
assert "optuna" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# ---- random
# --------------------------------------------------------------------------------------------------


def test_random_proposals_never_change() -> None:
    """They are recomputed from logs that another version of Python wrote: these are the values of the
    first."""
    space = Space.parse({"a": {"uniform": [0, 1]}, "b": {"int": [1, 100]}, "c": {"choice": ["x", "y", "z"]}})
    proposals = [make("random", space, "min").ask(n, n) for n in range(3)]
    assert [p.config for p in proposals if p] == [
        {"a": 0.7417194198289921, "b": 39, "c": "x"},
        {"a": 0.5825904866870052, "b": 76, "c": "z"},
        {"a": 0.1414748646098044, "b": 40, "c": "z"},
    ]


def test_a_parameter_draws_the_same_whatever_the_others_do() -> None:
    one = make("random", Space.parse({"a": {"uniform": [0, 1]}}), "min").ask(0, 5)
    two = make("random", Space.parse({"z": {"int": [1, 9]}, "a": {"uniform": [0, 1]}}), "max").ask(0, 5)
    assert one is not None
    assert two is not None
    assert one.config["a"] == two.config["a"]


def test_random_draws_follow_the_prior() -> None:
    sampler = make("random", SPACE, "min")
    configs = [p.config for n in range(4000) if (p := sampler.ask(n, seed_of(n)))]
    quarter = [sum(c["lr"] < 1e-4 for c in configs), sum(c["units"] < 32 for c in configs) * 1.5]
    assert all(abs(count / 4000 - 0.25) < 0.03 for count in quarter)
    assert abs(np.mean([c["init"] for c in configs]) - 1) < 0.1
    assert abs(np.std([c["init"] for c in configs]) - 2) < 0.1
    assert {c["layers"] for c in configs} == {1, 2, 3, 4, 5, 6}
    assert abs(sum(c["layers"] == 6 for c in configs) / 4000 - 1 / 6) < 0.03


# ---- grid
# ----------------------------------------------------------------------------------------------------


def cells(written: dict[str, Any]) -> list[dict[str, Any]]:
    space = Space.parse(written)
    sampler = make("grid", space, "min")
    taken: list[dict[str, Any]] = []
    while (proposal := sampler.ask(len(taken), 0)) is not None:
        taken.append(proposal.config)
    assert size("grid", space) == len(taken)
    return taken


def test_the_first_parameter_of_a_grid_is_the_slowest() -> None:
    written = {
        "a": {"grid": [2, 1]},
        "b": "x",
        "c": {"int": [0, 4], "step": 2},
        "d": {"quniform": [0, 0.2, 0.2]},
    }
    assert cells(written) == [{"a": a, "b": "x", "c": c, "d": d} for a in (2, 1) for c in (0, 2, 4) for d in (0.0, 0.2)]


def test_a_grid_has_a_conditional_parameter_only_where_it_is_active() -> None:
    written = {
        "m": {"choice": [0.5, 0.9], "when": {"opt": "sgd"}},
        "opt": {"choice": ["sgd", "adam"]},
        "deep": {"grid": [1, 2], "when": {"m": 0.9}},
        "act": {"choice": ["r"]},
    }
    assert cells(written) == [
        {"opt": "sgd", "m": 0.5, "act": "r"},
        {"opt": "sgd", "m": 0.9, "deep": 1, "act": "r"},
        {"opt": "sgd", "m": 0.9, "deep": 2, "act": "r"},
        {"opt": "adam", "act": "r"},
    ]


def test_a_huge_grid_is_counted_and_addressed_without_walking_it() -> None:
    space = Space.parse({f"p{i:02}": {"int": [0, 9]} for i in range(30)})
    assert size("grid", space) == 10**30
    proposal = make("grid", space, "min").ask(10**29 + 7, 0)
    assert proposal is not None
    assert (proposal.config["p00"], proposal.config["p01"], proposal.config["p29"]) == (1, 0, 7)


def test_only_a_grid_has_a_size() -> None:
    assert size("random", SPACE) is None
    assert size("tpe", SPACE) is None


@pytest.mark.parametrize("domain", [{"uniform": [0, 1]}, {"normal": [0, 1]}, {"int": [1, 10**6]}], ids=str)
def test_a_parameter_with_too_many_values_has_no_grid(domain: Any) -> None:
    with pytest.raises(SpecError, match=r"^space\.a: .* use grid: \[\.\.\.\]"):
        make("grid", Space.parse({"a": domain}), "min")


# ---- TPE is Optuna's
# -----------------------------------------------------------------------------------------


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
        config["init"] = 1 + 2 * statistics.NormalDist().inv_cdf(trial.suggest_float("init", tail, 1 - tail))
        shapes = {"one": [1], "two": [1, 2], "none": None}
        config["model.shape"] = shapes[trial.suggest_categorical("model.shape", list(shapes))]
        return config

    def tell(self, result: Result) -> None:
        trial_id = self.study.trials[result.number]._trial_id
        for step, value in result.intermediate:
            self.study._storage.set_trial_intermediate_value(trial_id, step, value)
        state = {"done": "COMPLETE", "stopped": "PRUNED", "failed": "FAIL"}[result.status]
        self.study.tell(result.number, result.value if state == "COMPLETE" else None, optuna.trial.TrialState[state])


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
    plain, ours = PlainOptuna(mode, options), make({"tpe": options | {"like_optuna": True}}, SPACE, mode)
    pending: list[Result] = []
    for number in range(trials):
        proposal = ours.ask(number, seed_of(number))
        expected = plain.ask(seed_of(number) % 2**32)
        assert proposal is not None
        assert proposal.config.pop("model.act") == "relu"
        approximate = {name: pytest.approx(expected.pop(name), abs=1e-12) for name in ("drop", "init")}
        assert proposal.config == expected | approximate, f"trial {number}"
        config = proposal.config | {"model.act": "relu"}
        ours.tell(Result(number=number, config=config, state=proposal.state, status="running"))
        value = loss(config) * (1 if mode == "min" else -1)
        curve = [(step, value + 1 / step) for step in range(1, 1 + number % 5)]
        end: Any = ("done", "stopped", "done", "failed", "done", "stopped", "done")[number % 7]
        result = Result(number=number, config=config, state=proposal.state, status=end, value=value, intermediate=curve)
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
    assert np.isneginf(density.log_pdf({"x": np.array([-1.001, 0.0, 2.001])})).tolist() == [True, False, True]


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
    told_ends: list[tuple[Status, float, list[float]]], n_below: int, mode: Mode, liar: bool
) -> None:
    """Against Optuna's own split, with ties, infinities, curves of any length and none."""
    study = optuna.create_study(direction="minimize" if mode == "min" else "maximize")
    ours, theirs = TpeHistory({"x": float}, mode), []
    states = {"running": "RUNNING", "done": "COMPLETE", "stopped": "PRUNED"}
    for number, (status, value, curve) in enumerate(told_ends):
        steps = dict(enumerate(curve, start=1))
        result = Result(number=number, config={"x": 0.5}, status=status, value=value, intermediate=list(steps.items()))
        ours.tell(result, {})
        if status == "failed" or (status == "done" and math.isnan(value)) or (status == "running" and not liar):
            continue
        final = {"value": value} if status == "done" else {}
        state = optuna.trial.TrialState[states[status]]
        trial = optuna.trial.create_trial(state=state, intermediate_values=steps, **final)  # type: ignore[arg-type]  # a float
        trial.number = number
        theirs.append(trial)
    below, above = ours.split(n_below, liar=liar, number=99)
    expected = _split_trials(study, theirs, n_below)
    assert ([*below], [*above]) == tuple([t.number for t in part] for part in expected)


# ---- TPE where trials are ended early
# ---------------------------------------------------------------------------------------------------------


LINE = Space.parse({"x": {"uniform": [0, 1]}})


def under_a_scheduler(count: int) -> list[Result]:
    """The first two trials survive with the worst there is, at 0.9; the others are stopped at step 3, the better the nearer they
    are to 0.3."""
    results = [
        Result(number=n, config={"x": 0.9 + n / 1000}, status="done", value=9.0, intermediate=[(s, 9.0) for s in range(1, 28)])
        for n in range(2)
    ]
    for number in range(2, count):
        x = number * 0.618 % 1
        curve = [(1, 2 - x), (2, 2.0), (3, abs(x - 0.3))]
        results.append(Result(number=number, config={"x": x}, status="stopped", value=abs(x - 0.3), intermediate=curve))
    return results


def proposed(search: object, results: list[Result], count: int = 60) -> list[float]:
    sampler = told(search, results, space=LINE)
    return [p.config["x"] for n in range(count) if (p := sampler.ask(len(results) + n, seed_of(n)))]


def test_who_survived_is_not_good_because_of_that() -> None:
    mended, optunas = (proposed(search, under_a_scheduler(30)) for search in ("tpe", {"tpe": {"like_optuna": True}}))
    assert statistics.median(optunas) > 0.7, "what it is about: it collapses onto the survivors"
    assert abs(statistics.median(mended) - 0.3) < 0.1


def test_trials_are_ranked_at_the_largest_step_that_enough_reached_and_by_their_best_up_to_it() -> None:
    history = BudgetHistory({"x": float}, "max", enough=4)
    curves = [[5.0, 1.0, 1.0, 9.0], [3.0, 4.0, 2.0], [9.0, 9.0], [1.0, 8.0, 0.0], [7.0, 2.0, 6.0], [9.0], [math.nan, 2.0, 2.5]]
    for number, curve in enumerate(curves):
        steps = list(enumerate(curve, start=1))
        status: Status = "done" if len(curve) == 4 else "paused" if number == 4 else "stopped"
        history.tell(Result(number=number, config={"x": 0.5}, status=status, value=max(curve), intermediate=steps), {})
    below, above = history.split(1, liar=False, number=99)
    assert [*below] == [3], "8 up to step 3, which five reached; the first one was at 5 then"
    assert [*above] == [0, 1, 2, 4, 5, 6], "also those that did not get so far"


def test_what_is_done_without_a_curve_counts_at_every_step() -> None:
    history = BudgetHistory({"x": float}, "min", enough=4)
    history.tell(Result(number=0, config={"x": 0.5}, status="done", value=0.5), {})
    for number in range(1, 6):
        history.tell(Result(number=number, config={"x": 0.5}, status="stopped", intermediate=[(1, 1.0)]), {})
    assert [*history.split(1, liar=False, number=99)[0]] == [0]


@pytest.mark.parametrize("search", ["tpe", {"tpe": {"random_fraction": 1.0}}], ids=str)
def test_without_an_early_end_tpe_is_optunas(search: object) -> None:
    results = [r for r in history(40) if r.status != "stopped"]
    assert told(search, results).ask(40, 7) == told({"tpe": {"like_optuna": True}}, results).ask(40, 7)


def test_a_share_of_proposals_is_random_where_trials_end_early() -> None:
    none, fifth, all_of_them = (
        proposed({"tpe": {"random_fraction": share}}, under_a_scheduler(30), 200) for share in (0.0, 0.2, 1.0)
    )
    assert not set(none) & set(all_of_them)
    assert {*fifth} <= {*none, *all_of_them}
    assert 20 <= len({*fifth} & {*all_of_them}) <= 60
    assert abs(statistics.fmean(all_of_them) - 0.5) < 0.1


def test_running_trials_push_away_where_trials_end_early() -> None:
    results = under_a_scheduler(30)
    for seed in range(5):
        sampler = told({"tpe": {"random_fraction": 0.0}}, results, space=LINE)
        first = sampler.ask(30, seed)
        assert first is not None
        for number in range(30, 50):
            sampler.tell(Result(number=number, config=first.config, state=first.state, status="running"))
        other = sampler.ask(50, seed)
        assert other is not None
        assert abs(other.config["x"] - first.config["x"]) > 0.01


def test_what_a_running_trial_drew_for_inactive_parameters_counts_until_it_ends() -> None:
    history = TpeHistory({"x": float, "y": float}, "min")
    one = Result(number=0, config={"x": 0.5}, status="running")
    history.tell(one, {"x": 0.4, "y": 0.7})
    assert {n: [*c] for n, c in history.observed(["x", "y"], np.array([0])).items()} == {"x": [0.5], "y": [0.7]}
    history.tell(replace(one, status="done", value=1.0), {})
    assert [*history.observed(["y"], np.array([0]))["y"]] == []


def test_a_stepped_value_is_the_number_that_optuna_would_have_suggested() -> None:
    domain = quniform(0, 0.6, 0.05)
    coordinates = [axis(domain).coordinate(domain.cell(k)) for k in range(13)]
    assert coordinates == [min(k * 0.05, 0.6) for k in range(13)]
    assert domain.cell(3) == 0.15 != 3 * 0.05


def test_tpe_finds_the_better_half_of_the_space() -> None:
    space = Space.parse({"x": {"uniform": [0, 1]}, "c": {"choice": ["bad", "good"]}})
    for mode, sign in (("min", 1), ("max", -1)):
        sampler: Sampler = make("tpe", space, mode)  # type: ignore[arg-type]  # both are modes
        for number in range(60):
            proposal = sampler.ask(number, seed_of(number))
            assert proposal is not None
            value = sign * (abs(proposal.config["x"] - 0.3) + (proposal.config["c"] == "bad"))
            sampler.tell(Result(number=number, config=proposal.config, state=proposal.state, status="done", value=value))
        late = [p.config for n in range(60, 80) if (p := sampler.ask(n, seed_of(n)))]
        assert sum(c["c"] == "good" for c in late) >= 15  # 10 by chance
        assert abs(np.median([c["x"] for c in late]) - 0.3) < 0.1


def test_a_failed_trial_and_one_without_a_value_teach_nothing() -> None:
    results = history(30)
    sampler = told("tpe", results)
    nothing: list[tuple[Status, float | None]] = [("failed", None), ("failed", 0.0), ("done", None), ("done", math.nan)]
    for number, (status, value) in enumerate(nothing, start=40):
        sampler.tell(Result(number=number, config=results[0].config, status=status, value=value))
    assert sampler.ask(50, 1) == told("tpe", results).ask(50, 1)


def test_a_running_trial_counts_for_the_constant_liar_only() -> None:
    results = history(30)
    proposal = told("tpe", results).ask(60, 1)
    assert proposal is not None
    running = [Result(number=n, config=proposal.config, status="running") for n in range(30, 60)]
    assert told("tpe", results + running).ask(60, 1) != proposal
    honest = {"tpe": {"constant_liar": False}}
    assert told(honest, results + running).ask(60, 1) == told(honest, results).ask(60, 1)


def test_asking_again_for_a_running_trial_gives_the_same() -> None:
    sampler = told("tpe", history(30))
    proposal = sampler.ask(30, 1)
    assert proposal is not None
    sampler.tell(Result(number=30, config=proposal.config, state=proposal.state, status="running"))
    assert sampler.ask(30, 1) == proposal


def test_a_second_end_of_a_trial_is_refused() -> None:
    results = history(30)
    sampler = told("tpe", results)
    sampler.tell(Result(number=0, config=results[0].config, status="done", value=-5.0))
    with pytest.raises(ValueError, match="trial 0 ended before, in another way"):
        sampler.ask(30, 1)


def test_optunas_logging_and_warnings_are_as_they_were(caplog: pytest.LogCaptureFixture) -> None:
    optuna.logging.set_verbosity(optuna.logging.DEBUG)
    optuna.logging.enable_propagation()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            told({"tpe": {"group": True}}, history(30)).ask(30, 1)
        assert optuna.logging.get_verbosity() == optuna.logging.DEBUG
        assert not caplog.records
    finally:
        optuna.logging.disable_propagation()
