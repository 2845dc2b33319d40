"""The parts of a station: command, environment and readiness check of each."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from regrow.apps.serving import status
from regrow.apps.station import keeper
from regrow.infra.machine import addresses, locks
from regrow.infra.machine.private_files import read_record
from regrow.infra.machine.supervised import responds
from regrow.infra.mlflow.ui import server_command
from regrow.infra.state import passwords, served
from regrow.infra.state import station_record as record
from regrow.infra.state.places import Places

SERVER = "serve-"
"""Prefix of the parts that are servers: they come and go, and no other part waits for them."""
WORKER_SECONDS, SERVER_SECONDS = 60.0, 50.0
"""How long these may take to end: drivers save checkpoints, servers answer pending requests."""
HOST = "REGROW_STATION_HOST"
"""Variable with the additional address on which the station listens; unset: loopback only. Ray and
the S3 server always stay on the loopback.
"""
NO_KEEPER = "REGROW_STATION_NO_KEEPER"
"""Set if something else, such as systemd, restarts the supervisor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StationPart:
    """A process of the station.

    Attributes:
        ready: returns whether it serves.
        after: names of the parts that must be ready before it is started.
        grace: seconds that it may take to end.

    """

    name: str
    command: list[str]
    environment: Mapping[str, str]
    ready: Callable[[], bool] = lambda: True
    after: tuple[str, ...] = ()
    grace: float = 5.0


def host() -> str | None:
    """Return the additional address on which this process's station listens, None for none."""
    return os.environ.get(HOST) or None


def ports(folder: Path) -> dict[str, int]:
    """Return the pages' ports: the previous ones if they are free, or if the part lives on."""
    known = read_record(folder / "ports.json")
    found = {}
    for name in ("mlflow", "page"):
        last = int(known.get(name, 0))
        found[name] = (
            last
            if last and locks.is_held(folder / f"{name}.lock")
            else addresses.free_port(last=last)
        )
    record.write(folder / "ports.json", found)
    return found


def parts(
    places: Places,
    environment: Mapping[str, str],
    numbers: Mapping[str, int],
    links: Mapping[str, str],
) -> list[StationPart]:
    """Return all parts but the Prefect server. `environment`: variables for all of them; `links`:
    addresses of the other pages, for the page.
    """
    folder = record.folder_of(places)
    base, where = {**os.environ, **environment}, host()
    again = _module("supervisor", "--state", places.root)
    shown = {"REGROW_PAGE_PREFECT": links["prefect"], "REGROW_PAGE_MLFLOW": links["mlflow"]}
    page = [sys.executable, "-P", "-m", "regrow.apps.page", "--state", places.root]
    page += ["--port", str(numbers["page"]), *([] if where is None else ["--host", where])]
    found = []
    if own_ray := not os.environ.get("RAY_ADDRESS"):
        ready = (folder / "ray.json").exists
        command = _module("head", str(folder))
        found.append(StationPart(name="ray", command=command, environment=base, ready=ready))
    if not os.environ.get("MLFLOW_TRACKING_URI"):
        found.append(_mlflow(places, base, numbers["mlflow"], where))
        # the page links to its page
        shown |= passwords.make(places.services).mlflow_environment
    found += [
        StationPart(
            name="worker",
            command=_module("worker", "--state", places.root),
            environment=base,
            ready=lambda: any(record.drivers(folder, idle=True)),
            after=("ray",) if own_ray else (),
            grace=WORKER_SECONDS,
        ),
        StationPart(
            name="page",
            command=page,
            environment={**base, **shown},
            ready=partial(responds, f"http://127.0.0.1:{numbers['page']}/health"),
        ),
        StationPart(
            name="triggers",
            command=_module("triggers", "--state", places.root),
            environment=base,
        ),
    ]
    if not os.environ.get(NO_KEEPER):
        keep = [sys.executable, "-I", "-S", keeper.__file__, str(folder / "station.lock"), *again]
        found.append(StationPart(name="keeper", command=keep, environment=dict(os.environ)))
    return found


def servers(places: Places, environment: Mapping[str, str]) -> list[StationPart]:
    """Return the parts for the models that are to be served now."""
    return [
        StationPart(
            name=f"{SERVER}{name}",
            command=_module("server", "--state", places.root, name),
            grace=SERVER_SECONDS,
            environment={**os.environ, **environment},
            ready=_listens(served.status_file(places, name)),
        )
        for name in served.names(places)
    ]


def _listens(file: Path) -> Callable[[], bool]:
    return lambda: bool(status.read(file).url)


def _mlflow(places: Places, base: Mapping[str, str], port: int, where: str | None) -> StationPart:
    command, own = server_command(
        places.mlflow_uri, places.mlflow_artifacts, services=places.services, port=port, host=where
    )
    ready = partial(responds, f"http://127.0.0.1:{port}/health")
    return StationPart(name="mlflow", command=command, environment={**base, **own}, ready=ready)


def _module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", f"regrow.apps.station.{name}", *arguments]
