"""What fleets of agents need in an AWS account: their network, security group, role, launch
templates and the fleets themselves; created, shown and deleted here.

All of it has the tag `regrow-agents` with the cluster's name, apart from what a cluster with a head
has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from regrow.infra.clusters.clouds import aws, fleet
from regrow.infra.clusters.clouds.aws import Account
from regrow.infra.clusters.clouds.aws_account import AwsAccount, client, tags_of, told, unless
from regrow.infra.clusters.clouds.fleet import (
    AGENTS_TAG,
    EXPERIMENT_TAG,
    GROUP_TAG,
    STATE_TAG,
    Order,
    agents_called,
)
from regrow.infra.clusters.clouds.fleet_machine import THERE
from regrow.infra.clusters.description import Aws, Market
from regrow.infra.clusters.prices import Prices
from regrow.infra.state.places import Places
from regrow.tasks.errors import RegrowError


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A fleet that starts machines.

    Attributes:
        id: EC2's name of it.
        experiment: whose agents its machines are.
        group: name of the group of workers.
        market: the kind of its machines.
        most: machines that it keeps.
        running: machines that it has now.

    """

    id: str
    experiment: str
    group: str
    market: Market
    most: int
    running: int


class FleetAccount(AwsAccount):
    """The account, as seen by the fleets of one cluster file. Raises as AwsAccount."""

    _tag = AGENTS_TAG

    def __init__(self, cluster: Aws) -> None:
        super().__init__(cluster)
        self._name = agents_called(cluster.name)

    def fleets(self) -> list[Fleet]:
        """Return the fleets that start machines."""
        with told():
            return [_fleet(one) for one in self._described()]

    def submitted(self) -> list[tuple[str, str, float]]:
        """Return experiment, state root and time (seconds since the epoch) of all that was
        submitted, ended or not, the newest last.
        """
        with told():
            there = [(one["CreateTime"].timestamp(), tags_of(one)) for one in self._templates()]
        found = {(of[EXPERIMENT_TAG], of[STATE_TAG]): t for t, of in there}
        return sorted(((*key, t) for key, t in found.items()), key=lambda one: one[2])

    def prepare_agents(self, order: Order, say: Callable[[str], None]) -> Account:
        """Look up and create what machines need, whatever an earlier try has left. Raises
        SpecError.
        """
        with told():
            self._others()
            network, subnets = self._network()
            account = Account(
                subnets=subnets,
                security_group=self._security_group(network, say),
                user=order.user,
                expires=order.expires,
            )
            for zones in (self._cluster.zones, *(one.zones for one in self._cluster.workers)):
                aws.subnets(account, zones)
            if self._cluster.role is None:
                policy = f"state-{hashlib.sha256(order.state.encode()).hexdigest()[:12]}"
                self._role(policy, fleet.rights(self._cluster, order.state))
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
        return account

    def make_templates(self, order: Order, account: Account, prices: Prices) -> None:
        """Create the launch templates, in place of those of an earlier fleet of the experiment.
        They are the record of what was submitted.
        """
        with told():
            for one in self._templates():
                if tags_of(one)[EXPERIMENT_TAG] == order.experiment:
                    self._ec2.delete_launch_template(LaunchTemplateId=one["LaunchTemplateId"])
            for place in range(len(self._cluster.workers)):
                made = fleet.launch_template(
                    self._cluster,
                    order,
                    prices,
                    place,
                    image=self._image(place),
                    security_group=account.security_group,
                )
                self._ec2.create_launch_template(**made)

    def start(self, order: Order, account: Account) -> list[str]:
        """Create a fleet for each group, and return their ids. If one cannot be created, none is
        left.
        """
        ids: list[str] = []
        with told():
            try:
                for place in range(len(self._cluster.workers)):
                    subnets = self._subnets(account, place)
                    overrides = fleet.preferred("SubnetId", subnets)
                    asked = fleet.create_fleet(self._cluster, order, place, overrides)
                    answer = self._ec2.create_fleet(**asked)
                    ids.append(answer["FleetId"])
                    if errors := answer.get("Errors"):
                        raise RegrowError(f"AWS: {errors[0].get('ErrorMessage', errors[0])}")
            except BaseException:
                self._delete(ids)
                raise
        return ids

    def _more_rules(self, say: Callable[[str], None]) -> list[dict[str, Any]]:
        return []

    def _image(self, place: int) -> str:
        """Return the id of a group's image. Fleets of type maintain take no parameter's name."""
        path = f"workers.{place}.type"
        found = self._cluster.image or aws.image(self._cluster.workers[place].type, path)
        if not found.startswith(fleet.PARAMETER):
            return found
        parameters = client("ssm", self._cluster.region)
        answer = parameters.get_parameter(Name=found.removeprefix(fleet.PARAMETER))
        return str(answer["Parameter"]["Value"])

    def _subnets(self, account: Account, place: int) -> list[str]:
        """Return a subnet of each zone of a group: a fleet takes one a zone."""
        zones = self._cluster.workers[place].zones or self._cluster.zones
        return [account.subnets[zone][0] for zone in zones or sorted(account.subnets)]

    def _end_machines(self, say: Callable[[str], None]) -> None:
        if ids := [one["FleetId"] for one in self._described()]:
            say(f"  deleting {', '.join(ids)}")
            self._delete(ids)
        super()._end_machines(say)
        # Before the templates, which say where these are.
        for of in map(tags_of, self._templates()):
            fleet.forget(Places.at(of[STATE_TAG]), of[EXPERIMENT_TAG], self._cluster.name)

    def _delete(self, ids: list[str]) -> None:
        if not ids:
            return
        answer = self._ec2.delete_fleets(FleetIds=ids, TerminateInstances=True)
        if left := answer.get("UnsuccessfulFleetDeletions"):
            why = "; ".join(f"{one['FleetId']}: {one['Error']['Message']}" for one in left)
            raise RegrowError(f"AWS does not delete the fleet {why}")

    def _unmake(self) -> Iterator[str]:
        for one in self._templates():
            with unless("InvalidLaunchTemplateId.NotFound"):
                self._ec2.delete_launch_template(LaunchTemplateId=one["LaunchTemplateId"])
        yield from super()._unmake()
        yield from (f"fleet {one['FleetId']}" for one in self._described())

    def _described(self) -> list[dict[str, Any]]:
        """Return the fleets that start machines, as EC2 describes them. It filters by no tag."""
        pages = self._ec2.get_paginator("describe_fleets").paginate()
        return [
            one
            for page in pages
            for one in page["Fleets"]
            if one["FleetState"] in THERE and tags_of(one).get(AGENTS_TAG) == self._cluster.name
        ]

    def _templates(self) -> list[dict[str, Any]]:
        ours = [{"Name": f"tag:{AGENTS_TAG}", "Values": [self._cluster.name]}]
        pages = self._ec2.get_paginator("describe_launch_templates").paginate(Filters=ours)
        return [one for page in pages for one in page["LaunchTemplates"]]


def _fleet(one: dict[str, Any]) -> Fleet:
    tags, target = tags_of(one), one["TargetCapacitySpecification"]
    market: Market = "spot" if target["DefaultTargetCapacityType"] == "spot" else "on-demand"
    return Fleet(
        id=one["FleetId"],
        experiment=tags.get(EXPERIMENT_TAG, ""),
        group=tags.get(GROUP_TAG, ""),
        market=market,
        most=int(target["TotalTargetCapacity"]),
        running=int(one.get("FulfilledCapacity", 0)),
    )
