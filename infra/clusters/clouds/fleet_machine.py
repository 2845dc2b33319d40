"""What a machine of a fleet runs beside its agent: `python machine.py fetch | ended STATUS`, and
what the agent that leads runs: `machines`, `start GROUP COUNT`.

`fetch` gets the agent's files. `ended` acts on the exit status of the agent: when the experiment is
over it deletes the fleets before the machine ends, as the cloud would replace the machine
otherwise. It needs botocore alone, as it also has to work where no environment could be made, and
any Python of a cloud's images. The folder of this file has `fleet.json`, and `cloud.py` with what
differs between clouds: one of `aws_machine.py`, `gcp_machine.py` and `azure_machine.py`.
"""

from __future__ import annotations

import json
import os
import shlex
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
"""Machines of a group that could not take part before the leader starts no other ones."""
AGAIN_SECONDS = 30.0
LINES = 40
"""Last lines of the agent's output that are kept of a machine that could not take part."""


def fetch(fleet: dict[str, Any], cloud: Any) -> None:
    """Get the variables and the parcel. Raises OSError and botocore's errors."""
    if not (HERE / ENVIRONMENT).exists():
        _write(ENVIRONMENT, [cloud.environment(fleet)])
    body = _s3(fleet).get_object(**_object(fleet, PARCEL))["Body"]
    _write(PARCEL, body.iter_chunks(1 << 20))


def ended(fleet: dict[str, Any], status: str, cloud: Any) -> None:
    """Act on an end of the agent. Turns the machine off, unless systemd starts the agent again."""
    if status == OVER or (status == FAILED and _has_failed(fleet)):
        _try(lambda: cloud.forget(fleet))  # first, as this machine ends with its fleet
        _try(lambda: _s3(fleet).delete_object(**_object(fleet, PARCEL)))
        _until_done(lambda: cloud.delete(fleet))
    elif status == LEFT:
        _try(lambda: cloud.left(fleet))
    else:
        if status not in WRONG and _crashes() < MOST_CRASHES:
            return
        _try(lambda: _report(fleet, status))
        _until_done(lambda: cloud.unable(fleet))
    subprocess.run(["shutdown", "-h", "now"], check=False)  # noqa: S607 - wherever the image has it


def start(fleet: dict[str, Any], group: str, count: int, cloud: Any) -> None:
    """Start more machines of a group that come on need. Raises OSError if several of them could not
    take part, and what the cloud raises.
    """
    at = _object(fleet, f"{ENDED}{group}-")
    found = _s3(fleet).list_objects_v2(Bucket=at["Bucket"], Prefix=at["Key"])
    if found["KeyCount"] >= MOST_UNABLE:
        raise OSError(f"{MOST_UNABLE} machines of {group} could not take part")
    cloud.start(fleet, group, count)


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
    host = socket.gethostname()
    report = {"host": host, "group": fleet["group"], "status": status, "t": time.time()}
    words = ["journalctl", "--unit=regrow-agent", f"--lines={LINES}", "--output=cat", "--no-pager"]
    try:
        output = subprocess.run(words, stdout=subprocess.PIPE, check=False).stdout.decode(
            "utf-8", "replace"
        )
    except OSError:
        output = ""
    prepared = HERE / "prepare.log"
    if not output.strip() and prepared.exists():
        output = prepared.read_text(errors="replace")
    report["lines"] = [line[:500] for line in output.splitlines()[-LINES:]]
    where = _object(fleet, "{}{}-{}.json".format(ENDED, fleet["group"], host))
    _s3(fleet).put_object(**where, Body=json.dumps(report).encode())


def _s3(fleet: dict[str, Any]) -> Any:
    """Return a client of the bucket, with the keys in the agent's variables, or the rights of this
    machine.
    """
    from botocore.config import Config
    from botocore.session import get_session

    if fleet["keys"]:
        for line in (HERE / ENVIRONMENT).read_text().splitlines():
            name, _, value = shlex.split(line)[1].partition("=")
            os.environ[name] = value
    path = Config(s3={"addressing_style": "path"}) if fleet["s3"]["endpoint_url"] else None
    return get_session().create_client("s3", **fleet["s3"], config=path)


def _object(fleet: dict[str, Any], name: str) -> dict[str, str]:
    return {"Bucket": fleet["bucket"], "Key": fleet["folder"] + "/" + name}


def _write(name: str, parts: Any) -> None:
    with open(os.open(HERE / name, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.writelines(parts)


def _refusals() -> tuple[type[Exception], ...]:
    """Return the errors of a request that failed, also where nothing is installed yet."""
    try:
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        return ImportError, OSError
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
    import cloud as here  # type: ignore[import-not-found]  # the file beside this one

    described = json.loads((HERE / "fleet.json").read_text())
    if sys.argv[1] == "fetch":
        fetch(described, here)
    elif sys.argv[1] == "machines":
        sys.stdout.write(json.dumps(here.machines(described)))
    elif sys.argv[1] == "start":
        if not _try(lambda: start(described, sys.argv[2], int(sys.argv[3]), here)):
            sys.exit(1)
    else:
        ended(described, sys.argv[2], here)
