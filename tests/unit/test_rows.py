"""Rows are read from the log: those that count, each once, in bounded memory; and who folds the log
keeps none of them.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regrow.infra.log import rows as reading
from regrow.infra.log.log import Log
from regrow.infra.log.reading import replayed
from regrow.infra.log.rows import LogRows, reports
from regrow.infra.stores.local import LocalStore
from regrow.search.events import (
    AnyEvent,
    Began,
    Ended,
    Proposed,
    Reported,
    Row,
    Saved,
    Started,
    decode,
    encode,
)
from regrow.search.history import History
from regrow.search.planning.simulator import Availability
from tests.memory_store import MemoryStore
from tests.unit import exported, simulated
from tests.unit.figured import AWAY, PBT, metrics, run
from tests.unit.told import kept

KINDS: dict[str, Any] = {
    "unfinished": lambda: exported.unfinished().events,
    "lossy": lambda: run(machines=AWAY, checkpoint={"every_steps": 3}).events,
    "clones": lambda: run(schedule=PBT, workers=16, machines=AWAY, value=metrics).events,
    "clones, cut off": lambda: (
        run(
            schedule=PBT,
            workers=4,
            machines=(*AWAY[:1], *(Availability(changes=(0.0, 7.5, 9.0)) for _ in range(3))),
        ).events
    ),
    "sessions": lambda: simulated.Simulation(slots=3).open().run(interrupt_after=30).events,
}


def logged(events: list[AnyEvent], store: Any) -> Any:
    """The store with a log of these events, three a segment."""
    log = Log.open(store)
    lines = [encode(event) for event in events]
    log.claim(lines[:1])
    for at in range(1, len(lines), 3):
        log.append(lines[at : at + 3])
    log.compact(min_segments=4)
    return store


@pytest.mark.parametrize("spill", [1, 1 << 20])
@pytest.mark.parametrize("kind", KINDS)
def test_the_rows_of_the_log_are_those_that_a_fold_that_keeps_all_has(
    kind: str, spill: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SPILL_BYTES", spill)  # 1: all of it goes into a file
    events = KINDS[kind]()
    found, expected = replayed(logged(events, LocalStore(tmp_path))), kept(events)
    assert any(len(trial.curve.runs) > 1 for trial in found.history.trials) or kind not in (
        "lossy",
        "clones, cut off",
    )
    with found.sorted() as by_trial:
        assert list(by_trial) == [
            (n, attempt, row) for n in sorted(expected) for attempt, row in expected[n]
        ]
        for trial in found.history.trials:
            assert list(by_trial.of(trial.number)) == expected.get(trial.number, [])
        assert by_trial.names == found.names()
    for trial in found.history.trials:
        assert list(found.of(trial.number)) == expected.get(trial.number, [])
        for step in {trial.step, trial.curve.representative} - {0}:
            assert trial.curve.row(step) == expected[trial.number][step - 1][1], (
                "nothing is forgotten once it is replayed"
            )


def test_metrics_that_only_later_steps_have_are_named_too() -> None:
    rows = [Row(n, 5.0, {"score": 0.5, name: 1.0}) for n, name in enumerate("bac", start=1)]
    events = [*begun(), Reported(t=5.0, trial=0, attempt=1, rows=rows)]
    assert replayed(logged(events, MemoryStore())).names() == ["score", "a", "b", "c"]


def test_rows_that_came_after_the_history_was_read_are_not_in_it() -> None:
    events = KINDS["lossy"]()
    store, history = logged(events, MemoryStore()), History()
    for event in events[: len(events) // 2]:
        history.apply(event)
    with LogRows.logged(history, store).sorted() as found:
        expected = kept(events[: len(events) // 2])
        assert list(found) == [
            (n, attempt, row) for n in sorted(expected) for attempt, row in expected[n]
        ]


def test_reading_can_begin_at_a_segment() -> None:
    events = KINDS["lossy"]()
    store = logged(events, MemoryStore())
    for after in (0, 5, 17):
        later = [decode(line) for number, lines in Log.read(store, after) for line in lines]
        assert list(reports(store, after)) == [
            event for event in later if isinstance(event, Reported)
        ]


def test_after_a_loss_a_replayed_history_knows_the_rows_that_stand_now() -> None:
    lost: list[AnyEvent] = [
        *begun(),
        *reported(6, metrics=3),
        Saved(t=6.0, trial=0, attempt=1, step=4, manifest="m", size=1),
        Ended(t=7.0, trial=0, attempt=1, outcome="lost", cause="preempted", step=6, by="driver"),
        Started(t=8.0, trial=0, attempt=2),
        Began(t=9.0, trial=0, attempt=2, node="n", restored=4),
    ]
    history = History()
    for event in lost:
        history.apply(event)
    (trial,) = history.trials
    assert trial.curve.forgotten == {4}
    (again,) = replayed(logged(lost, MemoryStore())).history.trials
    assert again.curve.shown(4) == {"score": 4.0, "m0": 0.25, "m1": 0.5}
    assert (again.best, trial.best) == ((4.0, 4), (4.0, 4))


def begun() -> list[AnyEvent]:
    return [
        simulated.created(),
        simulated.opened(1.0),
        Proposed(t=2.0, trial=0, config={"x": 0.5}),
        Started(t=3.0, trial=0, attempt=1),
        Began(t=4.0, trial=0, attempt=1, node="n"),
    ]


def reported(steps: int, metrics: int) -> Iterator[Reported]:
    for step in range(1, steps + 1):
        more = {f"m{n}": (n + 1) / step for n in range(metrics - 1)}
        yield Reported(
            t=5.0, trial=0, attempt=1, rows=[Row(step, 5.0, {"score": float(step), **more})]
        )


def folded_bytes(steps: int, metrics: int) -> int:
    """What the fold of such a log has allocated, once all of it was read."""
    lines = [encode(event) for event in (*begun(), *reported(steps, metrics))]
    gc.collect()
    tracemalloc.start()
    try:
        history = History()
        for line in lines:
            history.apply(decode(line))
        gc.collect()
        assert history.trials[0].step == steps
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_a_fold_takes_as_much_memory_for_500_metrics_a_step_as_for_one_but_for_two_rows() -> None:
    steps = 1000
    one, many = folded_bytes(steps, 1), folded_bytes(steps, 500)
    # a float, its part of a map's table, names that msgspec did not have in its cache
    row = 500 * (24 + 60) + 20_000
    assert many - one < 2 * row
    assert folded_bytes(2 * steps, 500) - many < 20 * steps, "two numbers a step"
