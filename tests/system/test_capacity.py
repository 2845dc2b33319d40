"""A user's own cluster that grows and shrinks while an experiment runs, as one does that scales by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from tests.system.conftest import TRAIN, Desk
from tests.system.test_main_job import check_whole
from tests.system.test_ray_job import free_port

SLOW = TRAIN.replace("time.sleep(SECONDS)", "time.sleep(0 if Path('hurry').exists() else 0.3)")


def node(desk: Desk, *words: str) -> None:
    """Starts a node, which ends with the test."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--node-ip-address=127.0.0.1", "--disable-usage-stats", *words]
    done = subprocess.run(command, env=desk.environment, cwd=desk.folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def raylets(desk: Desk) -> set[int]:
    words = ["pgrep", "-f", "raylet/raylet .*"]
    found = subprocess.run(words, capture_output=True, text=True, check=False).stdout.split()
    mark = f"REGROW_TEST_MARK={desk.folder}".encode()
    return {int(pid) for pid in found if mark in open(f"/proc/{pid}/environ", "rb").read().split(b"\0")}


def test_trials_use_a_node_that_comes_and_go_on_without_it_when_it_goes(desk: Desk) -> None:
    port = free_port()
    node(desk, "--head", f"--port={port}", "--num-cpus=1", "--include-dashboard=false")
    head = raylets(desk)
    file = desk.write("grows", train=SLOW, trials=4, max_steps=200)
    process = desk.start("run", file, RAY_ADDRESS=f"127.0.0.1:{port}")
    desk.await_events("grows", "saved", 2, process)
    node(desk, f"--address=127.0.0.1:{port}", "--num-cpus=2")
    desk.await_events("grows", "capacity", 1, process)
    desk.await_events("grows", "began", 3, process)
    (worker,) = raylets(desk) - head
    os.kill(worker, signal.SIGKILL)
    desk.await_events("grows", "capacity", 2, process)
    (desk.folder / "hurry").touch()
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert "the cluster has room for 3 trials at a time now" in said
    assert [event["slots"] for event in desk.events("grows") if event["event"] == "capacity"] == [3, 1]
    check_whole(desk, "grows", 4)


def test_a_cluster_that_has_no_node_yet_is_waited_for_where_the_user_says_how_many(desk: Desk) -> None:
    port = free_port()
    node(desk, "--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false")
    refused = desk.run("run", desk.write("empty", trials=2, max_steps=2), expect=2, RAY_ADDRESS=f"127.0.0.1:{port}").stderr
    assert "no node of the cluster can hold a trial" in refused
    assert "concurrency" in refused
    process = desk.start(
        "run", desk.write("empty", trials=2, max_steps=2, concurrency=2), RAY_ADDRESS=f"127.0.0.1:{port}"
    )
    desk.await_events("empty", "started", 2, process)
    node(desk, f"--address=127.0.0.1:{port}", "--num-cpus=2")
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    check_whole(desk, "empty", 2)
