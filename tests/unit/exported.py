"""Experiments to export: simulated, of many kinds, and their logs in a folder; and the command
line. No test lives here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from regrow.cli.app import app
from regrow.infra.log.log import Log
from regrow.infra.state.places import Places
from regrow.search.events import AnyEvent, encode
from regrow.search.history import History
from regrow.search.planning.simulator import FunctionObjective, Simulation
from regrow.search.spec import Spec
from tests.unit.told import remember

SPEC: dict[str, Any] = {
    "name": "kinds",
    "trainable": "work.py:train",
    "metric": "score",
    "mode": "max",
    "space": {
        "lr": {"loguniform": [1e-4, 1e-1]},
        "model": {"layers": {"int": [1, 4]}, "rate": {"quniform": [0.0, 1.0, 0.1]}},
        "noise": {"normal": [0.0, 1.0]},
        "optimizer": {"choice": ["sgd", "adam"]},
        "momentum": {"uniform": [0.5, 0.99], "when": {"optimizer": "sgd"}},
        "warmup": {"int": [0, 5], "when": {"optimizer": "adam"}},
        "mixed": {"choice": [1, True, "1", None, [1, 2], {"a": 1}]},
        "seed": 3,
    },
    "search": "random",
    "schedule": {"asha": {"grace_period": 1, "reduction_factor": 3}},
    "trials": 12,
    "max_steps": 9,
}
CONFIG = (
    "lr",
    "model.layers",
    "model.rate",
    "noise",
    "optimizer",
    "momentum",
    "warmup",
    "mixed",
    "seed",
)
"""The columns of its parameters."""


def curve(config: dict[str, Any], step: int) -> dict[str, float]:
    """Rises until step 8, by configuration, and falls at step 9; the loss is not finite at its
    second step.
    """
    score = config["model"]["rate"] * (step / (step + 2) - 0.4 * (step > 8)) + config["lr"]
    return {"score": score, "loss": math.nan if step == 2 else 1.0 / step, "=cost": 2.0 * step}


def simulation(
    function: Callable[[dict[str, Any], int], dict[str, float]] = curve, **changes: Any
) -> Simulation:
    """One that is open, not yet run."""
    spec = Spec.parse(
        {key: value for key, value in {**SPEC, **changes}.items() if value is not None}
    )
    made = Finite(
        spec=spec,
        objective=FunctionObjective(function=function, spec=spec),
        workers=3,
        startup=0.25,
    ).open()
    remember(made.history, made.events)
    return made


class Finite(Simulation):
    """With values that are not finite written as None, as attempts report them."""

    def _write(self, event: AnyEvent) -> None:
        for row in getattr(event, "rows", ()):
            row.metrics.update(
                {k: None for k, v in row.metrics.items() if v is not None and not math.isfinite(v)}
            )
        super()._write(event)


def history(
    function: Callable[[dict[str, Any], int], dict[str, float]] = curve, **changes: Any
) -> History:
    """Of one that ran to its end."""
    return simulation(function, **changes).run().history


def empty() -> History:
    """Of an experiment that was opened where there is no room for a trial."""
    spec = Spec.parse(SPEC)
    opened = Simulation(
        spec=spec, objective=FunctionObjective(function=curve, spec=spec), workers=0
    ).open()
    return remember(opened.history, opened.events)


def unfinished() -> Simulation:
    """With trials that are done, stopped, failed, running and pending, and one whose attempt was
    lost.
    """
    run = simulation(trials=16).run(most_events=40)
    run.fail(run.running[0].trial, "ValueError: =1+1\x1b[31m")
    while not {"done", "stopped", "running"} <= {
        state.value for state, count in run.history.counts.items() if count
    }:
        run.run(most_events=len(run.events) + 1)
    return run


def keep(root: Path, events: Sequence[AnyEvent], *, at: int = 0) -> Places:
    """Writes the log below a state root, some segments; `at`: a later writer continues after so many
    events.
    """
    places = Places.at(str(root))
    created = events[0]
    name = created.spec["name"] if hasattr(created, "spec") else ""
    log = Log.open(places.store(name))
    lines = [encode(event) for event in events[at:]]
    log.claim(lines[:1])
    for segment in _parts(lines[1:], 7):
        log.append(segment)
    return places


def _parts(lines: Sequence[bytes], size: int) -> Iterable[Sequence[bytes]]:
    return (lines[place : place + size] for place in range(0, len(lines), size))


@pytest.fixture(scope="session")
def unfinished_history() -> History:
    """With trials in many states."""
    return unfinished().history


@pytest.fixture(scope="session")
def unfinished_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state root with that experiment."""
    root = tmp_path_factory.mktemp("state")
    keep(root, unfinished().events)
    return root


def regrow(*words: object) -> Result:
    """Runs a command in this process."""
    return CliRunner().invoke(app, [str(word) for word in words])
