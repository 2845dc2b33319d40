"""Starting a station and ending it, for the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from regrow.infra.machine import locks
from regrow.infra.machine.processes import is_running
from regrow.infra.prefect.server import other_api_url
from regrow.infra.state.places import Places
from regrow.station import beyond, record
from regrow.station.parts import SERVER
from regrow.station.record import Station
from regrow.station.supervisor import S3, Supervisor
from regrow.tasks.addresses import redacted
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.variables import put

START_SECONDS = 180.0
"""How long everything may take to be ready; 10 s are normal."""
END_SECONDS = 120.0
_TICK = 0.1


def start(places: Places, *, s3: Path | None = None, host: str | None = None) -> Iterator[str]:
    """Starts the station of a state root if none runs; gives lines for people, the last when everything is ready.

    `s3`: the folder of the S3 server that is to end with it. `host`: where it listens as well, with passwords. Raises
    RegrowError if it does not come up, UserError where Prefect is said to be elsewhere.
    """
    began, folder = time.monotonic(), record.folder_of(places.writable())
    if (found := record.find(places)) is not None:
        yield f"a station runs on {places.root} already, process {found.pid}; `regrow status` tells of it"
        return
    _check_prefect(places)
    where = beyond.prepare(places, host)
    (folder / "logs").mkdir(parents=True, exist_ok=True, mode=0o700)
    log = folder / "logs" / "supervisor.log"
    environment = {**os.environ, **_asked(s3, where)}
    with log.open("ab") as into:
        command = [sys.executable, "-P", "-m", "regrow.station.supervisor", "--state", places.root]
        child = subprocess.Popen(
            command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=into, stderr=into, start_new_session=True
        )
    station = _await(places, child, log)
    took = time.monotonic() - began
    yield f"the station of {places.root} is up, after {took:.0f} s"
    yield f"page:    {station.page_url}"
    yield f"Prefect: {station.prefect_url}"
    yield f"MLflow:  {station.mlflow_url}"
    if where is not None:
        yield from beyond.how_to_hand_on(places, station, where)
    yield "`regrow run` starts there now; `regrow status` tells of it, `regrow down` ends it"


def stay(places: Places, *, s3: Path | None = None, host: str | None = None) -> None:
    """Is the station of a state root, in this process, until told to end. Raises UserError if one runs."""
    _check_prefect(places)
    put(_asked(s3, beyond.prepare(places, host)))
    Supervisor(places.writable()).run()


def _check_prefect(places: Places) -> None:
    if (url := other_api_url(places.prefect_home)) is not None:
        raise UserError(
            f"a station has a Prefect server of its own, but PREFECT_API_URL (or your Prefect profile) names {redacted(url)}, to"
            " which `regrow run` and `regrow schedule` would go: unset it for a station. Without one, what is scheduled on that"
            " server is run by `prefect worker start --pool regrow`"
        )


def _asked(s3: Path | None, where: str | None) -> dict[str, str]:
    """What was asked for, in the variables by which a supervisor, and each after it, knows."""
    return {**({S3: str(s3)} if s3 is not None else {}), beyond.HOST: where or ""}


def end(places: Places) -> bool:
    """Ends the station of a state root; returns when everything has ended, False if none runs. Raises RegrowError."""
    folder = record.folder_of(places)
    if not locks.is_held(folder / "station.lock"):
        return False
    pid = int(record.read(folder / "station.json").get("pid", 0))
    deadline = time.monotonic() + END_SECONDS
    while not pid and time.monotonic() < deadline:  # it is starting
        time.sleep(_TICK)
        pid = int(record.read(folder / "station.json").get("pid", 0))
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    while time.monotonic() < deadline:
        if not locks.is_held(folder / "station.lock") and not is_running(pid):
            return True
        time.sleep(_TICK)
    raise RegrowError(f"the station of {places.root}, process {pid}, does not end; see {folder / 'logs'}")


def _await(places: Places, child: subprocess.Popen[bytes], log: Path) -> Station:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        found = record.find(places)
        if found is not None:
            states = {name: part["state"] for name, part in found.parts().items() if not name.startswith(SERVER)}
            if states and all(state == "running" for state in states.values()):
                return found
        if child.poll() is not None and not locks.is_held(log.parent.parent / "station.lock"):  # else another `up` was faster
            said = log.read_text(errors="replace").strip().splitlines()
            raise RegrowError(f"the station ended while it started: {said[-1] if said else 'it said nothing'} (see {log})")
        time.sleep(_TICK)
    raise RegrowError(f"the station was not ready after {START_SECONDS:.0f} s; see {log.parent}, and end it with `regrow down`")
