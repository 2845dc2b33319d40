"""When an experiment is started by itself: by the clock, by what happens, and how its runs follow one another.

Only the form is looked at here. Whether a cron line or a rule is one is asked of Prefect when the schedule is made.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from regrow.search.durations import Span, seconds
from regrow.search.errors import SpecError
from regrow.search.spec.parts import Count, Number, Part

CLOCKS = ("cron", "every", "rrule")
"""Keys that say at which times; at most one of them."""
TRIGGERS = ("files", "after", "event", "hook")
"""Keys that say on what; any number of them."""
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9][A-Za-z0-9_+-]*)*")
"""The form of a name in the time zone database: Europe/Zurich, America/Argentina/Buenos_Aires, UTC, Etc/GMT+3."""
_EXPERIMENT = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"

Text = Annotated[str, Field(min_length=1)]


class When(Part):
    """When it is started by itself, for `regrow schedule`; says nothing to a run that is started by hand."""

    cron: Text | None = None
    """At these times: minute, hour, day of the month, month, day of the week, `0 2 * * *`."""
    every: Annotated[Number, BeforeValidator(seconds, json_schema_input_type=Span), Field(ge=1)] | None = None
    """At this distance, counted from midnight: seconds, or "6h", "1min"."""
    rrule: Text | None = None
    """By a rule of RFC 5545, `FREQ=WEEKLY;BYDAY=MO;BYHOUR=2;BYMINUTE=0;BYSECOND=0`."""
    timezone: Text | None = None
    """The time zone in which times are meant, and runs are named: `Europe/Zurich`. None: UTC."""
    files: Text | None = None
    """On new files: those of a folder that match, `data/*.parquet`, or objects, `s3://bucket/prefix/*.parquet`."""
    settle: Annotated[Number, BeforeValidator(seconds, json_schema_input_type=Span), Field(ge=0)] = 60
    """How long no further file may have come before that starts a run: seconds, or "1min"."""
    after: Annotated[str, Field(pattern=_EXPERIMENT)] | None = None
    """On the end of this other experiment, if it finished."""
    event: Text | None = None
    """On a Prefect event of this name."""
    hook: Annotated[bool, Field(strict=True)] = False
    """On a request to the station, `POST /hooks/NAME`, with the secret that `regrow schedule` makes."""
    each: Literal["new", "continue"] = "new"
    """What each run is. `new`: an experiment of its own, named after the time, that learns from the one before; `continue`: the
    same experiment, with `trials` more."""
    overlap: Literal["skip", "queue", "replace"] = "skip"
    """What becomes of a run that is due while one before it still runs: left out, started after it, or started in its place."""
    keep: Annotated[Count, Field(ge=1)] | None = None
    """With `each: new`: how many of the schedule's experiments are kept; older ones are removed. None: all."""
    cluster: Text | None = None
    """The file of the cluster that each run brings up, runs on, and ends. None: the machine of the station."""
    retries_per_day: Annotated[Count, Field(ge=0)] = 3
    """How often in a day a run whose driver was lost is started again by itself."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        given = [key for key in CLOCKS if getattr(self, key) is not None]
        if len(given) > 1:
            hint = "keep one of them; a second schedule of the file needs another --name"
            raise SpecError(f"when.{given[1]}", getattr(self, given[1]), f"stands beside {given[0]}", hint)
        if self.timezone is not None and not _ZONE.fullmatch(self.timezone):
            hint = "write a name of the time zone database, such as Europe/Zurich or UTC"
            raise SpecError("when.timezone", self.timezone, "is no name of a time zone", hint)
        if self.keep is not None and self.each == "continue":
            problem, hint = "is for experiments of their own", "leave it out, or write each: new"
            raise SpecError("when.keep", self.keep, problem, hint)
        return self

    @property
    def starts(self) -> bool:
        """Whether it says anything that starts a run."""
        return any(getattr(self, key) for key in (*CLOCKS, *TRIGGERS))

    def to_json(self) -> dict[str, object]:
        """Plain data that makes an equal one."""
        return self.model_dump(mode="json", exclude_defaults=True)
