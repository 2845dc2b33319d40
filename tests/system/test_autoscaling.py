"""A search on a cluster that has no machine of its own to begin with, and none once it is over."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.system.autoscaling import launches, start_head
from tests.system.conftest import TRAIN, Desk
from tests.system.hosts import RayCluster, await_
from tests.system.test_capacity import cluster
from tests.system.test_main_job import check_whole

__all__ = ["cluster"]


def alive(cluster: RayCluster) -> int:
    """Nodes of the cluster's, its head included."""
    joined = "import ray; ray.init('auto', logging_level='ERROR', log_to_driver=False)"
    code = f"{joined}; print('nodes', sum(node['Alive'] for node in ray.nodes()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=cluster.environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return int(re.findall(r"nodes (\d+)", done.stdout)[0])  # Ray may have something to say as well


@pytest.mark.nightly
def test_a_search_makes_its_cluster_grow_and_leaves_nothing_of_it(
    desk: Desk, cluster: RayCluster
) -> None:
    start_head(cluster, idle_minutes=0.05, spot=1)
    file = desk.write("scales", trials=4, max_steps=3, concurrency=2)
    desk.environment |= cluster.environment
    done = desk.run("run", file)
    assert "No node of the cluster can hold a trial now" in done.stdout + done.stderr
    assert launches(cluster) == ["spot"]
    check_whole(desk, "scales", 4)
    await_(lambda: alive(cluster) == 1, "the head alone")


@pytest.mark.nightly
def test_a_machine_on_which_nothing_runs_is_given_back_while_the_search_goes_on(
    desk: Desk, cluster: RayCluster
) -> None:
    # more than the time between two looks at spare processes
    start_head(cluster, idle_minutes=0.3, spot=2)
    desk.environment |= cluster.environment
    long = TRAIN.replace(
        "time.sleep(SECONDS)",
        f"time.sleep(0.1 if Path('{desk.folder}/go').exists() or trial.number else 3)",
    )
    file = desk.write(
        "tail", train=long, trials=2, max_steps=200, concurrency=2, resources={"cpu": 2}
    )
    process = desk.start("run", file)
    desk.await_events("tail", "ended", 1, process)
    await_(lambda: alive(cluster) == 2, "the head and the machine of the other trial")
    assert sum(event["event"] == "ended" for event in desk.events("tail")) == 1
    (desk.folder / "go").touch()
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert launches(cluster) == ["spot"] * 2
    view = check_whole(desk, "tail", 2)
    assert [len(trial["attempts"]) for trial in view["trials"]] == [1, 1]
