"""Fleets of agents on AWS without an account: moto answers for EC2, IAM and S3, and each instance is
a host of the lab that runs its user data.

What is not there: the real EC2's limits and delays, real images, the rights of IAM, and systemd, of
which a host has what a unit needs. A machine that is gone is replaced by the lab, as EC2 does in a
fleet of type maintain, and moto does not.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab import cloud as lab
from tests.lab.cloud import Cloud
from tests.system.hosts import await_
from tests.system.test_aws_cluster import PRICES, TRAIN, check_nothing_left
from tests.system.test_ssh_cluster import REGROW

pytestmark = [
    pytest.mark.skipif(bool(lab.why_not()), reason=lab.why_not() or "a cloud can be made"),
    pytest.mark.timeout(900),  # machines that come and go, one after the other
]
STATE = "s3://lab/sweeps"
SECRET = "a-token-of-the-user's \"own\" $HOME"


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


def write(cloud: Cloud, *, trials: int, steps: int) -> None:
    """Writes the cluster file and the experiment."""
    project = cloud.laptop.home / "project"
    project.mkdir()
    (project / "prices.csv").write_text(PRICES)
    (project / "work.py").write_text(f"import os\nassert os.environ['TOKEN'] == {SECRET!r}\n{TRAIN}")
    (project / "cluster.yaml").write_text(
        yaml.safe_dump(
            {
                "name": "lab",
                "on": "aws",
                "region": lab.REGION,
                "user": "root",
                "image": "ami-12c6146b",
                "zones": ["us-west-2b", "us-west-2a"],
                "head": {"type": "m5.large"},
                "prices": "prices.csv",
                "workers": [{"type": "m5.large", "market": "spot", "most": 2}],
                "python": sys.executable,
                "env": {"REGROW_CLOUD": "aws", "TOKEN": "$TOKEN"},
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


def typed(cloud: Cloud, *words: str, check: bool = True) -> str:
    """What regrow says, as a client of the cloud."""
    done = cloud.hosts.run(
        cloud.laptop,
        *("bash", "-c", 'cd project && exec "$@"', "-", *REGROW, *words),
        environment={**cloud.environment, "TOKEN": SECRET},
        check=check,
        seconds=500,
    )
    return done.stdout + done.stderr


def show(cloud: Cloud) -> dict[str, Any]:
    """The experiment's state; empty before it began."""
    said = typed(cloud, "show", "sweep", "--state", STATE, "--json", check=False)
    return dict(json.loads(said)) if said.startswith("{") else {}


def test_machines_join_are_replaced_and_end_with_the_experiment(cloud: Cloud) -> None:
    write(cloud, trials=4, steps=60)
    said = typed(
        cloud, "cluster", "submit", "cluster.yaml", "sweep.yaml", "--agents", "--state", STATE, "--yes"
    )
    assert "at most 0.06 USD an hour" in said
    await_(lambda: show(cloud), "the experiment", seconds=200)
    print(show(cloud))
    print(typed(cloud, "agents", "sweep", "--state", STATE))
