"""The MLflow sink beside a running server, while there is none, and before there is one: what is
found, told and made up for.
"""

import socket
import sqlite3
import subprocess
import sys
from base64 import b64encode
from contextlib import closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from mlflow import MlflowClient
from mlflow.entities import ViewType

from regrow.infra.mlflow.check import check
from regrow.infra.mlflow.database import make_sure_of
from regrow.infra.mlflow.sink import MlflowSink
from regrow.infra.mlflow.updates import SinkRefused, SinkUnavailable, Target
from regrow.tasks.errors import UserError
from tests.system.mlflow_recorded import (
    FIRST,
    PARENT,
    SECOND,
    SHORT,
    START,
    Server,
    elsewhere,
    name,
    runs_of,
    server,
)

__all__ = ["elsewhere", "name", "server"]  # fixtures


def test_the_ui_of_a_running_server_finds_what_was_written_in_bulk_beside_it(
    server: Server, name: str
) -> None:
    sink = MlflowSink(
        Target(tracking_uri=server.database_uri, experiment_name=name, experiment_id=name)
    )
    sink.load()
    trials = [
        replace(
            SHORT,
            key=f"trial-{n}",
            name=f"trial-{n}",
            metrics=[("accuracy", n / 10, s, START) for s in (1, 2)],
        )
        for n in range(5)
    ]
    sink.write([PARENT, *trials], cursor=1)
    client, experiment = MlflowClient(server.uri), sink.mlflow_experiment_id
    parent = sink.run_id("experiment")
    found = client.search_runs(
        [experiment],
        f"tags.mlflow.parentRunId = '{parent}' and metrics.accuracy > 0.15",
        order_by=["metrics.accuracy DESC"],
    )
    assert [run.info.run_name for run in found] == ["trial-4", "trial-3", "trial-2"]
    assert [run.data.metrics["accuracy"] for run in found] == [0.4, 0.3, 0.2]
    sink.close()


def test_two_runs_of_one_key_become_one_when_the_sink_is_opened(server: Server, name: str) -> None:
    sink = MlflowSink(Target(tracking_uri=server.uri, experiment_name=name, experiment_id=name))
    sink.load()
    sink.write([PARENT, FIRST], cursor=1)
    [trial] = [run for run in runs_of(server.uri, name) if run.info.run_name == "digits-0001"]
    tags = {key: value for key, value in trial.data.tags.items() if key != "mlflow.runName"}
    # the lost answer
    MlflowClient(server.uri).create_run(trial.info.experiment_id, START, tags, "digits-0001")
    sink.load()
    assert sink.run_id("trial-1") == trial.info.run_id
    sink.close()
    assert len(runs_of(server.uri, name, ViewType.ACTIVE_ONLY)) == 2


def test_a_server_that_went_away_is_told_within_seconds_and_recorded_to_when_it_is_back(
    server: Server, name: str
) -> None:
    sink = MlflowSink(Target(tracking_uri=server.uri, experiment_name=name, experiment_id=name))
    sink.load()
    sink.write([PARENT, FIRST], cursor=1)
    server.stop()
    try:
        with pytest.raises(SinkUnavailable, match="MLFLOW_TRACKING_URI"):
            sink.write([SECOND, SHORT], cursor=2)
        with pytest.raises(SinkUnavailable):
            MlflowSink(
                Target(tracking_uri=server.uri, experiment_name=name, experiment_id=name)
            ).load()
    finally:
        server.start()
    with pytest.raises(SinkUnavailable, match=r"load\(\)"):
        sink.write([SECOND], cursor=2)
    assert sink.load() == 1
    sink.write([SECOND, SHORT], cursor=2)
    assert sink.load() == 2
    sink.close()
    assert {run.info.run_name: run.info.status for run in runs_of(server.uri, name)} == {
        "digits": "RUNNING",
        "digits-0001": "FINISHED",
        "digits-0002": "FINISHED",
    }


def test_a_database_deleted_while_it_is_recorded_to_is_written_anew(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "mlflow.db"
    sink = MlflowSink(
        Target(tracking_uri=f"sqlite:///{file}", experiment_name="digits", experiment_id="id")
    )
    sink.load()
    sink.write([PARENT, FIRST], cursor=1)
    file.unlink()
    with pytest.raises(SinkUnavailable):
        sink.write([SECOND], cursor=2)
    assert sink.load() is None
    sink.write([PARENT, FIRST, SECOND], cursor=2)
    assert sink.load() == 2
    sink.close()


def test_a_database_of_another_mlflow_is_refused_in_its_own_words(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    make_sure_of(uri, None)
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as db:
        db.execute("update alembic_version set version_num = '1bd49d398cd2'")
        db.commit()
    with pytest.raises(SinkRefused, match="mlflow db upgrade"):
        MlflowSink(Target(tracking_uri=uri, experiment_name="digits", experiment_id="id")).load()


class NotMlflow(BaseHTTPRequestHandler):
    """Answers everything with a page, except to those it does not know, or not as HTTP."""

    def do_GET(self) -> None:
        if self.path.startswith("/ssh"):
            self.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n")
            return
        ann = f"Basic {b64encode(b'ann:p@ss').decode()}"
        self.send_response(200 if self.headers["Authorization"] in (None, ann) else 401)
        self.end_headers()
        self.wfile.write(b"<html>")

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_what_cannot_be_recorded_to_is_told_by_variable_value_and_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    other = HTTPServer(("127.0.0.1", 0), NotMlflow)
    Thread(target=other.serve_forever, daemon=True).start()
    silent = socket.create_server(("127.0.0.1", 0))
    closed = socket.create_server(("127.0.0.1", 0))
    ports = closed.getsockname()[1], silent.getsockname()[1], other.server_address[1]
    closed.close()
    for uri, words in {
        f"http://127.0.0.1:{ports[0]}": "does not answer within 0.5 s (.*refused.*Start that server",
        f"http://127.0.0.1:{ports[1]}": "does not answer within 0.5 s (.*timed out",
        f"http://127.0.0.1:{ports[2]}": "no MLflow server",
        f"http://127.0.0.1:{ports[2]}/ssh": "does not answer within 0.5 s (SSH-2.0-OpenSSH_9.6",
        f"http://ann:p%40ss@127.0.0.1:{ports[2]}": "no MLflow server",
        f"http://ann:secret@127.0.0.1:{ports[2]}": "answers 401.*MLFLOW_TRACKING_TOKEN",
        f"postgresql+psycopg2://ann:secret@127.0.0.1:{ports[0]}/mlflow": "does not answer",
        "http://[::1": "is no address",
        "sqlite://": "in memory",
        f"sqlite:///{tmp_path}/file/mlflow.db": "no right to write",
        f"sqlite:///{tmp_path}": "is a folder",
        "./mlruns": "is a folder, and MLflow no longer writes to folders",
    }.items():
        with pytest.raises(UserError, match=words.replace("(", r"\(")) as told:
            check(uri, timeout_s=0.5)
        assert str(told.value).startswith("MLFLOW_TRACKING_URI=")
        assert "secret" not in str(told.value)
    silent.close()
    other.shutdown()
    other.server_close()


def test_what_can_be_recorded_to_passes_the_check(server: Server, tmp_path: Path) -> None:
    for uri in (
        server.uri,
        server.database_uri,
        f"sqlite:///{tmp_path}/not/yet/mlflow.db",
        "databricks",
    ):
        check(uri, timeout_s=5.0)


def test_neither_the_check_nor_the_sink_imports_mlflow_before_it_is_opened() -> None:
    code = (
        "import sys, regrow.infra.mlflow.sink; print({'mlflow', 'sqlalchemy'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
