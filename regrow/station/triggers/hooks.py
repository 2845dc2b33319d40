"""`POST /hooks/NAME`: a request that starts a run of a schedule, for the station's page to serve.

The caller hears 202 and the event's id when the event is on disk; the watcher makes a flow run of it. Secrets are in
`<services>/station/hooks.json`, by schedules, which only its owner may read.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from fastapi import APIRouter, HTTPException, Request
from starlette.concurrency import run_in_threadpool

from regrow.infra.state.places import Places
from regrow.station.triggers.inbox import put
from regrow.station.triggers.payloads import acceptable

MOST_BYTES = 256 * 1024
MOST_PARAMETER_BYTES = 400_000
"""How long a payload may be as JSON in plain ASCII: so it goes to Prefect, which takes 512 KB of parameters."""
DELIVERY_HEADERS = ("idempotency-key", "x-github-delivery")
"""Where the sender says which delivery it is: a repeat is no other event."""
_MOST_DELIVERY = 200


def secrets_file(places: Places) -> Path:
    """The file with the secret of each schedule that has a hook."""
    return places.services / "station" / "hooks.json"


def router(places: Places) -> APIRouter:
    """The route, for an app of the station of this state root."""
    routes = APIRouter()

    @routes.post("/hooks/{name}", status_code=202)
    async def call(name: str, request: Request) -> dict[str, str]:
        """Takes the request in as an event of the schedule `name`."""
        secret = _secrets(places).get(name)
        if not secret:
            raise HTTPException(404, f"there is no hook {name!r}")
        body = await _body(request)
        if not authorized(request.headers, body, secret):
            raise HTTPException(401, "give the secret as `Authorization: Bearer`, or sign the body in X-Hub-Signature-256")
        delivery = next((request.headers[key] for key in DELIVERY_HEADERS if request.headers.get(key)), None)
        if delivery is not None and len(delivery) > _MOST_DELIVERY:
            raise HTTPException(422, f"the id of the delivery is longer than {_MOST_DELIVERY} characters")
        payload = parsed(body)
        return {"id": await run_in_threadpool(put, places, name, payload, delivery)}

    return routes


def authorized(headers: Mapping[str, str], body: bytes, secret: str) -> bool:
    """Whether the request has the secret, or is signed with it as GitHub does; how long it takes tells nothing of it.

    `headers` as they came, a character a byte.
    """
    given = headers.get("authorization", "")
    if given[:7].lower() == "bearer " and hmac.compare_digest(given[7:].strip().encode("latin-1"), secret.encode()):
        return True
    signed = "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(headers.get("x-hub-signature-256", "").encode("latin-1"), signed.encode())


def parsed(body: bytes) -> Any:
    """The payload; None for an empty body. Raises HTTPException, 422 or 413, for one that cannot be taken."""
    if not body.strip():
        return None
    try:
        payload = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise HTTPException(422, f"the body is no JSON: {error}") from None
    if why := acceptable(payload):
        raise HTTPException(422, f"the body cannot be taken: {why}")
    if len(json.dumps(payload)) > MOST_PARAMETER_BYTES:
        raise HTTPException(413, f"the body is longer than {MOST_PARAMETER_BYTES} bytes of plain JSON")
    return payload


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise HTTPException(413, f"the body is longer than {MOST_BYTES} bytes")
    return bytes(body)


def _secrets(places: Places) -> dict[str, str]:
    try:
        return dict(json.loads(secrets_file(places).read_bytes()))
    except FileNotFoundError:
        return {}
