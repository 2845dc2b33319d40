"""Finding the station of a state root, and what lies in its folder.

<services>/station/   station.lock   held by the supervisor until it ends, however it ends
                      station.json   who it is and where its pages are
                      parts.json     what runs, since when, how often it was started again
                      ports.json     the ports of its pages, which stay the same
                      ray.json       address and token of the Ray head; only for its owner
                      serve/         one file for each name that is to be served (infra/state/served.py)
                      serving/       one file for each server, in which it says how it stands
                      serve-token    for servers beyond the loopback; only for its owner
                      drivers/       one file a driver, held by it; only for its owner
                      logs/          what each part printed
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from regrow.infra.machine import locks, private_files
from regrow.infra.machine.processes import is_running
from regrow.infra.state.places import Places


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """A station that runs. `since`: seconds since the epoch. `prefix` and `version` are of the Python environment it runs in."""

    folder: Path
    pid: int
    since: float
    prefix: str
    version: str
    prefect_api: str
    prefect_url: str
    mlflow_url: str
    page_url: str
    s3: str | None = None
    """The folder of the S3 server that it started, None if it started none."""
    ray: str | None = None
    """The address of the user's own Ray cluster, None if it started one."""

    @property
    def same_environment(self) -> bool:
        """Whether its drivers have the packages of this process: a run in another virtual environment cannot be theirs."""
        return self.prefix == sys.prefix and self.version == version("regrow")

    def unlike(self, variables: Mapping[str, str]) -> str | None:
        """The variable that names another server than the station's: whoever sets it means that one. None if all are its own."""
        own = {"PREFECT_API_URL": self.prefect_api, "MLFLOW_TRACKING_URI": self.mlflow_url, "RAY_ADDRESS": self.ray or ""}
        return next((name for name, url in own.items() if (variables.get(name) or url).rstrip("/") != url.rstrip("/")), None)

    def parts(self) -> dict[str, dict[str, Any]]:
        """What runs, by name: `pid`, `since` (seconds since the epoch), `restarts`, `state` (starting, running or waiting)."""
        return read(self.folder / "parts.json")

    def write(self) -> None:
        """Makes it known."""
        record = {name: value for name, value in asdict(self).items() if name != "folder"}
        write(self.folder / "station.json", record)


def folder_of(places: Places) -> Path:
    """The folder of the station of a state root, whether there is one or not."""
    return places.services / "station"


def find(places: Places) -> Station | None:
    """The station of a state root; None if none runs, or its first start is not that far yet."""
    folder = folder_of(places)
    if not locks.is_held(folder / "station.lock"):
        return None
    known = {one.name for one in fields(Station)} - {"folder"}  # one of another version may tell more
    record = {name: value for name, value in read(folder / "station.json").items() if name in known}
    return Station(folder=folder, **record) if record else None


def drivers(folder: Path, *, idle: bool) -> Iterator[tuple[int, dict[str, Any]]]:
    """The drivers that wait for an order, or those that carry one out: process and record, the oldest first.

    One that waits on a Ray head which is gone by now waits for nothing, see `stranded`.
    """
    head = head_of(folder)
    files = sorted((folder / "drivers").glob("*.json"), key=lambda file: int(file.stem))
    for file in files:
        if locks.is_held(file):
            record = read(file)
            if record and bool(record.get("idle")) == idle and (not idle or record.get("head") == head):
                yield int(file.stem), record
        elif not is_running(int(file.stem)) and read(file).get("idle", True):
            forget(file)


def stranded(folder: Path) -> list[int]:
    """The drivers that wait on a Ray head which is gone."""
    head, files = head_of(folder), (folder / "drivers").glob("*.json")
    found = [(int(file.stem), read(file)) for file in files if locks.is_held(file)]
    return [pid for pid, known in found if known.get("idle") and known.get("head") != head]


def head_of(folder: Path) -> int | None:
    """The process of the station's Ray head, None while there is none."""
    pid: int | None = read(folder / "ray.json").get("pid")
    return pid


def lost(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The drivers that were killed before they had carried out what they were told: their files and what these say.

    `lost`: since when it is known, in seconds since the epoch.
    """
    for file in sorted((folder / "drivers").glob("*.json")):
        known = read(file)
        if not known.get("idle", True) and not locks.is_held(file):
            if "lost" not in known:
                known["lost"] = time.time()
                write(file, known)
            yield file, known


def forget(file: Path) -> None:
    """Removes what a driver left."""
    file.unlink(missing_ok=True)
    file.with_suffix(".order").unlink(missing_ok=True)


def read(file: Path) -> dict[str, Any]:
    """A record; empty where there is none, or none that can be read."""
    try:
        return dict(json.loads(file.read_text()))
    except (OSError, ValueError):
        return {}


def write(file: Path, record: Mapping[str, Any]) -> None:
    """Writes a record, for its owner alone."""
    private_files.replace(file, json.dumps(record))
