"""The virtual trainable: a curve that depends on every step before, and on nothing else. No test lives here."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from regrow.tasks.reporter import Reporter
from regrow.tasks.trial import Trial

START = "0"


def advance(state: str, config: dict[str, Any], step: int) -> str:
    """The state after `step`: a hash of all that was done, so that a step left out, repeated or restored wrongly shows."""
    return hashlib.sha256(f"{state}:{json.dumps(config, sort_keys=True)}:{step}".encode()).hexdigest()


def score(state: str, config: dict[str, Any], step: int) -> float:
    """What is reported in that state: better configurations give more, with noise from the state."""
    return round(float(config["x"]) * step / (step + 1) + int(state[:4], 16) / 0xFFFF / 8, 9)


@lru_cache(4096)
def _exact(config: str, step: int) -> tuple[str, float]:
    parsed: dict[str, Any] = json.loads(config)
    state = advance(_exact(config, step - 1)[0] if step > 1 else START, parsed, step)
    return state, score(state, parsed, step)


def exact(config: dict[str, Any], step: int) -> float:
    """The one right value of a configuration at a step."""
    return _exact(json.dumps(config, sort_keys=True), step)[1]


def broken(trial: Trial) -> None:
    """The same before somebody mended it: it raises after its first step."""
    train(trial, until=1)


def train(trial: Trial, until: int | None = None) -> None:
    """Reports one row a step, and has its news sent at once, as if a reporter's beat had passed. After step `until` it raises."""
    state = (trial.restored / "state").read_text() if trial.restored else START

    def save(folder: Path) -> None:
        (folder / "state").write_text(state)
        (folder / "config.json").write_text(json.dumps(trial.config))  # the same at every step: blobs are shared

    for step in trial.steps():
        if until is not None and step > until:
            raise NameError("name 'sate' is not defined")
        state = advance(state, trial.config, step)
        trial.report({"score": score(state, trial.config, step), "attempt": trial.attempt}, checkpoint=save)
        assert isinstance(trial._reporter, Reporter)
        if trial._reporter._rows:
            trial._reporter.flush()
