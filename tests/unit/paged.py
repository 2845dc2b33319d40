"""State roots for the page of all experiments, made of simulated logs. No test lives here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
from starlette.types import ASGIApp

from regrow.infra.log.log import Log
from regrow.infra.state.places import Places
from regrow.infra.stores.local import LocalStore
from regrow.page.app import app
from regrow.page.links import Links
from regrow.search.events import AnyEvent, Closed, encode

OURS = "http://localhost"


class Reader:
    """A browser without a screen: each call is one request, answered in this process."""

    def __init__(self, made: ASGIApp) -> None:
        self._made = made

    def get(self, path: str, **headers: str) -> httpx.Response:
        """The answer, redirections not followed."""
        import asyncio

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app=self._made)
            async with httpx.AsyncClient(transport=transport, base_url=OURS) as client:
                return await client.get(path, headers=headers)

        return asyncio.run(ask())


def reader(root: Path, links: Links | None = None, password: str | None = None, **given: Any) -> Reader:
    """Who reads the page of a state root."""
    return Reader(app(Places(root=str(root)), links or Links(), password, **given))


def logged(root: Path, name: str, events: Sequence[AnyEvent]) -> Log:
    """Writes an experiment's log; what is returned goes on with it."""
    log = Log.open(LocalStore(root / name))
    lines = [encode(event) for event in events]
    log.claim(lines[:2])
    for place in range(2, len(lines), 1000):
        log.append(lines[place : place + 1000])
    return log


def unclosed(events: Sequence[AnyEvent], most: int | None = None) -> Sequence[AnyEvent]:
    """The events of an experiment that is not over: without its end, or the first ones."""
    return [event for event in events if not isinstance(event, Closed)][:most]
