"""The models that trials logged to MLflow themselves, by `mlflow.<flavor>.log_model` or
autologging.

Imports mlflow at the top: import this module lazily, as `sink.py` does with its writers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import mlflow
from mlflow.entities import LoggedModel
from mlflow.entities.logged_model_status import LoggedModelStatus
from mlflow.tracking import MlflowClient

from regrow.infra.mlflow.in_trial_runs import own_runs

CHECKPOINT = "regrow-checkpoint"
"""Name of the logged model that is registered if a trial logged none: a checkpoint's files, which
MLflow cannot load as a model.
"""


def ready(client: MlflowClient, run_ids: Iterable[str]) -> list[LoggedModel]:
    """Return the complete models of these runs, newest first, including checkpoints."""
    places = [place.experiment_id for place in client.search_experiments()]
    found = [
        model
        for run_id in run_ids
        for model in client.search_logged_models(
            places, filter_string=f"source_run_id = '{run_id}'"
        )
    ]
    found.sort(key=lambda model: int(model.creation_timestamp), reverse=True)
    return [model for model in found if str(model.status) == str(LoggedModelStatus.READY)]


def runs_of(client: MlflowClient, experiment_id: str, trial: int) -> list[str]:
    """Return the ids of the runs that a trial's training made, in any MLflow experiment.
    `experiment_id`: regrow's.
    """
    places = [place.experiment_id for place in client.search_experiments()]
    return [run.info.run_id for run in own_runs(client, places, experiment_id, trial)]


def fetch_newest(tracking_uri: str, experiment_id: str, trial: int, folder: Path) -> str | None:
    """Download the last model that a trial logged to `folder`. Returns its id, None if it logged
    none. Raises what MLflow raises.
    """
    client = MlflowClient(tracking_uri)
    models = [
        model
        for model in ready(client, runs_of(client, experiment_id, trial))
        if model.name != CHECKPOINT
    ]
    if not models:
        return None
    # The terminal shows regrow's own lines.
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    mlflow.artifacts.download_artifacts(
        artifact_uri=models[0].artifact_location, dst_path=str(folder), tracking_uri=tracking_uri
    )
    return str(models[0].model_id)
