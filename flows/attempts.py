"""Running attempts: each trial is a Prefect task run, a coroutine here, and its attempts are Ray's.

Prefect's engine runs the task here. Its body submits an attempt to the executor and awaits it. A
lost attempt raises, and Prefect's own retry runs the body again, which waits for the next attempt.
Whether there is one is decided from the experiment's log.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self
from uuid import UUID

import httpx
from prefect import get_client, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, StateDetails, TaskRun
from prefect.exceptions import Abort, ObjectNotFound
from prefect.states import AwaitingRetry, Cancelled, Completed, Failed, Pending, Running
from prefect.tasks import Task

from regrow.infra.prefect.private import Labels, emit_state
from regrow.infra.prefect.run_logs import RunLogs
from regrow.infra.prefect.server import answers
from regrow.infra.prefect.task_runner import OffloadTaskRunner
from regrow.search.events import Cause
from regrow.tasks.ports.executor import AttemptLost, ExecutionResult, Executor, Finished
from regrow.tasks.ports.messages import Assignment
from regrow.tasks.trial.names import settings, task_name, task_run_id, task_tags

MOST_RETRIES = 1_000_000
"""Not Prefect's count but the log decides how often a trial is retried (`max_failures`)."""
END_SECONDS = 10.0
"""Seconds that a session waits for attempts that have reported their end and not returned."""


Lost = Callable[[str, int, int, Cause, str], Awaitable[bool]]
"""Tells the coordinator that a task run no longer carries an attempt (trial, number), with cause
and message of the loss in case it had not ended. Returns whether the trial gets another attempt.
"""


class AttemptRepeated(Exception):
    """An attempt ended or was lost, and its trial gets another one: raised for Prefect's engine,
    which retries the task run.
    """


def _is_tried_again(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    return isinstance(state.data, AttemptRepeated)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Submission:
    """An attempt to be submitted."""

    assignment: Assignment
    avoid: Sequence[str]


@dataclass(slots=True, kw_only=True)
class _TrialRun:
    """Task run of a trial. Accessed only in the runner's loop."""

    id: UUID
    orders: deque[_Submission] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when an order was added, and when no more follow."""
    task_run: TaskRun | None = None
    """The task run in Prefect; None until it begins."""
    ended: Future[State[Any]] | None = None
    """End of the engine that runs it; None while none does."""
    attempt: int = 0
    """Number of the running attempt, 0 for none."""
    handle: Any = None
    lost: asyncio.Future[None] | None = None
    """Raises AttemptLost when the attempt is given up."""


class Attempts:
    """Attempts of this session, as task runs of its flow run; abandons what is left at its end."""

    def __init__(
        self,
        *,
        runner: OffloadTaskRunner,
        executor: Executor,
        lost: Lost,
        flow_run_id: UUID,
        experiment_id: str,
        logs: RunLogs,
    ) -> None:
        self._runner, self._executor, self._lost, self._logs = runner, executor, lost, logs
        self._flow_run_id, self._experiment_id = flow_run_id, experiment_id
        self._submitted: set[tuple[int, int]] = set()
        self._runs: dict[int, _TrialRun] = {}
        self._closed = False
        self._aborted = asyncio.Event()
        self._under_way: set[Future[State[Any]]] = set()
        self._lock = threading.Lock()
        self._bug: BaseException | None = None
        self.task = task(
            name="trial",
            retries=MOST_RETRIES,
            retry_condition_fn=_is_tried_again,
            persist_result=False,
            cache_policy=NO_CACHE,
        )(self._body)
        """Prefect task of a trial."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Abandon what has not ended, in its state: another session or driver continues it."""
        self._runner.call(self._abort)
        with self._lock:
            left = set(self._under_way)
        wait(left, timeout=END_SECONDS)

    def submit(self, assignment: Assignment, *, avoid: Sequence[str] = ()) -> None:
        """Submit an attempt once, preferably not to `avoid`; a further one is its run's retry."""
        lease = assignment.trial, assignment.attempt
        if lease not in self._submitted:
            self._submitted.add(lease)
            self._runner.call(
                self._take_submission, _Submission(assignment=assignment, avoid=avoid)
            )

    def forget(self, trial: int, attempt: int) -> None:
        """Stop waiting for an attempt that was given up, and kill it if it can be reached."""
        self._runner.call(self._forget, trial, attempt)

    def kill(self) -> None:
        """Kill all running attempts."""
        self._runner.call(self._kill)

    def check(self) -> None:
        """Raise the error of a task run whose trial would wait forever, if there is one."""
        if self._bug is not None:
            raise self._bug

    def close(self) -> dict[UUID, datetime]:
        """Wait, within bounds, for the end of all task runs, and return the times of their last
        states by ID. Nothing can be submitted afterwards.
        """
        self._runner.call(self._close)
        done = threading.Event()
        self._runner.call(done.set)  # by then, everything submitted has begun
        done.wait(END_SECONDS)
        with self._lock:
            left = set(self._under_way)
        _, hanging = wait(left, timeout=END_SECONDS)
        if hanging:  # for example on nodes that are cut off: the log has the attempts' ends
            self._runner.call(self._give_up)
            wait(hanging, timeout=END_SECONDS)
        return {
            run.id: run.task_run.state.timestamp
            if run.task_run is not None and run.task_run.state is not None
            else datetime.min.replace(tzinfo=UTC)
            for run in list(self._runs.values())
        }

    # ---- in the runner's loop

    def _take_submission(self, order: _Submission) -> None:
        trial = order.assignment.trial
        run = self._runs.setdefault(trial, _TrialRun(id=task_run_id(self._experiment_id, trial)))
        run.orders.append(order)
        run.changed.set()
        if run.ended is None:
            self._start_engine(run, order.assignment)

    def _start_engine(self, run: _TrialRun, assignment: Assignment) -> None:
        """Start Prefect's engine for a trial's task run, from its current state."""
        run.ended = Future()
        with self._lock:
            self._under_way.add(run.ended)
        asyncio.get_running_loop().create_task(self._run_engine(run, assignment))

    async def _run_engine(self, run: _TrialRun, assignment: Assignment) -> None:
        ended = run.ended
        assert ended is not None
        try:
            run.task_run = await self._begin_task_run(run, assignment)
            state = await asyncio.wrap_future(
                self._runner.run(self.task, {"trial": assignment.trial}, task_run=run.task_run)
            )
            ended.set_result(state)
        except BaseException as error:  # noqa: BLE001 - Abort is no Exception; waiting needs only the time
            ended.set_exception(error)
            if not isinstance(error, Abort | asyncio.CancelledError):
                self._bug = error
        finally:
            run.ended = None
            with self._lock:
                self._under_way.discard(ended)
            if run.orders and not self._closed:  # an order arrived while the engine ended
                self._start_engine(run, run.orders[0].assignment)

    async def _begin_task_run(self, run: _TrialRun, assignment: Assignment) -> TaskRun:
        """Report the state in which the task run begins or continues to the server; return it."""
        task_run = run.task_run
        if task_run is None and assignment.attempt > 1:
            task_run = await self._earlier_task_run(run, assignment)
        if task_run is None:
            details = StateDetails(task_run_id=run.id, flow_run_id=self._flow_run_id)
            state: State[Any] = Pending(message=settings(assignment.config), state_details=details)
            task_run = self._new_task_run(run, assignment)
        else:
            state = AwaitingRetry(message=assignment.explanation)
        _tag(task_run, task_tags(assignment.trial, assignment.attempt))
        _set_state(task_run, state)
        return task_run

    async def _earlier_task_run(self, run: _TrialRun, assignment: Assignment) -> TaskRun | None:
        """Return an earlier session's task run; None: Prefect has none (another trial's)."""
        client = get_client()  # the client of this event loop
        if await asyncio.to_thread(answers, str(client.api_url), 0.0):
            try:
                left = await client.read_task_run(run.id)
            except ObjectNotFound:
                return None
            except httpx.HTTPError:
                pass
            else:
                left.run_count = assignment.attempt - 1  # the server may not have counted the last
                return left
        # The server is unreachable: build what it would have returned.
        left = self._new_task_run(run, assignment)
        left.run_count = assignment.attempt - 1
        return left

    def _new_task_run(self, run: _TrialRun, assignment: Assignment) -> TaskRun:
        return TaskRun(
            id=run.id,
            name=task_name(assignment.trial),
            flow_run_id=self._flow_run_id,
            task_key=self.task.task_key,
            dynamic_key=str(run.id),
            task_version=self.task.version,
        )

    async def _body(self, trial: int) -> State[Any]:
        try:
            return await self._run_attempt(trial)
        except AttemptRepeated:
            raise
        except Exception as error:
            self._bug = error
            raise

    async def _run_attempt(self, trial: int) -> State[Any]:
        """Run one attempt. Raises AttemptRepeated if the trial gets another one."""
        run = self._runs[trial]
        order = await self._until(self._next_submission(run))
        if order is None:
            return Cancelled(name="Paused", message="continues with the experiment")
        lease, name = (trial, order.assignment.attempt), str(run.id)
        assert run.task_run is not None
        _tag(run.task_run, task_tags(*lease))
        if order.assignment.explanation:
            self._logs.say(
                name, f"trial {trial}, attempt {lease[1]}: {order.assignment.explanation}"
            )
            if run.task_run.state_name == "Retrying":  # it has waited for its turn
                _set_state(run.task_run, Running(message=order.assignment.explanation))
        carried: ExecutionResult | None = None
        cause: Cause = "infrastructure"
        message = "its task run ended without telling how"  # used only if nothing else is known
        try:
            carried = await self._until(self._submit_and_await(run, order))
        except AttemptLost as lost:
            cause, message = lost.cause, lost.message
        finally:
            run.attempt, run.handle, run.lost = 0, None, None
        goes_on = await self._until(self._lost(name, *lease, cause, message))
        if carried is None or carried.fenced:
            if goes_on:
                raise AttemptRepeated(message)
            return Failed(message=f"trial {trial}, attempt {lease[1]}: {message}")
        self._show_results(run, carried)
        if (
            goes_on
            and len(carried.finished) == 1
            and carried.finished[0].ended.outcome in ("failed", "preempted")
        ):
            raise AttemptRepeated(_describe_end(carried.finished[0]))
        return _final_task_state(carried.finished)

    async def _next_submission(self, run: _TrialRun) -> _Submission | None:
        """Wait for the next attempt to make; None if there is none in this session."""
        while not run.orders:
            if self._closed:
                return None
            run.changed.clear()
            await run.changed.wait()
        return run.orders.popleft()

    async def _submit_and_await(self, run: _TrialRun, order: _Submission) -> ExecutionResult:
        """Make an attempt. Raises AttemptLost, also if the attempt was given up."""
        run.handle = self._executor.submit(
            order.assignment, task_run=str(run.id), avoid=order.avoid
        )
        run.attempt, run.lost = order.assignment.attempt, asyncio.get_running_loop().create_future()
        outcome: asyncio.Future[ExecutionResult] = asyncio.ensure_future(
            self._executor.outcome(run.handle)
        )
        try:
            await asyncio.wait((outcome, run.lost), return_when=asyncio.FIRST_COMPLETED)
            if outcome.done():
                return outcome.result()
            run.lost.result()
            raise AssertionError("a future that is done and raises nothing")
        finally:
            outcome.cancel()

    def _show_results(self, run: _TrialRun, carried: ExecutionResult) -> None:
        """Show the results of a task run's attempts to people."""
        name, done = str(run.id), carried.finished
        for line in carried.lines:
            self._logs.add(name, line)
        assert run.task_run is not None
        for finished in done:
            ended = finished.ended
            if ended.trace:
                self._logs.say(
                    name, f"trial {ended.trial} failed\n{ended.trace}", level=logging.ERROR
                )
            if len(done) > 1:
                self._logs.say(name, _describe_end(finished))
                run.task_run.tags = Labels(
                    [*list.copy(run.task_run.tags), *task_tags(ended.trial, ended.attempt)[:1]]
                )
        if len(done) > 1:
            run.task_run.name = f"{task_name(done[0].ended.trial)} and {len(done) - 1} more"
        _tag(run.task_run, carried.labels)

    async def _until(self, awaitable: Awaitable[Any]) -> Any:
        """Return the result, or raise Abort, after which the engine is silent, at the end."""
        result: asyncio.Future[Any] = asyncio.ensure_future(awaitable)
        aborted: asyncio.Future[Any] = asyncio.ensure_future(self._aborted.wait())
        try:
            await asyncio.wait({result, aborted}, return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                raise Abort("the session is over")
            return result.result()
        finally:
            result.cancel()
            aborted.cancel()

    def _abort(self) -> None:
        self._closed = True
        self._aborted.set()

    def _close(self) -> None:
        self._closed = True
        for run in self._runs.values():
            run.changed.set()

    def _forget(self, trial: int, attempt: int) -> None:
        if (run := self._runs.get(trial)) is None:
            return
        if run.attempt == attempt:
            self._lose(run, "it was given up")
        for order in [order for order in run.orders if order.assignment.attempt == attempt]:
            # The previous attempt has not returned, so this one was not submitted and is dropped.
            run.orders.remove(order)

    def _kill(self) -> None:
        for run in self._runs.values():
            if run.attempt:
                self._executor.cancel(run.handle)

    def _give_up(self) -> None:
        for run in self._runs.values():
            if run.attempt:
                self._lose(run, "it did not end with the experiment")

    def _lose(self, run: _TrialRun, why: str) -> None:
        self._executor.cancel(run.handle)
        if run.lost is not None and not run.lost.done():
            run.lost.set_exception(AttemptLost("preempted", why))


def _set_state(task_run: TaskRun, state: State[Any]) -> None:
    """Set the state of a task run, and report it to the server."""
    before = task_run.state
    task_run.state, task_run.state_id = state, state.id
    task_run.state_type, task_run.state_name = state.type, state.name
    emit_state(task_run, before)


def _tag(task_run: TaskRun, new: Sequence[str]) -> None:
    """Add tags in place of present ones of their kinds ("node:..." is a kind)."""
    kinds = {tag.partition(":")[0] for tag in new}
    present = list.copy(task_run.tags)
    kept = [tag for tag in present if tag.partition(":")[0] not in kinds and tag != "spot"]
    task_run.tags = Labels(sorted({*new, *kept}))


def _describe_end(finished: Finished) -> str:
    """Describe an attempt's outcome, and where it began: its task run shows that nowhere else."""
    ended = finished.ended
    why = f": {ended.message}" if ended.message else ""
    attempt = f"attempt {ended.attempt}" if ended.attempt > 1 else ""
    start = f"from the checkpoint of step {finished.restored}" if finished.restored else ""
    how = f" ({', '.join(filter(None, (attempt, start)))})" if attempt or start else ""
    return f"trial {ended.trial} {ended.outcome} at step {ended.step}{how}{why}"


def _final_task_state(done: Sequence[Finished]) -> State[object]:
    if len(done) > 1:
        failed = [f for f in done if f.ended.outcome == "failed"]
        if failed:
            return Failed(
                message=f"{len(failed)} of {len(done)} trials failed; {_describe_end(failed[0])}"
            )
        return Completed(
            message=f"{len(done)} short trials: {sum(f.ended.outcome == 'done' for f in done)} done"
        )
    return ended_as(done[0].ended.outcome, _describe_end(done[0]))


def ended_as(outcome: str, message: str) -> State[Any]:
    """Return the state in which a task run ends, by an attempt's outcome or its trial's state."""
    match outcome:
        case "failed":
            return Failed(message=message)
        case "paused" | "lost":
            return Cancelled(name="Paused", message=message)
        case "preempted":
            return Cancelled(name="Preempted", message=message)
        case "stopped":
            return Completed(name="Stopped", message=message)
        case _:
            return Completed(message=message)
