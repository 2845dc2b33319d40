"""Entry point of a group's worker other than rank 0."""

from __future__ import annotations

import os
from collections.abc import Callable

from regrow.tasks.attempt.run_trial import OUTPUT_SECONDS
from regrow.tasks.group.member import LEFT_EXIT, RankMember, run_member
from regrow.tasks.group.wire import Hello, Wire
from regrow.tasks.output import capture, parts
from regrow.tasks.output.logs import LogRelay
from regrow.tasks.ports.messages import Assignment, Shared, Viewers
from regrow.tasks.process import variables

LEAVE_SECONDS = 2.0
"""Seconds for storing the last of the printed output when rank 0 is gone."""


def run_rank(
    shared: Shared,
    assignment: Assignment,
    rank: int,
    connect: Callable[[], Wire],
    *,
    devices: str,
    viewers: Viewers,
    task_run: str,
) -> None:
    """Run one rank to its end. Its output goes to the trial's log, marked with the rank.

    `connect` connects to rank 0. Raises what `connect` raises. Ends the process if rank 0 is gone.
    """

    def leave() -> None:
        shared.host.end_children()
        parts.KEEPER.leave(LEAVE_SECONDS)
        os._exit(LEFT_EXIT)

    relay = LogRelay(lambda lines: viewers.show(task_run, lines))
    wire = connect()
    wire.send(Hello(rank=rank, place=shared.host.place(), devices=devices))
    member = RankMember(wire, lease=shared.job.spec.lease, leave=leave, gpus=assignment.needs.gpus)
    with (
        capture.CAPTURE.on(),
        capture.kept_output(
            shared.store, assignment.trial, assignment.attempt, relay, mark=f"[rank {rank}] "
        ),
    ):
        run_member(
            shared,
            assignment,
            member=member,
            put=lambda welcome: variables.put(welcome.variables),
        )
    parts.KEEPER.finish(OUTPUT_SECONDS)
    relay.close()
    if left := relay.drain():
        viewers.show(task_run, left)
