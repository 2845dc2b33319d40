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

from regrow.tasks import capture, output
from regrow.tasks.attempt import Finished, run_attempt
from regrow.tasks.logs import captured_logs
from regrow.tasks.messages import Assignment, Desk, Host, Job, Records
from regrow.tasks.names import task_name, task_tags
from regrow.tasks.ports import Store

SHORT_SECONDS = 0.05
"""A trial shorter than this makes room for another in its task run: the Prefect server spends 60 ms of CPU on each run."""
FENCED_EXIT = 75
"""Exit code of a worker whose attempt lost its lease (EX_TEMPFAIL)."""
OUTPUT_SECONDS = 3.0
"""How long the end of a task run waits until what was printed is in the store."""
CARRY_SECONDS = 15.0
"""A task run takes no further trial after so long, so that it is seen to end."""


@task(name="trial", log_prints=False, persist_result=False, cache_policy=NO_CACHE)
def run_trial(
    job: Job, assignment: Assignment, desk: Desk, store: Store, host: Host, records: Records | None = None
) -> State[object]:
    """Runs the assignment, and others after it while they are short; the state tells what became of them."""
    context = TaskRunContext.get()
    if context is None:
        raise RuntimeError("run_trial is a Prefect task; it cannot run outside of a task run")
    log, started = get_run_logger(), time.monotonic()
    done: list[Finished] = []
    with captured_logs() as say, capture.CAPTURE.on():
        while True:
            begun = time.monotonic()
            if assignment.story:
                log.info("trial %d, attempt %d: %s", assignment.trial, assignment.attempt, assignment.story)

            def carry_on(begun: float = begun) -> bool:
                now = time.monotonic()
                return now - begun < SHORT_SECONDS and now - started < CARRY_SECONDS

            with capture.kept_output(store, assignment.trial, assignment.attempt, say):
                finished = run_attempt(
                    job, assignment, desk, store, host=host, task_run=str(context.task_run.id), carry_on=carry_on,
                    records=records,
                )
            ended = finished.ended
            done.append(finished)
            if ended.trace:
                log.error("trial %d failed\n%s", ended.trial, ended.trace)
            if finished.order.reason == "fenced":
                # Another attempt runs, or has run, as this same task run: no state of this one must be told to Prefect.
                output.KEEPER.finish(OUTPUT_SECONDS)
                os._exit(FENCED_EXIT)
            if finished.order.next is None:
                break
            log.info("%s", _line(finished))
            assignment = finished.order.next
            # Later events of the task run carry its name and tags, so the server shows the new ones.
            context.task_run.tags += task_tags(assignment.trial, assignment.attempt)[:1]
    output.KEEPER.finish(OUTPUT_SECONDS)
    if len(done) > 1:
        context.task_run.name = f"{task_name(done[0].ended.trial)} and {len(done) - 1} more"
    return _state(done)


def _line(finished: Finished) -> str:
    """What became of an attempt, and how it began: its task run shows nothing else of that."""
    ended = finished.ended
    why = f": {ended.message}" if ended.message else ""
    attempt = f"attempt {ended.attempt}" if ended.attempt > 1 else ""
    start = f"from the checkpoint of step {finished.restored}" if finished.restored else ""
    how = f" ({', '.join(filter(None, (attempt, start)))})" if attempt or start else ""
    return f"trial {ended.trial} {ended.outcome} at step {ended.step}{how}{why}"


def _state(done: list[Finished]) -> State[object]:
    if len(done) > 1:
        failed = [f for f in done if f.ended.outcome == "failed"]
        if failed:
            return Failed(message=f"{len(failed)} of {len(done)} trials failed; {_line(failed[0])}")
        return Completed(message=f"{len(done)} short trials: {sum(f.ended.outcome == 'done' for f in done)} done")
    told = _line(done[0])
    match done[0].ended.outcome:
        case "failed":
            return Failed(message=told)
        case "paused":
            return Cancelled(name="Paused", message=told)
        case "preempted":
            return Cancelled(name="Preempted", message=told)
        case "stopped":
            return Completed(name="Stopped", message=told)
        case _:
            return Completed(message=told)
