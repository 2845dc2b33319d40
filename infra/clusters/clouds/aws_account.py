"""What a cluster needs in an AWS account besides machines: a network, a security group, a key and a
role; created and deleted here.

All of it has the cluster's name and tag. Ray would create a security group that is open to the
world, and a role with all rights on EC2 and S3; it creates neither if it finds these.
"""

from __future__ import annotations

import getpass
import ipaddress
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import requests

from regrow.infra.clusters.clouds import aws
from regrow.infra.clusters.clouds.aws import CLUSTER_TAG, USER_TAG, Account, called
from regrow.infra.clusters.description import Aws, Market
from regrow.infra.clusters.provider import Machine
from regrow.search.errors import SpecError
from regrow.tasks.errors import RegrowError, UserError

_ECHO = "https://checkip.amazonaws.com"
_GONE_SECONDS, _READY_SECONDS, _TICK = 600.0, 90.0, 2.0
_POLICY = "cluster"
_THERE = ["pending", "running", "stopping", "stopped", "shutting-down"]
"""States of an instance that still exists, or whose disk does."""


class AwsAccount:
    """The account for which boto3 finds credentials, as seen by one cluster.

    All methods raise RegrowError, with AWS's message, for what AWS refused.
    """

    _tag = CLUSTER_TAG
    """The tag, with the cluster's name, of all that is found and deleted here."""

    def __init__(self, cluster: Aws) -> None:
        self._cluster, self._name = cluster, called(cluster.name)
        self._ec2, self._iam = client("ec2", cluster.region), client("iam", cluster.region)

    def prepare(self, public_key: bytes, say: Callable[[str], None]) -> Account:
        """Look up and create what is needed, whatever an earlier try has left. Raises SpecError."""
        with told():
            self._others()
            network, subnets = self._network()
            group = self._security_group(network, say)
            account = Account(
                subnets=subnets,
                security_group=group,
                user=getpass.getuser(),
                expires=(datetime.now(UTC) + timedelta(seconds=self._cluster.expires)).isoformat(
                    timespec="seconds"
                ),
            )
            for zones in (self._cluster.zones, *(one.zones for one in self._cluster.workers)):
                aws.subnets(account, zones)
            self._key(public_key)
            if self._cluster.role is None:
                self._role(_POLICY, aws.rights(self._cluster.name, self._cluster.region))
            if any(group.market == "spot" for group in self._cluster.workers):
                self._linked_role("spot.amazonaws.com")
            self._wait_for_head(account)
        return account

    def machines(self) -> list[Machine]:
        """Return all existing machines, the head first, including stopped and ending ones."""
        with told():
            found = [self._machine(one) for one in self._instances()]
        return sorted(found, key=lambda one: (one.role != "head", one.address))

    def end(self, say: Callable[[str], None]) -> None:
        """End all machines and delete what `prepare` created. Raises RegrowError for the rest."""
        with told():
            self._end_machines(say)
            left = [*self._unmake(), *self._volumes()]
        if left:
            raise RegrowError(
                f"of the cluster {self._cluster.name} this is left in {self._cluster.region}:"
                f" {', '.join(left)}"
            )

    def _instances(self) -> list[dict[str, Any]]:
        asked = [
            {"Name": f"tag:{self._tag}", "Values": [self._cluster.name]},
            {"Name": "instance-state-name", "Values": _THERE},
        ]
        pages = self._ec2.get_paginator("describe_instances").paginate(Filters=asked)
        return [
            one
            for page in pages
            for reservation in page["Reservations"]
            for one in reservation["Instances"]
        ]

    def _machine(self, one: dict[str, Any]) -> Machine:
        tags = tags_of(one)
        inside, outside = one.get("PrivateIpAddress", ""), one.get("PublicIpAddress", "")
        market: Market = "spot" if one.get("InstanceLifecycle") == "spot" else "on-demand"
        return Machine(
            address=inside if self._cluster.private else outside or one["InstanceId"],
            role="head" if tags.get("ray-node-type") == "head" else "worker",
            type=one["InstanceType"],
            market=market,
            state=one["State"]["Name"],
        )

    def _others(self) -> None:
        for one in self._instances():
            if (user := tags_of(one).get(USER_TAG)) not in (None, getpass.getuser()):
                where = f"{one['InstanceId']} in {self._cluster.region}"
                problem = f"is a cluster of {user}'s ({where})"
                raise SpecError("name", self._cluster.name, problem, "write another name")

    def _network(self) -> tuple[str, dict[str, tuple[str, ...]]]:
        """Return the default network, and its subnets by zone in which machines can be reached."""
        networks = self._ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])[
            "Vpcs"
        ]
        if not networks:
            hint = "make one with `aws ec2 create-default-vpc`, or choose another region"
            raise SpecError("region", self._cluster.region, "has no default network (VPC)", hint)
        network = str(networks[0]["VpcId"])
        subnets: dict[str, list[str]] = {}
        for one in self._ec2.describe_subnets(Filters=[{"Name": "vpc-id", "Values": [network]}])[
            "Subnets"
        ]:
            if self._cluster.private or one.get("MapPublicIpOnLaunch"):
                subnets.setdefault(one["AvailabilityZone"], []).append(one["SubnetId"])
        if not subnets:
            hint = (
                "let its subnets assign public addresses, or write `private: true` where a VPN"
                " leads there"
            )
            problem = "has no subnet whose machines can be reached"
            raise SpecError("region", self._cluster.region, problem, hint)
        return network, {zone: tuple(sorted(found)) for zone, found in sorted(subnets.items())}

    def _security_group(self, network: str, say: Callable[[str], None]) -> str:
        """Create or update the security group and return its id. Members reach each other. The
        rules of an existing group are replaced.
        """
        named = [
            {"Name": "group-name", "Values": [self._name]},
            {"Name": "vpc-id", "Values": [network]},
        ]
        groups = self._ec2.describe_security_groups(Filters=named)["SecurityGroups"]
        if groups:
            group, rules = str(groups[0]["GroupId"]), groups[0]["IpPermissions"]
        else:
            made = self._ec2.create_security_group(
                GroupName=self._name,
                Description=f"machines of the cluster {self._cluster.name}",
                VpcId=network,
                TagSpecifications=self._tagged("security-group"),
            )
            group, rules = str(made["GroupId"]), []
        wanted = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
        wanted += self._more_rules(say)
        if rules:
            self._ec2.revoke_security_group_ingress(GroupId=group, IpPermissions=rules)
        self._ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=wanted)
        return group

    def _more_rules(self, say: Callable[[str], None]) -> list[dict[str, Any]]:
        """Return what is let in besides the machines themselves."""
        reach = self._reach()
        say(f"  SSH is let in from {reach}")
        from_there = [{"CidrIp": reach, "Description": "SSH"}]
        return [{"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": from_there}]

    def _reach(self) -> str:
        """Return the addresses from which SSH is allowed."""
        if self._cluster.reach is not None:
            return self._cluster.reach
        if self._cluster.private:
            host = str(self._ec2.meta.endpoint_url).split("//")[1].split("/")[0].split(":")[0]
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((host, 443))
                return f"{probe.getsockname()[0]}/32"
        try:
            address = requests.get(_ECHO, timeout=10).text.strip()
            return f"{ipaddress.IPv4Address(address)}/32"
        except (OSError, ValueError) as error:
            raise UserError(
                f"this machine's own address could not be asked of {_ECHO}: {error}; write it at"
                " `reach`"
            ) from error

    def _key(self, public_key: bytes) -> None:
        self._ec2.delete_key_pair(KeyName=self._name)
        self._ec2.import_key_pair(
            KeyName=self._name,
            PublicKeyMaterial=public_key,
            TagSpecifications=self._tagged("key-pair"),
        )

    def _role(self, policy: str, rights: dict[str, Any]) -> None:
        """Create the role, and the instance profile through which a machine has it. `policy`: name
        of the policy with these rights.
        """
        tags = [{"Key": self._tag, "Value": self._cluster.name}]
        with unless("EntityAlreadyExists"):
            self._iam.create_role(
                RoleName=self._name, AssumeRolePolicyDocument=json.dumps(aws.trust()), Tags=tags
            )
        document = json.dumps(rights)
        self._iam.put_role_policy(RoleName=self._name, PolicyName=policy, PolicyDocument=document)
        with unless("EntityAlreadyExists"):
            self._iam.create_instance_profile(InstanceProfileName=self._name, Tags=tags)
        # A profile may have one role, and it has this one.
        with unless("LimitExceeded", "EntityAlreadyExists"):
            self._iam.add_role_to_instance_profile(
                InstanceProfileName=self._name, RoleName=self._name
            )

    def _linked_role(self, service: str) -> None:
        """Create the role of a service. It exists, or an administrator has to create it."""
        with unless("InvalidInput", "EntityAlreadyExists", "AccessDenied"):
            self._iam.create_service_linked_role(AWSServiceName=service)

    def _wait_for_head(self, account: Account) -> None:
        self._wait_for_rights(
            InstanceType=self._cluster.head.type,
            KeyName=self._name,
            ImageId=self._cluster.image or aws.image(self._cluster.head.type, "head.type"),
            IamInstanceProfile={"Name": self._cluster.role or self._name},
            SubnetId=aws.subnets(account, self._cluster.zones)[0],
            SecurityGroupIds=[account.security_group],
        )

    def _wait_for_rights(self, **machine: Any) -> None:
        """Ask EC2 by dry runs whether it would start a machine, until EC2 knows the new role. This
        also checks the user's rights early.
        """
        from botocore.exceptions import ClientError

        deadline = time.monotonic() + _READY_SECONDS
        while True:
            try:
                self._ec2.run_instances(MinCount=1, MaxCount=1, DryRun=True, **machine)
            except ClientError as error:
                code, told = error.response["Error"]["Code"], error.response["Error"]["Message"]
                if code == "DryRunOperation":
                    return
                if "iamInstanceProfile" not in told or time.monotonic() > deadline:
                    raise
            time.sleep(_TICK)

    def _end_machines(self, say: Callable[[str], None]) -> None:
        deadline = time.monotonic() + _GONE_SECONDS
        while there := self._instances():
            named = [one["InstanceId"] for one in there]
            if still := [
                one["InstanceId"] for one in there if one["State"]["Name"] != "shutting-down"
            ]:
                say(f"  ending {', '.join(still)}")
                self._ec2.terminate_instances(InstanceIds=still)
            if time.monotonic() > deadline:
                raise RegrowError(
                    f"after {_GONE_SECONDS:g} s these machines have not ended: {', '.join(named)}"
                )
            time.sleep(_TICK)

    def _unmake(self) -> Iterator[str]:
        """Delete what `prepare` created. Yields what could not be deleted."""
        iam, role = self._iam, {"RoleName": self._name}
        profile = {"InstanceProfileName": self._name}
        self._ec2.delete_key_pair(KeyName=self._name)
        for delete, what in (
            (iam.remove_role_from_instance_profile, profile | role),
            (iam.delete_instance_profile, profile),
        ):
            with unless("NoSuchEntity"):
                delete(**what)
        with unless("NoSuchEntity"):
            for policy in iam.list_role_policies(**role)["PolicyNames"]:
                iam.delete_role_policy(**role, PolicyName=policy)
            iam.delete_role(**role)
        mine = [{"Name": "group-name", "Values": [self._name]}]
        for group in self._ec2.describe_security_groups(Filters=mine)["SecurityGroups"]:
            deadline = time.monotonic() + _READY_SECONDS
            while not self._delete_group(group["GroupId"]):
                if time.monotonic() > deadline:
                    yield f"security group {group['GroupId']}"
                    break
                time.sleep(_TICK)

    def _delete_group(self, group: str) -> bool:
        """Delete a security group. Returns whether it is gone: EC2 refuses for a while."""
        with unless("InvalidGroup.NotFound", "DependencyViolation") as refused:
            self._ec2.delete_security_group(GroupId=group)
        return "DependencyViolation" not in refused

    def _volumes(self) -> list[str]:
        mine = [{"Name": f"tag:{self._tag}", "Values": [self._cluster.name]}]
        pages = self._ec2.get_paginator("describe_volumes").paginate(Filters=mine)
        return [f"disk {one['VolumeId']}" for page in pages for one in page["Volumes"]]

    def _tagged(self, kind: str) -> list[dict[str, Any]]:
        return [aws.tagged(kind, {self._tag: self._cluster.name, USER_TAG: getpass.getuser()})]


def client(service: str, region: str) -> Any:
    try:
        import boto3
    except ImportError:
        raise UserError("clusters on AWS need boto3: pip install 'regrow[aws]'") from None
    return boto3.client(service, region_name=region)


def tags_of(one: dict[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in one.get("Tags", ())}


@contextmanager
def told() -> Iterator[None]:
    """Raise AWS's errors as RegrowError, with AWS's message."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise RegrowError(f"AWS: {error}") from error


@contextmanager
def unless(*codes: str) -> Iterator[list[str]]:
    """Suppress errors with these codes. Yields a list that has the suppressed codes afterwards."""
    from botocore.exceptions import ClientError

    refused: list[str] = []
    try:
        yield refused
    except ClientError as error:
        if (code := error.response["Error"]["Code"]) not in codes:
            raise
        refused.append(code)
