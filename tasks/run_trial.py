"""The Prefect task: one task run carries one trial, or several in a row where trials are very short."""

from __future__ import annotations

import os
import time

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.context import TaskRunContext
from prefect.logging import get_run_logger
from prefect.states import Cancelled, Completed, Failed

from regrow.search.events import Ended
from regrow.tasks.attempt import run_attempt
from regrow.tasks.logs import captured_logs
from regrow.tasks.messages import Assignment, Desk, Host, Job
from regrow.tasks.names import task_name
from regrow.tasks.ports import Store

SHORT_SECONDS = 0.05
"""A trial shorter than this makes room for another in its task run: the Prefect server spends 60 ms of CPU on each run."""
FENCED_EXIT = 75
"""Exit code of a worker whose attempt lost its lease (EX_TEMPFAIL)."""
CARRY_SECONDS = 15.0
"""A task run takes no further trial after so long, so that it is seen to end."""


@task(name="trial", log_prints=True, persist_result=False, cache_policy=NO_CACHE)
def run_trial(job: Job, assignment: Assignment, desk: Desk, store: Store, host: Host) -> State[object]:
    """Runs the assignment, and others after it while they are short; the state tells what became of them."""
    context = TaskRunContext.get()
    if context is None:
        raise RuntimeError("run_trial is a Prefect task; it cannot run outside of a task run")
    log, started = get_run_logger(), time.monotonic()
    done: list[Ended] = []
    with captured_logs():
        while True:
            begun = time.monotonic()
            if assignment.story:
                log.info("trial %d, attempt %d: %s", assignment.trial, assignment.attempt, assignment.story)

            def carry_on(begun: float = begun) -> bool:
                now = time.monotonic()
                return now - begun < SHORT_SECONDS and now - started < CARRY_SECONDS

            finished = run_attempt(
                job, assignment, desk, store, host=host, task_run=str(context.task_run.id), carry_on=carry_on,
            )
            ended = finished.ended
            done.append(ended)
            if ended.trace:
                log.error("trial %d failed\n%s", ended.trial, ended.trace)
            if finished.order.reason == "fenced":
                # Another attempt runs, or has run, as this same task run: no state of this one must be told to Prefect.
                os._exit(FENCED_EXIT)
            if finished.order.next is None:
                break
            log.info("%s", _line(ended))
            assignment = finished.order.next
    if len(done) > 1:
        # Later events of the task run carry its name, so the server shows the new one.
        context.task_run.name = f"{task_name(done[0].trial)} and {len(done) - 1} more"
    return _state(done)


def _line(ended: Ended) -> str:
    why = f": {ended.message}" if ended.message else ""
    return f"trial {ended.trial} {ended.outcome} at step {ended.step}{why}"


def _state(done: list[Ended]) -> State[object]:
    if len(done) > 1:
        failed = [e for e in done if e.outcome == "failed"]
        if failed:
            return Failed(message=f"{len(failed)} of {len(done)} trials failed; {_line(failed[0])}")
        return Completed(message=f"{len(done)} short trials: {sum(e.outcome == 'done' for e in done)} done")
    ended = done[0]
    match ended.outcome:
        case "failed":
            return Failed(message=_line(ended))
        case "paused":
            return Cancelled(name="Paused", message=_line(ended))
        case "preempted":
            return Cancelled(name="Preempted", message=_line(ended))
        case "stopped":
            return Completed(name="Stopped", message=_line(ended))
        case _:
            return Completed(message=_line(ended))
