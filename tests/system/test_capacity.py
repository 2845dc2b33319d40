"""A user's own cluster that grows and shrinks while an experiment runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.conftest import TRAIN, Desk
from tests.system.hosts import RayCluster, ray_cluster
from tests.system.test_main_job import check_whole

pytestmark = pytest.mark.usefixtures("shared_prefect")

SLOW = TRAIN.replace(
    "time.sleep(SECONDS)",
    "time.sleep(0 if Path('FOLDER/hurry').exists() else 1.0); Path('work.py').read_text()",
)
"""It needs the folder that Ray has shipped, which each node of this host unpacks anew."""


@pytest.fixture
def cluster(desk: Desk) -> Iterator[RayCluster]:
    """An empty cluster, which the experiments of `desk` run on once it has a head."""
    with ray_cluster(desk.environment) as made:
        yield made


def slots(desk: Desk, name: str) -> list[int]:
    return [event["slots"] for event in desk.events(name) if event["event"] == "capacity"]


# By day test_agents.py has machines that come and go, tests/unit/test_capacity.py what a coordinator
# does then.
@pytest.mark.nightly
def test_trials_use_a_node_that_comes_and_go_on_without_it_when_it_goes(
    desk: Desk, cluster: RayCluster
) -> None:
    cluster.start("head", address="127.0.0.1", cpus=1)
    file = desk.write(
        "grows",
        train=SLOW.replace("FOLDER", str(desk.folder)),
        trials=4,
        max_steps=60,
        concurrency=None,
    )
    process = desk.start("run", file, **cluster.environment)
    desk.await_events("grows", "saved", 2, process)
    cluster.start("more", address="127.0.0.1", cpus=2)
    desk.await_events("grows", "capacity", 1, process)
    desk.await_events("grows", "began", 3, process)
    cluster.lose("more")
    desk.await_events("grows", "capacity", 2, process)
    (desk.folder / "hurry").touch()
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert "the cluster has room for 3 trials at a time now" in said
    assert slots(desk, "grows") == [3, 1]
    check_whole(desk, "grows", 4)


@pytest.mark.nightly  # test_autoscaling.py begins without a node, too
def test_a_cluster_that_has_no_node_yet_is_waited_for_where_somebody_says_how_many(
    desk: Desk, cluster: RayCluster
) -> None:
    cluster.start("head", address="127.0.0.1", cpus=0)
    file = desk.write("empty", trials=3, max_steps=2, concurrency=None)
    desk.environment |= cluster.environment
    refused = desk.run("run", file, expect=2).stderr
    assert "no node of the cluster can hold a trial" in refused
    assert "REGROW_SLOTS" in refused
    process = desk.start("run", file, REGROW_SLOTS="2")
    desk.await_events("empty", "started", 2, process)
    cluster.start("first", address="127.0.0.1", cpus=2)
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert "No node of the cluster can hold a trial now" in said
    assert sum(event["event"] == "started" for event in desk.events("empty")) == 3, (
        "nothing was lost while it waited"
    )
    check_whole(desk, "empty", 3)
