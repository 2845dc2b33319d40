"""Who may ask, and what every answer says to the browser: a layer around the application, which sees each request first."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regrow.infra.machine.addresses import LOCAL_NAMES, name_in

USER = "regrow"
OPEN = frozenset({"/health"})
"""Asked without a password."""
HOOKS = "/hooks/"
"""Below it each address has a secret of its own."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
"""Nothing from anywhere else, no script in the page itself; and nobody frames it."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of each answer that does not say otherwise."""


class Guard:
    """Refuses a Host that is not ours, by which a foreign page could read this one through a name of its own (DNS rebinding);
    and, where there is a password, whoever does not give it.
    """

    def __init__(self, app: ASGIApp, *, password: str | None, hosts: Collection[str] = ()) -> None:
        self._app = app
        self._hosts = LOCAL_NAMES | {host.lower() for host in hosts}
        self._expected = None if password is None else f"{USER}:{password}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers, or hands on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        headers = Headers(scope=scope)
        refusal: ASGIApp | None = None
        if name_in(headers.get("host", "")) not in self._hosts:
            refusal = PlainTextResponse("This page is not served under that name.\n", 421)
        elif not _is_open(scope["path"]) and not self._knows(headers.get("authorization", "")):
            asks = {"WWW-Authenticate": 'Basic realm="regrow", charset="UTF-8"'}
            refusal = PlainTextResponse("The page wants the user regrow and its password.\n", 401, asks)
        await (refusal or self._app)(scope, receive, guarded)

    def _knows(self, authorization: str) -> bool:
        if self._expected is None:
            return True
        kind, _, given = authorization.partition(" ")
        try:
            told = base64.b64decode(given, validate=True)
        except (binascii.Error, ValueError):
            told = b""
        return hmac.compare_digest(told, self._expected) and kind.lower() == "basic"


def _is_open(path: str) -> bool:
    return path in OPEN or path.startswith(HOOKS)
