"""The MLflow sink against real databases and a real server: each point once, whatever is cut or
repeated.
"""

import multiprocessing
import multiprocessing.forkserver
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from multiprocessing.context import BaseContext
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag, ViewType

from regrow.flows.recording.media import artifact_path
from regrow.infra.mlflow import bulk
from regrow.infra.mlflow.sink import MlflowSink
from regrow.infra.mlflow.updates import RunUpdate, Target, legal_name, user
from regrow.tasks.media.items import Item
from regrow.tasks.ports.store import Missing
from tests.system import mlflow_recorded
from tests.system.mlflow_recorded import (
    FIRST,
    PARENT,
    SECOND,
    SHORT,
    START,
    SUPERSEDED,
    Server,
    elsewhere,
    everything,
    name,
    points,
    runs_of,
    server,
)

__all__ = ["elsewhere", "name", "server"]  # fixtures


@pytest.fixture(params=["bulk", pytest.param("client", marks=pytest.mark.nightly), "server"])
def uri(request: pytest.FixtureRequest, server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every way of writing: in bulk, by the client to the server, and by night by the client into the
    same sqlite file.
    """
    if request.param == "client":
        monkeypatch.setattr(bulk, "knows_this_mlflow", lambda: False)
    return server.uri if request.param == "server" else server.database_uri


Open = Callable[[], MlflowSink]


@pytest.fixture
def open_sink(uri: str, name: str, tmp_path: Path) -> Iterator[Open]:
    """Opens a sink as a new recorder would: knowing nothing but the experiment."""
    opened: list[MlflowSink] = []

    def open_one() -> MlflowSink:
        sink = MlflowSink(
            Target(
                tracking_uri=uri,
                experiment_name=name,
                experiment_id=f"id-{name}",
                artifact_root=str(tmp_path),
            )
        )
        sink.load()
        opened.append(sink)
        return sink

    yield open_one
    for sink in opened:
        sink.close()


def test_a_trial_is_recorded_with_all_that_its_updates_say(
    open_sink: Open, uri: str, name: str
) -> None:
    sink = open_sink()
    sink.write([PARENT, FIRST], cursor=1)
    sink.write([SECOND], cursor=2)

    again = open_sink()
    assert again.load() == 2
    run = MlflowClient(uri).get_run(str(again.run_id("trial-1")))
    assert (run.info.run_name, run.info.status, run.info.user_id) == (
        "digits-0001",
        "FINISHED",
        user(),
    )
    assert (run.info.start_time, run.info.end_time) == (START + 5, START + 40)
    assert run.data.params == {"lr": "0.1", "optimizer/name": "sgd"}
    assert run.data.tags.items() >= {
        ("regrow.state", "done"),
        ("regrow.node", "a"),
        ("mlflow.parentRunId", again.run_id("experiment")),
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


def test_media_of_any_name_are_artifacts_of_the_run_and_one_that_is_gone_is_told(
    open_sink: Open, uri: str, name: str, tmp_path: Path
) -> None:
    items = [
        Item(trial=0, attempt=1, count=1, step=7, kind="text", size=1, name=title, suffix=".txt")
        for title in ("val/a b.c", "#?%:*<>|&'\"\\~;!", "\u4e2d\u6587", "gone")
    ]

    def read(item: Item) -> bytes:
        if item.name == "gone":
            raise Missing(item.key)
        return item.name.encode()

    media = {artifact_path(item): partial(read, item) for item in items}
    sink = open_sink()
    sink.write([PARENT, replace(FIRST, media=media)], 1)
    (found,) = [run for run in runs_of(uri, name) if run.data.tags["regrow.key"] == FIRST.key]
    client = MlflowClient(uri)
    paths = [
        file.path
        for folder in ("media", "media/val")
        for below in client.list_artifacts(found.info.run_id, folder)
        for file in client.list_artifacts(found.info.run_id, below.path)
        if not file.is_dir
    ]
    read_back = {
        Path(client.download_artifacts(found.info.run_id, path, str(tmp_path))).read_text()
        for path in paths
    }
    assert read_back == {item.name for item in items[:3]}
    assert [trouble.partition(" could")[0] for trouble in sink.troubles] == [
        "media/gone/step-000007.txt"
    ]


def test_an_older_point_that_arrives_late_is_kept_and_does_not_become_the_latest(
    open_sink: Open, uri: str, name: str
) -> None:
    sink = open_sink()
    sink.write([PARENT, SECOND], cursor=1)
    sink.write([FIRST], cursor=2)
    run = MlflowClient(uri).get_run(str(sink.run_id("trial-1")))
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


def test_a_run_that_is_superseded_later_can_be_renamed(
    open_sink: Open, uri: str, name: str
) -> None:
    sink = open_sink()
    sink.write([PARENT, FIRST], cursor=1)
    gone = replace(
        FIRST, tags={"mlflow.runName": "digits-0001 (superseded)"}, status="KILLED", deleted=True
    )
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
    assert again.load() == 2
    assert {
        run.info.run_name: run.info.status for run in runs_of(uri, name, ViewType.DELETED_ONLY)
    } == {
        "digits": "RUNNING",
        "digits-0001": "FINISHED",
    }


def test_an_experiment_that_goes_on_with_other_settings_is_running_again_with_its_first_ones(
    open_sink: Open, uri: str, name: str
) -> None:
    ended, again = replace(PARENT, status="KILLED", end_ms=START + 50), {"trials": "4", "new": "1"}
    open_sink().write([ended], cursor=1)
    open_sink().write([replace(PARENT, status="RUNNING", params=again)], cursor=2)
    [run] = runs_of(uri, name)
    assert run.info.status == "RUNNING"
    assert run.data.params == {"trials": "3", "new": "1"}  # MLflow refuses to change a parameter


def test_runs_of_another_experiment_of_the_same_name_are_left_alone(
    open_sink: Open, uri: str, name: str
) -> None:
    open_sink().write([PARENT, FIRST], cursor=5)
    other = MlflowSink(Target(tracking_uri=uri, experiment_name=name, experiment_id="another"))
    assert (other.load(), other.run_id("trial-1")) == (None, None)
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
    run = MlflowClient(uri).get_run(str(sink.run_id("trial-1")))
    assert run.data.metrics == {
        legal_name("acc@5"): 0.5,
        legal_name("/abs"): 1.0,
        legal_name("a//b"): 2.0,
    }
    assert {key: len(value) for key, value in run.data.params.items()} == {
        "läge": 6000,
        legal_name("../up"): 1,
    }
    assert len(run.data.tags[legal_name("why?")]) == 8000
    assert run.info.run_name == "n" * 250


def test_a_write_that_does_not_know_its_parent_is_refused(open_sink: Open) -> None:
    with pytest.raises(ValueError, match="experiment"):
        open_sink().write([FIRST], cursor=1)


@pytest.fixture(scope="module")
def recorders() -> Iterator[BaseContext]:
    """Makes processes of one that has imported MLflow: each would take 2 s of CPU for that."""
    multiprocessing.set_forkserver_preload(
        [mlflow_recorded.__name__, "mlflow.store.tracking.sqlalchemy_store"]
    )
    yield multiprocessing.get_context("forkserver")
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined] # it would stay as long as pytest


def test_a_recorder_killed_at_any_moment_leaves_each_run_and_point_once(
    uri: str, name: str, recorders: BaseContext
) -> None:
    for writes in (4, 9, None):
        end, other = recorders.Pipe(duplex=False)
        recorder = recorders.Process(  # type: ignore[attr-defined] # of each context
            target=mlflow_recorded.record, args=(other, uri, name, bulk.knows_this_mlflow())
        )
        recorder.start()
        other.close()
        with suppress(EOFError):  # it has written all
            for _ in range(writes or 60):
                end.recv()
        if writes:
            recorder.kill()
        recorder.join()
        assert writes or recorder.exitcode == 0
    runs = {run.info.run_name: run for run in runs_of(uri, name)}
    assert set(runs) == {"digits", *(f"trial-{n}" for n in range(30))}
    assert len(runs_of(uri, name)) == 31
    for n in range(29):
        assert runs[f"trial-{n}"].info.status == "FINISHED"
        assert points(uri, runs[f"trial-{n}"].info.run_id, "accuracy") == [
            (1, 0.5),
            (2, 0.75),
            (3, 0.875),
        ]


def test_the_bulk_rows_are_those_that_mlflows_client_writes(tmp_path: Path) -> None:
    bulk, plain = tmp_path / "bulk.db", tmp_path / "plain.db"
    sink = MlflowSink(
        Target(tracking_uri=f"sqlite:///{bulk}", experiment_name="digits", experiment_id="id")
    )
    sink.load()
    sink.write([PARENT, FIRST], cursor=1)
    ended, goes_on = (
        replace(PARENT, status="FINISHED", end_ms=START + 99),
        replace(PARENT, status="RUNNING"),
    )
    sink.write([SECOND, SHORT, SUPERSEDED, ended], cursor=2)
    sink.write([goes_on], cursor=2)
    sink.close()

    client = MlflowClient(f"sqlite:///{plain}")
    experiment = client.create_experiment(
        "digits", tags={"mlflow.experimentKind": "custom_model_development"}
    )
    ids: dict[str, str] = {}
    for update in (PARENT, FIRST, SECOND, SHORT, SUPERSEDED, ended, goes_on):
        ours = {
            "mlflow.source.name": "regrow",
            "mlflow.source.type": "LOCAL",
            "mlflow.user": user(),
        }
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
    """Every row of every table; run ids are replaced by their keys, clock times by whether they are
    set.
    """
    with closing(sqlite3.connect(database)) as db:
        keys = dict(
            db.execute("select run_uuid, value from tags where key = 'regrow.key'").fetchall()
        )
        found: dict[str, list[str]] = {}
        for (table,) in db.execute(
            "select name from sqlite_master where type = 'table'"
        ).fetchall():
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


def test_a_table_that_is_not_as_known_leads_to_the_public_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert bulk.knows_this_mlflow()
    known = dict(bulk._KNOWN)
    columns, keys = known[bulk._RUNS]
    monkeypatch.setattr(bulk, "_KNOWN", {**known, bulk._RUNS: (columns - {"user_id"}, keys)})
    assert not bulk.knows_this_mlflow()
