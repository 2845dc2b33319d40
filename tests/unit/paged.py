"""State roots for the page of all experiments, made of simulated logs. No test lives here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from starlette.testclient import TestClient

from regrow.infra.log.log import Log
from regrow.infra.state.places import Places
from regrow.infra.stores.local import LocalStore
from regrow.page.app import app
from regrow.page.links import Links
from regrow.search.events import AnyEvent, Closed, encode

OURS = "http://localhost"


def logged(root: Path, name: str, events: Sequence[AnyEvent]) -> Log:
    """Writes an experiment's log; what is returned goes on with it."""
    log = Log.open(LocalStore(root / name))
    lines = [encode(event) for event in events]
    log.claim(lines[:2])
    for place in range(2, len(lines), 1000):
        log.append(lines[place : place + 1000])
    return log


def unclosed(events: Sequence[AnyEvent], most: int | None = None) -> list[AnyEvent]:
    """The events of an experiment that is not over: without its end, or the first ones."""
    return [event for event in events if not isinstance(event, Closed)][:most]


def client(root: Path, links: Links | None = None, **given: object) -> TestClient:
    """A browser without a screen."""
    made = app(Places(root=str(root)), links or Links(), **given)  # type: ignore[arg-type]
    return TestClient(made, base_url=OURS, follow_redirects=False)
