"""`regrow run` as a Ray Job: submitted with a folder of its own to a cluster, as from a laptop that
may be closed then.
"""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from tests.system.conftest import TRAIN, Desk
from tests.system.test_main_job import check_whole

RAY = [sys.executable, "-m", "ray.scripts.scripts"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ray(desk: Desk, *words: str, seconds: float = 120) -> str:
    done = None
    # the head has started, and its agent not yet
    while done is None or "No available agent" in done.stderr:
        done = subprocess.run(
            [*RAY, *words],
            env=desk.environment,
            cwd=desk.folder,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def dashboard(desk: Desk) -> str:
    """A cluster with the server that takes jobs; its address."""
    port, head = free_port(), free_port()
    ray(
        desk,
        "start",
        "--head",
        f"--port={head}",
        "--num-cpus=2",
        "--node-ip-address=127.0.0.1",
        "--include-dashboard=true",
        f"--dashboard-port={port}",
        "--dashboard-host=127.0.0.1",
        "--disable-usage-stats",
    )
    return f"http://127.0.0.1:{port}"


def test_a_job_with_a_working_dir_runs_the_experiment_of_a_folder_in_it(
    desk: Desk, dashboard: str
) -> None:
    code = desk.folder / "project" / "sweeps"
    code.mkdir(parents=True)
    train = TRAIN.replace("total = 0.0", 'total = 0.0\n    assert os.environ["WISH"] == "ours"', 1)
    file = desk.write("job", train=train, trials=2, max_steps=2, env={"WISH": "ours"})
    for name in (file.name, "work.py"):
        (desk.folder / name).rename(code / name)
    said = ray(
        desk,
        "job",
        "submit",
        f"--address={dashboard}",
        f"--working-dir={code.parent}",
        '--runtime-env-json={"env_vars": {"WISH": "the job\'s"}}',
        "--",
        sys.executable,
        "-m",
        "regrow",
        "run",
        "sweeps/job.yaml",
        "--state",
        f"{desk.folder}/.regrow",
        seconds=300,
    )
    assert "job finished: 2 of 2 trials (2 done)" in said
    check_whole(desk, "job", 2)
