"""What of MLflow is used that its documentation does not promise: its store, its tables, its pages, its current experiment.

mlflow, which takes 4 s, is imported inside of functions. Each name is in the canary test (`tests/unit/test_private_names.py`),
with what breaks without it.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor
    from sqlalchemy import Engine, Table

Store: TypeAlias = "SqlAlchemyStore"
ARTIFACT_ROOT = "_MLFLOW_SERVER_ARTIFACT_ROOT"
"""The variable that says where an MLflow experiment which is made in a database keeps its artifacts; without it, in ./mlruns."""


def choose_experiment(chosen: str | None) -> str | None:
    """Has `chosen` stand for the id that `mlflow.set_experiment` set last, and returns that one; None for none.

    `set_experiment` can neither be asked nor undone.
    """
    fluent: Any = sys.modules["mlflow.tracking.fluent"]
    before: str | None = fluent._active_experiment_id  # noqa: SLF001 - what this module is for
    fluent._active_experiment_id = chosen  # noqa: SLF001 - the same
    return before


def tables() -> tuple[Table, ...]:
    """The tables of runs, parameters, tags, metrics and latest metrics."""
    models = _module("mlflow.store.tracking.dbmodels.models")
    found = (models.SqlRun, models.SqlParam, models.SqlTag, models.SqlMetric, models.SqlLatestMetric)
    return tuple(cast("Table", model.__table__) for model in found)


def sql_store(tracking_uri: str, artifact_root: str | None) -> SqlAlchemyStore:
    """MLflow's store in a database. `artifact_root`: where experiments that it makes keep their artifacts; None: its own."""
    from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    root = artifact_root or DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
    return SqlAlchemyStore(tracking_uri, root)  # type: ignore[no-untyped-call]  # mlflow's


def below(artifact_uri: str, *parts: str) -> str:
    """An address below another one, which may have a query."""
    found: str = _module("mlflow.utils.uri").append_to_uri_path(artifact_uri, *parts)
    return found


def engine(url: str) -> Engine:
    """SQLAlchemy's, with MLflow's settings."""
    return cast("Engine", _module("mlflow.store.db.utils").create_sqlalchemy_engine(url))


def make_tables(database: Engine) -> None:
    """Runs MLflow's migrations in an empty database, as its SQL store does; that one would make an experiment, too."""
    _module("mlflow.store.db.utils")._initialize_tables(database)  # noqa: SLF001 - what this module is for


def web_app() -> Any:
    """MLflow's server with its pages, for ASGI."""
    return _module("mlflow.server.fastapi_app").app


def system_monitor(run_id: str, tracking_uri: str, part: str | None = None) -> SystemMetricsMonitor:
    """Records CPU, memory, disk, network and GPU into a run, goes on where it was left, and is to be started.

    `part`: what stands in the metrics' names where several record into one run; None: nothing.
    """
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    made = SystemMetricsMonitor(run_id, resume_logging=True, tracking_uri=tracking_uri)  # type: ignore[no-untyped-call]  # mlflow's
    if part is not None:
        made.node_id = part  # as an argument it would give way to MLFLOW_SYSTEM_METRICS_NODE_ID, which all of them may have
    return made


def _module(name: str) -> Any:
    return importlib.import_module(name)  # without types
