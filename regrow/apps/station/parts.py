"""The parts of a station: command, environment and readiness check of each."""

from __future__ import annotations

import os
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from regrow.apps.serving import status
from regrow.apps.station import beyond, keeper
from regrow.infra.machine import locks
from regrow.infra.mlflow.ui import server_command
from regrow.infra.state import passwords, served
from regrow.infra.state import station_record as record
from regrow.infra.state.places import Places

SERVER = "serve-"
"""Prefix of the names of parts that are servers: they come and go, and no other part waits for
them.
"""
WORKER_SECONDS, SERVER_SECONDS = 60.0, 50.0
"""How long these may take to end: the worker's drivers save checkpoints, servers answer pending
requests.
"""
NO_KEEPER = "REGROW_STATION_NO_KEEPER"
"""Set if something else, such as systemd, restarts the supervisor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A process of the station.

    Attributes:
        ready: returns whether it serves.
        after: names of the parts that must be ready before it is started.
        grace: seconds that it may take to end.

    """

    name: str
    command: list[str]
    environment: Mapping[str, str]
    ready: Callable[[], bool]
    after: tuple[str, ...] = ()
    grace: float = 5.0


def ports(folder: Path) -> dict[str, int]:
    """Return the ports of the pages: the previous ones if they are free, or if the part outlived
    its supervisor.
    """
    known = record.read(folder / "ports.json")
    found = {}
    for name in ("mlflow", "page"):
        last = int(known.get(name, 0))
        found[name] = last if last and locks.is_held(folder / f"{name}.lock") else _free(last)
    record.write(folder / "ports.json", found)
    return found


def parts(
    places: Places,
    environment: Mapping[str, str],
    numbers: Mapping[str, int],
    links: Mapping[str, str],
) -> list[Part]:
    """Return all parts but the Prefect server. `environment`: variables for all of them; `links`:
    addresses of the other pages, for the page.
    """
    folder = record.folder_of(places)
    base, where = {**os.environ, **environment}, beyond.host()
    found = []
    if not os.environ.get("RAY_ADDRESS"):
        found.append(
            Part(
                name="ray",
                command=_module("head", str(folder)),
                environment=base,
                ready=(folder / "ray.json").exists,
            )
        )
    if not os.environ.get("MLFLOW_TRACKING_URI"):
        found.append(_mlflow(places, base, numbers["mlflow"], where))
    again = _module("supervisor", "--state", places.root)
    keep = [sys.executable, "-I", "-S", keeper.__file__, str(folder / "station.lock"), *again]
    worker = _module("worker", "--state", places.root)
    first = ("ray",) if found and found[0].name == "ray" else ()
    found.append(
        Part(
            name="worker",
            command=worker,
            environment=base,
            ready=lambda: any(record.drivers(folder, idle=True)),
            after=first,
            grace=WORKER_SECONDS,
        )
    )
    shown = {"REGROW_PAGE_PREFECT": links["prefect"], "REGROW_PAGE_MLFLOW": links["mlflow"]}
    page = [
        sys.executable,
        "-P",
        "-m",
        "regrow.apps.page",
        "--state",
        places.root,
        "--port",
        str(numbers["page"]),
    ]
    if where is not None:
        page += ["--host", where]
    if "mlflow" in {part.name for part in found}:  # the page links to its page
        shown |= passwords.make(places.services).mlflow_environment
    found.append(
        Part(
            name="page",
            command=page,
            environment={**base, **shown},
            ready=_answers(f"http://127.0.0.1:{numbers['page']}/health"),
        )
    )
    found.append(
        Part(
            name="triggers",
            command=_module("triggers", "--state", places.root),
            environment=base,
            ready=_always,
        )
    )
    if not os.environ.get(NO_KEEPER):
        found.append(Part(name="keeper", command=keep, environment=dict(os.environ), ready=_always))
    return found


def servers(places: Places, environment: Mapping[str, str]) -> list[Part]:
    """Return the parts for the models that are to be served now."""
    return [
        Part(
            name=f"{SERVER}{name}",
            command=_module("server", "--state", places.root, name),
            grace=SERVER_SECONDS,
            environment={**os.environ, **environment},
            ready=_listens(served.standing(places, name)),
        )
        for name in served.names(places)
    ]


def _listens(file: Path) -> Callable[[], bool]:
    return lambda: bool(status.read(file).url)


def _mlflow(places: Places, base: Mapping[str, str], port: int, where: str | None) -> Part:
    command, own = server_command(
        places.mlflow_uri, places.mlflow_artifacts, services=places.services, port=port, host=where
    )
    ready = _answers(f"http://127.0.0.1:{port}/health")
    return Part(name="mlflow", command=command, environment={**base, **own}, ready=ready)


def _always() -> bool:
    return True


def _module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", f"regrow.apps.station.{name}", *arguments]


def _answers(url: str) -> Callable[[], bool]:
    def asked() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=1.0):
                return True
        except (urllib.error.URLError, OSError):
            return False

    return asked


def _free(last: int) -> int:
    for port in (last, 0):
        try:
            with socket.create_server(("127.0.0.1", port)) as probe:
                return int(probe.getsockname()[1])
        except OSError:
            continue
    raise OSError("there is no free port")
