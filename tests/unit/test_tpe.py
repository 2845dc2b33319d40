"""What TPE learns from trials that are done, ended early, running, failed or without a value."""

from __future__ import annotations

import math
import statistics
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import optuna
import pytest

from regrow.search.samplers.base import Result, Sampler, TrialStatus
from regrow.search.samplers.tpe_axes import axis
from regrow.search.samplers.tpe_history import BudgetHistory, TpeHistory
from regrow.search.space import Space, normal, quniform
from tests.unit.sampling import history, make, seed_of, told

LINE = Space.parse({"x": {"uniform": [0, 1]}})


def under_a_scheduler(count: int) -> list[Result]:
    """The first two trials survive with the worst there is, at 0.9; the others are stopped at step
    3, the better the nearer they are to 0.3.
    """
    results = [
        Result(
            number=n,
            config={"x": 0.9 + n / 1000},
            status="done",
            value=9.0,
            intermediate=[(s, 9.0) for s in range(1, 28)],
        )
        for n in range(2)
    ]
    for number in range(2, count):
        x = number * 0.618 % 1
        curve = [(1, 2 - x), (2, 2.0), (3, abs(x - 0.3))]
        results.append(
            Result(
                number=number,
                config={"x": x},
                status="stopped",
                value=abs(x - 0.3),
                intermediate=curve,
            )
        )
    return results


def proposed(search: object, results: list[Result], count: int = 60) -> list[float]:
    sampler = told(search, results, space=LINE)
    return [p.config["x"] for n in range(count) if (p := sampler.ask(len(results) + n, seed_of(n)))]


def test_who_survived_is_not_good_because_of_that() -> None:
    mended, optunas = (
        proposed(search, under_a_scheduler(30))
        for search in ("tpe", {"tpe": {"like_optuna": True}})
    )
    assert statistics.median(optunas) > 0.7, "what it is about: it collapses onto the survivors"
    assert abs(statistics.median(mended) - 0.3) < 0.1


def test_trials_are_ranked_at_the_largest_step_that_enough_reached_and_by_their_best_up_to_it() -> (
    None
):
    history = BudgetHistory({"x": float}, "max", enough=4)
    curves = [
        [5.0, 1.0, 1.0, 9.0],
        [3.0, 4.0, 2.0],
        [9.0, 9.0],
        [1.0, 8.0, 0.0],
        [7.0, 2.0, 6.0],
        [9.0],
        [math.nan, 2.0, 2.5],
    ]
    for number, curve in enumerate(curves):
        steps = list(enumerate(curve, start=1))
        status: TrialStatus = "done" if len(curve) == 4 else "paused" if number == 4 else "stopped"
        history.tell(
            Result(
                number=number,
                config={"x": 0.5},
                status=status,
                value=max(curve),
                intermediate=steps,
            ),
            {},
        )
    below, above = history.split(1, liar=False, number=99)
    assert [*below] == [3], "8 up to step 3, which five reached; the first one was at 5 then"
    assert [*above] == [0, 1, 2, 4, 5, 6], "also those that did not get so far"


def test_what_is_done_without_a_curve_counts_at_every_step() -> None:
    history = BudgetHistory({"x": float}, "min", enough=4)
    history.tell(Result(number=0, config={"x": 0.5}, status="done", value=0.5), {})
    for number in range(1, 6):
        history.tell(
            Result(number=number, config={"x": 0.5}, status="stopped", intermediate=[(1, 1.0)]), {}
        )
    assert [*history.split(1, liar=False, number=99)[0]] == [0]


@pytest.mark.parametrize("search", ["tpe", {"tpe": {"random_fraction": 1.0}}], ids=str)
def test_without_an_early_end_tpe_is_optunas(search: object) -> None:
    results = [r for r in history(40) if r.status != "stopped"]
    assert told(search, results).ask(40, 7) == told({"tpe": {"like_optuna": True}}, results).ask(
        40, 7
    )


def test_a_share_of_proposals_is_random_where_trials_end_early() -> None:
    none, fifth, all_of_them = (
        proposed({"tpe": {"random_fraction": share}}, under_a_scheduler(30), 200)
        for share in (0.0, 0.2, 1.0)
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
            sampler.tell(
                Result(number=number, config=first.config, state=first.state, status="running")
            )
        other = sampler.ask(50, seed)
        assert other is not None
        assert abs(other.config["x"] - first.config["x"]) > 0.01


def test_what_a_running_trial_drew_for_inactive_parameters_counts_until_it_ends() -> None:
    history = TpeHistory({"x": float, "y": float}, "min")
    one = Result(number=0, config={"x": 0.5}, status="running")
    history.tell(one, {"x": 0.4, "y": 0.7})
    assert {n: [*c] for n, c in history.observed(["x", "y"], np.array([0])).items()} == {
        "x": [0.5],
        "y": [0.7],
    }
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
            sampler.tell(
                Result(
                    number=number,
                    config=proposal.config,
                    state=proposal.state,
                    status="done",
                    value=value,
                )
            )
        late = [p.config for n in range(60, 80) if (p := sampler.ask(n, seed_of(n)))]
        assert sum(c["c"] == "good" for c in late) >= 15  # 10 by chance
        assert abs(np.median([c["x"] for c in late]) - 0.3) < 0.1


def test_a_failed_trial_and_one_without_a_value_teach_nothing() -> None:
    results = history(30)
    sampler = told("tpe", results)
    nothing: list[tuple[TrialStatus, float | None]] = [
        ("failed", None),
        ("failed", 0.0),
        ("done", None),
        ("done", math.nan),
    ]
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
    verbosity = optuna.logging.get_verbosity()
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
        optuna.logging.set_verbosity(verbosity)


def test_a_normal_value_that_no_float_holds_is_the_largest_float() -> None:
    wide = axis(normal(0, 1e308))
    assert isinstance(wide.distribution, optuna.distributions.FloatDistribution)
    assert math.isfinite(wide.value(wide.distribution.high))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # Optuna's, where floats are whole
@pytest.mark.parametrize(
    "narrow",
    [{"logint": [2**53 - 3, 2**53]}, {"loguniform": [1e300, math.nextafter(1e300, 2e300)]}],
)
def test_a_range_whose_logarithms_are_the_same_float_is_searched(narrow: Any) -> None:
    space = Space.parse({"x": narrow, "y": {"uniform": [0, 1]}})
    results = [
        Result(
            number=n,
            config={"x": space.flat[0].domain.quantile(0.5), "y": n / 20},
            status="done",
            value=n / 20,
        )
        for n in range(20)
    ]
    sampler = told("tpe", results, space=space)
    for number in range(20, 30):
        proposal = sampler.ask(number, seed_of(number))
        assert proposal is not None
        assert space.flat[0].domain.contains(proposal.config["x"])
