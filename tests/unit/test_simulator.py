"""The simulator of whole experiments: deterministic, true to the planner, and honest about machines
that come and go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from regrow.search.events import (
    AnyEvent,
    Began,
    Closing,
    Ended,
    Opened,
    Reported,
    Saved,
    Started,
    encode,
)
from regrow.search.lifecycle import TrialState
from regrow.search.planning.planner import seed_for
from regrow.search.planning.simulator import (
    ALWAYS,
    Availability,
    FunctionObjective,
    Simulation,
    availability,
    simulate,
)
from regrow.search.planning.verify import verify
from regrow.search.spec import Spec
from tests.unit.told import kept

SPEC: dict[str, Any] = {
    "name": "simulated",
    "trainable": "work.py:train",
    "metric": "score",
    "mode": "max",
    "space": {"x": {"uniform": [0.0, 1.0]}},
    "search": "random",
    "schedule": "fifo",
    "trials": 6,
    "max_steps": 9,
}


def spec(**changes: Any) -> Spec:
    return Spec.parse({**SPEC, **changes})


def rising(config: Mapping[str, Any], step: int) -> float:
    return round(float(config["x"]) * step / (step + 1), 9)


def function(of: Spec, seconds: float = 1.0) -> FunctionObjective:
    return FunctionObjective(function=rising, spec=of, seconds=seconds)


def run(
    workers: int = 2, machines: Sequence[Availability] = (), seconds: float = 1.0, **changes: Any
) -> Simulation:
    of = spec(**changes)
    return simulate(of, function(of, seconds), workers=workers, availability=machines)


def log(simulation: Simulation) -> bytes:
    return b"\n".join(map(encode, simulation.events))


SCHEDULES: list[Any] = [
    "fifo",
    "asha",
    {"asha": {"type": "promotion"}},
    {"pbt": {"perturbation_interval": 2}},
    "hyperband",
]


# Determinism and truth


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("machines", [[], availability([1, 1, 0, 1], 2.5, 3)])
def test_the_same_arguments_give_the_same_bytes_and_the_log_can_be_verified(
    schedule: Any, machines: list[Availability]
) -> None:
    first, second = (run(3, machines, schedule=schedule) for _ in range(2))
    assert log(first) == log(second)
    assert verify(first.events).difference is None
    assert all(trial.state.final for trial in first.history.trials)
    other = run(3, machines, schedule=schedule, seed=1)
    assert log(other) != log(first)


def test_every_trial_reports_what_the_objective_says_each_step_once() -> None:
    done = run(machines=availability([1, 1, 0], 3.5, 2))
    for trial in done.history.trials:
        assert [row.step for _, row in kept(done.events)[trial.number]] == list(range(1, 10))
        assert list(trial.values) == [rising(trial.config, step) for step in range(1, 10)]
    assert done.history.lost_steps >= 0
    assert any(isinstance(event, Ended) and event.outcome == "lost" for event in done.events)


def test_time_passes_as_the_steps_take_it() -> None:
    """Six trials of nine steps of two seconds on two workers: three after one another."""
    assert run(2, seconds=2.0).now == pytest.approx(54.0)
    assert run(1, seconds=2.0).now == pytest.approx(108.0)
    assert run(6, seconds=2.0).now == pytest.approx(18.0)


def test_startup_delays_each_attempt() -> None:
    of = spec(trials=2)
    done = simulate(of, function(of), workers=1, startup=5.0)
    began = [event.t for event in done.events if isinstance(event, Began)]
    assert began == [5.0, 19.0]
    assert done.now == pytest.approx(28.0)


class Seeds:
    """The objective is the seed that the trial has."""

    def at(
        self, config: Mapping[str, Any], step: int, seed: int
    ) -> tuple[Mapping[str, float], float]:
        return {"score": float(seed)}, 1.0


def test_the_objective_is_given_the_trials_own_seed() -> None:
    done = simulate(spec(seed=3), Seeds(), workers=2)
    assert [trial.values[0] for trial in done.history.trials] == [
        seed_for(3, n, "trial") for n in range(6)
    ]


def test_what_runs_in_slices_of_time_or_events_is_what_runs_at_once() -> None:
    of = spec(schedule={"asha": {"type": "promotion"}})
    whole = log(simulate(of, function(of), workers=2))
    sliced = Simulation(spec=of, objective=function(of), workers=2).open()
    for seconds in range(1, 100):
        sliced.run(most_seconds=seconds + 0.5)
        assert sliced.now <= seconds + 0.5
    assert log(sliced.run()) == whole
    stepped = Simulation(spec=of, objective=function(of), workers=2).open()
    while stepped.history.closed is None:
        stepped.run(most_events=len(stepped.events) + 1)
    assert log(stepped) == whole


def test_a_sampler_that_runs_out_lets_the_paused_go_on() -> None:
    """Nobody knows how many a custom grid has: that nothing more comes is found when it is
    asked.
    """
    found = run(1, search=f"{__name__}:Three", schedule={"asha": {"type": "promotion"}})
    assert len(found.history.trials) == 3
    assert verify(found.events).difference is None
    assert found.history.by_state[TrialState.DONE]


class Three:
    """Has three configurations."""

    def __init__(self, setting: Any) -> None:
        """Whatever the setting."""

    def ask(self, number: int, seed: int) -> Any:
        from regrow.search.samplers.base import Proposal

        return Proposal(config={"x": (0.1, 0.9, 0.5)[number]}) if number < 3 else None

    def tell(self, result: Any) -> None:
        """Learns nothing."""


# Losses


def test_what_runs_on_a_machine_that_goes_is_lost_and_goes_on_from_its_checkpoint() -> None:
    """One worker, away from 3.5 s to 10 s: steps 1 to 3 are saved, step 4 is done again."""
    machines = [Availability(changes=(0.0, 3.5, 10.0))]
    done = run(1, machines, trials=1)
    (trial,) = done.history.trials
    assert [(a.from_step, a.to_step, a.outcome) for a in trial.attempts] == [
        (0, 3, "lost"),
        (3, 9, "done"),
    ]
    assert trial.attempts[1].t_began == 10.0
    assert done.now == pytest.approx(16.0)
    assert done.history.lost_steps == 0


def test_without_checkpoints_it_starts_over() -> None:
    of = spec(trials=1)
    machines = [Availability(changes=(0.0, 3.5, 10.0))]
    done = simulate(of, function(of), workers=1, availability=machines, checkpoints=False)
    assert [a.from_step for a in done.history.trials[0].attempts] == [0, 0]
    assert done.history.lost_steps == 3
    assert done.now == pytest.approx(19.0)


def test_checkpoints_come_as_the_specification_says() -> None:
    done = run(1, trials=1, checkpoint={"every_steps": 4})
    assert [event.step for event in done.events if isinstance(event, Saved)] == [4, 8, 9]
    done = run(1, [Availability(changes=(0.0, 7.5, 10.0))], trials=1, checkpoint={"every_steps": 4})
    assert [a.from_step for a in done.history.trials[0].attempts] == [0, 4]


def test_a_machine_that_goes_while_an_attempt_starts_up_takes_it_along() -> None:
    of = spec(trials=1)
    machines = [Availability(changes=(0.0, 2.0, 4.0))]
    done = simulate(of, function(of), workers=1, availability=machines, startup=3.0)
    first, second = done.history.trials[0].attempts
    assert (first.outcome, first.t_began, second.t_began) == ("lost", None, 7.0)


def test_all_workers_gone_for_ever_is_an_error_that_says_so() -> None:
    with pytest.raises(RuntimeError, match="every worker is gone for good"):
        run(2, [Availability(changes=(0.0, 4.5))])
    with pytest.raises(RuntimeError, match="every worker is gone for good"):
        run(2, availability([0, 0], 60, 2))


def test_one_of_two_gone_for_ever_leaves_the_other_to_do_it_all() -> None:
    done = run(2, [ALWAYS, Availability(changes=(0.0, 4.5))])
    assert done.history.counts[TrialState.DONE] == 6
    nodes = {event.node for event in done.events if isinstance(event, Began) and event.t > 4.5}
    assert nodes == {"worker-0"}


def test_no_attempt_runs_on_a_machine_that_is_away() -> None:
    machines = availability([3, 1, 2, 0, 3], 2.5, 3)
    done = run(3, machines, trials=9, schedule={"asha": {"type": "promotion"}})
    on: dict[tuple[int, int], tuple[int, float]] = {}
    for event in done.events:
        if isinstance(event, Began):
            on[event.trial, event.attempt] = (int(event.node.split("-")[1]), event.t)
        if isinstance(event, Reported):
            machine, since = on[event.trial, event.attempt]
            assert all(machines[machine].up(t) for t in (since, event.t - 0.001))
            change = machines[machine].next_change(since)
            assert change is None or event.t <= change, "it reported past the end of its machine"


# Several sessions


def test_a_user_interrupts_and_the_next_session_goes_on() -> None:
    of = spec(schedule={"asha": {"type": "promotion", "reduction_factor": 2}}, trials=8)
    run = Simulation(spec=of, objective=function(of), workers=2).open()
    while not run.history.held:
        run.run(most_events=len(run.events) + 1)
    run.record(Closing(t=run.now, status="interrupted", why="by the user", by="user"))
    run.run()
    assert run.history.closed is not None
    assert run.history.closed.status == "interrupted"
    held = set(run.history.held)
    assert held
    again = Simulation(spec=of, objective=function(of), workers=2).open(run.events).run()
    assert again.history.sessions == 2
    assert all(trial.state.final for trial in again.history.trials)
    assert verify(again.events).difference is None


def test_the_spec_of_a_new_session_may_ask_for_more_trials() -> None:
    first = run(2, trials=4)
    more = spec(trials=7)
    again = Simulation(spec=more, objective=function(more), workers=2).open(first.events).run()
    assert again.history.counts[TrialState.DONE] == 7
    assert sum(isinstance(event, Opened) for event in again.events) == 2


# Availability


def test_without_changes_a_machine_is_there_all_the_time() -> None:
    assert ALWAYS.up(0.0)
    assert ALWAYS.up(1e9)
    assert ALWAYS.next_change(0.0) is None


def test_a_machine_is_there_in_turn() -> None:
    one = Availability(changes=(0.0, 10.0, 15.0))
    assert [one.up(t) for t in (0.0, 9.99, 10.0, 14.9, 15.0, 1e6)] == [
        True,
        True,
        False,
        False,
        True,
        True,
    ]
    assert [one.next_change(t) for t in (0.0, 10.0, 12.0, 15.0)] == [10.0, 15.0, 15.0, None]
    late = Availability(changes=(0.0, 10.0), begins_up=False)
    assert [late.up(t) for t in (0.0, 10.0, 1e6)] == [False, True, True]


def states(machines: Sequence[Availability], gap: float, length: int) -> list[str]:
    return ["".join("01"[m.up(k * gap)] for k in range(length)) for m in machines]


def test_a_trace_of_one_machine_is_shared_out_shifted() -> None:
    machines = availability([1, 1, 1, 0, 1, 0, 0, 1], 60, 4)
    assert states(machines, 60, 8) == ["11101001", "10100111", "10011110", "01111010"]


def test_a_trace_of_counts_says_how_many_are_there() -> None:
    assert states(availability([0, 1, 3, 2, 5], 60, 4), 60, 5) == [
        "01111",
        "00111",
        "00101",
        "00001",
    ]


def test_a_trace_of_one_entry_holds_on() -> None:
    assert states(availability([1], 60, 2), 60, 3) == ["111", "111"]
    assert states(availability([2], 60, 3), 60, 3) == ["111", "111", "000"]


def test_an_empty_trace_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        availability([], 60, 2)


# Wide attempts


def widths(events: Sequence[AnyEvent], slots: int) -> list[int]:
    """The widths of the starts; asserts that attempts at a time never have more than the slots."""
    wide: dict[tuple[int, int], int] = {}
    found: list[int] = []
    for event in events:
        if isinstance(event, Started):
            wide[event.trial, event.attempt] = event.width
            found.append(event.width)
            assert sum(wide.values()) <= slots
        if isinstance(event, Ended):
            del wide[event.trial, event.attempt]
    return found


@pytest.mark.parametrize("machines", [[], availability([1, 1, 1, 0, 1, 1], 4.5, 4)])
def test_a_wide_attempt_never_takes_more_than_the_slots(machines: list[Availability]) -> None:
    schedule = {"resource_changing": {"interval": 2}}
    done = run(4, machines, schedule=schedule, trials=5)
    found = widths(done.events, 4)
    assert max(found) > 1
    assert all(trial.state is TrialState.DONE for trial in done.history.trials)
    assert verify(done.events).difference is None


def test_a_wide_attempt_is_faster() -> None:
    of: dict[str, Any] = {"schedule": {"resource_changing": {"interval": 1}}, "trials": 1}
    assert run(4, **of).now < run(1, **of).now / 2


def test_a_closed_experiment_leaves_nothing_running() -> None:
    done = run(3, stop={"target": 0.5})
    assert not done.running
    assert not done.history.running
    assert re.fullmatch(
        "the target 0.5 was reached", str(done.history.closing and done.history.closing.why)
    )
