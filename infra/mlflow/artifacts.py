"""Writing files to a run's artifacts, by MLflow's client, in the place of its MLflow experiment.

Imports mlflow at the top: import this module lazily, as `sink.py` does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from mlflow.tracking import MlflowClient

from regrow.tasks.process.addresses import redacted


def put(tracking_uri: str, run_id: str, files: Mapping[str, bytes]) -> list[str]:
    """Write files by their paths below the run's artifacts, replacing existing ones. Returns the
    failures, one line each.

    Does not raise: if artifacts cannot be written (no permission, a missing library), everything
    else is still recorded.
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
            except Exception as error:  # noqa: BLE001 - each kind of store has its own errors
                reason = redacted(str(error)).strip().partition("\n")[0] or type(error).__name__
                wrong.append(f"{path} could not be stored with MLflow's artifacts: {reason}")
    return wrong
