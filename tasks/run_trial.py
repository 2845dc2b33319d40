"""What a worker is sent: an attempt of a trial, and further ones after it where trials are very short."""

from __future__ import annotations

import time

from regrow.tasks import capture, output
from regrow.tasks.attempt import Finished, run_attempt
from regrow.tasks.executor import Carried
from regrow.tasks.logs import LogRelay
from regrow.tasks.messages import Assignment, CoordinatorClient, Host, Job, Records, Viewers
from regrow.tasks.ports import Store
from regrow.tasks.ranks import Group, GroupBroken
from regrow.tasks.trainable import Frameworks

SHORT_SECONDS = 0.05
"""A trial shorter than this makes room for another in its task run: the Prefect server spends 60 ms of CPU on each run."""
OUTPUT_SECONDS = 3.0
"""How long the end of a task run waits until what was printed is in the store."""
CARRY_SECONDS = 15.0
"""A task run takes no further trial after so long, so that it is seen to end."""


def run_trial(
    job: Job, assignment: Assignment, coordinator: CoordinatorClient, store: Store, host: Host, records: Records | None = None,
    *, viewers: Viewers, task_run: str, group: Group | None = None, frameworks: Frameworks | None = None,
) -> Carried:
    """Runs the assignment as part of a task run, and others after it while they are short; what became of them.

    As rank 0 of a `group` it runs this one alone. Raises GroupBroken as `run_attempt` does.

    What they print is shown to people while they run; the last of it comes with the result.
    """
    started = time.monotonic()
    done: list[Finished] = []
    relay = LogRelay(lambda lines: viewers.show(task_run, lines))
    with capture.CAPTURE.on():
        while True:
            begun = time.monotonic()

            def carry_on(begun: float = begun) -> bool:
                now = time.monotonic()
                return group is None and now - begun < SHORT_SECONDS and now - started < CARRY_SECONDS

            try:
                with capture.kept_output(store, assignment.trial, assignment.attempt, relay):
                    finished = run_attempt(
                        job, assignment, coordinator, store, host=host, task_run=task_run, carry_on=carry_on, records=records,
                        group=group, frameworks=frameworks,
                    )
            except GroupBroken:
                output.KEEPER.finish(OUTPUT_SECONDS)
                raise
            done.append(finished)
            if finished.reply.next is None:
                break
            assignment = finished.reply.next
    output.KEEPER.finish(OUTPUT_SECONDS)
    relay.close()
    return Carried(finished=tuple(done), lines=tuple(relay.take()))
