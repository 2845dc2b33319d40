"""A session without a cluster: the calling process itself runs the trials, one call after another.

The coordinator is the one of all sessions, and so is its log. It starts a trial only when it is
asked for one.
"""

from __future__ import annotations

import asyncio
import platform
import threading
import uuid
from collections.abc import Coroutine
from contextlib import ExitStack, suppress
from importlib.metadata import version
from typing import Any, TypeVar

from regrow.flows.coordinator.claim import Opening
from regrow.flows.coordinator.coordinator import Coordinator
from regrow.flows.coordinator.instructions import Instructions
from regrow.infra.log.log import Superseded
from regrow.infra.state.driver_lock import driving
from regrow.infra.state.experiments import Prepared
from regrow.infra.state.places import Places
from regrow.search.history import History
from regrow.search.needs import ClusterCapacity
from regrow.search.spec import MOST_STEPS
from regrow.tasks.errors import UserError
from regrow.tasks.ports.messages import Assignment, Progress, Reply
from regrow.tasks.process import background

_T = TypeVar("_T")
WIDEST = MOST_STEPS
"""Trials that may run at a time: as many as the caller asks for."""


class Inline:
    """A session of this process. A CoordinatorClient of its attempts."""

    def __init__(self, places: Places, prepared: Prepared, *, trials: int) -> None:
        """Take over the experiment. Raises UserError if another process runs it."""
        self._name, self._running = prepared.spec.name, 0
        self._ended = ExitStack()
        self._ended.enter_context(driving(places, self._name))
        self._loop = asyncio.new_event_loop()
        self._thread = background.start(self._loop.run_forever, name="inline")
        libraries = ("regrow", "optuna", "numpy")
        opening = Opening(
            id=str(uuid.uuid4()),
            spec=prepared.spec.record(),
            slots=0,
            widest=WIDEST,
            trials=trials,
            flow_run=None,
            code=None,
            versions={
                "python": platform.python_version(),
                **{name: version(name) for name in libraries},
            },
        )
        driver = f"inline:{uuid.uuid4().hex[:8]}"

        async def made() -> Coordinator:
            return Coordinator(prepared.store, opening, driver)

        try:
            self._coordinator = self._wait(made())
            self._lock = threading.Lock()
            self._instructions()
        except BaseException:
            self._stop()
            raise

    def start(self) -> Assignment:
        """Start a trial: one that was lost, else a new one. Raises UserError if none may start."""
        with self._lock:
            self._running += 1
            found = self._instructions()
            if len(found.submit) != 1:
                self._running -= 1
                if found.superseded:
                    raise UserError(f"another process has taken {self._name} over")
                raise UserError(f"{self._name} has nothing left to try")
            return found.submit[0]

    def report(self, progress: Progress) -> Reply:
        """See CoordinatorClient."""
        if progress.ended is not None:
            with self._lock:  # before the place is free: nobody has asked for another trial
                self._running -= 1
                self._instructions()
        return self._wait(self._coordinator.report(progress))

    @property
    def history(self) -> History:
        """All events so far."""
        return self._coordinator.history

    def queue(self, values: dict[str, Any], attributes: dict[str, Any]) -> None:
        """Have the next new trial use these values; see Queued."""
        self._wait(self._coordinator.queue(values, attributes))

    def close(self) -> None:
        """End the session. Trials that still run are lost; the next session starts them again."""
        with suppress(Superseded):
            if not self._running:
                self._wait(self._coordinator.close("stopped", "the script runs no more trials"))
        self._stop()

    def _instructions(self) -> Instructions:
        room = ClusterCapacity(slots=self._running, widest=WIDEST)
        return self._wait(self._coordinator.instructions(0.0, room))

    def _stop(self) -> None:
        async def cancelled() -> None:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        self._wait(cancelled())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._ended.close()

    def _wait(self, what: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result()
