"""What stands for a run, a model or a version that could not be made while MLflow was away: the trial's code goes on with it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from typing import Any

from mlflow.entities import LoggedModel, LoggedModelStatus, Run, RunData, RunInfo, RunTag
from mlflow.entities.model_registry import ModelVersion

_NOWHERE = "file:///dev/null/regrow"
"""An address at which nothing can be put by mistake."""


def run(experiment_id: str, user_id: str, start_time: int | None, tags: Iterable[RunTag] | None, run_name: str | None) -> Run:
    """A run that MLflow knows nothing of; what is logged in it is dropped."""
    run_id = uuid.uuid4().hex
    info = RunInfo(
        run_id=run_id, experiment_id=experiment_id, user_id=user_id, status="RUNNING",
        start_time=start_time or int(time.time() * 1000), end_time=None, lifecycle_stage="active",
        artifact_uri=f"{_NOWHERE}/{run_id}", run_name=run_name or "unknown to MLflow",
    )
    return Run(info, RunData(tags=list(tags or ())))


def model(
    experiment_id: str, name: str | None = None, source_run_id: str | None = None, tags: Any = None, params: Any = None,
    model_type: str | None = None,
) -> LoggedModel:
    """A model that MLflow knows nothing of."""
    model_id, now = f"m-{uuid.uuid4().hex}", int(time.time() * 1000)
    return LoggedModel(
        experiment_id=experiment_id, model_id=model_id, name=name or "unknown to MLflow",
        artifact_location=f"{_NOWHERE}/{model_id}", creation_timestamp=now, last_updated_timestamp=now, model_type=model_type,
        source_run_id=source_run_id, status=LoggedModelStatus.PENDING, tags=tags, params=params,
    )


def version(name: str) -> ModelVersion:
    """A version that the registry knows nothing of: its number is 0, which none has."""
    return ModelVersion(name=name, version="0", creation_timestamp=int(time.time() * 1000))


class Artifacts:
    """The artifacts of such a run or model: there are none, and none are taken."""

    def log_artifact(self, local_file: str, artifact_path: str | None = None) -> None:
        """See MLflow's ArtifactRepository."""

    def log_artifacts(self, local_dir: str, artifact_path: str | None = None) -> None:
        """See MLflow's ArtifactRepository."""

    def _log_artifact_async(self, filename: str, artifact_path: str | None = None, artifact: Any = None) -> None:
        """See MLflow's ArtifactRepository."""

    def list_artifacts(self, path: str | None = None) -> list[Any]:
        """See MLflow's ArtifactRepository."""
        return []
