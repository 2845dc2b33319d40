"""A search on a cluster that has no machine of its own to begin with, and none once it is over."""

from __future__ import annotations

import subprocess
import sys

from tests.system.autoscaling import launches, start_head
from tests.system.conftest import Desk
from tests.system.hosts import RayCluster, await_
from tests.system.test_capacity import cluster
from tests.system.test_main_job import check_whole

__all__ = ["cluster"]


def alive(cluster: RayCluster) -> int:
    """Nodes of the cluster's, its head included."""
    code = "import ray; ray.init('auto', logging_level='ERROR'); print(sum(node['Alive'] for node in ray.nodes()))"
    done = subprocess.run([sys.executable, "-c", code], env=cluster.environment, capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


def test_a_search_makes_its_cluster_grow_and_leaves_nothing_of_it(desk: Desk, cluster: RayCluster) -> None:
    start_head(cluster, idle_minutes=0.05, spot=1)
    file = desk.write("scales", trials=4, max_steps=3, concurrency=2)
    desk.environment |= cluster.environment
    done = desk.run("run", file)
    assert "No node of the cluster can hold a trial now" in done.stdout + done.stderr
    assert launches(cluster) == ["spot"]
    check_whole(desk, "scales", 4)
    await_(lambda: alive(cluster) == 1, "the head alone")
