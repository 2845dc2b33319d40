"""Access control for our servers: a layer that sees each request and each WebSocket first.

It refuses: a Host that is not ours, with which a foreign page could read through its own host name
(DNS rebinding); an Origin other than the server's own, which a browser sends for requests by a
foreign page; clients without the password; and bodies of content types that a foreign page may send
without a preflight request.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import os
import time
import urllib.parse
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regrow.infra.machine import login
from regrow.infra.machine.addresses import LOCAL_NAMES, name_in

SAFE = frozenset({"GET", "HEAD"})
"""Methods that change nothing. OPTIONS, a preflight request, is not answered."""
HEADERS: Mapping[str, str] = {
    "X-Frame-Options": "SAMEORIGIN",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of each answer that does not set them itself."""
JSON = ("application/json",)
"""Content types that a foreign page cannot send without a preflight request."""
_CHALLENGE = {"WWW-Authenticate": 'Bearer, Basic realm="the token, as the password"'}
_POLICY = 1008
"""WebSocket close code for a violation of the server's policy."""
_WORD_SECONDS = 10.0
"""Seconds for that message to arrive."""
MOST_WAITING = 64
"""Most WebSockets at a time whose first message is awaited."""
_SCRIPT = (
    f'const there = new URL(location); there.searchParams.delete("{login.QUERY}");'
    " location.replace(there)"
)
_IN = (
    "<!doctype html><meta charset=utf-8><title>regrow</title><p>Logged"
    f" in.<script>{_SCRIPT}</script>"
)
_IN_POLICY = (
    "default-src 'none'; script-src"
    f" 'sha256-{base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()}'"
)
_OUT = (
    "<!doctype html><meta charset=utf-8><title>regrow</title><p>This link was used already, is too"
    " old, or is for another server.<p><code>regrow ui</code>, on the machine of the server, makes"
    " a new one.\n"
)


class Entry:
    """Decides which clients are let in."""

    def admits(self, headers: Headers) -> bool:
        """Return whether the headers of a request contain the credentials."""
        raise NotImplementedError

    def refused(self) -> Response:
        """Return the answer to a request without credentials."""
        raise NotImplementedError

    def exchange(self, token: str, *, admitted: bool) -> Response | None:
        """Return the answer to a link with a token; None if the server has no such links.
        `admitted`: the request has credentials already.
        """
        return None

    def admits_message(self, text: str) -> bool:
        """Return whether the first message of a WebSocket contains the credentials."""
        return False


class PasswordEntry(Entry):
    """The user of a server with a password, by HTTP Basic. A browser may come with a link instead,
    and then gets a cookie.
    """

    def __init__(self, server: str, user: str, password: str, key: str, used: Path) -> None:
        """Store the credentials.

        Args:
            server: name of the server for which links must be made.
            user: the user name.
            password: the password.
            key: signs links and sessions. All servers with the same key accept the sessions.
            used: folder in which used links are marked, also for a later process of the server.

        """
        self._server, self._key, self._used = server, key, used
        self._expected = f"{user}:{password}".encode()
        self._cookie = login.cookie_name(key)

    def admits(self, headers: Headers) -> bool:
        """See Entry."""
        kind, _, given = headers.get("authorization", "").partition(" ")
        if hmac.compare_digest(_decoded(given), self._expected) and kind.lower() == "basic":
            return True
        cookie = cookie_parser(headers.get("cookie", "")).get(self._cookie, "")
        return login.expiry(cookie, self._key, login.SESSION) is not None

    def refused(self) -> Response:
        """See Entry."""
        asks = {"WWW-Authenticate": 'Basic realm="regrow", charset="UTF-8"'}
        message = (
            "This server wants the user regrow and its password; `regrow ui` opens a page that is"
            " logged in.\n"
        )
        return PlainTextResponse(message, 401, asks)

    def exchange(self, token: str, *, admitted: bool) -> Response | None:
        """See Entry. The page in the answer repeats the request itself: browsers do not send the
        cookie if another site led here.
        """
        good = login.expiry(token, self._key, self._server) is not None and self._first_use(token)
        if not good and not admitted:
            return HTMLResponse(_OUT, 401)
        answer = HTMLResponse(
            _IN, headers={"Cache-Control": "no-store", "Content-Security-Policy": _IN_POLICY}
        )
        if good:
            session = login.sign(self._key, login.SESSION, login.SESSION_SECONDS)
            seconds = int(login.SESSION_SECONDS)
            answer.set_cookie(
                self._cookie, session, max_age=seconds, httponly=True, samesite="strict"
            )
        return answer

    def _first_use(self, token: str) -> bool:
        """Mark a valid token as used. Returns False if it was used before."""
        for mark in self._used.iterdir():
            with suppress(FileNotFoundError):  # another server of the station was faster
                if mark.stat().st_mtime < time.time() - login.LINK_SECONDS:
                    mark.unlink()
        try:
            os.close(os.open(self._used / digest(token).hex(), os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        return True

    def admits_message(self, text: str) -> bool:
        """Accept Prefect's first message, `{"type": "auth", "token": "USER:PASSWORD"}`."""
        try:
            message = json.loads(text) if len(text) < 4096 else {}
            return message["type"] == "auth" and hmac.compare_digest(
                str(message["token"]).encode(), self._expected
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            return False


class Token(Entry):
    """A token, sent as Bearer; a browser asks for it as a password of any user."""

    def __init__(self, secret: bytes) -> None:
        """Store the digest. `secret`: `digest` of the token."""
        self._secret = secret

    def admits(self, headers: Headers) -> bool:
        """See Entry."""
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "basic":
            given = _decoded(given).partition(b":")[2].decode(errors="replace")
        return hmac.compare_digest(digest(given), self._secret) and kind.lower() in (
            "basic",
            "bearer",
        )

    def refused(self) -> Response:
        """See Entry."""
        return _detail("Authorization: Bearer TOKEN is missing or wrong", 401, _CHALLENGE)


def digest(token: str) -> bytes:
    """Return what is stored of a token: it verifies a token without revealing it."""
    return hashlib.sha256(token.strip().encode()).digest()


def _nowhere(_: str) -> bool:
    return False


def _json(_: str) -> Collection[str]:
    return JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a server allows.

    Attributes:
        hosts: names under which it is requested, beyond those of the loopback; None: any, because
            clients give a token that no browser adds automatically.
        origins: names of pages whose requests a proxy forwards under another Host.
        open: paths that need no password for methods that change nothing.
        own: beginnings of paths whose handlers check access themselves.
        closed: whether a path is not served at all.
        bodies: content types that are accepted, by path; None: any.
        headers: headers that are added to answers.

    """

    hosts: Collection[str] | None = ()
    origins: Collection[str] = ()
    open: frozenset[str] = frozenset()
    own: tuple[str, ...] = ()
    closed: Callable[[str], bool] = _nowhere
    bodies: Callable[[str], Collection[str] | None] = _json
    headers: Mapping[str, str] = field(default_factory=lambda: HEADERS)


class EntryGuard:
    """Refuses requests that the rules forbid, and forwards the rest to the application."""

    def __init__(self, app: ASGIApp, *, entry: Entry, rules: Rules) -> None:
        self._app, self._entry, self._rules = app, entry, rules
        self._hosts = (
            None if rules.hosts is None else LOCAL_NAMES | {host.lower() for host in rules.hosts}
        )
        self._origins = {origin.lower() for origin in rules.origins}
        self._waiting: list[asyncio.Timeout] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or forward it."""
        if scope["type"] == "websocket":
            await self._socket(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._rules.headers.items():
                    headers.setdefault(name, value)
            await send(message)

        headers = Headers(scope=scope)
        await (self._foreign(scope, headers) or self._unknown(scope, headers) or self._app)(
            scope, receive, guarded
        )

    # ---- requests

    def _foreign(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the answer to a request under a foreign name or from a foreign page, or None."""
        if not self._named(headers):
            return PlainTextResponse("This is not served under that name.\n", 421)
        fetched = headers.get("sec-fetch-site", "") in ("cross-site", "same-site")
        if fetched and scope["method"] in SAFE:  # following a link is harmless
            fetched = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) != (
                "navigate",
                "document",
            )
        if fetched or not self._same_origin(headers):
            return PlainTextResponse("Pages of others may not ask here.\n", 403)
        return None

    def _unknown(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the answer to a request without credentials, for a closed path, or with a
        forbidden body; None if it is allowed.
        """
        path = scope["path"]
        if path.startswith(self._rules.own) or (
            path in self._rules.open and scope["method"] in SAFE
        ):
            return None
        known = self._entry.admits(headers)
        token = QueryParams(scope["query_string"]).get(login.QUERY)
        if scope["method"] == "GET" and token is not None:
            answer = self._entry.exchange(token, admitted=known)
            if answer is not None:
                return answer
        if not known:
            return self._entry.refused()
        if self._rules.closed(path):
            return _detail("there is nothing here: this server keeps it closed", 404)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        bare = scope["method"] in SAFE or not _has_body(headers)
        kinds = None if bare else self._rules.bodies(path)
        if kinds is not None and kind not in kinds:
            return _detail(f"the Content-Type has to be {' or '.join(kinds)}", 415)
        return None

    def _named(self, headers: Headers) -> bool:
        if self._hosts is None:
            return True
        given = headers.getlist("host")
        return len(given) == 1 and name_in(given[0]) in self._hosts

    def _same_origin(self, headers: Headers) -> bool:
        host = headers.get("host", "").lower()
        for origin in headers.getlist("origin"):
            try:
                parts = urllib.parse.urlsplit(origin.lower())
            except ValueError:
                return False
            if parts.scheme not in ("http", "https") or (
                parts.netloc != host and name_in(parts.netloc) not in self._origins
            ):
                return False
        return True

    # ---- WebSockets

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        protocols = headers.get("sec-websocket-protocol", "").split(",")
        ours = self._named(headers) and self._same_origin(headers)
        if ours and not self._rules.closed(scope["path"]):
            if self._entry.admits(headers):
                await self._app(scope, receive, send)
                return
            if "prefect" in map(str.strip, protocols):
                await self._forward_after_first_message(scope, receive, send)
                return
        await send({"type": "websocket.close", "code": _POLICY})

    async def _forward_after_first_message(
        self, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Forward a connection once its first message had the password. The application, which
        allows few open connections, does not see any other.
        """
        begun = await receive()
        await send({"type": "websocket.accept", "subprotocol": "prefect"})
        first = await self._first_message(receive)
        if first is None or not self._entry.admits_message(first.get("text") or ""):
            why = "the password is missing or wrong"
            with suppress(Exception):  # the client may be gone
                await send({"type": "websocket.close", "code": _POLICY, "reason": why})
            return
        before = [first, begun]

        async def received() -> Message:
            return before.pop() if before else await receive()

        async def sent(message: Message) -> None:
            if message["type"] != "websocket.accept":  # that was sent above
                await send(message)

        await self._app(scope, received, sent)

    async def _first_message(self, receive: Receive) -> Message | None:
        """Return the first message, None if it is late. Of too many, the oldest is late at once."""
        waiting = asyncio.timeout(_WORD_SECONDS)
        try:
            async with waiting:
                self._waiting.append(waiting)
                if len(self._waiting) > MOST_WAITING:
                    self._waiting.pop(0).reschedule(asyncio.get_running_loop().time())
                try:
                    return await receive()
                finally:
                    if waiting in self._waiting:
                        self._waiting.remove(waiting)
        except TimeoutError:
            return None


def _has_body(headers: Headers) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


def _decoded(given: str) -> bytes:
    try:
        return base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _detail(text: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json.dumps({"detail": text}), status, headers, "application/json")
