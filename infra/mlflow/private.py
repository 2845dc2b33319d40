"""Private MLflow interfaces that regrow depends on: store, tables, pages, current experiment.

mlflow, which takes 4 s to import, is imported inside functions. Each name is in the canary test
(`tests/unit/test_private_names.py`), with what breaks without it.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor
    from sqlalchemy import Engine, Table

Store: TypeAlias = "SqlAlchemyStore"
ARTIFACT_ROOT = "_MLFLOW_SERVER_ARTIFACT_ROOT"
"""Variable with the artifact root of experiments in a database; without it, ./mlruns."""


def choose_experiment(chosen: str | None) -> str | None:
    """Replace the id that `mlflow.set_experiment` set last by `chosen`, and return the replaced
    one; None: no id.

    `set_experiment` can neither be queried nor undone.
    """
    fluent: Any = sys.modules["mlflow.tracking.fluent"]
    before: str | None = fluent._active_experiment_id  # noqa: SLF001 - no public way to read it
    fluent._active_experiment_id = chosen  # noqa: SLF001 - no public way to reset it
    return before


def tables() -> tuple[Table, ...]:
    """Return the tables of runs, parameters, tags, metrics and latest metrics."""
    models = _module("mlflow.store.tracking.dbmodels.models")
    found = (
        models.SqlRun,
        models.SqlParam,
        models.SqlTag,
        models.SqlMetric,
        models.SqlLatestMetric,
    )
    return tuple(cast("Table", model.__table__) for model in found)


def sql_store(tracking_uri: str, artifact_root: str | None) -> SqlAlchemyStore:
    """Return MLflow's store, with the artifact root for new experiments; None: its default."""
    from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    root = artifact_root or DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
    return SqlAlchemyStore(tracking_uri, root)  # type: ignore[no-untyped-call]  # mlflow's


def below(artifact_uri: str, *parts: str) -> str:
    """Return an address below another one, which may have a query."""
    found: str = _module("mlflow.utils.uri").append_to_uri_path(artifact_uri, *parts)
    return found


def engine(url: str) -> Engine:
    """Return a SQLAlchemy engine with MLflow's settings."""
    return cast("Engine", _module("mlflow.store.db.utils").create_sqlalchemy_engine(url))


def make_tables(database: Engine) -> None:
    """Run MLflow's migrations, without the experiment that its store would create."""
    _module("mlflow.store.db.utils")._initialize_tables(database)  # noqa: SLF001 - nothing public does only this


def web_app(artifacts: str | None) -> tuple[Any, Any]:
    """Return MLflow's ASGI server on the database of MLFLOW_BACKEND_STORE_URI, and the Flask
    application in it that serves the pages.

    `artifacts`: where it stores files; None: where MLflow's own variable says. `mlflow server` sets
    the same variables. MLflow's checks of Host and Origin are disabled, as the guard in front of it
    checks them.
    """
    files = artifacts or os.environ.get("MLFLOW_ARTIFACTS_DESTINATION") or "./mlartifacts"
    os.environ.update(
        {
            "_MLFLOW_SERVER_FILE_STORE": os.environ["MLFLOW_BACKEND_STORE_URI"],
            "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
            "_MLFLOW_SERVER_ARTIFACT_DESTINATION": files,
            ARTIFACT_ROOT: "mlflow-artifacts:/",
            "_MLFLOW_IN_JOB_EXECUTOR": "false",
            "MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE": "true",
        }
    )
    app = _module("mlflow.server.fastapi_app").app
    _module("mlflow.server.handlers").initialize_backend_stores(
        os.environ["MLFLOW_BACKEND_STORE_URI"], None, os.environ[ARTIFACT_ROOT]
    )
    return app, _module("mlflow.server").app


def system_monitor(run_id: str, tracking_uri: str, part: str | None = None) -> SystemMetricsMonitor:
    """Return a monitor, not yet started, that records CPU, memory, disk, network and GPU into a
    run, and continues earlier records.

    `part`: part of the metrics' names if several monitors record into one run; None: none.
    """
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    made = SystemMetricsMonitor(run_id, resume_logging=True, tracking_uri=tracking_uri)  # type: ignore[no-untyped-call]  # mlflow's
    if part is not None:
        # Not as an argument: MLFLOW_SYSTEM_METRICS_NODE_ID would override it, and may be the same
        # for all.
        made.node_id = part
    return made


def _module(name: str) -> Any:
    return importlib.import_module(name)  # these modules have no type hints
