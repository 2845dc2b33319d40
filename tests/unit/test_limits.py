"""The limits of money and time: kept, whatever the schedule, and everything saved before."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from regrow.search.errors import SpecError
from regrow.search.events import (
    AnyEvent,
    Closed,
    Closing,
    Opened,
    Priced,
    Proposed,
    Rehearsed,
    Started,
)
from regrow.search.history import History, cost
from regrow.search.planning import forecast, limits
from regrow.search.planning.machines import Machine
from regrow.search.planning.simulator import FunctionObjective, Simulation
from regrow.search.planning.verify import verify
from regrow.search.spec import Spec
from regrow.search.spec.moments import epoch, moment
from regrow.show.views import budget
from tests.unit import told

HOUR = 3600.0
STEP = 60.0
SPEC: dict[str, Any] = {
    "name": "limited",
    "trainable": "train.py:train",
    "metric": "loss",
    "mode": "min",
    "space": {"x": {"uniform": [0.0, 1.0]}},
    "search": "random",
    "max_steps": 27,
    "price_per_hour": 1.0,
}
SCHEDULES: list[Any] = [
    "fifo",
    "asha",
    {"asha": {"type": "promotion"}},
    "hyperband",
    "median",
    {"pbt": {"perturbation_interval": 5}},
]


def run(
    stop: dict[str, Any], schedule: Any = "asha", *, workers: int = 4, **changes: Any
) -> Simulation:
    spec = Spec.parse({**SPEC, "schedule": schedule, "stop": stop, **changes})

    def loss(config: dict[str, Any], step: int) -> dict[str, float]:
        return {"loss": float((config["x"] - 0.3) ** 2 + 1 / step), "images": 100.0 * step}

    objective = FunctionObjective(function=loss, spec=spec, seconds=STEP)
    machines = [Machine(slots=workers)]
    return Simulation(spec=spec, objective=objective, machines=machines).open().run()


def unsaved(history: History) -> list[int]:
    """The trials that have done steps which no checkpoint has."""
    return [
        trial.number
        for trial in history.trials
        if not trial.state.final and trial.step > max(trial.checkpoints, default=0)
    ]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("stop", [{"dollars": 12.0}, {"deadline": "3h"}], ids=str)
def test_a_limit_is_kept_and_all_is_saved_before(stop: dict[str, Any], schedule: Any) -> None:
    done = run(stop, schedule)
    history = done.history
    assert history.closed is not None
    assert history.closed.status == "finished"
    assert history.closing is not None
    assert history.closing.limit == f"stop.{next(iter(stop))}"
    assert (cost.of(history, done.now).total or 0.0) <= stop.get("dollars", float("inf"))
    assert done.now <= (3 * HOUR if "deadline" in stop else float("inf"))
    assert not unsaved(history)
    assert history.lost_steps == 0
    assert history.leader is not None
    # of what is there to use, at most a step of each worker and a trial that would not fit are left
    used = limits.share(history, done.now)
    assert used > 0.8, used
    assert not verify(done.events).difference


def test_a_session_with_more_money_continues_what_was_paused() -> None:
    first = run({"dollars": 1.0}, {"pbt": {"perturbation_interval": 5}})
    paused = [trial.number for trial in first.history.trials if not trial.state.final]
    assert paused
    spec = Spec.parse({**first.spec.to_json(), "stop": {"dollars": 9.0}})
    again = Simulation(spec=spec, objective=first.objective, workers=4).open(first.events).run()
    history = again.history
    assert all(history.trials[number].state.final for number in paused)
    assert history.lost_steps == 0
    assert 1.0 < (cost.of(history, again.now).total or 0.0) <= 9.0


def test_no_trial_begins_that_cannot_reach_its_first_rung() -> None:
    done = run({"deadline": "3h"}, {"asha": {"grace_period": 9}})
    for trial in done.history.trials:
        assert trial.step >= 9 or not trial.attempts, (trial.number, trial.step)


@pytest.mark.parametrize("stop", [{"dollars": 12.0}, {"deadline": "3h"}], ids=str)
def test_where_a_metric_counts_the_steps_a_trial_takes_no_longer(stop: dict[str, Any]) -> None:
    plain = run(stop, {"asha": {"grace_period": 3}}, trials=90)
    images: dict[str, Any] = {"max_steps": 2700, "step_metric": "images", "trials": 90}
    counted = run(stop, {"asha": {"grace_period": 300}}, **images)
    assert [(type(one), one.t) for one in counted.events] == [
        (type(one), one.t) for one in plain.events
    ]
    found = forecast.of(_after(counted, 20), HOUR)
    assert found is not None
    assert found == forecast.of(_after(plain, 20), HOUR)


def _after(done: Simulation, trials: int) -> History:
    """The history when so many trials have ended."""
    history = History()
    for event in done.events:
        if history.ended < trials:
            history.apply(event)
    return history


def test_money_is_for_the_best_in_the_end() -> None:
    done = run({"dollars": 12.0}, {"asha": {"type": "promotion"}})
    history = History()
    refused = 0
    for event in done.events:
        if isinstance(event, Proposed) and history.trials:
            left = 12.0 - limits.spent(history, event.t)
            seconds = left / (cost.per_hour(history) + 1.0) * HOUR
            # whatever is proposed after the half could still be trained as a whole
            assert left > 6.0 or seconds >= 27 * STEP
            refused += left <= 6.0
        history.apply(event)
    assert refused
    assert sum(trial.step == 27 for trial in history.trials) >= 4


def test_a_new_trial_may_begin_although_all_before_it_were_paused_at_their_first_rung() -> None:
    pbt = {"pbt": {"perturbation_interval": 5}}
    done = run({"deadline": "3h"}, pbt, workers=1, trials=6, max_steps=500)
    assert all(trial.step >= 5 for trial in done.history.trials)
    assert len(done.history.trials) == 6


@pytest.mark.parametrize(
    ("stop", "word"), [({"deadline": 1}, "time"), ({"dollars": 1e-9}, "money")], ids=str
)
def test_nothing_begins_where_there_is_no_time_to_leave(stop: dict[str, Any], word: str) -> None:
    done = run(stop)
    assert not done.history.trials
    assert done.history.closing is not None
    assert done.history.closing.why == (
        f"a new trial could not reach a result with the {word} that is left"
    )


def test_what_has_not_begun_does_not_keep_a_session_that_a_limit_ends() -> None:
    spec = Spec.parse({**SPEC, "stop": {"deadline": "2h"}})
    objective = FunctionObjective(function=lambda config, _: config["x"], spec=spec, seconds=STEP)
    planner = Simulation(spec=spec, objective=objective, workers=2, startup=3 * HOUR).open().planner
    made = []
    while (decision := planner.next(2 * HOUR - 11.0)) is not None:
        planner.apply(decision)
        made.append(decision)
    assert [type(event).__name__ for event in made[1:]] == ["Closing", "Ended", "Ended", "Closed"]
    assert {trial.state.value for trial in planner.history.trials} == {"paused"}


def test_a_trial_begins_only_if_its_machine_is_ready_in_time() -> None:
    spec = Spec.parse({**SPEC, "max_steps": 5, "stop": {"deadline": "3h"}})
    objective = FunctionObjective(function=lambda config, _: config["x"], spec=spec, seconds=STEP)
    done = Simulation(spec=spec, objective=objective, workers=4, startup=1500.0).open().run()
    assert all(trial.step == 5 for trial in done.history.trials)


def test_trials_without_checkpoints_need_no_time_for_them() -> None:
    spec = Spec.parse({**SPEC, "max_steps": 5, "stop": {"deadline": 15}})
    objective = FunctionObjective(function=lambda config, _: config["x"], spec=spec, seconds=0.2)
    done = Simulation(spec=spec, objective=objective, workers=2, checkpoints=False).open().run()
    assert done.now > 8.0, "10.5 s would be left if a checkpoint took 5 s"


def test_a_further_limit_is_to_come() -> None:
    done = run({"dollars": 12.0, "deadline": 10_000_000.0})
    assert limits.further(done.history) == [("stop.dollars", "18")]
    done = run({"deadline": 60})
    ((key, later),) = limits.further(done.history)
    assert key == "stop.deadline"
    assert epoch(moment(later), 0.0) >= done.now + 30 * 60


def folded(*events: AnyEvent, like: Simulation) -> History:
    return told.folded([*like.events[:2], *events])


def test_idle_machines_and_the_head_count() -> None:
    done = run({"dollars": 12.0})
    begun = done.events[1].t
    history = folded(Priced(t=begun, per_hour=2.5, nodes=3), like=done)
    assert cost.of(history, begun + HOUR).rest == pytest.approx(2.5)
    assert limits.spent(history, begun + 2 * HOUR) == pytest.approx(5.0)
    limit = limits.nearest(history, begun + HOUR)
    assert limit is not None
    assert limit.at == pytest.approx(begun + 12.0 / 2.5 * HOUR)


@pytest.mark.parametrize(
    ("agent", "gap", "paid"), [("a", 60.0, 6.1), ("a", 600.0, 6.0), ("", 60.0, 6.0)]
)
def test_machines_of_agents_cost_between_two_leaders(agent: str, gap: float, paid: float) -> None:
    done = run({"dollars": 1.0})
    begun = done.events[1].t
    history = folded(Priced(t=begun, per_hour=6.0, nodes=3), like=done)
    history.apply(Closing(t=begun + HOUR, status="interrupted", why="it leaves", by="user"))
    history.apply(Closed(t=begun + HOUR, status="interrupted"))
    later = begun + HOUR + gap
    history.apply(Opened(t=later, by="driver", driver="b", slots=4, trials=9, agent=agent))
    assert cost.of(history, later).rest == pytest.approx(paid)


def test_an_attempt_without_a_price_ends_the_session_with_what_to_do() -> None:
    done = run({"dollars": 12.0, "deadline": "1h"}, price_per_hour=None)
    assert done.history.closing is not None
    assert done.history.closing.status == "failed"
    assert "price_per_hour" in done.history.closing.why
    assert not limits.further(done.history)


def test_all_parts_of_a_limit_are_recorded_once() -> None:
    done = run({"dollars": 12.0})
    assert [one.percent for one in done.history.milestones] == [25, 50, 80]
    assert [one.spent for one in done.history.milestones] == pytest.approx([3, 6, 9.6], abs=0.3)


def test_what_still_runs_at_the_limit_is_overdue() -> None:
    done = run({"deadline": "3h"})
    cut = next(n for n, event in enumerate(done.events) if isinstance(event, Closing))
    history = told.folded(done.events[: cut + 1])
    assert history.running
    assert not limits.overdue(history, done.events[cut].t)
    assert limits.overdue(history, 3 * HOUR)


def rehearsed(seconds: float | None, *, deadline: float = HOUR) -> Simulation:
    """A session with a deadline that has begun, whose end was tried by then."""
    spec = Spec.parse({**SPEC, "trials": 1, "stop": {"deadline": deadline}})
    objective = FunctionObjective(function=lambda *_: 1.0, spec=spec, seconds=STEP)
    begun = Simulation(spec=spec, objective=objective).open()
    if seconds is not None:
        begun.record(Rehearsed(t=1.0, seconds=seconds))
    return begun


@pytest.mark.parametrize(
    ("seconds", "kept"), [(None, 30.0), (1.0, 30.0), (100.0, 127.0), (HOUR, HOUR / 2)]
)
def test_what_the_end_took_in_a_rehearsal_is_kept_before_a_deadline(
    seconds: float | None, kept: float
) -> None:
    begun = rehearsed(seconds)
    assert limits.saved_by(begun.history, HOUR) == HOUR - kept
    done = begun.run()
    assert done.now <= HOUR - kept
    assert not verify(done.events).difference


def test_the_longest_rehearsal_counts() -> None:
    begun = rehearsed(100.0)
    begun.record(Rehearsed(t=2.0, seconds=50.0))
    assert limits.saved_by(begun.history, HOUR) == HOUR - 127.0


@pytest.mark.parametrize(
    ("now", "seconds", "before", "due"),
    [
        (0.1, 3.0, None, True),
        (0.1, 3.0, 0.05, False),
        (0.6, 3.0, 0.1, True),
        (0.6, 3.0, None, True),
        (0.6, 3.0, 0.55, False),
        (0.6, None, None, False),
        (0.9, 100.0, 0.1, False),
    ],
)
def test_the_end_is_rehearsed_early_and_once_more_where_there_is_time(
    now: float, seconds: float | None, before: float | None, *, due: bool
) -> None:
    history = rehearsed(seconds).history
    last = None if before is None else before * HOUR
    assert limits.rehearses(history, now * HOUR, last) is due


def test_without_a_deadline_the_end_is_not_rehearsed() -> None:
    assert not limits.rehearses(run({"dollars": 1.0}).history, 0.0, None)


@pytest.mark.parametrize(("uneven", "done"), [(0.0, 27), (0.2, 26)])
def test_the_reserve_for_a_step_is_what_steps_have_differed_by(uneven: float, done: int) -> None:
    """The last step begins 80 s before all must be saved; one in five takes longer than the rest."""
    spec = Spec.parse(
        {**SPEC, "schedule": "fifo", "trials": 1, "stop": {"deadline": 27 * STEP + 50}}
    )

    class Steps:
        def at(self, config: Any, step: int, seed: int) -> tuple[dict[str, float], float]:
            longer = uneven * STEP
            return {"loss": 1.0}, STEP + (longer if step % 5 == 0 else -longer / 4)

    found = Simulation(spec=spec, objective=Steps(), machines=[Machine()]).open().run()
    assert found.history.trials[0].step == done
    assert not unsaved(found.history)
    assert not verify(found.events).difference


@pytest.mark.parametrize("seed", range(8))
def test_the_forecast_holds_the_end(seed: int) -> None:
    done = run({"deadline": "30h"}, "fifo", trials=60, seed=seed)
    history = History()
    made = None
    for event in done.events:
        history.apply(event)
        if made is None and history.ended == 20:
            made = forecast.of(history, event.t)
    assert made is not None
    first, last = made.interval
    assert first <= done.now <= last
    assert made.costs is not None
    assert made.costs[0] <= (cost.of(done.history, done.now).total or 0.0) <= made.costs[1]


def test_an_end_that_no_calendar_has_is_that_of_the_last_year_that_is_shown() -> None:
    open_ended = {"max_steps": 10**12, "trials": 400, "price_per_hour": 1e-9}
    spec = Spec.parse({**SPEC, "schedule": "fifo", "stop": {"dollars": 1.0}, **open_ended})
    found = Simulation(
        spec=spec, objective=FunctionObjective(function=lambda *_: 1.0, spec=spec), workers=4
    ).open()
    while found.history.ended < 5:
        found.run(most_events=len(found.events) + 1)
        for running in found.running:
            if running.step:
                found.fail(running.trial, "ValueError: no")
    found.run(most_events=len(found.events) + 40)  # those that run have done more
    seen = budget.view(found.history, found.now, alive=True)
    assert seen is not None
    assert seen["forecast"]["ends"] == "3000-01-01T00:00:00+00:00"


def test_a_forecast_counts_the_slow_trials_of_which_few_have_ended() -> None:
    """Trials take from a third to three times as long. Of 10 of 40 that have ended most were quick:
    if only these counted, 6 of 20 searches would end after the interval.
    """
    late = []
    for seed in range(20):
        spec = Spec.parse({**SPEC, "schedule": "fifo", "trials": 40, "max_steps": 9, "seed": seed})

        class Uneven:
            def at(self, config: Any, step: int, seed: int) -> tuple[dict[str, float], float]:
                return {"loss": 1.0}, STEP * math.exp(random.Random(seed).gauss(0.0, 0.6))

        found = Simulation(spec=spec, objective=Uneven(), workers=4, checkpoints=False).open().run()
        history, made = History(), None
        for event in found.events:
            history.apply(event)
            if made is None and history.ended == 10:
                made = forecast.of(history, event.t)
        assert made is not None
        late.append(found.now > made.interval[1])
    assert sum(late) <= 4


def test_an_interval_is_wider_where_fewer_trials_were_seen() -> None:
    draws = [float(n) for n in range(1, 100)]
    intervals = [
        forecast.Forecast(t=0.0, draws=draws, seen=seen, paid=None, per_hour=0.0).interval
        for seen in (5, 10, 10**6)
    ]
    assert intervals == [(4.0, 96.0), (7.0, 93.0), (10.0, 90.0)]


def written() -> Iterator[tuple[Any, float]]:
    yield "8h", 1000.0 + 8 * HOUR
    yield 90, 1090.0
    yield timedelta(seconds=90), 1090.0
    yield "2026-12-04T08:00Z", datetime.fromisoformat("2026-12-04T08:00Z").timestamp()
    yield "2026-12-04 08:00:30+01:00", datetime.fromisoformat("2026-12-04T07:00:30Z").timestamp()
    for written in ("2026-07-04T08:00 Europe/Berlin", "2026-07-04T08:00[Europe/Berlin]"):
        yield written, datetime.fromisoformat("2026-07-04T06:00Z").timestamp()


@pytest.mark.parametrize(("value", "at"), written(), ids=str)
def test_a_moment_is_read(value: Any, at: float) -> None:
    assert epoch(moment(value), 1000.0) == at
    assert moment(moment(value)) == moment(value)


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("2026-10-25T02:30 Europe/Berlin", "twice"),
        ("2026-03-29T02:30 Europe/Berlin", "skip"),
        ("2026-12-04", "time of the day"),
        ("2026-12-04T08:00 Mars/Olympus", "not known"),
        ("2026-12-04T08:00+01:00 Europe/Berlin", "offset"),
        ("soon", "no moment"),
        (True, "no moment"),
        (0, "above 0"),
        ("9999-12-31T00:00Z", "too far"),
    ],
)
def test_a_moment_that_is_none_is_refused(value: Any, word: str) -> None:
    with pytest.raises(SpecError, match=word):
        Spec.parse({**SPEC, "trials": 3, "stop": {"deadline": value}})


@pytest.mark.parametrize(
    ("each", "deadline", "refused"),
    [("new", "8h", False), ("new", "2099-01-01T00:00Z", True), ("continue", "8h", True)],
)
def test_a_deadline_that_later_runs_of_a_schedule_would_miss_is_refused(
    each: str, deadline: str, refused: bool
) -> None:
    when = {"cron": "0 3 * * *", "each": each}
    spec = {**SPEC, "trials": 3, "stop": {"deadline": deadline}, "when": when}
    if not refused:
        Spec.parse(spec)
        return
    with pytest.raises(SpecError, match="later runs") as error:
        Spec.parse(spec)
    assert error.value.key == "stop.deadline"


def test_trials_may_be_left_out_with_a_limit_alone() -> None:
    assert Spec.parse({**SPEC, "stop": {"dollars": 1.0}}).stop.limited
    with pytest.raises(SpecError, match=r"stop.dollars or stop.deadline"):
        Spec.parse(SPEC)


def test_the_end_of_the_time_belongs_to_the_leaders() -> None:
    stop = {"deadline": 15 * STEP}
    plain = run(stop, workers=8, trials=None)
    wide = run(
        stop,
        {"resource_changing": {"schedule": "asha", "interval": 1}},
        workers=8,
        trials=None,
    )
    started = [event for event in wide.events if isinstance(event, Started)]
    first = next(place for place, event in enumerate(started) if event.width > 1)
    assert all(event.attempt > 1 for event in started[first:]), "a trial is begun after it"
    furthest = [max(trial.step for trial in one.history.trials) for one in (wide, plain)]
    assert furthest[0] > furthest[1]
    assert wide.now <= 15 * STEP
    assert not verify(wide.events).difference
