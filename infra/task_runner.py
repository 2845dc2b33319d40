"""The Prefect task runner that carries trials to Ray workers. What else is told to Prefect about them is in `task_runs`.

Only plumbing lives here: which trial runs when and with what is the flow's business.
"""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID, uuid4

import ray
from prefect.client.schemas.objects import State, StateDetails, TaskRun
from prefect.context import (
    FlowRunContext,
    SyncClientContext,
    hydrated_context,
    serialize_context,
)
from prefect.events.clients import PrefectEventsClient
from prefect.events.worker import EventsWorker, emit_events_to_cloud
from prefect.flows import Flow
from prefect.states import Pending
from prefect.task_engine import run_task_async, run_task_sync
from prefect.task_runners import TaskRunner
from prefect.tasks import Task
from prefect.utilities.engine import emit_task_run_state_change_event
from prefect_ray.task_runners import RayTaskRunner
from ray import cloudpickle

from regrow.infra.nodes import MARKET_LABEL
from regrow.infra.task_runs import flush_events
from regrow.tasks.logs import LogShipper

if TYPE_CHECKING:
    from typing import Self

PATIENCE_SECONDS = 600
"""How long a worker keeps what it has to tell a server that is away; one try a second."""
SPOT = "spot"
"""The tag of a task run whose last attempt ran on a spot machine."""


class TrialTaskRunner(RayTaskRunner[Any]):  # type: ignore[misc]  # prefect-ray has no types
    """Runs Prefect tasks on the Ray cluster that this process is connected to already (`cluster.connect`).

    `submit` and `map` are prefect-ray's own. `submit_run` is for many short runs of one task: prefect-ray
    exports its remote function and hydrates the Prefect context anew for each (75 ms), this one once for each
    worker (7 ms).
    """

    def __init__(self) -> None:
        super().__init__()
        self._context = b""
        self._context_id = ""
        self._tasks: dict[int, tuple[Task[Any, Any], bytes]] = {}

    def duplicate(self) -> Self:
        """Another runner like this one, not started."""
        return type(self)()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    __hash__ = object.__hash__

    def __enter__(self) -> Self:
        # The flow itself joins the cluster, in its body: one that Prefect starts has nobody to do it before.
        if ray.is_initialized():
            return cast("Self", super().__enter__())
        return TaskRunner.__enter__(self)

    def __exit__(self, *exc_info: object) -> None:
        if ray.is_initialized():
            super().__exit__(*exc_info)
        else:
            TaskRunner.__exit__(self, *exc_info)

    def submit_run(
        self,
        task: Task[..., Any],
        parameters: Mapping[str, Any],
        *,
        task_run_id: UUID,
        name: str,
        tags: Sequence[str] = (),
        message: str = "",
        previous: TaskRun | None = None,
        options: Mapping[str, Any],
    ) -> ray.ObjectRef[Any]:
        """Run `task` once on Ray as the task run `task_run_id` of the present flow run, shown under `name`.

        The reference resolves to what the task returned, or to its final State without data if it returned a
        state or raised. A worker's death surfaces as Ray's exception from ray.get. `previous` is the task run
        as `task_runs.await_retry` read it back: the run goes on, with its name, its tags and its count of attempts.
        `tags` are for people: no concurrency limit is asked for them. The worker adds its node's. `message` is
        that of the first state. `options` are Ray's (num_cpus, num_gpus, memory, resources,
        runtime_env, scheduling_strategy); Ray itself never retries.
        """
        if not self._started:
            raise RuntimeError("The task runner must be started before submitting work.")
        if not ray.is_initialized():
            raise RuntimeError("connect to a Ray cluster before submitting work: regrow.infra.cluster.connect(...)")
        flow_run = FlowRunContext.get()
        flow_run_id = flow_run.flow_run.id if flow_run and flow_run.flow_run else None
        context, context_id = self._shared_context(str(flow_run_id))
        run = _Run(id=task_run_id, flow_run_id=flow_run_id, name=name, tags=tuple(tags), message=message, previous=previous)
        remote = _run_remotely.options(**{**options, "name": name, "max_retries": 0})
        return remote.remote(context_id, context, self._shared_task(task), run, dict(parameters))

    # Both travel inside the message, pickled once (some 10 KB). As objects of Ray's store they would be copied to nodes, and
    # Ray asks the node that has a task's arguments to place it: after a partition that is the node which was cut off, and
    # the retry of the very trial that was lost there would wait until Ray notices (65 s).

    def _shared_context(self, flow_run_id: str) -> tuple[bytes, str]:
        if not self._context or not self._context_id.startswith(flow_run_id):
            self._context = cloudpickle.dumps(_lean_context())  # type: ignore[no-untyped-call]
            self._context_id = f"{flow_run_id}/{uuid4()}"
        return self._context, self._context_id

    def _shared_task(self, task: Task[..., Any]) -> bytes:
        if id(task) not in self._tasks:
            self._tasks[id(task)] = (task, cloudpickle.dumps(task))  # type: ignore[no-untyped-call]  # kept: its id stays its own
        return self._tasks[id(task)][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """The task run to carry out."""

    id: UUID
    flow_run_id: UUID | None
    name: str
    tags: tuple[str, ...]
    message: str
    previous: TaskRun | None

    def pending(self, task: Task[..., Any]) -> TaskRun:
        """The task run as it begins. Made in the worker: all timestamps of an attempt come from one clock."""
        details = StateDetails(task_run_id=self.id, flow_run_id=self.flow_run_id)
        state: State[Any] = Pending(message=self.message or None, state_details=details)
        return TaskRun(
            id=self.id,
            name=self.name,
            flow_run_id=self.flow_run_id,
            task_key=task.task_key,
            dynamic_key=str(self.id),
            task_version=task.version,
            state_id=state.id,
            state_type=state.type,
            state_name=state.name,
            state=state,
        )


class _Labels(list[str]):
    """Tags that are shown and can be searched for. Whoever iterates finds none: Prefect's engine would ask the server for a
    concurrency limit of each before the run, which takes 4 ms, and the run fails while the server is away.
    """

    def __iter__(self) -> Iterator[str]:
        return iter(())


def _here() -> list[str]:
    """Tags of this node: its name, and whether it is a spot machine."""
    labels: dict[str, Any] = ray.get_runtime_context().get_node_labels()
    return [f"node:{platform.node()}", *([SPOT] if labels.get(MARKET_LABEL) == "spot" else [])]


class _WorkerContext:
    """The Prefect context of a flow run, hydrated once for all the task runs of this worker process.

    Settings are parsed (80 ms) and TLS contexts built (55 ms) whenever it is hydrated.
    """

    current: _WorkerContext | None = None

    def __init__(self, context_id: str, serialized: dict[str, Any]) -> None:
        self.id = context_id
        self._stack = ExitStack()
        self._context: Context = copy_context()
        self._context.run(self._enter, serialized)

    def _enter(self, serialized: dict[str, Any]) -> None:
        self._stack.enter_context(hydrated_context(serialized))
        self._stack.enter_context(SyncClientContext.get_or_create())
        client = SyncClientContext.get()
        assert client is not None
        _be_patient()
        self.shipper = LogShipper(client.client)
        _log_as_a_run()

    def run(self, function: Callable[[], Any]) -> Any:
        """Call `function` within the context; what it changes in it is undone."""
        return self._context.copy().run(function)

    def close(self) -> None:
        self.shipper.close()
        self._context.run(self._stack.close)

    @classmethod
    def of(cls, context_id: str, context: bytes) -> _WorkerContext:
        if cls.current is None or cls.current.id != context_id:
            if cls.current is not None:
                cls.current.close()
            cls.current = cls(context_id, cloudpickle.loads(context))
        return cls.current


def _lean_context() -> dict[str, Any]:
    """The present Prefect context without the flow's function and parameters.

    A task run needs neither; the function may hold what can't be pickled, and the parameters may be large.
    """
    context = serialize_context()
    if flow_run := context["flow_run_context"]:
        flow_run["flow"] = Flow(_no_flow, name=flow_run["flow"].name, task_runner=TrialTaskRunner())
        flow_run["parameters"] = {}
    if settings := context["settings_context"].get("settings"):
        # Without it a new worker fails at once while the server is away; what it emits waits for its return.
        settings.setdefault("client", {})["server_version_check_enabled"] = False
    return context


def _no_flow() -> None:
    """Stands for the flow's function in a worker."""


def _be_patient() -> None:
    """Have what this process emits wait for a server that is away: Prefect gives up, and drops it, after 10 s."""
    if not emit_events_to_cloud():  # a client of another kind, for a server that is not away
        EventsWorker.set_client_override(PrefectEventsClient, reconnection_attempts=PATIENCE_SECONDS)


def _log_as_a_run() -> None:
    """Let through what a run logs, whatever the level of Prefect's own logs, without the engine's small talk.

    "Finished in state Completed()" would cost a request after each run, and its state tells the same.
    """
    logger = logging.getLogger("prefect.task_runs")
    logger.setLevel(min(logger.getEffectiveLevel(), logging.INFO))
    if _not_small_talk not in logger.filters:
        logger.addFilter(_not_small_talk)


def _not_small_talk(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING or record.module != "task_engine"


def _tags(task_run: TaskRun, new: set[str]) -> list[str]:
    """Those that a task run has, but for those of the same kind ("node:...") as a new one, and the new ones."""
    kinds = {tag.partition(":")[0] for tag in new}
    return sorted({*new, *(tag for tag in task_run.tags if tag != SPOT and tag.partition(":")[0] not in kinds)})


@ray.remote(max_retries=0)
def _run_remotely(
    context_id: str,
    context: bytes,
    task: bytes,
    run: _Run,
    parameters: dict[str, Any],
) -> Any:
    worker = _WorkerContext.of(context_id, context)
    try:
        return worker.run(lambda: _carry_out(_unpickled(task), run, parameters))
    finally:
        # Ray kills idle workers without notice: what was said about this run must have left the process
        # before.
        flush_events()
        worker.shipper.deliver()


@lru_cache(maxsize=4)
def _unpickled(task: bytes) -> Task[..., Any]:
    return cast("Task[..., Any]", cloudpickle.loads(task))


def _carry_out(task: Task[..., Any], run: _Run, parameters: dict[str, Any]) -> Any:
    task_run = run.previous or run.pending(task)
    task_run.tags = _Labels(_tags(task_run, {*task.tags, *run.tags, *_here()}))
    if run.previous is None:
        emit_task_run_state_change_event(task_run, initial_state=None, validated_state=cast("State[Any]", task_run.state))
    arguments: dict[str, Any] = {
        "task": task,
        "task_run": task_run,
        "parameters": parameters,
        "return_type": "state",
    }
    finished = asyncio.run(run_task_async(**arguments)) if task.isasync else run_task_sync(**arguments)
    state = cast("State[Any]", finished)
    if state.is_completed() and state.name == "Completed" and state.message is None:  # made of a plain value
        return getattr(state.data, "result", state.data)
    return state.model_copy(update={"data": None})
