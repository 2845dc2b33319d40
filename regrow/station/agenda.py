"""What to do with the flow runs that are due: a function of what Prefect and the drivers say. Nothing is done here."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Overlap = Literal["skip", "queue", "replace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A flow run whose time has come. `at`: seconds since the epoch.

    `schedule` is its deployment, None for one without. `by_the_clock`: the schedule made it, and neither an event nor a person
    nor a retry, each of which is meant to run.
    """

    run: str
    at: float
    schedule: str | None = None
    by_the_clock: bool = False
    overlap: Overlap = "skip"


@dataclass(frozen=True, slots=True)
class Start:
    """Run it now."""

    run: str


@dataclass(frozen=True, slots=True)
class Skip:
    """It is not to run; `why` is for people."""

    run: str
    why: str


@dataclass(frozen=True, slots=True)
class End:
    """Stop the flow run that goes on: another one is to take its place."""

    run: str


Action = Start | Skip | End


def plan(due: Sequence[Due], running: Collection[tuple[str, str | None]]) -> Iterator[Action]:
    """What to do now, in this order; a flow run of which nothing is said waits.

    `running`: the flow runs that go on, with their schedules. Of what the clock made due while nobody was there only the newest
    run of a schedule runs. Two runs of one schedule never go on at a time.
    """
    busy = {schedule: run for run, schedule in running if schedule is not None}
    going = {run for run, _ in running}
    newest = {one.schedule: one for one in sorted(due, key=lambda one: one.at) if one.by_the_clock}
    for one in sorted(due, key=lambda one: (one.at, one.run)):
        if one.run in going:
            continue
        if one.by_the_clock and newest[one.schedule] != one:
            yield Skip(one.run, "a later run of this schedule is due as well, and runs in its place")
        elif one.schedule is None or one.schedule not in busy:
            if one.schedule is not None:
                busy[one.schedule] = one.run
            yield Start(one.run)
        elif one.by_the_clock and one.overlap == "skip":
            yield Skip(one.run, "the run of this schedule before it still goes on")
        elif one.overlap == "replace" and busy[one.schedule] in going:
            yield End(busy[one.schedule])
