"""What a trial starts on Ray finds the trial's code, its variables and its folder, wherever the
cluster is.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.conftest import Desk, await_no_process
from tests.system.hosts import RayCluster, ray_cluster

pytestmark = pytest.mark.usefixtures("shared_prefect")

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
    for step in trial.steps():
        trial.report({"score": 1.0, "here": float(os.getcwd() == "HERE")})
"""


@pytest.fixture
def cluster(desk: Desk) -> Iterator[RayCluster]:
    """A cluster of the user's own, with a head of two CPUs."""
    with ray_cluster(desk.environment) as made:
        made.start("head", address="127.0.0.1", cpus=2)
        yield made


def run_it(desk: Desk, **environment: str) -> float:
    """Runs a trial whose code lies two folders below the one where the command is typed; whether it
    ran in that.
    """
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
        env={"WISH": "42"},
        resources={"cpu": 1, "children": {"cpu": 0.5, "count": 2}},
    )
    desk.run("run", file.rename(folder / "own.yaml"), **environment)  # type: ignore[arg-type]  # variables
    (point,) = desk.points("own")
    return float(point["here"])


@pytest.mark.nightly  # test_station.py has the cluster that regrow starts
def test_on_this_machine(desk: Desk) -> None:
    assert run_it(desk)
    assert await_no_process(desk.folder) == []


def test_on_a_cluster_of_the_users_own(desk: Desk, cluster: RayCluster) -> None:
    assert not run_it(desk, **cluster.environment), "it is where Ray has unpacked the code"
