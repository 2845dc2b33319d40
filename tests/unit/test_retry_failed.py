"""Failed trials that are tried again, as the user wished: which, when, and what stands of what was
decided.
"""

from __future__ import annotations

from typing import Any

import pytest

from regrow.search.events import Began, Closed, Ended, Opened, Revived, decode, encode
from regrow.search.history import History, TrialRecord
from regrow.search.lifecycle import IllegalMove, TrialState
from regrow.search.planning.verify import verify
from regrow.testing import check_log, decisions
from tests.unit.revived import curves, failed_after, failing, reopened, retried, simulated, until
from tests.unit.simulated import Simulation
from tests.unit.told import folded


def test_failed_trials_go_on_from_their_last_checkpoints_as_further_attempts() -> None:
    whole = simulated(schedule="fifo").open().run()
    broken = failing(simulated(schedule="fifo"), *((number, 2) for number in range(9)))
    assert broken.history.counts[TrialState.FAILED] == 9
    assert broken.history.closed is not None
    assert broken.history.closed.status == "failed"
    mended = retried(broken)
    assert mended.history.counts[TrialState.DONE] == 9
    assert [[a.from_step for a in trial.attempts] for trial in mended.history.trials] == [
        [0, 2]
    ] * 9
    assert curves(mended.history) == curves(whole.history), "one value a step, the same ones"
    assert mended.history.lost_steps == 0
    assert mended.history.closed is not None
    assert mended.history.closed.status == "finished"


def test_with_anew_they_begin_from_nothing_and_their_checkpoints_are_dropped() -> None:
    fresh = simulated(schedule="fifo", retries={"anew": True})
    mended = retried(failing(fresh, (1, 2), (4, 3)))
    assert mended.history.counts[TrialState.DONE] == 9
    starts = [[a.from_step for a in trial.attempts] for trial in mended.history.trials]
    assert starts == [[0, 0] if number in (1, 4) else [0] for number in range(9)]
    check_log(mended.events)


def test_only_what_has_failed_is_tried_again_and_only_where_it_was_asked_for() -> None:
    broken = failing(simulated(schedule="fifo"), (1, 2), (4, 3))
    plain = reopened(broken, retry_failed=False).run()
    assert plain.history.counts[TrialState.FAILED] == 2
    mended = retried(broken)
    assert [event.trial for event in mended.events if isinstance(event, Revived)] == [1, 4]
    assert [len(trial.attempts) for trial in mended.history.trials] == [1, 2, 1, 1, 2, 1, 1, 1, 1]


def test_without_failed_trials_the_wish_changes_nothing() -> None:
    whole = simulated(schedule="asha").open().run()
    again = retried(whole)
    assert decisions(again.events) == decisions(whole.events)
    assert [type(event) for event in again.events[len(whole.events) :]] == [Opened, Closed]


def test_a_trial_that_fails_only_as_its_lost_driver_is_declared_lost_is_among_them() -> None:
    run = simulated(schedule="fifo", retries={"preempted": 0}).open().run(most_events=12)
    assert run.history.running
    lost = set(run.history.running)
    mended = retried(run)
    assert {event.trial for event in mended.events if isinstance(event, Revived)} == lost
    assert mended.history.counts[TrialState.DONE] == 9
    check_log(mended.events)


def test_the_wish_outlives_a_driver_that_was_lost_before_it_was_all_fulfilled() -> None:
    broken = failing(simulated(schedule="fifo"), *((number, 2) for number in range(9)))
    first = reopened(broken)
    cut = len(broken.events) + 4  # the opening and three of the nine
    assert isinstance(first.events[cut - 1], Revived)
    again = reopened(broken, first.events[:cut], retry_failed=False).run()
    assert again.history.counts[TrialState.DONE] == 9
    assert sum(isinstance(event, Revived) for event in again.events) == 9
    check_log(again.events)


def test_retries_are_counted_anew() -> None:
    run = failing(simulated(schedule="fifo", retries={"error": 1}), (0, 2), (0, 3))
    assert run.history.trials[0].state is TrialState.FAILED
    again = reopened(run)
    while (
        again.history.trials[0].attempt is None or again.history.trials[0].attempt.t_began is None
    ):
        again.run(most_events=len(again.events) + 1)
    again.fail(0, "once more")
    assert again.history.trials[0].state is not TrialState.FAILED
    assert again.run().history.trials[0].state is TrialState.DONE


def test_a_trial_that_fails_again_can_be_tried_again_again() -> None:
    run = failing(simulated(schedule="fifo"), (0, 2))
    for step in (4, 6):
        again = reopened(run)
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
    other = verify(
        [
            *mended.events[:place],
            Revived(t=mended.events[place].t, trial=4),
            *mended.events[place + 1 :],
        ]
    ).difference
    assert other is not None
    assert (other.position, other.expected) == (place + 1, mended.events[place])
    opened = decode(encode(mended.events[place - 1]).replace(b',"retry_failed":true', b""))
    unasked = verify([*mended.events[: place - 1], opened, *mended.events[place:]]).difference
    assert unasked is not None
    assert unasked.position == place + 1
    assert not isinstance(unasked.expected, Revived)


def test_how_many_ended_without_a_better_value_is_counted_as_if_it_had_not() -> None:
    """The plateau of a stop condition: the failures were part of it, and are no more."""
    run = failing(
        simulated(workers=1, schedule="fifo", stop={"plateau": {"trials": 50}}), (2, 2), (5, 2)
    )
    again = reopened(run)
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


@pytest.mark.parametrize(
    "schedule",
    [{"asha": {"type": "promotion"}}, "successive_halving", {"pbt": {"perturbation_interval": 2}}],
)
def test_one_that_was_to_pause_waits_for_its_promotion_again(schedule: Any) -> None:
    run = simulated(workers=1, schedule=schedule).open().run()
    log = until(run.events, "pause")
    trial = log[-1].trial  # type: ignore[union-attr]  # a decision
    failed = failed_after(run, log)
    opened = reopened(failed)
    history = folded(opened.events[: len(failed.events) + 2])
    assert history.trials[trial].state is TrialState.PAUSED
    assert history.held == {trial}
    mended = opened.run()
    assert all(t.state in (TrialState.DONE, TrialState.STOPPED) for t in mended.history.trials)
    assert verify(mended.events).difference is None


def test_logs_with_failures_and_revivals_verify_wherever_they_were_cut() -> None:
    run = Simulation(slots=2, fails=frozenset({1, 3})).open().run()
    again = Simulation(events=list(run.events), slots=2)
    for event in again.events:
        again.planner.apply(event)
    again.tell(Opened(t=again.now, by="driver", driver="e", slots=2, trials=6, retry_failed=True))
    again.run()
    for cut in range(len(again.events) + 1):
        assert verify(again.events[:cut]).difference is None
    trial: TrialRecord = again.planner.history.trials[1]
    assert trial.state in (TrialState.DONE, TrialState.STOPPED)
    assert any(
        isinstance(event, Began) and (event.trial, event.attempt) == (1, 2)
        for event in again.events
    )
