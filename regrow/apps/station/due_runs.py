"""Decides what to do with due flow runs. Pure functions: nothing is executed here."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Overlap = Literal["skip", "queue", "replace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A flow run whose scheduled time has come.

    Attributes:
        at: seconds since the epoch.
        schedule: its deployment, None for a flow run without one.
        by_the_clock: the schedule created it. False for an event, a person or a retry: such a run
            is always wanted.
        overlap: what to do if the schedule's previous run still runs.

    """

    run: str
    at: float
    schedule: str | None = None
    by_the_clock: bool = False
    overlap: Overlap = "skip"


class Action(NamedTuple):
    """What to do with a flow run: run it now, skip it (`why`, for people), or end it, as another
    one replaces it.
    """

    do: Literal["start", "skip", "end"]
    run: str
    why: str = ""


def plan(due: Sequence[Due], running: Collection[tuple[str, str | None]]) -> Iterator[Action]:
    """Yield the actions to take now, in order; a flow run without an action waits.

    `running`: the running flow runs, with their schedules. Of the runs that the clock made due
    while no station ran, only the newest of each schedule is started. Two runs of one schedule
    never run at the same time.
    """
    busy = {schedule: run for run, schedule in running if schedule is not None}
    going = {run for run, _ in running}
    newest = {one.schedule: one for one in sorted(due, key=lambda one: one.at) if one.by_the_clock}
    for one in sorted(due, key=lambda one: (one.at, one.run)):
        if one.run in going:
            continue
        if one.by_the_clock and newest[one.schedule] != one:
            why = "a later run of this schedule is due as well, and runs in its place"
            yield Action("skip", one.run, why)
        elif one.schedule is None or one.schedule not in busy:
            if one.schedule is not None:
                busy[one.schedule] = one.run
            yield Action("start", one.run)
        elif one.by_the_clock and one.overlap == "skip":
            yield Action("skip", one.run, "the run of this schedule before it still continues")
        elif one.overlap == "replace" and busy[one.schedule] in going:
            yield Action("end", busy[one.schedule])
