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
    """Do nothing: EC2 replaces a machine that ends."""


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
    ids = [
        one["FleetId"]
        for page in ec2.get_paginator("describe_fleets").paginate()
        for one in page["Fleets"]
        if one["FleetState"] in THERE and _ours(fleet, one, all_groups)
    ]
    if ids:
        done = ec2.delete_fleets(FleetIds=ids, TerminateInstances=all_groups)
        if refused := done.get("UnsuccessfulFleetDeletions"):
            raise OSError(f"EC2 does not delete {refused}")


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
