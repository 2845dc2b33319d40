"""What the folder of a station tells: which drivers were lost, and the ports that its pages
keep.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

from regrow.apps.station import parts, start
from regrow.infra.machine import locks
from regrow.infra.machine.private_files import read_record
from regrow.infra.state import station_record as record
from regrow.infra.state.places import Places


def station_in(folder: Path, **given: Any) -> record.Station:
    """The record of a station, whose servers have no address unless it is given."""
    addresses = dict.fromkeys(("page_url", "prefect_url", "prefect_api", "mlflow_url"), "")
    return record.Station(
        folder=folder, **{"pid": 1, "since": 0.0, "prefix": "", "version": "", **addresses, **given}
    )


def test_a_driver_that_was_killed_over_an_order_is_found_until_it_is_seen_to(
    tmp_path: Path,
) -> None:
    (tmp_path / "drivers").mkdir()
    gone, idle, alive = (
        tmp_path / "drivers" / f"{pid}.json"
        for pid in (2_000_000_001, 2_000_000_002, 2_000_000_003)
    )
    gone.write_text(json.dumps({"idle": False, "name": "a", "flow_run": None}))
    idle.write_text(json.dumps({"idle": True, "port": 1, "token": "x"}))
    alive.write_text(json.dumps({"idle": False, "name": "b", "flow_run": None}))
    with locks.acquire(alive) or alive.open():
        assert list(record.drivers(tmp_path, idle=True)) == []
        [(file, known)] = record.lost(tmp_path)
        assert (file, known["name"]) == (gone, "a")
        assert not idle.exists()
        [(_, again)] = record.lost(tmp_path)
        assert again["lost"] == known["lost"]
        record.forget(file)
        assert list(record.lost(tmp_path)) == []


def test_a_driver_on_a_head_that_is_gone_waits_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "drivers").mkdir()
    file = tmp_path / "drivers" / "2000000001.json"
    file.write_text(json.dumps({"idle": True, "port": 1, "token": "x", "head": 7}))
    lock = locks.acquire(file)
    assert lock is not None
    with lock:
        record.write(tmp_path / "ray.json", {"pid": 7})
        assert [pid for pid, _ in record.drivers(tmp_path, idle=True)] == [2_000_000_001]
        assert record.stranded(tmp_path) == []
        record.write(tmp_path / "ray.json", {"pid": 8})
        assert list(record.drivers(tmp_path, idle=True)) == []
        assert record.stranded(tmp_path) == [2_000_000_001]


def test_a_station_tells_servers_of_its_own_from_others(tmp_path: Path) -> None:
    station = station_in(
        tmp_path,
        prefect_url="http://127.0.0.1:4200",
        prefect_api="http://127.0.0.1:4200/api",
        mlflow_url="http://127.0.0.1:5000",
    )
    own = {
        "PREFECT_API_URL": station.prefect_api,
        "MLFLOW_TRACKING_URI": f"{station.mlflow_url}/",
        "RAY_ADDRESS": "",
    }
    assert station.unlike({}) is None
    assert station.unlike(own) is None
    assert station.unlike({**own, "RAY_ADDRESS": "10.0.0.1:6379"}) == "RAY_ADDRESS"
    assert (
        station.unlike({**own, "MLFLOW_TRACKING_URI": "http://mlflow.team"})
        == "MLFLOW_TRACKING_URI"
    )


def test_what_a_station_of_another_version_tells_beyond_is_left_alone(tmp_path: Path) -> None:
    places = Places.at(str(tmp_path)).writable()
    folder = record.folder_of(places)
    folder.mkdir(parents=True)
    station = station_in(folder, version="9")
    station.write()
    record.write(
        folder / "station.json", {**read_record(folder / "station.json"), "of_tomorrow": 1}
    )
    lock = locks.acquire(folder / "station.lock")
    assert lock is not None
    with lock:
        assert record.find(places) == station


def test_a_page_that_outlived_its_supervisor_keeps_its_port(tmp_path: Path) -> None:
    first = parts.ports(tmp_path)
    lock = locks.acquire(tmp_path / "page.lock")
    assert lock is not None
    with lock, socket.create_server(("127.0.0.1", first["page"])):
        assert parts.ports(tmp_path)["page"] == first["page"]
    with socket.create_server(("127.0.0.1", first["page"])):
        assert parts.ports(tmp_path)["page"] != first["page"]


def test_up_waits_for_a_station_that_is_ending(tmp_path: Path) -> None:
    places = Places.at(str(tmp_path)).writable()
    station = station_in(record.folder_of(places), pid=os.getpid())
    station.folder.mkdir()
    lock = locks.acquire(station.folder / "station.lock")
    assert lock is not None
    with lock:
        for ending, line in ((False, "runs on "), (True, "is ending; the next one starts once")):
            replace(station, ending=ending).write()
            assert line in next(start.start(places))
