"""A whole experiment in MLflow: a script with autologging on two workers, one of which is killed; a
server with passwords.
"""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import yaml
from mlflow import MlflowClient
from mlflow.entities import Run, ViewType
from werkzeug.security import generate_password_hash

from regrow.flows.recording.catch_up import record_missing
from regrow.infra.mlflow.database import make_sure_of
from regrow.infra.state.places import Places
from tests.system.conftest import Desk, desk_in

AUTOLOG = """
import os, signal, time

import mlflow
mlflow.set_experiment("a script's own")
mlflow.autolog(silent=True)


def train(trial):
    import numpy as np
    from sklearn.linear_model import LogisticRegression

    x = np.random.default_rng(0).normal(size=(60, 3))
    y = (x[:, 0] > 0).astype(int)
    mlflow.log_params({"who": trial.number, "attempt": trial.attempt})
    for step in trial.steps():
        if step == 1 or trial.restored:
            model = LogisticRegression(C=trial.config["C"]).fit(x, y)
        print("step", step)
        mlflow.log_metric("own", 10 * trial.number + step, step=step)
        mlflow.log_text(str(step), f"steps/{step}.txt")
        trial.report({"score": trial.config["C"] + step}, checkpoint=lambda folder: (folder / "c").write_text("c"))
        if trial.number == 1 and trial.attempt == 1 and step == 3:
            time.sleep(1)  # the report is on its way
            os.kill(os.getpid(), signal.SIGKILL)
"""
GROUP = """
import os, time

import mlflow


def train(trial):
    rank = trial.world.rank
    with mlflow.start_run() as own:
        mlflow.log_param("rank", rank)
        mlflow.log_metric("of_rank", float(rank))
        parent, until = own.data.tags["mlflow.parentRunId"], time.monotonic() + 120
        wanted = {f"system/rank_{n}/cpu_utilization_percentage" for n in range(2)}
        while not wanted <= set(mlflow.MlflowClient().get_run(parent).data.metrics):
            assert time.monotonic() < until
            time.sleep(0.5)  # MLflow's threads tell nobody
    mlflow.start_run(run_name="left open")
    trial.report({"score": trial.config["C"]}, checkpoint=lambda folder: (folder / "c").write_text("c"))
"""
TRIALS = ("trial-0000", "trial-0001")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The experiment after its end."""

    desk: Desk
    places: Places
    client: MlflowClient
    said: str

    def all_runs(self, view: int = ViewType.ACTIVE_ONLY) -> dict[str, Run]:
        """Runs of all MLflow experiments by name."""
        everywhere = [e.experiment_id for e in self.client.search_experiments(ViewType.ALL)]
        return {
            str(run.info.run_name): run
            for run in self.client.search_runs(everywhere, run_view_type=view)
        }

    def runs(self, view: int = ViewType.ACTIVE_ONLY) -> dict[str, Run]:
        """Those that regrow writes."""
        return {
            name: run for name, run in self.all_runs(view).items() if "regrow.key" in run.data.tags
        }

    def files(self, run: str, folder: str | None = None) -> set[str]:
        """Artifacts."""
        return {
            file.path
            for file in self.client.list_artifacts(self.all_runs()[run].info.run_id, folder)
        }


@pytest.fixture(scope="module")
def ended(
    tmp_path_factory: pytest.TempPathFactory, prefect_of_session: dict[str, str]
) -> Iterator[Ended]:
    with desk_in(tmp_path_factory.mktemp("mlflow-run")) as desk:
        desk.environment |= prefect_of_session
        file = desk.write(
            "auto",
            train=AUTOLOG,
            space={"C": {"uniform": [0.1, 1.0]}, "deep": {"kind": {"choice": ["a", "b"]}}},
            trials=len(TRIALS),
            max_steps=4,
            checkpoint={"every_steps": 2},
            register="best-of-auto",
            mlflow={"experiment": "Ours"},
        )
        process = desk.start("run", file)
        # three processes import MLflow and scikit-learn at once
        said, _ = process.communicate(timeout=500)
        assert process.returncode == 0, said
        places = Places.at(str(desk.folder / ".regrow"))
        yield Ended(desk=desk, places=places, client=MlflowClient(places.mlflow_uri), said=said)


OWN = (
    "attempt 1 of trial-0000",
    "attempt 1 of trial-0001",
    "attempt 2 of trial-0001",
)
"""What the script logs: in its own MLflow experiment, as it wants it."""


def test_there_is_a_run_a_trial_and_one_of_the_scripts_own_an_attempt(ended: Ended) -> None:
    assert set(ended.runs()) == {"auto", *TRIALS}
    assert set(ended.all_runs()) == {"auto", *TRIALS, *OWN}
    assert set(ended.all_runs(ViewType.DELETED_ONLY)) == {
        "trial-0001 (until attempt 1, superseded)"
    }
    assert {e.name for e in ended.client.search_experiments(ViewType.ALL)} == {
        "Default",
        "Ours",
        "a script's own",
    }
    assert set(os.listdir(ended.desk.folder)) <= {"auto.yaml", "work.py", ".regrow", "__pycache__"}
    statuses = {name: run.info.status for name, run in ended.all_runs().items()}
    assert {name for name, status in statuses.items() if status != "FINISHED"} == {
        "attempt 1 of trial-0001"
    }
    assert statuses["attempt 1 of trial-0001"] == "KILLED"


def test_what_the_script_logs_is_below_its_trials_run_each_step_once(ended: Ended) -> None:
    for name in OWN:
        own, trial = ended.all_runs()[name], ended.runs()[name.rpartition(" ")[2]]
        assert own.data.tags["mlflow.parentRunId"] == trial.info.run_id, (
            "after a rewind, the run that is current"
        )
        number = int(trial.data.params["who"])
        assert own.data.params["solver"] == "lbfgs"
        points = [
            (p.step, p.value) for p in ended.client.get_metric_history(own.info.run_id, "own")
        ]
        done = {"attempt 1 of trial-0001": (1, 2, 3), "attempt 2 of trial-0001": (3, 4)}.get(
            name, (1, 2, 3, 4)
        )
        assert points == [(step, 10.0 * number + step) for step in done]
        assert f"steps/{done[-1]}.txt" in ended.files(name, "steps")


def test_the_trials_run_shows_it_and_is_as_it_is_reported(ended: Ended) -> None:
    for number, name in enumerate(TRIALS):
        run = ended.runs()[name]
        assert run.data.params["who"] == str(number)
        assert run.data.params["attempt"] == ("2" if number == 1 else "1")
        assert run.data.params["solver"] == "lbfgs"
        assert run.data.params["deep.kind"] in ("a", "b")
        assert run.data.metrics["training_accuracy_score"] > 0.5
        assert run.data.metrics["own"] == 10.0 * number + 4
        score = [
            (p.step, p.value) for p in ended.client.get_metric_history(run.info.run_id, "score")
        ]
        assert [step for step, _ in score] == [1, 2, 3, 4], "one point a step"


def test_the_parent_has_the_experiment(ended: Ended) -> None:
    parent = ended.runs()["auto"]
    assert ended.files("auto") == {"spec.yaml", "environment.json", "report.html", "figures"}
    assert len(ended.files("auto", "figures")) == 2
    view = ended.desk.show("auto")
    assert parent.data.tags["regrow.best_trial"] == str(view["best"]["trial"])
    assert Path(parent.data.tags["regrow.best_checkpoint"]).is_file()
    assert f"trial {view['best']['trial']}, score" in parent.data.tags["mlflow.note.content"]


def test_the_best_model_is_registered_once_with_its_signature(ended: Ended) -> None:
    [version] = ended.client.search_model_versions("name='best-of-auto'")
    best = ended.desk.show("auto")["best"]
    assert version.run_id == ended.runs()[f"trial-{best['trial']:04d}"].info.run_id
    assert version.tags["regrow.trial"] == str(best["trial"])
    assert float(version.tags["regrow.value"]) == best["value"]
    model = ended.client.get_logged_model(str(version.source).rpartition("/")[2])
    assert (
        "inputs"
        in yaml.safe_load((Path(model.artifact_location) / "MLmodel").read_text())["signature"]
    )
    assert "not registered" not in ended.said


def test_mlflow_can_be_filled_again_from_the_log(ended: Ended, tmp_path: Path) -> None:
    shutil.copytree(
        ended.places.root,
        tmp_path / "copy",
        ignore=shutil.ignore_patterns("mlflow.db*", "mlflow-artifacts"),
    )
    copy = Places.at(str(tmp_path / "copy"))
    said: list[str] = []
    assert record_missing(copy, "auto", announce=said.append) > 0
    assert said == []
    again = Ended(desk=ended.desk, places=copy, client=MlflowClient(copy.mlflow_uri), said="")
    assert again.files("auto") == ended.files("auto")
    assert set(again.runs()) == set(ended.runs())
    for name, run in again.runs().items():
        before = ended.runs()[name].data
        assert run.data.params.items() <= before.params.items()
        ours = {
            k: v.replace(copy.root, ended.places.root)
            for k, v in run.data.tags.items()
            if k != "mlflow.parentRunId"
        }
        assert ours.items() <= before.tags.items()
    [version] = again.client.search_model_versions("name='best-of-auto'")
    assert "checkpoint" in str(version.description), (
        "the models that the script logged are not in the log"
    )
    assert record_missing(copy, "auto") == 0
    assert len(again.client.search_model_versions("name='best-of-auto'")) == 1


PASSWORD = "squeamish-ossifrage-7"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[str]:
    """A tracking server that asks for a password."""
    if find_spec("flask_wtf") is None:
        pytest.skip("MLflow's basic authentication needs Flask-WTF")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "auth.ini").write_text(
        "[mlflow]\ndefault_permission = READ\n"
        f"database_uri = sqlite:///{tmp_path}/auth.db\nadmin_username = ann\nadmin_password = {PASSWORD}\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
    )
    settings = {
        "MLFLOW_AUTH_CONFIG_PATH": str(tmp_path / "auth.ini"),
        "MLFLOW_FLASK_SERVER_SECRET_KEY": "k",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--app-name",
        "basic-auth",
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    make_sure_of(f"sqlite:///{tmp_path}/server.db", None)  # its migrations take seconds
    command += [
        "--backend-store-uri",
        f"sqlite:///{tmp_path}/server.db",
        "--artifacts-destination",
        str(tmp_path / "served"),
    ]
    with (tmp_path / "server.log").open("wb") as said:
        server = subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**os.environ, **settings},
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        until = time.monotonic() + 120
        while time.monotonic() < until and server.poll() is None:
            try:
                urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
                break
            except HTTPError:
                break
            except OSError:
                time.sleep(0.1)  # a server that binds its port tells nobody
        assert server.poll() is None, (tmp_path / "server.log").read_text()
        # verified with each request, in 0.1 s of CPU by the method that it begins with
        cheap = generate_password_hash(PASSWORD, "pbkdf2:sha256:1")
        with closing(sqlite3.connect(tmp_path / "auth.db")) as database, database:
            database.execute("update users set password_hash = ?", (cheap,))
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, 9)
        server.wait()


@pytest.mark.usefixtures("shared_prefect")
def test_a_server_with_passwords_has_everything_of_each_worker_too_and_the_password_is_nowhere(
    guarded: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = {"MLFLOW_TRACKING_USERNAME": "ann", "MLFLOW_TRACKING_PASSWORD": PASSWORD}
    file = desk.write(
        "auth",
        train=GROUP,
        space={"C": {"uniform": [0.1, 1.0]}},
        trials=1,
        max_steps=1,
        register="guarded",
        mlflow={"system_metrics": True},
        resources={"cpu": 0.5, "workers": 2},
        env={
            "MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL": "0.5",
            "MLFLOW_SYSTEM_METRICS_NODE_ID": "a",
        },
    )
    refused = desk.run("run", file, expect=2, MLFLOW_TRACKING_URI=guarded)
    assert "MLFLOW_TRACKING_USERNAME" in refused.stderr
    desk.environment.update(credentials, MLFLOW_TRACKING_URI=guarded)
    process = desk.start("run", file)
    said, _ = process.communicate(timeout=500)  # four processes import MLflow at once
    assert process.returncode == 0, said
    for name, value in credentials.items():
        monkeypatch.setenv(name, value)
    client = MlflowClient(guarded)
    experiment = client.get_experiment_by_name("auth")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    named = {run.info.run_name: run for run in runs}
    trial, own = named["trial-0000"], "attempt 1 of trial-0000"
    assert set(named) == {"auth", "trial-0000", own, f"{own}, rank 1", "left open"}
    assert {
        name.split("/")[1]
        for name in trial.data.metrics
        if name.startswith("system/") and "regrow" not in name
    } == {"rank_0", "rank_1"}
    assert (trial.data.params["rank"], trial.data.metrics["of_rank"]) == ("0", 0.0), (
        "the first worker's share alone"
    )
    for name, rank in ((own, "0"), (f"{own}, rank 1", "1")):
        assert named[name].data.params["rank"] == rank
        assert named[name].data.tags["mlflow.parentRunId"] == trial.info.run_id
    left = [run for run in runs if run.info.run_name == "left open"]
    assert [run.info.status for run in left] == ["FINISHED", "FINISHED"]
    assert sorted(run.data.tags.get("regrow.rank", "0") for run in left) == ["0", "1"]
    assert {file.path for file in client.list_artifacts(named["auth"].info.run_id)} >= {
        "spec.yaml",
        "environment.json",
        "report.html",
    }, said
    assert len(client.search_model_versions("name='guarded'")) == 1
    assert PASSWORD not in said
    assert not [
        path
        for path in desk.folder.rglob("*")
        if path.is_file() and PASSWORD.encode() in path.read_bytes()
    ]
    tags = [text for run in runs for text in (*run.data.tags.values(), *run.data.params.values())]
    assert not [text for text in tags if PASSWORD in text]
