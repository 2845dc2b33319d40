"""The schedules, which are deployments with the tag `regrow`, and the triggers in their `when`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags

from regrow.apps.station.triggers.endings import EndingsTrigger
from regrow.apps.station.triggers.events import EventsTrigger
from regrow.apps.station.triggers.files import SETTLE_SECONDS, FilesTrigger
from regrow.apps.station.triggers.trigger import Trigger
from regrow.infra.state.places import Places
from regrow.infra.stores.s3 import is_s3
from regrow.search.durations import seconds

TAG = "regrow"
KINDS = ("files", "after", "event")
"""Keys of `when` that are polled; hooks arrive through the inbox."""
_PAGE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A deployment with its triggers.

    Attributes:
        when: the schedule's `when`, as in the specification.
        created: seconds since the epoch.
        folder: the folder of its specification, "" if the deployment has no specification file.

    """

    id: str
    name: str
    when: Mapping[str, Any]
    created: float
    paused: bool
    folder: str = ""

    @property
    def hook(self) -> str | None:
        """Its name below `/hooks/`; None if it has no hook."""
        return self.name if self.when.get("hook") else None

    def wants(self, kind: str) -> str | None:
        """Return what it waits for; None if it has no trigger of this kind. Relative paths start at
        the folder of the specification.
        """
        given = self.when.get(kind)
        if not isinstance(given, str) or kind != "files" or is_s3(given):
            return given if isinstance(given, str) else None
        return os.path.join(self.folder, os.path.expanduser(given))

    @property
    def settle(self) -> float:
        """Seconds for which its files must be unchanged."""
        given = seconds(self.when.get("settle"))  # "1min" if the deployment was written by hand
        return float(given) if isinstance(given, int | float) else SETTLE_SECONDS

    def trigger(self, kind: str, given: str, places: Places, client: SyncPrefectClient) -> Trigger:
        match kind:
            case "files":
                return FilesTrigger(given, self.settle)
            case "after":
                return EndingsTrigger(places, given, self.name)
            case _:
                return EventsTrigger(client, given, self.name, self.id)


def schedules(client: SyncPrefectClient) -> list[Schedule]:
    """Return all schedules from the server, including those without a trigger. Raises
    httpx.HTTPError if the server does not answer.
    """
    tagged = DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG]))
    found: list[Schedule] = []
    while True:
        page = client.read_deployments(deployment_filter=tagged, limit=_PAGE, offset=len(found))
        for one in page:
            when = one.parameters.get("when")
            created = one.created.timestamp() if one.created is not None else 0.0
            spec = one.parameters.get("spec")
            found.append(
                Schedule(
                    id=str(one.id),
                    name=one.name,
                    when=when if isinstance(when, dict) else {},
                    created=created,
                    paused=bool(one.paused),
                    folder=str(Path(spec).parent) if isinstance(spec, str) else "",
                )
            )
        if len(page) < _PAGE:
            return found
