"""What a station is made of: the command, the environment and the readiness of each part."""

from __future__ import annotations

import os
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from regrow.infra.machine import addresses, locks
from regrow.infra.mlflow.ui import server_command
from regrow.infra.state import passwords, served
from regrow.infra.state.places import Places
from regrow.serving import standing
from regrow.station import beyond, keeper, record

SERVER = "serve-"
"""How the names of parts begin that are servers: they come and go, and nobody waits for them."""
WORKER_SECONDS, SERVER_SECONDS = 60.0, 50.0
"""How long these may take to end: the worker's drivers save checkpoints, servers answer what is under way."""
NO_KEEPER = "REGROW_STATION_NO_KEEPER"
"""Set where something else, such as systemd, starts the supervisor again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A process of the station. `ready`: whether it serves; `after`: the parts that must be ready before it is started; `grace`:
    seconds that it may take to end.
    """

    name: str
    command: list[str]
    environment: Mapping[str, str]
    ready: Callable[[], bool]
    after: tuple[str, ...] = ()
    grace: float = 5.0


def ports(folder: Path) -> dict[str, int]:
    """The ports of the pages: those of last time where they are free, or where the part outlived its supervisor."""
    known = record.read(folder / "ports.json")
    found = {}
    for name in ("mlflow", "page"):
        last = int(known.get(name, 0))
        found[name] = last if last and locks.is_held(folder / f"{name}.lock") else _free(last)
    record.write(folder / "ports.json", found)
    return found


def parts(places: Places, environment: Mapping[str, str], numbers: Mapping[str, int], links: Mapping[str, str]) -> list[Part]:
    """All parts but the Prefect server. `environment`: of all of them; `links`: what the page is told of the others."""
    folder = record.folder_of(places)
    base, where = {**os.environ, **environment}, beyond.host()
    found = []
    if not os.environ.get("RAY_ADDRESS"):
        found.append(
            Part(name="ray", command=_module("head", str(folder)), environment=base, ready=(folder / "ray.json").exists)
        )
    if not os.environ.get("MLFLOW_TRACKING_URI"):
        found.append(_mlflow(places, base, numbers["mlflow"], where))
    again = _module("supervisor", "--state", places.root)
    keep = [sys.executable, "-I", "-S", keeper.__file__, str(folder / "station.lock"), *again]
    worker = _module("worker", "--state", places.root)
    first = ("ray",) if found and found[0].name == "ray" else ()
    found.append(
        Part(
            name="worker", command=worker, environment=base, ready=lambda: any(record.drivers(folder, idle=True)), after=first,
            grace=WORKER_SECONDS,
        )
    )
    shown = {"REGROW_PAGE_PREFECT": links["prefect"], "REGROW_PAGE_MLFLOW": links["mlflow"]}
    page = [sys.executable, "-P", "-m", "regrow.page", "--state", places.root, "--port", str(numbers["page"])]
    if where is not None:
        page += ["--host", where]
        known = passwords.make(places.services)
        shown |= {"REGROW_PAGE_PASSWORD": known.page, beyond.HOSTS: ",".join(beyond.names(where))}
        if "mlflow" in {part.name for part in found}:  # whose page it links to
            shown |= {"MLFLOW_TRACKING_USERNAME": passwords.USER, "MLFLOW_TRACKING_PASSWORD": known.mlflow}
    found.append(
        Part(name="page", command=page, environment={**base, **shown}, ready=_answers(f"http://127.0.0.1:{numbers['page']}/health"))
    )
    found.append(Part(name="triggers", command=_module("triggers", "--state", places.root), environment=base, ready=_always))
    if not os.environ.get(NO_KEEPER):
        found.append(Part(name="keeper", command=keep, environment=dict(os.environ), ready=_always))
    return found


def servers(places: Places, environment: Mapping[str, str]) -> list[Part]:
    """The servers of what is to be served now."""
    return [
        Part(
            name=f"{SERVER}{name}", command=_module("server", "--state", places.root, name), grace=SERVER_SECONDS,
            environment={**os.environ, **environment}, ready=_listens(served.standing(places, name)),
        )
        for name in served.names(places)
    ]


def _listens(file: Path) -> Callable[[], bool]:
    return lambda: bool(standing.read(file).url)


def _mlflow(places: Places, base: Mapping[str, str], port: int, where: str | None) -> Part:
    if where is None:
        command, own = server_command(places.mlflow_uri, places.mlflow_artifacts, port=port)
    else:
        # It takes one address only.
        command, own = server_command(places.mlflow_uri, places.mlflow_artifacts, port=port, host=where, app="basic-auth")
        known = passwords.make(places.services)
        own |= beyond.mlflow_environment(record.folder_of(places), known, port, beyond.names(where))
    at = "127.0.0.1" if where is None or where in addresses.ANY else addresses.names(where)[0]
    return Part(name="mlflow", command=command, environment={**base, **own}, ready=_answers(f"http://{at}:{port}/health"))


def _always() -> bool:
    return True


def _module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", f"regrow.station.{name}", *arguments]


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
