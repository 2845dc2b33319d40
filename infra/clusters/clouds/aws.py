"""The launcher file's parts for Amazon EC2, safe where Ray's defaults are not. Pure.

Ray's defaults: machines that are stopped, not terminated, so that their disks keep costing; an
image of 2018; SSH from everywhere; a head with all rights in EC2 and S3; a metadata service that
answers any request. The rules of the security group and the role are created in the account
(`aws_account.py`), and the file only names them: if a security group is missing, Ray creates one
that is open to the world.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from regrow.infra.clusters.clouds import groups
from regrow.infra.clusters.description import Aws, Workers
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
_ARM = re.compile(r"g")
_NVIDIA = frozenset({"g", "gr", "p"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The resources in the account for a cluster. Looked up and created at the first `up`, and
    stored.
    """

    subnets: dict[str, tuple[str, ...]]
    """Subnets of the network in use, by zone."""
    security_group: str
    user: str
    """The user who started the cluster."""
    expires: str
    """When its machines count as forgotten, in ISO 8601."""

    def written(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def read(cls, text: str) -> Account:
        """Parse what `written` returned."""
        data = json.loads(text)
        return cls(
            **{
                **data,
                "subnets": {zone: tuple(subnets) for zone, subnets in data["subnets"].items()},
            }
        )


def called(cluster: str) -> str:
    """Return the name of everything created in the account for a cluster: key, security group,
    role, instance profile.
    """
    return f"regrow-{cluster}"


def site(cluster: Aws, prices: Prices, key: str, account: Account | None) -> Site:
    """Return the launcher file's parts. Raises SpecError.

    `key`: file of the private key. `account` None: not created yet, as in a file for the user to
    read.
    """

    def machine(instance: str, disk: int, zones: tuple[str, ...], path: str) -> Json:
        return _machine(cluster, account, instance, disk, zones or cluster.zones, path)

    head = machine(cluster.head.type, cluster.head.disk, cluster.zones, "head.type")
    head["IamInstanceProfile"] = {"Name": cluster.role or called(cluster.name)}

    def worker(group: Workers, path: str) -> Json:
        found = machine(group.type, group.disk, group.zones, path)
        if cluster.role is not None:
            found["IamInstanceProfile"] = {"Name": cluster.role}
        if group.market == "spot":
            spot = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            found["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": spot}
        return found

    provider: Json = {
        "type": "aws",
        "region": cluster.region,
        "cache_stopped_nodes": False,
        "use_internal_ips": cluster.private,
        "security_group": {"GroupName": called(cluster.name)},
    }
    # With subnets, which imply their zones, Ray would refuse those of other zones.
    if cluster.zones and account is None:
        provider["availability_zone"] = ",".join(cluster.zones)
    return Site(
        provider=provider,
        auth={"ssh_user": cluster.user or "ubuntu", "ssh_private_key": key},
        # No resources: Ray asks EC2 for those of a type.
        node_types=groups.node_types(cluster, prices, head, worker, lambda *_: {}),
        most=groups.most(cluster),
        then=OFF,
        initialization=groups.initialization(cluster),
    )


def _machine(
    cluster: Aws,
    account: Account | None,
    instance: str,
    disk: int,
    zones: tuple[str, ...],
    path: str,
) -> Json:
    """Return the EC2 parameters of a machine."""
    tags = {"regrow-cluster": cluster.name}
    found: Json = {
        "InstanceType": instance,
        "ImageId": cluster.image or image(instance, path),
        "KeyName": called(cluster.name),
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 1,
        },
        "BlockDeviceMappings": [
            {
                "DeviceName": "/dev/sda1",
                "Ebs": {
                    "VolumeSize": disk,
                    "VolumeType": "gp3",
                    "Encrypted": True,
                    "DeleteOnTermination": True,
                },
            }
        ],
    }
    if account is not None:
        tags |= {USER_TAG: account.user, EXPIRY_TAG: account.expires}
        found["SubnetIds"] = subnets(account, zones)
        found["SecurityGroupIds"] = [account.security_group]
    volume = {CLUSTER_TAG: cluster.name, **tags}  # Ray itself tags the instances
    found["TagSpecifications"] = [tagged("instance", tags), tagged("volume", volume)]
    return found


def tagged(kind: str, tags: dict[str, str]) -> Json:
    """Return the specification that gives a resource of this kind these tags."""
    return {
        "ResourceType": kind,
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
    }


def subnets(account: Account, zones: tuple[str, ...]) -> list[str]:
    """Return the subnets of the zones, in their order; without zones, all subnets. Raises SpecError
    for a zone without a subnet.
    """
    for zone in zones:
        if zone not in account.subnets:
            raise SpecError(
                "zones",
                zone,
                "has no subnet that can be used",
                f"choose from {', '.join(sorted(account.subnets))}",
            )
    return [one for zone in zones or sorted(account.subnets) for one in account.subnets[zone]]


def image(instance: str, path: str) -> str:
    """Return the current image for a type: Ubuntu, with NVIDIA's drivers if the type has such GPUs.
    Raises SpecError.
    """
    found = _TYPE.fullmatch(instance)
    if found is None:
        raise SpecError(path, instance, "is no type of EC2's", 'write one such as "m6i.large"')
    arm = bool(_ARM.search(found["more"])) or instance.startswith("a1.")
    if found["family"] in _NVIDIA and not found["more"].startswith("ad"):  # g4ad: AMD's
        if arm:
            raise SpecError(
                path,
                instance,
                "has GPUs beside an Arm processor, for which there is no default",
                "add `image:`",
            )
        return _LEARNING
    return _UBUNTU.format("arm64" if arm else "amd64")


def trust() -> Json:
    """Return who may take the head's role: EC2 machines."""
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": "ec2.amazonaws.com"},
        "Action": "sts:AssumeRole",
    }
    return {"Version": "2012-10-17", "Statement": [statement]}


def rights(cluster: str, region: str) -> Json:
    """Return the head's rights: to start, tag and end machines of its own cluster in its region. It
    cannot give them a role.
    """
    own = {"StringEquals": {f"aws:RequestTag/{CLUSTER_TAG}": cluster}}
    there = {"StringEquals": {f"aws:ResourceTag/{CLUSTER_TAG}": cluster}}
    place = f"arn:aws:ec2:{region}:*"

    def allow(actions: list[str], resources: list[str], condition: Json | None = None) -> Json:
        found: Json = {"Effect": "Allow", "Action": actions, "Resource": resources}
        return found if condition is None else {**found, "Condition": condition}

    return {
        "Version": "2012-10-17",
        "Statement": [
            allow(["ec2:DescribeInstances"], ["*"]),  # EC2 has no narrower right
            allow(["ec2:RunInstances"], [f"{place}:instance/*", f"{place}:volume/*"], own),
            allow(
                ["ec2:RunInstances"],
                [
                    f"arn:aws:ec2:{region}::image/*",
                    f"{place}:subnet/*",
                    f"{place}:network-interface/*",
                    f"{place}:security-group/*",
                    f"{place}:key-pair/{called(cluster)}",
                    f"{place}:spot-instances-request/*",
                ],
            ),
            allow(
                ["ec2:CreateTags"],
                [f"{place}:instance/*", f"{place}:volume/*"],
                {
                    "StringEquals": {
                        f"aws:RequestTag/{CLUSTER_TAG}": cluster,
                        "ec2:CreateAction": "RunInstances",
                    },
                },
            ),
            allow(
                ["ec2:CreateTags"],
                [f"{place}:instance/*"],
                {
                    **there,
                    # Otherwise it could take over another cluster's machine.
                    "ForAllValues:StringNotEquals": {"aws:TagKeys": [CLUSTER_TAG]},
                },
            ),
            allow(["ec2:TerminateInstances"], [f"{place}:instance/*"], there),
            allow(
                ["ssm:GetParameters"],
                [  # to look up the image's id
                    f"arn:aws:ssm:{region}::parameter/aws/service/{of}/*"
                    for of in ("canonical", "deeplearning")
                ],
            ),
        ],
    }
