"""The documents that Amazon EC2 and its machines get for fleets of agents. Pure.

One fleet of type `maintain` for each group of workers: EC2 itself replaces a machine that is taken
away. Machines that come on need are of fleets of type `instant`, which EC2 forgets once they run:
nothing replaces one that ends. The files of the machines, the variables among them, are objects of
the state's bucket, which the machines' role may read.
"""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from regrow.infra.clusters.clouds import fleet, groups
from regrow.infra.clusters.clouds.fleet import (
    AGENTS_TAG,
    EXPERIMENT_TAG,
    EXPIRY_TAG,
    GROUP_TAG,
    STATE_TAG,
    Bucket,
    Order,
)
from regrow.infra.clusters.description import Aws
from regrow.infra.clusters.prices import Prices
from regrow.search.errors import SpecError
from regrow.tasks.errors import UserError

Json = dict[str, Any]
MOST_USER_DATA = 16_384
"""Bytes that EC2 allows, before base64."""
PARAMETER = "resolve:ssm:"
"""Beginning of an image that is the name of a parameter of AWS's with its id."""
_UBUNTU = (
    "resolve:ssm:/aws/service/canonical/ubuntu/server/24.04/stable/current/{}/hvm/ebs-gp3/ami-id"
)
_LEARNING = (
    "resolve:ssm:/aws/service/deeplearning/ami/x86_64/"
    "base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
)
_TYPE = re.compile(r"(?P<family>[a-z]+)(?P<generation>\d+)(?P<more>[a-z0-9-]*)\.[a-z0-9-]+")
parsed = partial(groups.parsed, _TYPE, what="type of EC2's", such="m6i.large")
"""Returns the parts of a type's name. Raises SpecError for what is none."""
_NVIDIA = frozenset({"g", "gr", "p"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The resources in the account for a cluster's machines."""

    subnets: dict[str, tuple[str, ...]]
    """Subnets of the network in use, by zone."""
    security_group: str


def resource_name(cluster: str) -> str:
    """Return the name of all that is made in the account for a cluster: role, security group."""
    return f"regrow-{cluster}.agents"


def template_name(cluster: Aws, order: Order, place: int) -> str:
    """Return the name of a group's launch template."""
    return f"{resource_name(cluster.name)}.{order.experiment}.{place}"


def exported(cluster: Aws, order: Order) -> str:
    """Return variables that name the cloud, as arguments of the shell's `export`."""
    found = f"AWS_DEFAULT_REGION={shlex.quote(cluster.region)}"
    return f"{found} AWS_ENDPOINT_URL={shlex.quote(order.endpoint)}" if order.endpoint else found


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
    data that are too large.

    Args:
        cluster: the cluster.
        order: the experiment.
        prices: prices per hour.
        place: of the group.
        image: id of the image. A fleet takes no name of a parameter.
        security_group: its id.

    """
    group, ours = cluster.workers[place], fleet.tags(cluster, order, place)
    data = groups.template(
        "aws_template",
        image=image,
        type=group.type,
        disk=group.disk,
        security_groups=[security_group],
        profile=cluster.role or resource_name(cluster.name),
        tags=[tagged(kind, ours) for kind in ("instance", "volume")],
        user_data=base64.b64encode(user_data(cluster, order, prices, place).encode()).decode(),
    )
    return {
        "LaunchTemplateName": template_name(cluster, order, place),
        "LaunchTemplateData": data,
        "TagSpecifications": [tagged("launch-template", {**ours, STATE_TAG: order.state})],
    }


def create_fleet(cluster: Aws, order: Order, place: int, overrides: Sequence[Json]) -> Json:
    """Return the parameters of EC2's CreateFleet for a group. `overrides`: where its machines may
    be; see `allowed`.

    Spot machines come from the zones that EC2 finds cheapest among those with the fewest
    interruptions to be expected: it knows the prices and the evictions of everybody. On demand a
    machine costs the same in each zone, and the first ones are preferred.
    """
    group = cluster.workers[place]
    spot = group.market == "spot"
    if not spot:
        overrides = [{**one, "Priority": float(rank)} for rank, one in enumerate(overrides)]
    if groups.on_need(cluster, place):
        return groups.template(
            "aws_fleet_on_need",
            template=template_name(cluster, order, place),
            overrides=list(overrides) or None,
            count=groups.first(cluster, place),
            tags=[tagged("fleet", fleet.tags(cluster, order, place))],
        )
    return groups.template(
        "aws_fleet",
        template=template_name(cluster, order, place),
        overrides=list(overrides) or None,
        most=group.most,
        market=group.market,
        spot={
            "AllocationStrategy": "price-capacity-optimized",
            "InstanceInterruptionBehavior": "terminate",
        }
        if spot
        else None,
        on_demand=None if spot else {"AllocationStrategy": "prioritized"},
        expires=order.expires,
        tags=[tagged("fleet", fleet.tags(cluster, order, place))],
    )


def allowed(key: str, places: Sequence[str]) -> list[Json]:
    """Return overrides for subnets or zones. `key`: of EC2's."""
    return [{key: place} for place in places]


def bucket(state: str) -> Bucket:
    """Return the bucket of a state root. Raises UserError for one that the machines' role cannot
    read.
    """
    found = Bucket.of(state)
    if found.endpoint is not None:
        raise UserError(
            f"--state: {state} is in no bucket of Amazon's, from which the machines of a fleet on"
            " AWS get their files; give --state s3://BUCKET/PREFIX"
        )
    return found


def rights(cluster: Aws, state: str) -> Json:
    """Return the rights of the machines: the state's objects, to delete their own fleets and, with
    groups that come on need, to start machines by the cluster's launch templates.
    """
    there = bucket(state)
    below = f"{there.prefix}/*" if there.prefix else "*"
    found: Json = groups.template(
        "aws_agent_rights",
        name=cluster.name,
        region=cluster.region,
        bucket=there.name,
        objects=f"{there.name}/{below}",
        # IfExists: a request for one object has no prefix, and S3 tells only who may list that it
        # is not there.
        listed={"StringLikeIfExists": {"s3:prefix": [below]}} if there.prefix else None,
    )
    if groups.has_elastic_groups(cluster):
        role = resource_name(cluster.name)
        more = groups.template(
            "aws_rights_to_start", name=cluster.name, region=cluster.region, role=role
        )
        found["Statement"] += more["Statement"]
    return found


def user_data(cluster: Aws, order: Order, prices: Prices, place: int) -> str:
    """Return the script that a group's machine runs once, at its first start. Raises UserError if
    it is too large.
    """
    parsed(cluster.workers[place].type, f"workers.{place}.type")
    bucket(order.state)
    ours = fleet.tags(cluster, order, place)
    asked = {
        "keys": False,
        "s3": {"region_name": cluster.region, "endpoint_url": order.endpoint},
        "region": cluster.region,
        "endpoint": order.endpoint,
        "group_tag": GROUP_TAG,
        "tags": {key: ours[key] for key in (AGENTS_TAG, EXPERIMENT_TAG, GROUP_TAG, EXPIRY_TAG)},
    }
    if on_need := [n for n in range(len(cluster.workers)) if groups.on_need(cluster, n)]:
        asked["start"] = {
            groups.name(n, cluster.workers[n]): create_fleet(
                cluster,
                order,
                n,
                allowed("AvailabilityZone", cluster.workers[n].zones or cluster.zones),
            )
            for n in on_need
        }
    text = fleet.setup(
        cluster,
        order,
        prices,
        place,
        machine="aws_machine",
        asked=asked,
        exported=exported(cluster, order),
        # EC2 ends the machines of a fleet of type maintain by itself.
        expires=place in on_need,
    )
    if (size := len(text.encode())) > MOST_USER_DATA:
        raise UserError(
            f"the user data of the fleet would have {size} bytes, and EC2 allows {MOST_USER_DATA};"
            " give shorter names"
        )
    return text


def tagged(kind: str, tags: dict[str, str]) -> Json:
    """Return the specification that gives a resource of this kind these tags."""
    return {
        "ResourceType": kind,
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
    }


def subnets(account: Account, zones: tuple[str, ...]) -> list[str]:
    """Return the subnets of the zones in their order; without zones, all. Raises SpecError."""
    for zone in zones:
        if zone not in account.subnets:
            hint = f"choose from {', '.join(sorted(account.subnets))}"
            raise SpecError("zones", zone, "has no subnet that can be used", hint)
    return [one for zone in zones or sorted(account.subnets) for one in account.subnets[zone]]


def image(instance: str, path: str) -> str:
    """Return the current Ubuntu image for a type, with NVIDIA's drivers if it has such GPUs."""
    found = parsed(instance, path)
    arm = "g" in found["more"] or instance.startswith("a1.")
    if found["family"] in _NVIDIA and not found["more"].startswith("ad"):  # g4ad: AMD's
        if arm:
            problem = "has GPUs beside an Arm processor, for which there is no default"
            raise SpecError(path, instance, problem, "add `image:`")
        return _LEARNING
    return _UBUNTU.format("arm64" if arm else "amd64")


def trust() -> Json:
    """Return the policy by which EC2 machines may assume the machines' role."""
    return groups.template("aws_trust")
