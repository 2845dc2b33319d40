"""What a trial forgives of MLflow, and what stays the user's own mistake; names in a forked child; what is carried over."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException, RestException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST, TEMPORARILY_UNAVAILABLE

from regrow.tasks.mlflow_away import Reach, is_away
from regrow.tasks.mlflow_calls import Calls
from regrow.tasks.mlflow_carried import Carried
from regrow.tasks.mlflow_names import Names
from regrow.tasks.mlflow_port import Tracked


def answered(code: str) -> Exception:
    """What a server says, as MLflow's client raises it."""
    made: Any = RestException
    found: Exception = made({"error_code": code, "message": "as the server has it"})
    return found


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "away"),
    [
        (caused(MlflowException("no answer"), requests.ConnectionError("refused")), True),
        (MlflowException("API request to endpoint /x failed with error code 500 != 200"), True),
        (MlflowException("busy", TEMPORARILY_UNAVAILABLE), True),
        (answered("INTERNAL_ERROR"), True),
        (requests.ReadTimeout("slow"), True),
        (ConnectionResetError("reset"), True),
        (OSError(errno.ESTALE, "stale file handle"), True),
        (MlflowException("Unable to find an artifact of that name"), False),
        (MlflowException("unknown run", RESOURCE_DOES_NOT_EXIST), False),
        (answered("INVALID_PARAMETER_VALUE"), False),
        (FileNotFoundError(errno.ENOENT, "no such file"), False),
        (PermissionError(errno.EACCES, "not allowed"), False),
        (NotADirectoryError(errno.ENOTDIR, "a file"), False),
        (shutil.Error([("a", "b", "a dangling link")]), False),
        (ValueError("the user's"), False),
    ],
)
def test_only_what_is_out_of_order_is_forgiven(error: Exception, away: bool) -> None:
    assert is_away(error) is away


def test_where_only_the_place_of_artifacts_is_away_the_rest_gets_through() -> None:
    reach, through = Reach(), list[str]()

    def broken() -> None:
        raise ConnectionResetError("the bucket")

    reach.try_("the artifacts", broken, lambda: None)
    reach.try_("the artifacts", lambda: through.append("artifact"), lambda: None)
    reach.try_("the metrics", lambda: through.append("metric"), lambda: None)
    assert through == ["metric"]


def test_in_a_forked_child_no_point_waits() -> None:
    names = Names(lambda: {"loss"}, (), lambda _: None)
    assert names.sorted_out([Metric("own", 1.0, 0, 0)]) == [], "it may be reported yet"
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        found = names.sorted_out([Metric("own", 2.0, 0, 0), Metric("loss", 3.0, 0, 0)])
        os.write(writing, " ".join(metric.key for metric in found).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 100).decode() == "own logged.loss"
    names.release()


def test_a_forked_child_asks_nobody_for_the_run_and_waits_for_no_lock_of_its_parents(tmp_path: Path) -> None:
    asked: list[int] = []

    def run_of(*_: int) -> tuple[None, str]:
        asked.append(os.getpid())
        return None, "nobody is there"

    records: Any = SimpleNamespace(tracking_uri="http://127.0.0.1:9", artifact_root=None, run_of=run_of)
    calls, reach = Calls(records, (0, 1), tmp_path, tuple), Reach()
    held, let = threading.Event(), threading.Event()

    def hold() -> None:
        with calls._lock, reach._lock:
            held.set()
            let.wait(60)

    threading.Thread(target=hold).start()
    held.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # ends it where it hangs
        reach.tell("about", "a line")
        os._exit(0 if calls.run() is None and not asked else 1)
    status = os.waitpid(child, 0)[1]
    let.set()
    assert status == 0
    assert asked == []


class Gone:
    """As much of a client as is asked here: the run `lost` cannot be read."""

    def __init__(self, runs: dict[str, Any]) -> None:
        self._runs = runs

    def get_run(self, run_id: str) -> Any:
        return self._runs[run_id]


def test_many_parameters_are_carried_over_in_portions_and_a_run_that_is_gone_is_left_out() -> None:
    def run(params: dict[str, str], tags: dict[str, str]) -> Any:
        return SimpleNamespace(data=SimpleNamespace(params=params, tags=tags, metrics={}))

    params = {f"p{n:03}": str(n) for n in range(130)}
    client: Any = Gone({"old": run(params, {"mine": "1", "mlflow.user": "me"}), "now": run({"p000": "other"}, {})})
    written: list[tuple[list[Param], list[RunTag]]] = []
    tracked = Tracked(run_id="now", experiment_id="1", superseded=(("lost", 5), ("old", 5)))
    carried = Carried(client, tracked, lambda _, some, tags: written.append((some, tags)))
    carried.start()
    carried.finish(10.0)
    assert [len(some) for some, _ in written] == [100, 29]
    assert [(tag.key, tag.value) for _, tags in written for tag in tags] == [("mine", "1")]
