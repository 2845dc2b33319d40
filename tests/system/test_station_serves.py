"""A station's servers where no station is needed, or with its state in a bucket; the rest is in
test_station.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from regrow.apps.serving.status import read
from regrow.infra.state import served as orders
from regrow.infra.state.places import Places
from regrow.infra.state.served import ServeRecord
from regrow.tasks.group.world import free_port
from tests.system.conftest import Desk, await_no_process, desk_in
from tests.system.served_models import MODEL, SMALL, answers, standing
from tests.system.test_station import wait_for
from tests.unit.kept import Kept


@pytest.fixture
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with desk_in(tmp_path_factory.mktemp("serves")) as found:
        (found.folder / "serve.py").write_text(MODEL)
        yield found
        found.run("down")
        assert await_no_process(found.folder) == []


def test_a_server_asks_for_the_stations_token_keeps_its_port_and_ends_when_something_else_is_to_be_served(
    tmp_path: Path,
) -> None:
    with desk_in(tmp_path) as desk:
        (desk.folder / "serve.py").write_text(MODEL)
        places = Places.at(str(desk.folder / ".regrow"))
        kept = Kept(places.store("kept"))
        kept.best(0.9, level=0.9)
        kept.end(0)
        order = ServeRecord(
            name="kept",
            folder=str(desk.folder),
            serve={"model": "serve.py:Model", "host": "0.0.0.0"},
        )
        command = [
            sys.executable,
            "-P",
            "-m",
            "regrow.apps.station.server",
            "--state",
            places.root,
            "kept",
        ]
        file, ports = orders.status_file(places, "kept"), []
        for gate in ("score > 0.5", "score > 0.6", "scoer > 0.5"):
            changed = msgspec.structs.replace(order, serve={**order.serve, "gate": gate})
            orders.write(places, changed)
            process = subprocess.Popen(
                command, env=desk.environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True
            )
            desk.started.append(process)
            if gate.startswith("scoer"):
                break
            wait_for(
                lambda: (said := read(file)).pid == process.pid and said.main,  # noqa: B023
                "it serves nothing",
            )
            ports.append(read(file).port)
            token = orders.token_file(places).read_text()
            assert orders.token_file(places).stat().st_mode & 0o777 == 0o600
            url = f"http://127.0.0.2:{ports[-1]}/version"
            assert [
                httpx.get(url, headers=given).status_code
                for given in ({}, {"Authorization": f"Bearer {token}"})
            ] == [401, 200]
            orders.write(places, order)
            said, _ = process.communicate(timeout=60)
            assert process.returncode == 0, said
            assert token not in said + file.read_text()
        assert ports[0] == ports[1]
        wait_for(
            lambda: "serve.gate: no trial reports 'scoer'; there are score" in read(file).trouble,
            "not told",
        )


@pytest.mark.nightly
def test_an_experiment_in_a_bucket_is_served_by_its_own_name_with_a_canary(
    s3: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    # where the station's files are, for this process as well
    monkeypatch.setenv("REGROW_HOME", str(desk.folder / "services"))
    desk.environment |= {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("AWS_", "REGROW_HOME"))
    }
    desk.environment["REGROW_STATE"] = s3
    places, serve = (
        Places.at(s3),
        {"model": "serve.py:Model", "canary": "50% for 2s", "replicas": 2},
    )

    def run(trials: int, **changes: Any) -> str:
        return desk.run("run", desk.write("night", **{**SMALL, "trials": trials}, **changes)).stdout

    (desk.folder / "level.txt").write_text("0.6")
    assert "serve: with `regrow up`, a station serves night" in run(1, serve=serve)
    desk.run("up")
    port = wait_for(
        lambda: one.status.port if (one := standing(places)) and one.state == "serving" else None,
        "it is not served",
    )
    assert answers(port, places) == 1.2
    (desk.folder / "level.txt").write_text("0.9")
    desk.run("resume", "night", "--trials", 2)
    wait_for(
        lambda: (one := standing(places)) and one.status.main and one.status.main.value == 0.9,
        "it is not rolled out",
    )
    assert answers(port, places) == 1.8
    assert (
        "the canary is trial 1, step 1, score 0.9 of night, with 50 % for 2 s"
        in desk.run("logs", "serve-night", "--station").stdout
    )
    told = run(2, serve={**serve, "port": (other := free_port("127.0.0.1"))})
    assert "night is finished already" in told
    assert "serve: the station serves night; `regrow status` shows where" in told
    wait_for(
        lambda: answers(other, places) == 1.8 and answers(port, places) is None,
        "it did not change its port",
    )
    assert "serve: night is served no more, as it was left out" in run(2)
    wait_for(lambda: answers(other, places) is None, "it is served though nothing says so any more")
