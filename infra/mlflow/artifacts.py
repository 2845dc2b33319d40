"""Files of a run: put where its MLflow experiment keeps them, by MLflow's own client.

Imports mlflow at the top: load this module lazily, see `mlflow_sink`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from mlflow.tracking import MlflowClient

from regrow.tasks.addresses import redacted


def put(tracking_uri: str, run_id: str, files: Mapping[str, bytes]) -> list[str]:
    """Writes files, by their paths below the run's artifacts, over what is there; returns what went wrong, a line each.

    Raises nothing: where artifacts cannot be written (no right, a library that is missing) the rest is recorded all the same.
    """
    client, wrong = MlflowClient(tracking_uri), []
    with tempfile.TemporaryDirectory(prefix="regrow-mlflow-") as folder:
        for path, data in files.items():
            place = PurePosixPath(path)
            local = Path(folder, place.name)
            local.write_bytes(data)
            parent = str(place.parent)
            try:
                client.log_artifact(run_id, str(local), None if parent == "." else parent)
            except Exception as error:  # noqa: BLE001 - every kind of store has its own
                reason = redacted(str(error)).strip().partition("\n")[0] or type(error).__name__
                wrong.append(f"{path} could not be stored with MLflow's artifacts: {reason}")
    return wrong
