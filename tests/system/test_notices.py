"""A process or a node is about to go away and says so: the trial saves a checkpoint, leaves, and
loses not one step.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from tests.system import grouped
from tests.system.conftest import Desk, await_no_process, running
from tests.system.hosts import RayCluster, ray_cluster
from tests.system.test_main_job import check_whole, prefect
from tests.unit.metadata_service import ACTION, INSTANCE_ACTION, Service, serving

TRAIN = """
import time
from pathlib import Path

RELEASED = Path("FOLDER") / "released"


def train(trial):
    total = float((trial.restored / "total").read_text()) if trial.restored else 0.0
    for step in trial.steps():
        time.sleep(0.005 if RELEASED.exists() else 0.2)
        total += trial.config["x"]
        trial.report({"score": total}, checkpoint=lambda folder: (folder / "total").write_text(repr(total)))
"""
RARELY = {"every_steps": 1000}
"""So rarely that every checkpoint before the last step is one that a notice asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoNodes:
    """A cluster with one slot on each of two nodes, and what each node's cloud says to it, by the
    node's id.
    """

    cluster: RayCluster
    clouds: dict[str, Service]
    stack: ExitStack

    def start(self, name: str) -> None:
        """Adds a node."""
        self.stack.enter_context(serving(cloud := Service()))
        its_own = {
            "REGROW_CLOUD": "aws",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{cloud.address}",
        }
        self.cluster.start(name, address="127.0.0.1", cpus=1, environment=its_own)
        self.clouds[self.cluster.nodes[name]] = cloud


@pytest.fixture
def two_nodes(desk: Desk) -> Iterator[TwoNodes]:
    """Experiments of `desk` run on the two nodes; their driver is on a third one without slots."""
    with ExitStack() as stack:
        cluster = stack.enter_context(ray_cluster(desk.environment))
        cluster.start("head", address="127.0.0.1", cpus=0)
        found = TwoNodes(cluster=cluster, clouds={}, stack=stack)
        found.start("b")
        found.start("c")
        desk.environment |= cluster.environment
        yield found


def begin(
    desk: Desk, name: str, trials: int, *, infrastructure: int = 0, **environment: str
) -> subprocess.Popen[str]:
    """Starts an experiment whose trials run until `release`d, and returns once two of them do."""
    train = TRAIN.replace("FOLDER", str(desk.folder))
    # Of one try for each class of failure, none is to be used up by a preemption.
    retries = {"preempted": "unlimited", "infrastructure": infrastructure, "error": 0}
    file = desk.write(
        name, train=train, trials=trials, max_steps=300, checkpoint=RARELY, retries=retries
    )
    process = desk.start("run", file, **environment)
    desk.await_events(name, "began", 2, process)
    desk.await_events(name, "reported", 4, process)
    return process


def release(desk: Desk, name: str, process: subprocess.Popen[str], ended: int = 1) -> None:
    """Once so many attempts have ended, lets all others run to their end."""
    desk.await_events(name, "ended", ended, process)
    (desk.folder / "released").touch()
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said


def check_left_in_time(
    desk: Desk, name: str, trials: int, left: list[int], cause: str = "preempted"
) -> dict[str, Any]:
    """Everything is there, and the trials `left` were preempted once and continued at the next step,
    at no cost.
    """
    view = check_whole(desk, name, trials)
    assert view["wasted_steps"] == 0
    assert {e["cause"] for e in desk.events(name) if e["event"] == "ended" and "cause" in e} == {
        cause
    }
    for trial in view["trials"]:
        if trial["number"] not in left:
            assert [a["outcome"] for a in trial["attempts"]] == ["done"]
            continue
        first, second = trial["attempts"]
        assert first["outcome"] == "preempted", first
        assert second["outcome"] == "done"
        assert 0 < first["to_step"] == second["from_step"]
        saved = [
            e["step"]
            for e in desk.events(name)
            if e["event"] == "saved" and (e["trial"], e["attempt"]) == (trial["number"], 1)
        ]
        assert saved == [first["to_step"]]
    return view


def node_of(desk: Desk, name: str, trial: int, attempt: int) -> str:
    (began,) = [
        e
        for e in desk.events(name)
        if e["event"] == "began" and (e["trial"], e["attempt"]) == (trial, attempt)
    ]
    return str(began["node_id"])


@pytest.mark.nightly  # by day a rank of a group hears it, below
def test_a_worker_that_is_told_to_end_saves_and_its_trial_goes_on_at_the_next_step(
    desk: Desk,
) -> None:
    process = begin(desk, "term", 2, infrastructure=1, REGROW_CLOUD="none")
    (worker,) = running(desk.folder, "ray::trial-0000")
    os.kill(worker, signal.SIGTERM)
    release(desk, "term", process)
    view = check_left_in_time(desk, "term", 2, [0], "infrastructure")  # its node stays
    assert "SIGTERM" in view["trials"][0]["attempts"][0]["reason"]
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
    assert await_no_process(desk.folder) == []


@pytest.mark.usefixtures("shared_prefect")
def test_nodes_that_the_cloud_takes_back_or_ray_drains_are_left_and_get_nothing_more(
    desk: Desk, two_nodes: TwoNodes
) -> None:
    two_nodes.start("d")
    process = begin(desk, "left", 3)
    taken, doomed = (node_of(desk, "left", trial, 1) for trial in (0, 1))
    two_nodes.clouds[taken].answers[INSTANCE_ACTION] = 200, ACTION
    desk.await_events("left", "ended", 1, process)
    desk.await_events("left", "began", 3, process)
    words = [
        "drain-node",
        f"--node-id={doomed}",
        "--reason=DRAIN_NODE_REASON_PREEMPTION",
        "--reason-message=spot is gone",
    ]
    subprocess.run(
        [sys.executable, "-m", "ray.scripts.scripts", *words, "--deadline-remaining-seconds=30"],
        env=two_nodes.cluster.environment,
        check=True,
        capture_output=True,
        timeout=60,
    )
    release(desk, "left", process, 2)
    view = check_left_in_time(desk, "left", 3, [0, 1])
    assert (
        view["trials"][0]["attempts"][0]["reason"]
        == "AWS takes the spot instance back (terminate at 2017-09-18T08:22:00Z)"
    )
    nodes = [
        (e["trial"], e["attempt"], e["node_id"])
        for e in desk.events("left")
        if e["event"] == "began"
    ]
    for node, only in ((taken, (0, 1)), (doomed, (1, 1))):
        assert [(trial, attempt) for trial, attempt, at in nodes if at == node] == [only]


def step_by_step(
    desk: Desk, process: subprocess.Popen[str], name: str, attempt: int
) -> dict[str, Any]:
    """How an attempt of a group ended that was told to: it does a step at a time until it does."""

    def ended() -> list[dict[str, Any]]:
        rows = [row for e in grouped.events(desk, name, "reported") for row in e["rows"]]
        grouped.until(desk, max(step for step, *_ in rows) + 1)
        return grouped.events(desk, name, "ended", attempt=attempt)

    return grouped.wait(process, ended, "the end of an attempt that was told to leave")[0]


@pytest.mark.usefixtures("shared_prefect")
def test_what_one_rank_hears_of_its_end_all_obey_and_they_go_on_with_as_many_as_there_is_room_for(
    desk: Desk, two_nodes: TwoNodes
) -> None:
    file = grouped.write(
        desk,
        "group",
        points=[{"x": 3.0}],
        max_steps=40,
        checkpoint=RARELY,
        retries={"infrastructure": 1},
        resources={"cpu": 1, "workers": [1, 2], "reduce": "mean"},
    )
    process = desk.start("run", file)
    grouped.until(desk, 3)
    grouped.event(desk, process, "group", "reported", attempt=1)
    os.kill(grouped.ranks(desk)[1], signal.SIGTERM)
    told = step_by_step(desk, process, "group", 1)
    assert (told["outcome"], told["cause"]) == ("preempted", "infrastructure")
    assert "terminated by another program than regrow (SIGTERM)" in told["message"]

    second = grouped.event(desk, process, "group", "began", attempt=2)
    (other,) = second["others"]
    grouped.until(desk, told["step"] + 1)
    grouped.event(desk, process, "group", "reported", attempt=2)
    two_nodes.clouds[other["node_id"]].answers[INSTANCE_ACTION] = 200, ACTION
    taken = step_by_step(desk, process, "group", 2)
    assert (taken["outcome"], taken["message"][:3]) == ("preempted", "AWS")

    last = grouped.wait(
        process,
        lambda: [e for e in grouped.events(desk, "group", "began") if e["attempt"] > 2],
        "the last attempt",
    )[0]
    assert (last["node_id"], last.get("others", [])) == (second["node_id"], []), (
        "one worker has room"
    )
    print(f"began {last['t'] - taken['t']:.1f} s after the node was left")
    grouped.until(desk, grouped.END)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said

    view = check_whole(desk, "group", 1)
    assert view["wasted_steps"] == 0
    assert (second["restored"], last["restored"]) == (told["step"], taken["step"])
    assert [(e["attempt"], e["step"]) for e in grouped.events(desk, "group", "saved")] == [
        (1, told["step"]),
        (2, taken["step"]),
        (last["attempt"], 40),
    ]
    points = desk.points("group")
    assert [p["score"] for p in points] == grouped.scores(3.0, 40)
    assert {p["attempt"]: p["workers"] for p in points} == {1: 2, 2: 2, last["attempt"]: 1}
    widths = [e.get("width", 1) for e in grouped.events(desk, "group", "started")]
    assert widths in ([2, 2, 1], [2, 2, 2, 1]), (
        "whether the cluster knew when the third attempt was started"
    )
