"""Spot first, on-demand when it must be: on a cluster that starts machines of both kinds, one of
which is not to be had.
"""

from __future__ import annotations

import pytest

from tests.system.autoscaling import launches, start_head
from tests.system.conftest import Desk
from tests.system.hosts import RayCluster
from tests.system.test_capacity import cluster
from tests.system.test_main_job import check_whole

__all__ = ["cluster"]


@pytest.mark.nightly  # decided in tests/faults ("spot first")
def test_where_spot_is_refused_trials_go_on_demand_and_what_they_cost_is_known(
    desk: Desk, cluster: RayCluster
) -> None:
    start_head(cluster, idle_minutes=1.0, spot=1, on_demand=1)
    (cluster.temporary / "refused-spot").touch()
    desk.environment |= cluster.environment
    market = {"first": "spot", "after": "8s", "evictions": 3}
    said = desk.run(
        "run", desk.write("both", trials=2, max_steps=3, concurrency=2, market=market)
    ).stdout
    for trial in (0, 1):
        assert f"trial {trial} asks for an on-demand machine: it waited 8" in said
    assert set(launches(cluster)) == {"spot", "on-demand"}
    view = check_whole(desk, "both", 2)
    events = desk.events("both")
    assert sorted((e["trial"], e["market"]) for e in events if e["event"] == "started") == [
        (0, "on-demand"),
        (0, "spot"),
        (1, "on-demand"),
        (1, "spot"),
    ]
    began = [e for e in events if e["event"] == "began"]
    assert {(e["market"], e["price"], e["share"], e["node_type"]) for e in began} == {
        ("on-demand", 2.0, 0.5, "two-on-demand")
    }
    costs = [e["cost"] for e in events if e["event"] == "ended" and e["outcome"] == "done"]
    assert len(costs) == 2
    assert view["cost"] == pytest.approx(sum(costs), abs=1e-6)
    assert view["wasted_cost"] == 0.0
    assert {e["outcome"] for e in events if e["event"] == "ended"} == {"paused", "done"}, (
        "nothing counts as lost"
    )
