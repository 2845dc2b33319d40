"""A Prefect task runner for Ray: Prefect's engine runs in this process, in one event loop, and only
the bodies of tasks are sent to Ray.

    @task(retries=3)
    def square(x: int) -> int: ...

    @flow(task_runner=OffloadTaskRunner())
    def squares() -> list[int]:
        with remote_options(num_cpus=2):
            return square.map([1, 2, 3]).result()

A worker that dies raises an error in the engine, which survives: Prefect's `retries`,
`retry_condition_fn`, hooks and states work, and no worker needs Prefect, its server's address or a
key. A task that is a coroutine function runs in the loop itself, and awaits what it sends to Ray.
Thousands of running task runs are coroutines, not threads.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID, uuid4

import ray
from prefect.client.schemas.objects import RunInput, State, TaskRun
from prefect.context import AsyncClientContext
from prefect.futures import PrefectConcurrentFuture, PrefectFuture
from prefect.settings import PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED, temporary_settings
from prefect.task_runners import TaskRunner
from prefect.tasks import Task
from prefect.utilities.collections import visit_collection

from regrow.infra.prefect.private import events_kept, run_task_async, silence_task_engine
from regrow.tasks.process import background

if TYPE_CHECKING:
    from typing import Self

LEAVE_SECONDS = 10.0
"""Seconds that the end of a flow waits for task runs; then they count as crashed."""

_OPTIONS: ContextVar[Mapping[str, Any]] = ContextVar("_OPTIONS", default={})  # noqa: B039 - never modified in place


@contextmanager
def remote_options(**options: Any) -> Iterator[None]:
    """Send the bodies of tasks submitted within the block to Ray with these options.

    The options are those of `ray.remote`: num_cpus, num_gpus, memory, resources, label_selector,
    scheduling_strategy, runtime_env.
    """
    token = _OPTIONS.set({**_OPTIONS.get(), **options})
    try:
        yield
    finally:
        _OPTIONS.reset(token)


class OffloadTaskRunner(TaskRunner[PrefectConcurrentFuture[Any]]):
    """Runs Prefect's engine in this process, and the bodies of tasks on the Ray cluster that it is
    connected to when they are submitted.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Prefect's
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._entered = False
        self._base: Context | None = None
        """Context of the loop's own coroutine, with the client that all engines share."""
        self._leaving: asyncio.Event | None = None
        self.under_way: set[asyncio.Task[Any]] = set()
        """The task runs that have not ended yet. May be read from any thread."""
        self._remote: dict[int, tuple[Task[..., Any], Any]] = {}
        """Ray's form of each task's function, by `id(task)`, and the task, whose id it is."""

    def duplicate(self) -> Self:
        """Return another runner like this one, not started."""
        return type(self)()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    __hash__ = object.__hash__

    def __enter__(self) -> Self:
        super().__enter__()
        self._entered = True
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._entered = False
        if self._thread is not None and self._loop is not None and self._leaving is not None:
            self._loop.call_soon_threadsafe(self._leaving.set)
            self._thread.join(LEAVE_SECONDS + 1.0)
            self._loop = self._thread = self._base = None
        super().__exit__(*exc_info)

    def submit(
        self,
        task: Task[..., Any],
        parameters: dict[str, Any],
        wait_for: Iterable[PrefectFuture[Any]] | None = None,
        dependencies: dict[str, set[RunInput]] | None = None,
    ) -> PrefectConcurrentFuture[Any]:
        """See TaskRunner. `task.submit(...)` and `task.map(...)` within a flow call this."""
        run_id = uuid4()
        ended = self.run(
            task, parameters, task_run_id=run_id, wait_for=wait_for, dependencies=dependencies
        )
        return PrefectConcurrentFuture(task_run_id=run_id, wrapped_future=ended)

    def run(
        self,
        task: Task[..., Any],
        parameters: dict[str, Any],
        *,
        task_run: TaskRun | None = None,
        task_run_id: UUID | None = None,
        wait_for: Iterable[PrefectFuture[Any]] | None = None,
        dependencies: dict[str, set[RunInput]] | None = None,
    ) -> Future[State[Any]]:
        """Run a task. Returns a future of its final state.

        `task_run`: an existing task run, in the state to continue from; its state, count of runs
        and times are updated in place. None: a new one.
        """
        if not self._entered:
            raise RuntimeError("The task runner must be started before submitting work.")
        loop = self._running()
        engine = functools.partial(
            run_task_async,
            task=task if task.isasync else self._offloaded(task),
            task_run=task_run,
            task_run_id=task_run_id,
            parameters=parameters,
            wait_for=wait_for,
            return_type="state",
            dependencies=dependencies,
        )
        ended: Future[State[Any]] = Future()
        ended.set_running_or_notify_cancel()
        context = self._with_client(copy_context())
        loop.call_soon_threadsafe(
            self._begin, context, engine, _futures_in((parameters, wait_for)), ended
        )
        return ended

    def call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call a function in the loop, in our context but with its client (`get_client()`)."""
        loop = self._running()
        loop.call_soon_threadsafe(
            functools.partial(function, *arguments), context=self._with_client(copy_context())
        )

    def _offloaded(self, task: Task[..., Any]) -> Task[..., Any]:
        """Return a copy of the task whose body awaits Ray. Prefect does the retries, never Ray."""
        if id(task) not in self._remote:
            self._remote[id(task)] = task, ray.remote(max_retries=0)(task.fn)
        remote = self._remote[id(task)][1].options(name=task.name, **_OPTIONS.get())

        @functools.wraps(task.fn)
        async def body(*args: Any, **kwargs: Any) -> Any:
            try:
                return await remote.remote(*args, **kwargs)
            except ray.exceptions.RayTaskError as error:
                # raise the task's own exception; Ray's has the place it came from
                raise error.cause from error

        copied = copy.copy(task)
        copied.fn, copied.isasync = body, True
        return copied

    # ---- the loop

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            started: Future[asyncio.AbstractEventLoop] = Future()
            context = copy_context()
            silence_task_engine()
            self._thread = background.start(
                context.run, asyncio.run, self._live(started), name="task-runs"
            )
            self._loop = started.result()
        return self._loop

    async def _live(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        try:
            # Do not refuse work because the server is briefly unavailable; the flow has already
            # checked its version.
            with (
                events_kept(),
                temporary_settings({PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED: False}),
            ):
                async with AsyncClientContext.get_or_create():
                    self._base, self._leaving = copy_context(), asyncio.Event()
                    started.set_result(asyncio.get_running_loop())
                    await self._leaving.wait()
                    if left := set(self.under_way):
                        for one in left:
                            one.cancel()
                        await asyncio.wait(left, timeout=LEAVE_SECONDS)
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
            raise

    def _with_client(self, context: Context) -> Context:
        """Return the caller's context with the loop's client, as opening one takes 55 ms."""
        for variable, value in (self._base or {}).items():
            if isinstance(value, AsyncClientContext):
                context.run(variable.set, value)
        return context

    def _begin(
        self,
        context: Context,
        engine: Callable[[], Coroutine[Any, Any, Any]],
        needed: list[PrefectFuture[Any]],
        ended: Future[State[Any]],
    ) -> None:
        async def carried() -> None:
            try:
                for future in needed:  # the engine would block the loop on which they may depend
                    if isinstance(future, PrefectConcurrentFuture):
                        await asyncio.wait([asyncio.wrap_future(future.wrapped_future)])
                    else:
                        await asyncio.to_thread(future.wait)
                ended.set_result(cast("State[Any]", await engine()))
            except BaseException as error:  # noqa: BLE001 - passed to the caller, who waits in another thread
                ended.set_exception(error)

        running = asyncio.get_running_loop().create_task(carried(), context=context)
        self.under_way.add(running)
        running.add_done_callback(self.under_way.discard)


def _futures_in(values: Any) -> list[PrefectFuture[Any]]:
    found: list[PrefectFuture[Any]] = []

    def collect(value: Any) -> Any:
        if isinstance(value, PrefectFuture):
            found.append(value)
        return value

    visit_collection(values, visit_fn=collect, return_data=False, remove_annotations=True)
    return found
