"""Clusters on AWS without an account: moto answers for EC2 and IAM, and each instance is a host of
the lab.

What is not there: the real EC2's limits and delays, real images, and the rights of IAM, which moto
does not enforce.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from regrow.infra.state.places import Places
from regrow.search.history.records import Attempt
from tests.lab import cloud as lab
from tests.lab.cloud import Cloud
from tests.system.hosts import await_
from tests.system.test_ssh_cluster import REGROW, Field

pytestmark = [
    pytest.mark.skipif(bool(lab.why_not()), reason=lab.why_not() or "a cloud can be made"),
    pytest.mark.timeout(1200),  # machines that come and go, one after the other
]
TRAIN = """
import time
def train(trial):
    for step in trial.steps():
        time.sleep(0.5)
        trial.report({"loss": trial.config["x"] + 1 / step}, checkpoint=lambda folder: (folder / "x").write_text("x"))
"""
PRICES = "InstanceType,Region,Price,SpotPrice\nm5.large,us-west-2,0.096,0.03\nm5.xlarge,us-west-2,0.192,0.06\n"
KEYS = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@dataclass
class Away(Field):
    """What a user types whose cluster is in the cloud."""

    cloud: Cloud

    def describe(self, **changed: Any) -> None:
        """Writes the cluster file."""
        project = self.laptop.home / "project"
        project.mkdir(exist_ok=True)
        description = {
            "name": "lab",
            "on": "aws",
            "region": lab.REGION,
            "private": True,
            "user": "root",
            "image": "ami-12c6146b",
            "zones": ["us-west-2b", "us-west-2a"],
            "head": {"type": "m5.large"},
            "idle": "30s",
            "prices": "prices.csv",
            "workers": [{"type": "m5.large", "market": "spot", "most": 2}],
            "python": sys.executable,
            "shared": [str(self.hosts.shared)],
            "env": {"REGROW_CLOUD": "aws", **{name: f"${name}" for name in KEYS}},
            **changed,
        }
        (project / "prices.csv").write_text(PRICES)
        (project / "cluster.yaml").write_text(yaml.safe_dump(description))

    def search(self, name: str, *, trials: int, steps: int) -> None:
        """Writes an experiment whose trials take a machine each."""
        project = self.laptop.home / "project"
        (project / "work.py").write_text(TRAIN)
        spec = {
            "name": name,
            "trainable": "work.py:train",
            "space": {"x": {"uniform": [0, 1]}},
            "metric": "loss",
            "mode": "min",
            "search": "random",
            "trials": trials,
            "max_steps": steps,
            "state": self.state,
            "resources": {"cpu": 2},
            "concurrency": 2,
            "checkpoint": {"every_steps": 1},
            "retries": {"infrastructure": 0, "error": 0},
        }
        (project / f"{name}.yaml").write_text(yaml.safe_dump(spec))

    def typed(self, *words: str) -> str:
        """What regrow says, as a client of the cloud."""
        line = 'cd project && exec "$@"'
        done = self.hosts.run(
            self.laptop,
            "bash",
            "-c",
            line,
            "-",
            *REGROW,
            *words,
            environment=self.cloud.environment,
            seconds=500,
        )
        return done.stdout + done.stderr

    def attempts(self, name: str) -> list[Attempt]:
        """All that have begun."""
        trials = self.history(name).trials if name in Places.at(self.state).experiments() else []
        return [
            attempt for trial in trials for attempt in trial.attempts if attempt.node is not None
        ]

    def ended(self, name: str, outcome: str) -> list[Attempt]:
        return [attempt for attempt in self.attempts(name) if attempt.outcome == outcome]


@pytest.fixture
def away(tmp_path: Path) -> Iterator[Away]:
    with lab.cloud(tmp_path) as cloud:
        yield Away(cloud.hosts, tmp_path, cloud)
        assert cloud.failed == []


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


def check_safe(cloud: Cloud) -> None:
    """What runs is as open, and may do as much, as it needs."""
    (group,) = [
        one
        for one in cloud.call("ec2", "describe_security_groups")["SecurityGroups"]
        if one["GroupName"] == "regrow-lab"
    ]
    assert [one["CidrIp"] for rule in group["IpPermissions"] for one in rule["IpRanges"]] == [
        f"{lab.LAPTOP}/32"
    ]
    instances = [
        one
        for found in cloud.call("ec2", "describe_instances")["Reservations"]
        for one in found["Instances"]
    ]
    for one in instances:
        assert [group["GroupName"] for group in one["SecurityGroups"]] == ["regrow-lab"]
        assert one["MetadataOptions"]["HttpTokens"] == "required"
        tags = {tag["Key"]: tag["Value"] for tag in one["Tags"]}
        assert tags.keys() >= {
            "ray-cluster-name",
            "regrow-cluster",
            "regrow-user",
            "regrow-expires",
        }
        assert ("IamInstanceProfile" in one) == (tags["ray-node-type"] == "head")
    assert {one["Encrypted"] for one in cloud.call("ec2", "describe_volumes")["Volumes"]} == {True}
    attached = cloud.call("iam", "list_attached_role_policies", RoleName="regrow-lab")[
        "AttachedPolicies"
    ]
    assert attached == []


@pytest.mark.nightly
def test_spot_machines_come_with_the_trials_are_taken_away_with_and_without_notice_and_go(
    away: Away,
) -> None:
    cloud = away.cloud
    away.describe(workers=[{"type": "m5.large", "market": "spot", "most": 3}])
    away.search("sweep", trials=2, steps=160)
    away.typed("cluster", "up", "cluster.yaml", "--yes")
    assert (cloud.running("spot"), len(cloud.running())) == ([], 1)
    away.typed("cluster", "submit", "cluster.yaml", "sweep.yaml")
    await_(
        lambda: len({one.node for one in away.attempts("sweep")}) == 2,
        "trials on two machines",
        seconds=300,
    )
    assert {(one.market, one.node_price, one.node_type) for one in away.attempts("sweep")} == {
        ("spot", 0.03, "m5.large")
    }
    check_safe(cloud)
    assert len(cloud.running("spot")) == 2
    assert "is up; what is missing" in away.typed("cluster", "up", "cluster.yaml", "--yes")
    assert len(cloud.running()) == 3

    first, second = cloud.running("spot")
    cloud.notify(first)
    await_(lambda: away.ended("sweep", "preempted"), "a trial that leaves in time", seconds=60)
    await_(lambda: len(away.attempts("sweep")) == 3, "the trial on another machine", seconds=300)
    cloud.take(first)
    assert away.show("sweep")["wasted_steps"] == 0

    cloud.take(second)
    await_(lambda: away.ended("sweep", "lost"), "loss of an attempt", seconds=120)
    await_(lambda: away.history("sweep").closed, "end of the experiment", seconds=400)
    assert away.show("sweep")["wasted_steps"] <= 1
    away.whole("sweep", 2, 160)

    await_(lambda: not cloud.running(), "end of all machines, which nobody asked for", seconds=240)
    assert "nothing of the cluster lab is left" in away.typed(
        "cluster", "down", "cluster.yaml", "--yes"
    )
    check_nothing_left(cloud)


@pytest.mark.nightly
def test_where_no_spot_machine_can_be_had_trials_go_on_demand_after_a_while(away: Away) -> None:
    cloud = away.cloud
    away.describe(
        workers=[
            {"type": "m5.large", "market": "spot", "most": 2},
            {"type": "m5.large", "market": "on-demand", "most": 1, "after": "15s"},
        ]
    )
    away.search("refused", trials=1, steps=10)
    cloud.spot(there=False)
    away.typed("cluster", "up", "cluster.yaml", "--yes")
    away.typed("cluster", "submit", "cluster.yaml", "refused.yaml")
    await_(lambda: "spot refused" in cloud.asked(), "a refusal", seconds=120)
    await_(lambda: away.attempts("refused"), "a trial on another machine", seconds=240)
    assert [(one.market, one.node_price) for one in away.attempts("refused")] == [
        ("on-demand", 0.096)
    ]
    check_safe(cloud)
    await_(lambda: away.history("refused").closed, "end of the experiment", seconds=120)
    away.whole("refused", 1, 10)
    assert "ending" in away.typed("cluster", "down", "cluster.yaml", "--yes")
    check_nothing_left(cloud)
