"""Removing and renaming experiments in MLflow: runs are soft-deleted, `mlflow gc` deletes files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from regrow.infra.machine.sqlite import file_of
from regrow.infra.mlflow.check import check
from regrow.infra.mlflow.updates import EXPERIMENT_TAG, SinkUnavailable, prepare_environment
from regrow.infra.state.places import Places
from regrow.tasks.process.addresses import redacted


def forget_runs(places: Places, mlflow_experiment: str, experiment_id: str) -> int:
    """Soft-delete the runs of a regrow experiment (`experiment_id`), and the MLflow experiment if
    no other run is in it.

    Returns how many runs were deleted. Raises SinkUnavailable if MLflow is unavailable or refuses,
    UserError for an invalid address.
    """
    count, ours = 0, f"tags.`{EXPERIMENT_TAG}` = '{experiment_id}'"
    with _client(places) as client:
        found = _active(client, mlflow_experiment)
        if client is None or found is None:
            return 0
        while runs := client.search_runs([found], ours, max_results=1000):
            for run in runs:
                client.delete_run(run.info.run_id)
            count += len(runs)
        if not client.search_runs([found], max_results=1):
            # Rename it first: otherwise an experiment created later under this name would restore
            # it, with all these runs.
            client.rename_experiment(found, f"{mlflow_experiment} (removed {experiment_id})")
            client.delete_experiment(found)
    return count


def rename_experiment(places: Places, name: str, new: str) -> None:
    """Rename the MLflow experiment, if it exists and `new` does not; see `forget_runs`."""
    with _client(places) as client:
        found = _active(client, name)
        if client is not None and found is not None:
            client.rename_experiment(found, new)


@contextmanager
def _client(places: Places) -> Iterator[Any]:
    """Provide MLflow's client within the block; None if nothing was recorded yet."""
    uri = places.mlflow_uri
    if (file := file_of(uri)) is not None and not file.exists():
        yield None
        return
    check(uri, 5.0)
    prepare_environment()
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        yield MlflowClient(uri)
    except (MlflowException, OSError) as error:
        raise SinkUnavailable(f"MLflow at {redacted(uri)}: {error}") from error


def _active(client: Any, name: str) -> str | None:
    found = client.get_experiment_by_name(name) if client is not None else None
    return found.experiment_id if found is not None and found.lifecycle_stage == "active" else None
