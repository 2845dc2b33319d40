"""What a machine of a fleet asks AWS, with the rights of its role; see `fleet_machine.py`."""

from __future__ import annotations

from typing import Any

MOST_UNABLE = 5
"""Machines of a group that could not take part before its fleet is deleted."""
THERE = ("submitted", "active", "modifying")
"""States of a fleet that starts machines."""


def environment(fleet: dict[str, Any]) -> Any:
    """Return the file of the agent's variables."""
    return _client(fleet, "s3").get_object(**_object(fleet, "environment"))["Body"].read()


def forget(fleet: dict[str, Any]) -> None:
    """Delete the variables, which may be secret."""
    _client(fleet, "s3").delete_object(**_object(fleet, "environment"))


def delete(fleet: dict[str, Any]) -> None:
    """Delete the experiment's fleets with their machines."""
    _delete(fleet, all_groups=True)


def left(fleet: dict[str, Any]) -> None:
    """Do nothing: EC2 replaces a machine that ends, unless its group's come on need."""


def machines(fleet: dict[str, Any]) -> dict[str, int]:
    """Return how many machines the groups have that come on need, those that start included."""
    found = dict.fromkeys(fleet["start"], 0)
    for group, _ in _on_need(fleet):
        found[group] += 1
    return found


def start(fleet: dict[str, Any], group: str, count: int) -> None:
    """Start more machines of a group that come on need. Raises OSError if none can be had."""
    asked = fleet["start"][group]
    asked["TargetCapacitySpecification"]["TotalTargetCapacity"] = count
    answer = _client(fleet, "ec2").create_fleet(**asked)
    if not answer.get("Instances") and (errors := answer.get("Errors")):
        raise OSError("EC2 starts no machine: {}".format(errors[0].get("ErrorMessage", errors[0])))


def unable(fleet: dict[str, Any]) -> None:
    """Delete the group's fleet if several of its machines were unable, or if they cannot be
    counted. Those that run stay.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    at = _object(fleet, "ended/{}-".format(fleet["group"]))
    try:
        found = _client(fleet, "s3").list_objects_v2(Bucket=at["Bucket"], Prefix=at["Key"])
    except (BotoCoreError, ClientError, OSError):
        found = {"KeyCount": MOST_UNABLE}
    if found["KeyCount"] >= MOST_UNABLE:
        _delete(fleet, all_groups=False)


def _delete(fleet: dict[str, Any], *, all_groups: bool) -> None:
    """Delete the experiment's fleets with their machines, or the group's and keep its machines.
    Raises OSError for what EC2 refused.
    """
    ec2 = _client(fleet, "ec2")
    if all_groups and (others := [one for _, one in _on_need(fleet)]):
        ec2.terminate_instances(InstanceIds=others)
    ids = [
        one["FleetId"]
        for page in ec2.get_paginator("describe_fleets").paginate()
        for one in page["Fleets"]
        if one["FleetState"] in THERE
        and one.get("Type") != "instant"  # forgotten by EC2, which starts no other machine
        and _ours(fleet, one, all_groups)
    ]
    if ids:
        done = ec2.delete_fleets(FleetIds=ids, TerminateInstances=all_groups)
        if refused := done.get("UnsuccessfulFleetDeletions"):
            raise OSError(f"EC2 does not delete {refused}")


def _on_need(fleet: dict[str, Any]) -> list[tuple[str, str]]:
    """Return group and id of the machines of groups that come on need, that run or start."""
    if "start" not in fleet:
        return []
    asked = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    for key, value in fleet["tags"].items():
        values = list(fleet["start"]) if key == fleet["group_tag"] else [value]
        asked.append({"Name": "tag:" + key, "Values": values})
    pages = _client(fleet, "ec2").get_paginator("describe_instances").paginate(Filters=asked)
    return [
        (tag["Value"], one["InstanceId"])
        for page in pages
        for reservation in page["Reservations"]
        for one in reservation["Instances"]
        for tag in one["Tags"]
        if tag["Key"] == fleet["group_tag"]
    ]


def _ours(fleet: dict[str, Any], one: dict[str, Any], all_groups: bool) -> bool:
    tags = {tag["Key"]: tag["Value"] for tag in one.get("Tags", ())}
    mine = dict(fleet["tags"])
    if all_groups:
        del mine[fleet["group_tag"]]
    return all(tags.get(key) == value for key, value in mine.items())


def _object(fleet: dict[str, Any], name: str) -> dict[str, str]:
    return {"Bucket": fleet["bucket"], "Key": fleet["folder"] + "/" + name}


def _client(fleet: dict[str, Any], service: str) -> Any:
    from botocore.session import get_session

    return get_session().create_client(
        service, region_name=fleet["region"], endpoint_url=fleet.get("endpoint")
    )
