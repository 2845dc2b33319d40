"""Several metrics and their Pareto front; constraints on metrics."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from regrow.search import samplers
from regrow.search.constraints import Constraint
from regrow.search.errors import SpecError
from regrow.search.events import Began, Created, Ended, Opened, Reported, Row
from regrow.search.planning.planner import Planner
from regrow.search.planning.simulator import FunctionObjective, Simulation, simulate
from regrow.search.planning.verify import verify
from regrow.search.samplers.base import Proposal, Result
from regrow.search.space.setting import Setting
from regrow.search.spec import Spec
from regrow.show.views import summaries

TWO: list[dict[str, str]] = [
    {"name": "accuracy", "mode": "max"},
    {"name": "latency", "mode": "min"},
]


class Listens:
    """Notes all that it is told; takes several metrics and constraints into account."""

    several = True
    heard: list[Result]
    last: Listens

    def __init__(self, setting: Setting) -> None:
        self.heard, self.setting = [], setting
        Listens.last = self

    def ask(self, number: int, seed: int) -> Proposal:
        return Proposal(config={"x": min(1.0, (number + 1) / 10)})

    def tell(self, result: Result) -> None:
        self.heard.append(result)


class Single(Listens):
    """Says nothing of several metrics."""

    several = False


def spec(**changes: Any) -> Spec:
    given = {
        "name": "several",
        "trainable": "work.py:train",
        "metric": TWO,
        "space": {"x": {"uniform": [0.0, 1.0]}},
        "search": f"{__name__}:Listens",
        "trials": 4,
        "max_steps": 2,
        **changes,
    }
    return Spec.parse(given)


def one(**changes: Any) -> Spec:
    return spec(**{"metric": "accuracy", "mode": "max", **changes})


def run(of: Spec, curve: Callable[[Mapping[str, Any], int], Mapping[str, float]]) -> Simulation:
    done = simulate(of, FunctionObjective(function=curve, spec=of), workers=1)
    assert verify(done.events).difference is None
    return done


def reported(of: Spec, *curves: list[dict[str, float | None]]) -> Planner:
    """A planner over trials with these curves."""
    planner = Planner()
    planner.apply(Created(t=0, id="i", spec=of.to_json()))
    planner.apply(Opened(t=0, by="driver", driver="d", slots=1, trials=len(curves)))
    for number, curve in enumerate(curves):
        while (decision := planner.next(0.0)) is not None:
            planner.apply(decision)
        lease: dict[str, Any] = {"t": 0.0, "trial": number, "attempt": 1}
        planner.apply(Began(**lease, node="n"))
        for step, metrics in enumerate(curve, start=1):
            planner.apply(Reported(**lease, rows=[Row(step, 0.0, metrics)]))
        planner.apply(Ended(**lease, outcome="done"))
    while (decision := planner.next(0.0)) is not None:
        planner.apply(decision)
    return planner


def point(accuracy: float, latency: float | None) -> list[dict[str, float | None]]:
    return [{"accuracy": accuracy, "latency": latency}]


# The front


def test_the_front_has_what_nothing_else_is_better_than_in_all() -> None:
    planner = reported(spec(), point(0.9, 10), point(0.8, 5), point(0.7, 7), point(0.95, 20))
    assert planner.history.front == [0, 1, 3]


def test_equal_trials_are_both_on_it_and_one_worse_in_one_metric_is_not() -> None:
    assert reported(spec(), point(0.9, 10), point(0.9, 10), point(0.9, 11)).history.front == [0, 1]


def test_a_trial_without_one_of_the_metrics_is_not_on_it() -> None:
    assert reported(spec(), point(0.9, None), point(0.5, 10)).history.front == [1]


def test_it_is_made_of_the_last_steps() -> None:
    late = [{"accuracy": 0.99, "latency": 1.0}, {"accuracy": 0.1, "latency": 50.0}]
    assert reported(spec(), late, point(0.5, 10)).history.front == [1]  # type: ignore[arg-type]


def test_one_that_breaks_a_constraint_is_not_on_it() -> None:
    of = spec(constraints=["latency <= 10"])
    assert reported(of, point(0.99, 10.5), point(0.9, 10), point(0.8, 2)).history.front == [1, 2]
    assert reported(of, point(0.99, 11), point(0.9, 12)).history.front == []


@pytest.mark.parametrize("seed", range(5))
def test_it_is_what_the_definition_says(seed: int) -> None:
    chance = random.Random(seed)
    found = [(chance.randint(0, 5), chance.randint(0, 5)) for _ in range(30)]
    planner = reported(spec(), *(point(float(a), float(b)) for a, b in found))

    def dominated(n: int) -> bool:
        a, b = found[n]
        return any(c >= a and d <= b and (c, d) != (a, b) for c, d in found)

    assert planner.history.front == [n for n in range(30) if not dominated(n)]


def test_show_has_the_front_with_its_metrics_and_none_for_one_metric() -> None:
    done = run(
        spec(),
        lambda config, step: {"accuracy": config["x"], "latency": config["x"] * 10, "other": 1.0},
    )
    shown = summaries.show(done.history, alive=False, now=done.now)
    assert shown["front"] == summaries.front(done.history)
    assert [entry["trial"] for entry in shown["front"]] == [0, 1, 2, 3]
    assert shown["front"][0] == {
        "trial": 0,
        "metrics": {"accuracy": 0.1, "latency": 1.0},
        "config": {"x": 0.1},
    }
    assert (shown["metric"], shown["mode"], shown["best"]["trial"]) == ("accuracy", "max", 3), (
        "the first governs"
    )
    single = run(one(), lambda config, step: {"accuracy": config["x"]})
    assert "front" not in summaries.show(single.history, alive=False, now=single.now)


# What samplers are told


def test_a_sampler_is_told_all_metrics_of_the_last_step_the_objective_first() -> None:
    done = run(
        spec(), lambda config, step: {"latency": 10.0 * step, "accuracy": config["x"] * step}
    )
    ended = {result.number: result for result in Listens.last.heard if result.status == "done"}
    assert ended[1].values == (0.4, 20.0)
    assert ended[1].value == 0.4
    assert Listens.last.setting.modes == ("max", "min")
    assert len(done.history.trials) == 4


def test_with_one_metric_there_are_no_values() -> None:
    run(one(), lambda config, step: {"accuracy": config["x"], "latency": 3.0})
    assert all(result.values is None and result.violations == () for result in Listens.last.heard)


def test_a_sampler_is_told_by_how_much_each_constraint_is_broken() -> None:
    of = one(constraints=["latency <= 10", "memory>=2.5"])
    run(of, lambda config, step: {"accuracy": 1.0, "latency": 8.0 + 4 * (step - 1), "memory": 3.0})
    ended = [result for result in Listens.last.heard if result.status == "done"]
    assert {result.violations for result in ended} == {(2.0, -0.5)}
    assert Listens.last.setting.constraints == 2


def test_a_metric_that_was_never_reported_breaks_its_constraint() -> None:
    planner = reported(
        one(constraints=["latency <= 10"]),
        [{"accuracy": 1.0}],
        [{"accuracy": 2.0, "latency": None}],
    )
    assert planner.history.best is None
    assert [planner._results.of(trial).violations for trial in planner.history.trials] == [
        (math.inf,),
        (math.inf,),
    ]


def test_the_objective_of_a_trial_that_never_met_a_constraint_is_told_all_the_same() -> None:
    planner = reported(
        one(constraints=["latency <= 10"]),
        [{"accuracy": 1.0, "latency": 20.0}, {"accuracy": 0.5, "latency": 20.0}],
    )
    result = planner._results.of(planner.history.trials[0])
    assert (result.value, result.violations) == (1.0, (10.0,))


def test_repeats_count_as_broken_by_the_worst_of_them() -> None:
    of = one(constraints=["latency <= 10"], repeats=2, trials=2)
    planner = reported(
        of, [{"accuracy": 1.0, "latency": 8.0}], [{"accuracy": 3.0, "latency": 13.0}]
    )
    assert (planner._results.untold[-1].value, planner._results.untold[-1].violations) == (
        2.0,
        (3.0,),
    )


@pytest.mark.parametrize("search", ["tpe", "nsga2", "random"])
def test_samplers_that_take_several_metrics_propose_what_is_in_the_space(search: str) -> None:
    of = spec(search=search, constraints=["latency <= 8"], trials=15)
    done = run(of, lambda config, step: {"accuracy": config["x"], "latency": 10 * config["x"]})
    assert all(0 <= trial.config["x"] <= 1 for trial in done.history.trials)
    assert done.history.front
    assert max(done.history.trials[n].config["x"] for n in done.history.front) <= 0.8


@pytest.mark.parametrize("search", ["tpe", "nsga2", "random"])
def test_samplers_bear_a_constraint_on_a_metric_that_never_comes(search: str) -> None:
    of = one(search=search, constraints=["memory <= 8"], trials=15, max_steps=1)
    done = run(of, lambda config, step: {"accuracy": config["x"]})
    assert done.history.best is None
    assert len(done.history.trials) == 15


def test_a_sampler_that_is_told_a_constraint_keeps_to_it() -> None:
    """The best accuracy is where the constraint is broken; most of what TPE proposes at last is not
    there.
    """
    of = one(search="tpe", constraints=["latency <= 5"], trials=60, max_steps=1)
    done = run(of, lambda config, step: {"accuracy": config["x"], "latency": 10 * config["x"]})
    late = [trial.config["x"] for trial in done.history.trials[30:]]
    assert sum(x <= 0.5 for x in late) > len(late) / 2
    assert done.history.best is not None
    assert 0.4 < done.history.trials[done.history.best].config["x"] <= 0.5


# Best, and constraints


def test_a_step_that_breaks_a_constraint_is_never_best() -> None:
    of = one(constraints=["latency <= 10"])
    planner = reported(
        of,
        [
            {"accuracy": 0.5, "latency": 9.0},
            {"accuracy": 0.9, "latency": 11.0},
            {"accuracy": 0.6, "latency": 10.0},
        ],
        [{"accuracy": 0.99, "latency": 12.0}],
    )
    history = planner.history
    assert history.best == 0
    assert [trial.best for trial in history.trials] == [(0.6, 3), None]
    best = summaries.best(history)
    assert best is not None
    assert (best["trial"], best["value"], best["step"]) == (0, 0.6, 3)


@pytest.mark.parametrize("order", itertools.permutations([(0.5, 9.0), (0.9, 11.0), (0.7, 3.0)]))
def test_whatever_the_order_of_the_steps(order: tuple[tuple[float, float], ...]) -> None:
    planner = reported(
        one(constraints=["latency <= 10"]), [{"accuracy": a, "latency": b} for a, b in order]
    )
    trial = planner.history.trials[0]
    assert trial.best == (0.7, order.index((0.7, 3.0)) + 1)


def test_what_a_later_attempt_supersedes_does_not_stay_the_best() -> None:
    of = one(constraints=["latency <= 10"])
    planner = Planner()
    planner.apply(Created(t=0, id="i", spec=of.to_json()))
    planner.apply(Opened(t=0, by="driver", driver="d", slots=1, trials=1))

    def settle() -> None:
        while (decision := planner.next(0.0)) is not None:
            planner.apply(decision)

    settle()
    planner.apply(Began(t=0, trial=0, attempt=1, node="n"))
    planner.apply(
        Reported(t=0, trial=0, attempt=1, rows=[Row(1, 0.0, {"accuracy": 0.9, "latency": 1.0})])
    )
    planner.apply(Ended(t=0, trial=0, attempt=1, outcome="lost", cause="preempted"))
    settle()
    planner.apply(Began(t=0, trial=0, attempt=2, node="n"))
    assert planner.history.best is None
    planner.apply(
        Reported(t=0, trial=0, attempt=2, rows=[Row(1, 0.0, {"accuracy": 0.95, "latency": 99.0})])
    )
    assert planner.history.best is None


@pytest.mark.parametrize(
    ("text", "metrics", "violation"),
    [
        ("latency <= 10", {"latency": 12.5}, 2.5),
        ("latency <= 10", {"latency": 10.0}, 0.0),
        ("latency<=1e1", {"latency": 4.0}, -6.0),
        ("val acc >= -0.5", {"val acc": -1.0}, 0.5),
        ("a/b >= .5", {"a/b": 1.0}, -0.5),
        ("latency <= 10", {}, math.inf),
        ("latency <= 10", {"latency": None}, math.inf),
    ],
)
def test_a_condition_is_read_as_it_is_written(
    text: str, metrics: dict[str, float | None], violation: float
) -> None:
    assert Constraint.parse(text, "constraints.0").violation(metrics) == violation


@pytest.mark.parametrize(
    "text",
    [
        "latency < 10",
        "latency",
        "<= 10",
        "latency <= fast",
        "latency <= nan",
        "latency = 10",
        "10 >= ",
        "",
    ],
)
def test_another_form_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        one(constraints=["memory <= 1", text])
    assert caught.value.key == "constraints.1"
    assert caught.value.hint == "write METRIC <= NUMBER or METRIC >= NUMBER"


# What cannot take several


def test_a_sampler_that_cannot_take_them_says_so_and_which_can() -> None:
    for changes, what in (
        ({"metric": TWO}, "several metrics"),
        ({"metric": "m", "mode": "min", "constraints": ["a <= 1"]}, "constraints"),
    ):
        of = spec(**{**changes, "search": f"{__name__}:Single"})
        with pytest.raises(SpecError) as caught:
            of.check_imports()
        assert (caught.value.key, caught.value.problem) == (
            "search",
            f"cannot take {what} into account",
        )
        assert "tpe" in caught.value.hint


def test_a_schedule_that_decides_by_one_metric_is_refused_where_there_are_several() -> None:
    with pytest.raises(SpecError) as caught:
        spec(schedule="asha")
    assert (caught.value.key, caught.value.hint) == ("schedule", "write schedule: fifo")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"metric": TWO, "mode": "max"}, "mode"),
        ({"metric": []}, "metric"),
        ({"metric": [{"name": "a"}]}, "metric.0.mode"),
        ({"metric": [{"name": "a", "mode": "least"}]}, "metric.0.mode"),
        ({"metric": "a"}, "mode"),
    ],
)
def test_metrics_without_their_modes_are_refused_with_the_key(
    changes: dict[str, Any], key: str
) -> None:
    with pytest.raises(SpecError) as caught:
        spec(**changes)
    assert caught.value.key == key


def test_a_list_of_one_metric_is_the_same_as_its_name() -> None:
    assert (
        spec(metric=[{"name": "a", "mode": "min"}]).metrics == one(metric="a", mode="min").metrics
    )
    assert samplers.make("random", spec(metric=[{"name": "a", "mode": "min"}]).setting)
