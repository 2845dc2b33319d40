"""The main job, end to end, as a user does it: run, look, stop, lose the driver, resume."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.system.conftest import TRAIN, Desk, await_no_process


def check_whole(desk: Desk, name: str, trials: int) -> dict[str, Any]:
    """What must hold of every finished experiment, however often it was cut."""
    view = desk.show(name)
    assert view["status"] == "finished"
    assert [t["number"] for t in view["trials"]] == list(range(trials))
    assert sum(view["counts"].values()) == trials
    points = Counter((p["trial"], p["step"]) for p in desk.points(name))
    assert set(points.values()) == {1}
    for trial in view["trials"]:
        assert sorted(step for number, step in points if number == trial["number"]) == list(
            range(1, trial["steps"] + 1)
        )
    assert "decisions recomputed, all as recorded" in desk.look("verify", name)
    return view


def mlflow(desk: Desk, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(desk.folder / ".regrow" / ".services" / "mlflow.db")) as database:
        return database.execute(query).fetchall()


def doubled(desk: Desk) -> list[tuple[Any, ...]]:
    """The points that MLflow has more than once."""
    return mlflow(
        desk,
        "select count(*) from metrics join runs using (run_uuid) where lifecycle_stage = 'active'"
        " group by run_uuid, key, step having count(*) > 1",
    )


def prefect(desk: Desk, query: str) -> list[tuple[Any, ...]]:
    with closing(
        sqlite3.connect(desk.folder / ".regrow" / ".services" / "prefect" / "prefect.db")
    ) as database:
        return database.execute(query).fetchall()


SCRIPT = f"""
import argparse, sys
parser = argparse.ArgumentParser()
parser.add_argument("--scale", type=float, default=2.0)
at_import = parser.parse_args()
print("a module that prints")
{TRAIN.replace("total = 0.0", "total = parser.parse_args().scale - at_import.scale", 1)}
    sys.exit(0)
"""
FEW_FILES = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)); os.execv(sys.argv[1], sys.argv[1:])"


def test_an_experiment_runs_and_every_part_agrees_on_what_happened(desk: Desk) -> None:
    """On a machine as many are: a proxy for everything, a long TMPDIR, few open files; with a script
    that parses its arguments, prints, and exits.
    """
    file = desk.write(
        "main",
        train=SCRIPT,
        trials=9,
        max_steps=9,
        schedule={"asha": {"grace_period": 1, "reduction_factor": 3}},
    )
    scratch = desk.folder / ("a-long-name-of-a-job-" * 5)
    scratch.mkdir()
    proxy = "http://192.0.2.1:3128"  # of the block for documentation: nothing answers
    done = subprocess.run(
        [sys.executable, "-c", FEW_FILES, *desk._command(("run", file, "--json"))],
        cwd=desk.folder,
        check=False,
        timeout=240,
        text=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env={**desk.environment, "http_proxy": proxy, "https_proxy": proxy, "TMPDIR": str(scratch)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    events = desk.events("main")
    assert [json.loads(line) for line in done.stdout.splitlines()] == events
    assert "a module that prints" in done.stderr
    assert "main finished: 9 of 9 trials" in done.stderr
    assert {e["outcome"] for e in events if e["event"] == "ended"} == {"done", "stopped"}
    view = check_whole(desk, "main", 9)
    assert view["counts"]["stopped"] > 0
    assert view["wasted_steps"] == 0
    assert view["best"]["value"] == max(p["score"] for p in desk.points("main"))
    assert (desk.folder / ".regrow" / "main" / view["best"]["checkpoint"]).is_file()

    runs = mlflow(
        desk,
        "select name, status, run_uuid from runs where lifecycle_stage = 'active' order by name",
    )
    assert [(name, status) for name, status, _ in runs] == [("main", "FINISHED")] + [
        (f"trial-{n:04d}", "FINISHED") for n in range(9)
    ]
    for trial, (_, _, run) in zip(view["trials"], runs[1:], strict=True):
        steps = mlflow(
            desk,
            f"select step, value from metrics where run_uuid = '{run}' and key = 'score' order by step",
        )
        assert [s for s, _ in steps] == list(range(1, trial["steps"] + 1))
        params = dict(mlflow(desk, f"select key, value from params where run_uuid = '{run}'"))
        assert params == {"x": json.dumps(trial["config"]["x"]), "kind": trial["config"]["kind"]}

    assert prefect(desk, "select name, state_type, run_count from flow_run") == [
        ("main", "COMPLETED", 1)
    ]
    task_runs = prefect(desk, "select name, state_type from task_run order by name")
    assert [name for name, _ in task_runs] == [f"trial-{n:04d}" for n in range(9)]
    assert {state for _, state in task_runs} == {"COMPLETED"}
    assert prefect(desk, "select count(*) from log where message = 'trial 0 attempt 1 step 1'") == [
        (1,)
    ]
    ((artifact,),) = prefect(desk, "select data from artifact where key = 'regrow-main'")
    assert f"Best: trial {view['best']['trial']}" in artifact
    assert await_no_process(desk.folder) == []
    assert not (Path(desk.environment["HOME"]) / ".prefect").exists(), (
        "an embedded server is no business of the user's own"
    )


MOMENTS = [
    ("opened", 1),
    ("began", 1),
    ("reported", 3),
    ("saved", 6),
    ("decided", 9),
    ("ended", 5),
    ("proposed", 12),
    ("dropped", 8),
    ("saved", 26),
    ("ended", 16),
]
"""Events, and the how many of their kind: then the driver is killed."""


# In one process tests/faults kills it at each; by day other files of this folder do at a proposal's, a
# decision's, a checkpoint's and an end's, test_services_lost.py with a look at MLflow and Prefect.
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_driver_killed_at_any_moment_loses_nothing(desk: Desk) -> None:
    file = desk.write(
        "spot",
        trials=20,
        seconds=0.15,
        max_steps=4,
        schedule={"asha": {"grace_period": 1, "reduction_factor": 2}},
    )
    for cut, (kind, count) in enumerate(MOMENTS):
        process = desk.start("run" if cut == 0 else "resume", *([file] if cut == 0 else ["spot"]))
        desk.await_events("spot", kind, count, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert await_no_process(desk.folder) == []
    desk.run("resume", "spot")
    view = check_whole(desk, "spot", 20)
    for trial in view["trials"]:
        outcomes = [a["outcome"] for a in trial["attempts"]]
        assert trial["state"] in ("done", "stopped")
        # One that was lost after it was decided to stop is stopped; nothing that had ended was run
        # again.
        assert outcomes[-1] == trial["state"] or (outcomes[-1], trial["state"]) == (
            "lost",
            "stopped",
        )
        # Its cluster is told to end after the driver, so an attempt may still save a checkpoint and
        # say that it leaves.
        assert set(outcomes[:-1]) <= {"lost", "preempted"}
    assert {
        s for (s,) in mlflow(desk, "select status from runs where lifecycle_stage = 'active'")
    } == {"FINISHED"}
    assert doubled(desk) == []
    assert prefect(desk, "select count(*) from flow_run where state_type = 'COMPLETED'") == [(1,)]
    assert await_no_process(desk.folder, 90.0) == []
