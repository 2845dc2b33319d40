"""A part is killed while an experiment runs; the experiment continues by itself and nothing is lost
or doubled.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

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


def test_a_killed_worker_costs_one_attempt_and_at_most_the_steps_since_the_checkpoint(
    desk: Desk,
) -> None:
    file = desk.write("worker", trials=3, seconds=0.2, max_steps=12, checkpoint={"every_steps": 2})
    process = desk.start("run", file)
    desk.await_events("worker", "saved", 4, process)
    kill(desk.folder, "ray::trial-0000")
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    view = check_whole(desk, "worker", 3)
    first, second = view["trials"][0]["attempts"]
    assert first["outcome"] == "lost"
    assert second["outcome"] == "done"
    assert second["from_step"] >= 2
    assert first["to_step"] - second["from_step"] <= 2
    assert view["wasted_steps"] == first["to_step"] - second["from_step"]
    assert prefect(
        desk, "select run_count, state_type from task_run where name = 'trial-0000'"
    ) == [(2, "COMPLETED")]
    states = [
        name
        for (name,) in prefect(
            desk,
            "select s.name from task_run_state s join task_run r on r.id = s.task_run_id"
            " where r.name = 'trial-0000' order by s.timestamp",
        )
    ]
    assert states == ["Pending", "Running", "Retrying", "Running", "Completed"]
    doubled = (
        "select count(*) from metrics join runs using (run_uuid) where lifecycle_stage = 'active'"
        " group by run_uuid, key, step having count(*) > 1"
    )
    assert mlflow(desk, doubled) == []


@pytest.mark.usefixtures("shared_prefect")
def test_killed_actors_come_back_by_replay(desk: Desk) -> None:
    file = desk.write("actor", trials=3, seconds=0.2, max_steps=20)
    process = desk.start("run", file)
    for saved, part in ((6, "ray::Recorder"), (16, "ray::Coordinator")):
        desk.await_events("actor", "saved", saved, process)
        kill(desk.folder, part)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    view = check_whole(desk, "actor", 3)
    assert view["wasted_steps"] == 0
    assert [len(t["attempts"]) for t in view["trials"]] == [1, 1, 1]
    writers = [e["by"] for e in desk.events("actor") if e["event"] == "opened"]
    assert writers == ["driver", "coordinator"], "the recorder is no writer of the log"
    recorded = mlflow(desk, "select count(*) from metrics where key = 'score'")
    assert recorded == [(60,)]
    assert await_no_process(desk.folder) == []
