"""The coordinator as a Ray actor: how the driver starts it, and how attempts call it."""

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

from regrow.flows.coordinator.claim import SessionOpening
from regrow.flows.coordinator.coordinator import Coordinator
from regrow.flows.coordinator.relay import WAITING
from regrow.infra.machine import private_files
from regrow.infra.ray import cluster
from regrow.search import samplers
from regrow.search.events import Cause
from regrow.search.spec import Spec
from regrow.tasks.ports.messages import CoordinatorGone, LogLine, Progress, Reply
from regrow.tasks.ports.store import Store
from regrow.tasks.process import garbage

AGAIN_SECONDS = 30.0
"""Seconds after which an attempt retries a relay that did not answer."""
SILENT_SECONDS = 5.0
"""Seconds within which a relay that waits for the coordinator must confirm that it is alive."""
_connected: list[Any] = []
"""The coordinator to which this process has opened a connection, if any: of the process, as each
attempt gets a client of its own.
"""
_TICK = 0.01
"""Seconds between two checks of a waiting coordinator."""


class RayCoordinatorClient:
    """The ports CoordinatorClient and Viewers of a worker, over an actor handle."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._name = ""
        self._relay: Any = None
        self._again = 0.0

    def connect(self) -> None:
        """Open this process's connection to the coordinator, if that answers soon: once a
        trainable has lowered the limit of open files, Ray opens none, and waits for ever.
        """
        if self._actor not in _connected:
            _connected[:] = [self._actor]
            ray.wait([self._actor.trouble.remote()], timeout=SILENT_SECONDS)

    def report(self, progress: Progress) -> Reply:
        """See CoordinatorClient. Ray resends the call if the coordinator restarts meanwhile.

        Uses the node's relay if the coordinator has named one. If the relay does not answer, the
        report is sent again directly: a second delivery changes nothing.
        """
        reply = self._relayed(progress)
        if reply is None:
            reply = _answer(self._actor.report.remote(progress))
        if reply.relay != self._name:
            self._name, self._relay, self._again = reply.relay, None, 0.0
        return reply

    def show(self, task_run: str, lines: Sequence[LogLine]) -> None:
        """See Viewers."""
        with suppress(ray.exceptions.RayError):
            (self._relay or self._actor).show.remote(task_run, lines)

    def meet(self, trial: int, attempt: int, address: str = "", *, timeout: float = 0.0) -> str:
        """See Coordinator.meet. Raises CoordinatorGone."""
        found: str = _answer(self._actor.meet.remote(trial, attempt, address, timeout))
        return found

    def _relayed(self, progress: Progress) -> Reply | None:
        """Return the answer through the relay; None without one, or if it does not answer."""
        if not self._name or time.monotonic() < self._again:
            return None
        try:
            self._relay = self._relay or ray.get_actor(self._name)
            asked = self._relay.report.remote(progress)
            while not ray.wait([asked], timeout=SILENT_SECONDS)[0]:
                ray.get(self._relay.answers.remote(), timeout=SILENT_SECONDS)
            reply: Reply = ray.get(asked)
        except (ray.exceptions.RayError, ValueError):  # ValueError: Ray knows no actor of that name
            self._relay, self._again = None, time.monotonic() + AGAIN_SECONDS
            return None
        return reply


def _answer(ref: Any) -> Any:
    try:
        return ray.get(ref)
    except ray.exceptions.RayError as error:
        raise CoordinatorGone(str(error)) from error


async def lost(
    actor: Any, task_run: str, trial: int, attempt: int, cause: Cause, message: str
) -> bool:
    """See Coordinator.lost. Never returns if the cluster is lost with the coordinator."""
    try:
        goes_on: bool = await actor.lost.remote(task_run, trial, attempt, cause, message)
    except ray.exceptions.RayError:
        await asyncio.Event().wait()
        raise
    return goes_on


def driver_name() -> str:
    """Return a name of this process for the log, unique to each session."""
    return f"{_process()}{uuid.uuid4().hex[:8]}"


def is_ours(driver: str) -> bool:
    """Return whether the driver named in the log is this process."""
    return driver.startswith(_process())


def _process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:"


def start_coordinator(store: Store, opening: SessionOpening, *, name: str) -> tuple[Any, str]:
    """Start the actor on this node, or use one that was started beforehand; return it with its name
    in Ray.

    It restarts forever; calls that it had not answered are sent again.
    """
    here, arguments = ray.get_runtime_context().get_node_id(), (store, opening, driver_name())
    while _waiting:
        node, actor, called, order = _waiting.pop()
        if node != here:  # the cluster on which it waited is lost
            continue
        try:
            private_files.replace(order, cloudpickle.dumps(arguments))  # type: ignore[no-untyped-call]  # ray's copy is untyped
        except OSError:  # such as of a full disk
            ray.kill(actor)
        else:
            return actor, called
    return cluster.start_actor(Coordinator, *arguments, waiting=WAITING, name=name), name


def prepare_coordinator(order: Path, spec: Spec | None = None) -> None:
    """Start an actor that waits for the next session of this process: its process and its imports
    take more than a second.

    `order`: path of a file, in a folder of this user only, that will contain the actor's arguments;
    it is read again after a restart. `spec`: the actor also loads the libraries of its search; None
    if it is not known yet.
    """
    order.unlink(missing_ok=True)
    name = f"regrow-coordinator-{uuid.uuid4().hex}"
    actor = cluster.start_actor(WaitingCoordinator, str(order), spec, waiting=WAITING, name=name)
    _waiting.append((ray.get_runtime_context().get_node_id(), actor, name, order))


_waiting: list[tuple[str, Any, str, Path]] = []
"""Actors that were started beforehand: their nodes, handles and names, and the files that they wait
for.
"""


class WaitingCoordinator(Coordinator):
    """A coordinator that was started before its experiment was known."""

    def __init__(self, order: str, spec: Spec | None) -> None:
        """Wait for the file, which the driver that started this process writes."""
        garbage.collect_rarely()
        file = Path(order)
        if spec is not None and not file.exists():
            _load_search(spec)
        while not file.exists():
            time.sleep(_TICK)
        if file.stat().st_uid != os.getuid():
            raise RuntimeError(f"{file} is not ours")
        super().__init__(*cloudpickle.loads(file.read_bytes()))


def _load_search(spec: Spec) -> None:
    """Load a sampler's library, which takes up to 0.8 s, by a proposal that is discarded. A
    class of the user is not called: it may keep state between calls.
    """
    with suppress(Exception):  # the session itself names what fails
        if not (spec.own_sampler or samplers.is_external(spec.search)):
            samplers.make(spec.search, spec.setting).ask(0, 0)
