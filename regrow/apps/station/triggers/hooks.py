"""`POST /hooks/NAME`: a request that starts a run of a schedule, served by the station's page.

The caller gets 202 and the event's id once the event is on disk; the watcher makes a flow run of
it. A body that cannot become a flow run is refused here with a reason.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any, NoReturn

from fastapi import APIRouter, HTTPException, Request
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from regrow.apps.station.triggers.inbox import put
from regrow.apps.station.triggers.payloads import acceptable
from regrow.infra.state import hooks
from regrow.infra.state.places import Places
from regrow.tasks.errors import RegrowError

MOST_BYTES = 256 * 1024
MOST_PARAMETER_BYTES = 400_000
"""Maximum length of a payload as ASCII JSON; Prefect accepts 512 KB of parameters."""
DELIVERY_HEADERS = ("idempotency-key", "x-github-delivery")
"""Headers with the sender's id of the delivery: a repeated delivery is the same event."""
_MOST_DELIVERY = 200


def router(places: Places) -> APIRouter:
    """Make the route for the station's app of this state root."""
    routes = APIRouter()

    @routes.post("/hooks/{name}", status_code=202)
    async def call(name: str, request: Request) -> dict[str, str]:
        """Accept the request as an event of the schedule `name`."""
        try:
            secret = hooks.known(places).get(name)
        except RegrowError:
            raise HTTPException(
                503, "the secrets of hooks cannot be read; `regrow status` there shows why"
            ) from None
        if not secret:
            raise HTTPException(404, f"there is no hook {name!r}")
        body = await _body(request)
        if not authorized(request.headers, body, secret):
            raise HTTPException(
                401,
                "give the secret as `Authorization: Bearer`, or sign the body in"
                " X-Hub-Signature-256",
            )
        delivery = next(
            (request.headers[key] for key in DELIVERY_HEADERS if request.headers.get(key)), None
        )
        if delivery is not None and len(delivery) > _MOST_DELIVERY:
            raise HTTPException(
                422, f"the id of the delivery is longer than {_MOST_DELIVERY} characters"
            )
        payload = parsed(body)
        try:
            return {"id": await run_in_threadpool(put, places, name, payload, delivery)}
        except OSError as error:  # such as a full disk
            raise HTTPException(
                503, f"the event cannot be kept: {error.strerror or error}; send it again later"
            ) from None

    return routes


def authorized(headers: Mapping[str, str], body: bytes, secret: str) -> bool:
    """Return whether the request has the secret, or is signed with it as GitHub does, compared in
    constant time.

    `headers` are raw, one character per byte.
    """
    given = headers.get("authorization", "")
    if given[:7].lower() == "bearer " and hmac.compare_digest(
        given[7:].strip().encode("latin-1"), secret.encode()
    ):
        return True
    signed = "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(
        headers.get("x-hub-signature-256", "").encode("latin-1"), signed.encode()
    )


def parsed(body: bytes) -> Any:
    """Return the payload, None for an empty body. Raises HTTPException (422 or 413)."""
    if not body.strip():
        return None
    try:
        payload = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise HTTPException(422, f"the body is no JSON: {error}") from None
    if why := acceptable(payload):
        raise HTTPException(422, f"the body cannot be taken: {why}")
    if len(json.dumps(payload)) > MOST_PARAMETER_BYTES:
        raise HTTPException(
            413, f"the body is longer than {MOST_PARAMETER_BYTES} bytes of plain JSON"
        )
    return payload


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


async def _body(request: Request) -> bytes:
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > MOST_BYTES:
                raise HTTPException(413, f"the body is longer than {MOST_BYTES} bytes")
    except ClientDisconnect:  # no error of the page's, whose log would have a traceback
        raise HTTPException(400, "the body ended early") from None
    return bytes(body)
