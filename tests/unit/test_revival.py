"""Failed trials that are tried again, as the user wished: what the log, schedulers and samplers make of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from regrow.search import samplers
from regrow.search.events import AnyEvent, Began, Closed, Decided, Ended, Opened, Proposed, Revived, Started, decode, encode
from regrow.search.history import History, Trial
from regrow.search.lifecycle import IllegalMove, TrialState
from regrow.search.planner import Planner, seed_for
from regrow.search.samplers import Result
from regrow.search.setting import Setting
from regrow.search.simulator import FunctionObjective
from regrow.search.simulator import Simulation as Simulated
from regrow.search.space import Space
from regrow.search.spec import Spec
from regrow.search.verify import verify
from regrow.testing import check_log, decisions
from tests.unit.simulated import SPEC, Simulation, score

SCHEDULES: list[Any] = [
    "fifo", "asha", {"asha": {"type": "promotion", "reduction_factor": 2}}, "hyperband", "successive_halving",
    {"async_hyperband": {"type": "promotion"}}, "pasha", {"median": {"min_samples_required": 1}},
    {"percentile": {"min_samples_required": 1, "percentile": 50}}, {"pbt": {"perturbation_interval": 2}},
    {"pb2": {"perturbation_interval": 2}}, {"resource_changing": {"schedule": "asha"}},
]
SAMPLERS: list[Any] = [
    "random", "grid", "brute_force", "qmc", "tpe", {"tpe": {"n_startup_trials": 2, "constant_liar": True}},
    {"cmaes": {"popsize": 4}}, {"bohb": {"random_fraction": 0.1}}, "dehb", "nsga2",
    {"optuna": {"sampler": "optuna.samplers:TPESampler", "options": {"n_startup_trials": 2}}},
]


def simulated(workers: int = 2, **changes: Any) -> Simulated:
    spec = Spec.parse({**SPEC, "trials": 9, **changes})
    return Simulated(spec=spec, objective=_objective(spec), workers=workers)


def _objective(spec: Spec) -> FunctionObjective:
    return FunctionObjective(function=score, spec=spec)


def failing(run: Simulated, *at: tuple[int, int]) -> Simulated:
    """Runs to the end; the trials of `at` raise once at the step beside their number, where they come to it."""
    left = set(at)
    run.open()
    while run.history.closed is None:
        run.run(most_events=len(run.events) + 1)
        for running in run.running:
            if (running.trial, running.step) in left:
                left.discard((running.trial, running.step))
                run.fail(running.trial, "NameError: name 'modle' is not defined")
    assert left < set(at)
    return run


def retried(run: Simulated) -> Simulated:
    """The next sitting, in which what failed is tried again."""
    again = Simulated(spec=run.spec, objective=run.objective, workers=run.workers)
    return again.open(run.events, retry_failed=True).run()


def curves(history: History) -> list[list[float]]:
    return [list(trial.values) for trial in history.trials]


# The decision


def test_failed_trials_go_on_from_their_last_checkpoints_as_further_attempts() -> None:
    whole = simulated(schedule="fifo").open().run()
    broken = failing(simulated(schedule="fifo"), *((number, 2) for number in range(9)))
    assert broken.history.counts[TrialState.FAILED] == 9
    assert broken.history.closed is not None
    assert broken.history.closed.status == "failed"
    mended = retried(broken)
    assert mended.history.counts[TrialState.DONE] == 9
    assert [[a.from_step for a in trial.attempts] for trial in mended.history.trials] == [[0, 2]] * 9
    assert curves(mended.history) == curves(whole.history), "one value a step, the same ones"
    assert mended.history.lost_steps == 0
    assert mended.history.closed is not None
    assert mended.history.closed.status == "finished"


def test_only_what_has_failed_is_tried_again_and_only_where_it_was_asked_for() -> None:
    broken = failing(simulated(schedule="fifo"), (1, 2), (4, 3))
    plain = Simulated(spec=broken.spec, objective=broken.objective, workers=2).open(broken.events).run()
    assert plain.history.counts[TrialState.FAILED] == 2
    mended = retried(broken)
    assert [event.trial for event in mended.events if isinstance(event, Revived)] == [1, 4]
    assert [len(trial.attempts) for trial in mended.history.trials] == [1, 2, 1, 1, 2, 1, 1, 1, 1]


def test_without_failed_trials_the_wish_changes_nothing() -> None:
    whole = simulated(schedule="asha").open().run()
    again = retried(whole)
    assert decisions(again.events) == decisions(whole.events)
    assert [type(event) for event in again.events[len(whole.events) :]] == [Opened, Closed]


def test_a_trial_that_fails_only_as_its_lost_driver_is_buried_is_among_them() -> None:
    run = simulated(schedule="fifo", retries={"preempted": 0}).open().run(most_events=12)
    assert run.history.running
    lost = set(run.history.running)
    mended = retried(run)
    assert {event.trial for event in mended.events if isinstance(event, Revived)} == lost
    assert mended.history.counts[TrialState.DONE] == 9
    check_log(mended.events)


def test_the_wish_outlives_a_driver_that_was_lost_before_it_was_all_fulfilled() -> None:
    broken = failing(simulated(schedule="fifo"), *((number, 2) for number in range(9)))
    first = Simulated(spec=broken.spec, objective=broken.objective, workers=2).open(broken.events, retry_failed=True)
    cut = len(broken.events) + 4  # the opening and three of the nine
    assert isinstance(first.events[cut - 1], Revived)
    again = Simulated(spec=broken.spec, objective=broken.objective, workers=2).open(first.events[:cut]).run()
    assert again.history.counts[TrialState.DONE] == 9
    assert sum(isinstance(event, Revived) for event in again.events) == 9
    check_log(again.events)


def test_retries_are_counted_anew() -> None:
    run = failing(simulated(schedule="fifo", retries={"error": 1}), (0, 2), (0, 3))
    assert run.history.trials[0].state is TrialState.FAILED
    again = Simulated(spec=run.spec, objective=run.objective, workers=2).open(run.events, retry_failed=True)
    while again.history.trials[0].attempt is None or again.history.trials[0].attempt.t_began is None:
        again.run(most_events=len(again.events) + 1)
    again.fail(0, "once more")
    assert again.history.trials[0].state is not TrialState.FAILED
    assert again.run().history.trials[0].state is TrialState.DONE


def test_a_trial_that_fails_again_can_be_tried_again_again() -> None:
    run = failing(simulated(schedule="fifo"), (0, 2))
    for step in (4, 6):
        again = Simulated(spec=run.spec, objective=run.objective, workers=2).open(run.events, retry_failed=True)
        while (trial := again.history.trials[0]).step < step:
            again.run(most_events=len(again.events) + 1)
        again.fail(0, "not yet")
        run = again.run()
        assert run.history.trials[0].state is TrialState.FAILED
    done = retried(run).history.trials[0]
    assert (done.state, len(done.attempts), done.revived, trial.step) == (TrialState.DONE, 4, 3, 6)


def test_no_other_trial_can_be_revived() -> None:
    run = simulated(schedule="fifo").open().run()
    with pytest.raises(IllegalMove, match="trial 0, in state 'done', cannot retry"):
        run.planner.apply(Revived(t=run.now, trial=0))
    with pytest.raises(IllegalMove, match="trial 99, which does not exist"):
        run.planner.apply(Revived(t=run.now, trial=99))


def test_a_revival_that_was_changed_or_left_out_is_found() -> None:
    mended = retried(failing(simulated(schedule="fifo"), (1, 2), (4, 3)))
    place = next(n for n, event in enumerate(mended.events) if isinstance(event, Revived))
    without = verify([*mended.events[:place], *mended.events[place + 1 :]]).difference
    assert without is not None
    assert without.position == place + 1
    other = verify([*mended.events[:place], Revived(t=mended.events[place].t, trial=4), *mended.events[place + 1 :]]).difference
    assert other is not None
    assert (other.position, other.expected) == (place + 1, mended.events[place])
    opened = decode(encode(mended.events[place - 1]).replace(b',"retry_failed":true', b""))
    unasked = verify([*mended.events[: place - 1], opened, *mended.events[place:]]).difference
    assert unasked is not None
    assert unasked.position == place + 1
    assert not isinstance(unasked.expected, Revived)


def test_how_many_ended_without_a_better_value_is_counted_as_if_it_had_not() -> None:
    """The plateau of a stop condition: the failures were part of it, and are no more."""
    run = failing(simulated(workers=1, schedule="fifo", stop={"plateau": {"trials": 50}}), (2, 2), (5, 2))
    again = Simulated(spec=run.spec, objective=run.objective, workers=1).open(run.events, retry_failed=True)
    ends, best, since = run.history, float("-inf"), 0
    leader = 0.0
    fold = History()
    for event in run.events:
        fold.apply(event)
        if isinstance(event, Ended) and fold.trials[event.trial].state is TrialState.DONE:
            assert fold.best is not None
            found = fold.trials[fold.best].best
            assert found is not None
            leader = found[0]
            best, since = (leader, 0) if leader > best else (best, since + 1)
    assert again.history.since_best == since
    assert ends.ended == 9
    assert again.history.ended == 7


def test_the_decision_to_stop_a_trial_outlives_its_failure() -> None:
    run = simulated(workers=1, schedule="asha").open().run()
    log = until(run.events, "stop")
    trial = log[-1].trial  # type: ignore[union-attr]  # a decision
    failed = failed_after(run, log)
    assert failed.history.trials[trial].state is TrialState.FAILED
    mended = retried(failed)
    assert mended.history.trials[trial].state is TrialState.STOPPED
    assert len(mended.history.trials[trial].attempts) == 1
    check_log(mended.events)


@pytest.mark.parametrize("schedule", [{"asha": {"type": "promotion"}}, "successive_halving", {"pbt": {"perturbation_interval": 2}}])
def test_one_that_was_to_pause_waits_for_its_promotion_again(schedule: Any) -> None:
    run = simulated(workers=1, schedule=schedule).open().run()
    log = until(run.events, "pause")
    trial = log[-1].trial  # type: ignore[union-attr]  # a decision
    failed = failed_after(run, log)
    opened = Simulated(spec=run.spec, objective=run.objective, workers=1).open(failed.events, retry_failed=True)
    history = History()
    for event in opened.events[: len(failed.events) + 2]:
        history.apply(event)
    assert history.trials[trial].state is TrialState.PAUSED
    assert history.held == {trial}
    mended = opened.run()
    assert all(t.state in (TrialState.DONE, TrialState.STOPPED) for t in mended.history.trials)
    assert verify(mended.events).difference is None


def until(events: list[AnyEvent], verdict: str) -> list[AnyEvent]:
    """The log up to the first such decision."""
    place = next(n for n, event in enumerate(events) if isinstance(event, Decided) and event.verdict == verdict)
    return events[: place + 1]


def failed_after(run: Simulated, log: list[AnyEvent]) -> Simulated:
    """That log, in which the trial of the last decision then raised, run to its end by the next driver."""
    decided = log[-1]
    assert isinstance(decided, Decided)
    ended = Ended(
        t=decided.t, trial=decided.trial, attempt=decided.attempt, outcome="failed", cause="error", step=decided.step,
        message="raised as it was told",
    )
    return Simulated(spec=run.spec, objective=run.objective, workers=1).open([*log, ended]).run()


# Schedulers


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("workers", [1, 3])
def test_under_every_schedule_what_had_failed_comes_to_an_end(schedule: Any, workers: int) -> None:
    broken = failing(simulated(workers, schedule=schedule, trials=12), (0, 0), (3, 1), (4, 2), (7, 0))
    mended = retried(broken)
    history = mended.history
    assert not history.by_state[TrialState.FAILED]
    assert all(trial.state in (TrialState.DONE, TrialState.STOPPED) for trial in history.trials)
    assert history.closed is not None
    assert history.closed.status == "finished"
    assert verify(mended.events).difference is None


def test_a_revived_member_of_a_bracket_is_compared_with_all_that_reached_the_rung() -> None:
    """Of nine, three go on: the best one, which failed on its way to the rung, is one more."""
    best = max(range(9), key=lambda n: float(simulated(1, schedule="fifo").open().run().history.trials[n].config["x"]))
    plan: dict[str, Any] = {"schedule": {"successive_halving": {"n": 9, "grace_period": 3}}, "trials": 9, "max_steps": 9}
    whole = simulated(1, **plan).open().run()
    broken = failing(simulated(1, **plan), (best, 1))
    mended = retried(broken)
    assert mended.history.trials[best].state is whole.history.trials[best].state is TrialState.DONE
    reached = {t.number for t in broken.history.trials if t.step > 3}
    assert {t.number for t in mended.history.trials if t.step > 3} == reached | {best}
    assert verify(mended.events).difference is None


def test_a_revived_member_of_a_bracket_that_is_worse_than_those_that_went_on_is_stopped() -> None:
    worst = min(range(9), key=lambda n: float(simulated(1, schedule="fifo").open().run().history.trials[n].config["x"]))
    plan: dict[str, Any] = {"schedule": {"successive_halving": {"n": 9, "grace_period": 3}}, "trials": 9, "max_steps": 9}
    mended = retried(failing(simulated(1, **plan), (worst, 1)))
    assert (mended.history.trials[worst].state, mended.history.trials[worst].step) == (TrialState.STOPPED, 3)


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
    parameters: dict[str, Any] = {"x": {"quniform": [0, 1, 0.05]}, "kind": {"choice": ["a", "b", "c"]}}
    if search == "grid":
        parameters["x"] = {"grid": [0.1, 0.2, 0.3, 0.4, 0.5]}
    return Setting(space=Space.parse(parameters), modes=("max",), max_steps=9, trials=15)


@pytest.mark.parametrize("search", SAMPLERS, ids=str)
def test_a_sampler_learns_what_a_revived_trial_came_to_and_forgets_that_it_had_failed(search: Any) -> None:
    """Told that a trial failed, runs again and is done, it proposes what it does if the trial just was done."""
    setting = _setting(search)
    straight, crooked = samplers.make(search, setting), samplers.make(search, setting)
    for number in range(14):
        seed = seed_for(3, number)
        proposal, other = straight.ask(number, seed), crooked.ask(number, seed)
        assert proposal is not None
        assert proposal == other, f"proposal {number}"
        began = Result(number=number, config=proposal.config, state=proposal.state, status="running")
        curve = [(step, float(proposal.config["x"]) + 0.01 * step * number) for step in range(1, 10)]
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
def test_a_sampler_is_told_the_mean_of_repeats_anew_once_a_failed_one_of_them_is_done(search: Any) -> None:
    changes: dict[str, Any] = {"space": {"x": {"quniform": [0, 1, 0.05]}, "kind": {"choice": ["a", "b", "c"]}}}
    if search == "grid":
        changes["space"]["x"] = {"grid": [0.1, 0.2, 0.3, 0.4, 0.5]}
    schedule = "dehb" if search == "dehb" else "fifo"
    spec = Spec.parse({**SPEC, **changes, "trials": 14, "repeats": 2, "search": search, "schedule": schedule})
    objective = FunctionObjective(function=lambda config, step: float(config["x"]) * step, spec=spec)
    broken = failing(Simulated(spec=spec, objective=objective, workers=1), (1, 0), (5, 0))
    more = Spec.parse({**spec.to_json(), "trials": 20})
    mended = Simulated(spec=more, objective=objective, workers=1).open(broken.events, retry_failed=True).run()
    assert not mended.history.by_state[TrialState.FAILED]
    assert len(mended.history.trials) == 20
    assert verify(mended.events).difference is None
    place = max(n for n, event in enumerate(mended.events) if isinstance(event, Proposed))
    fresh = Planner()
    for event in mended.events[:place]:
        fresh.apply(event)
    assert fresh.next(mended.events[place].t) == mended.events[place], "also for one that is told all of it at once"


@pytest.mark.parametrize("search", [search for search in SAMPLERS if "cmaes" not in search], ids=str)
def test_what_a_revived_configuration_comes_to_takes_the_place_of_what_it_came_to_before(search: Any) -> None:
    """Of repeats, where one had failed and the mean of the others was told."""
    setting = _setting(search)
    straight, crooked = samplers.make(search, setting), samplers.make(search, setting)
    for number in range(10):
        seed = seed_for(3, number)
        proposal, other = straight.ask(number, seed), crooked.ask(number, seed)
        assert proposal is not None
        assert proposal == other, f"proposal {number}"
        began = Result(number=number, config=proposal.config, state=proposal.state, status="running")
        done = replace(began, status="done", value=float(number % 4), intermediate=[(9, float(number % 4))])
        straight.tell(began)
        straight.tell(done)
        for result in (began, replace(done, value=9.0, intermediate=[(9, 9.0)]), replace(began, revived=1)):
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
        proposal = lively.ask(number, seed_for(3, number))
        assert proposal is not None
        fresh = samplers.make({"cmaes": {"popsize": 4}}, setting)
        for result in told:
            fresh.tell(result)
        assert fresh.ask(number, seed_for(3, number)) == proposal, f"proposal {number}"
        began = Result(number=number, config=proposal.config, state=proposal.state, status="running")
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
    from regrow.search.samplers.told import supersedes

    failed = Result(number=0, config={}, status="failed", intermediate=[(1, 0.1), (2, 0.2)])
    again = replace(failed, status="running", revived=1)
    assert supersedes(again, failed)
    assert not supersedes(failed, again)
    assert supersedes(replace(again, status="done"), again)


def test_logs_with_failures_and_revivals_verify_wherever_they_were_cut() -> None:
    run = Simulation(slots=2, fails=frozenset({1, 3})).open().run()
    again = Simulation(events=list(run.events), slots=2)
    for event in again.events:
        again.planner.apply(event)
    again.tell(Opened(t=again.now, by="driver", driver="e", slots=2, trials=6, retry_failed=True))
    again.run()
    for cut in range(len(again.events) + 1):
        assert verify(again.events[:cut]).difference is None
    trial: Trial = again.planner.history.trials[1]
    assert trial.state in (TrialState.DONE, TrialState.STOPPED)
    assert any(isinstance(event, Began) and (event.trial, event.attempt) == (1, 2) for event in again.events)
