"""The coordinator as a Ray actor: how the driver starts it, and how attempts speak to it."""

from __future__ import annotations

import asyncio
import os
import socket
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle

from regrow.infra.coordinator.claim import Opening
from regrow.infra.coordinator.coordinator import Coordinator
from regrow.infra.coordinator.relay import WAITING
from regrow.infra.machine import private_files
from regrow.search.events import Cause
from regrow.tasks.messages import CoordinatorGone, LogLine, Progress, Reply
from regrow.tasks.ports import Store

AGAIN_SECONDS = 30.0
"""After so long an attempt tries again to speak through a relay that did not answer."""
SILENT_SECONDS = 5.0
"""A relay that waits for the coordinator says within this that it is there."""
_TICK = 0.01
"""Seconds between two looks of a coordinator that waits."""


class RayCoordinatorClient:
    """The coordinator as a worker sees it: the ports CoordinatorClient and Viewers over an actor handle."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._name = ""
        self._relay: Any = None
        self._again = 0.0

    def report(self, progress: Progress) -> Reply:
        """See CoordinatorClient. Ray sends it again if the coordinator restarts meanwhile.

        Through the node's relay, if the coordinator has said so; where that does not answer, once more without it: what it
        may have delivered by then changes nothing.
        """
        reply = self._relayed(progress)
        if reply is None:
            try:
                reply = ray.get(self._actor.report.remote(progress))
            except ray.exceptions.RayError as error:
                raise CoordinatorGone(str(error)) from error
        if reply.relay != self._name:
            self._name, self._relay, self._again = reply.relay, None, 0.0
        return reply

    def show(self, task_run: str, lines: Sequence[LogLine]) -> None:
        """See Viewers."""
        with suppress(ray.exceptions.RayError):
            (self._relay or self._actor).show.remote(task_run, lines)

    def meet(self, trial: int, attempt: int, address: str = "", *, timeout: float = 0.0) -> str:
        """See Coordinator.meet. Raises CoordinatorGone."""
        try:
            found: str = ray.get(self._actor.meet.remote(trial, attempt, address, timeout))
        except ray.exceptions.RayError as error:
            raise CoordinatorGone(str(error)) from error
        return found

    def _relayed(self, progress: Progress) -> Reply | None:
        """The answer that came through the relay; None without one."""
        if not self._name or time.monotonic() < self._again:
            return None
        try:
            self._relay = self._relay or ray.get_actor(self._name)
            asked = self._relay.report.remote(progress)
            while not ray.wait([asked], timeout=SILENT_SECONDS)[0]:
                ray.get(self._relay.answers.remote(), timeout=SILENT_SECONDS)
            reply: Reply = ray.get(asked)
        except (ray.exceptions.RayError, ValueError):  # Ray's way to say that there is none of that name
            self._relay, self._again = None, time.monotonic() + AGAIN_SECONDS
            return None
        return reply


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


def start_coordinator(store: Store, opening: Opening, *, name: str) -> tuple[Any, str]:
    """The actor on this node, and the name under which Ray knows it: `name`, unless one waits that was started beforehand.

    It restarts forever; calls that it had not answered are sent again.
    """
    if _waiting:
        actor, called, order = _waiting.pop()
        private_files.replace(order, cloudpickle.dumps((store, opening, driver_name())))  # type: ignore[no-untyped-call]  # ray's copy is untyped
        return actor, called
    return _begin(Coordinator, name, store, opening, driver_name()), name


def prepare_coordinator(order: Path) -> None:
    """Starts one that waits for the next session of this process: its process and its imports take a second and more.

    `order`: a file in a folder of this user alone, in which it will find what it is for, after a restart as well.
    """
    order.unlink(missing_ok=True)
    name = f"regrow-coordinator-{uuid.uuid4().hex}"
    _waiting.append((_begin(WaitingCoordinator, name, str(order)), name, order))


_waiting: list[tuple[Any, str, Path]] = []
"""Actors that were started beforehand, their names, and the files that they wait for."""


class WaitingCoordinator(Coordinator):
    """One that was started before it was known what for."""

    def __init__(self, order: str) -> None:
        """Waits until the file is there, which was written by the driver that started this process."""
        file = Path(order)
        while not file.exists():
            time.sleep(_TICK)
        if file.stat().st_uid != os.getuid():
            raise RuntimeError(f"{file} is not ours")
        super().__init__(*cloudpickle.loads(file.read_bytes()))


def _begin(kind: type[Coordinator], name: str, *arguments: Any) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    actor: Any = ray.remote(kind)
    return actor.options(
        name=name, num_cpus=0, max_restarts=-1, max_task_retries=-1, max_concurrency=WAITING,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=here, soft=False),
    ).remote(*arguments)
