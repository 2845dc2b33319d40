"""Entry point of a worker: runs an attempt, and further ones after it if trials are very short."""

from __future__ import annotations

import time

from regrow.tasks.attempt.attempt import run_attempt
from regrow.tasks.output import capture, parts
from regrow.tasks.output.logs import LogRelay
from regrow.tasks.ports.executor import ExecutionResult, Finished
from regrow.tasks.ports.messages import Assignment, Shared, Viewers
from regrow.tasks.ports.ranks import GroupBroken, RankGroup
from regrow.tasks.process.restored import CHANGED

SHORT_SECONDS = 0.05
"""A trial shorter than this is followed by another: a run costs the Prefect server 60 ms of CPU."""
OUTPUT_SECONDS = 3.0
"""Seconds that a task run waits at its end until the printed output is in the store."""
CARRY_SECONDS = 15.0
"""A task run takes no further trial after this many seconds, so that people see it end."""


def run_trial(
    shared: Shared,
    assignment: Assignment,
    *,
    viewers: Viewers,
    task_run: str,
    group: RankGroup | None = None,
) -> ExecutionResult:
    """Run the assignment as part of a task run, and others after it while they are short; return
    their outcomes.

    As rank 0 of a `group`, runs this one alone. Raises GroupBroken as `run_attempt` does.

    Output is shown to people during the run; the last of it is in the result.
    """
    started = time.monotonic()
    done: list[Finished] = []
    relay = LogRelay(lambda lines: viewers.show(task_run, lines))
    with capture.CAPTURE.on():
        while True:
            begun = time.monotonic()

            def carry_on(begun: float = begun) -> bool:
                now = time.monotonic()
                short = now - begun < SHORT_SECONDS and now - started < CARRY_SECONDS
                return group is None and short and not CHANGED.is_set()

            try:
                with capture.kept_output(shared.store, assignment.trial, assignment.attempt, relay):
                    finished = run_attempt(
                        shared,
                        assignment,
                        task_run=task_run,
                        carry_on=carry_on,
                        group=group,
                    )
            except GroupBroken:
                parts.KEEPER.finish(OUTPUT_SECONDS)
                raise
            done.append(finished)
            if finished.reply.next is None:
                break
            assignment = finished.reply.next
    parts.KEEPER.finish(OUTPUT_SECONDS)
    relay.close()
    return ExecutionResult(finished=tuple(done), lines=tuple(relay.drain()))
