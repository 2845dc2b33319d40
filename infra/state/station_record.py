"""Find the station of a state root.

Its folder, `<services>/station/`, holds:

* station.lock: held by the supervisor until it ends, in any way
* station.json: the station's process and the addresses of its pages
* parts.json: what runs, since when, how often it was restarted
* ports.json: the ports of its pages, which stay the same
* ray.json: address and token of the Ray head; only for its owner
* serve/: one file for each name that is to be served (infra/state/served.py)
* serving/: one file for each server, with its status
* serve-token: for servers; only for its owner
* drivers/: one file per driver, locked by it; only for its owner
* logs/: what each part printed
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from regrow.infra.machine import locks, private_files
from regrow.infra.machine.private_files import read_record
from regrow.infra.machine.processes import is_running
from regrow.infra.state.places import Places

_MOST_PID = (1 << 31) - 1
_PID = re.compile("[0-9]{1,10}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """A running station.

    Attributes:
        folder: its folder in the state root.
        pid: process of its supervisor.
        since: when it started, seconds since the epoch.
        prefix: `sys.prefix` of the Python environment it runs in.
        version: version of regrow in that environment.

    """

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
    """Folder of the S3 server that it started, None if it started none."""
    restarts: int = 0
    """How often its supervisor was restarted after it had ended unexpectedly."""
    ray: str | None = None
    """Address of the user's Ray cluster, None if the station started its own."""
    ending: bool = False
    """Whether it was asked to end, and ends its parts."""

    @property
    def same_environment(self) -> bool:
        """Whether its drivers have the packages of this process. They cannot run what was started
        in another virtual environment.
        """
        return self.prefix == sys.prefix and self.version == version("regrow")

    def unlike(self, variables: Mapping[str, str]) -> str | None:
        """Return the variable that names another server than the station's, which the user then
        means to use. None if all match.
        """
        own = {
            "PREFECT_API_URL": self.prefect_api,
            "MLFLOW_TRACKING_URI": self.mlflow_url,
            "RAY_ADDRESS": self.ray or "",
        }
        for name, url in own.items():
            if (variables.get(name) or url).rstrip("/") != url.rstrip("/"):
                return name
        return None

    def pages(self, shown: Callable[[str, str], str], *, path: str = "") -> list[str]:
        """Return lines with the addresses of its pages. `path`: of ours. `shown`: see Passwords."""
        known = {"page": ("page", self.page_url + path), "Prefect": ("prefect", self.prefect_url)}
        lines = [f"{name + ':':9}{shown(server, url)}" for name, (server, url) in known.items()]
        # Else a server of the user's, which needs no login link.
        mlflow = shown("mlflow", self.mlflow_url) if "mlflow" in self.parts() else self.mlflow_url
        return [*lines, f"MLflow:  {mlflow}"]

    def parts(self) -> dict[str, dict[str, Any]]:
        """Return what runs, by name: `pid`, `since` (since the epoch), `restarts`, `state`."""
        return read_record(self.folder / "parts.json")

    def write(self) -> None:
        """Write station.json, by which other processes find the station."""
        record = {name: value for name, value in asdict(self).items() if name != "folder"}
        write(self.folder / "station.json", record)


def folder_of(places: Places) -> Path:
    """Return the folder of the station of a state root, whether a station runs or not."""
    return places.services / "station"


def find(places: Places) -> Station | None:
    """Return the station of a state root; None if none runs, or its record is not there yet."""
    folder = folder_of(places)
    if not locks.is_held(folder / "station.lock"):
        return None
    # A station of another version may have written more keys.
    known = {one.name for one in fields(Station)} - {"folder"}
    record = {
        name: value for name, value in read_record(folder / "station.json").items() if name in known
    }
    return Station(folder=folder, **record) if record else None


def drivers(folder: Path, *, idle: bool) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (process id, record) of the drivers that wait for a command (`idle`), or of those that
    run one, in order of process ids.

    Waiting drivers whose Ray head is gone are left out, see `stranded`.
    """
    head = head_of(folder)
    for file in _drivers(folder):
        if locks.is_held(file):
            record = read_record(file)
            if (
                record
                and bool(record.get("idle")) == idle
                and (not idle or record.get("head") == head)
            ):
                yield int(file.stem), record
        elif not is_running(int(file.stem)) and read_record(file).get("idle", True):
            forget(file)


def stranded(folder: Path) -> list[int]:
    """Return the process ids of waiting drivers whose Ray head is gone."""
    head = head_of(folder)
    found = [
        (int(file.stem), read_record(file)) for file in _drivers(folder) if locks.is_held(file)
    ]
    return [pid for pid, known in found if known.get("idle") and known.get("head") != head]


def head_of(folder: Path) -> int | None:
    """Return the process id of the station's Ray head, None while there is none."""
    pid: int | None = read_record(folder / "ray.json").get("pid")
    return pid


def lost(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield (file, record) of the drivers that were killed before they finished their command.

    The record's `lost`: when that was first noticed, in seconds since the epoch.
    """
    for file in _drivers(folder):
        known = read_record(file)
        if not known.get("idle", True) and not locks.is_held(file):
            if "lost" not in known:
                known["lost"] = time.time()
                write(file, known)
            yield file, known


def _drivers(folder: Path) -> list[Path]:
    """Return the record files of drivers, in order of process ids. Ignores other files."""
    found = [
        file
        for file in (folder / "drivers").glob("*.json")
        if _PID.fullmatch(file.stem) and int(file.stem) <= _MOST_PID
    ]
    return sorted(found, key=lambda file: int(file.stem))


def forget(file: Path) -> None:
    """Remove the files of a driver."""
    file.unlink(missing_ok=True)
    file.with_suffix(".order").unlink(missing_ok=True)


def write(file: Path, record: Mapping[str, Any]) -> None:
    """Write a record that only its owner may read."""
    private_files.replace(file, json.dumps(record))
