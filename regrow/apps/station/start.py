"""Starting and ending a station, for the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from regrow.apps.station.parts import HOST, SERVER
from regrow.apps.station.supervisor import S3, Supervisor
from regrow.infra.machine import addresses, locks, private_files
from regrow.infra.machine.private_files import read_record
from regrow.infra.machine.processes import is_running
from regrow.infra.machine.supervised import await_ready, last_line, spawn, until
from regrow.infra.prefect.server import other_api_url
from regrow.infra.prefect.settings import refuse_settings
from regrow.infra.state import passwords
from regrow.infra.state import station_record as record
from regrow.infra.state.passwords import USER
from regrow.infra.state.places import Places
from regrow.infra.state.station_record import Station
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.process.addresses import redacted
from regrow.tasks.process.variables import put

START_SECONDS = 180.0
"""How long all parts may take to be ready; 10 s are normal."""
END_SECONDS = 120.0
_TICK = 0.1


def start(places: Places, *, s3: Path | None = None, host: str | None = None) -> Iterator[str]:
    """Start the station of a state root if none runs; yield lines for people, the last when
    everything is ready.

    Args:
        places: locations of state and services.
        s3: folder of the S3 server that ends with the station; None: none.
        host: additional address to listen on; None: loopback only.

    Raises RegrowError if it does not come up, UserError if Prefect is configured to be elsewhere.

    """
    began, folder = time.monotonic(), record.folder_of(places.writable())
    if (found := record.find(places)) is not None and found.ending:
        yield f"the station of {places.root} is ending; the next one starts once it has ended"
        _await_end(places, found.pid)
        found = record.find(places)
    if found is not None:
        yield (
            f"a station runs on {places.root} already, process {found.pid}; `regrow status` shows"
            " it"
        )
        return
    _check_prefect(places)
    where = addresses.beside_loopback(host)
    private_files.folder(folder)
    log = private_files.folder(folder / "logs") / "supervisor.log"
    environment = {**os.environ, **_asked(s3, where)}
    module = "regrow.apps.station.supervisor"
    command = [sys.executable, "-P", "-m", module, "--state", places.root]
    child = spawn(command, log, environment=environment)
    try:
        station = _await(places, child, log)
    except KeyboardInterrupt:
        yield (
            f"the station of {places.root} continues to start; `regrow status` shows it, `regrow"
            " down` ends it"
        )
        raise
    took = time.monotonic() - began
    yield f"the station of {places.root} is up, after {took:.0f} s"
    yield from station.pages(passwords.make(places.services).shown)
    if where is not None and addresses.is_beyond(where):
        yield from _how_to_hand_on(places, station, where)
    yield "`regrow run` starts there now; `regrow status` shows it, `regrow down` ends it"


def _how_to_hand_on(places: Places, station: Station, where: str) -> Iterator[str]:
    """Yield instructions for people, without passwords."""
    file = passwords.file_of(places.services)
    name, prefect = addresses.names(where)[0], station.prefect_url.rpartition(":")[2]
    yield f"it listens at {where}, too; its passwords are in {file}, which only you can read"
    yield f'page:    user {USER}, password "page" of that file'
    yield (
        f'MLflow:  user {USER}, password "mlflow"; Prefect: {USER}:PASSWORD as one word, password'
        ' "prefect"'
    )
    yield (
        "none of this is encrypted: have a VPN, an SSH tunnel or a proxy with TLS between; a"
        " colleague sets"
    )
    yield f"  PREFECT_API_URL=http://{name}:{prefect}/api"
    yield f"  PREFECT_API_AUTH_STRING={USER}:PASSWORD"
    yield f"  MLFLOW_TRACKING_URI={station.mlflow_url}"
    yield f"  MLFLOW_TRACKING_USERNAME={USER}"
    yield "  MLFLOW_TRACKING_PASSWORD=PASSWORD"


def run_station(places: Places, *, s3: Path | None = None, host: str | None = None) -> None:
    """Run the station in this process until it is asked to end. Raises UserError if one runs."""
    _check_prefect(places)
    put(_asked(s3, addresses.beside_loopback(host)))
    Supervisor(places.writable()).run()


def _check_prefect(places: Places) -> None:
    refuse_settings(places)
    if (url := other_api_url(places.prefect_home)) is not None:
        raise UserError(
            "a station has a Prefect server of its own, but PREFECT_API_URL (or your Prefect"
            f" profile) names {redacted(url)}, to which `regrow run` and `regrow schedule` would"
            " go: unset it for a station. Without one, what is scheduled on that server is run by"
            " `prefect worker start --pool regrow`"
        )


def _asked(s3: Path | None, where: str | None) -> dict[str, str]:
    """Return the options as variables, which this supervisor and each restarted one read."""
    return {**({S3: str(s3)} if s3 is not None else {}), HOST: where or ""}


def end(places: Places) -> bool:
    """End the station of a state root; return when everything has ended, False if none runs.

    Raises RegrowError if it does not end in time.
    """
    folder = record.folder_of(places)
    if not locks.is_held(folder / "station.lock"):
        return False
    # without a record it is starting
    until(lambda: read_record(folder / "station.json").get("pid"), seconds=END_SECONDS, tick=_TICK)
    pid = int(read_record(folder / "station.json").get("pid", 0))
    if pid:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)

    _await_end(places, pid)
    return True


def _await_end(places: Places, pid: int) -> None:
    """Return once the station with this process, 0 if unknown, has ended. Raises RegrowError if it
    does not end in time.
    """
    folder = record.folder_of(places)

    def ended() -> bool:
        return not locks.is_held(folder / "station.lock") and not (pid and is_running(pid))

    if not until(ended, seconds=END_SECONDS, tick=_TICK):
        raise RegrowError(
            f"the station of {places.root}, process {pid}, does not end; see {folder / 'logs'}"
        )


def _await(places: Places, child: subprocess.Popen[bytes], log: Path) -> Station:
    station: Station | None = None

    def runs(_: float) -> bool:
        nonlocal station
        station = record.find(places)
        parts = {} if station is None else station.parts()
        states = {part["state"] for name, part in parts.items() if not name.startswith(SERVER)}
        return states == {"running"}

    failed = await_ready(
        runs,
        # If the lock is held, another `up` was faster.
        lambda: child.poll() is None or locks.is_held(log.parent.parent / "station.lock"),
        seconds=START_SECONDS,
        what="get ready",
        tick=_TICK,
    )
    if failed and child.poll() == 0:
        raise RegrowError(
            f"the station of {places.root} was asked to end while it started, as by `regrow down`;"
            " `regrow up` starts it again"
        )
    if failed or station is None:
        raise RegrowError(
            f"the station {failed}: {last_line(log)} (see {log.parent}; `regrow down` ends it)"
        )
    return station
