"""The main process of the station: it starts the parts, restarts each that ends, and ends them in
order.

  python -m regrow.apps.station.supervisor --state ROOT

Each part holds its own lock from its start to its end, however it ends. A supervisor that is
restarted after it was killed thus finds the parts that still run and adopts them; a small keeper
process restarts it.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

from regrow.apps.station.parts import SERVER, StationPart, host, parts, ports, servers
from regrow.infra.local import s3_server
from regrow.infra.machine import addresses, locks, private_files
from regrow.infra.machine.private_files import read_record
from regrow.infra.machine.supervised import Backoff, Supervised, spawn
from regrow.infra.prefect import server as prefect_server
from regrow.infra.state import served
from regrow.infra.state import station_record as record
from regrow.infra.state.places import Places
from regrow.infra.state.station_record import Station
from regrow.tasks.errors import RegrowError, UserError

S3 = "REGROW_STATION_S3"
"""Variable with the folder of the S3 server that ends with the station."""
LOOK_SECONDS = 0.25
PATIENCE_SECONDS = (0.5, 30.0)
"""Delay before a part that ended is restarted: at first, and at most, if it ends repeatedly."""
STEADY_SECONDS = 60.0
"""A part that ran for this long gets the short delay again."""
LOG_BYTES = 20_000_000
"""A longer log is renamed when its part starts, and replaces the one that was renamed before."""
_LOG = logging.getLogger(__name__)


@dataclass
class RunningPart:
    """A part that the supervisor runs."""

    part: StationPart
    folder: Path
    process: Supervised | None = None
    """None while it waits for its start."""
    since: float = 0.0
    restarts: int = -1
    due: float = 0.0
    """Monotonic seconds before which it is not restarted."""
    backoff: Backoff = field(
        default_factory=lambda: Backoff(*PATIENCE_SECONDS, steady=STEADY_SECONDS)
    )
    asked: int = 0
    """When the settings of a server were last written, 0 before the first check."""
    steady: bool = False
    """Whether it has been ready since its start."""

    @property
    def lock(self) -> Path:
        return self.folder / f"{self.part.name}.lock"

    @property
    def alive(self) -> bool:
        """Whether its first process runs; descendants may hold the lock when it does not."""
        return self.process is not None and self.process.is_alive()

    def adopt(self, known: Mapping[str, object]) -> None:
        """Adopt a process that a previous supervisor started."""
        if isinstance(known.get("pid"), int):
            process = Supervised(pid=int(str(known["pid"])), lock=self.lock)
            self.since, self.restarts = float(str(known["since"])), int(str(known["restarts"]))
            self.process = process if process.pid > 0 and process.is_alive() else None

    def start(self) -> None:
        """Start the process, which inherits the lock."""
        log = self.folder / "logs" / f"{self.part.name}.log"
        with suppress(FileNotFoundError):
            if log.stat().st_size > LOG_BYTES:
                log.replace(log.with_suffix(".log.1"))
        lock = locks.acquire(self.lock)
        if lock is None:
            return
        with lock:
            child = spawn(
                self.part.command,
                log,
                environment=self.part.environment,
                inherited=(lock.fileno(),),
            )
        self.process = Supervised.of(child, self.lock)
        self.since, self.steady = time.time(), False
        self.restarts += 1

    def ended(self, process: Supervised) -> None:
        """Kill what is left of an ended part and compute when it may be restarted."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # its remaining processes would block the next
        self.due = time.monotonic() + self.backoff.after(time.time() - self.since)
        self.process = None


class Supervisor:
    """Runs the parts until it is asked to end."""

    def __init__(self, places: Places) -> None:
        self._places, self._folder = places, record.folder_of(places)
        self._ended = threading.Event()
        self._running: list[RunningPart] = []
        self._environment: Mapping[str, str] = {}
        """Variables of the Prefect server, for each part."""

    def run(self) -> None:
        """Run until asked to end, and all has ended. Raises UserError if a station runs here."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._ended.set())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for folder in (self._folder, self._folder / "logs", self._folder / "drivers"):
            private_files.folder(folder)
        lock = locks.acquire(self._folder / "station.lock", wait=2.0)
        if lock is None:
            raise UserError(
                f"a station runs on {self._places.root} already; `regrow status` shows it"
            )
        with lock:
            killed = read_record(self._folder / "station.json")  # by a supervisor that was killed
            (self._folder / "station.json").unlink(missing_ok=True)
            restarts = killed["restarts"] + 1 if "restarts" in killed else 0
            with prefect_server.station_server(self._places.prefect_home, host=host()) as handle:
                station = self._begin(handle.server, restarts)
                try:
                    self._supervise()
                finally:
                    with suppress(OSError):  # a full disk
                        replace(station, ending=True).write()
                    self._end_parts()
            (self._folder / "station.json").unlink(missing_ok=True)
        if place := os.environ.get(S3):
            s3_server.stop(Path(place))

    def _begin(self, server: prefect_server.PrefectServer, restarts: int) -> Station:
        """Adopt the parts that still run, and tell where the station's servers are."""
        numbers = ports(self._folder)
        at = "127.0.0.1" if (where := host()) is None else addresses.names(where)[0]
        pages = {name: f"http://{at}:{port}" for name, port in numbers.items()}
        shown = server.ui_url if where is None else server.ui_url.replace("127.0.0.1", at)
        pages["mlflow"] = os.environ.get("MLFLOW_TRACKING_URI") or pages["mlflow"]
        known = read_record(self._folder / "parts.json")
        self._environment = server.environment()
        fixed = parts(self._places, self._environment, numbers, {**pages, "prefect": shown})
        for part in (*fixed, *servers(self._places, self._environment)):
            self._running.append(RunningPart(part, self._folder))
            self._running[-1].adopt(known.get(part.name, {}))
        record.write(
            self._folder / "parts.json", {one.part.name: _describe(one) for one in self._running}
        )
        station = Station(
            folder=self._folder,
            pid=os.getpid(),
            since=time.time(),
            restarts=restarts,
            prefix=sys.prefix,
            version=version("regrow"),
            prefect_api=server.api_url,
            prefect_url=shown,
            mlflow_url=pages["mlflow"],
            page_url=pages["page"],
            s3=os.environ.get(S3),
            ray=os.environ.get("RAY_ADDRESS") or None,
        )
        station.write()
        return station

    def _end_parts(self) -> None:
        for running in reversed(self._running):
            if running.process is not None:
                running.process.end(grace=running.part.grace)
        for name in ("parts.json", "ray.json"):
            (self._folder / name).unlink(missing_ok=True)

    def _supervise(self) -> None:
        written: Mapping[str, object] = {}
        while not self._ended.wait(LOOK_SECONDS):
            with suppress(OSError):  # here and below a full disk, which ends nothing that runs
                self._keep_servers()
            for running in self._running:
                try:
                    self._check_part(running)
                except OSError as error:
                    _LOG.warning("%s: %s; it is tried again", running.part.name, error)
                    running.due = time.monotonic() + running.backoff.after(0.0)
            if (now := {one.part.name: _describe(one) for one in self._running}) != written:
                with suppress(OSError):
                    record.write(self._folder / "parts.json", now)
                    written = now

    def _check_part(self, running: RunningPart) -> None:
        if running.alive:
            running.steady = running.steady or running.part.ready()
        elif running.process is not None:
            running.ended(running.process)
        elif time.monotonic() >= running.due and self._are_ready(running.part.after):
            running.start()

    def _keep_servers(self) -> None:
        """Add parts for new servers; those no longer wanted end by themselves, and are removed."""
        wanted = {part.name: part for part in servers(self._places, self._environment)}
        running_names = {running.part.name for running in self._running}
        self._running += [
            RunningPart(part, self._folder)
            for name, part in wanted.items()
            if name not in running_names
        ]
        for running in [one for one in self._running if one.part.name.startswith(SERVER)]:
            name = running.part.name.removeprefix(SERVER)
            if running.part.name not in wanted and not running.alive:
                self._running.remove(running)
                served.status_file(self._places, name).unlink(missing_ok=True)
                running.lock.unlink(missing_ok=True)
            elif (written := served.written_at(self._places, name)) != running.asked:
                # The problem may be fixed now.
                running.due = 0.0
                running.backoff.reset()
                if running.asked and not running.alive:
                    served.status_file(self._places, name).unlink(missing_ok=True)
                running.asked = written

    def _are_ready(self, names: tuple[str, ...]) -> bool:
        return all(
            one.alive and one.part.ready() for one in self._running if one.part.name in names
        )


def _describe(running: RunningPart) -> dict[str, object]:
    process = running.process
    state = "waiting" if process is None else "running" if running.steady else "starting"
    return {
        "state": state,
        "pid": 0 if process is None else process.pid,
        "since": running.since,
        "restarts": max(0, running.restarts),
    }


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--state", required=True)
    options = arguments.parse_args()
    Supervisor(Places.at(options.state).writable()).run()


if __name__ == "__main__":
    try:
        main()
    except RegrowError as error:
        sys.exit(str(error))
