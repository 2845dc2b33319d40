"""The MLflow sink against real databases and a real server: each point once, whatever is cut or repeated."""

import math
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from urllib.request import urlopen

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag, ViewType
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

from regrow.infra import mlflow_bulk
from regrow.infra.mlflow_sink import MlflowSink, RunUpdate, SinkRefused, SinkUnavailable, check, user
from regrow.tasks.errors import UserError

START = 1_700_000_000_000
PARENT = RunUpdate(key="experiment", name="digits", start_ms=START, parent=True, params={"trials": "3"})
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
    """`mlflow server` on loopback, over a sqlite file that it keeps when it is stopped and started."""

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
        options = ["--backend-store-uri", self.database_uri, "--port", str(self.port), "--workers", "1"]
        quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        with (self.folder / "server.log").open("ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", *options],
                cwd=self.folder,
                env={**os.environ, **quiet, "DO_NOT_TRACK": "true"},
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
    """A sink without a place for artifacts leaves them in the working folder, which shall not be the repository."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("mlflow"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(params=["bulk", "client", "server"])
def uri(request: pytest.FixtureRequest, server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every way of writing: in bulk, by the client into the same sqlite file, by the client to the server."""
    if request.param == "client":
        monkeypatch.setattr(mlflow_bulk, "knows_this_mlflow", lambda: False)
    return server.uri if request.param == "server" else server.database_uri


Open = Callable[[], MlflowSink]


@pytest.fixture
def name() -> str:
    return f"digits-{uuid.uuid4().hex}"


@pytest.fixture
def open_sink(uri: str, name: str, tmp_path: Path) -> Iterator[Open]:
    """Opens a sink as a new recorder would: knowing nothing but the experiment."""
    opened: list[MlflowSink] = []

    def open_one() -> MlflowSink:
        sink = MlflowSink(
            tracking_uri=uri, experiment_name=name, experiment_id=f"id-{name}", artifact_root=str(tmp_path)
        )
        sink.load()
        opened.append(sink)
        return sink

    yield open_one
    for sink in opened:
        sink.close()


def everything(uri: str, name: str) -> dict[str, object]:
    """All that MLflow shows of an experiment's runs, by their names, deleted ones too."""
    client = MlflowClient(uri)
    runs = runs_of(uri, name)
    return {
        str(run.info.run_name): (
            {key: value for key, value in vars(run.info).items() if key != "_deleted_time"},
            run.data.tags,
            run.data.params,
            {key: repr(client.get_metric_history(run.info.run_id, key)) for key in run.data.metrics},
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


def test_a_trial_is_recorded_with_all_that_its_updates_say(open_sink: Open, uri: str, name: str) -> None:
    sink = open_sink()
    sink.write([PARENT, FIRST], cursor=1)
    sink.write([SECOND], cursor=2)

    recorded = open_sink().load()
    assert recorded.cursor == 2
    assert set(recorded.run_ids) == {"experiment", "trial-1"}
    run = MlflowClient(uri).get_run(recorded.run_ids["trial-1"])
    assert (run.info.run_name, run.info.status, run.info.user_id) == ("digits-0001", "FINISHED", user())
    assert (run.info.start_time, run.info.end_time) == (START + 5, START + 40)
    assert run.data.params == {"lr": "0.1", "optimizer/name": "sgd"}
    assert run.data.tags.items() >= {
        ("regrow.state", "done"),
        ("regrow.node", "a"),
        ("mlflow.parentRunId", recorded.run_ids["experiment"]),
        ("mlflow.user", user()),
    }
    assert points(uri, run.info.run_id, "accuracy") == [(1, 0.5), (2, 0.75), (3, 0.625)]
    assert run.data.metrics == {"accuracy": 0.625, "loss": sys.float_info.max}
    assert sink.mlflow_experiment_id == run.info.experiment_id


def test_writing_the_same_again_changes_nothing(open_sink: Open, uri: str, name: str) -> None:
    batch = [PARENT, FIRST, SECOND, SHORT, SUPERSEDED]
    sink = open_sink()
    sink.write(batch, cursor=7)
    before = everything(uri, name)
    sink.write(batch, cursor=7)
    open_sink().write(batch, cursor=7)
    assert everything(uri, name) == before
    assert len(before) == 4


def test_an_older_point_that_arrives_late_is_kept_and_does_not_become_the_latest(
    open_sink: Open, uri: str, name: str
) -> None:
    sink = open_sink()
    sink.write([PARENT, SECOND], cursor=1)
    sink.write([FIRST], cursor=2)
    run = MlflowClient(uri).get_run(sink.load().run_ids["trial-1"])
    assert run.data.metrics["accuracy"] == 0.625
    assert len(points(uri, run.info.run_id, "accuracy")) == 3


def test_a_superseded_run_is_kept_out_of_default_views_even_after_its_experiment_was_restored(
    open_sink: Open, uri: str, name: str
) -> None:
    sink = open_sink()
    sink.write([PARENT, FIRST, SUPERSEDED], cursor=1)
    client = MlflowClient(uri)
    for _ in range(2):
        shown = runs_of(uri, name, ViewType.ACTIVE_ONLY)
        hidden = runs_of(uri, name, ViewType.DELETED_ONLY)
        assert {run.info.run_name for run in shown} == {"digits", "digits-0001"}
        assert {run.info.run_name for run in hidden} == {"digits-0003"}
        client.delete_experiment(sink.mlflow_experiment_id)
        sink.load()


def test_a_run_that_is_superseded_later_can_be_renamed(open_sink: Open, uri: str, name: str) -> None:
    sink = open_sink()
    sink.write([PARENT, FIRST], cursor=1)
    gone = replace(FIRST, tags={"mlflow.runName": "digits-0001 (superseded)"}, status="KILLED", deleted=True)
    sink.write([gone], cursor=2)
    [hidden] = runs_of(uri, name, ViewType.DELETED_ONLY)
    assert hidden.info.run_name == hidden.data.tags["mlflow.runName"] == "digits-0001 (superseded)"
    assert hidden.info.status == "KILLED"


def test_what_a_user_deleted_in_the_ui_is_still_recorded_and_stays_deleted(
    open_sink: Open, uri: str, name: str
) -> None:
    sink = open_sink()
    sink.write([PARENT, FIRST], cursor=1)
    for run in runs_of(uri, name):
        MlflowClient(uri).delete_run(run.info.run_id)
    again = open_sink()
    again.write([SECOND], cursor=2)
    assert again.load().cursor == 2
    assert {run.info.run_name: run.info.status for run in runs_of(uri, name, ViewType.DELETED_ONLY)} == {
        "digits": "RUNNING",
        "digits-0001": "FINISHED",
    }


def test_an_experiment_that_goes_on_after_its_end_is_running_again(
    open_sink: Open, uri: str, name: str
) -> None:
    sink = open_sink()
    sink.write([replace(PARENT, status="KILLED", end_ms=START + 50)], cursor=1)
    sink.write([replace(PARENT, status="RUNNING")], cursor=2)
    assert [run.info.status for run in runs_of(uri, name)] == ["RUNNING"]


def test_runs_of_another_experiment_of_the_same_name_are_left_alone(
    open_sink: Open, uri: str, name: str
) -> None:
    open_sink().write([PARENT, FIRST], cursor=5)
    other = MlflowSink(tracking_uri=uri, experiment_name=name, experiment_id="another")
    recorded = other.load()
    assert (recorded.cursor, recorded.run_ids) == (None, {})
    other.write([PARENT, FIRST], cursor=1)
    other.close()
    assert len(runs_of(uri, name)) == 4


def test_names_and_values_that_mlflow_refuses_do_not_stop_the_recording(
    open_sink: Open, uri: str, name: str
) -> None:
    odd = RunUpdate(
        key="trial-1",
        name="n" * 300,
        start_ms=START,
        params={"läge": "x" * 7000, "../up": "1"},
        tags={"why?": "y" * 9000},
        metrics=[("acc@5", 0.5, 1, START), ("/abs", 1.0, 1, START), ("a//b", 2.0, 1, START)],
    )
    sink = open_sink()
    sink.write([PARENT, odd], cursor=1)
    run = MlflowClient(uri).get_run(sink.load().run_ids["trial-1"])
    assert run.data.metrics == {"acc_5": 0.5, "__abs": 1.0, "_a__b": 2.0}
    assert {key: len(value) for key, value in run.data.params.items()} == {"l_ge": 6000, "__up": 1}
    assert len(run.data.tags["why_"]) == 8000
    assert run.info.run_name == "n" * 250


def test_a_write_that_does_not_know_its_parent_is_refused(open_sink: Open) -> None:
    with pytest.raises(ValueError, match="experiment"):
        open_sink().write([FIRST], cursor=1)


RECORDER = """
import sys
from tests_of_the_sink import FIRST, PARENT, START, MlflowSink, mlflow_bulk, replace
uri, name, last, bulk = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "True"
mlflow_bulk.knows_this_mlflow = lambda: bulk
sink = MlflowSink(tracking_uri=uri, experiment_name=name, experiment_id="id-" + name)
cursor = sink.load().cursor or 0
for n in range(max(cursor - 3, 0), last):
    begun = replace(FIRST, key=f"trial-{n}", name=f"trial-{n}")
    last_point = [("accuracy", 0.875, 3, START)]
    ended = replace(FIRST, key=f"trial-{n - 1}", status="FINISHED", end_ms=START + 9, metrics=last_point)
    sink.write([PARENT, begun, ended] if n else [PARENT, begun], n + 1)
    print(n, flush=True)
"""


def test_a_recorder_killed_at_any_moment_leaves_each_run_and_point_once(
    uri: str, name: str, tmp_path: Path
) -> None:
    (tmp_path / "tests_of_the_sink.py").symlink_to(__file__)
    command = [sys.executable, "-c", RECORDER, uri, name, "30", str(mlflow_bulk.knows_this_mlflow())]
    for writes in (4, 9, None):
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(tmp_path)}
        ) as recorder:
            assert recorder.stdout is not None
            for _ in range(writes or 60):
                if not recorder.stdout.readline():
                    break
            if writes:
                recorder.kill()
        if not writes:
            assert recorder.returncode == 0
    runs = {run.info.run_name: run for run in runs_of(uri, name)}
    assert set(runs) == {"digits", *(f"trial-{n}" for n in range(30))}
    assert len(runs_of(uri, name)) == 31
    for n in range(29):
        assert runs[f"trial-{n}"].info.status == "FINISHED"
        assert points(uri, runs[f"trial-{n}"].info.run_id, "accuracy") == [(1, 0.5), (2, 0.75), (3, 0.875)]


def test_the_bulk_rows_are_those_that_mlflows_client_writes(tmp_path: Path) -> None:
    bulk, plain = tmp_path / "bulk.db", tmp_path / "plain.db"
    sink = MlflowSink(tracking_uri=f"sqlite:///{bulk}", experiment_name="digits", experiment_id="id")
    sink.load()
    sink.write([PARENT, FIRST], cursor=1)
    ended, goes_on = replace(PARENT, status="FINISHED", end_ms=START + 99), replace(PARENT, status="RUNNING")
    sink.write([SECOND, SHORT, SUPERSEDED, ended], cursor=2)
    sink.write([goes_on], cursor=2)
    sink.close()

    client = MlflowClient(f"sqlite:///{plain}")
    experiment = client.create_experiment("digits", tags={"mlflow.experimentKind": "custom_model_development"})
    ids: dict[str, str] = {}
    for update in (PARENT, FIRST, SECOND, SHORT, SUPERSEDED, ended, goes_on):
        ours = {"mlflow.source.name": "regrow", "mlflow.source.type": "LOCAL", "mlflow.user": user()}
        ours |= {"regrow.key": update.key, "regrow.experiment_id": "id"}
        ours |= {} if update.parent else {"mlflow.parentRunId": ids["experiment"]}
        if update.key not in ids:
            run = client.create_run(experiment, update.start_ms, ours, run_name=update.name)
            ids[update.key] = run.info.run_id
        client.log_batch(
            ids[update.key],
            [Metric(key, value, at_ms, step) for key, value, step, at_ms in update.metrics],
            [Param(key, value) for key, value in update.params.items()],
            [RunTag(key, value) for key, value in update.tags.items()],
        )
        if update.status == "RUNNING":
            client.update_run(ids[update.key], "RUNNING")
        elif update.status is not None:
            client.set_terminated(ids[update.key], update.status, update.end_ms)
        if update.deleted:
            client.set_tag(ids[update.key], "regrow.superseded", "true")
            client.delete_run(ids[update.key])
        client.set_tag(ids["experiment"], "regrow.cursor", "2")
    rows = tables(bulk)
    assert rows == tables(plain)
    assert {name: len(rows[name]) for name in ("runs", "params", "metrics", "latest_metrics")} == {
        "runs": 4,
        "params": 4,
        "metrics": 9,
        "latest_metrics": 6,
    }


def tables(database: Path) -> dict[str, list[str]]:
    """Every row of every table; run ids are replaced by their keys, clock times by whether they are set."""
    with closing(sqlite3.connect(database)) as db:
        keys = dict(db.execute("select run_uuid, value from tags where key = 'regrow.key'").fetchall())
        found: dict[str, list[str]] = {}
        for (table,) in db.execute("select name from sqlite_master where type = 'table'").fetchall():
            cursor = db.execute(f"select * from {table}")
            columns = [column[0] for column in cursor.description]
            rows = []
            for row in cursor:
                values = dict(zip(columns, row, strict=True))
                for clock in ("creation_time", "last_update_time", "deleted_time"):
                    if clock in values:
                        values[clock] = values[clock] is not None
                text = repr(values)
                for run_id, key in keys.items():
                    text = text.replace(run_id, key)
                rows.append(text)
            found[table] = sorted(rows)
    return found


def test_a_table_that_is_not_as_known_leads_to_the_public_client(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mlflow_bulk.knows_this_mlflow()
    known = dict(mlflow_bulk._KNOWN)
    columns, keys = known[mlflow_bulk._RUNS]
    monkeypatch.setattr(mlflow_bulk, "_KNOWN", {**known, mlflow_bulk._RUNS: (columns - {"user_id"}, keys)})
    assert not mlflow_bulk.knows_this_mlflow()


def test_the_ui_of_a_running_server_finds_what_was_written_in_bulk_beside_it(
    server: Server, name: str
) -> None:
    sink = MlflowSink(tracking_uri=server.database_uri, experiment_name=name, experiment_id=name)
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
    parent = sink.load().run_ids["experiment"]
    found = client.search_runs(
        [experiment],
        f"tags.mlflow.parentRunId = '{parent}' and metrics.accuracy > 0.15",
        order_by=["metrics.accuracy DESC"],
    )
    assert [run.info.run_name for run in found] == ["trial-4", "trial-3", "trial-2"]
    assert [run.data.metrics["accuracy"] for run in found] == [0.4, 0.3, 0.2]
    sink.close()


def test_two_runs_of_one_key_become_one_when_the_sink_is_opened(server: Server, name: str) -> None:
    sink = MlflowSink(tracking_uri=server.uri, experiment_name=name, experiment_id=name)
    sink.load()
    sink.write([PARENT, FIRST], cursor=1)
    [trial] = [run for run in runs_of(server.uri, name) if run.info.run_name == "digits-0001"]
    tags = {key: value for key, value in trial.data.tags.items() if key != "mlflow.runName"}
    MlflowClient(server.uri).create_run(
        trial.info.experiment_id, START, tags, "digits-0001"
    )  # the lost answer
    assert sink.load().run_ids["trial-1"] == trial.info.run_id
    sink.close()
    assert len(runs_of(server.uri, name, ViewType.ACTIVE_ONLY)) == 2


def test_a_server_that_went_away_is_told_within_seconds_and_recorded_to_when_it_is_back(
    server: Server, name: str
) -> None:
    sink = MlflowSink(tracking_uri=server.uri, experiment_name=name, experiment_id=name)
    sink.load()
    sink.write([PARENT, FIRST], cursor=1)
    server.stop()
    try:
        began = time.monotonic()
        with pytest.raises(SinkUnavailable, match="MLFLOW_TRACKING_URI"):
            sink.write([SECOND, SHORT], cursor=2)
        with pytest.raises(SinkUnavailable):
            MlflowSink(tracking_uri=server.uri, experiment_name=name, experiment_id=name).load()
        assert time.monotonic() - began < 5
    finally:
        server.start()
    with pytest.raises(SinkUnavailable, match=r"load\(\)"):
        sink.write([SECOND], cursor=2)
    assert sink.load().cursor == 1
    sink.write([SECOND, SHORT], cursor=2)
    assert sink.load().cursor == 2
    sink.close()
    assert {run.info.run_name: run.info.status for run in runs_of(server.uri, name)} == {
        "digits": "RUNNING",
        "digits-0001": "FINISHED",
        "digits-0002": "FINISHED",
    }


def test_a_database_deleted_while_it_is_recorded_to_is_written_anew(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "mlflow.db"
    sink = MlflowSink(tracking_uri=f"sqlite:///{file}", experiment_name="digits", experiment_id="id")
    sink.load()
    sink.write([PARENT, FIRST], cursor=1)
    file.unlink()
    with pytest.raises(SinkUnavailable):
        sink.write([SECOND], cursor=2)
    assert sink.load().cursor is None
    sink.write([PARENT, FIRST, SECOND], cursor=2)
    assert sink.load().cursor == 2
    sink.close()


def test_a_database_of_another_mlflow_is_refused_in_its_own_words(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    SqlAlchemyStore(uri, str(tmp_path))  # type: ignore[no-untyped-call]  # mlflow's
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as db:
        db.execute("update alembic_version set version_num = '1bd49d398cd2'")
        db.commit()
    with pytest.raises(SinkRefused, match="mlflow db upgrade"):
        MlflowSink(tracking_uri=uri, experiment_name="digits", experiment_id="id").load()


class NotMlflow(BaseHTTPRequestHandler):
    """Answers everything with a page, except to those it does not know."""

    def do_GET(self) -> None:
        self.send_response(200 if self.headers["Authorization"] is None else 401)
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
        f"http://ann:secret@127.0.0.1:{ports[2]}": "answers 401.*MLFLOW_TRACKING_TOKEN",
        f"postgresql+psycopg2://ann:secret@127.0.0.1:{ports[0]}/mlflow": "does not answer",
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
    for uri in (server.uri, server.database_uri, f"sqlite:///{tmp_path}/not/yet/mlflow.db", "databricks"):
        check(uri, timeout_s=5.0)


def test_neither_the_check_nor_the_sink_imports_mlflow_before_it_is_opened() -> None:
    code = "import sys, regrow.infra.mlflow_sink; print({'mlflow', 'sqlalchemy'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
