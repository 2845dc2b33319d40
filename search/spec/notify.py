"""Whom to notify about an experiment. Addresses are secrets, so they are given by the names of
variables and are never in a specification.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from regrow.search.errors import SpecError
from regrow.search.spec.parts import Part

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
    `best` value; a trial that `stalled`; `budget`, when `stop: {hours: ...}` ended it.
    """

    @model_validator(mode="after")
    def _names_somebody(self) -> Self:
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
