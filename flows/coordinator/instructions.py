"""Instructions of a coordinator to its driver."""

from __future__ import annotations

import msgspec

from regrow.search.events import Status
from regrow.tasks.ports.messages import Assignment


class Instructions(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver has to do.

    Attributes:
        submit: attempts to submit.
        forget: (trial, attempt) that were given up and may never answer: kill them if possible, and
            do not wait for them.
        drain: (node ID, reason) of nodes that are about to go away: place nothing there.
        relay: (node ID, name) of relays to start.
        avoid: IDs of nodes to avoid: those about to go away, and those that fell silent, which an
            attempt might never reach.
        nodes: IDs of nodes on which attempts run.
        trouble: why the log or checkpoints cannot be written at present; None if all is well.
        finished: how the session ended; None while it runs. These are then the last instructions.
        superseded: whether another driver took the experiment over.

    """

    submit: tuple[Assignment, ...] = ()
    forget: tuple[tuple[int, int], ...] = ()
    drain: tuple[tuple[str, str], ...] = ()
    relay: tuple[tuple[str, str], ...] = ()
    avoid: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    trouble: str | None = None
    finished: Status | None = None
    superseded: bool = False
