"""The best trial's model in MLflow's model registry: one version per best trial and step.

Imports mlflow at the top: import this module lazily, as `sink.py` does with its writers.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlflow
from mlflow.entities.logged_model_status import LoggedModelStatus
from mlflow.exceptions import MlflowException
from mlflow.models import Model
from mlflow.tracking import MlflowClient

from regrow.infra.mlflow.logged_models import CHECKPOINT, ready, runs_of
from regrow.infra.mlflow.sink import MlflowSink
from regrow.infra.mlflow.trial_runs import Runs
from regrow.search.history import History
from regrow.tasks.checkpoint.saving import restore
from regrow.tasks.ports.store import Store

_ALREADY = ("RESOURCE_ALREADY_EXISTS", "ALREADY_EXISTS")
_VERSIONS_TAG = "mlflow.modelVersions"


def register_best(
    name: str, history: History, sink: MlflowSink, runs: Runs, *, store: Store, tracking_uri: str
) -> str | None:
    """Register the best trial's model as a new version of `name`, unless it is registered already.
    Returns why that was not possible, None if it is registered.

    The model is the last one that the trial's training logged, in any MLflow experiment, with its
    signature. If it logged none, the files of the checkpoint of the best step are registered.
    Raises what MLflow or the store raises.
    """
    best = history.leader
    if best is None or best.best is None:
        return f"No model was registered as {name!r} in MLflow: no trial has reported anything"
    value, step = best.best
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
    models = ready(client, [run_id, *runs_of(client, history.id, best.number)])
    model_id = next((model.model_id for model in models if model.name != CHECKPOINT), None)
    about = (
        f"Trial {best.number} of {history.spec.name}: {history.objective.name} = {value:.6g} at"
        f" step {step}."
    )
    if model_id is None:
        saved = best.checkpoint_at(step)
        if saved is None:
            return (
                f"No model was registered as {name!r} in MLflow: the best trial {best.number}"
                " logged none (mlflow.<flavor>.log_model) and has no checkpoint"
            )
        about_it = {**tags, "regrow.manifest": saved.manifest}
        before = (
            m.model_id
            for m in models
            if m.name == CHECKPOINT and about_it.items() <= dict(m.tags).items()
        )
        model_id = next(before, None) or _from_checkpoint(
            client, sink.mlflow_experiment_id, run_id, store, about_it
        )
        about += (
            f" These are the files of its checkpoint of step {saved.step}, as the trainable saved"
            " them, not a model of a flavor that MLflow can load or serve: get them with"
            " mlflow.artifacts.download_artifacts. To have such a model here, log it in the"
            " trainable (mlflow.<flavor>.log_model)."
        )
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code not in _ALREADY:
            raise
    with _looking_at(tracking_uri):
        version = client.create_model_version(
            name,
            f"models:/{model_id}",
            run_id=run_id,
            tags=tags,
            description=about,
            model_id=model_id,
        )
    _link(client, model_id, name, version.version)
    return None


def _is_registered(client: MlflowClient, name: str, tags: dict[str, str]) -> bool:
    page: str | None = None
    while True:
        versions = client.search_model_versions(f"name='{name}'", max_results=1000, page_token=page)
        if any(tags.items() <= dict(version.tags).items() for version in versions):
            return True
        page = versions.token
        if not page:
            return False


@contextmanager
def _looking_at(tracking_uri: str) -> Iterator[None]:
    """Set MLflow's global tracking URI within the block: the registry looks the model up there, not
    with its own client.
    """
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
    """Add the version to the model's tag, as MLflow's `register_model` does, so that MLflow's pages
    link the two.
    """
    before = json.loads(client.get_logged_model(model_id).tags.get(_VERSIONS_TAG, "[]"))
    client.set_logged_model_tags(
        model_id, {_VERSIONS_TAG: json.dumps([*before, {"name": name, "version": version}])}
    )
