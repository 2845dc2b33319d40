"""Who is let in by the guard of a server: by Host, Origin, password, link, cookie, kind of body and
first word.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import Message
from starlette.websockets import WebSocket

from regrow.infra.machine import guard, login
from regrow.infra.machine.guard import EntryGuard, PasswordEntry, Rules, Token, digest
from regrow.infra.mlflow.server import bodies, is_closed

OURS = "http://localhost:8"
USER, PASSWORD, KEY = "regrow", "grün:er", "key"
AUTH = (USER, PASSWORD)
JSON = {"content-type": "application/json"}
LED = {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


async def answer(request: Request) -> Response:
    return PlainTextResponse(f"told {request.url.path}")


async def talk(socket: WebSocket) -> None:
    await socket.accept()
    async for text in socket.iter_text():
        await socket.send_text(f"heard {text}")


def app() -> Starlette:
    paths = ("/", "/health", "/hooks/x", "/closed", "/file")
    verbs = ["GET", "POST", "PUT", "DELETE", "OPTIONS"]
    return Starlette(
        routes=[
            *(Route(path, answer, methods=verbs) for path in paths),
            WebSocketRoute("/ws", talk),
        ]
    )


def account(key: str = KEY, server: str = "page", used: Path | None = None) -> PasswordEntry:
    return PasswordEntry(server, USER, PASSWORD, key, used or Path(tempfile.mkdtemp()))


RULES = Rules(
    hosts=["Lab.example"],
    origins=["proxy.example"],
    open=frozenset({"/health"}),
    own=("/hooks/",),
    closed=lambda path: path == "/closed",
    bodies=lambda path: None if path == "/file" else ("application/json",),
)


class Client:
    """Asks in this process, and keeps cookies."""

    def __init__(self, entry: Any = None, rules: Rules = RULES) -> None:
        self.guard, self.cookies = (
            EntryGuard(app(), entry=entry or account(), rules=rules),
            httpx.Cookies(),
        )

    def request(self, method: str, path: str, **given: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.guard)
            async with httpx.AsyncClient(
                transport=transport, base_url=OURS, cookies=self.cookies
            ) as made:
                try:
                    return await made.request(method, path, **given)
                finally:
                    self.cookies = made.cookies

        return asyncio.run(ask())

    def get(self, path: str, **given: Any) -> httpx.Response:
        return self.request("GET", path, **given)


@pytest.mark.parametrize(
    ("method", "path", "headers", "auth", "status"),
    [
        ("GET", "/", {}, AUTH, 200),
        ("GET", "/", {}, None, 401),
        ("GET", "/", {}, (USER, "grün"), 401),
        ("GET", "/health", {}, None, 200),
        ("POST", "/health", {}, None, 401),
        ("POST", "/hooks/x", {"content-type": "text/plain"}, None, 200),
        ("GET", "/health", {"host": "evil.example"}, None, 421),
        ("GET", "/", {"host": "evil.example"}, AUTH, 421),
        ("POST", "/hooks/x", {"host": "evil.example"}, None, 421),
        ("GET", "/", {"host": "lab.EXAMPLE:9"}, AUTH, 200),
        ("GET", "/", {"host": "[::1]:8"}, AUTH, 200),
        ("POST", "/", {**JSON, "origin": OURS}, AUTH, 200),
        ("POST", "/", {**JSON, "origin": "https://proxy.example"}, AUTH, 200),
        ("POST", "/", {**JSON, "origin": "http://localhost:9"}, AUTH, 403),
        ("POST", "/", {**JSON, "origin": "http://127.0.0.1:8"}, AUTH, 403),
        ("POST", "/", {**JSON, "origin": "null"}, AUTH, 403),
        ("POST", "/", {**JSON, "origin": "https://evil.example"}, AUTH, 403),
        ("POST", "/hooks/x", {"origin": "https://evil.example"}, None, 403),
        ("GET", "/", {"origin": "https://evil.example"}, AUTH, 403),
        (
            "OPTIONS",
            "/",
            {"origin": "https://evil.example", "access-control-request-method": "POST"},
            None,
            403,
        ),
        ("POST", "/", {**JSON, "sec-fetch-site": "cross-site"}, AUTH, 403),
        ("POST", "/", {**JSON, "sec-fetch-site": "same-site"}, AUTH, 403),
        (
            "GET",
            "/",
            {
                "sec-fetch-site": "cross-site",
                "sec-fetch-mode": "no-cors",
                "sec-fetch-dest": "image",
            },
            AUTH,
            403,
        ),
        ("GET", "/", {**LED, "sec-fetch-dest": "iframe"}, AUTH, 403),
        ("GET", "/", LED, AUTH, 200),
        ("POST", "/", {**JSON, **LED}, AUTH, 403),
        ("POST", "/", {"content-type": "text/plain"}, AUTH, 415),
        ("POST", "/", {"content-type": "application/x-www-form-urlencoded"}, AUTH, 415),
        ("POST", "/", {"content-type": "multipart/form-data; boundary=x"}, AUTH, 415),
        ("POST", "/", {}, AUTH, 415),
        ("DELETE", "/", {"content-type": "text/plain"}, AUTH, 415),
        ("POST", "/", {"content-type": "Application/JSON; charset=utf-8"}, AUTH, 200),
        ("PUT", "/file", {"content-type": "text/plain"}, AUTH, 200),
        ("GET", "/closed", {}, AUTH, 404),
        ("GET", "/closed", {}, None, 401),
    ],
)
def test_a_request_is_answered_by_its_headers(
    method: str, path: str, headers: Mapping[str, str], auth: tuple[str, str] | None, status: int
) -> None:
    content = b"" if method in ("GET", "OPTIONS") else b"{}"
    told = Client().request(method, path, headers=dict(headers), content=content, auth=auth)
    assert told.status_code == status
    assert ("told" in told.text) == (status == 200)
    assert told.headers["x-frame-options"] == "SAMEORIGIN"


def test_two_names_in_one_request_are_none() -> None:
    twice = [
        ("host", "localhost"),
        ("host", "evil.example"),
        ("authorization", httpx.BasicAuth(*AUTH)._auth_header),
    ]
    assert Client().get("/", headers=httpx.Headers(twice)).status_code == 421


def test_a_link_logs_one_browser_in_once_at_the_server_that_it_is_for(tmp_path: Path) -> None:
    guarded = account(used=tmp_path)
    browser, other = Client(guarded), Client(guarded)
    link = login.link(f"{OURS}/?a=b#c", KEY, "page").removeprefix(OURS)
    token = httpx.URL(link).params[login.QUERY]
    assert link.startswith("/?a=b&login=")
    assert other.request("HEAD", link.partition("#")[0]).status_code == 401, (
        "only who reads the page has used it"
    )
    (tmp_path / "gone").symlink_to("nowhere")  # as a mark that another server removes meanwhile
    first = browser.get(link)
    assert (first.status_code, "location.replace(there)" in first.text, "told" in first.text) == (
        200,
        True,
        False,
    )
    cookie = first.headers["set-cookie"]
    assert cookie.startswith(f"{login.cookie_name(KEY)}=")
    assert {"httponly", "samesite=strict", "path=/"} <= set(
        cookie.lower().replace("; ", ";").split(";")
    )
    assert browser.get("/").text == "told /"
    assert browser.request("POST", "/", json={}).status_code == 200
    assert (
        browser.request("POST", "/", json={}, headers={"origin": "http://localhost:9"}).status_code
        == 403
    )
    assert browser.get(link).status_code == 200, "whoever is logged in opens it again"
    used = other.get(link)
    assert (used.status_code, "used already" in used.text, "set-cookie" in used.headers) == (
        401,
        True,
        False,
    )
    assert other.get("/").status_code == 401
    assert Client(account(used=tmp_path)).get(link).status_code == 401, (
        "nor does the server that comes after this one take it"
    )
    wrong = [
        login.sign(KEY, "mlflow", 60),
        login.sign("other", "page", 60),
        login.sign(KEY, "page", -1),
        login.sign(KEY, login.SESSION, 60),
        token[:-1],
        f"9{token}",
        "",
        ".",
        "x" * 9999,
    ]
    assert [other.get("/", params={login.QUERY: one}).status_code for one in wrong] == [401] * len(
        wrong
    )


def test_a_session_is_good_at_each_server_of_a_root_until_it_ends_and_nowhere_else() -> None:
    def status(value: str, server: str = "page", key: str = KEY) -> int:
        return (
            Client(account(key, server))
            .get("/", headers={"cookie": f"a=b; {login.cookie_name(key)}={value}"})
            .status_code
        )

    good = login.sign(KEY, login.SESSION, 60)
    assert [status(good, server) for server in ("page", "mlflow", "prefect")] == [200] * 3
    bad = [login.sign(KEY, login.SESSION, -1), login.sign(KEY, "page", 60), good[:-1], "", "%"]
    assert [status(one) for one in bad] == [401] * len(bad)
    assert status(good, key="another") == 401
    assert login.cookie_name(KEY) != login.cookie_name("another")


def spoken(
    *, first: str | None = "hello", headers: Mapping[str, str] | None = None, prefect: bool = False
) -> list[Message]:
    """What a WebSocket is answered. `first`: what it sends; None for one that sends nothing, and
    stays.
    """
    told = {
        "host": "localhost:8",
        **({"sec-websocket-protocol": "prefect"} if prefect else {}),
        **(headers or {}),
    }
    scope = {
        "type": "websocket",
        "path": "/ws",
        "raw_path": b"/ws",
        "query_string": b"",
        "scheme": "ws",
        "subprotocols": [],
        "headers": [(name.encode(), value.encode()) for name, value in told.items()],
    }
    coming: list[Message] = [
        {"type": "websocket.connect"},
        {"type": "websocket.receive", "text": first},
    ]
    answers: list[Message] = []

    async def receive() -> Message:
        if coming and coming[0].get("text", "") is None:
            await asyncio.Event().wait()
        return coming.pop(0) if coming else {"type": "websocket.disconnect", "code": 1000}

    async def send(message: Message) -> None:
        answers.append(message)

    asyncio.run(EntryGuard(app(), entry=account(), rules=RULES)(scope, receive, send))
    return answers


BASIC = {"authorization": httpx.BasicAuth(*AUTH)._auth_header}
WORD = json.dumps({"type": "auth", "token": f"{USER}:{PASSWORD}"}, ensure_ascii=False)


def test_a_websocket_wants_the_password_in_its_headers_or_as_prefects_first_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = f"{login.cookie_name(KEY)}={login.sign(KEY, login.SESSION, 60)}"
    for headers in (BASIC, {**BASIC, "origin": OURS}, {"cookie": session}):
        assert spoken(headers=headers)[-1]["text"] == "heard hello"
    assert spoken(first=WORD, prefect=True)[-1]["text"] == f"heard {WORD}", (
        "Prefect reads it as well"
    )
    wrong: list[dict[str, Any]] = [
        {},
        {"first": WORD},
        {"headers": {**BASIC, "origin": "http://localhost:9"}},
        {"headers": {**BASIC, "host": "evil.example"}},
        {"headers": {**BASIC, "origin": "null"}},
        {"first": WORD, "prefect": True, "headers": {"origin": "http://evil.example"}},
        *(
            {"first": first, "prefect": True}
            for first in (
                "hello",
                "[]",
                "[" * 9000,
                '{"type": "auth"}',
                WORD.replace("auth", "other"),
                WORD.replace("grün", "grau"),
            )
        ),
    ]
    monkeypatch.setattr(guard, "_WORD_SECONDS", 0.05)
    for one in (*wrong, {"first": None, "prefect": True}):
        answers = spoken(**one)
        assert answers[-1]["code"] == 1008, one
        assert not [answer for answer in answers if answer["type"] == "websocket.send"]


def test_a_token_is_no_link_and_no_password() -> None:
    asked = Client(Token(digest("geheim")), Rules(hosts=None, open=frozenset({"/health"})))
    for told, status in (
        ("Bearer geheim", 200),
        ("bearer  geheim ", 200),
        ("Basic geheim", 401),
        (BASIC["authorization"], 401),
        (httpx.BasicAuth("anybody", "geheim")._auth_header, 200),
        ("Bearer x", 401),
        ("Bearer ä", 401),
    ):
        assert (
            asked.get(
                "/", headers=httpx.Headers({"authorization": told}, encoding="utf-8")
            ).status_code
            == status
        ), told
    assert asked.get("/", params={login.QUERY: login.sign(KEY, "page", 60)}).status_code == 401
    assert asked.get("/health", headers={"host": "balancer.example"}).status_code == 200
    assert (
        asked.get(
            "/", headers={"authorization": "Bearer geheim", "origin": "http://evil.example"}
        ).status_code
        == 403
    )


@pytest.mark.parametrize(
    ("path", "closed"),
    [
        ("/", False),
        ("/static-files/index.js", False),
        ("/ajax-api/2.0/mlflow/runs/search", False),
        ("/api/2.0/mlflow/logged-models", False),
        ("/api/2.0/mlflow-artifacts/artifacts/a/b.pkl", False),
        ("/v1/traces", False),
        ("/ajax-api/3.0/mlflow/server-info", False),
        ("/ajax-api/3.0/mlflow/assistant/message", True),
        ("/ajax-api/3.0/mlflow/jobs/", True),
        ("/gateway/x/mlflow/invocations", True),
        ("/api/2.0/mlflow/webhooks", True),
        ("/api/3.0/mlflow/prompt-optimization/jobs", True),
        ("/api/2.0/mlflow/gateway-proxy", True),
        ("/ajax-api/3.0/mlflow/scorer/invoke", True),
        ("/api/3.0/mlflow/mcp-servers", True),
        ("/ajax-api/2.0/mlflow/runsx", True),
        ("//ajax-api/3.0/mlflow/assistant/message", True),
        ("/ajax-api/2.0/mlflow/runs/create-promptlab-run", True),
        ("/ajax-api/3.0/mlflow/genai/evaluate/invoke", True),
        ("/ajax-api/3.0/mlflow/issues/invoke", True),
        ("/new", True),
    ],
)
def test_of_mlflow_only_what_keeps_records_is_open(path: str, *, closed: bool) -> None:
    assert is_closed(path) == closed


def test_mlflow_takes_files_of_any_kind_only_where_files_are_meant() -> None:
    assert bodies("/api/2.0/mlflow-artifacts/artifacts/m/model.pkl") is None
    assert bodies("/ajax-api/2.0/mlflow/upload-artifact") is None
    assert bodies("/api/2.0/mlflow/runs/create") == ("application/json",)
    assert bodies("/api/2.0/mlflow-artifacts/mpu/create/x") == ("application/json",)
    assert "application/x-protobuf" in (bodies("/v1/traces") or ())
