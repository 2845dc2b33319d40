"""The log of a small experiment: trial 0 is lost once and continues, trial 1 fails. No test lives
here.
"""

from __future__ import annotations

from regrow.infra.log.log import Log
from regrow.search.events import (
    AnyEvent,
    Began,
    Closed,
    Created,
    Ended,
    Opened,
    Proposed,
    Reported,
    Row,
    Saved,
    Started,
    encode,
)
from regrow.tasks.ports.store import Store

SPEC = {
    "name": "told",
    "trainable": "work.py:train",
    "metric": "score",
    "mode": "max",
    "trials": 2,
    "max_steps": 3,
    "space": {"x": {"uniform": [0.0, 1.0]}, "kind": {"choice": ["a|b", "<i>"]}},
    "search": "random",
    "concurrency": 2,
}
TRACE = "Traceback (most recent call last):\nValueError: bad | luck"


def beginning() -> list[AnyEvent]:
    """Both trials run, trial 0 has reported a step and has a checkpoint of it."""
    return [
        Created(t=1.0, id="00000000-0000-0000-0000-000000000001", spec=SPEC),
        Opened(t=1.0, by="driver", driver="d1", slots=2, trials=2),
        Proposed(t=1.0, trial=0, config={"x": 0.5, "kind": "a|b"}),
        Proposed(t=1.0, trial=1, config={"x": 0.25, "kind": "<i>"}),
        Started(t=1.0, trial=0, attempt=1),
        Started(t=1.0, trial=1, attempt=1),
        Began(t=2.0, trial=0, attempt=1, node="east", task_run="r0"),
        Began(t=2.0, trial=1, attempt=1, node="west", task_run="r1"),
        Reported(t=3.0, trial=0, attempt=1, rows=[Row(1, 3.0, {"score": 0.5})]),
        Saved(t=3.0, trial=0, attempt=1, step=1, manifest="manifests/0/1/1.json", size=1),
    ]


def loss() -> list[AnyEvent]:
    """Trial 0 is lost and begins again."""
    return [
        Ended(
            t=4.0,
            trial=0,
            attempt=1,
            outcome="lost",
            cause="infrastructure",
            step=1,
            message="it was killed",
            by="driver",
        ),
        Started(t=4.0, trial=0, attempt=2, checkpoints=["manifests/0/1/1.json"]),
        Began(t=6.5, trial=0, attempt=2, node="west", restored=1, task_run="r0"),
    ]


def ending() -> list[AnyEvent]:
    """Trial 1 fails, trial 0 gets better and is done."""
    rows = [Row(2, 7.0, {"score": 0.75}), Row(3, 8.0, {"score": 0.625})]
    return [
        Ended(
            t=7.0,
            trial=1,
            attempt=1,
            outcome="failed",
            cause="error",
            message="ValueError: bad | luck",
            trace=TRACE,
        ),
        Reported(t=8.0, trial=0, attempt=2, rows=rows),
        Ended(t=9.0, trial=0, attempt=2, outcome="done", step=3),
        Closed(t=9.0, status="finished"),
    ]


def written(store: Store, *parts: list[AnyEvent]) -> Log:
    """The log of these events in a store, a segment a part."""
    log = Log.open(store)
    for number, events in enumerate(parts):
        (log.append if number else log.claim)([encode(event) for event in events])
    return log
