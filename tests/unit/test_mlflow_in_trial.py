"""What a training's own MLflow calls cost where there are none, what of MLflow's is an outage, and
what becomes of an attempt then.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import mlflow
import pytest
import requests
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException, RestException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST, TEMPORARILY_UNAVAILABLE

from regrow.infra.mlflow.in_trial import own_calls
from regrow.infra.mlflow.in_trial_runs import is_outage
from regrow.infra.mlflow.private import ARTIFACT_ROOT, choose_experiment
from regrow.tasks.attempt.attempt import run_attempt
from regrow.tasks.ports.messages import RecordsAway
from tests.unit.fresh import printed
from tests.unit.office import Office

ASKED = """
import importlib.util, os, sys, tempfile
from pathlib import Path
from regrow.infra.mlflow.in_trial import Tracked, own_calls

file = tempfile.NamedTemporaryFile()

class Source:
    tracking_uri, artifact_root, asked = f"sqlite:///{file.name}", None, []
    def run_of(self, *lease):
        self.asked.append(("mlflow" in sys.modules, *lease))
        return Tracked(run_id="r", experiment_id="1", experiment_name="digits", id="id"), None

def environment():
    return {name for name in os.environ if name.startswith("MLFLOW")}

os.environ |= {"MLFLOW_RUN_ID": "of `mlflow run`", "MLFLOW_EXPERIMENT_ID": "5"}
before = environment()
with own_calls(Source(), (3, 1), Path("."), reported=tuple):
    import json, csv
    assert environment() == before and not Source.asked
assert sys.modules.keys().isdisjoint({"mlflow", "regrow.infra.mlflow.in_trial_runs"})
with tempfile.TemporaryDirectory() as scratch, own_calls(None, (0, 0), Path(scratch), reported=tuple):
    assert importlib.util.find_spec("mlflow") is not None
    assert Path(scratch, "mlflow.db").exists()
os.environ |= {"MLFLOW_RUN_ID": "of `mlflow run`", "MLFLOW_EXPERIMENT_ID": "5"}
with own_calls(Source(), (3, 2), Path("."), reported=tuple):
    assert importlib.util.find_spec("mlflow") is not None
    assert Source.asked == [(False, 3, 2)]
    assert os.environ["MLFLOW_TRACKING_URI"] == Source.tracking_uri
    assert not {"MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID"} & environment()
    import mlflow.utils
assert Source.asked == [(False, 3, 2)] and environment() == before - {"MLFLOW_EXPERIMENT_ID"}, environment() ^ before
assert mlflow.__spec__.loader.__class__.__name__ == "SourceFileLoader"
assert not [one for one in sys.meta_path if type(one).__module__.startswith("regrow")]
"""


def test_a_training_that_does_not_use_mlflow_asks_nobody_and_loads_nothing() -> None:
    printed(ASKED)


def answered(code: str) -> Exception:
    """What a server says, as MLflow's client raises it."""
    made: Any = RestException
    found: Exception = made({"error_code": code, "message": "as the server has it"})
    return found


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "outage"),
    [
        (caused(MlflowException("no answer"), requests.ConnectionError("refused")), True),
        (MlflowException("API request to endpoint /x failed with error code 500 != 200"), True),
        (MlflowException("busy", TEMPORARILY_UNAVAILABLE), True),
        (answered("INTERNAL_ERROR"), True),
        (MlflowException("Unable to find an artifact of that name"), False),
        (MlflowException("unknown run", RESOURCE_DOES_NOT_EXIST), False),
        (answered("INVALID_PARAMETER_VALUE"), False),
        (requests.ConnectionError("the training's own"), False),
        (FileNotFoundError("no such file"), False),
        (ValueError("the user's"), False),
    ],
)
def test_only_a_server_that_is_out_of_order_is_an_outage(error: Exception, outage: bool) -> None:
    assert is_outage(error) is outage


def test_who_asked_makes_the_difference_between_mlflows_requests_and_the_trainings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(MlflowException) as mlflows:
        MlflowClient("http://127.0.0.1:9").get_run("0" * 32)
    assert is_outage(mlflows.value)
    with pytest.raises(requests.ConnectionError) as own:
        requests.get("http://127.0.0.1:9", timeout=5)
    assert not is_outage(own.value)


class Away:
    """Records whose server does not answer when the training asks for it."""

    def own_calls(self, *_: object, **__: object) -> AbstractContextManager[object]:
        """See Records."""
        return self._block()

    @contextmanager
    def _block(self) -> Iterator[None]:
        try:
            yield
        except ConnectionError as error:
            raise RecordsAway("MLflow was away") from error


def test_an_attempt_that_needs_a_server_which_is_away_is_tried_again_and_is_no_fault_of_the_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module: Any = ModuleType("work_under_test")
    module.__spec__ = ModuleSpec("work_under_test", None)
    monkeypatch.setitem(sys.modules, "work_under_test", module)
    office = Office(trainable="work_under_test:train", schedule="fifo", max_steps=2)

    def train(trial: Any) -> None:
        if trial.attempt == 1:
            raise ConnectionError
        for _ in trial.steps():
            trial.report({"score": 0.5})

    module.train = train
    ended = []
    for _ in range(2):
        done = run_attempt(
            dataclasses.replace(office.shared(), records=Away()),
            office.submitted(),
            task_run="run",
            carry_on=lambda: False,
        )
        ended.append((done.ended.outcome, done.ended.cause, done.ended.message))
    office.close()
    assert ended == [("failed", "infrastructure", "MLflow was away"), ("done", "", "")]


def in_a_forked_child(check: Callable[[], bool]) -> None:
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # ends it where it hangs
        os._exit(0 if check() else 1)
    assert os.waitpid(child, 0)[1] == 0


class Nobody:
    """A source that is never to be asked."""

    tracking_uri = "http://127.0.0.1:9"
    artifact_root: str | None = None

    def run_of(self, *_: int) -> tuple[None, str]:
        """See Source."""
        raise AssertionError


def test_a_forked_child_that_imports_mlflow_first_asks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "mlflow")  # as in a worker that has not imported it
    with own_calls(Nobody(), (0, 1), tmp_path, reported=tuple):
        trigger = sys.meta_path[0]

        def check() -> bool:
            trigger.find_spec("mlflow", None)
            return os.environ["MLFLOW_TRACKING_URI"].startswith(f"sqlite:///{tmp_path}")

        in_a_forked_child(check)


def test_a_forked_child_that_comes_back_from_the_training_ends_nothing_of_the_attempt(
    tmp_path: Path,
) -> None:
    process = os.getpid()
    try:
        with own_calls(None, (0, 1), tmp_path, reported=tuple):
            child = os.fork()
            if child == 0:
                raise RuntimeError
            assert os.waitpid(child, 0)[1] == 0
    finally:
        if os.getpid() != process:
            os._exit(0 if "MLFLOW_TRACKING_URI" in os.environ else 1)


def test_the_private_names_of_mlflow_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = choose_experiment(None)
    try:
        monkeypatch.setenv(ARTIFACT_ROOT, str(tmp_path / "artifacts"))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
        chosen = mlflow.set_experiment("mine")
        assert chosen.artifact_location.startswith(str(tmp_path / "artifacts")), (
            "else files of a trial stay in its working folder"
        )
        assert choose_experiment(None) == chosen.experiment_id
        monkeypatch.delenv("MLFLOW_EXPERIMENT_ID")
        with mlflow.start_run() as run:
            assert run.info.experiment_id == "0", (
                "else a trial fails where MLflow is away and it has chosen an MLflow experiment"
            )
    finally:
        choose_experiment(before)
