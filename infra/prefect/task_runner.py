"""A Prefect task runner for Ray: Prefect's engine runs here, in one event loop, and only the body of a task is sent to Ray.

    @task(retries=3)
    def square(x: int) -> int: ...

    @flow(task_runner=OffloadTaskRunner())
    def squares() -> list[int]:
        with remote_options(num_cpus=2):
            return square.map([1, 2, 3]).result()

A worker that dies raises in the engine, which lives on: Prefect's own `retries`, `retry_condition_fn`, hooks and states work,
and no worker needs Prefect, the address of its server or a key. A task that is a coroutine function runs in the loop itself, and
awaits what it sends to Ray. Thousands of task runs under way are coroutines, not threads.
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

from regrow.infra.prefect.private import events_kept, no_small_talk, run_task_async

if TYPE_CHECKING:
    from typing import Self

LEAVE_SECONDS = 10.0
"""How long the end of a flow waits for task runs that it did not wait for itself; they are told as crashed."""

_OPTIONS: ContextVar[Mapping[str, Any]] = ContextVar("_OPTIONS", default={})  # noqa: B039 - never changed in place


@contextmanager
def remote_options(**options: Any) -> Iterator[None]:
    """Bodies of tasks that are submitted within the block are sent to Ray with these options.

    They are those of `ray.remote`: num_cpus, num_gpus, memory, resources, label_selector, scheduling_strategy, runtime_env.
    """
    token = _OPTIONS.set({**_OPTIONS.get(), **options})
    try:
        yield
    finally:
        _OPTIONS.reset(token)


class OffloadTaskRunner(TaskRunner[PrefectConcurrentFuture[Any]]):
    """Prefect's engine here, the bodies of tasks on the Ray cluster that this process is connected to when they are submitted."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Prefect's
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._entered = False
        self._base: Context | None = None
        """The context of the loop's own coroutine: the client that all engines share."""
        self._leaving: asyncio.Event | None = None
        self.under_way: set[asyncio.Task[Any]] = set()
        """The task runs that have not ended yet. To look at, from any thread."""
        self._remote: dict[int, tuple[Task[..., Any], Any]] = {}
        """Ray's form of each task's function, by the task's id; kept with the task, whose id so stays its own."""

    def duplicate(self) -> Self:
        """Another runner like this one, not started."""
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
        """See TaskRunner: `task.submit(...)` and `task.map(...)` within a flow come here."""
        run_id = uuid4()
        ended = self.run(task, parameters, task_run_id=run_id, wait_for=wait_for, dependencies=dependencies)
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
        """Runs a task and resolves to its final state. `task_run` is one that exists already, in the state that it is to go on
        from; its state, count of runs and times are kept up to date in place.
        """
        if not self._entered:
            raise RuntimeError("The task runner must be started before submitting work.")
        loop = self._running()
        engine = functools.partial(
            run_task_async, task=task if task.isasync else self._offloaded(task), task_run=task_run, task_run_id=task_run_id,
            parameters=parameters, wait_for=wait_for, return_type="state", dependencies=dependencies,
        )
        ended: Future[State[Any]] = Future()
        ended.set_running_or_notify_cancel()
        context = self._with_client(copy_context())
        loop.call_soon_threadsafe(self._begin, context, engine, _futures_in((parameters, wait_for)), ended)
        return ended

    def call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Calls a function in the loop's thread, soon, in the caller's context; `get_client()` is the loop's client there."""
        loop = self._running()
        loop.call_soon_threadsafe(functools.partial(function, *arguments), context=self._with_client(copy_context()))

    def _offloaded(self, task: Task[..., Any]) -> Task[..., Any]:
        """The same task, whose body is sent to Ray and awaited. Prefect retries it; Ray itself never does."""
        if id(task) not in self._remote:
            self._remote[id(task)] = task, ray.remote(max_retries=0)(task.fn)
        remote = self._remote[id(task)][1].options(name=task.name, **_OPTIONS.get())

        @functools.wraps(task.fn)
        async def body(*args: Any, **kwargs: Any) -> Any:
            try:
                return await remote.remote(*args, **kwargs)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from error  # the task's own exception; Ray's tells where it came from

        there = copy.copy(task)
        there.fn, there.isasync = body, True
        return there

    # ---- the loop --------------------------------------------------------------------------------------------------

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            started: Future[asyncio.AbstractEventLoop] = Future()
            context = copy_context()
            run = functools.partial(context.run, asyncio.run, self._live(started))
            self._thread = threading.Thread(target=run, name="regrow-task-runs", daemon=True)
            no_small_talk()
            self._thread.start()
            self._loop = started.result()
        return self._loop

    async def _live(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        try:
            # A server that is away for a moment is no reason to refuse work; the flow has asked for its version already.
            with events_kept(), temporary_settings({PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED: False}):
                async with AsyncClientContext.get_or_create():
                    self._base, self._leaving = copy_context(), asyncio.Event()
                    started.set_result(asyncio.get_running_loop())
                    await self._leaving.wait()
                    await self._end_all()
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
            raise

    async def _end_all(self) -> None:
        if left := set(self.under_way):
            for one in left:
                one.cancel()
            await asyncio.wait(left, timeout=LEAVE_SECONDS)

    def _with_client(self, context: Context) -> Context:
        """The caller's context with the client of the loop: each engine would open one of its own, which takes 55 ms."""
        for variable, value in (self._base or {}).items():
            if isinstance(value, AsyncClientContext):
                context.run(variable.set, value)
        return context

    def _begin(
        self, context: Context, engine: Callable[[], Coroutine[Any, Any, Any]], needed: list[PrefectFuture[Any]],
        ended: Future[State[Any]],
    ) -> None:
        async def carried() -> None:
            try:
                for future in needed:  # the engine would block the loop, on which they may depend
                    await _awaited(future)
                ended.set_result(cast("State[Any]", await engine()))
            except BaseException as error:  # noqa: BLE001 - it is the caller's, who waits in another thread
                ended.set_exception(error)

        running = asyncio.get_running_loop().create_task(carried(), context=context)
        self.under_way.add(running)
        running.add_done_callback(self.under_way.discard)


def _futures_in(values: Any) -> list[PrefectFuture[Any]]:
    found: list[PrefectFuture[Any]] = []

    def look(value: Any) -> Any:
        if isinstance(value, PrefectFuture):
            found.append(value)
        return value

    visit_collection(values, visit_fn=look, return_data=False, remove_annotations=True)
    return found


async def _awaited(future: PrefectFuture[Any]) -> None:
    """Waits for the end of a task run, however it ends."""
    if isinstance(future, PrefectConcurrentFuture):
        await asyncio.wait([asyncio.wrap_future(future.wrapped_future)])
    else:
        await asyncio.to_thread(future.wait)
