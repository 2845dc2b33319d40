"""Experiments that are removed or renamed, in MLflow. Runs are soft-deleted, so `mlflow gc` decides of their files.

mlflow is imported where it is needed: that takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from regrow.infra.mlflow.check import check
from regrow.infra.mlflow.updates import EXPERIMENT_TAG, SinkUnavailable, prepare_environment
from regrow.infra.state.places import Places
from regrow.tasks.addresses import redacted


def forget_runs(places: Places, mlflow_experiment: str, experiment_id: str) -> int:
    """Soft-deletes the runs of a regrow experiment (`experiment_id`), and the MLflow experiment if none is left in it.

    Returns how many runs that were. Raises SinkUnavailable if MLflow is away or says no, UserError for an address that is none.
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
            # Under another name: one that is created under this name would bring it back, with all these runs.
            client.rename_experiment(found, f"{mlflow_experiment} (removed {experiment_id})")
            client.delete_experiment(found)
    return count


def rename_experiment(places: Places, name: str, new: str) -> None:
    """Renames the MLflow experiment `name`, if there is one and none called `new`. Raises as `forget_runs` does."""
    with _client(places) as client:
        found = _active(client, name)
        if client is not None and found is not None:
            client.rename_experiment(found, new)


@contextmanager
def _client(places: Places) -> Iterator[Any]:
    """MLflow's client; None where nothing was recorded yet."""
    uri = places.mlflow_uri
    file = uri.removeprefix("sqlite:///")
    if file != uri and not Path(file).exists():
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
    """The id of the MLflow experiment that has this name and is not deleted."""
    found = client.get_experiment_by_name(name) if client is not None else None
    return found.experiment_id if found is not None and found.lifecycle_stage == "active" else None
