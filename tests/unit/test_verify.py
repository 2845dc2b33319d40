"""`verify` accepts what happened and finds whatever was changed afterwards."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.search.events import (
    AnyEvent,
    Closed,
    Closing,
    Decided,
    Dropped,
    Ended,
    Opened,
    Proposed,
    Reported,
    Row,
    Saved,
    Started,
    is_decision,
)
from regrow.search.planning.verify import verify
from tests.unit.simulated import Simulation, resumed


def a_log(seed: int = 1, **changes: Any) -> list[AnyEvent]:
    """Two sessions with losses, and every kind of decision in them."""
    first = (
        Simulation(seed=seed, slots=3, trials=8, lose=0.05)
        .open(retries={"infrastructure": 1000}, **changes)
        .run()
    )
    return resumed(first.events[: len(first.events) // 2], seed=seed, slots=2, trials=8).events


LOG = a_log()
TARGET = Simulation(slots=2, trials=20).open(stop={"target": 0.4}).run().events


def positions(log: list[AnyEvent], kind: type, **having: Any) -> list[int]:
    """Where events of a kind are, counted from 1."""
    return [
        n
        for n, event in enumerate(log, start=1)
        if isinstance(event, kind)
        and all(getattr(event, name) == value for name, value in having.items())
    ]


def tampered(log: list[AnyEvent], position: int, **changes: Any) -> list[AnyEvent]:
    event = msgspec.structs.replace(log[position - 1], **changes)
    return [*log[: position - 1], event, *log[position:]]


def found_at(log: list[AnyEvent]) -> int | None:
    difference = verify(log).difference
    return None if difference is None else difference.position


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from(["asha", "fifo"]),
)
def test_an_honest_log_passes(seed: int, slots: int, lose: float, schedule: str) -> None:
    run = (
        Simulation(seed=seed, slots=slots, lose=lose)
        .open(retries={"infrastructure": 1000}, schedule=schedule)
        .run()
    )
    checked = verify(run.events)
    assert checked.difference is None
    assert checked.events == len(run.events)
    assert checked.decisions == sum(map(is_decision, run.events))
    assert sum(checked.kinds.values()) == checked.events
    assert checked.history.closed is not None


def test_an_honest_log_passes_wherever_it_was_cut_off() -> None:
    for cut in range(len(LOG) + 1):
        assert found_at(LOG[:cut]) is None


@pytest.mark.parametrize(
    ("log", "kind", "having", "changes"),
    [
        (LOG, Proposed, {}, {"config": {"x": 0.123}}),
        (LOG, Proposed, {}, {"state": {"more": 1}}),
        (LOG, Proposed, {}, {"trial": 99}),
        (LOG, Started, {}, {"until": 2}),
        (LOG, Started, {}, {"attempt": 7}),
        (LOG, Started, {"attempt": 2}, {"checkpoints": ["manifests/other"]}),
        (LOG, Decided, {"verdict": "stop"}, {"verdict": "continue", "until": 9}),
        (LOG, Decided, {"verdict": "continue"}, {"verdict": "stop", "until": None}),
        (LOG, Decided, {}, {"why": "because"}),
        (LOG, Decided, {}, {"step": 2}),
        (LOG, Dropped, {}, {"manifests": []}),
        (LOG, Dropped, {}, {"manifests": ["manifests/other"]}),
        (LOG, Ended, {"by": "planner"}, {"cause": "infrastructure"}),
        (LOG, Ended, {"by": "planner"}, {"outcome": "done", "cause": ""}),
        (LOG, Closed, {}, {"status": "failed"}),
        (TARGET, Closing, {"by": "planner"}, {"why": "enough"}),
        (TARGET, Closing, {"by": "planner"}, {"status": "failed"}),
    ],
)
def test_a_decision_that_was_changed_is_found(
    log: list[AnyEvent], kind: type, having: dict[str, Any], changes: dict[str, Any]
) -> None:
    places = positions(log, kind, **having)
    assert places
    for position in places:
        difference = verify(tampered(log, position, **changes)).difference
        assert difference is not None
        assert difference.position == position
        assert difference.why == "this decision does not follow"
        assert difference.expected == log[position - 1]


@pytest.mark.parametrize("log", [LOG, TARGET], ids=["log", "target"])
def test_a_decision_that_was_removed_is_found_at_the_event_after_it(log: list[AnyEvent]) -> None:
    for position, event in enumerate(log[:-1], start=1):
        if is_decision(event) and not isinstance(log[position], Opened):
            assert found_at([*log[: position - 1], *log[position:]]) == position


def test_a_decision_that_was_added_is_found() -> None:
    for position in positions(LOG, Decided):
        assert found_at([*LOG[:position], LOG[position - 1], *LOG[position:]]) == position + 1


def test_events_that_changed_places_are_found() -> None:
    swapped = 0
    for position in range(1, len(LOG)):
        one, two = LOG[position - 1], LOG[position]
        if is_decision(one) == is_decision(two):
            continue  # two observations may have come in either order
        swapped += 1
        log = [*LOG[: position - 1], two, one, *LOG[position + 1 :]]
        if isinstance(two, Opened):
            continue  # a writer that was cut off need not have decided
        assert found_at(log) in (position, position + 1)
    assert swapped > 30


def test_a_metric_that_would_have_changed_a_verdict_is_found_at_the_verdict() -> None:
    flipped = 0
    for position in positions(LOG, Decided, verdict="stop"):
        decision = LOG[position - 1]
        assert isinstance(decision, Decided)
        report = max(n for n in positions(LOG, Reported, trial=decision.trial) if n < position)
        event = LOG[report - 1]
        assert isinstance(event, Reported)
        rows = [
            Row(r.step, r.t, {"score": 100.0 if r.step == decision.step else r.metrics["score"]})
            for r in event.rows
        ]
        assert found_at(tampered(LOG, report, rows=rows)) == position
        flipped += 1
    assert flipped >= 3


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (Reported, {"rows": [Row(40, 0.0, {"score": 1.0})]}),
        (Reported, {"rows": [Row(1, 0.0, {})]}),
        (Reported, {"trial": 77}),
        (Reported, {"attempt": 9}),
        (Saved, {"step": 44}),
        (Saved, {"trial": -1}),
        (Ended, {"cause": "", "outcome": "failed", "by": "attempt"}),
    ],
)
def test_an_observation_that_cannot_be_is_found_and_named(
    kind: type, changes: dict[str, Any]
) -> None:
    position = positions(LOG, kind)[0]
    difference = verify(tampered(LOG, position, **changes)).difference
    assert difference is not None
    assert position <= difference.position <= position + 1
    assert difference.why


def test_a_log_whose_beginning_is_gone_is_found() -> None:
    assert found_at(LOG[1:]) == 1
    assert found_at(LOG[5:]) is not None
    assert found_at(tampered(LOG, 1, spec={"name": "other"})) == 1


def test_nothing_is_wrong_with_nothing() -> None:
    assert verify([]).events == 0
    assert verify([]).difference is None
