"""How a station stands, as values: its parts with their memory, its pages, what it runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from regrow.infra.prefect.home import read_record
from regrow.infra.state import served
from regrow.infra.state.driver_lock import runs_here
from regrow.infra.state.places import Places
from regrow.serving import standing as servers
from regrow.serving.standing import State
from regrow.station import record
from regrow.station.parts import SERVER
from regrow.station.record import Station
from regrow.tasks.errors import RegrowError

_RUNS = {"restarts": 0, "state": "running"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartState:
    """`since`: seconds since the epoch. `memory`: bytes of its processes, what they share counted once; 0 where unknown."""

    name: str
    state: str
    pid: int
    since: float
    restarts: int
    memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A server that is kept up. `running`: whether its process is there now; `said`: what it says of itself."""

    name: str
    running: bool
    said: State

    @property
    def state(self) -> str:
        """In a word."""
        if not self.running or not self.said.url:
            return "starting"
        return "waiting" if self.said.main is None else "serving"

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {"name": self.name, "state": self.state, **msgspec.to_builtins(self.said)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """`pages`: names and addresses; `running`: the experiments that its drivers run."""

    station: Station
    parts: list[PartState]
    pages: list[tuple[str, str]]
    running: list[str]
    scheduled: list[str]
    """The next runs of schedules, a line each; empty while Prefect does not answer."""
    served: list[Serving]

    def to_json(self) -> dict[str, Any]:
        """For machines; secrets are in none of it."""
        return {
            "pid": self.station.pid, "since": self.station.since, "parts": [asdict(part) for part in self.parts],
            "pages": dict(self.pages), "running": self.running, "scheduled": self.scheduled,
            "served": [one.to_json() for one in self.served],
        }


def standing(station: Station, places: Places) -> Standing:
    """Looks at it now."""
    server = read_record(station.folder.parent / "prefect")
    parts: dict[str, dict[str, Any]] = {"supervisor": {**_RUNS, "pid": station.pid, "since": station.since}}
    if server.get("pid") and station.prefect_api == server.get("api_url"):
        parts["prefect"] = {**_RUNS, "pid": server["pid"], "since": server.get("since", station.since)}
    parts |= station.parts()
    sizes = _memory([int(part["pid"]) for part in parts.values() if part["pid"]])
    busy = record.drivers(station.folder, idle=False)
    return Standing(
        station=station, pages=[("page", station.page_url), ("Prefect", station.prefect_url), ("MLflow", station.mlflow_url)],
        parts=[PartState(name=name, **part, memory=sizes.get(part["pid"], 0)) for name, part in parts.items()],
        running=_running(places, [known for _, known in busy]),
        scheduled=_scheduled(places), served=serving(station, places),
    )


def serving(station: Station, places: Places) -> list[Serving]:
    """What is to be served, and how it stands."""
    parts, found = station.parts(), []
    for name in served.names(places):
        said = servers.read(served.standing(places, name))
        pid = int(parts.get(f"{SERVER}{name}", {}).get("pid", 0))
        if not pid or pid != said.pid:  # what the one before it has said of itself is over
            said = msgspec.structs.replace(said, url="", main=None, canary=None)
        found.append(Serving(name=name, running=pid > 0, said=said))
    return found


def _running(places: Places, busy: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of what drivers run; which experiment a flow run is, its driver finds out only after it was taken."""
    found = {str(known["name"]) for known in busy if known.get("name")}
    if any(not known.get("name") for known in busy):
        found |= {name for name in places.experiments() if runs_here(places, name)}
    return sorted(found)


def _scheduled(places: Places) -> list[str]:
    from httpx import HTTPError
    from prefect.exceptions import PrefectException

    from regrow.infra.prefect import deployments

    try:
        with deployments.connected(places) as client:
            found = deployments.listed(client, places.root)
    except (HTTPError, PrefectException, RegrowError):
        return []
    return [f"{one.coming[0]:%Y-%m-%d %H:%M:%S %Z} {one.name} ({one.words})" for one in found if one.coming and not one.paused]


def _memory(roots: Iterable[int]) -> dict[int, int]:
    """Bytes (PSS) of each of these processes with all that it started, where there is /proc; each process counted once."""
    own = set(roots)
    children = defaultdict(list)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        children[parent].append(int(process.name))
    found = {}
    for root in own:
        below, size = [root], 0
        while below:
            pid = below.pop()
            size += _pss(pid)
            below += [child for child in children[pid] if child not in own]
        found[root] = size
    return found


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
