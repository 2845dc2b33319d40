"""A training's own MLflow calls, with the real library: below the trial's run, whatever a script
does, and nowhere else.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import mlflow
import numpy as np
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.tracking import fluent

from regrow.infra.mlflow.database import make_sure_of
from regrow.infra.mlflow.in_trial import Tracked, discard_mlflow_calls, own_calls
from regrow.infra.mlflow.in_trial_runs import end_left
from regrow.infra.mlflow.sink import MlflowSink
from regrow.infra.mlflow.updates import RunUpdate, Target
from regrow.tasks.ports.messages import RecordsAway
from tests.system.mlflow_recorded import Server

PARENT = RunUpdate(key="experiment", name="digits", start_ms=1, parent=True)
TRIAL = RunUpdate(
    key="trial-0000",
    name="trial-0000",
    start_ms=1,
    params={"C": "0.5"},
    metrics=[("accuracy", 0.25, 1, 1)],
    status="RUNNING",
)


@dataclass
class Recorded:
    """An experiment with one trial in a real MLflow: the source, over the real sink."""

    tracking_uri: str
    artifact_root: str | None
    sink: MlflowSink
    away: str | None = None
    key: str = "trial-0000"

    def run_of(self, trial: int, attempt: int) -> tuple[Tracked | None, str | None]:
        """See Source."""
        run_id = self.sink.run_id(self.key) if trial == 0 and self.away is None else None
        if run_id is None:
            return None, self.away
        place = self.sink.mlflow_experiment_id
        return Tracked(run_id=run_id, experiment_id=place, experiment_name="digits", id="id"), None

    @property
    def trial(self) -> Run:
        """The trial's run as MLflow has it."""
        run_id = self.sink.run_id(self.key)
        assert run_id is not None
        return MlflowClient(self.tracking_uri).get_run(run_id)

    def runs(self) -> list[Run]:
        """All runs of all MLflow experiments but the recorder's, first to last."""
        client = MlflowClient(self.tracking_uri)
        places = [e.experiment_id for e in client.search_experiments()]
        found = client.search_runs(places, order_by=["attributes.start_time ASC"])
        return [run for run in found if "regrow.key" not in run.data.tags]

    def below(self) -> list[Run]:
        """Those below the trial's run."""
        return [
            run
            for run in self.runs()
            if run.data.tags.get("mlflow.parentRunId") == self.trial.info.run_id
        ]

    def points(self, run: Run, metric: str) -> list[tuple[int, float]]:
        """Steps and values."""
        history = MlflowClient(self.tracking_uri).get_metric_history(run.info.run_id, metric)
        return [(point.step, point.value) for point in history]


def written(uri: str, root: str | None) -> Recorded:
    sink = MlflowSink(
        Target(tracking_uri=uri, experiment_name="digits", experiment_id="id", artifact_root=root)
    )
    sink.load()
    sink.write([PARENT, TRIAL], cursor=1)
    return Recorded(tracking_uri=uri, artifact_root=root, sink=sink)


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    """In a user's folder, into which nothing is to be written."""
    found = written(f"sqlite:///{tmp_path}/services/mlflow.db", str(tmp_path / "artifacts"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    # what `set_experiment` leaves in a process
    monkeypatch.setattr(fluent, "_active_experiment_id", None)
    yield found
    os.environ.pop("MLFLOW_EXPERIMENT_ID", None)
    found.sink.close()
    assert os.listdir(tmp_path / "work") == []
    assert mlflow.active_run() is None
    assert not mlflow.is_tracking_uri_set()  # type: ignore[no-untyped-call]  # mlflow's


@contextmanager
def attempt(recorded: Recorded, tmp_path: Path, number: int = 1) -> Iterator[None]:
    """Within an attempt of the trial, which reports its accuracy."""
    with own_calls(recorded, (0, number), tmp_path / "scratch", reported=lambda: {"accuracy"}):
        yield


def log_in_a_child() -> None:
    mlflow.log_metric("of a child", 3.0)


def test_plain_calls_go_below_the_trials_run_from_threads_and_children_too(
    recorded: Recorded, tmp_path: Path
) -> None:
    with attempt(recorded, tmp_path):
        mlflow.log_metric("own", 1.5, step=3)
        thread = threading.Thread(target=lambda: mlflow.log_metric("of a thread", 2.0))
        thread.start()
        thread.join()
        for child in (
            get_context("fork").Process(target=log_in_a_child),
            get_context("spawn").Process(target=log_in_a_child),
        ):
            child.start()
            child.join()
            assert child.exitcode == 0
        mlflow.log_text("hello", "texts/a.txt")
    first, *others = recorded.below()
    assert len(recorded.runs()) == 4
    assert [run.data.metrics for run in others] == [
        {"of a thread": 2.0},
        {"of a child": 3.0},
        {"of a child": 3.0},
    ]
    assert first.info.run_name == "attempt 1 of trial-0000"
    assert first.info.artifact_uri.startswith(str(recorded.artifact_root))
    assert (Path(first.info.artifact_uri) / "texts" / "a.txt").read_text() == "hello"
    assert {run.info.status for run in recorded.below()} == {"FINISHED"}, (
        "a thread ends none, a child that is forked neither"
    )
    assert (recorded.trial.info.status, recorded.trial.info.end_time) == ("RUNNING", None), (
        "how it ends is the recorder's to say"
    )


def test_the_trials_run_shows_what_was_logged_and_keeps_what_it_has(
    recorded: Recorded, tmp_path: Path
) -> None:
    with attempt(recorded, tmp_path):
        mlflow.log_params({"C": "7", "note": "a"} | {f"p{n}": n for n in range(130)})
        for step in (1, 2):
            mlflow.log_metrics(
                {"own": float(step), "accuracy": 0.75, "best_accuracy": 1.0}, step=step
            )
    trial, [own] = recorded.trial, recorded.below()
    assert trial.data.params == {"C": "0.5", "note": "a"} | {f"p{n}": str(n) for n in range(130)}
    assert trial.data.metrics == {"accuracy": 0.25, "own": 2.0}
    assert recorded.points(trial, "accuracy") == [(1, 0.25)], (
        "a metric that is logged and reported is not there twice"
    )
    assert recorded.points(own, "accuracy") == [(1, 0.75), (2, 0.75)]
    assert own.data.params["C"] == "7"


def test_a_script_is_as_it_is(recorded: Recorded, tmp_path: Path) -> None:
    with attempt(recorded, tmp_path):
        mlflow.set_experiment("mine")
        for number in range(2):
            with mlflow.start_run(
                run_name=f"try {number}", tags={"number": str(number)}, description="mine"
            ):
                mlflow.log_metric("own", number, step=number)
                with mlflow.start_run(nested=True, run_name="fold"):
                    mlflow.log_metric("of a fold", 1.0)
        with (
            pytest.raises(RuntimeError, match="of the user's"),
            mlflow.start_run(run_name="failed"),
        ):
            raise RuntimeError("of the user's")
    assert [run.info.run_name for run in recorded.below()] == ["try 0", "try 1", "failed"]
    assert recorded.below()[2].info.status == "FAILED"
    folds = [run for run in recorded.runs() if run.info.run_name == "fold"]
    assert [run.data.tags["mlflow.parentRunId"] for run in folds] == [
        run.info.run_id for run in recorded.below()[:2]
    ]
    mine = MlflowClient(recorded.tracking_uri).get_experiment_by_name("mine")
    assert mine is not None
    assert {run.info.experiment_id for run in recorded.runs()} == {mine.experiment_id}
    assert mine.artifact_location.startswith(str(recorded.artifact_root))
    assert recorded.trial.data.metrics == {"accuracy": 0.25, "own": 1.0}


def test_a_later_attempt_in_the_same_process_has_a_run_of_its_own(
    recorded: Recorded, tmp_path: Path
) -> None:
    for number in (1, 2):
        with attempt(recorded, tmp_path, number):
            mlflow.log_param("host", f"node-{number}")
            mlflow.log_metric("own", float(number), step=3 - number)
    first, second = recorded.below()
    assert (first.data.params, second.data.params) == ({"host": "node-1"}, {"host": "node-2"})
    assert recorded.trial.data.params["host"] == "node-1", "MLflow keeps the first"
    assert recorded.trial.data.metrics["own"] == 2.0, "of the last attempt"


@pytest.mark.parametrize("end", [None, 0, 3, "no data"])
def test_a_run_of_a_training_that_exits_has_failed_unless_with_success(
    recorded: Recorded, tmp_path: Path, end: object
) -> None:
    def train() -> None:
        mlflow.log_metric("own", 1.0)
        raise SystemExit(end)

    with pytest.raises(SystemExit), attempt(recorded, tmp_path):
        train()
    [run] = recorded.below()
    assert run.info.status == ("FAILED" if end else "FINISHED")


def test_what_killed_attempts_left_running_is_ended_with_the_session(
    recorded: Recorded, tmp_path: Path
) -> None:
    killed = os.fork()
    if killed == 0:
        with attempt(recorded, tmp_path):
            mlflow.set_experiment("mine")
            mlflow.log_metric("own", 1.0)
            os._exit(9)
    os.waitpid(killed, 0)
    assert [run.info.status for run in recorded.runs()] == ["RUNNING"]
    end_left(recorded.tracking_uri, "another")
    assert [run.info.status for run in recorded.runs()] == ["RUNNING"]
    end_left(recorded.tracking_uri, "id")
    assert [run.info.status for run in recorded.runs()] == ["KILLED"]
    assert recorded.trial.info.status == "RUNNING"


def test_after_a_kill_and_a_rewind_no_step_is_twice_in_a_run_and_nothing_stays_open(
    recorded: Recorded, tmp_path: Path
) -> None:
    killed = os.fork()
    if killed == 0:
        with attempt(recorded, tmp_path):
            for step in range(6):
                mlflow.log_metric("own", float(step), step=step)
            os._exit(9)
    os.waitpid(killed, 0)
    old = replace(TRIAL, tags={"regrow.superseded": "true"}, status="KILLED", deleted=True)
    recorded.sink.write([old, replace(TRIAL, key="trial-0000.1")], cursor=2)
    recorded.key = "trial-0000.1"
    with attempt(recorded, tmp_path, 2):
        for step in range(4, 7):
            mlflow.log_metric("own", step * 10.0, step=step)
    first, second = recorded.below()
    assert (first.info.status, second.info.status) == ("KILLED", "FINISHED")
    assert recorded.points(first, "own") == [(step, float(step)) for step in range(6)]
    assert recorded.points(second, "own") == [(4, 40.0), (5, 50.0), (6, 60.0)]
    assert recorded.points(recorded.trial, "own") == [(0, 60.0)]
    # as while it runs
    MlflowClient(recorded.tracking_uri).update_run(second.info.run_id, status="RUNNING")
    # one that was given up, and says something later
    with suppress(RuntimeError), attempt(recorded, tmp_path, 1):
        mlflow.log_metric("own", -1.0)
        raise RuntimeError
    assert [run.info.status for run in recorded.below()] == ["KILLED", "RUNNING", "FAILED"]
    assert recorded.trial.data.metrics["own"] == 60.0


@pytest.mark.filterwarnings("ignore")  # scikit-learn's and MLflow's of each other
def test_autologging_goes_below_the_trials_run_with_its_model(
    recorded: Recorded, tmp_path: Path
) -> None:
    from sklearn.linear_model import LogisticRegression

    with attempt(recorded, tmp_path):
        mlflow.autolog(silent=True)
        try:
            for c in (0.5, 0.25):
                LogisticRegression(C=c, max_iter=9).fit(
                    np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([0, 0, 1, 1])
                )
        finally:
            mlflow.autolog(disable=True)
    first, second = recorded.below()
    assert (first.data.params["C"], second.data.params["C"]) == ("0.5", "0.25")
    assert recorded.trial.data.metrics["training_accuracy_score"] == 1.0
    assert recorded.trial.data.params["solver"] == "lbfgs"
    models = MlflowClient(recorded.tracking_uri).search_logged_models([first.info.experiment_id])
    assert {model.source_run_id for model in models} == {first.info.run_id, second.info.run_id}
    assert models[0].artifact_location.startswith(str(recorded.artifact_root))


@pytest.mark.parametrize("choose", [True, False])
def test_a_server_of_the_users_own_gets_what_is_logged_there(
    recorded: Recorded, tmp_path: Path, choose: bool
) -> None:
    make_sure_of(f"sqlite:///{tmp_path}/own.db", None)
    mine = MlflowClient(f"sqlite:///{tmp_path}/own.db")
    try:
        with attempt(recorded, tmp_path):
            mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/own.db")
            if choose:
                mlflow.set_experiment("elsewhere")
            with mlflow.start_run(run_name="mine"):
                mlflow.log_metric("own", 1.0)
        place = mine.get_experiment_by_name("elsewhere" if choose else "digits")
        assert place is not None
        assert [run.info.run_name for run in mine.search_runs([place.experiment_id])] == ["mine"]
    finally:
        mlflow.set_tracking_uri(None)  # type: ignore[arg-type]  # as it was
    assert recorded.runs() == []


def test_calls_in_a_module_that_is_only_looked_at_leave_nothing_and_wait_for_no_migrations(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlflow.store.db.utils._initialize_tables", pytest.fail)
    with discard_mlflow_calls():
        mlflow.set_experiment("something")
        mlflow.set_experiment("something else")  # its id is none of ours
        mlflow.log_metric("own", 1.0)
        mlflow.log_text("hello", "a.txt")
    assert "MLFLOW_EXPERIMENT_ID" not in os.environ
    assert recorded.runs() == []
    with attempt(recorded, tmp_path):
        mlflow.log_metric("own", 1.0)
    [run] = recorded.below()
    assert run.info.experiment_id == recorded.trial.info.experiment_id, (
        "what it has chosen does not hold any longer"
    )


@pytest.mark.parametrize(
    "why",
    [
        "the server is away",
        "a file of another machine",
        "a server that this machine does not reach",
    ],
)
def test_without_its_run_the_trial_goes_on_and_says_why(
    recorded: Recorded,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    why: str,
) -> None:
    with attempt(recorded, tmp_path):
        mlflow.set_experiment("mine")  # as at the top of a module, once for all attempts
    monkeypatch.setattr("regrow.infra.mlflow.in_trial.TROUBLE_SECONDS", 0.0)
    place = recorded.tracking_uri
    if "file" in why:
        recorded.tracking_uri = f"sqlite:///{tmp_path}/not/here.db"
    elif "reach" in why:
        recorded.tracking_uri = "http://127.0.0.1:9"
    else:
        recorded.away = why
    with attempt(recorded, tmp_path, 2):
        mlflow.log_metric("own", 1.0)
        mlflow.log_text("hello", "a.txt")
    assert "what the training itself logs to MLflow is lost in this attempt: " in caplog.text
    assert ("the server is away" if recorded.away else "MLFLOW_TRACKING_URI") in caplog.text
    assert not (tmp_path / "not").exists()
    recorded.tracking_uri, recorded.away = place, None
    assert recorded.runs() == []
    with attempt(recorded, tmp_path, 3):
        mlflow.log_metric("own", 1.0)
    [run] = recorded.below()
    experiment = MlflowClient(place).get_experiment(run.info.experiment_id)
    assert experiment.name == "mine", "what it chose holds again"


def test_the_machines_load_is_in_the_trials_run(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.1")
    until = time.monotonic() + 60
    with own_calls(
        recorded, (0, 1), tmp_path / "scratch", reported=lambda: {"accuracy"}, system_metrics=True
    ):
        while not any(name.startswith("system/") for name in recorded.trial.data.metrics):
            assert time.monotonic() < until
            time.sleep(0.1)  # MLflow's thread tells nobody
    assert "SystemMetricsMonitor" not in {thread.name for thread in threading.enumerate()}
    assert recorded.runs() == []


def test_a_call_that_is_wrong_still_says_so(recorded: Recorded, tmp_path: Path) -> None:
    with (
        pytest.raises(MlflowException, match="Names may only contain"),
        attempt(recorded, tmp_path),
    ):
        mlflow.log_metric("what?", 1.0)
    assert [run.info.status for run in recorded.below()] == ["FAILED"]


def test_a_server_that_goes_away_costs_points_at_most_and_a_call_that_needs_it_ends_the_attempt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.chdir(tmp_path)
    server = Server(tmp_path)
    server.start()
    try:
        recorded = written(server.uri, None)
        with attempt(recorded, tmp_path):
            mlflow.log_metric("own", 1.0, step=1)
            mlflow.log_param("note", "a")
        [own] = recorded.below()
        assert (recorded.points(own, "own"), own.data.params) == ([(1, 1.0)], {"note": "a"})
        caplog.set_level(logging.WARNING, "regrow.trial")

        def train() -> None:
            mlflow.log_metric("own", 1.0, step=1)
            mlflow.flush_async_logging()
            server.stop()
            with dead(server.port) as called:
                # sent by the training's own thread, each of them would raise
                for step in range(2, 100):
                    mlflow.log_metric("own", 1.0, step=step)
                mlflow.flush_async_logging()
                assert called
                mlflow.log_text("hello", "a.txt")

        with (
            pytest.raises(RecordsAway, match="MLflow was away when the training called it"),
            attempt(recorded, tmp_path, 2),
        ):
            train()
        assert "what the training itself logged to MLflow may be incomplete" in caplog.text
        assert mlflow.active_run() is None
        server.start()
        with attempt(recorded, tmp_path, 3):
            mlflow.log_metric("own", 3.0)
        assert [run.info.status for run in recorded.below()] == ["FINISHED", "KILLED", "FINISHED"]
        assert recorded.points(recorded.below()[1], "own") == [(1, 1.0)]
    finally:
        server.stop()


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
        try:
            yield called
        finally:
            ended.set()
            thread.join()
