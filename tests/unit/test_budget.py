"""A budget in place of a number of trials: kept whatever the schedule, and its end is for the
best.
"""

from __future__ import annotations

from typing import Any

import pytest

from regrow.search.errors import SpecError
from regrow.search.events import Decided, Proposed
from regrow.search.history import History
from regrow.search.planning import budget, forecast, limits
from regrow.search.planning.machines import Availability
from regrow.search.planning.simulator import FunctionObjective, Simulation
from regrow.search.planning.verify import verify
from regrow.search.schedulers import foreseen
from regrow.search.spec import Spec

STEPS = 27
SPEC: dict[str, Any] = {
    "name": "counted",
    "trainable": "train.py:train",
    "metric": "loss",
    "mode": "min",
    "space": {"x": {"uniform": [0.0, 1.0]}},
    "search": "random",
    "max_steps": STEPS,
}
SCHEDULES: list[Any] = [
    "fifo",
    "asha",
    {"asha": {"type": "promotion"}},
    "hyperband",
    {"async_hyperband": {"eager": 8}},
    "pasha",
    "median",
    {"pbt": {"perturbation_interval": 5}},
]


def spec(schedule: Any = "asha", **changes: Any) -> Spec:
    return Spec.parse({**SPEC, "schedule": schedule, **changes})


def loss(config: dict[str, Any], step: int) -> float:
    return float((config["x"] - 0.3) ** 2 + 1 / step)


def simulation(given: Spec, workers: int = 4, **more: Any) -> Simulation:
    objective = FunctionObjective(function=loss, spec=given, seconds=60.0)
    return Simulation(spec=given, objective=objective, workers=workers, **more)


def steps(history: History) -> int:
    return sum(trial.step for trial in history.trials)


def ended(history: History) -> int:
    return sum(trial.step == STEPS for trial in history.trials)


@pytest.mark.parametrize(("trainings", "workers"), [(10, 4), (10, 24)], ids=str)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_budget_is_kept_and_used_and_the_best_trial_ends(
    schedule: Any, trainings: int, workers: int
) -> None:
    done = simulation(spec(schedule, budget=trainings), workers).open().run()
    history = done.history
    assert history.closed is not None
    assert history.closed.status == "finished"
    assert history.closing is not None
    assert history.closing.limit == "budget"
    assert trainings - 1.0 <= steps(history) / STEPS <= trainings
    assert not history.by_state[history.trials[0].state.PENDING]
    population = isinstance(schedule, dict) and "pbt" in schedule and workers > trainings
    assert ended(history) >= 1 or population, "a population that is larger ends nowhere"
    assert verify(done.events).difference is None


def test_a_budget_of_full_trainings_is_that_many_trials_where_none_ends_early() -> None:
    history = simulation(spec("fifo", budget=7)).open().run().history
    assert len(history.trials) == ended(history) == 7


def test_where_trials_end_early_new_ones_begin_as_long_as_it_lasts() -> None:
    as_many = simulation(spec(budget=30)).open().run().history
    of_trials = simulation(spec(trials=30)).open().run().history
    assert steps(of_trials) < 10 * STEPS < 29 * STEPS <= steps(as_many) <= 30 * STEPS
    assert len(as_many.trials) > 90


def test_none_continues_at_the_expense_of_a_better_trial() -> None:
    done = simulation(spec("median", budget=10), workers=24).open().run()
    history, paused = History(), 0
    for event in done.events:
        if isinstance(event, Decided) and "for better trials" in event.why:
            own = budget.rank(history, history.trials[event.trial])
            live = [history.trials[number] for number in history.running]
            assert any(budget.rank(history, one) < own for one in live)
            paused += event.verdict == "pause"
        history.apply(event)
    assert paused > 10
    assert history.leader is not None
    assert history.leader.step == STEPS


def test_no_trial_begins_that_could_not_do_half_of_its_steps() -> None:
    done = simulation(spec(budget=10)).open().run()
    history = History()
    for event in done.events:
        if isinstance(event, Proposed):
            assert history.work is not None
            assert 10 * STEPS - history.work.claimed >= STEPS / 2
        history.apply(event)


def test_what_is_lost_with_a_machine_is_not_counted() -> None:
    gone = (Availability(changes=(0.0, 605.0, 900.0)),)
    given = spec("fifo", budget=4, retries={"preempted": "unlimited"})
    done = simulation(given, workers=1, availability=gone, checkpoints=False).open().run()
    history = done.history
    assert history.lost_steps > 0
    assert ended(history) == len(history.trials) == 4
    assert verify(done.events).difference is None


def test_trials_that_fail_at_once_use_it_up_as_well() -> None:
    run = simulation(spec("fifo", budget=1)).open()
    for _ in range(2):  # they failed without a step; one that reported came before
        run.run(most_seconds=run.now + 60.0)
    count = 0
    while run.running and count < 200:
        run.fail(run.running[0].trial, "no luck")
        count += 1
    assert run.history.closed is not None
    assert count < STEPS + 4


def test_an_experiment_all_of_whose_trials_failed_has_failed() -> None:
    run = simulation(spec("fifo", budget=2, max_steps=3), workers=1).open()
    while run.running:
        run.fail(run.running[0].trial, "no luck")
    assert [trial.state.value for trial in run.history.trials] == ["failed"] * 4
    assert run.history.closed is not None
    assert run.history.closed.status == "failed"


def test_a_budget_that_is_lowered_holds_for_what_is_to_start_again() -> None:
    first = simulation(spec("fifo", budget=8), workers=4).open().run(most_seconds=20 * 60.0)
    assert len(first.history.running) == 4
    lower = simulation(spec("fifo", budget=3), workers=4).open(first.events).run()
    assert 2 * STEPS < steps(lower.history) <= 3 * STEPS
    assert verify(lower.events).difference is None


def test_a_larger_budget_continues_what_was_paused_and_searches_as_before() -> None:
    first = simulation(spec({"asha": {"type": "promotion"}}, budget=4)).open().run()
    more = spec({"asha": {"type": "promotion"}}, budget=8)
    again = simulation(more).open(first.events).run()
    history = again.history
    assert 7 * STEPS < steps(history) <= 8 * STEPS
    assert len(history.openings) == 2
    assert history.setting.trainings == 4, "the sampler is that of the experiment as it was created"
    assert verify(again.events).difference is None


def test_hours_are_those_of_the_sessions_and_end_like_a_deadline() -> None:
    done = simulation(spec(budget={"hours": 2})).open().run()
    history = done.history
    assert 1.7 <= history.elapsed() / 3600.0 <= 2.0
    assert history.closing is not None
    assert history.closing.limit == "budget"
    assert ended(history)
    later = simulation(spec(budget={"hours": 3}))
    later.now = 100_000.0
    again = later.open(done.events).run()
    assert 2.5 <= again.history.elapsed() / 3600.0 <= 3.0
    assert verify(again.events).difference is None


def test_trials_and_a_budget_are_both_limits() -> None:
    few = simulation(spec("fifo", budget=10, trials=3)).open().run().history
    assert (len(few.trials), few.closing) == (3, None)
    many = simulation(spec("fifo", budget=3, trials=10)).open().run().history
    assert len(many.trials) == 3


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"budget": 0.5}, "budget.trainings: 0.5: is less than one full training, which has 27"),
        ({"budget": {"steps": 26}}, "budget.steps: 26: is less than one full training"),
        ({"budget": 3, "max_steps": None}, "budget.trainings: 3: is a number of steps"),
        ({"budget": {"steps": 9, "hours": 1}}, "has 2 units; give one of trainings, steps and"),
        ({"budget": {}}, "is empty; give one of trainings, steps and hours"),
        ({"budget": {"hours": 0}}, "budget.hours"),
        ({"budget": "much"}, "budget"),
        ({}, "trials: is missing; write the total number of trials, or budget"),
    ],
    ids=str,
)
def test_what_is_no_budget_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError) as refused:
        spec("fifo", **changes)
    assert told in str(refused.value)


def test_the_rule_of_auto_expects_the_trials_of_a_budget() -> None:
    found = Spec.parse({**SPEC, "search": "auto", "budget": 3}).resolved
    assert found.schedule == {"hyperband": {"grace_period": 2, "guard": 0.2}}
    given = Spec.parse({**SPEC, "search": "auto", "budget": {"steps": 30 * STEPS}}).choice
    assert "the steps of 30 trainings" in given.describe()


def test_a_number_of_trials_that_is_little_work_is_foreseen() -> None:
    for schedule in ("asha", {"asha": {"type": "promotion"}}, "hyperband", "pasha"):
        given = spec(schedule, trials=30)
        expected = foreseen.steps(given.schedule, given.setting, 30)
        assert expected is not None
        done = steps(simulation(given, workers=1).open().run().history)
        assert 0.4 < expected / done < 2.5, (schedule, expected, done)
    whole = spec("fifo", trials=30)
    assert foreseen.steps(whole.schedule, whole.setting, 30) == 30 * STEPS
    assert foreseen.steps({"pbt": {"perturbation_interval": 5}}, whole.setting, 30) is None


@pytest.mark.parametrize(
    ("given", "standing", "larger"),
    [
        (4, "4 of 4 trainings", "6"),
        ({"steps": 4 * STEPS}, "108 of 108 steps", "'{steps: 162}'"),
        ({"hours": 1}, "0.9 of 1 hour", "'{hours: 1.5}'"),
    ],
    ids=str,
)
def test_its_use_is_told(given: Any, standing: str, larger: str) -> None:
    history = simulation(spec("fifo", budget=given)).open().run().history
    told, _, of = forecast.limits_text(history, history.t_last, alive=False).partition(" of ")
    least, _, whole = standing.partition(" of ")
    assert (of, limits.describe(history)) == (whole, whole)
    assert float(told) == pytest.approx(float(least), abs=0.1)
    assert limits.further(history) == [("budget", larger)]
    assert [event.percent for event in history.milestones] == [25, 50, 80]
    assert "% of the budget is used" in limits.in_words(history, history.milestones[0])
    assert limits.share(history, history.t_last) > 0.8
