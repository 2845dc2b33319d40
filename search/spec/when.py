"""When an experiment starts automatically: by the clock, or by an event; and how its runs follow
one another.

Only the form is checked here. Prefect checks cron lines and rules when the schedule is made.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from regrow.search.durations import Span, seconds
from regrow.search.errors import SpecError
from regrow.search.spec.parts import Count, Number, Part

CLOCKS = ("cron", "every", "rrule")
"""Keys that give times; at most one of them."""
TRIGGERS = ("files", "after", "event", "hook")
"""Keys that give events; any number of them."""
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9][A-Za-z0-9_+-]*)*")
"""Form of a name in the time zone database: Europe/Zurich, America/Argentina/Buenos_Aires, UTC,
Etc/GMT+3.
"""
_EXPERIMENT = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"

Text = Annotated[str, Field(min_length=1)]


class When(Part):
    """When it starts automatically, for `regrow schedule`; ignored by a run that is started by
    hand.
    """

    cron: Text | None = None
    """At times given by minute, hour, day of the month, month, day of the week, `0 2 * * *`."""
    every: (
        Annotated[Number, BeforeValidator(seconds, json_schema_input_type=Span), Field(ge=1)] | None
    ) = None
    """At this interval, counted from a midnight in winter, regardless of summer time: seconds, or
    "6h", "1min".
    """
    rrule: Text | None = None
    """By a rule of RFC 5545, `FREQ=WEEKLY;BYDAY=MO;BYHOUR=2;BYMINUTE=0;BYSECOND=0`."""
    timezone: Text | None = None
    """The time zone of these times, and of the times in the runs' names: `Europe/Zurich`. None:
    UTC.
    """
    files: Text | None = None
    """On new files: those of a folder that match, `data/*.parquet`, or objects,
    `s3://bucket/prefix/*.parquet`.
    """
    settle: Annotated[
        Number, BeforeValidator(seconds, json_schema_input_type=Span), Field(ge=0)
    ] = 60
    """Time without a further file after which a run starts: seconds, or "1min"."""
    after: Annotated[str, Field(pattern=_EXPERIMENT)] | None = None
    """When this other experiment ends as finished."""
    event: Text | None = None
    """On a Prefect event of this name."""
    hook: Annotated[bool, Field(strict=True)] = False
    """On a request to the station, `POST /hooks/NAME`, with the secret that `regrow schedule`
    makes.
    """
    each: Literal["new", "continue"] = "new"
    """What each run is. `new`: a separate experiment, named after the time, that learns from the
    previous one; `continue`: the same experiment, with `trials` more.
    """
    overlap: Literal["skip", "queue", "replace"] = "skip"
    """What happens to a run that is due while a previous one still runs: left out, started after
    it, or started instead of it.
    """
    keep: Annotated[Count, Field(ge=1)] | None = None
    """With `each: new`: how many of the schedule's experiments are kept; older ones are removed.
    None: all.
    """
    cluster: Text | None = None
    """The file of the cluster that each run starts, uses, and ends. None: the machine of the
    station.
    """
    retries_per_day: Annotated[Count, Field(ge=0)] = 3
    """How often in a day a run whose driver was lost is restarted automatically."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        given = [key for key in CLOCKS if getattr(self, key) is not None]
        if len(given) > 1:
            hint = "keep one of them; a second schedule of the file needs another --name"
            raise SpecError(
                f"when.{given[1]}", getattr(self, given[1]), f"stands beside {given[0]}", hint
            )
        if self.timezone is not None and not _ZONE.fullmatch(self.timezone):
            hint = "write a name of the time zone database, such as Europe/Zurich or UTC"
            raise SpecError("when.timezone", self.timezone, "is no name of a time zone", hint)
        if self.keep is not None and self.each == "continue":
            problem, hint = "is for experiments of their own", "leave it out, or write each: new"
            raise SpecError("when.keep", self.keep, problem, hint)
        return self

    @property
    def starts(self) -> bool:
        """Whether any key starts a run."""
        return any(getattr(self, key) for key in (*CLOCKS, *TRIGGERS))

    def to_json(self) -> dict[str, object]:
        """Return plain data that makes an equal one."""
        return self.model_dump(mode="json", exclude_defaults=True)
