"""Comparing the ends of task runs with what Prefect's server knows, and sending it the ends that it
missed: of those in transit when the server, or the process that had to send them, was killed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    TaskRunFilter,
    TaskRunFilterId,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import State, StateType, TaskRun
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed, Pending
from prefect.tasks import Task

SETTLE_SECONDS = 15.0
"""Seconds for the server to record what it was sent; 1 s is normal, as it writes in batches."""
_TICK = 0.05
_BATCH = 200
_ENDED = frozenset({StateType.COMPLETED, StateType.FAILED, StateType.CRASHED, StateType.CANCELLED})


def settle(
    client: SyncPrefectClient,
    flow_run_id: UUID,
    expected: Mapping[UUID, datetime],
    seconds: float = SETTLE_SECONDS,
) -> set[UUID]:
    """Wait until the server shows the expected task runs as ended, in a state of that time or a
    later one: in a former session they may have ended, too. Returns those that it does not show in
    time.
    """
    left = set(expected)
    deadline = time.monotonic() + seconds
    while left:
        found = next(_read(client, sorted(left)[:_BATCH]))
        ended = {
            run.id
            for run in found
            if run.flow_run_id == flow_run_id
            and run.state is not None
            and run.state.type in _ENDED
            and run.state.timestamp >= expected[run.id]
        }
        left -= ended
        if not ended:
            if time.monotonic() > deadline:
                break
            time.sleep(_TICK)
    return left


def mismatched(client: SyncPrefectClient, ends: Mapping[UUID, StateType]) -> set[UUID]:
    """Return the task runs that the server does not know, or shows with another end."""
    fine = {
        run.id
        for batch in _read(client, sorted(ends))
        for run in batch
        if run.state_type == ends[run.id]
    }
    return ends.keys() - fine


def repair(
    client: SyncPrefectClient,
    flow_run_id: UUID,
    task: Task[..., Any],
    ended: Mapping[UUID, tuple[str, State[Any]]],
) -> None:
    """Send the server ends that it missed (id -> name and final state)."""
    for run_id, (name, state) in ended.items():
        try:
            client.read_task_run(run_id)
        except ObjectNotFound:
            client.create_task_run(
                task, flow_run_id, dynamic_key=str(run_id), id=run_id, name=name, state=Pending()
            )
        client.set_task_run_state(run_id, state, force=True)


def close_crashed(client: SyncPrefectClient, flow_run_id: UUID, until: float = math.inf) -> None:
    """Close the task runs that a dead driver left running or pending, unless they got their state
    after `until` (seconds since 1970).
    """
    alive = TaskRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING])
    left: list[TaskRun] = []
    while page := client.read_task_runs(
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id])),
        task_run_filter=TaskRunFilter(state=TaskRunFilterState(type=alive)),
        limit=_BATCH,
        offset=len(left),
    ):
        left += page
    for run in left:
        if run.state is not None and run.state.timestamp.timestamp() <= until:
            client.set_task_run_state(run.id, Crashed(message="its driver was lost"), force=True)


def _read(client: SyncPrefectClient, ids: list[UUID]) -> Iterator[list[TaskRun]]:
    for first in range(0, len(ids), _BATCH):
        batch = ids[first : first + _BATCH]
        yield client.read_task_runs(
            task_run_filter=TaskRunFilter(id=TaskRunFilterId(any_=batch)), limit=len(batch)
        )
