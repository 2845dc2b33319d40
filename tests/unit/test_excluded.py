"""Trials that the user dropped: they rank no more, nothing learns from them, and all of it is undone
by keeping them.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from regrow.flows.housekeeping.trial_orders import order as ordered
from regrow.infra.log.log import Log
from regrow.infra.log.reading import read_events, replay, survey
from regrow.infra.state.places import Places
from regrow.search.errors import SpecError
from regrow.search.events import AnyEvent, Closed, Excluded, Proposed, encode
from regrow.search.history import repeats
from regrow.search.history.selection import selected
from regrow.search.lifecycle import IllegalMove
from regrow.search.planning.learning import known_from
from regrow.search.planning.planner import Planner
from regrow.search.planning.simulator import Simulation
from regrow.search.planning.verify import verify
from regrow.search.spec.parts import WarmStart
from regrow.show.views import summaries
from regrow.tasks.errors import UserError
from regrow.testing import check_log
from tests.unit.revived import SCHEDULES, failing, simulated

SAMPLERS: list[Any] = ["random", {"tpe": {"n_startup_trials": 2}}, {"cmaes": {"popsize": 4}}]
PAIRS = [("random", schedule) for schedule in SCHEDULES] + [
    (sampler, SCHEDULES[place]) for place, sampler in enumerate(SAMPLERS[1:])
]


def after(run: Simulation, *orders: AnyEvent, trials: int = 14) -> Simulation:
    """A further session, with more trials, after what the user ordered."""
    spec = run.spec.model_copy(update={"trials": trials})
    again = Simulation(spec=spec, objective=run.objective, workers=2)
    return again.open([*run.events, *orders]).run()


def order(run: Simulation, trial: int, *, excluded: bool = True) -> Excluded:
    return Excluded(t=run.events[-1].t, trial=trial, excluded=excluded)


def leader(run: Simulation) -> int:
    assert run.history.best is not None
    return run.history.best


@pytest.mark.parametrize(("search", "schedule"), PAIRS, ids=str)
def test_what_is_decided_after_it_is_recomputed_from_the_log(search: Any, schedule: Any) -> None:
    run = simulated(schedule=schedule, search=search).open().run()
    best = leader(run)
    dropped = after(run, order(run, best))
    assert dropped.history.trials[best].best is None
    assert leader(dropped) != best
    assert verify(dropped.events).difference is None
    cut = len(run.events) + 1 + (len(dropped.events) - len(run.events)) // 2
    resumed = Simulation(spec=dropped.spec, objective=run.objective, workers=2)
    check_log(resumed.open(dropped.events[:cut]).run().events)


@pytest.mark.parametrize(("search", "schedule"), PAIRS, ids=str)
def test_keeping_it_decides_as_if_it_had_never_been_dropped(search: Any, schedule: Any) -> None:
    run = simulated(schedule=schedule, search=search).open().run()
    best = leader(run)
    kept = after(run, order(run, best), order(run, best, excluded=False))
    plain = after(run)
    assert kept.history.best == plain.history.best

    def proposals(one: Simulation) -> list[Any]:
        return [e.config for e in one.events if isinstance(e, Proposed)]

    assert proposals(kept) == proposals(plain)
    assert [t.state for t in kept.history.trials] == [t.state for t in plain.history.trials]


@pytest.mark.parametrize(
    "search",
    [
        {"cmaes": {"popsize": 4}},
        {"nsga2": {"population_size": 2}},
        {"nsga3": {"population_size": 2}},
    ],
    ids=str,
)
def test_generations_that_were_made_of_it_are_no_end_of_the_search(search: Any) -> None:
    run = simulated(search=search, schedule="fifo").open().run()
    check_log(after(run, *(order(run, trial) for trial in range(4))).events)


def test_the_sampler_does_not_learn_from_it() -> None:
    run = simulated(search={"tpe": {"n_startup_trials": 2}}, schedule="fifo").open().run()
    planner = Planner()
    for event in run.events:
        planner.apply(event)
    best = leader(run)
    planner.apply(order(run, best))
    told = {result.number: result for result in planner._results.untold}
    assert (told[best].status, told[best].value, list(told[best].intermediate)) == (
        "failed",
        None,
        [],
    )
    assert all(told[n].value is not None for n in told if n != best)


def test_it_is_left_out_of_ranking_means_and_warm_starts() -> None:
    run = simulated(schedule="fifo", repeats=3).open().run()
    found = repeats.best(run.history)
    assert found is not None
    assert found.mean is not None
    group = [trial.number for trial in found.mean.trials]
    for number in group:
        run.history.apply(order(run, number))
    now = repeats.best(run.history)
    assert now is not None
    assert now.trial.number not in group
    assert {t.number for t in summaries.ranked(run.history)[-3:]} == set(group)
    known, _ = known_from(run.history, run.spec, WarmStart(experiment="simulated"), "warm_start.0")
    assert not {f"simulated:{n}" for n in group} & {one.origin for one in known}
    assert len(known) == 6


def test_only_a_trial_that_has_ended_can_be_dropped_and_a_failed_one_is_not_tried_again() -> None:
    run = simulated(schedule="fifo").open().run(most_events=12)
    running = min(run.history.running)
    with pytest.raises(IllegalMove, match="be dropped: it has not ended"):
        run.history.apply(order(run, running))
    broken = failing(simulated(schedule="fifo"), (1, 2), (4, 3))
    again = Simulation(spec=broken.spec, objective=broken.objective, workers=2)
    again.open([*broken.events, order(broken, 1)], retry_failed=True).run()
    assert [t.number for t in again.history.trials if t.revived] == [4]


def test_it_is_written_to_a_closed_log_which_stays_closed(places: Places) -> None:
    run = simulated(schedule="fifo").open().run()
    store = places.store("simulated")
    Log.open(store).claim([encode(event) for event in run.events])
    best = leader(run)
    now = ordered(places, "simulated", [best], "drop")
    assert now.trials[best].excluded
    ran = run.history.elapsed()
    assert now.elapsed() == now.elapsed(time.time()) == ran, (
        "dropping it takes no time of the limits"
    )
    assert verify(read_events(store)).difference is None
    resumed = Simulation(spec=run.spec, objective=run.objective, workers=2)
    resumed.open(list(read_events(store)))
    assert ran <= resumed.history.elapsed() < ran + 60.0
    assert isinstance(survey(store).last, Closed)
    assert replay(store).closed is not None
    again = ordered(places, "simulated", [best], "drop")
    assert sum(isinstance(e, Excluded) for e in read_events(store)) == 1, "once is enough"
    assert again.best == now.best
    assert ordered(places, "simulated", [best], "keep").best == best
    assert verify(read_events(store)).difference is None
    with pytest.raises(UserError, match="there is no trial 99"):
        ordered(places, "simulated", [99], "drop")


def test_the_log_of_a_lost_session_needs_a_session_first(places: Places) -> None:
    run = simulated(schedule="fifo").open()
    while not any(trial.state.final for trial in run.history.trials):
        run.run(most_events=len(run.events) + 1)
    ended = next(trial.number for trial in run.history.trials if trial.state.final)
    Log.open(places.store("simulated")).claim([encode(event) for event in run.events])
    with pytest.raises(UserError, match="was lost: `regrow resume simulated"):
        ordered(places, "simulated", [ended], "drop")


@pytest.mark.parametrize(
    ("condition", "numbers"),
    [
        ("trial < 2", [0, 1]),
        ("state == failed", [1, 4]),
        ("state != failed and trial <= 3", [0, 2, 3]),
        ("steps >= 9 and trial > 6", [7, 8]),
        ("x > 2", []),
    ],
)
def test_trials_are_selected_by_a_condition(condition: str, numbers: list[int]) -> None:
    run = failing(simulated(schedule="fifo"), (1, 2), (4, 3))
    assert [trial.number for trial in selected(run.history, condition)] == numbers


@pytest.mark.parametrize("name", ["score", "value"])
def test_the_metric_is_a_number_also_before_a_trial_has_reported_it(name: str) -> None:
    history = simulated(schedule="fifo").open().history
    assert selected(history, f"{name} > 0.5") == []
    with pytest.raises(SpecError, match=f"compares {name}, which is a number"):
        selected(history, f"{name} == high")


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("lr", "is no condition"),
        ("__import__('os') == 1", "neither a parameter nor a metric"),
        ("x > high", "compares x, which is a number"),
        ("state < failed", "which is no number"),
        ("x" * 2000, "characters"),
    ],
)
def test_what_is_no_condition_is_refused(condition: str, problem: str) -> None:
    run = simulated(schedule="fifo").open().run()
    with pytest.raises(SpecError, match=problem):
        selected(run.history, condition)
