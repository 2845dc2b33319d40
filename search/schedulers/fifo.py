"""First in, first out: every trial runs to its end."""

from __future__ import annotations

from regrow.search.schedulers.base import Scheduler


class Fifo(Scheduler):
    """No trial is stopped early. The default behaviour of the base class."""

    needs_max_steps = False
    several = True
    decides = False
    exact = True
