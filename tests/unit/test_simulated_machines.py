"""The machines of a simulated experiment: markets, prices, checkpoints that take time, limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from regrow.search.events import Began, Ended, Moved, Priced, Reported, Saved, Started, Waited
from regrow.search.history import cost
from regrow.search.planning.machines import Availability, Machine, availability
from regrow.search.planning.simulator import FunctionObjective, Simulation, simulate
from regrow.search.planning.verify import verify
from regrow.search.spec import Spec

SPEC: dict[str, Any] = {
    "name": "machines",
    "trainable": "work.py:train",
    "metric": "score",
    "mode": "max",
    "space": {"x": {"uniform": [0.0, 1.0]}},
    "search": "random",
    "schedule": "fifo",
    "trials": 8,
    "max_steps": 6,
}
HEAD = Machine(market="on-demand", price=0.1, slots=0)
COMES_AND_GOES = availability([1, 1, 1, 0, 1, 1, 0], 150.0, 3)


def spot(**more: Any) -> Machine:
    return Machine(market="spot", price=1.0, permanent=False, boot=20.0, idle=100.0, **more)


def on_demand(**more: Any) -> Machine:
    return Machine(market="on-demand", price=3.0, permanent=False, boot=20.0, idle=100.0, **more)


def run(machines: Sequence[Machine], **changes: Any) -> Simulation:
    timing = {key: changes.pop(key, 0.0) for key in ("startup", "save", "restore")}
    slots, seconds = changes.pop("slots", None), changes.pop("seconds", 60.0)
    spec = Spec.parse({**SPEC, **changes})

    def rising(config: Mapping[str, Any], step: int) -> float:
        return float(config["x"]) * step

    objective = FunctionObjective(function=rising, spec=spec, seconds=seconds)
    done = simulate(spec, objective, machines=machines, slots=slots, **timing)
    assert verify(done.events).difference is None
    return done


def test_attempts_run_only_on_machines_of_the_market_that_they_ask_for() -> None:
    fleet = [spot(availability=one) for one in COMES_AND_GOES] + [on_demand()] * 3
    market = {"first": "spot", "after": 50, "evictions": 2}
    done = run(fleet, market=market, slots=3)
    wanted = {(e.trial, e.attempt): e.market for e in done.events if isinstance(e, Started)}
    began = [event for event in done.events if isinstance(event, Began)]
    assert {event.market for event in began} == {"spot", "on-demand"}
    for event in began:
        assert event.market == wanted[event.trial, event.attempt]
        assert (event.price, event.node_id) == (
            {"spot": 1.0, "on-demand": 3.0}[event.market],
            event.node,
        )


def test_a_trial_that_avoids_spot_machines_waits_for_another_one_if_there_is_one() -> None:
    goes = Availability(changes=(0.0, 90.0, 100.0))
    fleet = [spot(availability=goes), on_demand()]
    done = run(fleet, trials=1, retries={"spot": 1}, slots=1)
    assert [a.market for a in done.history.trials[0].attempts] == ["spot", "on-demand"]
    alone = run(fleet[:1], trials=1, retries={"spot": 1})
    assert [a.market for a in alone.history.trials[0].attempts] == ["spot", "spot"]


def test_one_that_waits_too_long_asks_for_the_other_kind_as_the_coordinator_has_it() -> None:
    never = Availability(begins_up=False)
    done = run(
        [spot(availability=never), on_demand()], trials=1, market={"first": "spot", "after": 50}
    )
    assert [(e.t, e.seconds) for e in done.events if isinstance(e, Waited)] == [(50.0, 50.0)]
    assert [e.t for e in done.events if isinstance(e, Began)] == [70.0], "20 s to boot"


def test_a_machine_costs_from_its_start_to_its_stop_and_a_permanent_one_always() -> None:
    """Two trials one after the other on one machine of 3 an hour, which boots for 20 s."""
    done = run([HEAD, on_demand(), on_demand()], trials=2, slots=1)
    prices = [(e.t, e.per_hour, e.nodes) for e in done.events if isinstance(e, Priced)]
    assert prices == [(0.0, 3.1, 2)]
    assert done.now == 20.0 + 2 * 6 * 60.0
    paid = cost.of(done.history, done.now)
    assert paid.money == pytest.approx(720 * 3.0 / 3600)
    assert paid.total == pytest.approx(740 * 3.1 / 3600)


def test_a_machine_is_stopped_after_its_idle_time() -> None:
    """The short trials end after a step; the machines of the second group are started no more."""
    schedule = {"asha": {"type": "promotion"}}
    done = run([HEAD, *[on_demand()] * 4], trials=4, schedule=schedule, max_steps=30, seconds=60.0)
    prices = [e.per_hour for e in done.events if isinstance(e, Priced)]
    assert max(prices) == pytest.approx(12.1)
    assert prices[-1] < 12.0, "those without work were stopped"


def test_the_prices_of_the_log_add_up_to_the_cost() -> None:
    """What the machines cost while they were up, added up apart from the history."""
    fleet = [HEAD, *(spot(availability=one) for one in COMES_AND_GOES), on_demand(slots=2)]
    done = run(fleet, market={"first": "spot", "after": 60}, slots=4, save=5.0, startup=7.0)
    total, since, per_hour = 0.0, 0.0, 0.0
    for event in done.events:
        if isinstance(event, Priced):
            total += per_hour * (event.t - since) / 3600
            since, per_hour = event.t, event.per_hour
    total += per_hour * (done.now - since) / 3600
    paid = cost.of(done.history, done.now)
    assert paid.total == pytest.approx(total)
    assert 0 < paid.rest < total
    assert any(isinstance(e, Ended) and e.cause == "preempted" for e in done.events)


def test_an_attempt_has_its_share_of_a_machine_with_several_slots() -> None:
    done = run([Machine(market="on-demand", price=4.0, slots=4)], trials=4)
    assert {(e.node, e.share) for e in done.events if isinstance(e, Began)} == {("worker-0", 0.25)}
    paid = cost.of(done.history, done.now)
    assert paid.money == pytest.approx(0.4)
    assert paid.rest == pytest.approx(0.0)


def test_training_continues_during_a_checkpoint_and_leaving_waits_for_it() -> None:
    done = run([Machine()], trials=1, max_steps=3, save=20.0)
    saved = [(e.step, e.t, e.seconds) for e in done.events if isinstance(e, Saved)]
    assert saved == [(1, 80.0, 20.0), (2, 140.0, 20.0), (3, 200.0, 20.0)]
    assert done.now == 200.0
    assert done.history.pace.save == 20.0


def test_checkpoints_slower_than_steps_hold_the_training_up() -> None:
    """Two may be under way; the third step waits for the first to be durable."""
    done = run([Machine()], trials=1, max_steps=4, save=150.0)
    assert [e.t for e in done.events if isinstance(e, Reported)] == [60.0, 120.0, 180.0, 270.0]
    assert [e.t for e in done.events if isinstance(e, Saved)] == [210.0, 360.0, 510.0, 660.0]


def test_a_checkpoint_that_was_not_durable_is_lost_and_loading_one_takes_its_time() -> None:
    goes = Availability(changes=(0.0, 130.0, 200.0))
    done = run([Machine(availability=goes)], trials=1, max_steps=3, save=20.0, restore=15.0)
    first, second = done.history.trials[0].attempts
    assert (first.to_step, second.from_step) == (2, 1)
    again = next(e for e in done.events if isinstance(e, Began) and e.attempt == 2)
    assert (again.t, again.ago) == (215.0, 15.0)
    assert second.t_began == 200.0


@pytest.mark.parametrize("stop", [{"dollars": 2.0}, {"deadline": "1h"}])
def test_money_and_time_are_kept_with_everything_saved(stop: dict[str, Any]) -> None:
    fleet = [HEAD, *(spot(availability=one) for one in COMES_AND_GOES)]
    done = run(fleet, stop=stop, trials=500, max_steps=20, save=10.0, slots=3)
    assert done.history.closing is not None
    assert done.history.closing.limit
    total = cost.of(done.history, done.now).total
    if "dollars" in stop:
        assert total is not None
        assert 1.8 < total <= 2.0
    else:
        assert 3300 < done.now <= 3600
    last = {e.trial: e for e in done.events if isinstance(e, Ended)}
    assert all(e.outcome in ("done", "paused", "lost") for e in last.values())
    left = [trial for trial in done.history.trials if trial.attempts[-1].outcome == "paused"]
    assert left
    assert all(trial.attempts[-1].saved == trial.step for trial in left)


LONG = availability([1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 1, 1, 0, 0, 1, 1, 0, 0, 0, 0], 900.0, 3)
"""Each machine is there for half of the time."""


def cheap(deadline: float, **changes: Any) -> Simulation:
    """24 trials of 20 minutes on three machines: 160 minutes on demand."""
    fleet = [spot(availability=one) for one in LONG] + [on_demand()] * 3
    return run(
        fleet,
        slots=3,
        startup=10.0,
        save=5.0,
        restore=5.0,
        trials=24,
        max_steps=20,
        market={"first": "spot"},
        stop={"deadline": deadline},
        **changes,
    )


@pytest.mark.parametrize("schedule", ["fifo", "asha"])
@pytest.mark.parametrize("stretch", [1.15, 1.5, 2.5])
def test_a_deadline_is_met_with_spot_machines_as_long_as_they_will_do(
    stretch: float, schedule: str
) -> None:
    done = cheap(stretch * 160 * 60, schedule=schedule)
    assert all(trial.state.final for trial in done.history.trials)
    assert done.now < stretch * 160 * 60
    full = 24 * 20 / 60 * 3.0
    assert (cost.of(done.history, done.now).total or 0.0) < (0.98 if stretch < 1.5 else 0.8) * full


def test_on_demand_machines_are_asked_for_only_when_the_deadline_asks_for_them() -> None:
    ample, tight = (cheap(stretch * 160 * 60) for stretch in (4.0, 1.15))
    share = [
        sum(isinstance(e, Started) and e.market == "on-demand" for e in done.events)
        / sum(isinstance(e, Started) for e in done.events)
        for done in (ample, tight)
    ]
    assert share[0] < share[1] / 2


def test_an_attempt_returns_to_a_spot_machine_once_there_is_time_to_spare() -> None:
    gone = Availability(changes=(0.0, 1200.0, 4800.0))  # up, down, and up for good
    fleet = [spot(availability=gone)] * 3 + [on_demand()] * 3
    trials: dict[str, Any] = {"trials": 3, "max_steps": 200, "slots": 3, "save": 5.0}
    end = 1.4 * 200 * 60
    done = run(fleet, market={"first": "spot"}, stop={"deadline": end}, **trials)
    assert done.now < end
    assert all(trial.state.value == "done" for trial in done.history.trials)
    moves = [event for event in done.events if isinstance(event, Moved)]
    assert {event.trial for event in moves} == {0, 1, 2}
    after = [e for e in done.events if isinstance(e, Began) and e.t > moves[-1].t]
    assert after[-1].market == "spot"
    for move in moves:  # with a checkpoint of its last step, so that no step is done twice
        attempt = done.history.trials[move.trial].attempts[move.attempt - 1]
        assert (attempt.outcome, attempt.superseded) == ("paused", 0)


def test_with_auto_checkpoints_follow_from_their_duration_and_the_losses() -> None:
    fleet = [spot(availability=one) for one in availability([1, 1, 0] * 200, 1500.0, 3)]
    seconds = {"save": 20.0, "seconds": 60.0, "trials": 12, "max_steps": 30, "slots": 3}
    auto, always = (run(fleet, checkpoint=how, **seconds) for how in ("auto", {"every_steps": 1}))
    intervals = [event.every_seconds for event in auto.events if isinstance(event, Started)]
    assert intervals[0] is None  # nothing was measured
    later = [one for one in intervals if one is not None]
    assert all(200.0 <= one <= 800.0 for one in later)  # sqrt(2 * 20 s * 4 h) = 759 s at most
    assert later[-1] < later[0]  # losses were seen
    saves = [sum(isinstance(e, Saved) for e in done.events) for done in (auto, always)]
    assert saves[0] < saves[1] / 2
