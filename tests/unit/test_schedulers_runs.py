"""Every schedule in whole simulated experiments: each ends, also where trials fail and machines go,
and can be recomputed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from regrow.search.events import Decided, Started
from regrow.search.lifecycle import TrialState
from regrow.search.planning.simulator import Availability, FunctionObjective, Simulation, simulate
from regrow.search.planning.verify import verify
from regrow.search.spec import Spec

SCHEDULES: dict[str, Any] = {
    "asha": "asha",
    "asha promotion": {"asha": {"type": "promotion"}},
    "median": "median",
    "successive_halving": {"successive_halving": {"n": 9}},
    "hyperband": "hyperband",
    "async_hyperband": "async_hyperband",
    "async_hyperband promotion": {"async_hyperband": {"type": "promotion"}},
    "pasha": "pasha",
    "pbt": {"pbt": {"perturbation_interval": 2}},
    "pb2": {"pb2": {"perturbation_interval": 2}},
    "dehb": "dehb",
    "resource_changing": {
        "resource_changing": {"schedule": {"asha": {"type": "promotion"}}, "interval": 2}
    },
}


def spec(schedule: Any, trials: int = 20, max_steps: int = 9, **more: Any) -> Spec:
    return Spec.parse(
        {
            "name": "runs",
            "trainable": "examples.none:train",
            "space": {"x": {"uniform": [0, 1]}, "lr": {"loguniform": [1e-4, 1]}},
            "search": "dehb" if schedule == "dehb" else "random",
            "schedule": schedule,
            "metric": "loss",
            "mode": "min",
            "trials": trials,
            "max_steps": max_steps,
            **more,
        }
    )


def loss(config: Mapping[str, Any], step: int) -> float:
    return float((config["x"] - 0.3) ** 2 + 1 / step)


def run(schedule: Any, workers: int = 3, availability: Any = (), **more: Any) -> Simulation:
    made = spec(schedule, **more)
    return simulate(
        made,
        FunctionObjective(function=loss, spec=made),
        workers=workers,
        availability=availability,
    )


def recomputed(simulation: Simulation) -> int:
    """How many decisions follow from the events before them: all."""
    verified = verify(simulation.events)
    assert verified.difference is None, verified.difference
    return verified.decisions


def finals(simulation: Simulation) -> Counter[str]:
    return Counter(trial.state.value for trial in simulation.history.trials)


@pytest.mark.parametrize("workers", [1, 3, 25])
@pytest.mark.parametrize("name", SCHEDULES)
def test_an_experiment_ends_and_can_be_recomputed(name: str, workers: int) -> None:
    simulation = run(SCHEDULES[name], workers)
    assert simulation.history.closed is not None
    assert simulation.history.closed.status == "finished"
    assert len(simulation.history.trials) == 20
    assert all(trial.state.final for trial in simulation.history.trials)
    assert recomputed(simulation) > 20


@pytest.mark.parametrize("name", SCHEDULES)
def test_machines_that_go_change_no_end(name: str) -> None:
    coming = [Availability(changes=tuple(range(0, 2000, 7 + n))) for n in range(3)]
    simulation = run(SCHEDULES[name], 3, coming)
    assert simulation.history.closed is not None
    assert simulation.history.closed.status == "finished"
    assert all(trial.state.final for trial in simulation.history.trials)
    recomputed(simulation)


@pytest.mark.parametrize("cut", [30, 61, 95])
@pytest.mark.parametrize("name", SCHEDULES)
def test_an_experiment_that_was_cut_off_goes_on(name: str, cut: int) -> None:
    made = spec(SCHEDULES[name])
    objective = FunctionObjective(function=loss, spec=made)
    whole = Simulation(spec=made, objective=objective, workers=4).open().run(most_events=cut)
    rest = Simulation(spec=made, objective=objective, workers=2).open(whole.events).run()
    assert rest.history.sessions == 2
    assert all(trial.state.final for trial in rest.history.trials)
    recomputed(rest)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_trial_that_fails_for_good_holds_up_nobody(name: str) -> None:
    made = spec(SCHEDULES[name], retries={"error": 0})
    objective = FunctionObjective(function=loss, spec=made)
    simulation = Simulation(spec=made, objective=objective, workers=3).open()
    while simulation.history.closed is None:
        before = len(simulation.events)
        simulation.run(most_events=before + 11)
        if (
            simulation.running
            and simulation.history.closed is None
            and len(simulation.events) % 3 == 0
        ):
            simulation.fail(simulation.running[0].trial, "it broke")
    assert all(trial.state.final for trial in simulation.history.trials)
    assert finals(simulation)["failed"] > 0


@pytest.mark.parametrize("name", SCHEDULES)
def test_one_trial_alone(name: str) -> None:
    simulation = run(SCHEDULES[name], 2, trials=1)
    (trial,) = simulation.history.trials
    expected = {"pasha": 3, "dehb": 1}.get(name, 9)
    assert trial.step == expected
    assert trial.state is (TrialState.DONE if expected == 9 else TrialState.STOPPED)


def test_hyperband_gives_the_numbers_of_the_paper() -> None:
    simulation = run("hyperband", 4, trials=9 + 5 + 3)
    steps = [trial.step for trial in simulation.history.trials]
    assert [sum(s >= r for s in steps[:9]) for r in (1, 3, 9)] == [9, 3, 1]
    assert [sum(s >= r for s in steps[9:14]) for r in (3, 9)] == [5, 1]
    assert steps[14:] == [9, 9, 9]


def test_a_bracket_that_the_total_cuts_off_promotes_its_share() -> None:
    simulation = run("hyperband", 4, trials=9 + 3)
    steps = [trial.step for trial in simulation.history.trials]
    assert sorted(steps[9:]) == [3, 3, 9]


def test_the_lineage_of_a_population_is_in_the_log() -> None:
    simulation = run(
        {"pbt": {"perturbation_interval": 2}},
        6,
        trials=6,
        checkpoint={"every_steps": 1, "keep_last": 2},
    )
    exploits = [
        event
        for event in simulation.events
        if isinstance(event, Decided) and event.source is not None
    ]
    assert exploits
    for event in exploits:
        assert event.why.startswith(f"exploits trial {event.source} (")
        assert event.config is not None
        assert event.manifests


def test_the_last_trials_get_all_machines() -> None:
    simulation = run({"resource_changing": {"schedule": "fifo", "interval": 2}}, 4, trials=5)
    widths = {event.trial: event.width for event in simulation.events if isinstance(event, Started)}
    assert max(widths.values()) == 4
    assert simulation.now < 9 + 9  # the fifth alone would take as long again
    assert finals(simulation) == {"done": 5}
