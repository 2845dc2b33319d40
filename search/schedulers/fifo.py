"""The scheduler that decides nothing."""

from __future__ import annotations

from regrow.search.schedulers.base import Scheduler


class Fifo(Scheduler):
    """First in, first out: every trial runs to its end."""

    needs_max_steps = False
    several = True
    decides = False
    exact = True
