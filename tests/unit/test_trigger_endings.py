"""Which endings of experiments are events: each session that finished, once, whatever is read
again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

from regrow.apps.station.triggers.endings import EndingsTrigger
from regrow.apps.station.triggers.payloads import DEPTH, acceptable
from regrow.apps.station.triggers.trigger import GIVEN
from regrow.infra.log.log import Log
from regrow.infra.state.places import Places
from regrow.search.events import Closed, Created, Opened, Status, encode


def session(
    places: Places,
    name: str,
    t: float,
    status: Status = "finished",
    settings: dict[str, Any] | None = None,
) -> None:
    """Appends a session to an experiment's log, which it may begin."""
    log = Log.open(places.store(name))
    opened = encode(
        Opened(t=t - 1, by="driver", driver="d", slots=1, trials=1, settings=settings or {})
    )
    is_new = not places.store(name).list("log/")
    log.claim([encode(Created(t=t - 1, id=str(uuid4()), spec={})), opened] if is_new else [opened])
    log.append([encode(Closed(t=t, status=status))])


def begun(since: float = 1.0) -> dict[str, Any]:
    """The cursor of a new schedule."""
    return {GIVEN: {"since": since}}


def looked(places: Places, cursor: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a poll, whose cursor is kept."""
    step = EndingsTrigger(places, "etl", "s").poll(cursor)
    if step is None:
        return []
    cursor.update(step.put)
    for gone in step.drop:
        del cursor[gone]
    return list(step.events)


def test_a_session_that_finished_is_found_once(places: Places) -> None:
    session(places, "etl", 10.0, "interrupted")
    session(places, "etl", 20.0)
    session(places, "other", 30.0)
    cursor = begun()
    assert [(one["experiment"], one["ended"]) for one in looked(places, cursor)] == [("etl", 20.0)]
    assert EndingsTrigger(places, "etl", "s").poll(cursor) is None
    session(places, "etl", 40.0)
    assert [one["ended"] for one in looked(places, cursor)] == [40.0]
    assert looked(places, cursor) == []
    ids = [one["id"] for one in looked(places, begun())]
    assert len(set(ids)) == 2
    assert ids == [one["id"] for one in looked(places, begun())], (
        "an ending has the same id whenever it is read"
    )


def test_a_schedules_experiments_count_as_it(places: Places) -> None:
    for name in ("etl-2026-11-22T02", "etl-2026-11-22T023015-2", "etl-small", "metl", "et"):
        session(places, name, 10.0)
    assert [one["experiment"] for one in looked(places, begun())] == [
        "etl-2026-11-22T02",
        "etl-2026-11-22T023015-2",
    ]


def test_another_experiment_of_the_same_name_is_read_from_its_beginning(places: Places) -> None:
    session(places, "etl", 10.0)
    session(places, "etl", 20.0)
    cursor = begun()
    looked(places, cursor)
    store = places.store("etl")
    store.delete(store.list(""))
    removed = dict(cursor)
    assert looked(places, removed) == []
    assert "etl" not in removed
    for t in (30.0, 40.0, 50.0):
        session(places, "etl", t)
    assert [one["ended"] for one in looked(places, cursor)] == [30.0, 40.0, 50.0]


def test_what_ended_before_the_schedule_was_made_is_no_event(places: Places) -> None:
    session(places, "etl", 10.0)
    session(places, "etl", 20.0)
    trigger = EndingsTrigger(places, "etl", "s")
    cursor = begun(15.0)
    step = trigger.poll(cursor)
    assert step is not None
    assert [event["ended"] for event in step.events] == [20.0]
    cursor.update(step.put)
    assert trigger.poll(cursor) is None


def test_an_ending_that_the_schedule_has_led_to_starts_nothing(places: Places) -> None:
    session(places, "etl", 10.0, settings={"event": {"chain": ["t", "etl"]}})
    [event] = looked(places, cursor := begun())
    assert event["chain"] == ["t", "etl"]
    session(places, "etl", 20.0, settings={"event": {"chain": ["s", "etl"]}})
    step = EndingsTrigger(places, "etl", "s").poll(cursor)
    assert step is not None
    assert step.events == []
    [(what, why)] = step.refused
    assert what == "the end of etl"
    assert "s -> etl -> s" in why


def test_a_damaged_log_is_told_once_and_hides_no_other(tmp_path: Path) -> None:
    places = Places.at(str(tmp_path))
    for name in ("etl-2026-11-22T02", "etl-2026-11-23T02", "etl-2026-11-22T02"):
        session(places, name, 10.0)
    damaged = min((tmp_path / "etl-2026-11-22T02" / "log").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-9] + b"\xff" * 9)
    trigger = EndingsTrigger(places, "etl", "s")
    cursor = begun()
    step = trigger.poll(cursor)
    assert step is not None
    assert [event["experiment"] for event in step.events] == ["etl-2026-11-23T02"]
    assert [name for name, _ in step.refused] == ["etl-2026-11-22T02"]
    cursor.update(step.put)
    assert trigger.poll(cursor) is None


def test_a_payload_stays_data() -> None:
    assert acceptable({"a": [1, {"b": None}]}) is None
    assert "__prefect_kind" in str(
        acceptable({"a": [{"__prefect_kind": "jinja", "template": "{{ secret }}"}]})
    )
    deep: Any = 1
    for _ in range(DEPTH + 1):
        deep = [deep]
    assert "deep" in str(acceptable(deep))
    assert acceptable([1, -(1 << 63), (1 << 64) - 1, 1.5, "\U0001f600", None, True]) is None
