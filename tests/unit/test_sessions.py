"""What an experiment's next session may have otherwise: taken over, told, and part of what its
decisions follow from.
"""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest

from regrow.flows.coordinator.claim import claimed
from regrow.flows.session import Session
from regrow.infra.log.log import Log
from regrow.infra.log.reading import read_events, replay
from regrow.infra.state.experiments import Prepared, prepare
from regrow.infra.state.places import Places
from regrow.search.errors import SpecError
from regrow.search.events import encode
from regrow.search.planning.verify import verify
from regrow.search.spec import PER_SESSION, Spec
from tests.unit.office import opening_of
from tests.unit.simulated import SPEC, Simulation

NAME = SPEC["name"]


def spec(**changes: Any) -> Spec:
    return Spec.parse({**SPEC, "schedule": "fifo", **changes})


def sit(prepared: Prepared, driver: str) -> None:
    """The coordinator's part of the beginning of a session."""
    opening = opening_of(prepared.spec, trials=prepared.trials)
    claimed(prepared.store, opening, driver)


def again(places: Places, given: Spec | None, driver: str) -> Prepared:
    prepared = prepare(places, NAME, given, trials=None, code=None)
    sit(prepared, driver)
    return prepared


OTHER: dict[str, Any] = {
    "concurrency": 3,
    "working_dir": "/tmp",
    "env": {"COLOUR": "hush"},
    "budget": {"trainings": 30},
    "stop": {"target": 0.5},
    "retries": {"error": 4},
    "on_oom": {"x": 0.5},
    "resources": {"cpu": 2},
    "lease": 77,
    "stall": 600,
    "market": {"first": "spot", "after": 600},
    "price_per_hour": 1.5,
    "store_prices": {"per_1000_writes": 0.005},
    "mlflow": {"experiment": "Shared"},
    "register": "m",
    "notify": {"slack": "$SLACK_WEBHOOK"},
    "serve": {"gate": "score > 0.5"},
    "event": {"files": ["a.parquet"]},
    "enqueue": [{"x": 0.5}],
}
UNTOLD = ("event", "serve")
"""What each run has otherwise, and what a station says itself."""


@pytest.mark.parametrize("key", PER_SESSION)
def test_a_log_has_what_the_driver_has(key: str) -> None:
    asks = {"search": "define_by_run", "space": {}} if key == "enqueue" else {}
    given = spec(**asks, **{key: OTHER[key]})
    assert Spec.recorded(json.loads(json.dumps(given.model_dump(mode="json")))) == given
    assert Spec.recorded(given.record()) is given


@pytest.mark.parametrize("key", PER_SESSION)
def test_each_key_is_taken_over_told_kept_and_may_be_taken_back(places: Places, key: str) -> None:
    asks = {"search": "define_by_run", "space": {}} if key == "enqueue" else {}
    again(places, spec(**asks), "d1")
    changed = again(places, spec(**asks, **{key: OTHER[key]}), "d2")
    assert [line.split(" ")[0].split(".")[0] for line in changed.changes] == (
        [] if key in UNTOLD else [key]
    )
    assert "hush" not in str(changed.changes)
    expected = getattr(spec(**asks, **{key: OTHER[key]}), key)
    assert getattr(replay(changed.store).spec, key) == expected
    kept = again(places, None, "d3")
    assert (getattr(kept.spec, key), kept.changes) == (expected, []), (
        "resume without a file continues as it was"
    )
    back = again(places, spec(**asks), "d4")
    assert len(back.changes) == (key not in UNTOLD)
    last = replay(back.store)
    assert getattr(last.spec, key) == getattr(spec(), key)
    assert last.opened is not None
    assert last.opened.settings == {}


def test_what_changed_is_told_with_both_values(places: Places) -> None:
    again(places, spec(stop={"target": 0.5}, lease=60), "d1")
    told = prepare(
        places, NAME, spec(stop={"target": 0.75}, lease=90), trials=None, code=None
    ).changes
    assert told == [
        "stop.target was 0.5, and is 0.75 from now on",
        "lease was 60.0, and is 90.0 from now on",
    ]


def test_what_makes_it_another_experiment_is_still_refused(places: Places) -> None:
    again(places, spec(), "d1")
    with pytest.raises(SpecError, match="max_steps"):
        prepare(places, NAME, spec(max_steps=4), trials=None, code=None)


def test_one_that_reached_its_target_goes_on_when_that_is_raised(places: Places) -> None:
    first = Simulation().open(schedule="fifo", stop={"target": 0.1}).run()
    few = len(first.planner.history.trials)
    assert few < spec().total
    store = places.store(NAME)
    Log.open(store).claim([encode(event) for event in first.events])
    assert prepare(places, NAME, spec(stop={"target": 0.1}), trials=None, code=None).nothing_left
    raised = prepare(places, NAME, spec(stop={"target": 99.0}), trials=None, code=None)
    assert not raised.nothing_left
    sit(raised, "d2")
    history = replay(store)
    assert (history.closed, history.spec.stop.target) == (None, 99.0)
    assert len(history.trials) > few
    assert verify(read_events(store)).difference is None


def test_what_another_process_began_while_services_started_is_seen(places: Places) -> None:
    ours = Session(name=NAME, places=places, spec=spec(seed=1), retry_failed=True)
    assert ours.prepared.log.created is None
    again(places, spec(seed=1), "d1")
    ours.begin(uuid4())
    assert ours.prepared.log.created is not None
    assert ours.retry_failed
    theirs = Session(name="other", places=places, spec=spec(name="other", seed=1))
    assert theirs.prepared.log.created is None
    sit(prepare(places, "other", spec(name="other", seed=2), trials=None, code=None), "d1")
    with pytest.raises(SpecError, match="differs from the experiment 'other'"):
        theirs.begin(uuid4())
