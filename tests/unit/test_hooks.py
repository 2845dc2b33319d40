"""The route of hooks by real HTTP: who may call, what is taken, and that it is on disk before the
caller hears so.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from regrow.apps.station.triggers.hooks import MOST_BYTES, router
from regrow.apps.station.triggers.inbox import files, read
from regrow.infra.state import hooks
from regrow.infra.state.places import Places

SECRET = "s3cret-ä"


@pytest.fixture
def places(tmp_path: Path) -> Places:
    places = Places.at(str(tmp_path))
    hooks.place(places).parent.mkdir(parents=True)
    hooks.place(places).write_text(json.dumps({"nightly": SECRET, "empty": ""}))
    return places


@pytest.fixture
def client(places: Places) -> Iterator[httpx.Client]:
    app = FastAPI()
    app.include_router(router(places))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as made:
        yield made
    server.should_exit = True
    thread.join()


def waiting(places: Places) -> list[tuple[Path, str, dict[str, Any]]]:
    return [(file, *read(file)) for file in files(places)]


BEARER = httpx.Headers({"Authorization": f"Bearer {SECRET}"}, encoding="utf-8")


def signed(body: bytes) -> dict[str, str]:
    return {
        "X-Hub-Signature-256": "sha256="
        + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    }


def test_what_is_taken_is_on_disk_for_its_owner(client: httpx.Client, places: Places) -> None:
    answer = client.post("/hooks/nightly", headers=BEARER, json={"n": 1})
    assert answer.status_code == 202
    [(file, name, event)] = waiting(places)
    assert (name, event["kind"], event["id"], event["payload"]) == (
        "nightly",
        "hook",
        answer.json()["id"],
        {"n": 1},
    )
    assert file.stat().st_mode & 0o077 == 0


def test_a_signed_body_is_taken_and_another_is_not(client: httpx.Client, places: Places) -> None:
    body = b'{"ref": "main"}'
    assert client.post("/hooks/nightly", headers=signed(body), content=body).status_code == 202
    assert (
        client.post("/hooks/nightly", headers=signed(body), content=body + b" ").status_code == 401
    )
    assert len(waiting(places)) == 1


@pytest.mark.parametrize("header", ["Idempotency-Key", "X-GitHub-Delivery"])
def test_a_delivery_that_is_repeated_is_the_same_event(
    client: httpx.Client, places: Places, header: str
) -> None:
    answers = [
        client.post(
            "/hooks/nightly",
            headers=httpx.Headers([*BEARER.raw, (header.encode(), b"d-1")]),
            json={"n": n},
        )
        for n in range(3)
    ]
    other = client.post(
        "/hooks/nightly", headers=httpx.Headers([*BEARER.raw, (header.encode(), b"d-2")]), json={}
    )
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert [event["payload"] for _, _, event in waiting(places)] == [{"n": 0}, {}]
    assert other.json() != answers[0].json()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer"},
        {"X-Hub-Signature-256": "sha256="},
    ],
)
def test_who_has_no_secret_is_refused(
    client: httpx.Client, places: Places, headers: dict[str, str]
) -> None:
    assert client.post("/hooks/nightly", headers=headers, json={}).status_code == 401
    assert waiting(places) == []


def test_a_name_without_a_secret_is_no_hook(client: httpx.Client) -> None:
    for name in ("other", "empty", "..%2Fnightly"):
        answer = client.post(f"/hooks/{name}", headers={"Authorization": "Bearer"})
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/json")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 202),
        (b'"text"', 202),
        (b"{", 422),
        (b"\xff", 422),
        (b'{"x": NaN}', 422),
        (b"[" * 100_000, 422),
        (b'"\\ud800"', 422),
        (b'{"\\udfff": 1}', 422),
        (b'"\xed\xa0\x80"', 422),
        (b"[1e999]", 422),
        (b"18446744073709551616", 422),
        (b'{"x": {"__prefect_kind": "jinja", "template": "{{ 1 }}"}}', 422),
        (b'"' + b"x" * MOST_BYTES + b'"', 413),
        (('"' + "é" * 100_000 + '"').encode(), 413),
    ],
)
def test_what_cannot_be_taken_is_refused(
    client: httpx.Client, places: Places, body: bytes, status: int
) -> None:
    assert client.post("/hooks/nightly", headers=BEARER, content=body).status_code == status
    assert len(waiting(places)) == (status == 202)


def test_a_long_body_is_refused_before_it_is_all_read(client: httpx.Client) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(2000):
            yield b"x" * 10_000

    answer = client.post("/hooks/nightly", headers=BEARER, content=endless())
    assert answer.status_code == 413


def test_a_caller_who_ends_early_is_no_error_of_the_page(
    capfd: pytest.CaptureFixture[str], client: httpx.Client, places: Places
) -> None:
    head = b"POST /hooks/nightly HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{"
    with socket.create_connection(("127.0.0.1", client.base_url.port or 0)) as caller:
        caller.sendall(head)
    assert client.post("/hooks/nightly", headers=BEARER).status_code == 202
    assert len(waiting(places)) == 1
    assert capfd.readouterr().err == ""


def test_secrets_that_cannot_be_read_are_told_and_nobody_is_let_in(
    client: httpx.Client, places: Places
) -> None:
    for content in (b"{", b"[1]", b'{"nightly": 5}', b"\xff", b'{"nightly": "\\ud800"}'):
        hooks.place(places).write_bytes(content)
        answer = client.post("/hooks/nightly", headers=BEARER, json={})
        assert (answer.status_code, "cannot be read" in answer.json()["detail"]) == (503, True), (
            content
        )
    assert waiting(places) == []


def test_only_so_many_events_are_kept(
    client: httpx.Client, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regrow.apps.station.triggers.inbox.MOST_WAITING", 2)
    answers = [client.post("/hooks/nightly", headers=BEARER, json={}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [202, 202, 503]
    assert "2 events wait already" in answers[-1].json()["detail"]
