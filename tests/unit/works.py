"""Attempts of an experiment whose scheduler is scripted, run here one after the other. No test
lives here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regrow.tasks.ports.executor import Finished
from regrow.tasks.ports.messages import Assignment
from regrow.tasks.ports.store import Store
from regrow.tasks.trial.trial import Trial
from tests.unit.attempting import Attempting
from tests.unit.office import MakeOffice, Office
from tests.unit.scripted import scripted


def writing(weights: str) -> Callable[[Path], object]:
    """A checkpoint with these weights."""
    return lambda folder: (folder / "weights").write_text(weights)


class Works:
    """An office, and attempts as workers would run them. A checkpoint is a file `weights`: which
    trial did which steps.
    """

    def __init__(self, office: Office, attempt: Attempting) -> None:
        self.office = office
        self.attempt = attempt
        self.began: list[tuple[int, int, int, str]] = []
        """(trial, attempt, first step, weights that it began with)"""

    def train(self, trial: Trial) -> None:
        weights = (trial.restored / "weights").read_text() if trial.restored else ""
        self.began.append((trial.number, trial.attempt, trial.step, weights))
        for step in trial.steps():
            weights += f" {trial.number}.{step}"
            trial.report({"score": float(step)}, checkpoint=writing(weights))

    def run(
        self,
        assignment: Assignment | None = None,
        train: Callable[[Trial], None] | None = None,
        *,
        store: Store | None = None,
    ) -> Finished:
        """The next attempt, or that of `assignment`."""
        return self.attempt(self.office, train or self.train, assignment, store=store)

    def finish(self) -> None:
        """Runs attempts one after the other until nothing is left."""
        while (told := self.office.instructions()).finished is None:
            for assignment in told.submit:
                self.run(assignment)


MakeWorks = Callable[..., Works]


@pytest.fixture
def works(make_office: MakeOffice, attempt: Attempting) -> MakeWorks:
    """Makes the office of an experiment with this script, and runs its attempts."""

    def make(
        script: dict[str, Any], *, options: dict[str, Any] | None = None, **changes: Any
    ) -> Works:
        schedule = scripted(script, **(options or {}))
        return Works(
            make_office(**{"max_steps": 6, "trials": 2, "schedule": schedule, **changes}), attempt
        )

    return make
