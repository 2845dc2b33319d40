"""Requests to stop the experiment: by `regrow stop` on any machine, or in Prefect's page."""

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
from regrow.tasks.ports.store import Store

LOOK_SECONDS = 2.0
"""Seconds between two checks; each listing costs money if the state is in a bucket."""
NEAR_SECONDS = 0.2
"""Seconds between two checks of a folder on this machine."""


@contextmanager
def stop_requests(store: Store, asked: Interrupts, *, near: bool = False) -> Iterator[None]:
    """Within the block, begin the ending once a stop is requested. `near`: whether the store is a
    folder on this machine.

    Requests that arrive after an ending has begun are removed: they do not stop the next session.
    """

    def look() -> None:
        with suppress(RegrowError):  # unreachable: the next check may succeed
            if take_stop_requests(store):
                asked.begin("stopped", "stopped by the user")

    try:
        with _looking(look, asked, "regrow-stop-requests", NEAR_SECONDS if near else LOOK_SECONDS):
            yield
    finally:
        with suppress(RegrowError):
            take_stop_requests(store)


@contextmanager
def page_requests(
    client: SyncPrefectClient, flow_run_id: UUID, asked: Interrupts
) -> Iterator[None]:
    """Within the block, begin the ending once the flow run is cancelled or paused in Prefect."""

    def look() -> None:
        with suppress(httpx.HTTPError, PrefectException):  # unreachable: the next check may succeed
            state = client.read_flow_run(flow_run_id).state
            if state is not None and state.type == StateType.CANCELLING:
                asked.begin("stopped", "cancelled in Prefect")
            elif state is not None and state.type == StateType.PAUSED:
                asked.begin("interrupted", "paused in Prefect")

    with _looking(look, asked, "regrow-page-requests", LOOK_SECONDS):
        yield


@contextmanager
def _looking(
    look: Callable[[], None], asked: Interrupts, name: str, seconds: float
) -> Iterator[None]:
    """Call `look` every `seconds` until an ending begins or the block ends; in a thread, as a call
    may be slow or fail.
    """
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
