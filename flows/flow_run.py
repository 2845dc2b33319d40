"""The experiment's flow run in Prefect: reopened, left to another driver, or left paused."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import httpx
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.exceptions import Abort, ObjectNotFound, PrefectException
from prefect.states import AwaitingRetry, Suspended

from regrow.infra.prefect.task_runs import close_crashed
from regrow.search.events import Status

PAUSE_SECONDS = 10 * 365 * 24 * 3600
"""Seconds that an experiment may stay paused in Prefect: ten years, meaning no limit."""


class TakenOver(Abort):
    """Another driver took the experiment over. An Abort, so that Prefect's engine reports nothing
    to the server: the flow run belongs to that driver.
    """


class StaysPaused(Abort):
    """The session ended because of Prefect's page, and Prefect knows the state already. An Abort,
    so that Prefect's engine reports nothing.
    """


def this_flow_run() -> FlowRun:
    """Return the flow run within which this is called. Raises RuntimeError outside."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        raise RuntimeError("this is for a flow run")
    return context.flow_run


def reopen(client: SyncPrefectClient, flow_run_id: UUID) -> FlowRun | None:
    """Return the experiment's flow run, ready to run again as its own retry; None if the server
    does not have it.

    Task runs that the last driver left running are closed: no process runs them any more.
    """
    try:
        flow_run = client.read_flow_run(flow_run_id)
    except ObjectNotFound:
        return None
    close_crashed(client, flow_run_id)
    if flow_run.state is None or not flow_run.state.is_pending():
        client.set_flow_run_state(
            flow_run_id, AwaitingRetry(message="continues from its log"), force=True
        )
    return client.read_flow_run(flow_run_id)


def final_state(ended: State[None], status: Status) -> State[None]:
    """Return the state in which the flow run ends, unless it was paused in Prefect, or cancelled
    too late to change anything.

    In these cases the state is reported here, and StaysPaused raised. An experiment that has
    nothing left to do is over even if it was paused. Any other one waits for Resume, for which
    Prefect needs a deployment; without one it is left as after Ctrl-C, and Retry continues it.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return ended
    with get_client(sync_client=True) as client:
        try:
            now = client.read_flow_run(context.flow_run.id)
        # unreachable: Prefect's engine reports the end later, or the next session does
        except (httpx.HTTPError, PrefectException):
            return ended
        # Cancel may have come when nothing was left to do: Prefect would leave the run Cancelling
        # forever.
        late = now.state is not None and now.state.is_cancelling() and not ended.is_cancelled()
        if now.state is None or not (late or now.state.is_paused()):
            return ended
        waits = now.state.is_paused() and status == "interrupted" and now.deployment_id is not None
        # The pause that Prefect's page sets would fail after five minutes.
        state: State[Any] = Suspended(timeout_seconds=PAUSE_SECONDS) if waits else ended
        client.set_flow_run_state(now.id, state, force=True)
    raise StaysPaused("paused or cancelled in Prefect")
