"""Finding or making the MLflow experiment, by a client or a SQL store. Imports mlflow."""

from typing import TYPE_CHECKING, Any, Final

from mlflow.entities import Experiment, ExperimentTag, ViewType
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from regrow.infra.mlflow.updates import SUPERSEDED_TAG, Target

if TYPE_CHECKING:
    from regrow.infra.mlflow.private import Store

_KIND_TAG: Final = "mlflow.experimentKind"


def open_experiment(api: "MlflowClient | Store", target: Target) -> Experiment:
    """Return the active experiment of the target's name, created or restored if needed."""
    experiment: Experiment | None = api.get_experiment_by_name(target.experiment_name)
    if experiment is None:
        try:
            experiment_id = api.create_experiment(
                target.experiment_name, target.artifact_location, _tags(api)
            )
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            return open_experiment(api, target)  # another process was faster
        return api.get_experiment(experiment_id)
    if experiment.lifecycle_stage != "active":
        _restore(api, experiment.experiment_id)
    return experiment


def _tags(api: "MlflowClient | Store") -> Any:
    """Return the experiment's tags. MLflow's page opens an experiment of this kind with its runs
    and charts, any other kind with the pages for agents.
    """
    kind = "custom_model_development"
    return {_KIND_TAG: kind} if isinstance(api, MlflowClient) else [ExperimentTag(_KIND_TAG, kind)]


def _restore(api: "MlflowClient | Store", experiment_id: str) -> None:
    # MLflow restores every run with its experiment, also superseded ones: delete those again.
    api.restore_experiment(experiment_id)
    superseded = f"tags.`{SUPERSEDED_TAG}` = 'true'"
    while runs := api.search_runs(
        [experiment_id], superseded, ViewType.ACTIVE_ONLY, 1000, None, None
    ):
        for run in runs:
            api.delete_run(run.info.run_id)
