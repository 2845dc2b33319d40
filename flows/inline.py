"""A session without a cluster: the calling process itself runs the trials, one call after another.

The coordinator is the one of all sessions, and so is its log. It starts a trial only when it is
asked for one. MLflow has it once the process has ended, however that ends.
"""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import threading
import uuid
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from importlib.metadata import version
from typing import Any, TypeVar

from regrow.flows.coordinator.claim import SessionOpening
from regrow.flows.coordinator.coordinator import Coordinator
from regrow.flows.coordinator.instructions import Instructions
from regrow.flows.crash_report import hand_to_guard
from regrow.flows.local_host import LocalHost
from regrow.infra.log.log import Superseded
from regrow.infra.state.driver_lock import driving
from regrow.infra.state.experiments import Prepared, prepare, take_stop_requests
from regrow.infra.state.places import Places
from regrow.search.events import Created, Hold, Opened
from regrow.search.history import History
from regrow.search.needs import ClusterCapacity
from regrow.search.spec import MOST_STEPS, Spec
from regrow.tasks.attempt.attempt import run_attempt
from regrow.tasks.errors import UserError
from regrow.tasks.ports.messages import Assignment, Job, Progress, Reply, Shared
from regrow.tasks.process import background
from regrow.tasks.trial.trial import Trial

_T = TypeVar("_T")
LOOK_SECONDS = 0.1
"""Seconds between two looks for a request to stop, while nothing is to be done."""
WIDEST = MOST_STEPS
"""Trials that may run at a time: as many as the caller asks for."""


class _CallerThreadExecutor(ThreadPoolExecutor):
    """Runs what is submitted in the caller's thread: while Python ends, none starts any more."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run it, and return its result."""
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - raised where the result is awaited
            done.set_exception(error)
        return done


class InlineSession:
    """A session of this process. A CoordinatorClient of its attempts."""

    def __init__(
        self,
        places: Places,
        prepared: Prepared,
        *,
        trials: int | None,
        slots: int = 0,
        hold: Hold = "",
        given: object = None,
    ) -> None:
        """Take over the experiment. Raises UserError if another process runs it.

        `slots`: trials that may run without being asked for. `hold`: see Opened. `given`: the
        trainable, if it is not in the state.
        """
        self._name, self._running, self._asked = prepared.spec.name, slots, not slots
        self._places = places
        self._ended = ExitStack()
        self._ended.enter_context(driving(places, self._name))
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(_CallerThreadExecutor())
        self._thread = background.start(self._loop.run_forever, name="inline")
        libraries = ("regrow", "optuna", "numpy")
        opening = SessionOpening(
            created=Created(t=0.0, id=str(uuid.uuid4()), spec=prepared.spec.record()),
            opened=Opened(
                t=0.0,
                by="driver",
                driver="",
                slots=slots,
                widest=WIDEST,
                trials=trials or 0,
                code=None if prepared.code is None else prepared.code[1],
                hold=hold,
                versions={
                    "python": platform.python_version(),
                    **{name: version(name) for name in libraries},
                },
            ),
        )
        driver = f"{socket.gethostname()}:{os.getpid()}:inline-{uuid.uuid4().hex[:8]}"

        async def made() -> Coordinator:
            return Coordinator(prepared.store, opening, driver, given=given)

        try:
            self._coordinator = self._wait(made())
            self._lock = threading.Lock()
            if self._asked:
                self._instructions()  # raises what the first decisions raised
        except BaseException:
            self._stop()
            raise

    def start(self) -> Assignment:
        """Start a trial: one that was lost, else a new one. Raises UserError if none may start."""
        with self._lock:
            hand_to_guard(self._places, self._name)
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
        if progress.ended is not None and self._asked:
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
            if self._asked and not self._running:
                self._wait(self._coordinator.close("stopped", "the script runs no more trials"))
        self._stop()

    def next(self) -> Instructions:
        """Return what is to be done now, after a short wait for something."""
        return self._instructions(LOOK_SECONDS)

    def call(self, name: str, *rest: Any) -> None:
        """Call a method of the coordinator."""
        self._wait(getattr(self._coordinator, name)(*rest))

    def _instructions(self, timeout: float = 0.0) -> Instructions:
        room = ClusterCapacity(slots=self._running, widest=WIDEST)
        return self._wait(self._coordinator.instructions(timeout, room))

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


_given = list[Callable[[Trial], object]]()


def given(trial: Trial) -> None:
    """Run the trainable of the session that runs in this process."""
    _given[-1](trial)


def run_inline(
    *,
    name: str,
    spec: Spec,
    places: Places,
    given: Callable[[Trial], object],
    hold: Hold = "",
    reached: Callable[[Callable[..., object]], AbstractContextManager[object]],
) -> None:
    """Run a session in this process, one trial after the other, and return when it has ended.

    `reached`: called with a function that calls the coordinator's methods; the context that it
    returns surrounds the session. Raises UserError or SpecError.
    """
    prepared = prepare(places, name, spec, trials=None, code=None)
    if prepared.nothing_left:
        return
    ours = prepared.spec.model_copy(update={"trainable": f"{__name__}:given"})
    inline = InlineSession(
        places, prepared, trials=prepared.trials, slots=1, hold=hold, given=given
    )
    job, host = Job.of(ours, folder=None), LocalHost(socket.gethostname())
    shared = Shared(job=job, coordinator=inline, store=prepared.store, host=host)
    _given.append(given)
    hand_to_guard(places, name)
    try:
        with reached(inline.call):
            while True:
                found = inline.next()
                for assignment in found.submit:
                    ended = run_attempt(
                        shared,
                        assignment,
                        task_run=f"inline-{assignment.trial}-{assignment.attempt}",
                        carry_on=lambda: False,
                    ).ended
                    if ended.message.startswith("KeyboardInterrupt"):
                        inline.call("close", "interrupted", "interrupted by the user")
                if found.finished is not None:
                    return
                if found.superseded:
                    raise UserError(f"another process has taken {name} over")
                if take_stop_requests(prepared.store):
                    inline.call("close", "stopped", "by `regrow stop`")
    finally:
        _given.pop()
        inline.close()
