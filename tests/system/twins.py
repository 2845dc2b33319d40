"""The examples of frameworks in pairs: one trial is killed after a step, its twin is not. What runs
as the trainable is here, and how a test drives it; no test lives here.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.system.conftest import Desk
from tests.system.grouped import events, ranks, wait

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "frameworks"
STEPS, KILLED_AFTER = 6, 3
TRAIN = """
import importlib, json, time


def train(trial):
    example, settings, killed = (trial.config[name] for name in ("example", "settings", "killed"))
    trial.config, trial.seed = json.loads(settings)[example], 7
    report = trial.report

    def until_killed(metrics, checkpoint=None):
        report(metrics, checkpoint)
        while killed and trial.attempt == 1 and trial.step == STEP:
            time.sleep(0.1)

    trial.report = until_killed
    importlib.import_module(example).train(trial)
"""


def run(
    desk: Desk,
    name: str,
    settings: Mapping[str, Mapping[str, Any]],
    *,
    rank: int = 0,
    **changes: Any,
) -> dict[str, dict[str, Any]]:
    """Runs a pair of each example, killing that rank of one of them as soon as the checkpoint of
    the step is durable.

    `settings`: the configuration of each example. Returns for each the rows of the "whole" and the
    "killed" one, and the latter's "attempts".
    """
    space = {
        "example": {"grid": list(settings)},
        "killed": {"grid": [False, True]},
        "settings": {"constant": json.dumps(settings)},
    }
    file = desk.write(
        name,
        train=TRAIN.replace("STEP", str(KILLED_AFTER)),
        metric="loss",
        mode="min",
        space=space,
        search="grid",
        trials=2 * len(settings),
        max_steps=STEPS,
        checkpoint={"every_steps": 1, "keep_last": 2},
        env={
            "PYTHONPATH": str(EXAMPLES),
            "KERAS_BACKEND": "torch",
            "JAX_PLATFORMS": "cpu",
            "HF_HUB_OFFLINE": "1",
        },
        **{"concurrency": 2, **changes},
    )
    process = desk.start("run", file)
    for _ in settings:
        kill_next(desk, process, name, rank)
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 0, out
    return found(desk, name)


def kill_next(desk: Desk, process: Any, name: str, rank: int) -> None:
    """Waits until one that is to be killed waits for it, and kills it."""
    gone = {event["trial"] for event in events(desk, name, "ended", attempt=1)}

    def waiting() -> list[int]:
        saved = [
            event["trial"] for event in events(desk, name, "saved", attempt=1, step=KILLED_AFTER)
        ]
        return [
            n
            for n in saved
            if n not in gone
            and not events(desk, name, "ended", trial=n, attempt=1)
            and killed(desk, name, n)
        ]

    (number, *_) = wait(process, waiting, "one that waits to be killed")
    os.kill(ranks(desk, number)[rank], signal.SIGKILL)
    wait(process, lambda: events(desk, name, "ended", trial=number, attempt=1), "its end")


def killed(desk: Desk, name: str, number: int) -> bool:
    """Whether a trial is one of those that are to be killed."""
    (proposed,) = events(desk, name, "proposed", trial=number)
    return bool(proposed["config"]["killed"])


def found(desk: Desk, name: str) -> dict[str, dict[str, Any]]:
    """What `run` returns."""
    losses: dict[int, dict[int, float]] = {}
    for point in desk.points(name):
        losses.setdefault(point["trial"], {})[point["step"]] = point["loss"]
    pairs: dict[str, dict[str, Any]] = {}
    for trial in desk.show(name)["trials"]:
        pair = pairs.setdefault(trial["config"]["example"], {})
        pair["killed" if trial["config"]["killed"] else "whole"] = losses.get(trial["number"], {})
        if trial["config"]["killed"]:
            pair["attempts"] = trial["attempts"]
    return pairs
