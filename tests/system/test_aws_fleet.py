"""Fleets of agents on AWS without an account: moto answers for EC2, IAM and S3, and each instance is
a host of the lab that runs its user data.

What is not there: the real EC2's limits and delays, real images, the rights of IAM, and systemd, of
which a host has what a unit needs. A machine that is gone is replaced by the lab, as EC2 does in a
fleet of type maintain, and moto does not.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from regrow.infra.machine import capacity
from tests.lab import cloud as lab
from tests.lab.cloud import Cloud
from tests.system.hosts import await_
from tests.system.test_ssh_cluster import REGROW

pytestmark = [
    pytest.mark.skipif(bool(lab.why_not()), reason=lab.why_not() or "a cloud can be made"),
    pytest.mark.timeout(900),  # machines that come and go, one after the other
]
STATE = "s3://lab/sweeps"
PRICES = "InstanceType,Region,Price,SpotPrice\nm5.large,us-west-2,0.096,0.03\nm5.xlarge,us-west-2,0.192,0.06\n"
TRAIN = """
import os, pathlib, time
assert os.environ["TOKEN"] == {secret!r}
def train(trial):
    for step in trial.steps():
        time.sleep(0.1)
        while step == 3 and not pathlib.Path({go!r}).exists():
            time.sleep(0.2)
        trial.report({{"loss": trial.config["x"] + 1 / step}}, checkpoint=lambda folder: (folder / "x").write_text("x"))
"""
"""A trial's third step waits for the file `go`."""
SECRET = 'a-token-of-the-user\'s "own" $HOME'


def check_nothing_left(cloud: Cloud) -> None:
    """Nothing of the cluster is in the account, whatever it costs or may do."""
    states = {
        one["State"]["Name"]
        for found in cloud.call("ec2", "describe_instances")["Reservations"]
        for one in found["Instances"]
    }
    assert states <= {"terminated"}
    assert [
        one["GroupName"] for one in cloud.call("ec2", "describe_security_groups")["SecurityGroups"]
    ] == ["default"]
    assert cloud.call("ec2", "describe_key_pairs")["KeyPairs"] == []
    assert cloud.call("ec2", "describe_volumes")["Volumes"] == []
    assert cloud.call("iam", "list_instance_profiles")["InstanceProfiles"] == []
    assert [
        one
        for one in cloud.call("iam", "list_roles")["Roles"]
        if not one["Path"].startswith("/aws-service-role/")
    ] == []


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    with lab.cloud(tmp_path) as made:
        made.call(
            "s3",
            "create_bucket",
            Bucket="lab",
            CreateBucketConfiguration={"LocationConstraint": lab.REGION},
        )
        yield made
        assert made.failed == []


def write(cloud: Cloud, *, trials: int, steps: int, **changed: Any) -> None:
    """Writes the cluster file and the experiment."""
    project = cloud.laptop.home / "project"
    project.mkdir()
    (project / "prices.csv").write_text(PRICES)
    (project / "work.py").write_text(TRAIN.format(secret=SECRET, go=str(go(cloud))))
    (project / "cluster.yaml").write_text(
        yaml.safe_dump(
            {
                "name": "lab",
                "on": "aws",
                "region": lab.REGION,
                "user": "root",
                "image": "ami-12c6146b",
                "zones": ["us-west-2b", "us-west-2a"],
                "prices": "prices.csv",
                "workers": [{"type": "m5.large", "market": "spot", "most": 2}],
                "python": sys.executable,
                "env": {"REGROW_CLOUD": "aws", "TOKEN": "$TOKEN"},
                **changed,
            }
        )
    )
    spec = {
        "name": "sweep",
        "trainable": "work.py:train",
        "space": {"x": {"uniform": [0, 1]}},
        "metric": "loss",
        "mode": "min",
        "search": "random",
        "trials": trials,
        "max_steps": steps,
        "resources": {"cpu": 2},
        "concurrency": 2,
        "checkpoint": {"every_steps": 1},
    }
    (project / "sweep.yaml").write_text(yaml.safe_dump(spec))


def go(cloud: Cloud) -> Path:
    """The file for which trials wait."""
    return cloud.hosts.shared / "go"


def typed(cloud: Cloud, *words: str, check: bool = True) -> str:
    """What regrow says, as a client of the cloud."""
    done = ran(cloud, *words, check=check)
    return done.stdout + done.stderr


def ran(cloud: Cloud, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return cloud.hosts.run(
        cloud.laptop,
        *("bash", "-c", 'cd project && exec "$@"', "-", *REGROW, *words),
        environment={**cloud.environment, "TOKEN": SECRET},
        check=check,
        seconds=500,
    )


def show(cloud: Cloud) -> dict[str, Any]:
    """The experiment's state; empty before it began."""
    said = typed(cloud, "show", "sweep", "--state", STATE, "--json", check=False)
    return dict(json.loads(said)) if said.startswith("{") else {}


def attempts(cloud: Cloud) -> list[dict[str, Any]]:
    """All attempts that run or ran on a machine."""
    trials = show(cloud).get("trials", [])
    return [one for trial in trials for one in trial["attempts"] if one["node"] is not None]


def fleets(cloud: Cloud) -> list[str]:
    """The states of all fleets that there ever were."""
    return [one["FleetState"] for one in cloud.call("ec2", "describe_fleets")["Fleets"]]


def objects(cloud: Cloud) -> list[str]:
    """What the machines get from the bucket."""
    listed = cloud.call("s3", "list_objects_v2", Bucket="lab", Prefix="sweeps/sweep/agents/fleet/")
    return [one["Key"] for one in listed.get("Contents", [])]


def by_type(cloud: Cloud) -> dict[str, int]:
    """How many machines there are of each type."""
    found = [
        one["InstanceType"]
        for reservation in cloud.call("ec2", "describe_instances")["Reservations"]
        for one in reservation["Instances"]
        if one["State"]["Name"] in ("pending", "running")
    ]
    return {name: found.count(name) for name in sorted(set(found))}


def submit(cloud: Cloud, *more: str) -> str:
    words = (
        "cluster",
        "submit",
        "cluster.yaml",
        "sweep.yaml",
        "--state",
        STATE,
        "--yes",
    )
    return typed(cloud, *words, *more)


def check_safe(cloud: Cloud) -> None:
    """No secret is where others may read it, and nobody but the machines reaches a machine."""
    (template,) = cloud.call("ec2", "describe_launch_templates")["LaunchTemplates"]
    versions = cloud.call(
        "ec2", "describe_launch_template_versions", LaunchTemplateId=template["LaunchTemplateId"]
    )["LaunchTemplateVersions"]
    described = json.dumps([versions, cloud.call("ec2", "describe_fleets")])
    for file in cloud.folder.glob("user-data-*"):
        described += file.read_text()
    assert "TOKEN" not in described
    assert "a-token" not in described
    (group,) = [
        one
        for one in cloud.call("ec2", "describe_security_groups")["SecurityGroups"]
        if one["GroupName"] == "regrow-lab.agents"
    ]
    (rule,) = group["IpPermissions"]
    assert rule["IpRanges"] == []
    assert [one["GroupId"] for one in rule["UserIdGroupPairs"]] == [group["GroupId"]]


# By day tests/unit/test_aws_fleets.py has what a machine does with its fleet and its files, test_ssh_cluster.py
# hosts that are sent an agent, test_agents.py the loss of a leader's host.
@pytest.mark.nightly
def test_machines_join_are_replaced_and_end_with_the_experiment(cloud: Cloud) -> None:
    write(cloud, trials=4, steps=20)
    assert "at most 0.06 USD an hour" in submit(cloud)
    await_(lambda: len({one["node"] for one in attempts(cloud)}) == 2, "two machines", seconds=300)
    assert {
        (one["market"], one["node_price_per_hour"], one["node_type"]) for one in attempts(cloud)
    } == {("spot", 0.03, "m5.large")}
    check_safe(cloud)
    assert "sweep: 2 running\n" in typed(cloud, "cluster", "status", "cluster.yaml")
    assert "has fleets already" in submit(cloud)

    (leader,) = [one["host"] for one in show(cloud)["agents"] if one["state"] == "leads"]
    (first,) = [name for name, host in cloud.machines.items() if host.name == leader]
    cloud.take(first)
    await_(lambda: len(cloud.machines) == 3, "the lab's replacement", seconds=120)
    new = {host.name for name, host in cloud.machines.items() if name != first}
    await_(
        lambda: {one["host"] for one in show(cloud)["agents"] if one["left"] is None} == new,
        "an agent on the new machine",
        seconds=300,
    )
    go(cloud).touch()
    await_(lambda: show(cloud)["status"] == "finished", "end of the experiment", seconds=300)
    assert [trial["steps"] for trial in show(cloud)["trials"]] == [20] * 4

    # Nobody types anything: the machines delete the fleet, and with it themselves.
    await_(lambda: not cloud.running(), "end of all machines", seconds=300)
    assert fleets(cloud) == ["deleted_terminating"]
    assert len(cloud.machines) == 3
    assert objects(cloud) == []
    assert "nothing of the cluster lab is left" in typed(
        cloud, "cluster", "down", "cluster.yaml", "--yes"
    )
    check_nothing_left(cloud)
    assert cloud.call("ec2", "describe_launch_templates")["LaunchTemplates"] == []


BOTH = [
    {"type": "m5.large", "market": "spot", "most": 1},
    {"type": "m5.xlarge", "most": 2},
]


@pytest.mark.nightly
def test_on_demand_machines_come_for_trials_that_wait_for_one_and_leave_when_idle(
    cloud: Cloud,
) -> None:
    write(cloud, trials=2, steps=5, workers=BOTH, idle=10)
    project = cloud.laptop.home / "project"
    work = project / "work.py"
    # The first trial alone waits for `go`.
    work.write_text(work.read_text().replace("while step == 3", "while trial.number == 0 and step"))
    spec = yaml.safe_load((project / "sweep.yaml").read_text())
    del spec["concurrency"]
    (project / "sweep.yaml").write_text(yaml.safe_dump({**spec, "market": "on-demand"}))

    submit(cloud)
    assert by_type(cloud) == {"m5.large": 1, "m5.xlarge": 1}, "one on demand: nothing waits yet"
    await_(lambda: by_type(cloud)["m5.xlarge"] == 2, "a machine for the other trial", seconds=200)
    await_(lambda: by_type(cloud)["m5.xlarge"] == 1, "its end without a trial", seconds=200)
    (running,) = [one for one in show(cloud)["trials"] if one["state"] != "done"]
    assert running["number"] == 0
    assert {(one["market"], one["node_type"]) for one in attempts(cloud)} == {
        ("on-demand", "m5.xlarge")
    }
    assert len({one["node"] for one in attempts(cloud)}) == 2
    assert by_type(cloud) == {"m5.large": 1, "m5.xlarge": 1}
    assert "its machine had no trial for 10 s" in [one["why"] for one in show(cloud)["agents"]]

    go(cloud).touch()
    await_(lambda: show(cloud)["status"] == "finished", "end of the experiment", seconds=300)
    await_(lambda: not cloud.running(), "end of all machines", seconds=300)
    assert len(cloud.machines) == 3
    typed(cloud, "cluster", "down", "cluster.yaml", "--yes")
    check_nothing_left(cloud)


@pytest.mark.nightly
def test_where_no_spot_machine_can_be_had_trials_continue_on_demand(cloud: Cloud) -> None:
    write(cloud, trials=2, steps=5, workers=[{**BOTH[0], "most": 2}, BOTH[1]])
    project = cloud.laptop.home / "project"
    spec = yaml.safe_load((project / "sweep.yaml").read_text())
    del spec["concurrency"]
    spec["market"] = {"first": "spot", "after": "60s"}
    # Ray may give the CPUs of a task that waits for an answer to another one, but not its memory.
    spec["resources"]["memory"] = int(0.4 * capacity.memory())
    (project / "sweep.yaml").write_text(yaml.safe_dump(spec))
    submit(cloud)
    await_(lambda: len(attempts(cloud)) == 2, "both trials", seconds=200)
    assert {one["market"] for one in attempts(cloud)} == {"spot"}

    (cloud.folder / "no-spot").touch()
    types = {
        one["InstanceId"]: one["InstanceType"]
        for reservation in cloud.call("ec2", "describe_instances")["Reservations"]
        for one in reservation["Instances"]
    }
    for name in [name for name, kind in types.items() if kind == "m5.large"]:
        cloud.take(name)
    await_(lambda: by_type(cloud) == {"m5.xlarge": 2}, "another machine on demand", seconds=300)

    def nodes() -> set[str]:
        return {one["node"] for one in attempts(cloud) if one["market"] == "on-demand"}

    await_(lambda: len(nodes()) == 2, "both trials on demand", seconds=200)
    go(cloud).touch()
    await_(lambda: show(cloud)["status"] == "finished", "end of the experiment", seconds=300)
    assert [trial["steps"] for trial in show(cloud)["trials"]] == [5, 5]
    await_(lambda: not cloud.running(), "end of all machines", seconds=300)
    typed(cloud, "cluster", "down", "cluster.yaml", "--yes")
    check_nothing_left(cloud)


@pytest.mark.nightly
def test_one_command_follows_it_and_leaves_nothing(cloud: Cloud) -> None:
    write(cloud, trials=2, steps=5)
    go(cloud).touch()
    words = ("run", "sweep.yaml", "--on", "cluster.yaml", "--state", STATE, "--yes")
    done = ran(cloud, *words)
    assert "sweep finished: 2 of 2 trials" in done.stdout
    assert "nothing of sweep is left" in done.stderr
    assert objects(cloud) == []
    check_nothing_left(cloud)
    assert cloud.call("ec2", "describe_launch_templates")["LaunchTemplates"] == []
    again = ran(cloud, *words)
    assert "sweep finished: 2 of 2 trials" in again.stdout
    assert len(fleets(cloud)) == 1


@pytest.mark.nightly
def test_a_fleet_whose_machines_cannot_take_part_ends_and_says_why(cloud: Cloud) -> None:
    write(cloud, trials=2, steps=5, setup=["echo no such driver; exit 7"])
    words = ("run", "sweep.yaml", "--on", "cluster.yaml", "--state", STATE, "--yes")
    done = ran(cloud, *words, check=False)
    assert done.returncode == 3
    assert "ended before it" in done.stderr
    assert "no such driver" in done.stderr
    await_(lambda: not cloud.running(), "end of all machines", seconds=300)
    # Those that were under way when the fleet was deleted count, too.
    assert 5 <= len(cloud.machines) <= 7
    assert "no such driver" in typed(cloud, "cluster", "logs", "cluster.yaml")
    typed(cloud, "cluster", "down", "cluster.yaml", "--yes")
    assert objects(cloud) == []
    check_nothing_left(cloud)
