"""State roots for the page of all experiments, made of simulated logs. No test lives here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from starlette.types import ASGIApp

from regrow.apps.page.app import app
from regrow.apps.page.links import Links
from regrow.infra.log.log import Log
from regrow.infra.state.passwords import USER, Passwords
from regrow.infra.state.places import Places
from regrow.infra.stores.local import LocalStore
from regrow.search.events import AnyEvent, Closed, encode

OURS = "http://localhost"
KNOWN = Passwords(prefect="of Prefect", mlflow="of MLflow", page="grün:er", cookies="key")


class Reader:
    """A browser without a screen: each call is one request, answered in this process."""

    def __init__(self, made: ASGIApp, auth: tuple[str, str] | None = (USER, KNOWN.page)) -> None:
        self._made, self._auth = made, auth

    def get(self, path: str, **headers: str) -> httpx.Response:
        """The answer, redirections not followed."""
        return self.ask("GET", path, headers)

    def ask(
        self, method: str, path: str, headers: Mapping[str, str], content: bytes | None = None
    ) -> httpx.Response:
        """The same for another method, and with a body."""
        import asyncio

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app=self._made)
            async with httpx.AsyncClient(
                transport=transport, base_url=OURS, auth=self._auth
            ) as client:
                return await client.request(method, path, headers=headers, content=content)

        return asyncio.run(ask())


def reader(root: Path, links: Links | None = None, **given: Any) -> Reader:
    """Who reads the page of a state root, and has its password."""
    return Reader(app(Places(root=str(root)), links or Links(), KNOWN, **given))


def stranger(root: Path) -> Reader:
    """Who has not."""
    return Reader(app(Places(root=str(root)), Links(), KNOWN), None)


def logged(root: Path, name: str, events: Sequence[AnyEvent]) -> Log:
    """Writes an experiment's log; what is returned continues with it."""
    log = Log.open(LocalStore(root / name))
    lines = [encode(event) for event in events]
    log.claim(lines[:2])
    for place in range(2, len(lines), 1000):
        log.append(lines[place : place + 1000])
    return log


def unclosed(events: Sequence[AnyEvent], most: int | None = None) -> Sequence[AnyEvent]:
    """The events of an experiment that is not over: without its end, or the first ones."""
    return [event for event in events if not isinstance(event, Closed)][:most]
