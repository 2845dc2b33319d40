"""Trials that pause, are promoted, given up and restarted: what the planner decides."""

from __future__ import annotations

from typing import Any

import pytest

from regrow.search.errors import SpecError
from regrow.search.events import Capacity, Closed, Closing, Decided, Ended, Retired, Started
from regrow.search.lifecycle import IllegalMove, TrialState
from tests.unit.scripted import PAUSE, RESTART, Desk, Scripted, clone, started


def test_a_paused_trial_has_its_slot_until_it_left_and_then_another_gets_it() -> None:
    desk = Desk({"0:2": PAUSE}, options={"last": True})
    desk.begin(0)
    desk.report(0, 1)
    (decided,) = desk.report(0, 2)
    assert isinstance(decided, Decided)
    assert (decided.verdict, decided.step) == ("pause", 2)
    assert desk.save(0, 2) == []
    assert started(desk.end(0)) == [(1, 1)]
    assert desk.of(0).state is TrialState.PAUSED
    assert desk.planner.history.held == {0}


def test_a_promoted_trial_goes_on_from_its_newest_checkpoint_until_its_next_decision() -> None:
    desk = Desk({"0:2": PAUSE, "0:5": PAUSE}, trials=1)
    desk.begin(0)
    desk.report(0, 1)
    desk.save(0, 1)
    desk.report(0, 2)
    desk.save(0, 2)
    (event,) = desk.end(0)
    assert isinstance(event, Started)
    assert (event.until, event.checkpoints, event.clones) == (5, ["m0.1.2", "m0.1.1"], 0)
    assert ("started", 0) in desk.scheduler.told[-1:]


def test_the_slot_of_the_trial_that_is_to_go_on_next_is_kept_for_it_while_it_leaves() -> None:
    """Two slots: trial 0 is about to leave and is the next to be promoted; the free slot is not
    given to a new trial.
    """
    desk = Desk({"0:2": PAUSE}, slots=2, trials=3)
    desk.begin(0)
    desk.begin(1)
    desk.report(0, 1, 2)
    assert started(desk.end(1, "done")) == []
    assert started(desk.end(0)) == [(0, 2), (2, 1)]


@pytest.mark.parametrize("step", [0, 1])
def test_killed_between_the_decision_and_its_checkpoint_the_pause_stands_and_is_not_decided_again(
    step: int,
) -> None:
    desk = Desk({"0:2": PAUSE, "0:4": PAUSE}, options={"last": True}, trials=2)
    desk.begin(0)
    desk.report(0, 1)
    if step:
        desk.save(0, 1)
    desk.report(0, 2)
    ended, other = desk.open(trials=2)[0], desk.events[-1]
    assert isinstance(ended, Ended)
    assert (ended.by, desk.of(0).state, desk.planner.history.held) == (
        "planner",
        TrialState.PAUSED,
        {0},
    )
    assert isinstance(other, Started), "a new trial has the slot"
    assert other.trial == 1
    desk.begin(1)
    (again,) = desk.end(1, "failed", "error")
    assert isinstance(again, Started)
    assert (again.trial, again.until) == (0, 4), "no new one comes: it is promoted"
    desk.begin(0, restored=step)
    assert desk.report(0, *range(step + 1, 4)) == [], "step 2 is not decided on twice"
    assert isinstance(desk.report(0, 4)[0], Decided)


@pytest.mark.parametrize(
    ("cause", "state"), [("preempted", TrialState.PAUSED), ("infrastructure", TrialState.FAILED)]
)
def test_a_pause_stands_where_the_attempt_is_lost_on_its_way_out_unless_its_retries_are_used_up(
    cause: Any, state: TrialState
) -> None:
    desk = Desk({"0:2": PAUSE}, options={"last": True}, retries={"infrastructure": 0})
    desk.begin(0)
    desk.report(0, 1, 2)
    assert started(desk.end(0, "lost", cause)) == [(1, 1)]
    assert desk.of(0).state is state
    assert desk.planner.history.held == ({0} if state is TrialState.PAUSED else set())


def test_one_that_ended_by_itself_before_it_heard_of_the_pause_is_done() -> None:
    desk = Desk({"0:2": PAUSE}, trials=1)
    desk.begin(0)
    desk.report(0, 1, 2)
    assert desk.end(0, "done", step=2) == [Closed(t=1.0, status="finished")]
    assert (desk.of(0).state, desk.planner.history.held) == (TrialState.DONE, set())


class Forgets(Scripted):
    """Promotes nothing."""

    def promote(self, *, complete: bool) -> int | None:
        return None


def test_what_nothing_can_promote_any_more_is_given_up_and_everybody_is_told() -> None:
    found = Desk(
        {}, trials=2, schedule={f"{__name__}:Forgets": {"script": {"0:2": PAUSE, "1:2": PAUSE}}}
    )
    for trial in (0, 1):
        found.begin(trial)
        found.report(trial, 1, 2, value=float(trial))
        last = found.end(trial)
    assert [type(event) for event in last] == [Retired, Retired, Closed]
    assert [event.trial for event in last if isinstance(event, Retired)] == [0, 1]
    assert last[-1] == Closed(t=1.0, status="finished")
    assert [trial.state for trial in found.planner.history.trials] == [TrialState.STOPPED] * 2
    assert found.scheduler.told[-4:] == [
        ("dropped", 0),
        ("ended", 0, "stopped"),
        ("dropped", 1),
        ("ended", 1, "stopped"),
    ]
    assert [(r.number, r.status) for r in found.planner._results.untold[-2:]] == [
        (0, "stopped"),
        (1, "stopped"),
    ]


def test_a_user_interrupts_the_paused_wait_on_and_the_others_go_on_first() -> None:
    desk = Desk({"0:2": PAUSE}, options={"last": True}, slots=2, trials=4)
    for trial in (0, 1):
        desk.begin(trial)
    desk.report(0, 1, 2)
    desk.end(0)
    desk.begin(2)
    desk.tell(Closing(t=desk.t, status="interrupted", why="by the user", by="user"))
    desk.end(1)
    assert desk.end(2) == [Closed(t=desk.t, status="interrupted")]
    assert desk.planner.history.held == {0}
    assert started(desk.open(slots=2, trials=4)) == [(1, 2), (2, 2)]
    assert started(desk.end(1, "lost", "preempted")) == [(1, 3)]


def test_one_that_a_user_interrupted_has_a_free_slot_while_another_leaves_for_its_pause() -> None:
    desk = Desk({"0:2": PAUSE}, options={"last": True}, slots=2, trials=2)
    for trial in (0, 1):
        desk.begin(trial)
    desk.tell(Closing(t=desk.t, status="interrupted", why="by the user", by="user"))
    desk.end(0)
    desk.end(1)
    assert started(desk.open(slots=1, trials=2)) == [(0, 2)]
    desk.begin(0)
    desk.report(0, 1, 2)
    assert desk.planner.history.held == desk.planner.history.running == {0}
    assert started(desk.tell(Capacity(t=desk.t, slots=2, widest=2))) == [(1, 2)]


@pytest.mark.parametrize("source", [-1, 2, 7])
def test_a_scheduler_of_the_users_own_cannot_copy_a_trial_that_is_not_there(source: int) -> None:
    desk = Desk({"0:2": clone(source)}, slots=2, trials=2)
    desk.begin(0)
    with pytest.raises(SpecError, match=f"names trial {source} as a source, and there is none"):
        desk.report(0, 1, 2)


def test_interrupted_and_paused_at_the_same_time_it_waits_for_its_promotion() -> None:
    desk = Desk({"0:2": PAUSE}, options={"last": True}, trials=2)
    desk.begin(0)
    desk.tell(Closing(t=desk.t, status="interrupted", why="by the user", by="user"))
    desk.report(0, 1, 2)
    desk.end(0)
    assert desk.planner.history.held == {0}
    assert started(desk.open(trials=2)) == [(1, 1)]


def test_with_a_raised_total_what_was_the_last_is_not_any_more() -> None:
    desk = Desk({"0:2": PAUSE, "1:2": PAUSE}, options={"last": True}, trials=2)
    desk.begin(0)
    desk.report(0, 1, 2)
    desk.end(0)
    desk.begin(1)
    desk.tell(Closing(t=desk.t, status="interrupted", why="by the user", by="user"))
    desk.report(1, 1, 2)
    assert desk.end(1) == [Closed(t=desk.t, status="interrupted")]
    before = len(desk.events)
    assert started(desk.open(trials=2)) == [(0, 2)], (
        "no new one comes: the first of the paused continues"
    )
    desk.cut(len(desk.events) - before)
    assert started(desk.open(trials=3)) == [(2, 1)], "a new one comes first"
    desk.begin(2)
    assert started(desk.end(2, "done")) == [(0, 2)]


@pytest.mark.parametrize(
    ("outcome", "cause", "step"), [("paused", "", 2), ("lost", "preempted", 1)]
)
def test_a_restarted_trial_goes_on_at_once(outcome: Any, cause: Any, step: int) -> None:
    desk = Desk({"0:2": RESTART, "0:4": PAUSE}, trials=2)
    desk.begin(0)
    desk.report(0, 1)
    desk.save(0, 1)
    desk.report(0, 2)
    if step == 2:
        desk.save(0, 2)
    (event,) = desk.end(0, outcome, cause)
    assert isinstance(event, Started)
    assert (event.trial, event.attempt, event.until, event.checkpoints[0]) == (
        0,
        2,
        4,
        f"m0.1.{step}",
    )


def test_only_what_the_scheduler_paused_can_be_given_up() -> None:
    desk = Desk({"0:2": PAUSE}, slots=2)
    desk.begin(0)
    desk.report(0, 1, 2)
    for trial in (0, 1, 9):  # about to leave, running, not there
        with pytest.raises(IllegalMove):
            desk.planner.apply(Retired(t=1.0, trial=trial))
    assert desk.of(0).state is TrialState.RUNNING
