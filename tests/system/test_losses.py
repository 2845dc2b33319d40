"""A part is killed while an experiment runs; the experiment continues by itself and nothing is lost
or doubled. A worker is killed in test_prefect_story.py.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from tests.system.conftest import Desk, await_no_process, running
from tests.system.test_main_job import check_whole, mlflow, prefect


def kill(folder: Path, title: str) -> None:
    """SIGKILL for the process of this experiment whose title begins so, as soon as there is one."""
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        for process in running(folder, title):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
                return
        time.sleep(0.1)
    raise AssertionError(f"no process {title!r} runs")


def kill_prefect(desk: Desk) -> None:
    """SIGKILL for the processes of the embedded server."""
    deadline = time.monotonic() + 60.0
    found: list[int] = []
    while not found:
        assert time.monotonic() < deadline, "there is no server"
        lines = running(desk.folder).items()
        found = [pid for pid, words in lines if "regrow.infra.prefect.process" in " ".join(words)]
        time.sleep(0.01)
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_killed_actors_come_back_by_replay_and_a_killed_prefect_server_misses_nothing(
    desk: Desk,
) -> None:
    file = desk.write("actor", trials=4, seconds=0.2, max_steps=15)
    process = desk.start("run", file)
    desk.await_events("actor", "saved", 6, process)
    kill(desk.folder, "ray::Recorder")
    desk.await_events("actor", "ended", 1, process)
    kill_prefect(desk)
    desk.await_events("actor", "saved", 36, process)
    kill(desk.folder, "ray::WaitingCoordinator")
    desk.await_events("actor", "ended", 2, process)
    kill_prefect(desk)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    view = check_whole(desk, "actor", 4)
    assert view["wasted_steps"] == 0
    assert [len(t["attempts"]) for t in view["trials"]] == [1] * 4
    writers = [e["by"] for e in desk.events("actor") if e["event"] == "opened"]
    assert writers == ["driver", "coordinator"], "the recorder is no writer of the log"
    recorded = mlflow(desk, "select count(*) from metrics where key = 'score'")
    assert recorded == [(60,)], said
    assert prefect(desk, "select state_type, run_count from flow_run") == [("COMPLETED", 1)]
    assert prefect(desk, "select name, state_type from task_run order by name") == [
        (f"trial-{n:04d}", "COMPLETED") for n in range(4)
    ]
    assert await_no_process(desk.folder) == []
