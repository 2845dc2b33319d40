"""A real MLflow server, updates to record, and what MLflow shows of them. No test lives here."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run, ViewType

from regrow.infra.mlflow import bulk
from regrow.infra.mlflow.database import make_sure_of
from regrow.infra.mlflow.sink import MlflowSink
from regrow.infra.mlflow.updates import RunUpdate, Target

START = 1_700_000_000_000
PARENT = RunUpdate(
    key="experiment", name="digits", start_ms=START, parent=True, params={"trials": "3"}
)

FIRST = RunUpdate(
    key="trial-1",
    name="digits-0001",
    start_ms=START + 5,
    params={"lr": "0.1", "optimizer/name": "sgd"},
    tags={"regrow.state": "running"},
    metrics=[
        ("accuracy", 0.5, 1, START + 10),
        ("accuracy", 0.75, 2, START + 20),
        ("loss", math.nan, 1, START),
    ],
)

SECOND = RunUpdate(
    key="trial-1",
    name="digits-0001",
    start_ms=START + 5,
    tags={"regrow.state": "done", "regrow.node": "a"},
    metrics=[("accuracy", 0.625, 3, START + 30), ("loss", math.inf, 2, START + 30)],
    status="FINISHED",
    end_ms=START + 40,
)
SHORT = replace(SECOND, key="trial-2", name="digits-0002", params={"lr": "0.2"})
SUPERSEDED = replace(SECOND, key="trial-3", name="digits-0003", status="KILLED", deleted=True)


class Server:
    """MLflow's server on loopback, over a sqlite file that it keeps when it is stopped and started.

    What `mlflow server` starts, without that command: it would import MLflow once more, for 3 s.
    """

    def __init__(self, folder: Path) -> None:
        with closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.folder = folder
        self.uri = f"http://127.0.0.1:{self.port}"
        self.database = folder / "mlflow.db"
        self.database_uri = f"sqlite:///{self.database}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "uvicorn", "mlflow.server.fastapi_app:app"]
        settings = {
            "_MLFLOW_SERVER_FILE_STORE": self.database_uri,
            "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
            "_MLFLOW_SERVER_ARTIFACT_DESTINATION": "./mlartifacts",
            "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "DO_NOT_TRACK": "true",
        }
        make_sure_of(self.database_uri, None)  # its migrations take seconds
        with (self.folder / "server.log").open("ab") as said:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port)],
                cwd=self.folder,
                env={**os.environ, **settings},
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                urlopen(f"{self.uri}/health", timeout=1).close()
            except OSError:
                time.sleep(0.1)  # a server that binds its port tells nobody
            else:
                return
        raise TimeoutError((self.folder / "server.log").read_text())

    def stop(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink without a place for artifacts leaves them in the working folder, which shall not be
    the repository.
    """
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("mlflow"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def name() -> str:
    return f"digits-{uuid.uuid4().hex}"


def record(end: Connection[Any, Any], uri: str, name: str, in_bulk: bool) -> None:
    """Records 30 trials as a recorder that begins again three updates before its cursor, and sends
    a word after each write.
    """
    bulk.knows_this_mlflow = lambda: in_bulk
    sink = MlflowSink(Target(tracking_uri=uri, experiment_name=name, experiment_id=f"id-{name}"))
    for n in range(max((sink.load() or 0) - 3, 0), 30):
        begun = replace(FIRST, key=f"trial-{n}", name=f"trial-{n}")
        ended = replace(
            FIRST,
            key=f"trial-{n - 1}",
            status="FINISHED",
            end_ms=START + 9,
            metrics=[("accuracy", 0.875, 3, START)],
        )
        sink.write([PARENT, begun, ended] if n else [PARENT, begun], n + 1)
        end.send(n)


def everything(uri: str, name: str) -> dict[str, object]:
    """All that MLflow shows of an experiment's runs, by their names, deleted ones too."""
    client = MlflowClient(uri)
    runs = runs_of(uri, name)
    return {
        str(run.info.run_name): (
            {key: value for key, value in vars(run.info).items() if key != "_deleted_time"},
            run.data.tags,
            run.data.params,
            {
                key: repr(client.get_metric_history(run.info.run_id, key))
                for key in run.data.metrics
            },
            repr(run.data.metrics),
        )
        for run in runs
    }


def runs_of(uri: str, name: str, view: int = ViewType.ALL) -> list[Run]:
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(name)
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id], run_view_type=view))


def points(uri: str, run_id: str, metric: str) -> list[tuple[int, float]]:
    history = MlflowClient(uri).get_metric_history(run_id, metric)
    return sorted((point.step, point.value) for point in history)
