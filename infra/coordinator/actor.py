"""The coordinator as a Ray actor: how the driver starts it, and how attempts speak to it."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import ray

from regrow.infra.coordinator.claim import Opening
from regrow.infra.coordinator.coordinator import Coordinator
from regrow.search.events import Cause
from regrow.tasks.messages import CoordinatorGone, LogLine, Progress, Reply
from regrow.tasks.ports import Store


class RayCoordinatorClient:
    """The coordinator as a worker sees it: the ports CoordinatorClient and Viewers over an actor handle."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def report(self, progress: Progress) -> Reply:
        """See CoordinatorClient. Ray sends it again if the coordinator restarts meanwhile."""
        try:
            reply: Reply = ray.get(self._actor.report.remote(progress))
        except ray.exceptions.RayError as error:
            raise CoordinatorGone(str(error)) from error
        return reply

    def show(self, task_run: str, lines: Sequence[LogLine]) -> None:
        """See Viewers."""
        with suppress(ray.exceptions.RayError):
            self._actor.show.remote(task_run, lines)


async def lost(actor: Any, task_run: str, trial: int, attempt: int, cause: Cause, message: str) -> bool:
    """See Coordinator.lost, for the driver's event loop. Where the cluster is lost with the coordinator, it never returns."""
    try:
        goes_on: bool = await actor.lost.remote(task_run, trial, attempt, cause, message)
    except ray.exceptions.RayError:
        await asyncio.Event().wait()
        raise
    return goes_on


def driver_name() -> str:
    """What this process calls itself in the log; another name for each session."""
    return f"{_process()}{uuid.uuid4().hex[:8]}"


def is_ours(driver: str) -> bool:
    """Whether this process is a driver in the log."""
    return driver.startswith(_process())


def _process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:"


def start_coordinator(store: Store, opening: Opening, *, name: str) -> Any:
    """Starts the actor on this node, under a name. Restarts forever; calls that it had not answered are sent again."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    actor: Any = ray.remote(Coordinator)
    return actor.options(
        name=name, num_cpus=0, max_restarts=-1, max_task_retries=-1, max_concurrency=1000,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=here, soft=False),
    ).remote(store, opening, driver_name())
