"""Who may ask: a layer around the application, which sees each request first."""

from __future__ import annotations

import hashlib
import hmac

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from regrow.infra.machine.addresses import LOCAL_NAMES, name_in

OPEN = frozenset({"/healthz", "/readyz"})
"""Asked without a token: probes have none, and both say nothing of the model."""


def digest(token: str) -> bytes:
    """What is kept of a token: with it one can tell whether a token is the right one, but not what it is."""
    return hashlib.sha256(token.strip().encode()).digest()


class Access:
    """With a token, refuses whoever does not give it. Without one, refuses a Host that is not the loopback's, by which a page of
    somebody else's, open in a browser on this machine, could ask through a name of its own (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, *, secret: bytes | None) -> None:
        """`secret`: what `digest` makes of the token; None without one."""
        self._app, self._secret = app, secret

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers, or hands on."""
        refusal = self._refusal(scope) if scope["type"] == "http" and scope["path"] not in OPEN else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        if self._secret is None:
            if name_in(headers.get("host", "")) in LOCAL_NAMES:
                return None
            return JSONResponse({"detail": "this is not served under that name"}, 421)
        kind, _, given = headers.get("authorization", "").partition(" ")
        if hmac.compare_digest(digest(given), self._secret) and kind.lower() == "bearer":
            return None
        return JSONResponse({"detail": "Authorization: Bearer TOKEN is missing or wrong"}, 401, {"WWW-Authenticate": "Bearer"})
