"""What a machine of a fleet runs beside its agent: `python machine.py fetch | ended STATUS`.

`fetch` gets the agent's files from the bucket. `ended` acts on the exit status of the agent: when
the experiment is over it deletes the fleets before the machine ends, as EC2 would replace the
machine otherwise. It needs botocore alone, as it also has to work where no environment could be
made, and any Python of a cloud's images. The folder of this file has `fleet.json`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PARCEL, ENVIRONMENT, ENDED = "parcel.tar.gz", "environment", "ended/"
OVER, FAILED, LEFT = "0", "1", "3"
"""Exit statuses of an agent: the experiment is over, perhaps it failed, the machine goes away."""
WRONG = ("2", "4")
"""Exit statuses that would be the same again: a wrong input or environment, a damaged state."""
MOST_CRASHES = 5
"""Ends of the agent for which systemd starts it again; then the machine counts as unable."""
MOST_UNABLE = 5
"""Machines of a group that could not take part before its fleet is deleted."""
AGAIN_SECONDS = 30.0
LINES = 40
"""Last lines of the agent's output that are kept of a machine that could not take part."""
THERE = ("submitted", "active", "modifying")
"""States of a fleet that starts machines."""


def fetch(fleet: dict[str, Any]) -> None:
    """Get the parcel and the variables. Raises OSError and botocore's errors."""
    for name in (PARCEL, ENVIRONMENT):
        body = _client(fleet, "s3").get_object(**_object(fleet, name))["Body"]
        with open(os.open(HERE / name, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.writelines(body.iter_chunks(1 << 20))


def ended(fleet: dict[str, Any], status: str) -> None:
    """Act on an end of the agent. Turns the machine off, unless systemd starts the agent again."""
    if status == OVER or (status == FAILED and _has_failed(fleet)):
        _try(lambda: _forget(fleet))  # first, as this machine ends with its fleet
        _until_done(lambda: _delete(fleet, all_groups=True))
    elif status != LEFT:
        if status not in WRONG and _crashes() < MOST_CRASHES:
            return
        _try(lambda: _report(fleet, status))
        _until_done(lambda: _give_up(fleet))
    subprocess.run(["shutdown", "-h", "now"], check=False)  # noqa: S607 - wherever the image has it


def _has_failed(fleet: dict[str, Any]) -> bool:
    """Return whether the experiment itself has failed: an agent's own failure has this status,
    too.
    """
    words = ["bash", str(HERE / "regrow.sh"), "show", fleet["experiment"]]
    words += ["--state", fleet["state"], "--json"]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=False)
    try:
        return bool(json.loads(done.stdout)["status"] == "failed")
    except (ValueError, KeyError, TypeError):
        return False


def _crashes() -> int:
    """Count this crash, and return how many there were."""
    with (HERE / "crashes").open("a+") as file:
        file.write("x")
        file.flush()
        return file.tell()


def _report(fleet: dict[str, Any], status: str) -> None:
    """Put the last lines of the agent's output into the bucket."""
    host = socket.gethostname()
    said = {"host": host, "group": fleet["group"], "status": status, "t": time.time()}
    said["lines"] = _last_lines()
    key = "{}{}-{}.json".format(ENDED, fleet["group"], host)
    _client(fleet, "s3").put_object(**_object(fleet, key), Body=json.dumps(said).encode())


def _last_lines() -> list[str]:
    words = ["journalctl", "--unit=regrow-agent", f"--lines={LINES}", "--output=cat", "--no-pager"]
    try:
        said = subprocess.run(words, stdout=subprocess.PIPE, check=False).stdout.decode(
            "utf-8", "replace"
        )
    except OSError:
        said = ""
    prepared = HERE / "prepare.log"
    if not said.strip() and prepared.exists():
        said = prepared.read_text(errors="replace")
    return [line[:500] for line in said.splitlines()[-LINES:]]


def _give_up(fleet: dict[str, Any]) -> None:
    """Delete the group's fleet if several of its machines were unable, or if they cannot be
    counted. Those that run stay.
    """
    at = _object(fleet, "{}{}-".format(ENDED, fleet["group"]))
    try:
        found = _client(fleet, "s3").list_objects_v2(Bucket=at["Bucket"], Prefix=at["Key"])
    except _refusals():
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
        if left := done.get("UnsuccessfulFleetDeletions"):
            raise OSError(f"EC2 does not delete {left}")


def _ours(fleet: dict[str, Any], one: dict[str, Any], all_groups: bool) -> bool:
    tags = {tag["Key"]: tag["Value"] for tag in one.get("Tags", ())}
    mine = dict(fleet["tags"])
    if all_groups:
        del mine[fleet["group_tag"]]
    return all(tags.get(key) == value for key, value in mine.items())


def _forget(fleet: dict[str, Any]) -> None:
    """Delete the agent's files in the bucket, which may hold secrets."""
    for name in (PARCEL, ENVIRONMENT):
        _client(fleet, "s3").delete_object(**_object(fleet, name))


def _object(fleet: dict[str, Any], name: str) -> dict[str, str]:
    return {"Bucket": fleet["bucket"], "Key": fleet["folder"] + "/" + name}


def _client(fleet: dict[str, Any], service: str) -> Any:
    """Return a client with the rights of the machine's role."""
    from botocore.session import get_session

    return get_session().create_client(
        service, region_name=fleet["region"], endpoint_url=fleet.get("endpoint")
    )


def _refusals() -> tuple[type[Exception], ...]:
    """Return the errors of a request that failed."""
    from botocore.exceptions import BotoCoreError, ClientError

    return BotoCoreError, ClientError, OSError


def _try(work: Any) -> bool:
    try:
        work()
    except _refusals() as error:
        sys.stderr.write(f"regrow: {error}\n")
        return False
    return True


def _until_done(work: Any) -> None:
    """Try until it works: a machine that ended before its fleet would be replaced for nothing."""
    while not _try(work):
        time.sleep(AGAIN_SECONDS)


if __name__ == "__main__":
    described = json.loads((HERE / "fleet.json").read_text())
    if sys.argv[1] == "fetch":
        fetch(described)
    else:
        ended(described, sys.argv[2])
