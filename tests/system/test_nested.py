"""Trials that start tasks and actors of Ray: the examples as a user runs them, each killed once,
and nothing that outlives its trial.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.system.conftest import Desk, await_no_process, running
from tests.system.test_main_job import check_whole

pytestmark = pytest.mark.usefixtures("shared_prefect")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SYNCHRONOUS = {"mode": "synchronous", "hidden": 64, "lr": 0.1, "momentum": 0.8, "gradients": 400}
ASYNCHRONOUS = {**SYNCHRONOUS, "mode": "asynchronous"}
GENERATIONS = {"pairs": 32, "sigma": 0.1, "lr": 0.1}
ROLLOUTS = {"hidden": 32, "lr": 0.01, "gamma": 0.98, "entropy": 0.01, "gradients": 100}
FOLDS = {"hidden": 64, "lr": 0.003, "alpha": 1e-4}
SAVED, LAST = 8, 15
"""The only checkpoint is at step 8 of 15: whoever is killed after step 9 does that one again, even if
the kill comes some steps late.
"""
KEPT = """
import time
from pathlib import Path
import ray
from beside import counted

KEPT = []


@ray.remote(num_cpus=0.25)
class Kept:
    def number(self):
        return counted(len(KEPT))


def train(trial):
    time_is_up = time.monotonic() + 5.0
    while (left := alive()) and time.monotonic() < time_is_up:
        time.sleep(0.02)
    if trial.number == 3:
        Kept.options(num_cpus=1.5).remote()
    KEPT.extend(Kept.remote() for _ in range(3))
    assert ray.get([kept.number.remote() for kept in KEPT]) == [1, 1, 1]
    for step in trial.steps():
        trial.report({"score": alive(), "left": left})


def alive():
    mark, found = b"REGROW_TEST_MARK=DESK", 0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            found += (entry / "cmdline").read_bytes().startswith(b"ray::Kept") and mark in (entry / "environ").read_bytes()
        except OSError:
            continue
    return found
"""


def small(desk: Desk, name: str, points: list[dict[str, Any]]) -> Path:
    """An example in a folder below the one where commands are typed, with a short trial of each
    point, one after the other.
    """
    folder = desk.folder / "examples"
    shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("__pycache__"))
    spec = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    # What the file has as a constant may be less here.
    space = {
        key: points[0][key] if isinstance(domain, int) else domain
        for key, domain in spec["space"].items()
    }
    points = [
        {key: value for key, value in point.items() if isinstance(space[key], dict)}
        for point in points
    ]
    spec |= {
        "space": space,
        "points": points,
        "trials": len(points),
        "max_steps": LAST,
        "schedule": "fifo",
        "concurrency": 1,
    }
    spec["checkpoint"]["every_steps"] = SAVED
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps(spec))
    return file


def processes(desk: Desk, *titles: str) -> set[int]:
    """The processes of this desk whose titles begin so."""
    return {process for title in titles for process in running(desk.folder, title)}


Rows = dict[int, dict[str, float]]


def rows(desk: Desk, name: str, trial: int, attempt: int) -> Rows:
    """What an attempt said, by steps; nothing while the log is being written."""
    found: Rows = {}
    with suppress(json.JSONDecodeError):
        for event in desk.events(name):
            if event["event"] == "reported" and (event["trial"], event["attempt"]) == (
                trial,
                attempt,
            ):
                found |= {step: metrics for step, _, metrics in event["rows"]}
    return found


def wait_for(what: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Returns once it is so; fails if the process ends before."""
    while not what():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("name", "points", "actors", "exact"),
    [
        # The server and four workers. In which order gradients come is for the machine to say in
        # the asynchronous one.
        pytest.param(
            "parameter_server",
            [SYNCHRONOUS, ASYNCHRONOUS],
            ("ray::ParameterServer", *["ray::Worker"] * 4),
            [True, False],
            marks=pytest.mark.nightly,
        ),
        pytest.param("evolution_strategies", [GENERATIONS], (), [True], marks=pytest.mark.nightly),
        pytest.param("a3c", [ROLLOUTS], ("ray::Runner",) * 4, [False], marks=pytest.mark.nightly),
        ("cross_validation", [FOLDS], (), [True]),
    ],
    ids=["parameter server", "evolution strategies", "a3c", "cross-validation"],
)
def test_an_example_that_is_killed_goes_on_and_leaves_no_actor(
    name: str, points: list[dict[str, Any]], actors: tuple[str, ...], exact: list[bool], desk: Desk
) -> None:
    experiment = name.replace("_", "-")
    process = desk.start("run", small(desk, name, points))
    for trial in range(len(points)):
        wait_for(lambda trial=trial: SAVED + 1 in rows(desk, experiment, trial, 1), process)  # type: ignore[misc]  # its default
        (worker,) = processes(desk, f"ray::trial-{trial:04d}")
        before = processes(desk, *actors) if actors else set()
        assert len(before) == len(actors)
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda trial=trial: bool(rows(desk, experiment, trial, 2)), process)  # type: ignore[misc]
        assert not before & processes(desk, "ray::"), "actors of the attempt that is lost"
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    view = check_whole(desk, experiment, len(points))
    for trial, one in enumerate(view["trials"]):
        first, second = one["attempts"]
        assert (first["outcome"], second["outcome"], second["from_step"], second["to_step"]) == (
            "lost",
            "done",
            SAVED,
            LAST,
        )
        lost, found = rows(desk, experiment, trial, 1), rows(desk, experiment, trial, 2)
        again = lost.keys() & found.keys()
        assert SAVED + 1 in again
        assert not exact[trial] or [lost[step] for step in again] == [
            found[step] for step in again
        ], "the very curve"
    assert await_no_process(desk.folder) == []


def test_actors_that_are_kept_in_a_global_end_with_their_trial_and_too_large_ones_are_told(
    desk: Desk,
) -> None:
    (desk.folder / "beside.py").write_text("def counted(n):\n    return n + 1\n")
    file = desk.write(
        "kept",
        train=KEPT.replace("DESK", str(desk.folder)),
        trials=4,
        max_steps=1,
        concurrency=1,
        resources={"cpu": 1, "children": {"cpu": 0.25, "count": 3}},
    )
    said, _ = desk.start("run", file).communicate(timeout=500)
    (told,) = (line for line in said.splitlines() if line.startswith("trial 3 failed"))
    assert "1.5" in told
    points = desk.points("kept")
    assert [(p["trial"], p["score"], p["left"]) for p in points] == [(n, 3, 0) for n in range(3)]
    assert await_no_process(desk.folder) == []


FULL = """
import ray


@ray.remote(num_cpus=0.5)
class Worker:
    def one(self):
        return 1


def train(trial):
    workers = [Worker.remote() for _ in range(6)]
    for step in trial.steps():
        trial.report({"score": sum(ray.get([worker.one.remote() for worker in workers]))})
"""


@pytest.mark.nightly
def test_actors_that_find_no_room_in_their_trial_are_told_of_in_its_log(desk: Desk) -> None:
    (desk.folder / "work.py").write_text(FULL)
    spec = {
        "name": "full",
        "trainable": "work.py:train",
        "metric": "score",
        "mode": "max",
        "space": {"x": {"uniform": [0, 1]}},
        "search": "random",
        "trials": 1,
        "max_steps": 2,
        "resources": {"cpu": 0.5, "children": {"cpu": 0.5, "count": 3}},
    }
    (desk.folder / "full.yaml").write_text(json.dumps(spec))
    process = desk.start("run", "full.yaml")
    said = "wait for room: this trial's children have 3 bundles of cpu 0.5; raise resources.children.count, or start fewer"
    wait_for((desk.folder / ".regrow" / "full" / "log").exists, process)
    wait_for(lambda: said in desk.look("logs", "full", 0), process)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 3
    assert await_no_process(desk.folder) == []
