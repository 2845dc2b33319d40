"""Attempts that take several slots: what the planner gives them, and what they are told."""

from __future__ import annotations

from regrow.search.events import Closing, Started
from tests.unit.scripted import Desk
from tests.unit.works import MakeWorks


def test_a_wide_attempt_gets_no_more_than_what_is_free() -> None:
    desk = Desk({}, slots=4, trials=3, options={"widths": {"0": 3, "1": 9, "2": 0}})
    widths = [event.width for event in desk.events if isinstance(event, Started)]
    assert widths == [3, 1]
    assert desk.planner.history.occupied == 4
    (event,) = desk.end(0, "lost", "preempted")
    assert isinstance(event, Started)
    assert (event.trial, event.width) == (0, 3)
    event = desk.end(1, "done")[-1]
    assert isinstance(event, Started)
    assert (event.trial, event.width) == (2, 1), "at least one"


def test_with_fewer_slots_in_the_next_session_it_gets_fewer() -> None:
    desk = Desk({}, slots=4, trials=1, options={"widths": {"0": 4}})
    desk.tell(Closing(t=desk.t, status="interrupted", why="by the user", by="user"))
    desk.end(0)
    assert [e.width for e in desk.open(slots=2, trials=1) if isinstance(e, Started)] == [2]
    assert desk.planner.history.occupied == 2


def test_a_wide_attempt_is_told_its_width(works: MakeWorks) -> None:
    at = works(
        {}, trials=1, slots=4, options={"widths": {"0": 3}}, resources={"cpu": 2, "gpu": 0.5}
    )
    given = at.office.submitted()
    assert given.width == 3
    assert given.needs.bundles == ({"CPU": 2.0, "GPU": 0.5},) * 3
