"""What a worker is sent that is not its trial's first: one rank, from 1 on, of a group."""

from __future__ import annotations

import os
from collections.abc import Callable

from regrow.tasks import capture, output, variables
from regrow.tasks.group.member import LEFT_EXIT, Member, run_member
from regrow.tasks.group.wire import Hello, Wire
from regrow.tasks.logs import LogRelay
from regrow.tasks.messages import Assignment, Host, Job, Records, Viewers
from regrow.tasks.ports import Store
from regrow.tasks.run_trial import OUTPUT_SECONDS

LEAVE_SECONDS = 2.0
"""How long the last of what it printed may take to be kept, where rank 0 is gone."""


def run_rank(
    job: Job, assignment: Assignment, rank: int, connect: Callable[[], Wire], store: Store, host: Host, *, lease: float,
    devices: str, viewers: Viewers, task_run: str, records: Records | None = None,
) -> None:
    """Runs one rank to its end. What it prints goes to its trial's log, marked. `connect`: comes in at rank 0's door.

    Raises what `connect` does. Ends the process where rank 0 is gone.
    """

    def leave() -> None:
        host.end_children()
        output.KEEPER.leave(LEAVE_SECONDS)
        os._exit(LEFT_EXIT)

    relay = LogRelay(lambda lines: viewers.show(task_run, lines))
    wire = connect()
    wire.send(Hello(rank=rank, place=host.place(), devices=devices))
    member = Member(wire, lease=lease, leave=leave)
    with capture.CAPTURE.on(), capture.kept_output(store, assignment.trial, assignment.attempt, relay, mark=f"[rank {rank}] "):
        run_member(
            job, assignment, store, member=member, host=host, put=lambda welcome: variables.put(welcome.variables),
            records=records,
        )
    output.KEEPER.finish(OUTPUT_SECONDS)
    relay.close()
    if left := relay.take():
        viewers.show(task_run, left)
