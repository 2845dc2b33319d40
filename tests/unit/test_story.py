"""An illegal move names who, in which state, cannot do what, and tells the trial's last events; it
changes nothing.
"""

from __future__ import annotations

import pytest

from regrow.search.events import (
    AnyEvent,
    Began,
    Created,
    Decided,
    Ended,
    Opened,
    Proposed,
    Reported,
    Retired,
    Row,
    Saved,
    Started,
)
from regrow.search.history import History
from regrow.search.lifecycle import AttemptState, IllegalMove, TrialState
from tests.unit.told import folded

SPEC = {
    "name": "told",
    "trainable": "a.py:f",
    "metric": "score",
    "mode": "max",
    "space": {"x": {"uniform": [0, 1]}},
    "trials": 2,
    "max_steps": 9,
    "search": "random",
}


def report(attempt: int, *steps: int) -> Reported:
    return Reported(
        t=13.0, trial=0, attempt=attempt, rows=[Row(step, 13.0, {"score": 0.5}) for step in steps]
    )


LOG: list[AnyEvent] = [
    Created(t=10.0, id="i", spec=SPEC),
    Opened(t=10.0, by="driver", driver="d", slots=2, trials=2),
    Proposed(t=10.0, trial=0, config={"x": 0.5}),
    Started(t=11.0, trial=0, attempt=1, until=2),
    Began(t=12.0, trial=0, attempt=1, node="node-a"),
    report(1, 1, 2),
    Saved(t=13.5, trial=0, attempt=1, step=2, manifest="m", size=1),
    Decided(t=14.0, trial=0, attempt=1, step=2, verdict="pause", why="place 3 of 4"),
]


def fold(*more: AnyEvent) -> History:
    return folded([*LOG, *more])


def test_an_attempt_is_submitted_runs_leaves_and_has_ended() -> None:
    history, states = History(), []
    for event in (*LOG, Ended(t=15.0, trial=0, attempt=1, outcome="paused", step=2)):
        history.apply(event)
        if history.trials and history.trials[0].attempts:
            states.append(history.trials[0].attempts[0].state)
    assert list(dict.fromkeys(states)) == list(AttemptState)
    (attempt,) = history.trials[0].attempts
    assert (attempt.verdict, attempt.leave, attempt.stop) == ("pause", "place 3 of 4", None)


def test_it_is_held_from_the_decision_until_its_promotion() -> None:
    history = fold()
    assert (history.trials[0].held, history.held, history.trials[0].state) == (
        True,
        {0},
        TrialState.RUNNING,
    )
    history.apply(Ended(t=15.0, trial=0, attempt=1, outcome="lost", cause="preempted", step=2))
    assert (history.trials[0].held, history.held, history.trials[0].state) == (
        True,
        {0},
        TrialState.PAUSED,
    )
    history.apply(Started(t=16.0, trial=0, attempt=2))
    assert (history.trials[0].held, history.held) == (False, set())


def test_the_last_events_are_told_with_the_move_that_is_refused() -> None:
    history = fold()
    with pytest.raises(IllegalMove) as caught:
        history.apply(Decided(t=15.0, trial=0, attempt=1, step=2, verdict="continue"))
    assert str(caught.value) == (
        "attempt 1 of trial 0, in state 'leaving', cannot go on; its last events: it was proposed; attempt 1 was submitted at 1.0 s; "
        "attempt 1 began on node-a, after step 0 at 2.0 s; attempt 1 reported step 2 at 3.0 s; attempt 1 saved step 2 at 3.5 s; "
        "attempt 1 was to pause (place 3 of 4)"
    )


def test_of_a_long_story_the_last_events_are_told() -> None:
    history = fold(
        Ended(
            t=15.0,
            trial=0,
            attempt=1,
            outcome="lost",
            cause="infrastructure",
            message="OSError:\n  no room",
            step=2,
        )
    )
    for attempt in range(2, 6):
        history.apply(Started(t=10.0 * attempt, trial=0, attempt=attempt))
        history.apply(
            Ended(t=10.0 * attempt + 1, trial=0, attempt=attempt, outcome="lost", cause="preempted")
        )
    with pytest.raises(IllegalMove) as caught:
        history.apply(report(5, 3))
    assert str(caught.value).startswith(
        "attempt 5 of trial 0, in state 'ended', cannot report: it does not hold the lease; "
    )
    assert len(caught.value.story) == 8
    assert caught.value.story[0] == "attempt 2 was submitted at 10.0 s"
    assert caught.value.story[-1] == "attempt 5 ended as lost at 41.0 s"
    first = fold(
        Ended(
            t=15.0,
            trial=0,
            attempt=1,
            outcome="lost",
            cause="infrastructure",
            message="OSError:\n  no room",
            step=2,
        )
    )
    with pytest.raises(
        IllegalMove, match=r"attempt 1 ended as lost \(OSError: no room\) at 5\.0 s$"
    ):
        first.apply(report(1, 3))


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (Created(t=20.0, id="j", spec=SPEC), "the experiment cannot be created twice"),
        (
            Proposed(t=20.0, trial=7, config={"x": 0.1}),
            "trial 7, which does not exist, cannot be proposed: the next one is trial 1",
        ),
        (Started(t=20.0, trial=7, attempt=1), "trial 7, which does not exist, cannot start"),
        (
            Started(t=20.0, trial=0, attempt=2),
            "trial 0, in state 'running', cannot start; its last events: ",
        ),
        (
            report(3, 3),
            "attempt 3 of trial 0, which does not exist, cannot report; its last events: ",
        ),
        (
            Retired(t=20.0, trial=0),
            "trial 0, in state 'running', cannot be given up: it does not wait for a promotion; ",
        ),
        (
            Ended(t=20.0, trial=0, attempt=1, outcome="preempted", cause="error"),
            "attempt 1 of trial 0, in state 'leaving', cannot have ended as preempted by 'error'; ",
        ),
        (
            Ended(t=20.0, trial=0, attempt=1, outcome="failed"),
            "attempt 1 of trial 0, in state 'leaving', cannot have ended as failed without a cause; ",
        ),
    ],
    ids=lambda one: type(one).__name__ if not isinstance(one, str) else "",
)
def test_whoever_it_is_about_it_reads_well(event: AnyEvent, told: str) -> None:
    with pytest.raises(IllegalMove) as caught:
        fold().apply(event)
    assert str(caught.value).startswith(told)
