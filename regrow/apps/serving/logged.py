"""Serves the models that trials logged to MLflow, if no class is named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regrow.apps.serving.choosing import Candidate
from regrow.search.history import History
from regrow.search.lifecycle import TrialState
from regrow.tasks.checkpoint.saving import Restored
from regrow.tasks.output.traces import in_a_line
from regrow.tasks.ports.store import Unavailable
from regrow.tasks.trial.names import task_name

NO_MODEL = (
    "the trial has logged no model (mlflow.<flavor>.log_model); --model names a class for"
    " checkpoints"
)


class LoggedModels:
    """Logged models of trials that have ended, since a trial may log its model with its
    last step.
    """

    def __init__(self, tracking_uri: str) -> None:
        self._tracking_uri = tracking_uri

    def candidates(self, history: History, trial: int | None) -> list[Candidate]:
        """See Source. A trial's best value counts, at whatever step its model was logged."""
        if history.created is None:
            return []
        of = history.trials if trial is None else history.trials[trial : trial + 1]
        found = [
            Candidate(
                trial=one.number,
                step=one.best[1],
                value=one.best[0],
                rank=history.objective.sign * one.best[0],
                manifest=f"mlflow:{task_name(one.number)}",
            )
            for one in of
            if one.best is not None and one.state in (TrialState.DONE, TrialState.STOPPED)
        ]
        return sorted(found, key=lambda one: (one.rank, one.trial))

    def fetch(self, history: History, wanted: Sequence[Candidate], folder: Path) -> Restored:
        """See Source."""
        from mlflow.exceptions import MlflowException

        from regrow.infra.mlflow.logged_models import fetch_newest

        skipped: list[tuple[str, str]] = []
        for one in wanted:
            try:
                if fetch_newest(self._tracking_uri, history.id, one.trial, folder) is not None:
                    return Restored(manifest=one.manifest, step=one.step, skipped=skipped)
            except MlflowException as error:
                raise Unavailable("MLflow", in_a_line(error)) from error
            skipped.append((one.manifest, NO_MODEL))
        return Restored(manifest=None, step=0, skipped=skipped)
