"""The user's own MLflow calls in a trainable, with the real library: into the trial's run, whatever a script does, and nowhere else."""

from __future__ import annotations

import logging
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import mlflow
import numpy as np
import pytest
from matplotlib.figure import Figure
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from regrow.infra.mlflow_sink import MlflowSink, RunUpdate
from regrow.tasks.mlflow_calls import nowhere, own_calls
from regrow.tasks.mlflow_port import Tracked
from tests.system.mlflow_recorded import Server

PARENT = RunUpdate(key="experiment", name="digits", start_ms=1, parent=True)
TRIAL = RunUpdate(key="trial-0000", name="trial-0000", start_ms=1, params={"C": "0.5", "max_iter": "9"}, status="RUNNING")


@dataclass
class Recorded:
    """An experiment with one trial in a real MLflow: the port, over the real sink."""

    tracking_uri: str
    artifact_root: str | None
    sink: MlflowSink
    away: str | None = None
    known: tuple[str, ...] = ()
    key: str = "trial-0000"
    superseded: tuple[tuple[str, int], ...] = ()

    def run_of(self, trial: int, attempt: int) -> tuple[Tracked | None, str | None]:
        """See Records."""
        run_id = self.sink.run_id(self.key) if (trial, attempt) == (0, 1) and self.away is None else None
        if run_id is None:
            return None, self.away
        tracked = Tracked(
            run_id=run_id, experiment_id=self.sink.mlflow_experiment_id, reported=self.known, superseded=self.superseded
        )
        return tracked, self.away

    @property
    def trial(self) -> Run:
        """The trial's run as MLflow has it."""
        run_id = self.sink.run_id(self.key)
        assert run_id is not None
        return MlflowClient(self.tracking_uri).get_run(run_id)

    def runs(self) -> dict[str, Run]:
        """All runs of all MLflow experiments, by name."""
        client = MlflowClient(self.tracking_uri)
        found = client.search_runs([e.experiment_id for e in client.search_experiments()])
        return {str(run.info.run_name): run for run in found}

    def points(self, metric: str) -> list[tuple[int, float]]:
        """Of the trial."""
        history = MlflowClient(self.tracking_uri).get_metric_history(self.trial.info.run_id, metric)
        return [(point.step, point.value) for point in history]


def written(uri: str, root: str | None) -> Recorded:
    sink = MlflowSink(tracking_uri=uri, experiment_name="digits", experiment_id="id", artifact_root=root)
    sink.load()
    sink.write([PARENT, TRIAL], cursor=1)
    return Recorded(tracking_uri=uri, artifact_root=root, sink=sink)


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    """In a user's folder, into which nothing is to be written."""
    found = written(f"sqlite:///{tmp_path}/services/mlflow.db", str(tmp_path / "artifacts"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    yield found
    found.sink.close()
    assert os.listdir(tmp_path / "work") == []
    assert mlflow.active_run() is None
    assert not mlflow.is_tracking_uri_set()  # type: ignore[no-untyped-call]  # mlflow's


@pytest.fixture
def inside(recorded: Recorded, tmp_path: Path) -> Iterator[Recorded]:
    """Within the trial."""
    with own_calls(recorded, (0, 1), tmp_path / "scratch", reported=lambda: {"accuracy"}):
        yield recorded
    run = recorded.trial
    assert (run.info.status, run.info.end_time) == ("RUNNING", None), "how it ends is the recorder's to say"


def test_plain_calls_go_to_the_trials_run_from_any_thread(inside: Recorded) -> None:
    mlflow.log_metric("own", 1.5, step=3)
    mlflow.set_tag("mine", "yes")
    thread = threading.Thread(target=lambda: mlflow.log_metric("other", 2.0))
    thread.start()
    thread.join()
    mlflow.log_text("hello", "texts/a.txt")
    run = inside.trial
    assert run.data.metrics == {"own": 1.5, "other": 2.0}
    assert run.data.tags["mine"] == "yes"
    assert run.info.artifact_uri.startswith(str(inside.artifact_root))
    assert (Path(run.info.artifact_uri) / "texts" / "a.txt").read_text() == "hello"
    assert set(inside.runs()) == {"digits", "trial-0000"}


def test_a_scripts_own_start_run_is_the_trials_run(inside: Recorded) -> None:
    mlflow.set_experiment("something else")
    for number in range(2):
        with mlflow.start_run(run_name="try", tags={"number": str(number)}, description="mine") as run:
            assert run.info.run_id == inside.trial.info.run_id
            mlflow.log_metric("own", number, step=number)
    mlflow.start_run()
    with pytest.raises(Exception, match="already active"):
        mlflow.start_run()
    mlflow.end_run()
    mlflow.end_run("FAILED")
    with pytest.raises(RuntimeError, match="of the user's"), mlflow.start_run():
        raise RuntimeError("of the user's")
    assert inside.trial.data.tags.items() >= {"number": "1", "run_name": "try", "mlflow.note.content": "mine"}.items()
    assert inside.points("own") == [(0, 0.0), (1, 1.0)]
    assert set(inside.runs()) == {"digits", "trial-0000"}
    assert MlflowClient().get_experiment_by_name("something else") is None


def test_a_nested_run_is_a_child_of_the_trials(inside: Recorded) -> None:
    with mlflow.start_run(nested=True, run_name="fold 1"):
        mlflow.log_metric("own", 1.0)
    child = inside.runs()["fold 1"]
    assert child.data.tags["mlflow.parentRunId"] == inside.trial.info.run_id
    assert child.info.experiment_id == inside.trial.info.experiment_id
    assert child.info.status == "FINISHED"
    current = mlflow.active_run()
    assert current is not None
    assert current.info.run_id == inside.trial.info.run_id


def test_what_the_trial_has_already_is_kept_and_the_users_stands_beside_it(
    inside: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    mlflow.log_param("C", "0.5")
    for value in ("0.7", "0.7", "0.9"):
        mlflow.log_param("C", value)
    mlflow.log_params({"own": 1, "max_iter": 10})
    mlflow.log_metric("accuracy", 0.5, step=7)
    run = inside.trial
    assert run.data.params == {"C": "0.5", "max_iter": "9", "logged.C": "0.7", "own": "1", "logged.max_iter": "10"}
    assert run.data.metrics == {"logged.accuracy": 0.5}
    assert [r.getMessage() for r in caplog.records if "third value" in r.getMessage()] == [
        "the parameter 'C' was logged with a third value, which MLflow cannot hold"
    ]


def test_a_call_that_is_wrong_still_says_so(inside: Recorded) -> None:
    with pytest.raises(MlflowException, match="Names may only contain"):
        mlflow.log_metric("what?", 1.0)
    assert inside.trial.data.metrics == {}


@pytest.mark.filterwarnings("ignore")  # scikit-learn's and MLflow's of each other
def test_autologging_goes_to_the_trials_run_with_its_model(inside: Recorded) -> None:
    from sklearn.linear_model import LogisticRegression

    mlflow.autolog(silent=True)
    try:
        for c in (0.5, 0.25):
            LogisticRegression(C=c, max_iter=9).fit(np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([0, 0, 1, 1]))
    finally:
        mlflow.autolog(disable=True)
    run = inside.trial
    assert run.data.metrics["training_accuracy_score"] == 1.0
    assert run.data.params.items() >= {"C": "0.5", "logged.C": "0.25", "max_iter": "9", "solver": "lbfgs"}.items()
    models = MlflowClient().search_logged_models([run.info.experiment_id])
    assert {model.source_run_id for model in models} == {run.info.run_id}
    assert models[0].artifact_location.startswith(str(inside.artifact_root))
    assert set(inside.runs()) == {"digits", "trial-0000"}


def test_a_server_of_the_users_own_gets_what_is_logged_there(inside: Recorded, tmp_path: Path) -> None:
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/own.db")
    with mlflow.start_run(run_name="elsewhere"):
        mlflow.log_metric("own", 1.0)
    assert inside.trial.data.metrics == {}
    assert MlflowClient().search_runs(["0"])[0].info.run_name == "elsewhere"


def test_calls_in_a_module_that_is_only_looked_at_leave_nothing(recorded: Recorded) -> None:
    with nowhere():
        mlflow.set_experiment("something else")
        mlflow.log_metric("own", 1.0)
    assert set(recorded.runs()) == {"digits", "trial-0000"}
    assert recorded.trial.data.metrics == {}


@pytest.mark.parametrize("why", ["the server is away", "a file of another machine"])
def test_without_its_run_the_trial_goes_on_and_says_why(
    recorded: Recorded, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if "server" in why:
        recorded.away = why
        monkeypatch.setattr("regrow.tasks.mlflow_calls.TROUBLE_SECONDS", 0.0)
    place = recorded.tracking_uri
    if "file" in why:
        recorded.tracking_uri = f"sqlite:///{tmp_path}/not/here.db"
    with own_calls(recorded, (0, 1), tmp_path / "scratch", reported=tuple):
        mlflow.log_metric("own", 1.0)
        mlflow.log_text("hello", "a.txt")
    assert "what the trainable itself logs to MLflow is lost in this attempt: " in caplog.text
    assert ("the server is away" if "server" in why else "MLFLOW_TRACKING_URI") in caplog.text
    recorded.tracking_uri = place
    assert recorded.trial.data.metrics == {}
    assert not (tmp_path / "not").exists()


@pytest.mark.filterwarnings("ignore")  # MLflow's, about the model
def test_a_server_that_goes_away_meanwhile_costs_what_is_logged_and_not_the_trial(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.chdir(tmp_path)
    server = Server(tmp_path)
    server.start()
    try:
        recorded = written(server.uri, None)
        with own_calls(recorded, (0, 1), tmp_path / "scratch", reported=tuple):
            mlflow.log_metric("own", 1.0, step=1)
            mlflow.get_run(recorded.trial.info.run_id)  # which has it written: its first point waits for a moment
            mlflow.set_tag("kept", "yes")
            (tmp_path / "there.txt").write_text("there")
            server.stop()
            with caplog.at_level(logging.WARNING, "regrow.trial"), dead(server.port) as tried:
                for step in (2, 3):
                    mlflow.log_metric("own", 1.0, step=step)
                mlflow.log_param("note", "a")
                everything(tmp_path)
            assert len(tried) == 1, "one finds out that it is away; the others do not wait for it"
            server.start()
            mlflow.log_metric("child's", 1.0, run_id=LOST[0])  # MLflow has never heard of it
        assert recorded.points("own") == [(1, 1.0)]
        assert recorded.trial.data.tags["kept"] == "yes"
        assert set(recorded.runs()) == {"digits", "trial-0000"}
    finally:
        server.stop()
    said = [record.getMessage().partition(" that the trainable logs to it meanwhile are lost: ") for record in caplog.records]
    kinds = [
        "the metrics, parameters and tags", "the artifacts", "the data sets", "the nested runs", "the models",
        "the registered versions of models",
    ]
    assert sorted(first for first, found, _ in said if found) == sorted(f"MLflow is away, and {kind}" for kind in kinds)


@contextmanager
def dead(port: int) -> Iterator[list[object]]:
    """Who listens there within the block hangs up at once; collects who called."""
    called: list[object] = []
    until = time.monotonic() + 30
    while True:
        try:
            listening = socket.create_server(("127.0.0.1", port))
            break
        except OSError:  # a process of the killed server's has not gone yet
            assert time.monotonic() < until
            time.sleep(0.05)
    with listening:
        listening.settimeout(0.1)
        ended = threading.Event()

        def answer() -> None:
            while not ended.is_set():
                with suppress(TimeoutError):
                    connection, who = listening.accept()
                    connection.close()
                    called.append(who)

        thread = threading.Thread(target=answer)
        thread.start()
        yield called
        ended.set()
        thread.join()


LOST: list[str] = []


def everything(folder: Path) -> None:
    """What a script may log, and what only it is to blame for."""
    from sklearn.dummy import DummyClassifier

    mlflow.log_text("hello", "a.txt")
    mlflow.log_dict({"a": 1}, "a.json")
    mlflow.log_artifact(str(folder / "there.txt"))
    mlflow.log_artifacts(str(folder), "all")
    mlflow.log_figure(Figure(), "figure.png")
    mlflow.log_table({"a": [1]}, "table.json")
    mlflow.log_input(mlflow.data.from_numpy(np.zeros(2)))  # type: ignore[attr-defined]  # mlflow's, made when it is asked for
    mlflow.set_tags({"b": 1})
    mlflow.delete_tag("kept")
    mlflow.log_metric("later", 1.0, synchronous=False).wait()  # type: ignore[union-attr]  # so it returns a future
    with mlflow.start_run():
        mlflow.log_metric("own", 3.0, step=3)
    with mlflow.start_run(nested=True, run_name="fold") as child:
        LOST.append(child.info.run_id)
        mlflow.log_metric("child's", 1.0)
        mlflow.log_text("hello", "a.txt")
        with mlflow.start_run(nested=True):
            mlflow.log_param("deeper", 1)
    mlflow.set_experiment("elsewhere")
    made = mlflow.sklearn.log_model(
        DummyClassifier(), name="dummy", pip_requirements=[], registered_model_name="dummy", step=1
    )
    assert made.model_uri.startswith("models:/")
    assert mlflow.register_model(made.model_uri, "dummy").name == "dummy"
    assert mlflow.active_run() is not None
    with pytest.raises(FileNotFoundError):
        mlflow.log_artifact(str(folder / "not there"))
    with pytest.raises(MlflowException, match="Invalid artifact path"):
        mlflow.log_text("hello", "../a.txt")
    with pytest.raises(MlflowException, match="Please specify value as a valid double"):
        mlflow.log_metric("own", "a word")  # type: ignore[arg-type]  # that is what is wrong


def test_points_of_a_name_that_is_reported_right_afterwards_do_not_stand_beside_the_reports(
    recorded: Recorded, tmp_path: Path
) -> None:
    reported = {"accuracy"}
    with own_calls(recorded, (0, 1), tmp_path / "scratch", reported=lambda: reported):
        for step in (1, 2):
            with mlflow.start_run():
                mlflow.log_metrics({"loss": 0.5, "own": 1.0, "accuracy": 0.1}, step=step)
                mlflow.log_text("which asks for the run", "a.txt")
            reported.add("loss")  # as `trial.report` does
        run = mlflow.get_run(recorded.trial.info.run_id)
        assert run.data.metrics == {"logged.loss": 0.5, "own": 1.0, "logged.accuracy": 0.1}, "what is asked for is there"
    assert recorded.points("own") == [(1, 1.0), (2, 1.0)]
    assert recorded.points("logged.loss") == [(1, 0.5), (2, 0.5)]
    recorded.known = ("loss", "speed")
    with own_calls(recorded, (0, 1), tmp_path / "scratch", reported=tuple):
        mlflow.log_metrics({"speed": 3.0, "own": 2.0}, step=3)
        assert recorded.points("logged.speed") == [(3, 3.0)], "another trial has reported it: it does not wait"
        assert recorded.points("own")[-1] == (3, 2.0), "known from the attempt before"
        mlflow.log_metric("new", 1.0)
        until = time.monotonic() + 20
        with closing(sqlite3.connect(tmp_path / "services" / "mlflow.db")) as database:  # to ask MLflow would hurry it
            while not database.execute("select 1 from metrics where key = 'new'").fetchall():
                assert time.monotonic() < until, "it waits for the end"
                time.sleep(0.05)


def test_after_a_rewind_what_was_logged_until_the_checkpoint_is_in_the_run_that_goes_on(
    recorded: Recorded, tmp_path: Path
) -> None:
    with own_calls(recorded, (0, 1), tmp_path / "scratch", reported=lambda: {"accuracy"}):
        mlflow.log_params({"note": "a", "C": "7", "attempt": 1})
        mlflow.set_tags({"mine": "yes", "both": "first"})
        for step in range(6):
            mlflow.log_metrics({"own": float(step), "accuracy": 0.5}, step=step, timestamp=1000 + step)
    first = recorded.trial.info.run_id
    old = replace(TRIAL, tags={"regrow.superseded": "true"}, status="KILLED", deleted=True)
    recorded.sink.write([old, replace(TRIAL, key="trial-0000.1")], cursor=2)
    recorded.key, recorded.known, recorded.superseded = "trial-0000.1", ("accuracy",), ((first, 1003),)
    for _ in range(2):  # twice, as in a later attempt that goes on with the same run
        with own_calls(recorded, (0, 1), tmp_path / "scratch", reported=lambda: {"accuracy"}):
            mlflow.log_params({"note": "a", "attempt": 2})
            mlflow.set_tag("both", "second")
            mlflow.log_metric("own", 40.0, step=4, timestamp=2000)
    run = recorded.trial
    assert run.info.run_id != first
    assert run.data.params == {"note": "a", "C": "0.5", "logged.C": "7", "attempt": "2", "max_iter": "9"}
    assert (run.data.tags["mine"], run.data.tags["both"]) == ("yes", "second")
    assert "regrow.superseded" not in run.data.tags
    assert sorted(recorded.points("own")) == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0)]
    assert len(recorded.points("logged.accuracy")) == 4
