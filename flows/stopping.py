"""Whether somebody asked for the experiment to stop: with `regrow stop`, wherever they are, or in Prefect's page."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import StateType
from prefect.exceptions import PrefectException

from regrow.flows.interrupts import Interrupts
from regrow.infra.state.experiments import take_stop_requests
from regrow.tasks.errors import RegrowError
from regrow.tasks.ports import Store

LOOK_SECONDS = 2.0
"""Between two looks; a listing costs money where the state is in a bucket."""
NEAR_SECONDS = 0.2
"""Between two looks into a folder of this machine."""


@contextmanager
def stop_requests(store: Store, asked: Interrupts, *, near: bool = False) -> Iterator[None]:
    """Begins the ending once the experiment is asked to stop. `near`: whether the store is a folder of this machine.

    An ending that had begun before answers what is asked meanwhile: the next session hears nothing of it.
    """

    def look() -> None:
        with suppress(RegrowError):  # out of reach: the next look may do better
            if take_stop_requests(store):
                asked.begin("stopped", "stopped by the user")

    try:
        with _looking(look, asked, "regrow-stop-requests", NEAR_SECONDS if near else LOOK_SECONDS):
            yield
    finally:
        with suppress(RegrowError):
            take_stop_requests(store)


@contextmanager
def page_requests(client: SyncPrefectClient, flow_run_id: UUID, asked: Interrupts) -> Iterator[None]:
    """Begins the ending once the flow run is cancelled or paused in Prefect."""

    def look() -> None:
        with suppress(httpx.HTTPError, PrefectException):  # away: the next look may do better
            state = client.read_flow_run(flow_run_id).state
            if state is not None and state.type == StateType.CANCELLING:
                asked.begin("stopped", "cancelled in Prefect")
            elif state is not None and state.type == StateType.PAUSED:
                asked.begin("interrupted", "paused in Prefect")

    with _looking(look, asked, "regrow-page-requests", LOOK_SECONDS):
        yield


@contextmanager
def _looking(look: Callable[[], None], asked: Interrupts, name: str, seconds: float) -> Iterator[None]:
    """Looks every so many seconds until an ending or the block's end; in a thread, as who is asked may be slow or away."""
    done = threading.Event()

    def run() -> None:
        while asked.begun is None and not done.wait(seconds):
            look()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(LOOK_SECONDS)
