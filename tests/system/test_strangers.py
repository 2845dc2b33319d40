"""Everything that listens is started, and each port asked by strangers: it is on the list of the
page on security, and lets nobody in.
"""

from __future__ import annotations

import base64
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from regrow.infra.state import hooks, passwords
from regrow.infra.state.places import Places
from regrow.infra.state.served import token_file
from tests.system import grouped, strangers
from tests.system.answered import Server
from tests.system.conftest import Desk, await_no_process

MODEL = """
from pydantic import BaseModel
import regrow as rg


class Model(rg.Served):
    class Input(BaseModel):
        x: float

    def load(self, folder, config): ...
    def predict(self, inputs): return [each.x for each in inputs]
"""
RIGHT: dict[str, tuple[str, str, bytes | None, str]] = {
    "Prefect's server": ("POST", "/api/flows/filter", b"{}", "/api/health"),
    "MLflow's server": (
        "POST",
        "/ajax-api/2.0/mlflow/experiments/search",
        b'{"max_results": 1}',
        "/health",
    ),
    "regrow's page, with the webhooks": ("GET", "/", None, "/health"),
    "`regrow serve`, and `serve:` on a station": ("POST", "/predict", b'{"x": 1}', "/healthz"),
}
KEEP_SECRETS = re.compile(
    r"passwords\.json|ray\.json|serve-token|hooks\.json|\d+\.json|open-\d\.html|prefect\.db.*"
)


def test_the_page_on_security_has_the_table_of_all_that_listens() -> None:
    assert (
        strangers.table()
        in (Path(__file__).parents[2] / "docs" / "how-to" / "security.md").read_text()
    )


def test_nobody_gets_in_anywhere(desk: Desk) -> None:
    (desk.folder / "serve.py").write_text(MODEL)
    desk.run("up")
    trained = desk.start("run", grouped.write(desk, "pair"))
    grouped.until(desk, 1)
    grouped.event(desk, trained, "pair", "saved")
    desk.run("schedule", desk.write("hooked", trials=1, when={"hook": True}))
    server = Server.of(desk.start("serve", "pair", "--model", "serve.py:Model", "--port", 0))
    other = Places.at(str(desk.folder / "other"))
    pages = desk.start("ui", "--no-browser", "--state", other.root)
    assert pages.stdout is not None
    assert "MLflow" in "".join(pages.stdout.readline() for _ in range(3)), "all are there"
    try:
        look(desk, other, server)
    finally:
        grouped.until(desk, grouped.END)  # it leaves at its next step
        for process in (server.process, pages, trained):
            process.terminate()
            process.wait(60)
        desk.run("down")
    assert await_no_process(desk.folder) == []


def look(desk: Desk, other: Places, server: Server) -> None:
    """At each port, and at who can read or see what opens them."""
    processes = strangers.of(desk.folder)
    ports = list(strangers.ports(processes))
    assert [port for port in ports if port.door is None] == [], (
        "what listens there is on no list: see tests/system/strangers.py"
    )
    assert {port.door for port in ports} == {
        one for one in strangers.DOORS if one.asks is not None
    }, "what is listed listens"
    assert strangers.open_sockets(processes) == []
    known = {
        folder.parent: passwords.make(folder) for folder in (desk.places.services, other.services)
    }

    def ask(port: strangers.Port) -> None:
        assert port.door is not None
        if port.door.asks == "ray":
            told = strangers.of_ray(port)
            assert told <= {"UNAUTHENTICATED", "UNIMPLEMENTED"}, port
            assert "UNAUTHENTICATED" in told, port
        elif port.door.asks == "ray's http":
            assert {
                strangers.status(port, "POST", path, strangers.JSON, b"{}")
                for path in ("/", "/get_or_create_runtime_env")
            } == {401}
        elif port.door.asks == "raw":
            # a challenge and a proof, at most
            assert not [said for said in strangers.hears(port) if len(said) > 64], port
            assert psutil.pid_exists(port.pid), port
        else:
            method, path, body, health = RIGHT[port.door.what]
            wrong = strangers.let_in(port, given(port, known, server), (method, path, body), health)
            assert wrong == {}, (port, "answered and wanted")

    with ThreadPoolExecutor(len(ports)) as pool:  # some let a stranger wait for seconds
        list(pool.map(ask, ports))
    page = next(
        port
        for port in ports
        if port.door is not None and "webhooks" in port.door.what and other.root not in port.program
    )
    assert [
        strangers.status(page, "POST", "/hooks/hooked", headers, b"{}")
        for headers in ({}, strangers.FOREIGN)
    ] == [401, 403]
    secrets = [
        *(
            secret
            for one in known.values()
            for secret in (one.prefect, one.mlflow, one.page, one.cookies)
        ),
        token_file(desk.places).read_text(),
        json.loads((desk.places.services / "station" / "ray.json").read_text())["token"],
        *hooks.known(desk.places).values(),
    ]
    told_by = {" ".join(one.cmdline()) for one in processes if one.is_running()}
    assert not [line for line in told_by for secret in secrets if secret in line]
    kept = [
        file
        for file in desk.folder.rglob("*")
        if file.is_file() and any(secret in text(file) for secret in secrets)
    ]
    assert not [file for file in kept if not KEEP_SECRETS.fullmatch(file.name)]
    assert not [file for file in kept if file.stat().st_mode & 0o077]


def given(
    port: strangers.Port, known: dict[Path, passwords.Passwords], server: Server
) -> dict[str, str]:
    """The headers of who may ask there."""
    assert port.door is not None
    if port.door.asks == "bearer":
        return {"Host": f"localhost:{port.number}", "Authorization": f"Bearer {server.token}"}
    root = next(
        one
        for path, one in known.items()
        if re.search(rf"{re.escape(str(path))}(/| |$)", port.program)
    )
    password = {"Pref": root.prefect, "MLfl": root.mlflow, "regr": root.page}[port.door.what[:4]]
    return {
        "Host": f"localhost:{port.number}",
        "Authorization": f"Basic {base64.b64encode(f'regrow:{password}'.encode()).decode()}",
    }


def text(file: Path) -> str:
    return file.read_bytes().decode("latin-1")
