"""A station: its supervisor and its worker where its folder cannot be written, as on a full disk;
its start, and its logs.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from regrow.apps.station import start
from regrow.apps.station.parts import StationPart
from regrow.apps.station.supervisor import RunningPart, Supervisor
from regrow.apps.station.worker import UNFINISHED, Worker
from regrow.infra.machine import locks
from regrow.infra.machine.private_files import read_record
from regrow.infra.machine.supervised import until
from regrow.infra.state import station_record as record
from regrow.infra.state.places import Places
from regrow.tasks.process import background
from tests.unit.exported import regrow
from tests.unit.refusing import Refused

SLEEP = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    found = Places.at(str(tmp_path / "state")).writable()
    for name in ("logs", "drivers"):
        (record.folder_of(found) / name).mkdir(parents=True)
    return found


def test_a_supervisor_goes_on_where_it_cannot_write(places: Places) -> None:
    folder = record.folder_of(places)
    running = RunningPart(StationPart(name="one", command=SLEEP, environment={}), folder)
    supervisor = Supervisor(places)
    supervisor._running = [running]
    log, written = folder / "logs" / "one.log", folder / "parts.json"
    log.mkdir()  # neither can be written then
    written.mkdir()
    thread = background.start(supervisor._supervise, name="supervisor")
    try:
        assert until(lambda: running.due, seconds=30)
        log.rmdir()
        assert until(lambda: running.alive and running.steady, seconds=30)
        written.rmdir()
        assert until(lambda: read_record(written), seconds=30)
        assert read_record(written)["one"]["state"] == "running"
    finally:
        supervisor._ended.set()
        thread.join(30)
        supervisor._end_parts()


def test_a_worker_asks_drivers_to_end_where_it_cannot_write(places: Places) -> None:
    folder = record.folder_of(places)
    (folder / UNFINISHED).mkdir()
    driver = subprocess.Popen(SLEEP)
    file = folder / "drivers" / f"{driver.pid}.json"
    record.write(file, {"idle": False, "flow_run": "x"})
    with locks.acquire(file) or file.open():
        worker = Worker(places)
        worker._children = [driver]
        worker._end_drivers()
    assert driver.returncode == -signal.SIGTERM


def test_an_interrupted_start_says_that_the_station_continues_to_start(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(start, "spawn", lambda *_, **__: None)
    monkeypatch.setattr(start, "_await", interrupted)
    lines = start.start(places)
    assert "continues to start; `regrow status` shows it" in next(lines)
    with pytest.raises(KeyboardInterrupt):
        next(lines)


@pytest.mark.parametrize(
    ("given", "other"),
    [
        (["--follow"], "--follow"),
        (["--json"], "--json"),
        (["worker", 0], "TRIAL"),
        (["--attempt", 1], "--attempt"),
    ],
)
def test_its_logs_have_no_trials(refused: Refused, given: list[object], other: str) -> None:
    line = refused("logs", "--station", *given, "--state", "state")
    assert line == f"{other} is for a trial's logs; leave it or --station out"


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (["up", "--dir", "x"], "--dir goes with --s3"),
        (["up", "--port", 9000], "--port goes with --s3"),
        (["up", "--no-station"], "--no-station goes with --s3"),
        (["up", "--force"], "--force goes with --compose"),
        (["up", "--systemd", "--compose"], "--systemd and --compose exclude each other"),
        (["down", "--dir", "x"], "--dir goes with --s3"),
    ],
)
def test_an_option_without_effect_is_refused(
    refused: Refused, given: list[object], line: str
) -> None:
    assert refused(*given, "--state", "state") == line


def test_without_a_station_its_logs_are_not_silence(tmp_path: Path) -> None:
    printed = regrow("logs", "--station", "--state", tmp_path)
    assert printed.stdout.startswith(f"no station has run on {tmp_path}; `regrow up`")
