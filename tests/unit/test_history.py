"""What a log folds to: curves, attempts, budgets, clocks; and that a refused event leaves no
trace.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.search.events import (
    AnyEvent,
    Began,
    Closed,
    Closing,
    Created,
    Decided,
    Dropped,
    Ended,
    Opened,
    Proposed,
    Reported,
    Row,
    Saved,
    Started,
)
from regrow.search.history import History, TrialRecord
from regrow.search.history.records import specification
from regrow.search.lifecycle import IllegalMove, TrialState
from tests.unit.simulated import Simulation, created, opened
from tests.unit.told import folded


def proposed(trial: int = 0) -> Proposed:
    return Proposed(t=2.0, trial=trial, config={"x": 0.5})


def started(trial: int = 0, attempt: int = 1, **more: Any) -> Started:
    return Started(t=3.0, trial=trial, attempt=attempt, **more)


def began(trial: int = 0, attempt: int = 1, restored: int = 0) -> Began:
    return Began(t=4.0, trial=trial, attempt=attempt, node="node", restored=restored)


def reported(first: int, *values: float, trial: int = 0, attempt: int = 1) -> Reported:
    rows = [Row(step, 5.0, {"score": value}) for step, value in enumerate(values, start=first)]
    return Reported(t=5.0, trial=trial, attempt=attempt, rows=rows)


def saved(step: int, trial: int = 0, attempt: int = 1) -> Saved:
    return Saved(
        t=6.0, trial=trial, attempt=attempt, step=step, manifest=f"{trial}/{attempt}/{step}", size=1
    )


def ended(outcome: Any, cause: Any = "", trial: int = 0, attempt: int = 1) -> Ended:
    return Ended(t=7.0, trial=trial, attempt=attempt, outcome=outcome, cause=cause)


def at_work(**changes: Any) -> list[AnyEvent]:
    """Trial 0 with an attempt that has begun."""
    return [created(**changes), opened(1.0), proposed(), started(), began()]


def curve(trial: TrialRecord) -> list[tuple[int, float | None, int]]:
    return list(zip(range(1, trial.step + 1), trial.values, trial.curve.lineage(), strict=True))


def seen(history: History) -> Any:
    """Everything that the history holds."""
    return copy.deepcopy({name: value for name, value in vars(history).items() if name != "_spec"})


# Folding


def test_a_trial_from_proposal_to_end() -> None:
    history = folded([*at_work(), reported(1, 0.1, 0.3), reported(3, 0.2), saved(3), ended("done")])
    (trial,) = history.trials
    assert trial.state is TrialState.DONE
    assert curve(trial) == [(1, 0.1, 1), (2, 0.3, 1), (3, 0.2, 1)]
    assert trial.best == (0.3, 2)
    assert list(trial.checkpoints) == [3]
    (attempt,) = trial.attempts
    assert (attempt.t_started, attempt.t_began, attempt.t_ended) == (3.0, 4.0, 7.0)
    assert (attempt.from_step, attempt.to_step, attempt.outcome) == (0, 3, "done")
    assert trial.attempt is None
    assert history.best == 0
    assert history.lost_steps == 0


def test_each_trial_is_in_exactly_one_state() -> None:
    run = Simulation(lose=0.1, slots=3, trials=10).open(retries={"infrastructure": 1000}).run()
    history = run.planner.history
    assert sum(history.counts.values()) == len(history.trials) == 10
    for trial in history.trials:
        assert [
            state for state, numbers in history.by_state.items() if trial.number in numbers
        ] == [trial.state]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 150))
def test_a_fold_in_two_parts_is_the_fold_of_the_whole(seed: int, cut: int) -> None:
    events = (
        Simulation(seed=seed, lose=0.1, slots=3).open(retries={"infrastructure": 1000}).run().events
    )
    parts = folded(events[:cut])
    for event in events[cut:]:
        parts.apply(event)
    assert seen(parts) == seen(folded(events))


def test_the_first_to_reach_a_value_is_the_best() -> None:
    history = folded(
        [
            *at_work(),
            proposed(1),
            started(1),
            began(1),
            reported(1, 0.5, trial=1),
            reported(1, 0.5, 0.5),
        ]
    )
    assert history.best == 1
    assert history.trials[0].best == (0.5, 1)


def test_less_is_better_where_the_specification_says_so() -> None:
    history = folded(
        [
            *at_work(mode="min"),
            proposed(1),
            started(1),
            began(1),
            reported(1, 0.5, 0.4, trial=1),
            reported(1, 0.45),
        ]
    )
    assert history.best == 1
    assert history.trials[1].best == (0.4, 2)


# Rewinding


def lost_at_5_with_a_checkpoint_at_3(*values: float) -> list[AnyEvent]:
    before = [
        *at_work(),
        reported(1, *values[:2]),
        saved(2),
        reported(3, *values[2:3]),
        saved(3),
        reported(4, *values[3:]),
    ]
    return [*before, ended("lost", "preempted"), started(attempt=2)]


def test_a_restored_trial_supersedes_exactly_the_steps_beyond_the_checkpoint() -> None:
    history = folded(
        [*lost_at_5_with_a_checkpoint_at_3(0.1, 0.2, 0.3, 0.4, 0.5), began(attempt=2, restored=3)]
    )
    (trial,) = history.trials
    assert curve(trial) == [(1, 0.1, 1), (2, 0.2, 1), (3, 0.3, 1)]
    history.apply(reported(4, 0.41, attempt=2))
    assert curve(trial)[-1] == (4, 0.41, 2)
    assert [a.superseded for a in trial.attempts] == [2, 0]
    assert history.lost_steps == 2
    assert list(trial.checkpoints) == [2, 3]


def test_until_the_next_attempt_begins_nothing_is_superseded() -> None:
    history = folded(lost_at_5_with_a_checkpoint_at_3(0.1, 0.2, 0.3, 0.4, 0.5))
    assert history.trials[0].step == 5
    assert history.trials[0].best == (0.5, 5)


def test_a_checkpoint_that_could_not_be_restored_is_gone_with_its_steps() -> None:
    history = folded(
        [*lost_at_5_with_a_checkpoint_at_3(0.1, 0.2, 0.3, 0.4, 0.5), began(attempt=2, restored=2)]
    )
    assert list(history.trials[0].checkpoints) == [2]
    assert history.lost_steps == 3


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ((0.1, 0.2, 0.3, 0.4, 0.5), (0.3, 3)),
        ((0.9, 0.2, 0.3, 0.4, 0.5), (0.9, 1)),
        ((0.3, 0.3, 0.3, 0.4, 0.3), (0.3, 1)),
        ((0.1, 0.2, 0.3, 0.3, 0.3), (0.3, 3)),
    ],
)
def test_a_best_value_that_was_superseded_is_found_anew(
    values: tuple[float, ...], best: tuple[float, int]
) -> None:
    history = folded([*lost_at_5_with_a_checkpoint_at_3(*values), began(attempt=2, restored=3)])
    assert history.trials[0].best == best


def test_another_trial_is_the_best_once_the_best_value_was_superseded() -> None:
    other: list[AnyEvent] = [proposed(1), started(1), began(1), reported(1, 0.35, trial=1)]
    history = folded([*lost_at_5_with_a_checkpoint_at_3(0.1, 0.2, 0.3, 0.4, 0.5), *other])
    assert history.best == 0
    history.apply(began(attempt=2, restored=3))
    assert history.best == 1
    history.apply(reported(4, 0.4, attempt=2))
    assert history.best == 0


def test_a_trial_that_starts_over_has_no_best() -> None:
    history = folded([*lost_at_5_with_a_checkpoint_at_3(0.1, 0.2, 0.3, 0.4, 0.5), began(attempt=2)])
    assert history.trials[0].best is None
    assert history.best is None
    assert history.lost_steps == 5


# Budgets


def tries(cause: Any, outcome: Any, count: int, **retries: Any) -> TrialRecord:
    history = folded([created(retries=retries), opened(1.0), proposed()])
    for attempt in range(1, count + 1):
        history.apply(started(attempt=attempt))
        history.apply(ended(outcome, cause, attempt=attempt))
    return history.trials[0]


def test_losing_the_node_costs_no_retry() -> None:
    assert tries("preempted", "lost", 200).state is TrialState.LOST


def test_infrastructure_fails_five_times_and_no_more() -> None:
    assert tries("infrastructure", "lost", 5).state is TrialState.LOST
    assert tries("infrastructure", "failed", 6).state is TrialState.FAILED


def test_an_error_of_the_trainable_is_not_retried() -> None:
    assert tries("error", "failed", 1).state is TrialState.FAILED


def test_budgets_are_the_specification_s() -> None:
    assert tries("error", "failed", 2, error=2).state is TrialState.LOST
    assert tries("error", "failed", 3, error=2).state is TrialState.FAILED
    assert tries("preempted", "lost", 1, preempted=0).state is TrialState.FAILED


def preempted(
    steps: list[int], *, by: Any = "attempt", nodes: str = "a", **retries: Any
) -> TrialRecord:
    """Attempt by attempt: from the beginning, so many steps, then preempted; on one of `nodes`
    after the other.
    """
    history = folded([created(retries=retries), opened(1.0), proposed()])
    for attempt, count in enumerate(steps, 1):
        node = nodes[attempt % len(nodes)]
        for event in (started(attempt=attempt), Began(t=4.0, trial=0, attempt=attempt, node=node)):
            history.apply(event)
        if count:
            history.apply(reported(1, *[0.5] * count, attempt=attempt))
        history.apply(
            Ended(
                t=7.0,
                trial=0,
                attempt=attempt,
                outcome="lost",
                cause="preempted",
                message="its node is gone",
                by=by,
            )
        )
    return history.trials[0]


def test_preemptions_without_a_step_of_progress_are_bounded_and_told() -> None:
    assert preempted([3] + [2] * 10).state is TrialState.LOST
    trial = preempted([3] + [3, 0] * 5 + [1], nodes="ab")
    assert trial.state is TrialState.FAILED
    told = "its node is gone; 11 attempts in a row were preempted without one step of progress, 6 on a, 5 on b"
    assert trial.attempts[-1].message == f"{told} (retries: no_progress: 10)"
    assert trial.failure is trial.attempts[-1]
    left = tries("infrastructure", "preempted", 6)
    assert left.state is TrialState.FAILED
    assert left.failure is not None
    assert "6 of its attempts ended so" in left.failure.message
    assert preempted([1] * 3, no_progress=1).state is TrialState.FAILED


def test_preemptions_with_progress_and_lost_drivers_are_not_bounded() -> None:
    assert preempted(list(range(100))).state is TrialState.LOST
    assert preempted([1] * 50, by="planner").state is TrialState.LOST
    assert preempted([1] * 50, no_progress="unlimited").state is TrialState.LOST


def test_a_log_of_before_that_limit_has_none() -> None:
    spec = {
        **created().spec,
        "retries": {
            "preempted": "unlimited",
            "infrastructure": 5,
            "error": 0,
            "stalled": 2,
            "spot": 3,
        },
    }
    assert specification(Created(t=0.0, id="old", spec=spec)).retries.no_progress == "unlimited"


def test_causes_are_counted_apart() -> None:
    history = folded([created(), opened(1.0), proposed()])
    for attempt in range(1, 11):
        history.apply(started(attempt=attempt))
        history.apply(
            ended("lost", "preempted" if attempt % 2 else "infrastructure", attempt=attempt)
        )
    assert history.by_state[TrialState.LOST] == {0}
    history.apply(started(attempt=11))
    history.apply(ended("lost", "infrastructure", attempt=11))
    assert history.by_state[TrialState.FAILED] == {0}


# Clocks


def test_elapsed_is_the_sum_of_the_sessions() -> None:
    history = folded(
        [created(), opened(100.0), Closing(t=160.0, status="interrupted", why="", by="user")]
    )
    history.apply(Closed(t=170.0, status="interrupted"))
    assert history.elapsed() == history.elapsed(999.0) == 70.0
    history.apply(opened(1000.0))
    assert history.elapsed() == 70.0
    assert history.elapsed(1030.0) == 100.0
    history.apply(proposed())  # at t=2: the clock of another machine
    assert history.elapsed() == 70.0


def test_a_session_that_was_killed_counts_until_its_last_event() -> None:
    history = folded(
        [created(), opened(100.0), Proposed(t=150.0, trial=0, config={}), opened(1000.0)]
    )
    assert history.elapsed(1010.0) == 60.0


def test_a_clock_that_steps_back_takes_nothing_away() -> None:
    history = folded(
        [created(), opened(100.0), Proposed(t=150.0, trial=0, config={}), opened(40.0)]
    )
    assert history.elapsed() == 50.0
    assert history.elapsed(60.0) == 50.0
    history.apply(Proposed(t=50.0, trial=1, config={}))
    assert history.elapsed(45.0) == 50.0
    assert history.elapsed(155.0) == 55.0


def test_a_coordinator_that_comes_back_begins_no_session() -> None:
    history = folded(
        [created(), opened(100.0), proposed(), started(), opened(200.0, by="coordinator")]
    )
    assert history.sessions == 1
    assert history.elapsed(210.0) == 110.0
    assert history.orphans == []


def test_attempts_of_a_driver_that_is_gone_are_orphans_until_they_are_declared_lost() -> None:
    history = folded([*at_work(), opened(9.0)])
    assert history.orphans == [(0, 1)]
    history.apply(ended("lost", "preempted"))
    assert history.orphans == []


# Refusals


@pytest.mark.parametrize(
    "event",
    [
        created(),
        proposed(0),
        proposed(2),
        started(0, attempt=2),
        started(1),
        began(),
        began(attempt=2),
        began(trial=5),
        began(trial=-1),
        reported(1, 0.5),
        reported(4, 0.5),
        reported(3, 0.5, attempt=2),
        Reported(
            t=5.0,
            trial=0,
            attempt=1,
            rows=[Row(3, 5.0, {"score": 1.0}), Row(5, 5.0, {"score": 2.0})],
        ),
        Decided(t=6.0, trial=0, attempt=1, step=1, verdict="continue", until=3),
        Decided(t=6.0, trial=0, attempt=1, step=3, verdict="continue"),
        saved(2),
        saved(3),
        saved(0),
        Dropped(t=7.0, trial=0, manifests=["0/1/1"]),
        Dropped(t=7.0, trial=1, manifests=[]),
        Dropped(t=7.0, trial=-1, manifests=["0/1/2"]),
        ended("done", attempt=2),
        ended("failed"),
        ended("lost"),
        ended("done", trial=1),
        Closed(t=8.0, status="finished"),
    ],
    ids=lambda event: (
        f"{type(event).__name__}-{getattr(event, 'trial', '')}-{getattr(event, 'attempt', '')}"
    ),
)
def test_a_refused_event_changes_nothing(event: AnyEvent) -> None:
    history = folded([*at_work(), reported(1, 0.5, 0.7), saved(2)])
    before = seen(history)
    with pytest.raises(IllegalMove):
        history.apply(event)
    assert seen(history) == before


@pytest.mark.parametrize(
    "event", [began(attempt=2, restored=6), reported(6, 0.5, attempt=2), saved(4, attempt=2)]
)
def test_an_attempt_goes_on_from_what_there_is(event: AnyEvent) -> None:
    history = folded(lost_at_5_with_a_checkpoint_at_3(0.1, 0.2, 0.3, 0.4, 0.5))
    before = seen(history)
    with pytest.raises(IllegalMove):
        history.apply(event)
    assert seen(history) == before


def test_what_an_attempt_that_was_declared_lost_still_sends_is_refused() -> None:
    history = folded(
        [*lost_at_5_with_a_checkpoint_at_3(0.1, 0.2, 0.3, 0.4, 0.5), began(attempt=2, restored=3)]
    )
    for event in (reported(6, 0.9), saved(5), ended("done"), began(restored=3)):
        with pytest.raises(IllegalMove, match="does not hold the lease"):
            history.apply(event)
    assert history.lease(0, 1) is None
    assert history.lease(0, 2) is not None


def test_nothing_runs_on_in_a_closed_experiment() -> None:
    history = folded([*at_work(), Closing(t=8.0, status="stopped", why="", by="user")])
    with pytest.raises(IllegalMove, match="trial 0"):
        history.apply(Closed(t=9.0, status="stopped"))
    history.apply(ended("paused"))
    history.apply(Closed(t=9.0, status="stopped"))
    history.apply(opened(10.0))
    assert history.closed is None
    assert history.closing is None


def test_an_empty_log_has_no_specification() -> None:
    with pytest.raises(LookupError, match="never created"):
        _ = History().spec
    assert isinstance(opened(1.0), Opened)


def test_a_coordinator_that_comes_back_knows_no_other_environment_than_its_driver() -> None:
    found = {"git": {"commit": "c0ffee"}}
    history = folded(
        [created(), Opened(t=0, by="driver", driver="a", slots=2, trials=4, environment=found)]
    )
    history.apply(Opened(t=1, by="coordinator", driver="a", slots=2, trials=4))
    assert history.environment == found
    history.apply(
        Opened(
            t=2, by="driver", driver="b", slots=2, trials=4, environment={"git": {"commit": "beef"}}
        )
    )
    assert history.environment == {"git": {"commit": "beef"}}
