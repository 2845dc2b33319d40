"""Configurations that the user wants tried first, or knows the result of; and several trials of
each configuration.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import regrow as rg
from regrow.search.errors import SpecError
from regrow.search.events import Created, Proposed
from regrow.search.lifecycle import TrialState
from regrow.search.measured import Known
from regrow.search.numbers import deviation
from regrow.search.planning.planner import Planner, seed_for
from regrow.search.planning.simulator import FunctionObjective, Simulation, simulate
from regrow.search.planning.verify import verify
from regrow.search.samplers.base import Proposal, Result
from regrow.search.space.setting import Setting
from regrow.search.spec import Spec
from regrow.show.views import summaries

SPACE: dict[str, Any] = {
    "lr": {"loguniform": [1e-4, 1.0]},
    "model": {"layers": {"int": [1, 4]}, "kind": {"choice": ["mlp", "cnn"]}},
    "width": {"int": [8, 64], "when": {"model.kind": "mlp"}},
    "epochs": 3,
}
MLP = {"lr": 0.01, "model": {"layers": 2, "kind": "mlp"}, "width": 16}
CNN = {"lr": 0.1, "model.layers": 1, "model.kind": "cnn"}


class Listens:
    """Notes all that it is told, and where it is asked."""

    heard: list[Result]
    asked: list[tuple[int, int]]
    last: Listens

    def __init__(self, setting: Setting) -> None:
        self.heard, self.asked, self.space = [], [], setting.space
        Listens.last = self

    def ask(self, number: int, seed: int) -> Proposal:
        self.asked.append((number, seed))
        config: dict[str, Any] = {}
        for parameter in self.space.flat:
            if parameter.active(config):
                config[parameter.name] = parameter.domain.quantile((number + 1) / 100)
        return Proposal(config=config, state={"number": number})

    def tell(self, result: Result) -> None:
        self.heard.append(result)


class Floats(Listens):
    """Proposes numbers of other types than the space's."""

    def ask(self, number: int, seed: int) -> Proposal:
        return Proposal(config={"width": 2.0, "c": np.float64(4.0)}, state={})


def spec(**changes: Any) -> Spec:
    given = {
        "name": "points",
        "trainable": "work.py:train",
        "metric": "loss",
        "mode": "min",
        "space": SPACE,
        "search": f"{__name__}:Listens",
        "trials": 4,
        "max_steps": 2,
        **changes,
    }
    return Spec.parse(given)


def loss(config: Mapping[str, Any], step: int) -> float:
    return float(config["lr"]) + 1 / step


class Noisy:
    """The loss of a trial depends on its seed; trials of the numbers in `fails` are made to fail by
    the caller.
    """

    def at(
        self, config: Mapping[str, Any], step: int, seed: int
    ) -> tuple[Mapping[str, float], float]:
        return {"loss": round(seed / 2**32 + 1 / step, 6)}, 1.0


def run(of: Spec, objective: Any = None, workers: int = 1) -> Simulation:
    done = simulate(of, objective or FunctionObjective(function=loss, spec=of), workers=workers)
    assert verify(done.events).difference is None
    return done


def told(done: Simulation) -> dict[int, Result]:
    """The last that the sampler would be told of each number."""
    planner = Planner()
    for event in done.events:
        planner.apply(event)
    planner._sampling  # noqa: B018 - it tells
    return {result.number: result for result in Listens.last.heard}


# Points


def test_points_are_tried_first_in_their_order_then_the_sampler_is_asked() -> None:
    done = run(spec(points=[MLP, {"config": CNN}]))
    configs = [trial.config for trial in done.history.trials]
    assert configs[0] == {
        "lr": 0.01,
        "model.layers": 2,
        "model.kind": "mlp",
        "width": 16,
        "epochs": 3,
    }
    assert configs[1] == {"lr": 0.1, "model.layers": 1, "model.kind": "cnn", "epochs": 3}
    assert [number for number, _ in Listens.last.asked] == [2, 3], (
        "numbers continue behind the points"
    )
    assert [event.state for event in done.events if isinstance(event, Proposed)][:3] == [
        {},
        {},
        {"number": 2},
    ]


def test_a_point_with_a_known_result_is_told_and_not_tried() -> None:
    done = run(spec(points=[{"config": CNN, "metrics": {"loss": 0.25}}, MLP]))
    assert len(done.history.trials) == 4
    assert done.history.trials[0].config["lr"] == 0.01
    known = told(done)[-1]
    assert (known.value, known.status, dict(known.state)) == (0.25, "done", {})
    assert known.config == {"lr": 0.1, "model.layers": 1, "model.kind": "cnn", "epochs": 3}
    assert done.history.best is not None, "and it is no trial: the best is one that was tried"


def test_what_is_known_is_told_before_anything_else() -> None:
    run(
        spec(
            points=[
                {"config": CNN, "metrics": {"loss": 0.25}},
                {"config": MLP, "metrics": {"loss": 0.5}},
            ]
        )
    )
    assert [result.number for result in Listens.last.heard[:2]] == [-1, -2]


def test_more_points_than_trials_are_as_many_as_there_are_trials() -> None:
    done = run(spec(points=[MLP, CNN, MLP], trials=2))
    assert len(done.history.trials) == 2
    assert done.planner._sampler is None, "nobody was asked"


def test_a_model_learns_from_known_points() -> None:
    """TPE that knows 31 points proposes near the good ones, from its first trial on."""
    points = [{"config": {"x": k / 30}, "metrics": {"loss": abs(k / 30 - 0.2)}} for k in range(31)]
    of = spec(space={"x": {"uniform": [0.0, 1.0]}}, search="tpe", trials=8, points=points)
    xs = [
        trial.config["x"]
        for trial in run(of, FunctionObjective(function=lambda c, s: 1.0, spec=of)).history.trials
    ]
    assert statistics.median(abs(x - 0.2) for x in xs) < 0.15


@pytest.mark.parametrize("repeats", [1, 2])
@pytest.mark.parametrize("search", ["random", "tpe", "qmc", "cmaes", "bohb", "nsga2", "dehb"])
def test_every_sampler_bears_points_known_results_failed_ones_and_repeats(
    search: str, repeats: int
) -> None:
    """What the user proposed has no state of the sampler's; what is known has a negative number;
    both after each other.
    """
    space = {
        "x": {"uniform": [0.0, 1.0]},
        "k": {"choice": ["a", "b"]},
        "m": {"int": [1, 4], "when": {"k": "a"}},
    }
    known = {"config": {"x": 0.25, "k": "a", "m": 2}, "metrics": {"loss": 0.7}}
    of = spec(
        space=space,
        search=search,
        schedule="dehb" if search == "dehb" else "asha",
        trials=16,
        max_steps=9,
        repeats=repeats,
        points=[{"x": 0.5, "k": "b"}, known, {"x": 0.1, "k": "a", "m": 4}],
    )
    earlier = [
        Known(config={"x": 0.3, "k": "b"}, value=0.9, curve=[(1, 1.0), (2, 0.9)]),
        Known(config={"x": 0.4, "k": "b"}, status="failed"),
    ]
    done = Simulation(
        spec=of, objective=FunctionObjective(function=lambda c, s: c["x"] / s, spec=of), workers=3
    )
    done.open([Created(t=0.0, id="i", spec=of.to_json(), known=earlier)]).run()
    assert verify(done.events).difference is None
    assert [trial.config["x"] for trial in done.history.trials[: 2 * repeats : repeats]] == [
        0.5,
        0.1,
    ]
    assert len(done.history.trials) == 16


@pytest.mark.parametrize(
    ("point", "key", "problem", "hint"),
    [
        (
            {**MLP, "lr": 2.0},
            "points.0.lr",
            "is outside of its domain",
            "it is one of {'loguniform': [0.0001, 1.0]}",
        ),
        (
            {**MLP, "lr": "0.01"},
            "points.0.lr",
            "is outside of its domain",
            "it is one of {'loguniform': [0.0001, 1.0]}",
        ),
        (
            {**MLP, "model": {"layers": 2.5, "kind": "mlp"}},
            "points.0.model.layers",
            "is outside of its domain",
            None,
        ),
        (
            {"lr": 0.01, "model": {"kind": "cnn"}},
            "points.0.model.layers",
            "is missing",
            "give one of {'int': [1, 4]}",
        ),
        ({"model": {"layers": 1, "kind": "cnn"}}, "points.0.lr", "is missing", None),
        (
            {**CNN, "width": 16},
            "points.0.width",
            "has no place: its condition does not hold",
            "leave it out",
        ),
        ({"lr": 0.1, "model.layers": 1, "model.kind": "mlp"}, "points.0.width", "is missing", None),
        ({**MLP, "momentum": 0.9}, "points.0.momentum", "is no parameter", None),
        ({**MLP, "wdth": 9}, "points.0.wdth", "is no parameter", "did you mean 'width'?"),
        ({**MLP, "epochs": 4}, "points.0.epochs", "is outside of its domain", None),
        (
            {"config": MLP, "metrics": {"accuracy": 1.0}},
            "points.0.metrics",
            "lacks the objective",
            "give loss, or leave metrics out",
        ),
        (
            {"config": MLP, "metrics": {"loss": "low"}},
            "points.0.metrics.loss",
            "is not a number",
            None,
        ),
        (
            {"config": MLP, "metrics": {"loss": float("nan")}},
            "points.0.metrics.loss",
            "is not a finite number",
            None,
        ),
        (0.5, "points.0", "is not a map", None),
    ],
)
def test_a_point_that_cannot_be_used_is_refused_with_its_key(
    point: Any, key: str, problem: str, hint: str | None
) -> None:
    with pytest.raises(SpecError) as caught:
        spec(points=[point])
    assert (caught.value.key, caught.value.problem) == (key, problem)
    assert hint is None or caught.value.hint == hint


KINDS: dict[str, Any] = {
    "width": {"int": [1, 8]},
    "lr": {"uniform": [0, 2]},
    "c": {"choice": [1, 2, 4]},
    "q": {"quniform": [0.1, 99.9, 0.1]},
    "strict": {"choice": [True, False]},
    "n": {"normal": [0, 1]},
    "group": {"deep": {"int": [0, 4], "step": 2}},
}
GIVEN: dict[str, Any] = {
    "width": 3.0,
    "lr": 1,
    "c": 2.0,
    "q": 0.1 + 0.2,
    "strict": True,
    "n": 2,
    "group": {"deep": 4.0},
}


@pytest.mark.parametrize(
    ("low", "high", "step", "cells"),
    [
        (0, 1, 1 / 3, 4),
        (0, 1 - 0.9, 0.05, 3),
        (0, 0.1 * 3, 0.1, 4),
        (0.1, 99.9, 0.1, 999),
        (0, 1, 0.3, 4),
    ],
)
def test_steps_that_were_computed_end_at_the_upper_bound_and_never_above_it(
    low: float, high: float, step: float, cells: int
) -> None:
    domain = rg.quniform(low, high, step)
    values = [domain.cell(index) for index in range(domain.cells or 0)]
    assert len(values) == cells
    assert all(
        low <= value <= high and domain.contains(value) and domain.own(value) == value
        for value in values
    )
    assert (values[-1] == high) == (step != 0.3)


def test_a_point_arrives_as_what_the_space_says() -> None:
    made = spec(space=KINDS, points=[GIVEN, GIVEN | {"width": np.int64(8), "lr": np.float32(0.5)}])
    expected = {
        "width": 3,
        "lr": 1.0,
        "c": 2,
        "q": 0.3,
        "strict": True,
        "n": 2.0,
        "group": {"deep": 4},
    }
    assert repr(made.points[0].config) == repr(expected)
    assert repr(made.points[1].config) == repr(expected | {"width": 8, "lr": 0.5})
    first = next(event for event in run(made, Noisy()).events if isinstance(event, Proposed))
    assert repr(made.space.nest(first.config)) == repr(expected)
    assert Spec.parse(made.to_json()) == made


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("width", 3.0000000001),
        ("width", True),
        ("width", "3"),
        ("width", math.nan),
        ("width", 10**400),
        ("lr", math.inf),
        ("lr", 10**400),
        ("n", 10**400),
        ("n", math.nan),
        ("c", True),
        ("c", "2"),
        ("c", {2}),
        ("strict", 1),
        ("q", 99.95),
        ("q", 0.35),
    ],
)
def test_a_point_that_says_what_the_space_does_not_is_refused(name: str, value: Any) -> None:
    with pytest.raises(SpecError, match=rf"points\.0\.{name}: .* is outside of its domain"):
        spec(space=KINDS, points=[GIVEN | {name: value}])


def test_what_a_sampler_of_ones_own_proposes_arrives_as_what_the_space_says() -> None:
    space = {"width": {"int": [1, 8]}, "c": {"choice": [1, 2, 4]}}
    made = spec(space=space, search=f"{__name__}:Floats")
    first = next(event for event in run(made, Noisy()).events if isinstance(event, Proposed))
    assert repr(first.config) == repr({"width": 2, "c": 4})


def test_a_grid_has_no_place_for_points() -> None:
    with pytest.raises(SpecError) as caught:
        spec(space={"x": {"grid": [1, 2]}}, search="grid", trials=None, points=[{"x": 1}])
    assert (caught.value.key, caught.value.hint) == ("points.0", "leave points out")


# Repeats


def test_each_configuration_is_tried_so_often_each_time_with_another_seed() -> None:
    done = run(spec(repeats=3, trials=6), Noisy(), workers=2)
    configs = [trial.config for trial in done.history.trials]
    assert configs[0] == configs[1] == configs[2] != configs[3] == configs[4] == configs[5]
    assert [trial.best[0] for trial in done.history.trials if trial.best] == [
        round(seed_for(0, n, "trial") / 2**32 + 0.5, 6) for n in range(6)
    ]
    assert Listens.last.asked == [(0, seed_for(0, 0)), (1, seed_for(0, 1))], (
        "the sampler is asked once a configuration"
    )


def test_the_sampler_learns_the_mean_of_those_that_are_done() -> None:
    done = run(spec(repeats=2, trials=4), Noisy())
    heard = told(done)
    assert sorted(heard) == [0, 1]
    values = [trial.best[0] for trial in done.history.trials if trial.best]
    assert heard[1].value == pytest.approx((values[2] + values[3]) / 2)
    assert [step for step, _ in heard[1].intermediate] == [1, 2]
    assert heard[1].intermediate[0][1] == pytest.approx((values[2] + values[3]) / 2 + 0.5)
    assert (heard[1].status, dict(heard[1].state)) == ("done", {"number": 1})


def test_the_sampler_hears_that_a_configuration_runs_until_its_last_repeat_ended() -> None:
    of = spec(repeats=2, trials=2)
    halfway = Simulation(spec=of, objective=Noisy(), workers=1).open()
    while halfway.history.ended < 1:
        halfway.run(most_events=len(halfway.events) + 1)
    assert {number: result.status for number, result in told(halfway).items()} == {0: "running"}


@pytest.mark.parametrize(
    ("failing", "status", "counted"),
    [({1}, "done", [0, 2]), ({0, 1}, "done", [2]), ({0, 1, 2}, "failed", [])],
)
def test_repeats_that_fail_are_left_out_unless_all_do(
    failing: set[int], status: str, counted: list[int]
) -> None:
    of = spec(repeats=3, trials=3)
    done = Simulation(spec=of, objective=Noisy(), workers=1).open()
    while done.history.closed is None:
        done.run(most_events=len(done.events) + 1)
        for running in done.running:
            if running.trial in failing and running.step == 1:
                done.fail(running.trial, "made to fail")
    assert verify(done.events).difference is None
    (result,) = told(done).values()
    assert result.status == status
    values = [
        trial.best[0] for n, trial in enumerate(done.history.trials) if n in counted and trial.best
    ]
    if values:
        assert result.value == pytest.approx(statistics.fmean(values))
    shown = summaries.means(done.history)
    assert [(one["trials"], one["count"]) for one in shown] == (
        [(counted, len(counted))] if counted else []
    )


def test_a_repeat_that_is_retried_takes_back_what_its_configuration_came_to() -> None:
    of = spec(repeats=2, trials=4)
    first = Simulation(spec=of, objective=Noisy(), workers=1).open()
    while first.history.closed is None:
        first.run(most_events=len(first.events) + 1)
        for running in first.running:
            if running.trial == 3:
                first.fail(3, "made to fail")
    again = Simulation(spec=of, objective=Noisy(), workers=1).open(first.events, retry_failed=True)
    while not again.history.trials[3].revived:
        again.run(most_events=len(again.events) + 1)
    assert {number: one.status for number, one in told(again).items()} == {0: "done", 1: "running"}
    done = told(again.run())[1]
    values = [trial.best[0] for trial in again.history.trials[2:] if trial.best]
    assert done.status == "done"
    assert done.value == pytest.approx(statistics.fmean(values))


def test_repeats_of_values_whose_sum_no_float_holds_have_a_mean() -> None:
    of, largest = spec(repeats=2, trials=4), sys.float_info.max  # what some report for a failure
    done = run(of, FunctionObjective(function=lambda _config, _step: largest, spec=of))
    assert {result.value for result in told(done).values()} == {largest}
    assert {one["mean"] for one in summaries.means(done.history)} == {largest}
    assert deviation([largest, -largest]) == largest


def test_points_are_repeated_too() -> None:
    done = run(
        spec(points=[MLP, {"config": CNN, "metrics": {"loss": 0.1}}], repeats=2, trials=4), Noisy()
    )
    assert [trial.config["lr"] for trial in done.history.trials[:2]] == [0.01, 0.01]
    assert [number for number, _ in Listens.last.asked] == [1]


def test_show_has_the_mean_and_its_spread_best_first() -> None:
    done = run(spec(repeats=2, trials=6), Noisy())
    values = [trial.best[0] for trial in done.history.trials if trial.best]
    shown = summaries.means(done.history)
    means = [statistics.fmean(values[n : n + 2]) for n in (0, 2, 4)]
    assert [one["mean"] for one in shown] == sorted(means)
    best = means.index(min(means))
    assert shown[0]["trials"] == [2 * best, 2 * best + 1]
    assert shown[0]["sd"] == pytest.approx(statistics.stdev(values[2 * best : 2 * best + 2]))
    assert shown[0]["config"]["model"]["kind"] in ("mlp", "cnn"), (
        "nested, as the user wrote the space"
    )
    assert summaries.show(done.history, alive=False, now=done.now)["repeats"] == shown
    assert summaries.means(run(spec(), Noisy()).history) == []


def test_a_total_that_is_no_multiple_is_refused_with_the_next_one() -> None:
    with pytest.raises(SpecError) as caught:
        spec(repeats=3, trials=7)
    assert (caught.value.key, caught.value.hint) == ("trials", "write 9")


def test_a_grid_is_repeated_cell_by_cell() -> None:
    of = spec(space={"lr": {"grid": [0.1, 0.2]}}, search="grid", trials=None, repeats=2)
    assert of.total == 4
    done = run(of)
    assert [trial.config["lr"] for trial in done.history.trials] == [0.1, 0.1, 0.2, 0.2]
    assert done.history.counts[TrialState.DONE] == 4


def test_repeats_survive_a_kill_at_any_event() -> None:
    of = spec(repeats=2, trials=4, points=[MLP])
    whole = run(of, Noisy())
    wanted = [(e.trial, e.config) for e in whole.events if isinstance(e, Proposed)]
    for cut in range(1, len(whole.events)):
        again = Simulation(spec=of, objective=Noisy(), workers=1).open(whole.events[:cut]).run()
        assert [(e.trial, e.config) for e in again.events if isinstance(e, Proposed)] == wanted
