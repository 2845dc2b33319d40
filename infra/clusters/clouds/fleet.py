"""Fleets of agents on Amazon EC2: the documents that EC2 and the machines get. Pure.

One fleet of type `maintain` for each group of workers: EC2 itself replaces a machine that is taken
away. A machine makes itself an agent (`regrow join`) from its user data, which hold no secret: the
agent's files are objects of the state's bucket, which the machine's role may read.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import shlex
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from regrow.infra.clusters.clouds import aws, groups
from regrow.infra.clusters.clouds.aws import EXPIRY_TAG, USER_TAG, called
from regrow.infra.clusters.description import Aws, Workers
from regrow.infra.clusters.launcher import Launcher, Site
from regrow.infra.clusters.prices import Prices
from regrow.infra.state.places import Places
from regrow.infra.stores.keys import CONFIDENTIAL
from regrow.infra.stores.s3 import is_s3
from regrow.tasks.errors import UserError

Json = dict[str, Any]
AGENTS_TAG, EXPERIMENT_TAG, GROUP_TAG = "regrow-agents", "regrow-experiment", "regrow-group"
"""Tags of all that belongs to fleets of agents: the cluster's name, the experiment, the group."""
STATE_TAG = "regrow-state"
"""Tag of a launch template: the root of the experiment's state."""
MOST_USER_DATA = 16_384
"""Bytes that EC2 allows, before base64."""
MOST_PROJECT = 100_000_000
"""Bytes of a packed project."""
MOST_TAG = 256
"""Characters of a tag's value that EC2 allows."""
PARAMETER = "resolve:ssm:"
"""Beginning of an image that is the name of a parameter of AWS's with its id."""
_END = "END_OF_FILE"
_USER_DATA = """\
#!/bin/bash
# Makes this machine an agent of the experiment {experiment}. Written by regrow; holds no secret.
export HOME=/root AWS_DEFAULT_REGION={region}{endpoint}
user={user}
home=$(getent passwd "$user" | cut -d: -f6)
there="$home"/{there}
python={python}
mkdir -p "$there/project" && cd "$there" || exit 1
cat > fleet.json <<'{end}'
{fleet}
{end}
cat > machine.py <<'{end}'
{machine}{end}
cat > regrow-agent.service <<{end}
[Unit]
Description=An agent of the experiment {experiment}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
User=$user
ExecStart=/bin/bash "$there/agent.sh" {arguments}
ExecStopPost=+systemd-run --collect --no-block "$python" \\
  "$there/machine.py" ended \\$EXIT_STATUS
Restart=on-failure
RestartPreventExitStatus=2 3 4
RestartSec=10
KillMode=mixed
TimeoutStopSec=90
OOMPolicy=continue
LimitNOFILE=65536
TasksMax=infinity

[Install]
WantedBy=multi-user.target
{end}
(
  set -e
{install}  "$python" machine.py fetch
  tar -xzf parcel.tar.gz --no-same-owner
  tar -xzf project.tar.gz -C project --no-same-owner
  chown -R "$user" "$there" && chown root machine.py fleet.json regrow-agent.service
  runuser -u "$user" -- env HOME="$home" bash -l prepare.sh
) > prepare.log 2>&1
if [ $? = 0 ]; then
  systemctl enable --now "$there/regrow-agent.service"
else
  cat prepare.log
  "$python" machine.py ended 2
fi
"""
_INSTALL = """\
  python3 -c 'import botocore, pip' 2> /dev/null || {{
    export DEBIAN_FRONTEND=noninteractive
    wait="-o DPkg::Lock::Timeout=600"
    apt-get $wait update -qq && apt-get $wait install -y -qq python3-botocore python3-pip
  }}
""".replace("{{", "{").replace("}}", "}")
_REGROW = """\
# `regrow`, as this machine's agent runs it.
there={there}
cd "$there/project"
export AWS_DEFAULT_REGION={region}{endpoint}
. "$there/environment"
export PATH="$(dirname {python}):$PATH"
exec {python} -m regrow "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Where an experiment's state is: a bucket, and the prefix of the root in it ("": none)."""

    name: str
    prefix: str

    @classmethod
    def of(cls, root: str) -> Bucket:
        """Return the bucket of a state root in its canonical form. Raises UserError for a root that
        is not in a bucket of Amazon's.
        """
        parts = urlsplit(root)
        if not is_s3(root) or parse_qs(parts.query).get("endpoint_url"):
            raise UserError(
                f"--state: {root} is in no bucket of Amazon's, from which the machines of a fleet"
                " get their files; give --state s3://BUCKET/PREFIX"
            )
        return cls(name=parts.netloc, prefix=parts.path.strip("/"))

    def folder(self, cluster: str, order: Order) -> str:
        """Return the key of the folder for the objects of fleets."""
        above = f"{self.prefix}/" if self.prefix else ""
        return f"{above}{order.experiment}/{objects(cluster, order)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An experiment for fleets of agents.

    Attributes:
        experiment: its name.
        state: root of its state.
        words: arguments of `regrow` with which an agent joins it in the project's folder.
        user: who submits it.
        expires: when the fleets and their machines end at the latest, in ISO 8601. Also tells them
            from those that were submitted before.
        endpoint: address of AWS's interfaces; None: Amazon's own.

    """

    experiment: str
    state: str
    words: Sequence[str]
    user: str
    expires: str
    endpoint: str | None = None


def objects(cluster: str, order: Order | None = None) -> str:
    """Return the key, below the experiment, of the folder for a cluster's fleets: of one order, or
    of all.
    """
    above = f"{CONFIDENTIAL}fleet/{cluster}"
    return above if order is None else f"{above}/{re.sub('[^0-9T]', '', order.expires)}"


def agents_called(cluster: str) -> str:
    """Return the name of what is made for agents. No cluster has one with a dot in it."""
    return f"{called(cluster)}.agents"


def template_name(cluster: Aws, order: Order, place: int) -> str:
    """Return the name of a group's launch template."""
    return f"{agents_called(cluster.name)}.{order.experiment}.{place}"


def tags(cluster: Aws, order: Order, place: int) -> dict[str, str]:
    """Return the tags of a group's fleet, template, machines and disks."""
    return {
        AGENTS_TAG: cluster.name,
        EXPERIMENT_TAG: order.experiment,
        GROUP_TAG: groups.name(place, cluster.workers[place]),
        USER_TAG: order.user,
        EXPIRY_TAG: order.expires,
    }


def launch_template(
    cluster: Aws,
    order: Order,
    prices: Prices,
    place: int,
    *,
    image: str,
    security_group: str,
) -> Json:
    """Return the parameters of EC2's CreateLaunchTemplate for a group. Raises UserError for user
    data that are too large, and for too long an address of the state.

    Args:
        cluster: the cluster.
        order: the experiment.
        prices: prices per hour.
        place: of the group.
        image: id of the image. A fleet takes no name of a parameter.
        security_group: its id.

    """
    if len(order.state) > MOST_TAG:
        raise UserError(
            f"--state {order.state[:60]}...: has more than {MOST_TAG} characters, and a tag of EC2"
            " has no more; give a shorter prefix"
        )
    group, ours = cluster.workers[place], tags(cluster, order, place)
    data = groups.template(
        "aws_template",
        image=image,
        type=group.type,
        disk=group.disk,
        security_groups=[security_group],
        profile=cluster.role or agents_called(cluster.name),
        tags=[aws.tagged(kind, ours) for kind in ("instance", "volume")],
        user_data=base64.b64encode(user_data(cluster, order, prices, place).encode()).decode(),
    )
    return {
        "LaunchTemplateName": template_name(cluster, order, place),
        "LaunchTemplateData": data,
        "TagSpecifications": [aws.tagged("launch-template", {**ours, STATE_TAG: order.state})],
    }


def create_fleet(cluster: Aws, order: Order, place: int, overrides: Sequence[Json]) -> Json:
    """Return the parameters of EC2's CreateFleet for a group. `overrides`: where its machines may
    be; see `preferred`.
    """
    group = cluster.workers[place]
    spot = group.market == "spot"
    return groups.template(
        "aws_fleet",
        template=template_name(cluster, order, place),
        overrides=list(overrides) or None,
        most=group.most,
        market=group.market,
        spot={
            "AllocationStrategy": "capacity-optimized-prioritized",
            "InstanceInterruptionBehavior": "terminate",
        }
        if spot
        else None,
        on_demand=None if spot else {"AllocationStrategy": "prioritized"},
        expires=order.expires,
        tags=[aws.tagged("fleet", tags(cluster, order, place))],
    )


def preferred(key: str, places: Sequence[str]) -> list[Json]:
    """Return overrides for subnets or zones, the preferred one first. `key`: of EC2's."""
    return [{key: place, "Priority": float(rank)} for rank, place in enumerate(places)]


def rights(cluster: Aws, state: str) -> Json:
    """Return the rights of the machines: the state's objects, and to delete their own fleets."""
    bucket = Bucket.of(state)
    below = f"{bucket.prefix}/*" if bucket.prefix else "*"
    return groups.template(
        "aws_agent_rights",
        name=cluster.name,
        region=cluster.region,
        bucket=bucket.name,
        objects=f"{bucket.name}/{below}",
        # IfExists: a request for one object has no prefix, and S3 tells only who may list that it
        # is not there.
        listed={"StringLikeIfExists": {"s3:prefix": [below]}} if bucket.prefix else None,
    )


def user_data(cluster: Aws, order: Order, prices: Prices, place: int) -> str:
    """Return the script that a group's machine runs once, at its first start. Raises UserError if
    it is too large.
    """
    group, bucket = cluster.workers[place], Bucket.of(order.state)
    aws.parsed(group.type, f"workers.{place}.type")
    ours = tags(cluster, order, place)
    fleet = {
        "region": cluster.region,
        "endpoint": order.endpoint,
        "bucket": bucket.name,
        "folder": bucket.folder(cluster.name, order),
        "experiment": order.experiment,
        "state": order.state,
        "group": ours[GROUP_TAG],
        "group_tag": GROUP_TAG,
        "tags": {key: ours[key] for key in (AGENTS_TAG, EXPERIMENT_TAG, GROUP_TAG, EXPIRY_TAG)},
    }
    text = _USER_DATA.format(
        experiment=order.experiment,
        region=shlex.quote(cluster.region),
        endpoint=_endpoint(order),
        user=shlex.quote(groups.user(cluster)),
        there=_launcher(cluster).there,
        arguments=_arguments(cluster, group, prices),
        python=shlex.quote(cluster.python or "/usr/bin/python3"),
        fleet=json.dumps(fleet, indent=1),
        machine=Path(__file__).with_name("fleet_machine.py").read_text(encoding="utf-8"),
        install="" if cluster.python else _INSTALL,
        end=_END,
    )
    if (size := len(text.encode())) > MOST_USER_DATA:
        raise UserError(
            f"the user data of the fleet would have {size} bytes, and EC2 allows {MOST_USER_DATA};"
            " give shorter names"
        )
    return text


def parcel(cluster: Aws, order: Order, project: bytes) -> bytes:
    """Return the agent's files as a tar.gz, always the same bytes, without values of variables.

    `project`: the packed folder of the project.
    """
    launcher = _launcher(cluster)
    there = f'"$HOME"/{launcher.there}'
    prepare = ["set -e", f"cd {there}", *cluster.setup, *launcher.environment_commands()]
    files = {
        **launcher.shipped(),
        "project.tar.gz": project,
        "prepare.sh": "".join(f"{line}\n" for line in prepare).encode(),
        "regrow.sh": _regrow(cluster, order).encode(),
        "agent.sh": f'exec bash {there}/regrow.sh {shlex.join(order.words)} "$@"\n'.encode(),
    }
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as tar,
    ):
        for name, content in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o644
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def environment(values: Mapping[str, str]) -> bytes:
    """Return the shell's file of the agent's variables."""
    return "".join(
        f"export {name}={shlex.quote(value)}\n" for name, value in values.items()
    ).encode()


def forget(places: Places, experiment: str, cluster: str) -> None:
    """Delete the objects of a cluster's fleets for an experiment."""
    store = places.store(experiment)
    store.delete(store.list(f"{objects(cluster)}/"), ordered=False)


def _regrow(cluster: Aws, order: Order) -> str:
    launcher = _launcher(cluster)
    return _REGROW.format(
        there=f'"$HOME"/{launcher.there}',
        python=launcher.python(),
        region=shlex.quote(cluster.region),
        endpoint=_endpoint(order),
    )


def _endpoint(order: Order) -> str:
    """Return the rest of a line that exports variables."""
    return f" AWS_ENDPOINT_URL={shlex.quote(order.endpoint)}" if order.endpoint else ""


def _arguments(cluster: Aws, group: Workers, prices: Prices) -> str:
    """Return the arguments of `regrow join` that a group's machines have: their market and price
    reach the trials' costs as labels.
    """
    labels = groups.labels(prices, cluster.region, group.type, group.market)
    given = f"--labels {','.join(f'{key}={value}' for key, value in labels.items())}"
    return f"{given} --spot" if group.market == "spot" else given


def _launcher(cluster: Aws) -> Launcher:
    """Return a launcher that only knows how machines are set up."""
    return Launcher(cluster, Site(provider={}, auth={}, most=0))
