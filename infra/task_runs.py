"""What is told to Prefect about task runs from outside of them, and that what was told has arrived."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from prefect._internal.concurrency.api import create_call, from_sync
from prefect._internal.concurrency.services import _QueueServiceBase
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import TaskRunFilter, TaskRunFilterId
from prefect.client.schemas.objects import State, StateType, TaskRun
from prefect.events.clients import PrefectEventsClient
from prefect.events.worker import EventsWorker
from prefect.exceptions import ObjectNotFound
from prefect.states import Pending, Scheduled
from prefect.tasks import Task

SETTLE_SECONDS = 15.0
"""How long the server may need to record what it has been told; 1 s is normal, as it writes in batches."""
_TICK = 0.05
_ENDED = frozenset({StateType.COMPLETED, StateType.FAILED, StateType.CRASHED, StateType.CANCELLED})


def flush_events(seconds: float = 5.0, *, confirm: bool = False) -> bool:
    """Wait until every event that this process emitted has left it; False if not within `seconds`.

    What the kernel has, it delivers even if the process is killed next: about 1 ms. `confirm` waits for the
    server to say that it has read them (5 ms), for the case that the machine itself goes.
    """
    deadline = time.monotonic() + seconds
    services: dict[int, Any] = vars(_QueueServiceBase)["_instances"]  # of all kinds; not typed for reading
    workers = [service for service in list(services.values()) if isinstance(service, EventsWorker)]
    return all(_flush(worker, deadline, confirm) for worker in workers if not worker._stopped)


def _flush(worker: EventsWorker, deadline: float, confirm: bool) -> bool:
    with worker._queue.all_tasks_done:
        while worker._queue.unfinished_tasks:
            if not worker._queue.all_tasks_done.wait(deadline - time.monotonic()):
                return False
    client = getattr(worker, "_client", None)
    socket = getattr(client, "_websocket", None)
    if not isinstance(client, PrefectEventsClient) or socket is None:
        return True
    if not confirm and socket.transport.get_write_buffer_size() == 0:
        return True
    call = create_call(client._force_checkpoint)  # a ping: its pong comes after all that was sent before
    try:
        from_sync.call_soon_in_loop_thread(call).result(timeout=max(0.1, deadline - time.monotonic()))
    except Exception:  # noqa: BLE001  # however the connection broke, the client resends once it is back
        return False
    return True


def await_retry(
    client: SyncPrefectClient,
    task_run_id: UUID,
    message: str,
    *,
    name: str = "AwaitingRetry",
    attempts: int | None = None,
    seconds: float = 10.0,
) -> TaskRun:
    """Tell the server that a task run whose worker is gone waits for another; returns it as `previous`.

    `name` may tell another reason to wait (say, Paused). `attempts` says how many have begun, if the caller
    knows: the server records in batches and may not have counted the last one yet. For the same reason it may
    not know the run at all yet: waits up to `seconds` for it, then raises prefect's ObjectNotFound.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            client.read_task_run(task_run_id)
            break
        except ObjectNotFound:
            if time.monotonic() > deadline:
                raise
        time.sleep(_TICK)
    client.set_task_run_state(task_run_id, Scheduled(name=name, message=message), force=True)
    run = client.read_task_run(task_run_id)
    if attempts is not None:
        run.run_count = attempts
    return run


def settle(
    client: SyncPrefectClient,
    flow_run_id: UUID,
    expected_ids: Iterable[UUID],
    seconds: float = SETTLE_SECONDS,
) -> set[UUID]:
    """Wait until the server shows the expected task runs as ended; returns those that it does not in time."""
    flush_events()
    left = set(expected_ids)
    deadline = time.monotonic() + seconds
    while left:
        batch = sorted(left)[:200]
        found = client.read_task_runs(task_run_filter=TaskRunFilter(id=TaskRunFilterId(any_=batch)), limit=len(batch))
        ended = {run.id for run in found if run.state_type in _ENDED and run.flow_run_id == flow_run_id}
        left -= ended
        if not ended:
            if time.monotonic() > deadline:
                break
            time.sleep(_TICK)
    return left


def unfinished(client: SyncPrefectClient, task_run_ids: Iterable[UUID]) -> set[UUID]:
    """Those of the task runs that the server does not know, or has as crashed."""
    wanted = sorted(task_run_ids)
    fine: set[UUID] = set()
    for first in range(0, len(wanted), 200):
        batch = wanted[first : first + 200]
        found = client.read_task_runs(task_run_filter=TaskRunFilter(id=TaskRunFilterId(any_=batch)), limit=len(batch))
        fine |= {run.id for run in found if run.state_type != StateType.CRASHED}
    return set(wanted) - fine


def mend(
    client: SyncPrefectClient, flow_run_id: UUID, task: Task[..., Any], ended: Mapping[UUID, tuple[str, State[Any]]]
) -> None:
    """Tell the server how task runs ended (id -> name and final state) that it does not know to have ended.

    What a server has in memory when it is killed, and what a worker had for it when that went too, is lost.
    """
    for run_id, (name, state) in ended.items():
        try:
            client.read_task_run(run_id)
        except ObjectNotFound:
            client.create_task_run(task, flow_run_id, dynamic_key=str(run_id), id=run_id, name=name, state=Pending())
        client.set_task_run_state(run_id, state, force=True)
