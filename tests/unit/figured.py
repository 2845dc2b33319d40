"""Histories of many kinds to draw, and what is in a drawn figure. No test lives here."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from regrow.search.events import (
    AnyEvent,
    Began,
    Created,
    Ended,
    Opened,
    Place,
    Proposed,
    Reported,
    Row,
    Started,
)
from regrow.search.history import History
from regrow.search.planning.simulator import Availability, FunctionObjective, Simulation, simulate
from regrow.search.spec import Spec
from tests.unit import told
from tests.unit.told import remember, rows_of

SPEC: dict[str, Any] = {
    "name": "figures",
    "trainable": "work.py:train",
    "metric": "score",
    "mode": "max",
    "space": {
        "lr": {"loguniform": [1e-4, 1e-1]},
        "size": {"int": [1, 64]},
        "kind": {"choice": ["a", "b"]},
    },
    "search": "random",
    "schedule": "fifo",
    "trials": 16,
    "max_steps": 9,
}
LARGEST = (1e-3, 1.0, sys.float_info.max)
ASHA = {"asha": {"grace_period": 1, "reduction_factor": 3}}
PBT = {"pbt": {"perturbation_interval": 3}}
TWO = [{"name": "score", "mode": "max"}, {"name": "seconds", "mode": "min"}]
THREE = [*TWO, {"name": "third", "mode": "max"}]
AWAY = (
    Availability(changes=(0.0, 8.5, 12.0, 31.5, 200.0)),
    Availability(changes=(0.0, 22.5, 24.0)),
)


def score(config: Mapping[str, Any], step: int) -> float:
    """Best at a learning rate of 1e-2, whatever the rest; rises with the steps."""
    return round(
        (1.0 - 0.2 * abs(math.log10(config.get("lr", 0.001)) + 2.0)) * step / (step + 1.0), 9
    )


def metrics(config: Mapping[str, Any], step: int) -> dict[str, float]:
    return {"score": score(config, step), "seconds": float(config.get("size", 1)) / 64}


def run(
    *,
    workers: int = 2,
    machines: tuple[Availability, ...] = (),
    value: Any = metrics,
    **changes: Any,
) -> Simulation:
    spec = Spec.parse({k: v for k, v in {**SPEC, **changes}.items() if v is not None})
    done = simulate(
        spec, FunctionObjective(function=value, spec=spec), workers=workers, availability=machines
    )
    remember(done.history, done.events)
    return done


def folded(events: list[AnyEvent]) -> History:
    return remember(told.folded(events), events)


def begun(running: int = 0, **changes: Any) -> list[AnyEvent]:
    """An experiment of which so many trials run and have reported nothing."""
    spec = Spec.parse({k: v for k, v in {**SPEC, **changes}.items() if v is not None})
    events: list[AnyEvent] = [
        Created(t=100.0, id="0", spec=spec.to_json()),
        Opened(t=100.0, by="driver", driver="d", slots=2, trials=spec.total),
    ]
    for number in range(running):
        events += [
            Proposed(t=101.0, trial=number, config={"lr": 0.01, "size": number, "kind": "a"}),
            Started(t=101.0, trial=number, attempt=1),
            Began(t=102.0, trial=number, attempt=1, node="n1"),
        ]
    return events


def failed(trials: int = 3, message: str = "ValueError: no") -> list[AnyEvent]:
    """All trials raise before their first step."""
    ends = [
        Ended(
            t=103.0,
            trial=n,
            attempt=1,
            outcome="failed",
            cause="error",
            message=message,
            trace=f"Traceback\n{message}",
        )
        for n in range(trials)
    ]
    return [*begun(trials), *ends]


def reported(values: list[float | None], **changes: Any) -> list[AnyEvent]:
    """One trial that runs: its objective rises, `values` are those of another metric, None for
    NaN.
    """
    rows = [Row(n, 102.0 + n, {"score": n / 10, "other": v}) for n, v in enumerate(values, start=1)]
    return [*begun(1, **changes), Reported(t=110.0, trial=0, attempt=1, rows=rows)]


def groups(
    *widths: int, seconds: float = 0.5, samples: bool = True, **changes: Any
) -> list[AnyEvent]:
    """A trial of each number of workers on two nodes, whose 5 steps take `seconds` each, the first
    one a minute; of 64 samples for each worker, 1 in 10 of them lost for each further worker.
    """
    events = begun(**{"resources": {"workers": [1, 8]}, "max_steps": 5, **changes})
    for number, width in enumerate(widths):
        lease: dict[str, Any] = {"trial": number, "attempt": 1}
        told = {"samples": 64.0 * width * (1 - 0.1 * (width - 1))} if samples else {}
        rows = [Row(n, 160.0 + n * seconds, {"score": n / 10, **told}) for n in range(1, 6)]
        events += [
            Proposed(
                t=101.0, trial=number, config={"lr": 0.01 * (1 + number), "size": 1, "kind": "a"}
            ),
            Started(t=101.0, **lease, width=width),
            Began(
                t=102.0, **lease, node="n1", node_id="n1", others=[Place("n2", "n2")] * (width - 1)
            ),
            Reported(t=163.0, **lease, rows=rows),
            Ended(t=164.0, **lease, outcome="done", step=5),
        ]
    return events


KINDS_OF_HISTORIES: dict[str, Callable[[], History]] = {
    "empty": lambda: folded(begun()),
    "running, no report": lambda: folded(begun(2)),
    "failed only": lambda: folded(failed()),
    "one trial": lambda: run(trials=1).history,
    "one step": lambda: run(max_steps=1).history,
    "metrics that are NaN": lambda: folded(reported([None, 1.0, None])),
    "a metric that is always NaN": lambda: folded(reported([None, None])),
    "categories only": lambda: (
        run(
            space={"a": {"choice": ["x", "y", [1, 2], None]}, "b": {"choice": [True, False]}}
        ).history
    ),
    "constants only": lambda: run(space={"a": 1, "b": "x"}, repeats=16).history,
    "conditional": lambda: (
        run(
            space={"o": {"choice": ["s", "t"]}, "m": {"uniform": [0, 1], "when": {"o": "s"}}}
        ).history
    ),
    "grid": lambda: (
        run(
            space={"g": {"grid": [1, 2, 3]}, "h": {"grid": ["u", "v"]}}, search="grid", trials=6
        ).history
    ),
    "normal": lambda: run(space={"lr": {"normal": [0.01, 0.001]}}).history,
    "asha": lambda: run(schedule=ASHA).history,
    "asha, promoting": lambda: run(schedule={"asha": {"type": "promotion"}}).history,
    "hyperband": lambda: run(schedule="hyperband").history,
    "pbt": lambda: run(schedule=PBT, workers=16).history,
    "two metrics": lambda: run(metric=TWO, mode=None).history,
    "three metrics, constraints": lambda: (
        run(metric=THREE, mode=None, value=three, constraints=["seconds <= 0.5"]).history
    ),
    "no step meets the constraints": lambda: run(constraints=["seconds <= -1"]).history,
    "one of a thousand diverged": lambda: run(mode="min", value=diverging, trials=40).history,
    "lossy": lambda: run(machines=AWAY, checkpoint={"every_steps": 3}).history,
    "groups": lambda: folded(groups(2, 1)),
    "all values the same": lambda: run(value=lambda config, step: 1.0).history,
    "up to the largest float": lambda: run(value=lambda c, _: LARGEST[c["size"] % 3]).history,
    "the smallest floats": lambda: run(value=lambda c, _: 5e-324 * (c["size"] % 4)).history,
}


def three(config: Mapping[str, Any], step: int) -> dict[str, float]:
    return {**metrics(config, step), "third": math.sin(100 * config["lr"])}


def diverging(config: Mapping[str, Any], step: int) -> float:
    return 1e9 if config["size"] in (3, 4, 5) else 1.0 - score(config, step) / 2


@pytest.fixture(scope="session")
def histories() -> dict[str, History]:
    return {name: make() for name, make in KINDS_OF_HISTORIES.items()}


def plain(array: Any) -> list[Any]:
    """The values of a trace's array, as Plotly.py holds it."""
    found: list[Any] = np.asarray(array).tolist()
    return found


def made_by(kind: Any, history: History) -> Any:
    """The figure, which is there."""
    made = kind.figure(rows_of(history))
    assert made is not None
    return made


def traces(made: Any, **wanted: Any) -> list[Any]:
    return [
        trace
        for trace in made.data
        if all(trace[key] == value if key in trace else False for key, value in wanted.items())
    ]


def lines(trace: Any) -> dict[int, list[tuple[float, float]]]:
    """The lines of a trace that has many, by the number of the trial."""
    found: dict[int, list[tuple[float, float]]] = {}
    for x, y, number in zip(plain(trace.x), plain(trace.y), plain(trace.customdata), strict=True):
        if not math.isnan(y):
            found.setdefault(number, []).append((x, y))
    return found
