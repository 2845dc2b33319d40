"""A station that listens beyond the loopback: nobody gets in without a password, and its owner's
commands know it.
"""

from __future__ import annotations

import json
import re
import stat
import urllib.parse

import httpx

from regrow.infra.state import passwords
from regrow.infra.state import station_record as record
from regrow.infra.state.places import Places
from tests.system.conftest import Desk, await_no_process


def test_others_need_a_password_and_ones_own_commands_find_it(desk: Desk) -> None:
    said = desk.run("up", "--host", "0.0.0.0").stdout
    try:
        places = Places.at(str(desk.folder / ".regrow"))
        known, station = passwords.read(places.services), record.find(places)
        assert known is not None
        assert station is not None
        secrets = (known.prefect, known.mlflow, known.page, known.cookies)
        file = passwords.file_of(places.services)
        assert str(file) in said
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        asked = {
            f"{station.prefect_url}/api/flow_runs/filter": known.prefect,
            f"{station.page_url}/": known.page,
            f"{station.mlflow_url}/ajax-api/2.0/mlflow/experiments/search": known.mlflow,
        }
        for address, password in asked.items():
            method, content = (
                ("GET", None)
                if address.endswith("/")
                else ("POST", '{"max_results": 5}' if "mlflow" in address else "{}")
            )
            parts = urllib.parse.urlsplit(address)
            headers = {
                "Content-Type": "application/json",
                "Origin": f"{parts.scheme}://{parts.netloc}",
            }  # as its own page asks
            answers = [
                httpx.request(
                    method, address, content=content, auth=auth, headers=headers, timeout=30
                ).status_code
                for auth in (None, ("regrow", "wrong"), ("regrow", password))
            ]
            assert answers == [401, 401, 200], address
        auth = ("regrow", known.prefect)
        assert (
            httpx.get(f"{station.prefect_url}/ui-settings", auth=auth, timeout=30).json()["api_url"]
            == "/api"
        )

        desk.write("handed", trials=2, max_steps=2)
        assert "handed finished: 2 of 2 trials" in desk.run("run", "handed.yaml").stdout
        apart = desk.run(
            "run", desk.write("apart", trials=2, max_steps=2), RAY_ADDRESS="local"
        ).stdout  # a driver of its own
        assert "apart finished: 2 of 2 trials" in apart
        desk.run("schedule", "handed.yaml", "--cron", "0 2 1 1 *")
        assert re.search(r"handed\b", desk.run("schedules").stdout)
        desk.run("rm", "apart", "--yes")
        runs = httpx.post(
            f"{station.prefect_api}/flow_runs/filter", json={}, auth=auth, timeout=30
        ).json()
        assert sorted(run["name"] for run in runs if run["state_type"] != "SCHEDULED") == ["handed"]

        told = said + "".join(
            path.read_text(errors="replace") for path in station.folder.glob("logs/*")
        )
        told += json.dumps(json.loads(desk.run("status", "--json").stdout))
        assert not [secret for secret in secrets if secret in told]
    finally:
        desk.run("down")
    assert await_no_process(desk.folder) == []
