"""What an estimate is made of: curves that are drawn, machines that come and go, intervals that
hold, and what is recommended.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from regrow.infra.log.log import Log
from regrow.infra.state.places import Places
from regrow.search.errors import SpecError
from regrow.search.events import encode
from regrow.search.planning import estimating
from regrow.search.planning.curves import Drawn, RecordedCurve, completed
from regrow.search.planning.estimating import EstimateInputs, Offered, Rates, Scenario, Timing
from regrow.search.planning.machines import Availability, Machine, Trace, shifted
from regrow.search.planning.simulator import Simulation, simulate
from regrow.search.spec import Spec
from regrow.show.estimate.sources import from_experiments
from regrow.tasks.errors import UserError

SPEC: dict[str, Any] = {
    "name": "estimated",
    "trainable": "work.py:train",
    "metric": "loss",
    "mode": "min",
    "space": {"x": {"uniform": [0.0, 1.0]}, "y": {"uniform": [0.0, 1.0]}},
    "search": "random",
    "schedule": {"asha": {"grace_period": 2}},
    "trials": 16,
    "max_steps": 6,
}
SPOT = Machine(market="spot", price=1.0, permanent=False, boot=120.0)
ON_DEMAND = Machine(market="on-demand", price=3.0, permanent=False, boot=120.0)
OFFERED = Offered(
    kinds={"spot": SPOT, "on-demand": ON_DEMAND},
    market={"first": "spot", "after": 600},
)


class Task:
    """A made-up task: what its trials really report, with noise of their own seeds."""

    def __init__(self, number: int) -> None:
        chance = random.Random(number)
        self.x, self.y = chance.random(), chance.random()

    def at(
        self, config: Mapping[str, Any], step: int, seed: int
    ) -> tuple[Mapping[str, float], float]:
        noise = random.Random(seed).gauss(0.0, 0.03)
        away = (config["x"] - self.x) ** 2 + (config["y"] - self.y) ** 2
        return {"loss": 0.2 + away + abs(noise) + 1.0 / step}, 300.0 * (1.0 + config["x"])


def spec(**changes: Any) -> Spec:
    return Spec.parse({**SPEC, **changes})


def recorded(number: int, trials: int = 20) -> list[RecordedCurve]:
    """Whole curves of other trials of a task."""
    of = spec(trials=trials, schedule="fifo", seed=1000 + number)
    task = Task(number)
    done = simulate(of, task, workers=4, checkpoints=False).history
    return [
        RecordedCurve(
            config=trial.config,
            rows=[{"loss": value} for value in trial.values],
            seconds=[300.0 * (1.0 + trial.config["x"])] * 6,
        )
        for trial in done.trials
    ]


def inputs(curves: list[RecordedCurve], **changes: Any) -> EstimateInputs:
    return EstimateInputs(
        spec=spec(**changes),
        curves=curves,
        offered=OFFERED,
        timing=Timing(startup=5.0, save=10.0),
        spot=Rates(up=3600.0, away=600.0),
    )


# Honesty


def test_the_intervals_hold_what_really_comes_about_as_often_as_they_say() -> None:
    """Nine tasks, each estimated from twenty curves and then run, by other seeds: 80 % intervals
    hold between 60 and 97 % of 36 outcomes each of cost, time and best value.
    """
    held = dict.fromkeys(("cost", "seconds", "best"), 0)
    plan, runs = Scenario(kind="fall-back", machines=4), 4
    for number in range(9):
        given = inputs(recorded(number))
        found = estimating.summary(
            given, plan, [estimating.simulated(given, plan, n) for n in range(24)]
        )
        for again in range(runs):
            one = actual(given, plan, Task(number), 100 * number + again)
            for name in held:
                span = getattr(found, name)
                held[name] += span.low <= getattr(one, name) <= span.high
    for name, count in held.items():
        assert 0.6 * 36 <= count <= 0.97 * 36, (name, held)


def actual(given: EstimateInputs, plan: Scenario, task: Task, seed: int) -> estimating.Outcome:
    """A run of the true task on machines that come and go by another chance."""
    chance = random.Random(seed)
    run = Simulation(
        spec=given.specified(plan, seed),
        objective=task,
        machines=list(given.fleet(plan, chance)),
        slots=given.slots(plan),
        startup=5.0,
        save=10.0,
        restore=10.0,
    )
    return estimating.outcome(run.open().run())


# Curves


def test_a_known_configuration_has_its_own_curve_and_others_one_of_the_nearest() -> None:
    curves = [
        RecordedCurve(config={"x": n / 9, "y": 0.5}, rows=[{"loss": 1.0, "who": n}], seconds=[1.0])
        for n in range(10)
    ]
    for seed in range(20):
        drawn = Drawn(curves, spec().space, "loss", seed)
        for n in {round(9 * float(str(curve.config["x"]))) for curve in drawn.curves}:
            assert drawn.at({"x": n / 9, "y": 0.5}, 1, 7)[0]["who"] == n
    seen = {
        Drawn(curves, spec().space, "loss", seed).at({"x": 0.0, "y": 0.4}, 1, seed)[0]["who"]
        for seed in range(60)
    }
    assert seen >= {0, 1, 2}
    assert max(seen) < 8


def test_what_is_drawn_may_be_better_than_all_that_was_seen_but_keeps_its_bounds() -> None:
    def found(best: float) -> list[float]:
        curves = [
            RecordedCurve(
                config={"x": n / 9, "y": 0.5},
                rows=[{"loss": best + (9 - n) / 20}],
                seconds=[1.0],
            )
            for n in range(10)
        ]
        return [
            Drawn(curves, spec().space, "loss", seed).at({"x": 1.0, "y": 0.5}, 1, seed)[0]["loss"]
            for seed in range(100)
        ]

    assert min(found(0.5)) < 0.48
    assert max(found(0.5)) <= 1.0
    assert 0.0 <= min(found(0.01)) < 0.008
    assert len({*found(0.01)}) > 90
    assert min(found(-1.0)) < -1.02


def test_the_curve_of_a_stopped_trial_continues_as_the_nearest_longer_one_does() -> None:
    def curve(values: list[float], seconds: float, *, whole: bool = True) -> RecordedCurve:
        rows = [{"loss": value} for value in values]
        return RecordedCurve(config={}, rows=rows, seconds=[seconds] * len(values), whole=whole)

    good, poor = curve([1.0, 0.6, 0.5], 1.0), curve([3.0, 2.5, 2.4], 1.0)
    stopped = curve([2.8], 2.0, whole=False)
    done = completed([stopped, good, poor], "loss", 3)
    assert [row["loss"] for row in done[0].rows] == pytest.approx([2.8, 2.3, 2.2])
    assert list(done[0].seconds) == [2.0, 2.0, 2.0]
    assert done[1:] == [good, poor]


def test_curves_and_durations_are_those_of_the_log(tmp_path: Any) -> None:
    """Steps of 300 to 600 s that a lost machine cut are told by the attempts that did them."""
    places = Places(root=str(tmp_path / "state"))
    of, task = spec(name="before", seed=5), Task(0)
    goes = Availability(changes=(0.0, 4000.0, 4500.0))
    fleet = [Machine(market="spot", price=1.0, availability=goes), Machine(market="spot")]
    run = simulate(of, task, machines=fleet, startup=7.0, save=12.0)
    assert run.history.trials[0].attempts
    Log.open(places.store("before")).claim([encode(event) for event in run.events])
    found = from_experiments(places, spec(), [], scale=2.0)
    assert found.names == [("before", 16)]
    assert (found.timing.save, found.timing.startup) == (12.0, 7.0)
    assert found.stopped > 0
    for trial, curve in zip(run.history.trials, found.curves, strict=True):
        assert curve.config == trial.config
        assert len(curve.rows) == 6
        step = 2.0 * task.at(trial.config, 1, 0)[1]
        assert list(curve.seconds) == pytest.approx([step] * 6)
    other = spec(space={"z": {"uniform": [0.0, 1.0]}})
    with pytest.raises(SpecError, match="had no parameter 'z'"):
        from_experiments(places, other, ["before"], scale=1.0)
    with pytest.raises(UserError, match=r"--pilot 3, or name .* --from NAME or --table FILE"):
        from_experiments(places, spec(metric="accuracy"), [], scale=1.0)


# Machines


def test_a_plan_has_the_machines_that_its_name_says() -> None:
    given = inputs(recorded(0, 4))
    markets = {
        kind: [m.market for m in given.fleet(Scenario(kind=kind, machines=2), random.Random(0))]
        for kind in OFFERED.choices
    }
    assert markets == {
        "spot": ["spot", "spot"],
        "on-demand": ["on-demand"] * 2,
        "fall-back": ["spot", "spot", "on-demand", "on-demand"],
    }
    fall_back = given.specified(Scenario(kind="fall-back", machines=2), 0).market
    assert fall_back is not None
    assert (fall_back.first, fall_back.after) == ("spot", 600.0)
    assert given.specified(Scenario(kind="spot", machines=2), 0).market is None
    more = Scenario(kind="spot", machines=2, dollars=5.0, more=True)
    assert given.specified(more, 0).stop.dollars == 5.0
    assert given.specified(more, 0).trials is None


def test_a_recorded_market_begins_anywhere_and_comes_again() -> None:
    one = Availability(changes=(0.0, 30.0, 50.0))  # up for 30 s, away for 20, up for 50
    again = shifted(one, 40.0, 100.0, 250.0)
    states = [again.up(t) for t in (0.0, 9.9, 10.0, 89.0, 91.0, 109.0, 110.0, 189.0, 190.5, 211.0)]
    assert states == [False, False, True, True, False, False, True, True, False, True]
    trace = Trace(counts=(1, 1, 0, 1, 1, 1), gap_seconds=600.0)
    assert estimating.between_losses([trace]) == pytest.approx(3000.0)
    assert estimating.between_losses([Trace(counts=(1, 1), gap_seconds=60.0)]) is None
    assert estimating.between_losses(Rates(up=5.0)) == 5.0


# Advice


def test_the_interval_of_checkpoints_is_youngs() -> None:
    assert estimating.checkpoint_interval(30.0, 6 * 3600.0) == pytest.approx(1138.4, abs=0.1)


def planned(kind: Any, machines: int, cost: float, hours: float, chance: float) -> Any:
    def one(value: float) -> estimating.Span:
        return estimating.Span(low=value, median=value, high=value)

    return estimating.ScenarioForecast(
        scenario=Scenario(kind=kind, machines=machines),
        seconds=one(hours * 3600),
        cost=one(cost),
        hours=one(1.0),
        best=None,
        trials=one(1.0),
        on_time=chance,
        within=None,
        wasted=0.0,
        outcomes=(),
    )


def test_recommended_is_the_fastest_of_the_cheap_plans_that_are_likely_to_be_on_time() -> None:
    late, cheap = planned("spot", 4, 5.0, 9.0, 0.2), planned("spot", 8, 8.0, 5.0, 0.95)
    fast, dear = planned("spot", 16, 8.5, 3.0, 1.0), planned("on-demand", 16, 20.0, 2.0, 1.0)
    assert estimating.recommended([late, cheap, fast, dear]) is fast
    assert estimating.recommended([late, cheap, dear]) is cheap
    assert estimating.recommended([late]) is late, "better than nothing"
    back = planned("fall-back", 16, 8.5, 3.0, 1.0)
    assert estimating.recommended([fast, back]) is back


@pytest.mark.parametrize(
    ("stop", "cut"), [({"dollars": 1.0}, "stop.dollars"), ({"deadline": 3600.0}, "stop.deadline")]
)
def test_the_chance_is_the_share_that_no_limit_cut(stop: dict[str, Any], cut: str) -> None:
    given, plan = inputs(recorded(0), stop=stop), Scenario(kind="spot", machines=2)
    outcomes = [estimating.simulated(given, plan, n) for n in range(4)]
    assert [one.cut for one in outcomes] == [cut] * 4
    found = estimating.summary(given, plan, outcomes)
    assert (found.within, found.on_time) == ((0.0, None) if "dollars" in stop else (None, 0.0))
    enough = inputs(recorded(0), stop={"dollars": 1000.0, "deadline": 1e6})
    found = estimating.summary(enough, plan, [estimating.simulated(enough, plan, 0)])
    assert (found.within, found.on_time) == (1.0, 1.0)


def test_values_at_the_ends_of_what_a_float_holds_make_a_finite_estimate() -> None:
    most = sys.float_info.max
    ends = ((-most, most), (most, -most), (-most, -most), (most, most))
    curves = [
        RecordedCurve(
            config={"x": n / 4, "y": 0.5},
            rows=[{"loss": value} for value in values[: 1 + (n != 2)]],
            seconds=[1.0, 1.0],
            whole=n != 2,
        )
        for n, values in enumerate(ends)
    ]
    full = completed(curves, "loss", 2)
    for seed in range(20):
        drawn = Drawn(full, spec().space, "loss", seed)
        values = [drawn.at({"x": n / 9, "y": 0.5}, 2, n)[0]["loss"] for n in range(9)]
        assert all(map(math.isfinite, values))
    found = estimating.span([-most, most, most])
    assert found.low == pytest.approx(-0.6 * most)
    assert (found.median, found.high) == (most, most)
