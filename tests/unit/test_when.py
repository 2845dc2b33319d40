"""When an experiment starts by itself, as a specification says it; and what the run is told of
it.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from regrow.infra.state import hooks
from regrow.infra.state.places import Places
from regrow.search.errors import SpecError
from regrow.search.spec import Spec
from regrow.tasks.trial.trial import Trial
from tests.unit.attempting import Attempting
from tests.unit.office import MakeOffice
from tests.unit.simulated import SPEC

EVENT = {"files": ["s3://bucket/new.parquet"], "id": "0b5e"}


def spec(**changes: Any) -> Spec:
    return Spec.parse({**SPEC, "schedule": "fifo", **changes})


def test_spans_are_read_and_what_is_left_out_has_its_default() -> None:
    when = spec(when={"every": "6h", "settle": "2min"}).when
    assert when is not None
    assert (when.every, when.settle, when.each, when.overlap, when.keep, when.retries_per_day) == (
        21600,
        120,
        "new",
        "skip",
        None,
        3,
    )
    assert [one.when.settle for one in (spec(when={"hook": True}),) if one.when] == [60]
    assert spec(when={"after": "etl", "cron": "0 2 * * *"}).when is not None, (
        "a trigger may stand beside a time"
    )


@pytest.mark.parametrize(
    ("when", "line"),
    [
        ({"cron": "0 2 * * *", "every": "6h"}, "when.every: 21600.0: stands beside cron"),
        (
            {"cron": "0 2 * * *", "rrule": "FREQ=DAILY"},
            'when.rrule: "FREQ=DAILY": stands beside cron',
        ),
        (
            {"every": "soon"},
            'when.every: "soon": is not a number; write seconds, or text such as "6h"',
        ),
        ({"every": 0.5}, "when.every: 0.5: is below 1"),
        (
            {"cron": "0 2 * * *", "timezone": "CET/../x"},
            'when.timezone: "CET/../x": is no name of a time zone',
        ),
        (
            {"cron": "0 2 * * *", "timezone": "+01:00"},
            'when.timezone: "+01:00": is no name of a time zone',
        ),
        ({"each": "newest"}, "when.each: \"newest\": is not 'new' or 'continue'"),
        ({"overlap": "kill"}, "when.overlap: \"kill\": is not 'skip', 'queue' or 'replace'"),
        ({"keep": 0}, "when.keep: 0: is below 1"),
        ({"each": "continue", "keep": 3}, "when.keep: 3: is for experiments of their own"),
        ({"retries_per_day": -1}, "when.retries_per_day: -1: is below 0"),
        ({"hook": "yes"}, 'when.hook: "yes": is neither true nor false'),
        ({"evry": "6h"}, "when.evry: \"6h\": unknown key; did you mean 'every'?"),
        ("0 2 * * *", 'when: "0 2 * * *": is not a map'),
    ],
)
def test_what_may_not_stand_there_is_named_with_what_to_write(when: Any, line: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec(when=when)
    assert str(caught.value).startswith(line)


def test_a_grid_that_is_to_continue_has_nothing_to_raise() -> None:
    grid = {"space": {"x": {"grid": [1, 2]}}, "search": "grid", "trials": None}
    spec(**grid, when={"every": "1h"})
    with pytest.raises(SpecError, match=r"when\.each.*trials"):
        spec(**grid, when={"every": "1h", "each": "continue"})


def test_neither_when_nor_what_started_it_makes_it_another_experiment() -> None:
    assert spec(when={"every": "6h"}, event=EVENT).identity() == spec().identity()
    assert "when" not in spec(when={"every": "6h"}).settings(), "it says nothing to a session"


def test_it_survives_the_log() -> None:
    given = spec(when={"every": "6h", "timezone": "Europe/Zurich", "hook": True}, event=EVENT)
    assert Spec.recorded(json.loads(json.dumps(given.model_dump(mode="json")))) == given
    assert Spec.parse(given.to_json()) == given


@pytest.mark.parametrize("event", [EVENT, None])
def test_a_function_and_a_class_have_what_started_the_run(
    make_office: MakeOffice, attempt: Attempting, event: dict[str, Any] | None
) -> None:
    seen: list[object] = []

    def train(trial: Trial) -> None:
        seen.append(trial.event)
        trial.report({"score": 1.0})

    class Model:
        event: dict[str, Any] | None = None

        def setup(self, config: dict[str, Any]) -> None:
            seen.append(self.event)

        def step(self) -> dict[str, Any]:
            return {"score": 1.0, "done": True}

    for trainable in (train, Model):
        attempt(make_office(event=event), trainable)
    assert seen == [event, event]


def test_a_class_keeps_what_it_calls_event_itself(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    class Model:
        def setup(self, config: dict[str, Any]) -> None:
            assert self.event() == "mine"

        def event(self) -> str:
            return "mine"

        def step(self) -> dict[str, Any]:
            return {"score": 1.0, "done": True}

    assert attempt(make_office(event=EVENT), Model).ended.outcome == "done"


def test_a_schedule_keeps_its_secret_and_no_other_user_can_read_it(places: Places) -> None:
    old = os.umask(0)
    try:
        file = hooks.make(places, "one")
    finally:
        os.umask(old)
    secret = hooks.known(places)["one"]
    hooks.make(places, "other")
    hooks.make(places, "one")
    assert hooks.known(places)["one"] == secret != hooks.known(places)["other"]
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    hooks.forget(places, "one")
    assert list(hooks.known(places)) == ["other"]
