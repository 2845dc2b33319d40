"""What a coordinator has its driver do."""

from __future__ import annotations

import msgspec

from regrow.search.events import Status
from regrow.tasks.messages import Assignment


class Instructions(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver is to do: submit these attempts; once `finished` is not None, nothing more comes.

    `forget`: (trial, attempt) that were given up and may never answer: to be killed where that is possible, and not to be
    waited for. `relay`: (node id, name) of nodes that are to have a relay. `drain`: (node id, why) of nodes that are about to
    go away: nothing more is to be placed there. `avoid`: ids of all of those, and of nodes that fell silent, where an attempt
    might never arrive. `nodes`: ids of those on which attempts run. `trouble`: why the log or checkpoints cannot be written at
    present, None if all is well. `superseded`: another driver took the experiment over.
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
