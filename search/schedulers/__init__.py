"""Schedulers: which trials go on. The registry; to add one, write a file beside this and name it here."""

from __future__ import annotations

from regrow.search.errors import SpecError
from regrow.search.options import build, split
from regrow.search.schedulers.asha import Asha
from regrow.search.schedulers.base import Scheduler, Verdict
from regrow.search.schedulers.fifo import Fifo
from regrow.search.space import Mode

__all__ = ["Scheduler", "Verdict", "make"]

NAMES = ("fifo", "asha")


def make(schedule: object, mode: Mode, max_steps: int | None) -> Scheduler:
    """The scheduler that `schedule` (a name, or {name: options}) asks for. Raises SpecError for what it does not know."""
    name, options = split(schedule, key="schedule", known=NAMES)
    if name == "fifo":
        return build(Fifo, options, key="schedule.fifo")
    if max_steps is None:
        raise SpecError(key="max_steps", value=None, problem=f"is missing, {name} needs it", hint="write max_steps: 27")
    return build(Asha, options, key="schedule.asha", mode=mode, max_steps=max_steps)
