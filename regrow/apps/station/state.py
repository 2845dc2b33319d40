"""The status of a station as values: its parts with their memory, its pages, what it runs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from regrow.apps.serving import status as servers
from regrow.apps.serving.status import ServerStatus
from regrow.apps.station.parts import SERVER
from regrow.apps.station.triggers import aside
from regrow.infra.machine.descendants import descendants
from regrow.infra.prefect.home import read_record
from regrow.infra.state import resume_failures, served
from regrow.infra.state import station_record as record
from regrow.infra.state.driver_lock import runs_here
from regrow.infra.state.places import Places
from regrow.infra.state.station_record import Station
from regrow.tasks.errors import RegrowError


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A server that the station keeps running. `running`: whether its process exists now;
    `status`: as it reports it.
    """

    name: str
    running: bool
    status: ServerStatus

    @property
    def state(self) -> str:
        """starting, waiting or serving."""
        if not self.running or not self.status.url:
            return "starting"
        return "waiting" if self.status.main is None else "serving"

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "state": self.state, **msgspec.to_builtins(self.status)}


def station_status(station: Station, places: Places) -> dict[str, Any]:
    """Return the current status, as JSON shows it.

    parts: its processes, each with its `state` (waiting, starting or running), `since` (seconds
        since the epoch) and `memory` (bytes, shared memory counted once; 0 if unknown)
    pages: addresses by name
    running: experiments that its drivers run
    scheduled: the next runs of schedules, a line each; empty while Prefect does not answer
    served: the servers that are wanted
    troubles: what blocks triggers now
    set_aside: events that were set aside and start nothing, the newest first
    unhealed: experiments that it could not recover, a line each
    """
    server = read_record(station.folder.parent / "prefect")
    supervisor = _part(station.pid, station.since, station.restarts)
    parts: dict[str, dict[str, Any]] = {"supervisor": supervisor}
    if server.get("pid") and station.prefect_api == server.get("api_url"):
        since, restarts = server.get("since", station.since), server.get("restarts", 0)
        parts["prefect"] = _part(server["pid"], since, restarts)
    parts |= station.parts()
    sizes = _memory([int(part["pid"]) for part in parts.values() if part["pid"]])
    busy = [known for _, known in record.drivers(station.folder, idle=False)]
    running = {str(known["name"]) for known in busy if known.get("name")}
    if any(not known.get("name") for known in busy):
        # A driver learns the experiment of a flow run only after it took the order.
        running |= {name for name in places.experiments() if runs_here(places, name)}
    return {
        "pid": station.pid,
        "since": station.since,
        "parts": [
            {"name": name, **part, "memory": sizes.get(part["pid"], 0)}
            for name, part in parts.items()
        ],
        "pages": {
            "page": station.page_url,
            "Prefect": station.prefect_url,
            "MLflow": station.mlflow_url,
        },
        "running": sorted(running),
        "scheduled": _scheduled(places),
        "served": [one.to_json() for one in serving(station, places)],
        "troubles": [asdict(one) for one in aside.troubles(places)],
        "set_aside": [asdict(one) for one in aside.found(places)],
        "unhealed": [
            resume_failures.describe(places, name, one)
            for name, one in resume_failures.read(places).items()
        ],
    }


def _part(pid: int, since: float, restarts: int) -> dict[str, Any]:
    return {"state": "running", "pid": pid, "since": since, "restarts": restarts}


def serving(station: Station, places: Places) -> list[Serving]:
    """Return the servers that are wanted, with their status."""
    parts, found = station.parts(), []
    for name in served.names(places):
        status = servers.read(served.status_file(places, name))
        pid = int(parts.get(f"{SERVER}{name}", {}).get("pid", 0))
        if not pid or pid != status.pid:  # the status is the previous process's
            status = msgspec.structs.replace(status, url="", main=None, canary=None)
        found.append(Serving(name=name, running=pid > 0, status=status))
    return found


def _scheduled(places: Places) -> list[str]:
    from httpx import HTTPError

    from regrow.infra.prefect import deployments

    with deployments.at_home(places):
        from prefect.exceptions import PrefectException

        try:
            with deployments.connected(places) as client:
                found = deployments.listed(client, places.root)
        except (HTTPError, PrefectException, RegrowError):
            return []
    return [
        f"{one.coming[0]:%Y-%m-%d %H:%M:%S %Z} {one.name} ({one.words})"
        for one in found
        if one.coming and not one.paused
    ]


def _memory(roots: Collection[int]) -> dict[int, int]:
    """Return the bytes (PSS) of each of these processes with its descendants, if there is /proc;
    each process is counted once.
    """
    below = {root: {root, *descendants(root)} for root in roots}
    found = {}
    for root, own in below.items():
        others = (below[other] for other in below if other in own and other != root)
        found[root] = sum(map(_pss, own.difference(*others)))
    return found


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
