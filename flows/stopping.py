"""Whether somebody asked for the experiment to stop: with `regrow stop`, wherever they are, or in Prefect's page."""

from __future__ import annotations

import threading
from collections.abc import Iterator
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


@contextmanager
def stop_requests(store: Store, asked: Interrupts) -> Iterator[None]:
    """Begins the ending once the experiment is asked to stop; a thread looks, as a store may be slow or away.

    An ending that had begun before answers what is asked meanwhile: the next session hears nothing of it.
    """
    done = threading.Event()

    def look() -> None:
        while asked.begun is None and not done.wait(LOOK_SECONDS):
            with suppress(RegrowError):  # out of reach: the next look may do better
                if take_stop_requests(store):
                    asked.begin("stopped", "stopped by the user")

    thread = threading.Thread(target=look, name="regrow-stop-requests", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(LOOK_SECONDS)
        with suppress(RegrowError):
            take_stop_requests(store)


@contextmanager
def page_requests(client: SyncPrefectClient, flow_run_id: UUID, asked: Interrupts) -> Iterator[None]:
    """Begins the ending once the flow run is cancelled or paused in Prefect; a thread looks."""
    done = threading.Event()

    def look() -> None:
        while asked.begun is None and not done.wait(LOOK_SECONDS):
            with suppress(httpx.HTTPError, PrefectException):  # away: the next look may do better
                state = client.read_flow_run(flow_run_id).state
                if state is not None and state.type == StateType.CANCELLING:
                    asked.begin("stopped", "cancelled in Prefect")
                elif state is not None and state.type == StateType.PAUSED:
                    asked.begin("interrupted", "paused in Prefect")

    thread = threading.Thread(target=look, name="regrow-page-requests", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(LOOK_SECONDS)
