"""What schedulers and samplers make of failed trials that are tried again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from regrow.search import samplers
from regrow.search.events import Decided, Proposed, Revived, Started
from regrow.search.lifecycle import TrialState
from regrow.search.planning.planner import Planner, seed_for
from regrow.search.planning.simulator import FunctionObjective
from regrow.search.planning.simulator import Simulation as Simulated
from regrow.search.planning.verify import verify
from regrow.search.samplers.base import Proposal, Result, Sampler
from regrow.search.space import Space
from regrow.search.space.setting import Setting
from regrow.search.spec import Spec
from tests.unit.revived import SCHEDULES, failing, retried, simulated
from tests.unit.simulated import SPEC

SAMPLERS: list[Any] = [
    "random",
    "grid",
    "brute_force",
    "qmc",
    "tpe",
    {"tpe": {"n_startup_trials": 2, "constant_liar": True}},
    {"cmaes": {"popsize": 4}},
    {"bohb": {"random_fraction": 0.1}},
    "dehb",
    "nsga2",
    {"optuna": {"sampler": "optuna.samplers:TPESampler", "options": {"n_startup_trials": 2}}},
]


# Schedulers


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("workers", [1, 3])
def test_under_every_schedule_what_had_failed_comes_to_an_end(schedule: Any, workers: int) -> None:
    broken = failing(
        simulated(workers, schedule=schedule, trials=12), (0, 0), (3, 1), (4, 2), (7, 0)
    )
    mended = retried(broken)
    history = mended.history
    assert not history.by_state[TrialState.FAILED]
    assert all(trial.state in (TrialState.DONE, TrialState.STOPPED) for trial in history.trials)
    assert history.closed is not None
    assert history.closed.status == "finished"
    assert verify(mended.events).difference is None


BRACKET: dict[str, Any] = {
    "schedule": {"successive_halving": {"n": 9, "grace_period": 3}},
    "trials": 9,
    "max_steps": 9,
}


def by_value() -> list[int]:
    """The trials of `BRACKET`, the worst first."""
    trials = simulated(1, schedule="fifo").open().run().history.trials
    return sorted(range(9), key=lambda number: float(trials[number].config["x"]))


def test_a_revived_member_of_a_bracket_is_compared_with_all_that_reached_the_rung() -> None:
    """Of nine, three continue: the best one, which failed on its way to the rung, is one more."""
    best = by_value()[-1]
    whole = simulated(1, **BRACKET).open().run()
    broken = failing(simulated(1, **BRACKET), (best, 1))
    mended = retried(broken)
    assert mended.history.trials[best].state is whole.history.trials[best].state is TrialState.DONE
    reached = {t.number for t in broken.history.trials if t.step > 3}
    assert {t.number for t in mended.history.trials if t.step > 3} == reached | {best}
    assert verify(mended.events).difference is None


def test_a_revived_member_of_a_bracket_that_is_worse_than_those_that_went_on_is_stopped() -> None:
    worst = by_value()[0]
    mended = retried(failing(simulated(1, **BRACKET), (worst, 1)))
    trial = mended.history.trials[worst]
    assert (trial.state, trial.step) == (TrialState.STOPPED, 3)


def test_a_revived_one_is_part_of_the_population_again() -> None:
    plan: dict[str, Any] = {"schedule": {"pbt": {"perturbation_interval": 2}}, "trials": 4}
    broken = failing(simulated(4, **plan), (0, 4))
    mended = retried(broken)
    decided = [e for e in mended.events if isinstance(e, Decided) and e.trial == 0]
    assert [e.step for e in decided] == [2, 4, 6, 8]
    assert mended.history.trials[0].step == 9


def test_several_that_are_revived_share_the_slots() -> None:
    plan: dict[str, Any] = {"schedule": {"resource_changing": {"interval": 3}}, "trials": 3}
    mended = retried(failing(simulated(6, **plan), (0, 1), (1, 1), (2, 1)))
    place = next(n for n, event in enumerate(mended.events) if isinstance(event, Revived))
    widths = [e.width for e in mended.events[place:] if isinstance(e, Started)]
    assert widths[:3] == [2, 2, 2]


# Samplers


def _setting(search: Any) -> Setting:
    parameters: dict[str, Any] = {
        "x": {"quniform": [0, 1, 0.05]},
        "kind": {"choice": ["a", "b", "c"]},
    }
    if search == "grid":
        parameters["x"] = {"grid": [0.1, 0.2, 0.3, 0.4, 0.5]}
    return Setting(space=Space.parse(parameters), modes=("max",), max_steps=9, trials=15)


def _asked(sampler: Sampler, number: int) -> tuple[Proposal, Result]:
    """What is proposed as a trial, and the result of that once it runs."""
    proposal = sampler.ask(number, seed_for(3, number))
    assert proposal is not None
    parts: dict[str, Any] = {"config": proposal.config, "state": proposal.state}
    return proposal, Result(number=number, **parts, status="running")


@pytest.mark.parametrize("search", SAMPLERS, ids=str)
def test_a_sampler_learns_what_a_revived_trial_came_to_and_forgets_that_it_had_failed(
    search: Any,
) -> None:
    """Told that a trial failed, runs again and is done, it proposes what it does if the trial just
    was done.
    """
    straight, crooked = (samplers.make(search, _setting(search)) for _ in range(2))
    for number in range(14):
        proposal, began = _asked(straight, number)
        assert _asked(crooked, number)[0] == proposal, f"proposal {number}"
        curve = [
            (step, float(proposal.config["x"]) + 0.01 * step * number) for step in range(1, 10)
        ]
        done = replace(began, status="done", value=curve[-1][1], intermediate=curve)
        straight.tell(began)
        crooked.tell(began)
        straight.tell(done)
        if number % 3 == 0:
            crooked.tell(replace(began, status="failed", value=curve[1][1], intermediate=curve[:2]))
            crooked.tell(replace(began, revived=1, intermediate=curve[:2]))
            crooked.tell(replace(done, revived=1))
        else:
            crooked.tell(done)


@pytest.mark.parametrize("search", SAMPLERS, ids=str)
def test_a_sampler_is_told_the_mean_of_repeats_anew_once_a_failed_one_of_them_is_done(
    search: Any,
) -> None:
    changes: dict[str, Any] = {
        "space": {"x": {"quniform": [0, 1, 0.05]}, "kind": {"choice": ["a", "b", "c"]}}
    }
    if search == "grid":
        changes["space"]["x"] = {"grid": [0.1, 0.2, 0.3, 0.4, 0.5]}
    schedule = "dehb" if search == "dehb" else "fifo"
    spec = Spec.parse(
        {**SPEC, **changes, "trials": 14, "repeats": 2, "search": search, "schedule": schedule}
    )
    objective = FunctionObjective(
        function=lambda config, step: float(config["x"]) * step, spec=spec
    )
    broken = failing(Simulated(spec=spec, objective=objective, workers=1), (1, 0), (5, 0))
    more = Spec.parse({**spec.to_json(), "trials": 20})
    mended = (
        Simulated(spec=more, objective=objective, workers=1)
        .open(broken.events, retry_failed=True)
        .run()
    )
    assert not mended.history.by_state[TrialState.FAILED]
    assert len(mended.history.trials) == 20
    assert verify(mended.events).difference is None
    place = max(n for n, event in enumerate(mended.events) if isinstance(event, Proposed))
    fresh = Planner()
    for event in mended.events[:place]:
        fresh.apply(event)
    assert fresh.next(mended.events[place].t) == mended.events[place], (
        "also for one that is told all of it at once"
    )


@pytest.mark.parametrize(
    "search", [search for search in SAMPLERS if "cmaes" not in search], ids=str
)
def test_what_a_revived_configuration_comes_to_takes_the_place_of_what_it_came_to_before(
    search: Any,
) -> None:
    """Of repeats, where one had failed and the mean of the others was told."""
    straight, crooked = (samplers.make(search, _setting(search)) for _ in range(2))
    for number in range(10):
        proposal, began = _asked(straight, number)
        assert _asked(crooked, number)[0] == proposal, f"proposal {number}"
        done = replace(
            began, status="done", value=float(number % 4), intermediate=[(9, float(number % 4))]
        )
        straight.tell(began)
        straight.tell(done)
        for result in (
            began,
            replace(done, value=9.0, intermediate=[(9, 9.0)]),
            replace(began, revived=1),
        ):
            crooked.tell(result)
        crooked.tell(replace(done, revived=1))


def test_the_generations_of_cmaes_are_the_same_for_who_is_told_everything_at_once() -> None:
    setting = _setting("cmaes")
    told: list[Result] = []
    lively = samplers.make({"cmaes": {"popsize": 4}}, setting)

    def tell(result: Result) -> None:
        told.append(result)
        lively.tell(result)

    for number in range(14):
        proposal, began = _asked(lively, number)
        fresh = samplers.make({"cmaes": {"popsize": 4}}, setting)
        for result in told:
            fresh.tell(result)
        assert _asked(fresh, number)[0] == proposal, f"proposal {number}"
        tell(began)
        tell(replace(began, status="done", value=float(number % 4)))
        if number == 6:
            again = replace(told[0], revived=1)
            tell(again)
            tell(replace(again, status="done", value=99.0))


def test_an_evaluation_of_dehb_that_is_revived_ends_at_its_budget() -> None:
    plan: dict[str, Any] = {"search": "dehb", "schedule": "dehb", "trials": 9}
    whole = simulated(1, **plan).open().run()
    mended = retried(failing(simulated(1, **plan), (0, 0)))
    assert mended.history.trials[0].step == whole.history.trials[0].step < 9


def test_the_order_in_which_a_revived_trial_s_results_are_told_leaves_no_trace() -> None:
    from regrow.search.samplers.result_rules import supersedes

    failed = Result(number=0, config={}, status="failed", intermediate=[(1, 0.1), (2, 0.2)])
    again = replace(failed, status="running", revived=1)
    assert supersedes(again, failed)
    assert not supersedes(failed, again)
    assert supersedes(replace(again, status="done"), again)
