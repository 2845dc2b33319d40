"""Requests to stop the experiment: by `regrow stop` on any machine, or in Prefect's page."""

from __future__ import annotations

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
from regrow.tasks.ports.store import Store
from regrow.tasks.process import background

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

    def look() -> bool:
        with suppress(RegrowError):  # unreachable: the next check may succeed
            if take_stop_requests(store):
                asked.begin("stopped", "stopped by the user")
        return asked.begun is not None

    seconds = NEAR_SECONDS if near else LOOK_SECONDS
    try:
        with background.every(seconds, look, name="stop-requests", wait=LOOK_SECONDS):
            yield
    finally:
        with suppress(RegrowError):
            take_stop_requests(store)


@contextmanager
def page_requests(
    client: SyncPrefectClient, flow_run_id: UUID, asked: Interrupts
) -> Iterator[None]:
    """Within the block, begin the ending once the flow run is cancelled or paused in Prefect."""

    def look() -> bool:
        with suppress(httpx.HTTPError, PrefectException):  # unreachable: the next check may succeed
            state = client.read_flow_run(flow_run_id).state
            if state is not None and state.type == StateType.CANCELLING:
                asked.begin("stopped", "cancelled in Prefect")
            elif state is not None and state.type == StateType.PAUSED:
                asked.begin("interrupted", "paused in Prefect")
        return asked.begun is not None

    with background.every(LOOK_SECONDS, look, name="page-requests", wait=LOOK_SECONDS):
        yield
