"""What a station does with flow runs that are due."""

from __future__ import annotations

from regrow.apps.station.due_runs import Action, Due, plan


def due(run: str, at: float, schedule: str | None = "nightly", **other: object) -> Due:
    return Due(run=run, at=at, schedule=schedule, by_the_clock=True, **other)  # type: ignore[arg-type]


def event(run: str, at: float, schedule: str | None = "nightly", **other: object) -> Due:
    return Due(run=run, at=at, schedule=schedule, **other)  # type: ignore[arg-type]


def test_what_is_due_is_started_the_oldest_first() -> None:
    assert list(plan([due("b", 2, "y"), due("a", 1, "x")], [])) == [
        Action("start", "a"),
        Action("start", "b"),
    ]


def test_of_what_the_clock_made_due_while_nobody_was_there_the_newest_runs() -> None:
    actions = list(plan([due("a", 1), due("b", 2), due("c", 3)], []))
    assert [action.do for action in actions] == ["skip", "skip", "start"]
    assert actions[-1] == Action("start", "c")


def test_each_event_runs_one_after_the_other() -> None:
    waiting = [event("a", 1), event("b", 2)]
    assert list(plan(waiting, [])) == [Action("start", "a")]
    assert list(plan(waiting[1:], [("a", "nightly")])) == []
    assert list(plan(waiting[1:], [])) == [Action("start", "b")]


def test_missed_times_make_no_event_miss_its_run() -> None:
    actions = list(plan([due("a", 1), event("e", 2), due("c", 3)], []))
    assert [action.do for action in actions] == ["skip", "start", "skip"]
    assert actions[1] == Action("start", "e")


def test_an_overlap_is_skipped_waits_or_replaces() -> None:
    running = [("before", "nightly")]
    assert [action.do for action in plan([due("a", 1, overlap="skip")], running)] == ["skip"]
    assert list(plan([due("a", 1, overlap="queue")], running)) == []
    assert list(plan([due("a", 1, overlap="replace")], running)) == [Action("end", "before")]


def test_an_event_is_never_skipped() -> None:
    assert list(plan([event("e", 1, overlap="skip")], [("before", "nightly")])) == []


def test_other_schedules_and_runs_without_one_do_not_wait() -> None:
    running = [("before", "nightly"), ("typed", None)]
    assert list(plan([due("a", 1, "hourly"), event("retried", 2, None)], running)) == [
        Action("start", "a"),
        Action("start", "retried"),
    ]


def test_what_runs_is_not_started_again() -> None:
    assert list(plan([event("a", 1)], [("a", "nightly")])) == []
    assert list(plan([event("a", 1, None)], [("a", None)])) == []
