"""The launcher file's parts for Amazon EC2, safe where Ray's defaults are not. Pure.

Ray's defaults: machines that are stopped, not terminated, so that their disks keep costing; an
image of 2018; SSH from everywhere; a head with all rights in EC2 and S3; a metadata service that
answers any request. The rules of the security group and the role are created in the account
(`aws_account.py`), and the file only names them: if a security group is missing, Ray creates one
that is open to the world.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from regrow.infra.clusters.clouds import groups
from regrow.infra.clusters.description import Aws, Head, Workers
from regrow.infra.clusters.launcher import Site
from regrow.infra.clusters.prices import Prices
from regrow.search.errors import SpecError

Json = dict[str, Any]
OFF = "$(command -v sudo) shutdown -h now"
"""Ends a machine, because InstanceInitiatedShutdownBehavior is `terminate`."""
CLUSTER_TAG = "ray-cluster-name"
"""Ray's tag, by which it finds its machines."""
USER_TAG, EXPIRY_TAG = "regrow-user", "regrow-expires"
_UBUNTU = (
    "resolve:ssm:/aws/service/canonical/ubuntu/server/24.04/stable/current/{}/hvm/ebs-gp3/ami-id"
)
_LEARNING = (
    "resolve:ssm:/aws/service/deeplearning/ami/x86_64/"
    "base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
)
_TYPE = re.compile(r"(?P<family>[a-z]+)(?P<generation>\d+)(?P<more>[a-z0-9-]*)\.[a-z0-9-]+")
_NVIDIA = frozenset({"g", "gr", "p"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The resources in the account for a cluster. Looked up and created at the first `up`."""

    subnets: dict[str, tuple[str, ...]]
    """Subnets of the network in use, by zone."""
    security_group: str
    user: str
    """The user who started the cluster."""
    expires: str
    """When its machines count as forgotten, in ISO 8601."""


def called(cluster: str) -> str:
    """Return the name of all that is created in the account for a cluster: key, role, and so on."""
    return f"regrow-{cluster}"


def site(cluster: Aws, prices: Prices, key: str, account: Account | None) -> Site:
    """Return the launcher file's parts. Raises SpecError.

    `key`: file of the private key. `account` None: not created yet, as in a file for the user to
    read.
    """
    tags = {"regrow-cluster": cluster.name}
    if account is not None:
        tags |= {USER_TAG: account.user, EXPIRY_TAG: account.expires}

    def machine(one: Head | Workers, path: str) -> Json:
        zones, profile, spot = cluster.zones, cluster.role, False
        if isinstance(one, Workers):
            zones, spot = one.zones or zones, one.market == "spot"
        else:
            profile = profile or called(cluster.name)
        return groups.template(
            "aws",
            type=one.type,
            disk=one.disk,
            image=cluster.image or image(one.type, path),
            called=called(cluster.name),
            subnets=None if account is None else subnets(account, zones),
            security_groups=None if account is None else [account.security_group],
            # Ray itself tags the instances with the cluster's name.
            tags=[tagged("instance", tags), tagged("volume", {CLUSTER_TAG: cluster.name, **tags})],
            profile=None if profile is None else {"Name": profile},
            market=groups.template("aws_spot") if spot else None,
        )

    provider: Json = {
        "region": cluster.region,
        "use_internal_ips": cluster.private,
        "security_group": {"GroupName": called(cluster.name)},
    }
    # With subnets, which imply their zones, Ray would refuse those of other zones.
    if cluster.zones and account is None:
        provider["availability_zone"] = ",".join(cluster.zones)
    return groups.site(
        cluster,
        prices,
        key,
        provider=provider,
        machine=machine,
        resources=lambda *_: {},  # Ray asks EC2 for those of a type
        off=OFF,
    )


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


def parsed(instance: str, path: str) -> re.Match[str]:
    """Return the parts of a type's name. Raises SpecError for what is none."""
    found = _TYPE.fullmatch(instance)
    if found is None:
        raise SpecError(path, instance, "is no type of EC2's", 'write one such as "m6i.large"')
    return found


def trust() -> Json:
    """Return who may take the head's role: EC2 machines."""
    return groups.template("aws_trust")


def rights(cluster: str, region: str) -> Json:
    """Return the head's rights: to start, tag and end machines of its own cluster in its region."""
    return groups.template("aws_rights", name=cluster, called=called(cluster), region=region)
