"""`serve:` in a specification: a station keeps a server up, of what its schedule finds, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from regrow.infra.state import served as orders
from regrow.infra.state.places import Places
from regrow.infra.state.served import Served
from regrow.infra.stores.local import LocalStore
from regrow.serving import standing
from regrow.station import record
from regrow.station.state import Serving, serving
from tests.system.conftest import Desk, await_no_process, desk_in
from tests.system.parallel import free_port
from tests.system.test_station import process_of, the_station, wait_for
from tests.unit.kept import Kept

TRAIN = """
import json
from pathlib import Path


def train(trial):
    for step in trial.steps():
        level = float(Path("level.txt").read_text())
        trial.report({"score": level}, checkpoint=lambda folder: (folder / "model.json").write_text(json.dumps({"level": level})))
"""
MODEL = """
import json
from pydantic import BaseModel
import regrow as rg


class Model(rg.Served):
    class Input(BaseModel):
        x: float

    example = {"x": 1.0}

    def load(self, folder, config):
        self.level = json.loads((folder / "model.json").read_text())["level"]

    def predict(self, inputs):
        return [each.x * self.level for each in inputs]
"""
SMALL: dict[str, Any] = {"train": TRAIN, "trials": 1, "max_steps": 1, "concurrency": 1}


@pytest.fixture
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with desk_in(tmp_path_factory.mktemp("serves")) as found:
        (found.folder / "serve.py").write_text(MODEL)
        yield found
        found.run("down")
        assert await_no_process(found.folder) == []


def served(desk: Desk, enough: Callable[[Serving], object], what: str, places: Places | None = None) -> Serving:
    """What a station says of the server `night`, once it is `enough`; by the command each look would take a second of a core."""
    places, last = places or Places.at(str(desk.folder / ".regrow")), list[Serving]()

    def found() -> Serving | None:
        station = record.find(places)
        last[:] = [] if station is None else serving(station, places)
        return next((one for one in last if one.name == "night" and enough(one)), None)

    try:
        return wait_for(found, f"never {what}")
    except AssertionError as error:
        raise AssertionError(f"{error}: {last}") from None


def answers(port: int) -> float | None:
    """What the model makes of 2; None while nobody answers."""
    body = b'{"x": 2}'
    request = urllib.request.Request(f"http://127.0.0.1:{port}/predict", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return float(answer.read())
    except OSError:
        return None


def test_what_a_schedule_finds_is_rolled_out_and_served_whatever_is_killed(desk: Desk) -> None:
    port, root = free_port(), desk.folder / ".regrow"
    file = desk.write("night", **SMALL, serve={"model": "serve.py:Model", "gate": "score > 0.5", "port": port})
    (desk.folder / "level.txt").write_text("0.6")
    desk.run("up")
    with socket.create_server(("127.0.0.1", port)):  # somebody else has it
        told = desk.run("schedule", file, "--hook").stdout
        assert "serve: the station serves the newest experiment of night; `regrow status` says where" in told
        served(desk, lambda one: f"serve.port: {port} cannot be had" in one.said.trouble, "said that the port is taken")
    served(desk, lambda one: one.state == "waiting" and not one.said.trouble, "waiting, with the port free")

    secret = json.loads((root / ".services/station/hooks.json").read_text())["night"]
    httpx.post(f"{the_station(desk).page_url}/hooks/night", headers={"Authorization": f"Bearer {secret}"}).raise_for_status()
    wait_for(lambda: answers(port) == 1.2, "what its run found was not served")
    # Further nights as their drivers would write them, at a tenth of the cost.
    Kept(LocalStore(root / "night-2999-01-01T02"), name="night-2999-01-01T02").best(0.9, level=0.9)
    wait_for(lambda: answers(port) == 1.8, "the better one was not rolled out")
    Kept(LocalStore(root / "night-2999-01-02T02"), name="night-2999-01-02T02").best(0.3, level=0.3)
    said = served(desk, lambda one: one.said.refused, "refused").said
    assert said.refused == "night-2999-01-02T02: trial 0, step 1, score 0.3 does not meet score > 0.5"
    assert said.main is not None
    assert (said.main.experiment, said.url, answers(port)) == ("night-2999-01-01T02", f"http://127.0.0.1:{port}", 1.8)

    before = process_of(desk, "serve-night")
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: process_of(desk, "serve-night") not in (0, before) and answers(port) == 1.8, "it did not come back")
    desk.run("down")
    assert answers(port) is None
    desk.run("up")
    wait_for(lambda: answers(port) == 1.8, "it did not come back with the station")
    lines = desk.run("status").stdout
    assert f"serves:  night: http://127.0.0.1:{port} night-2999-01-01T02, trial 0, step 1, score 0.9" in lines
    assert "ago: night-2999-01-02T02: trial 0, step 1, score 0.3 does not meet score > 0.5" in lines

    api = the_station(desk).prefect_api
    schedule = httpx.get(f"{api}/deployments/name/regrow/night").json()["id"]
    httpx.delete(f"{api}/deployments/{schedule}").raise_for_status()  # as its page does
    wait_for(lambda: answers(port) is None and process_of(desk, "serve-night") == 0, "it outlives its schedule")


def test_a_server_asks_for_the_stations_token_keeps_its_port_and_ends_when_something_else_is_to_be_served(tmp_path: Path) -> None:
    with desk_in(tmp_path) as desk:
        (desk.folder / "serve.py").write_text(MODEL)
        places = Places.at(str(desk.folder / ".regrow"))
        kept = Kept(places.store("kept"))
        kept.best(0.9, level=0.9)
        kept.end(0)
        order = Served(name="kept", folder=str(desk.folder), serve={"model": "serve.py:Model", "host": "0.0.0.0"})
        command = [sys.executable, "-P", "-m", "regrow.station.server", "--state", places.root, "kept"]
        file, ports = orders.standing(places, "kept"), []
        for gate in ("score > 0.5", "score > 0.6", "scoer > 0.5"):
            changed = msgspec.structs.replace(order, serve={**order.serve, "gate": gate})
            orders.write(places, changed)
            process = subprocess.Popen(command, env=desk.environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
            desk.started.append(process)
            if gate.startswith("scoer"):
                break
            wait_for(lambda: (said := standing.read(file)).pid == process.pid and said.main, "it serves nothing")  # noqa: B023
            ports.append(standing.read(file).port)
            token = orders.token_file(places).read_text()
            assert orders.token_file(places).stat().st_mode & 0o777 == 0o600
            url = f"http://127.0.0.2:{ports[-1]}/version"
            assert [httpx.get(url, headers=given).status_code for given in ({}, {"Authorization": f"Bearer {token}"})] == [401, 200]
            orders.write(places, order)
            said, _ = process.communicate(timeout=60)
            assert process.returncode == 0, said
            assert token not in said + file.read_text()
        assert ports[0] == ports[1]
        wait_for(lambda: "serve.gate: no trial reports 'scoer'; there are score" in standing.read(file).trouble, "not told")


@pytest.mark.nightly
def test_an_experiment_in_a_bucket_is_served_by_its_own_name_with_a_canary(
    s3: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGROW_HOME", str(desk.folder / "services"))  # where the station's files are, for this process as well
    desk.environment |= {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "REGROW_HOME"))}
    desk.environment["REGROW_STATE"] = s3
    places, serve = Places.at(s3), {"model": "serve.py:Model", "canary": "50% for 2s", "replicas": 2}

    def run(trials: int, **changes: Any) -> str:
        return desk.run("run", desk.write("night", **{**SMALL, "trials": trials}, **changes)).stdout

    (desk.folder / "level.txt").write_text("0.6")
    assert "serve: with `regrow up`, a station serves night" in run(1, serve=serve)
    desk.run("up")
    port = served(desk, lambda one: one.state == "serving", "served", places).said.port
    assert answers(port) == 1.2
    (desk.folder / "level.txt").write_text("0.9")
    desk.run("resume", "night", "--trials", 2)
    found = served(desk, lambda one: one.said.main is not None and one.said.main.value == 0.9, "rolled out", places)
    assert (found.said.canary, answers(port)) == (None, 1.8)
    assert "the canary is trial 1, step 1, score 0.9 of night, with 50 % for 2 s" in desk.run("logs", "serve-night", "--station").stdout
    told = run(2, serve={**serve, "port": (other := free_port())})
    assert "night is finished already" in told
    assert "serve: the station serves night; `regrow status` says where" in told
    wait_for(lambda: answers(other) == 1.8 and answers(port) is None, "it did not change its port")
    assert "serve: night is served no more, as it was left out" in run(2)
    wait_for(lambda: answers(other) is None, "it is served though nothing says so any more")
