"""What a station does with an experiment: when it starts it, whom it notifies, what it serves.

Only the form is checked here. Prefect checks cron lines and rules when the schedule is made; files,
hosts and ports are checked where they are used. Addresses are secrets, so they are given by the
names of variables and are never in a specification.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from regrow.search.errors import SpecError
from regrow.search.rollout import Canary, Gate
from regrow.search.spec.parts import IMPORT_PATH, NAME, Count, Part, Seconds, Text

CLOCKS = ("cron", "every", "rrule")
"""Keys that give times; at most one of them."""
TRIGGERS = ("files", "after", "event", "hook")
"""Keys that give events; any number of them."""
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9][A-Za-z0-9_+-]*)*")
"""Form of a name in the time zone database: Europe/Zurich, UTC, Etc/GMT+3."""

_ANYONES = "prefect.artifact."
"""Beginning of the events that do not say whose run caused them, and that each run causes."""


class When(Part):
    """When it starts automatically, for `regrow schedule`; ignored by a run that is started by
    hand.
    """

    cron: Text | None = None
    """At times given by minute, hour, day of the month, month, day of the week, `0 2 * * *`."""
    every: Annotated[Seconds, Field(ge=1)] | None = None
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
    settle: Annotated[Seconds, Field(ge=0)] = 60
    """Time without a further file after which a run starts: seconds, or "1min"."""
    after: Annotated[str, Field(pattern=NAME)] | None = None
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
        event = self.event or ""
        begin = event.removesuffix("*")
        if begin.startswith(_ANYONES) or (begin != event and _ANYONES.startswith(begin)):
            problem = "is also what its own runs report, and each would start the next"
            hint = "write another name, such as shop.order.*"
            raise SpecError("when.event", self.event, problem, hint)
        if self.keep is not None and self.each == "continue":
            problem, hint = "is for experiments of their own", "leave it out, or write each: new"
            raise SpecError("when.keep", self.keep, problem, hint)
        return self

    @property
    def starts(self) -> bool:
        """Whether any key starts a run."""
        return any(getattr(self, key) for key in (*CLOCKS, *TRIGGERS))


VARIABLE = r"^\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})$"
Variable = Annotated[str, Field(pattern=VARIABLE)]
Told = Literal[
    "started", "finished", "stopped", "interrupted", "failed", "best", "stalled", "budget"
]
CHANNELS = ("slack", "teams", "discord", "email", "webhook")
"""Keys that name an address."""


class Notify(Part):
    """Whom to notify. Prefect sends the messages, so this needs a station or your own Prefect
    server.
    """

    slack: Variable | None = None
    """The variable with the URL of a Slack webhook: `$SLACK_WEBHOOK`."""
    teams: Variable | None = None
    """The variable with the URL of a Microsoft Teams workflow."""
    discord: Variable | None = None
    """The variable with the URL of a Discord webhook."""
    email: Variable | None = None
    """The variable with mail server and recipient,
    `mailtos://user:password@smtp.example.org?to=me@example.org`.
    """
    webhook: Variable | None = None
    """The variable with a URL to which `{"subject": ..., "body": ...}` is posted."""
    block: Annotated[str, Field(pattern=r"^[a-z0-9-]+/[a-z0-9-]+$")] | None = None
    """Your own notification block in Prefect, by type and name: `pager-duty-webhook/on-call`."""
    events: tuple[Told, ...] = ("finished", "failed")
    """About what: the experiment's `started`, `finished`, `stopped`, `interrupted`, `failed`; a new
    `best` value; a trial that `stalled`; `budget`, when half, four fifths or all of the money or
    time of `stop` are used.
    """

    @model_validator(mode="after")
    def _has_recipients(self) -> Self:
        if not (self.addresses or self.block):
            raise SpecError(
                "notify", None, "names nobody", "add slack, teams, discord, email, webhook or block"
            )
        if not self.events:
            raise SpecError("notify.events", [], "is empty", "add `finished`, or leave it out")
        return self

    @property
    def addresses(self) -> dict[str, str]:
        """The variables by channel."""
        given = {channel: getattr(self, channel) for channel in CHANNELS}
        return {channel: name.strip("${}") for channel, name in given.items() if name is not None}


MOST_REPLICAS = 256
"""Most processes that answer requests."""


class Serve(Part):
    """What a station (`regrow up`) serves: the best of the experiment, or of a schedule's newest
    one, and how.
    """

    model: Text | None = None
    """The class that answers requests, `serve.py:Digits`, relative to the YAML file. None: models
    that trials logged to MLflow.
    """
    gate: Text | None = None
    """Serve only checkpoints whose metrics meet it: `accuracy > 0.98 and latency <= 10`. None:
    any.
    """
    canary: Text | None = None
    """A better checkpoint first gets this share of the requests, `10% for 5min` (10 min if no span
    is given), and takes over unless it fails more of them than the others do. None: it takes over
    at once.
    """
    replicas: Annotated[Count, Field(ge=1, le=MOST_REPLICAS)] = 1
    """Processes that answer requests."""
    host: Text | None = None
    """Listen there as well, with a token: a name or address of the station's machine, or 0.0.0.0.
    None: loopback only.
    """
    port: Annotated[Count, Field(ge=1, le=65535)] | None = None
    """The port. None: a free one, which does not change afterwards."""

    @model_validator(mode="after")
    def _can_be_served(self) -> Self:
        if self.model is not None and not IMPORT_PATH.fullmatch(self.model):
            hint = "write FILE.py:CLASS, such as serve.py:Digits"
            raise SpecError("serve.model", self.model, "names no class", hint)
        _ = self.gates, self.share
        return self

    @property
    def gates(self) -> Gate | None:
        """The parsed gate."""
        return None if self.gate is None else Gate.parse(self.gate, "serve.gate")

    @property
    def share(self) -> Canary | None:
        """The parsed canary."""
        return None if self.canary is None else Canary.parse(self.canary, "serve.canary")
