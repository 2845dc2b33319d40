"""What fleets of agents need in an AWS account: their network, security group, role, launch
templates and the fleets themselves; created, shown and deleted here.

All of it has the tag `regrow-agents` with the cluster's name.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

from regrow.infra.clusters.clouds import aws, aws_export, fleet, groups
from regrow.infra.clusters.clouds.aws import Account, resource_name
from regrow.infra.clusters.clouds.aws_machine import THERE
from regrow.infra.clusters.clouds.fleet import (
    AGENTS_TAG,
    EXPERIMENT_TAG,
    GROUP_TAG,
    STATE_TAG,
    USER_TAG,
    CloudFleet,
    Order,
)
from regrow.infra.clusters.clouds.fleet_machine import ENVIRONMENT
from regrow.infra.clusters.description import Aws
from regrow.infra.clusters.prices import Prices
from regrow.infra.machine.supervised import until
from regrow.infra.state.places import Places
from regrow.search.errors import SpecError
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.process.addresses import redacted

_GONE_SECONDS, _READY_SECONDS, _TICK = 600.0, 90.0, 2.0
_OTHER_SERVER = "AWS_ENDPOINT_URL_S3"
_THERE = ["pending", "running", "stopping", "stopped", "shutting-down"]
"""States of an instance that still exists, or whose disk does."""


class AwsAccount:
    """The account for which boto3 finds credentials; see FleetAccount."""

    place = "EC2"

    def __init__(self, cluster: Aws) -> None:
        self._cluster, self._name = cluster, resource_name(cluster.name)
        self._account: Account | None = None

    @cached_property
    def _ec2(self) -> Any:
        return _client("ec2", self._cluster.region)

    @cached_property
    def _iam(self) -> Any:
        return _client("iam", self._cluster.region)

    def exported(self, order: Order) -> str:
        return aws.exported(self._cluster, order)

    def check(self, order: Order, prices: Prices) -> None:
        if os.environ.get(_OTHER_SERVER):
            raise UserError(
                f"{_OTHER_SERVER} names another server, and the machines of a fleet get their files"
                " from a bucket of Amazon's; unset it"
            )
        for place in range(len(self._cluster.workers)):
            aws.launch_template(self._cluster, order, prices, place, image="", security_group="")

    def files(self, order: Order, prices: Prices, parcel: bytes) -> dict[str, bytes]:
        return aws_export.files(self._cluster, order, prices, parcel)

    def fleets(self) -> list[CloudFleet]:
        """Return the fleets that start machines."""
        with translated_errors():
            return [*(_fleet(one) for one in self._described()), *self._on_need()]

    def submitted(self) -> list[tuple[str, str, float]]:
        """Return experiment, state root and time (seconds since the epoch) of all that was
        submitted, ended or not, the newest last.
        """
        with translated_errors():
            templates = [(one["CreateTime"].timestamp(), tags_of(one)) for one in self._templates()]
        found = {(of[EXPERIMENT_TAG], of[STATE_TAG]): t for t, of in templates}
        return sorted(((*key, t) for key, t in found.items()), key=lambda one: one[2])

    def prepare(self, order: Order, prices: Prices, say: Callable[[str], None]) -> None:
        """Look up and create what is needed, whatever an earlier try has left. Raises SpecError."""
        with translated_errors():
            for one in self._instances():
                if (user := tags_of(one).get(USER_TAG)) is not None:
                    fleet.check_user(self._cluster, user, one["InstanceId"])
            network, subnets = self._network()
            account = Account(subnets=subnets, security_group=self._security_group(network))
            for zones in (self._cluster.zones, *(one.zones for one in self._cluster.workers)):
                aws.subnets(account, zones)
            if self._cluster.role is None:
                policy = f"state-{hashlib.sha256(order.state.encode()).hexdigest()[:12]}"
                self._role(policy, aws.rights(self._cluster, order.state))
            self._linked_role("ec2fleet.amazonaws.com")
            if any(group.market == "spot" for group in self._cluster.workers):
                self._linked_role("spot.amazonaws.com")
            self._wait_for_rights(
                InstanceType=self._cluster.workers[0].type,
                ImageId=self._image(0),
                IamInstanceProfile={"Name": self._cluster.role or self._name},
                SubnetId=self._subnets(account, 0)[0],
                SecurityGroupIds=[account.security_group],
            )
            # in place of those of an earlier fleet: they are the record of what was submitted
            for one in self._templates():
                if tags_of(one)[EXPERIMENT_TAG] == order.experiment:
                    self._ec2.delete_launch_template(LaunchTemplateId=one["LaunchTemplateId"])
            for place in range(len(self._cluster.workers)):
                made = aws.launch_template(
                    self._cluster,
                    order,
                    prices,
                    place,
                    image=self._image(place),
                    security_group=account.security_group,
                )
                self._ec2.create_launch_template(**made)
        self._account = account

    def start(self, order: Order, prices: Prices, environment: bytes) -> list[str]:
        """See FleetAccount. If one fleet cannot be created, none is left."""
        assert self._account is not None  # after `prepare`
        fleet.send(Places.at(order.state), self._cluster, order, ENVIRONMENT, environment)
        ids: list[str] = []
        with translated_errors():
            try:
                for place in range(len(self._cluster.workers)):
                    if not groups.first(self._cluster, place):
                        continue
                    subnets = self._subnets(self._account, place)
                    overrides = aws.allowed("SubnetId", subnets)
                    asked = aws.create_fleet(self._cluster, order, place, overrides)
                    answer = self._ec2.create_fleet(**asked)
                    ids.append(answer["FleetId"])
                    if errors := answer.get("Errors"):
                        raise RegrowError(f"AWS: {errors[0].get('ErrorMessage', errors[0])}")
            except BaseException:
                self._delete(ids)
                raise
        return ids

    def end(self, say: Callable[[str], None]) -> None:
        """End all machines and delete what `prepare` created. Raises RegrowError for the rest."""
        count = 0
        with translated_errors():
            if ids := [one["FleetId"] for one in self._described()]:
                say(f"  deleting {', '.join(ids)}")
                self._delete(ids)
            count = len(self._instances())
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
                        f"after {_GONE_SECONDS:g} s these machines have not ended:"
                        f" {', '.join(named)}"
                    )
                time.sleep(_TICK)
            mine = [{"Name": f"tag:{AGENTS_TAG}", "Values": [self._cluster.name]}]
            pages = self._ec2.get_paginator("describe_volumes").paginate(Filters=mine)
            left = [
                *self._unmake(),
                *(f"disk {one['VolumeId']}" for page in pages for one in page["Volumes"]),
            ]
        if left:
            raise RegrowError(
                f"of the cluster {self._cluster.name} this is left in {self._cluster.region}:"
                f" {', '.join(left)}"
            )
        say(
            f"nothing of the cluster {self._cluster.name} is left in {self._cluster.region}; it had"
            f" {count} machines"
        )

    def _instances(self) -> list[dict[str, Any]]:
        asked = [
            {"Name": f"tag:{AGENTS_TAG}", "Values": [self._cluster.name]},
            {"Name": "instance-state-name", "Values": _THERE},
        ]
        pages = self._ec2.get_paginator("describe_instances").paginate(Filters=asked)
        return [
            one
            for page in pages
            for reservation in page["Reservations"]
            for one in reservation["Instances"]
        ]

    def _network(self) -> tuple[str, dict[str, tuple[str, ...]]]:
        """Return the default network, and its subnets by zone whose machines reach the internet."""
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
            if one.get("MapPublicIpOnLaunch"):
                subnets.setdefault(one["AvailabilityZone"], []).append(one["SubnetId"])
        if not subnets:
            hint = "let its subnets assign public addresses"
            problem = "has no subnet whose machines reach the internet"
            raise SpecError("region", self._cluster.region, problem, hint)
        return network, {zone: tuple(sorted(found)) for zone, found in sorted(subnets.items())}

    def _security_group(self, network: str) -> str:
        """Create or update the security group and return its id. Members reach each other, and
        nobody reaches them. The rules of an existing group are replaced.
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
                TagSpecifications=[
                    aws.tagged(
                        "security-group",
                        {AGENTS_TAG: self._cluster.name, USER_TAG: getpass.getuser()},
                    )
                ],
            )
            group, rules = str(made["GroupId"]), []
        wanted = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
        if rules:
            self._ec2.revoke_security_group_ingress(GroupId=group, IpPermissions=rules)
        self._ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=wanted)
        return group

    def _image(self, place: int) -> str:
        """Return the id of a group's image. Fleets of type maintain take no parameter's name."""
        path = f"workers.{place}.type"
        found = self._cluster.image or aws.image(self._cluster.workers[place].type, path)
        if not found.startswith(aws.PARAMETER):
            return found
        parameters = _client("ssm", self._cluster.region)
        answer = parameters.get_parameter(Name=found.removeprefix(aws.PARAMETER))
        return str(answer["Parameter"]["Value"])

    def _subnets(self, account: Account, place: int) -> list[str]:
        """Return a subnet of each zone of a group: a fleet takes one a zone."""
        zones = self._cluster.workers[place].zones or self._cluster.zones
        return [account.subnets[zone][0] for zone in zones or sorted(account.subnets)]

    def _role(self, policy: str, rights: dict[str, Any]) -> None:
        """Create the role, and the instance profile through which a machine has it. `policy`: name
        of the policy with these rights.
        """
        tags = [{"Key": AGENTS_TAG, "Value": self._cluster.name}]
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
                code, message = error.response["Error"]["Code"], error.response["Error"]["Message"]
                if code == "DryRunOperation":
                    return
                if "iamInstanceProfile" not in message or time.monotonic() > deadline:
                    raise
            time.sleep(_TICK)

    def _delete(self, ids: list[str]) -> None:
        if not ids:
            return
        answer = self._ec2.delete_fleets(FleetIds=ids, TerminateInstances=True)
        if left := answer.get("UnsuccessfulFleetDeletions"):
            why = "; ".join(f"{one['FleetId']}: {one['Error']['Message']}" for one in left)
            raise RegrowError(f"AWS does not delete the fleet {why}")

    def _unmake(self) -> Iterator[str]:
        """Delete what `prepare` created. Yields what could not be deleted."""
        for one in self._templates():
            with unless("InvalidLaunchTemplateId.NotFound"):
                self._ec2.delete_launch_template(LaunchTemplateId=one["LaunchTemplateId"])
        iam, role = self._iam, {"RoleName": self._name}
        profile = {"InstanceProfileName": self._name}
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
            gone = partial(self._delete_group, group["GroupId"])
            if not until(gone, seconds=_READY_SECONDS, tick=_TICK):
                yield f"security group {group['GroupId']}"
        yield from (f"fleet {one['FleetId']}" for one in self._described())

    def _delete_group(self, group: str) -> bool:
        """Delete a security group. Returns whether it is gone: EC2 refuses for a while."""
        with unless("InvalidGroup.NotFound", "DependencyViolation") as refused:
            self._ec2.delete_security_group(GroupId=group)
        return "DependencyViolation" not in refused

    def _described(self) -> list[dict[str, Any]]:
        """Return the fleets that start machines, as EC2 describes them. It filters by no tag."""
        pages = self._ec2.get_paginator("describe_fleets").paginate()
        return [
            one
            for page in pages
            for one in page["Fleets"]
            if one["FleetState"] in THERE
            and one.get("Type") != "instant"
            and tags_of(one).get(AGENTS_TAG) == self._cluster.name
        ]

    def _on_need(self) -> list[CloudFleet]:
        """Return the groups whose machines come on need, by the machines that they have: EC2 lists
        no fleet of type instant.
        """
        names = {
            groups.name(place, group)
            for place, group in enumerate(self._cluster.workers)
            if groups.on_need(self._cluster, place)
        }
        found = Counter(
            (tags[EXPERIMENT_TAG], tags[GROUP_TAG], one["State"]["Name"])
            for one in (self._instances() if names else ())
            if (tags := tags_of(one)).get(GROUP_TAG) in names and EXPERIMENT_TAG in tags
        )
        return [
            CloudFleet(
                id=group,
                experiment=experiment,
                group=group,
                most=running + found[experiment, group, "pending"],
                running=running,
            )
            for experiment, group in dict.fromkeys(key[:2] for key in found)
            if (running := found[experiment, group, "running"])
            or found[experiment, group, "pending"]
        ]

    def _templates(self) -> list[dict[str, Any]]:
        ours = [{"Name": f"tag:{AGENTS_TAG}", "Values": [self._cluster.name]}]
        pages = self._ec2.get_paginator("describe_launch_templates").paginate(Filters=ours)
        return [one for page in pages for one in page["LaunchTemplates"]]


def _fleet(one: dict[str, Any]) -> CloudFleet:
    tags, target = tags_of(one), one["TargetCapacitySpecification"]
    return CloudFleet(
        id=one["FleetId"],
        experiment=tags.get(EXPERIMENT_TAG, ""),
        group=tags.get(GROUP_TAG, ""),
        most=int(target["TotalTargetCapacity"]),
        running=int(one.get("FulfilledCapacity", 0)),
    )


def _client(service: str, region: str) -> Any:
    try:
        import boto3
    except ImportError:
        raise UserError("clusters on AWS need boto3: pip install 'regrow[aws]'") from None
    try:
        return boto3.client(service, region_name=region)
    except ValueError as error:  # of an endpoint in a variable or in AWS's files
        raise UserError(
            f"AWS_ENDPOINT_URL: {redacted(str(error))}; write http://host:port"
        ) from None


def tags_of(one: dict[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in one.get("Tags", ())}


@contextmanager
def translated_errors() -> Iterator[None]:
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
