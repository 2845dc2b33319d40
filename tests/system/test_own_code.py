"""`regrow run` as a Ray Job: submitted with a folder of its own to a cluster, as from a laptop that
may be closed then. What a trial starts on Ray there finds the trial's code, its variables and its
folder.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from regrow.tasks.group.world import free_port
from tests.system.conftest import Desk, await_no_process
from tests.system.test_main_job import check_whole

BESIDE = """
import os


def seen(number):
    return number, os.environ["WISH"], os.getcwd(), "/".join(__file__.split("/")[-2:])
"""
DEEP = """
import os
import ray
from beside import seen


def own(number):
    return seen(2 * number)


@ray.remote(num_cpus=0.5)
def task(function):
    return own(1), function(2)


class Actor:
    def answer(self, function):
        return own(3), function(4)


def train(trial):
    actor = ray.remote(num_cpus=0.5)(Actor).remote()
    found = ray.get([task.remote(own), actor.answer.remote(own)])
    assert [answer[0] for pair in found for answer in pair] == [2, 4, 6, 8]
    here = seen(0)[1:]
    assert {answer[1:] for pair in found for answer in pair} == {here}, (found, here)
    assert here[0] == "ours"
    for step in trial.steps():
        trial.report({"score": 1.0, "here": float(os.getcwd() == "HERE")})
"""


def write(desk: Desk) -> Path:
    """A trial whose code lies two folders below the one where the command is typed."""
    folder = desk.folder / "project"
    (folder / "deep").mkdir(parents=True)
    (folder / "beside.py").write_text(BESIDE)
    (folder / "deep" / "own.py").write_text(DEEP.replace("HERE", str(desk.folder)))
    file = desk.write(
        "own",
        trainable="deep/own.py:train",
        trials=1,
        max_steps=1,
        concurrency=1,
        env={"WISH": "ours"},
        resources={"cpu": 1, "children": {"cpu": 0.5, "count": 2}},
    )
    return file.rename(folder / "own.yaml")


def ray(desk: Desk, *words: object) -> str:
    command = [sys.executable, "-m", "ray.scripts.scripts", *map(str, words)]
    done = None
    # the head has started, and its agent not yet
    while done is None or "No available agent" in done.stderr:
        done = subprocess.run(
            command,
            env=desk.environment,
            cwd=desk.folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.nightly  # test_station.py has the cluster that regrow starts
def test_on_this_machine(desk: Desk) -> None:
    desk.run("run", write(desk))
    assert desk.points("own")[0]["here"] == 1.0
    assert await_no_process(desk.folder) == []


def test_a_job_with_a_working_dir_runs_the_experiment_of_a_folder_in_it(desk: Desk) -> None:
    port, head = (free_port("127.0.0.1") for _ in range(2))
    server = ("--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={port}")
    ray(
        desk,
        *("start", "--head", f"--port={head}", "--num-cpus=2", "--node-ip-address=127.0.0.1"),
        *(*server, "--disable-usage-stats"),
    )
    file = write(desk)
    said = ray(
        desk,
        *("job", "submit", f"--address=http://127.0.0.1:{port}", f"--working-dir={desk.folder}"),
        '--runtime-env-json={"env_vars": {"WISH": "the job\'s"}}',
        *("--", sys.executable, "-m", "regrow", "run", file.relative_to(desk.folder)),
        *("--state", f"{desk.folder}/.regrow"),
    )
    assert "own finished: 1 of 1 trials (1 done)" in said
    check_whole(desk, "own", 1)
    assert desk.points("own")[0]["here"] == 0.0, "it is where Ray has unpacked the code"
