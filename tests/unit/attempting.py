"""Attempts of a trainable that a test hands over, run here as a worker would run them, against an
office. No test lives here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from regrow.tasks.attempt.attempt import run_attempt
from regrow.tasks.checkpoint.writer import CheckpointWriter
from regrow.tasks.errors import Interrupted
from regrow.tasks.ports.executor import Finished
from regrow.tasks.ports.messages import Assignment
from regrow.tasks.ports.store import Store
from regrow.tasks.trial import reporter
from regrow.tasks.trial.trial import Trial
from tests.unit.office import Bench, MakeOffice, Office, offices
from tests.unit.told import kept


class Killed(Interrupted):
    """The worker is killed: nothing after this is sent."""


@pytest.fixture
def make_office(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeOffice]:
    """Makes an office; messages are sent only where an attempt must, not by the clock."""
    monkeypatch.setattr(reporter, "FLUSH_SECONDS", 60.0)
    with offices(trainable="work_under_test:train", schedule="fifo", max_steps=5) as make:
        yield make


class Attempting:
    """Runs attempts of the trainable that it is given. Other names are importable from
    `work_under_test` as well.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._module = ModuleType("work_under_test")
        self._module.__spec__ = ModuleSpec("work_under_test", None)
        self.bench = Bench()
        monkeypatch.setitem(sys.modules, "work_under_test", self._module)

    def __call__(
        self,
        office: Office,
        train: object,
        assignment: Assignment | None = None,
        *,
        store: Store | None = None,
        task_run: str = "run-0",
        **names: Any,
    ) -> Finished:
        vars(self._module).update(train=train, **names)
        return run(office, assignment, store=store, bench=self.bench, task_run=task_run)


@pytest.fixture
def attempt(monkeypatch: pytest.MonkeyPatch) -> Attempting:
    """Runs attempts of any trainable."""
    return Attempting(monkeypatch)


def run(
    office: Office,
    assignment: Assignment | None = None,
    *,
    store: Store | None = None,
    bench: Bench | None = None,
    task_run: str = "run-0",
) -> Finished:
    """One attempt, by default that which the driver is to submit; `store`: another one than the
    office's.
    """
    return run_attempt(
        office.shared(store, bench),
        assignment or office.submitted(),
        task_run=task_run,
        carry_on=lambda: False,
    )


def sent(trial: Trial) -> None:
    """Waits until all that was reported and saved so far is in the log."""
    assert isinstance(trial._writer, CheckpointWriter)
    trial._writer.drain()
    trial._reporter.flush()


def save(folder: Path) -> None:
    """A checkpoint."""
    (folder / "model").write_text("weights")


def saving(step: int) -> Callable[[Path], object]:
    """A checkpoint that knows its step."""
    return lambda folder: (folder / "step").write_text(str(step))


def steadily(trial: Trial) -> None:
    """Reports and saves each step."""
    for step in trial.steps():
        trial.report({"score": step / 10}, checkpoint=saving(step))


def killed_after(last: int) -> Callable[[Trial], None]:
    """Reports and saves each step, and is killed once this one is in the log."""

    def train(trial: Trial) -> None:
        for step in trial.steps():
            trial.report({"score": step}, checkpoint=saving(step))
            if step == last:
                sent(trial)
                raise Killed

    return train


def steps(office: Office, trial: int = 0) -> list[int]:
    """Those of a trial that count."""
    return [row.step for _, row in kept(office.events).get(trial, [])]


def outcome(finished: Finished) -> tuple[str, str, str]:
    """(outcome, cause, message) of an attempt."""
    return finished.ended.outcome, finished.ended.cause, finished.ended.message
