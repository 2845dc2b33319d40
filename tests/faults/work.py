"""The virtual trainable: a curve that depends on every step before, and on nothing else. No test
lives here.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from regrow.tasks.trial.reporter import Reporter
from regrow.tasks.trial.trial import Trial
from tests.faults.clock import CLOCK, STEP_SECONDS

START = "0"


def advance(state: str, config: dict[str, Any], step: int) -> str:
    """The state after `step`: a hash of all that was done, so that a step left out, repeated or
    restored wrongly shows.
    """
    return hashlib.sha256(
        f"{state}:{json.dumps(config, sort_keys=True)}:{step}".encode()
    ).hexdigest()


def score(state: str, config: dict[str, Any], step: int) -> float:
    """What is reported in that state: better configurations give more, with noise from the
    state.
    """
    return round(float(config["x"]) * step / (step + 1) + int(state[:4], 16) / 0xFFFF / 8, 9)


@lru_cache(4096)
def after(state: str, config: str, step: int) -> tuple[str, float]:
    """The one right state and value after a step, of a configuration as JSON."""
    parsed: dict[str, Any] = json.loads(config)
    state = advance(state, parsed, step)
    return state, score(state, parsed, step)


def whole(folder: Path) -> str:
    """The state, of the pieces of all ranks that saved it."""
    found = sorted(path.name for path in folder.glob("state-*"))
    assert found == [f"state-{rank}-of-{len(found)}" for rank in range(len(found))], found
    return "".join((folder / name).read_text() for name in found)


def broken(trial: Trial) -> None:
    """The same before somebody mended it: it raises after its first step."""
    train(trial, until=1)


def defined(trial: Trial) -> None:
    """The same, with a configuration that it asks for: the second parameter is one only of some
    trials.
    """
    x = trial.suggest(
        "x",
        {
            "name": "FloatDistribution",
            "attributes": {"low": 0.0, "high": 1.0, "log": False, "step": None},
        },
    )
    trial.config = {"x": x}
    if x > 0.5:
        choices = {"name": "CategoricalDistribution", "attributes": {"choices": ["a", "b"]}}
        trial.config["kind"] = trial.suggest("kind", choices)
    trial.note({"attempt": trial.attempt})
    train(trial)


def train(trial: Trial, until: int | None = None) -> None:
    """Reports one row a step, and has its news sent at once, as if a reporter's beat had passed.
    After step `until` it raises.

    Each of its ranks saves a piece of the state; to continue takes all of them, whatever the width
    then.
    """
    state = whole(trial.restored) if trial.restored else START

    def save(folder: Path) -> None:
        rank, size = trial.world.rank, trial.world.size
        (folder / f"state-{rank}-of-{size}").write_text(
            state[rank * len(state) // size : (rank + 1) * len(state) // size]
        )
        # the same at every step: blobs are shared
        (folder / "config.json").write_text(json.dumps(trial.config))

    for step in trial.steps():
        if until is not None and step > until:
            raise NameError("name 'sate' is not defined")
        if trial.world.rank == 0:
            CLOCK.pass_by(STEP_SECONDS)
        state = advance(state, trial.config, step)
        told = {
            "score": score(state, trial.config, step),
            "attempt": trial.attempt,
            "epoch": 2 * (step - 1),
        }
        trial.report(told, checkpoint=save)
        if isinstance(trial._reporter, Reporter) and trial._reporter._rows:
            trial._reporter.flush()
