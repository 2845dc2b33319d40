"""The ledger of wasted work, on a history made by hand."""

from __future__ import annotations

from typing import Any

from regrow.search.events import Began, Ended, Reported, Row, Saved, Started
from regrow.search.history import History, waste
from tests.unit.simulated import created, opened
from tests.unit.test_history import proposed
from tests.unit.told import folded


def begin(number: int, t: float, restored: int = 0) -> list[Any]:
    return [
        Started(t=t, trial=0, attempt=number),
        Began(t=t, trial=0, attempt=number, node="n", restored=restored),
    ]


def rows(number: int, *steps: int) -> Reported:
    """Steps, one a second, each at t = 10 * attempt + step."""
    return Reported(
        t=99.0,
        trial=0,
        attempt=number,
        rows=[Row(s, 10.0 * number + s, {"score": 1.0}) for s in steps],
    )


def lost(number: int, t: float, cause: Any, outcome: Any = "lost") -> Ended:
    return Ended(t=t, trial=0, attempt=number, outcome=outcome, cause=cause, by="driver")


def fold(*events: Any) -> History:
    return folded([created(retries={"error": 1}), opened(1.0), proposed(), *events])


def test_steps_done_again_and_the_seconds_since_the_last_useful_one_are_counted_by_class() -> None:
    history = fold(
        *begin(1, 10.0),
        rows(1, 1, 2, 3),
        Saved(t=12.0, trial=0, attempt=1, step=1, manifest="m1", size=1),
        lost(1, 15.0, "preempted"),
        *begin(2, 20.0, restored=1),
        rows(2, 2, 3),
        lost(2, 24.5, "infrastructure"),
        *begin(3, 30.0, restored=1),
        rows(3, 2),
        Ended(t=33.0, trial=0, attempt=3, outcome="done"),
    )
    assert waste.of_all(history) == {
        "preempted": waste.Waste(attempts=1, steps=2, seconds=4.0),  # step 1 ended at 11 s
        "infrastructure": waste.Waste(attempts=1, steps=2, seconds=4.5),  # nothing of it counts
    }
    assert waste.of_trial(history.trials[0]) == waste.of_all(history)
    assert history.lost_steps == 4


def test_a_preempted_attempt_that_saved_its_last_step_wastes_no_step() -> None:
    history = fold(
        *begin(1, 10.0),
        rows(1, 1, 2),
        Saved(t=12.0, trial=0, attempt=1, step=2, manifest="m2", size=1),
        lost(1, 12.5, "preempted", "preempted"),
        *begin(2, 20.0, restored=2),
    )
    assert waste.of_all(history) == {"preempted": waste.Waste(attempts=1, steps=0, seconds=0.5)}


def test_an_attempt_that_failed_for_good_counts_from_its_last_step() -> None:
    history = fold(*begin(1, 10.0), rows(1, 1), lost(1, 11.5, "error", "failed"))
    assert waste.of_all(history) == {"error": waste.Waste(attempts=1, steps=0, seconds=0.5)}


def test_one_that_never_began_wasted_nothing_but_is_counted() -> None:
    history = fold(Started(t=10.0, trial=0, attempt=1), lost(1, 50.0, "preempted"))
    assert waste.of_all(history) == {"preempted": waste.Waste(attempts=1, steps=0, seconds=0.0)}


def test_an_attempt_that_died_with_its_driver_wasted_nothing_in_the_time_until_the_next_driver_came() -> (
    None
):
    history = fold(
        *begin(1, 10.0),
        rows(1, 1, 2),
        opened(1000.0, driver="driver-2"),
        Ended(t=1000.0, trial=0, attempt=1, outcome="lost", cause="preempted", by="planner"),
    )
    # The last word of the session before came at 99 s; its last step was done at 12 s.
    assert waste.of_all(history) == {"preempted": waste.Waste(attempts=1, steps=0, seconds=87.0)}
