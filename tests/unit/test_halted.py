"""Trials that the user stopped before their end: they leave, their slots are free, and all decisions
after it follow from the log.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from regrow.flows.housekeeping.trial_orders import order
from regrow.infra.log.log import Log
from regrow.infra.log.reading import read_events, replay, survey
from regrow.infra.state.places import Places
from regrow.search.events import Closed, Closing, Halted, encode
from regrow.search.lifecycle import IllegalMove, TrialState
from regrow.search.planning.simulator import Simulation
from regrow.search.planning.verify import verify
from regrow.testing import check_log
from tests.unit.revived import SCHEDULES, simulated


def halted(run: Simulation, trial: int) -> Simulation:
    run.record(Halted(t=run.now, trial=trial))
    return run


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_whatever_they_are_doing_the_others_come_to_their_end(schedule: Any, seed: int) -> None:
    run, chance, stopped = simulated(schedule=schedule).open(), random.Random(seed), set[int]()
    while run.history.closed is None:
        run.run(most_events=len(run.events) + chance.randint(1, 30))
        left = [t.number for t in run.history.trials if not t.state.final]
        left = [number for number in left if number not in stopped]
        if left and run.history.closed is None:
            stopped.add(number := chance.choice(left))
            halted(run, number)
    assert stopped
    assert {run.history.trials[number].state for number in stopped} == {TrialState.STOPPED}
    assert all(trial.state.final for trial in run.history.trials)
    assert verify(run.events).difference is None
    check_log(run.events)


def test_a_trial_is_stopped_once_and_only_before_its_end() -> None:
    run = simulated().open().run(most_events=12)
    running = min(run.history.running)
    run.history.apply(Halted(t=run.now, trial=running))
    with pytest.raises(IllegalMove, match="be stopped twice"):
        run.history.apply(Halted(t=run.now, trial=running))
    over = simulated().open().run()
    with pytest.raises(IllegalMove, match="be stopped: it has ended"):
        over.history.apply(Halted(t=over.now, trial=0))


def test_one_of_a_session_that_has_ended_does_not_continue_in_the_next(places: Places) -> None:
    run = simulated().open().run(most_events=12)
    number = min(run.history.running)
    run.record(Closing(t=run.now, status="stopped", why="", by="user"))
    run.run()
    Log.open(places.store("simulated")).claim([encode(event) for event in run.events])
    store = places.store("simulated")
    assert replay(store).trials[number].state is TrialState.PAUSED
    for _ in range(2):
        now = order(places, "simulated", [number], "stop")
        assert now.trials[number].state is TrialState.STOPPED
    assert isinstance(survey(store).last, Closed)
    again = Simulation(spec=run.spec, objective=run.objective, workers=2)
    again.open(read_events(store)).run()
    assert len(again.history.trials[number].attempts) == 1
    assert verify(again.events).difference is None
