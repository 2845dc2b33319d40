"""The models that trials logged to MLflow themselves, by `mlflow.<flavor>.log_model` or
autologging, and the best trial's in MLflow's registry: one version per best trial and step.

Imports mlflow at the top: import this module lazily, as `sink.py` does with its writers.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlflow
from mlflow.entities import LoggedModel
from mlflow.entities.logged_model_status import LoggedModelStatus
from mlflow.exceptions import MlflowException
from mlflow.models import Model
from mlflow.tracking import MlflowClient

from regrow.infra.mlflow.in_trial_runs import own_runs
from regrow.infra.mlflow.sink import MlflowSink
from regrow.infra.mlflow.trial_runs import TrialRuns
from regrow.infra.mlflow.updates import every_page
from regrow.search.history import repeats
from regrow.search.numbers import readable
from regrow.tasks.checkpoint.saving import restore
from regrow.tasks.ports.store import Store

_VERSIONS_TAG = "mlflow.modelVersions"
CHECKPOINT = "regrow-checkpoint"
"""Name of the logged model that is registered if a trial logged none: a checkpoint's files, which
MLflow cannot load as a model.
"""


def register_best(name: str, sink: MlflowSink, runs: TrialRuns, store: Store) -> str | None:
    """Register the best trial's model as a new version of `name`, unless it is registered already.
    Returns why that was not possible, None if it is registered.

    The model is the last one that the trial's training logged, in any MLflow experiment, with its
    signature. If it logged none, the files of the checkpoint of the best step are registered.
    Raises what MLflow or the store raises.
    """
    history, tracking_uri = runs.history, sink.target.tracking_uri
    found = repeats.best(history)
    if found is None:
        return f"No model was registered as {name!r} in MLflow: no trial has reported anything"
    best, value, step = found.trial, found.value, found.step
    client = MlflowClient(tracking_uri)
    run_id = sink.run_id(runs.current_key(best.number))
    if run_id is None:
        raise LookupError(f"trial {best.number} has no run in MLflow")
    tags = {
        "regrow.experiment": history.spec.name,
        "regrow.experiment_id": history.id,
        "regrow.trial": str(best.number),
        "regrow.step": str(step),
        "regrow.metric": history.objective.name,
        "regrow.value": repr(value),
    }
    if _is_registered(client, name, tags):
        return None
    models = _ready(client, [run_id, *_runs_of(client, history.id, best.number)])
    model_id = next((model.model_id for model in models if model.name != CHECKPOINT), None)
    about = f"Trial {best.number} of {history.spec.name}:"
    about += f" {history.objective.name} = {readable(value)} at step {step}."
    if model_id is None:
        saved = best.checkpoint_at(step)
        if saved is None:
            return (
                f"No model was registered as {name!r} in MLflow: the best trial {best.number}"
                " logged none (mlflow.<flavor>.log_model) and has no checkpoint"
            )
        its = {**tags, "regrow.manifest": saved.manifest}
        same = (m for m in models if m.name == CHECKPOINT and its.items() <= dict(m.tags).items())
        if (before := next(same, None)) is not None:
            model_id = before.model_id
        else:
            place = sink.mlflow_experiment_id
            model_id = _from_checkpoint(client, place, run_id, store, its)
        about += (
            f" These are the files of its checkpoint of step {saved.step}, as the trainable saved"
            " them, not a model of a flavor that MLflow can load or serve: get them with"
            " mlflow.artifacts.download_artifacts. To have such a model here, log it in the"
            " trainable (mlflow.<flavor>.log_model)."
        )
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_ALREADY_EXISTS", "ALREADY_EXISTS"):
            raise
    with _tracking_at(tracking_uri):
        details: dict[str, Any] = {"run_id": run_id, "tags": tags, "description": about}
        source = f"models:/{model_id}"
        version = client.create_model_version(name, source, model_id=model_id, **details)
    _link(client, model_id, name, version.version)
    return None


def _is_registered(client: MlflowClient, name: str, tags: dict[str, str]) -> bool:
    versions = every_page(client.search_model_versions, f"name='{name}'", max_results=1000)
    return any(tags.items() <= dict(version.tags).items() for version in versions)


@contextmanager
def _tracking_at(tracking_uri: str) -> Iterator[None]:
    """Set MLflow's global tracking URI within the block: the registry looks models up there."""
    before = mlflow.get_tracking_uri() if mlflow.is_tracking_uri_set() else None  # type: ignore[no-untyped-call]  # mlflow's
    mlflow.set_tracking_uri(tracking_uri)
    try:
        yield
    finally:
        mlflow.set_tracking_uri(before)  # type: ignore[arg-type]  # None is what it was


def _from_checkpoint(
    client: MlflowClient, experiment_id: str, run_id: str, store: Store, tags: dict[str, str]
) -> str:
    manifest = tags["regrow.manifest"]
    with tempfile.TemporaryDirectory(prefix="regrow-register-") as scratch:
        folder = Path(scratch, "model")
        restored = restore(store, [manifest], folder)
        if restored.manifest is None:
            raise LookupError(f"the checkpoint {manifest} cannot be read: {restored.skipped[0][1]}")
        logged = client.create_logged_model(
            experiment_id, name=CHECKPOINT, source_run_id=run_id, tags=tags, model_type="checkpoint"
        )
        # The trainable may have saved a complete MLflow model.
        if not (folder / "MLmodel").exists():
            metadata: dict[str, Any] = {"regrow": tags}
            model = Model(run_id=run_id, model_id=logged.model_id, flavors={}, metadata=metadata)
            model.save(str(folder / "MLmodel"))
        client.log_model_artifacts(logged.model_id, str(folder))
        client.finalize_logged_model(logged.model_id, LoggedModelStatus.READY)
    return str(logged.model_id)


def _link(client: MlflowClient, model_id: str, name: str, version: str) -> None:
    """Add the version to the model's tag, as `register_model` does, so that pages link both."""
    before = json.loads(client.get_logged_model(model_id).tags.get(_VERSIONS_TAG, "[]"))
    client.set_logged_model_tags(
        model_id, {_VERSIONS_TAG: json.dumps([*before, {"name": name, "version": version}])}
    )


def _ready(client: MlflowClient, run_ids: Iterable[str]) -> list[LoggedModel]:
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


def _runs_of(client: MlflowClient, experiment_id: str, trial: int) -> list[str]:
    """Return ids of the runs that a trial's training made, in any MLflow experiment."""
    places = [place.experiment_id for place in client.search_experiments()]
    return [run.info.run_id for run in own_runs(client, places, experiment_id, trial)]


def fetch_newest(tracking_uri: str, experiment_id: str, trial: int, folder: Path) -> str | None:
    """Download the last model that a trial logged to `folder`. Returns its id, None if it logged
    none. Raises what MLflow raises.
    """
    client = MlflowClient(tracking_uri)
    models = [
        model
        for model in _ready(client, _runs_of(client, experiment_id, trial))
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
