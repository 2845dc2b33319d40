"""Which checkpoint to serve: the candidates in a history, best first, and where their files come
from. It only reads the state.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regrow.apps.serving.messages import Chosen, Role
from regrow.search.history import History, TrialRecord
from regrow.search.lifecycle import TrialState
from regrow.tasks.checkpoint.saving import Restored, restore
from regrow.tasks.output.traces import in_a_line
from regrow.tasks.ports.store import Store, Unavailable
from regrow.tasks.trial.names import task_name

NO_MODEL = (
    "the trial has logged no model in a run (mlflow.<flavor>.log_model within"
    " mlflow.start_run()); --model names a class for checkpoints"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateCheckpoint:
    """A retained checkpoint and the objective at its step. `rank`: lower is better in any mode."""

    trial: int
    step: int
    value: float
    rank: float
    manifest: str

    def chosen(self, history: History, role: Role, folder: str, experiment: str = "") -> Chosen:
        """Return it as chosen now; `folder` has its files."""
        return Chosen(
            role=role,
            trial=self.trial,
            step=self.step,
            metric=history.objective.name,
            mode=history.objective.mode,
            value=self.value,
            manifest=self.manifest,
            folder=folder,
            config=config_of(history, self),
            since=time.time(),
            experiment=experiment,
        )


def candidates(history: History, trial: int | None = None) -> list[CandidateCheckpoint]:
    """Return the checkpoints that could be served, best first; `trial`: only of that trial, None:
    of all.

    The value at a checkpoint's own step counts: a trial may have had its best value at a step
    without a checkpoint. Steps that break a constraint are excluded. So are clones' first
    checkpoints, whose files are another trial's: at that step the trial reported values of weights
    that it no longer has. At equal values the lowest trial, and its first step, comes first.
    """
    found = [
        _candidate(history, one, step, one.values[step - 1], saved.manifest)
        for one in _trials(history, trial)
        for step, saved in one.checkpoints.items()
        if 0 < step <= one.step and saved.source is None and one.curve.feasible(step)
    ]
    return sorted(found, key=lambda one: (one.rank, one.trial, one.step))


def config_of(history: History, chosen: CandidateCheckpoint) -> dict[str, Any]:
    """Return the configuration at a checkpoint's step, nested; it may have changed since."""
    nested: dict[str, Any] = history.spec.space.nest(history.path(chosen.trial, chosen.step)[-1])
    return nested


class Checkpoints:
    """The checkpoints in the experiment's store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def candidates(self, history: History, trial: int | None) -> list[CandidateCheckpoint]:
        """Return the checkpoints that could be served, see `candidates`."""
        return candidates(history, trial)

    def fetch(
        self, history: History, wanted: Sequence[CandidateCheckpoint], folder: Path
    ) -> Restored:
        """Restore the first of them that exists and is intact, as `folder`. Raises Unavailable and
        OSError if none can be fetched now.

        If the experiment deletes one while it is fetched, the next best is fetched.
        """
        return restore(self._store, [one.manifest for one in wanted], folder)


class LoggedModels:
    """The models that trials logged to MLflow, if no class is named: of trials that have ended,
    since a trial may log its model with its last step.
    """

    def __init__(self, tracking_uri: str) -> None:
        self._tracking_uri = tracking_uri

    def candidates(self, history: History, trial: int | None) -> list[CandidateCheckpoint]:
        """See Checkpoints. A trial's best value counts, at whatever step its model was logged."""
        found = [
            _candidate(history, one, one.best[1], one.best[0], f"mlflow:{task_name(one.number)}")
            for one in _trials(history, trial)
            if one.best is not None and one.state in (TrialState.DONE, TrialState.STOPPED)
        ]
        return sorted(found, key=lambda one: (one.rank, one.trial))

    def fetch(
        self, history: History, wanted: Sequence[CandidateCheckpoint], folder: Path
    ) -> Restored:
        """See Checkpoints."""
        from mlflow.exceptions import MlflowException

        from regrow.infra.mlflow.register import fetch_newest

        skipped: list[tuple[str, str]] = []
        for one in wanted:
            try:
                if fetch_newest(self._tracking_uri, history.id, one.trial, folder) is not None:
                    return Restored(manifest=one.manifest, step=one.step, skipped=skipped)
            except MlflowException as error:
                raise Unavailable("MLflow", in_a_line(error)) from error
            skipped.append((one.manifest, NO_MODEL))
        return Restored(manifest=None, step=0, skipped=skipped)


ModelSource = Checkpoints | LoggedModels


def _trials(history: History, trial: int | None) -> Sequence[TrialRecord]:
    if history.created is None:
        return ()
    return history.trials if trial is None else history.trials[trial : trial + 1]


def _candidate(
    history: History, trial: TrialRecord, step: int, value: float, manifest: str
) -> CandidateCheckpoint:
    rank = history.objective.sign * value
    return CandidateCheckpoint(
        trial=trial.number, step=step, value=value, rank=rank, manifest=manifest
    )
