"""The trigger on Prefect's events: what cannot be read is set aside, and holds up nothing."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prefect.events import Event

from regrow.apps.station.triggers.events import EventsTrigger
from regrow.apps.station.triggers.tries import TRIES
from regrow.apps.station.triggers.trigger import GIVEN


class Client:
    """Prefect's client, with two pages of events."""

    def __init__(self, *pages: list[dict[str, Any]]) -> None:
        self._pages = pages
        self.runs: dict[str, Any] = {}
        """The events of flow runs, by their ids."""
        self.fails = 0
        """The status with which requests for flow runs are answered; 0: they succeed."""

    def request(self, method: str, path: str, **given: Any) -> Any:
        if "path_params" in given:
            if self.fails:
                answer = httpx.Response(self.fails, request=httpx.Request(method, "http://p/"))
                raise httpx.HTTPStatusError("no run", request=answer.request, response=answer)
            found = self.runs[str(given["path_params"]["id"])]
            return SimpleNamespace(json=lambda: {"parameters": {"event": found}})
        at = 0 if method == "POST" else int(path)
        following = str(at + 1) if at + 1 < len(self._pages) else None
        page = {"events": self._pages[at], "total": 3, "next_page": following}
        return SimpleNamespace(json=lambda: page)


def event(name: str, about: str = "a") -> dict[str, Any]:
    made = Event(event=name, resource={"prefect.resource.id": about}, id=uuid4())  # type: ignore[arg-type]  # it is converted
    return made.model_dump(mode="json")


def test_an_event_that_prefect_cannot_read_is_set_aside_and_those_after_it_are_found() -> None:
    first, last = event("first"), event("last")
    odd = {**event("odd"), "resource": {"no": "id"}}
    client: Any = Client([odd, first], [last])
    trigger = EventsTrigger(client, "*", "s", str(uuid4()))
    cursor: dict[str, Any] = {GIVEN: {"given": "*", "since": time.time() - 60}}
    step = trigger.poll(cursor)
    assert step is not None
    assert [one["name"] for one in step.events] == ["first", "last"]
    [(what, why)] = step.refused
    assert what == f"event {odd['id']}"
    assert why.startswith("Prefect cannot read it: resource")
    again = trigger.poll({**cursor, **step.put})
    assert again is None, "each once"


def test_an_event_of_a_run_that_the_schedule_has_led_to_starts_nothing() -> None:
    runs: dict[str, Any] = {
        str(uuid4()): one for one in ({"chain": ["s", "b"]}, {"chain": ["b"]}, None, {"chain": 7})
    }
    about = [f"prefect.flow-run.{run}" for run in (*runs, "no-id")]
    client: Any = Client([event(str(n), one) for n, one in enumerate(about)])
    client.runs = runs
    trigger = EventsTrigger(client, "*", "s", str(uuid4()))
    step = trigger.poll({GIVEN: {"given": "*", "since": time.time() - 60}})
    assert step is not None
    assert [(one["name"], one["chain"]) for one in step.events] == [
        ("1", ["b"]),
        ("2", []),
        ("3", []),
        ("4", []),
    ]
    [(_, why)] = step.refused
    assert "s -> b -> s" in why


def test_a_server_that_does_not_tell_a_runs_chain_is_asked_again() -> None:
    run = str(uuid4())
    client: Any = Client([event("first", f"prefect.flow-run.{run}")])
    client.runs, client.fails = {run: {"chain": ["s"]}}, 503
    trigger = EventsTrigger(client, "*", "s", str(uuid4()))
    cursor: dict[str, Any] = {GIVEN: {"given": "*", "since": time.time() - 60}}
    with pytest.raises(httpx.HTTPStatusError):
        trigger.poll(cursor)
    client.fails = 0
    step = trigger.poll(cursor)
    assert step is not None
    assert not step.events, "it comes of the schedule itself"
    client.fails = 404  # the run is deleted: nothing more can be learnt
    step = EventsTrigger(client, "*", "s", str(uuid4())).poll(cursor)
    assert step is not None
    assert [one["chain"] for one in step.events] == [[]]
    client.fails = 500  # it can never read this run, and other events wait
    trigger = EventsTrigger(client, "*", "s", str(uuid4()))
    for _ in range(TRIES - 1):
        with pytest.raises(httpx.HTTPStatusError):
            trigger.poll(cursor)
    step = trigger.poll(cursor)
    assert step is not None
    assert not step.events
    [(_, why)] = step.refused
    assert "does not tell which schedules led to it" in why
