"""The schedules, which are deployments with the tag `regrow`, and what in their `when` they wait for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags

from regrow.infra.state.places import Places
from regrow.search.durations import seconds
from regrow.station.triggers.endings import EndingsTrigger
from regrow.station.triggers.events import EventsTrigger
from regrow.station.triggers.files import SETTLE_SECONDS, FilesTrigger, is_remote
from regrow.station.triggers.trigger import Trigger

TAG = "regrow"
KINDS = ("files", "after", "event")
"""Keys of `when` that are looked after; a hook comes by itself."""
_PAGE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A deployment: what it waits for, when it was made (seconds since the epoch), whether it is paused. `folder`: that of its
    specification.
    """

    id: str
    name: str
    when: Mapping[str, Any]
    created: float
    paused: bool
    folder: str = ""

    @property
    def hook(self) -> str | None:
        """The name below `/hooks/` at which it is called; None: it is not."""
        return self.name if self.when.get("hook") else None

    def wants(self, kind: str) -> str | None:
        """What it waits for; None: nothing of the kind. Relative paths are meant from the folder of the specification."""
        given = self.when.get(kind)
        if not isinstance(given, str) or kind != "files" or is_remote(given):
            return given if isinstance(given, str) else None
        return os.path.join(self.folder, os.path.expanduser(given))

    @property
    def settle(self) -> float:
        """Seconds for which its files must have been as they are."""
        given = seconds(self.when.get("settle"))  # "1min" where somebody wrote the deployment by hand
        return float(given) if isinstance(given, int | float) else SETTLE_SECONDS

    def trigger(self, kind: str, given: str, places: Places, client: SyncPrefectClient) -> Trigger:
        """What looks for it."""
        match kind:
            case "files":
                return FilesTrigger(given, self.settle)
            case "after":
                return EndingsTrigger(places, given)
            case _:
                return EventsTrigger(client, given)


def schedules(client: SyncPrefectClient) -> list[Schedule]:
    """All of them as the server has them, those too that wait for nothing. Raises httpx.HTTPError where it cannot be asked."""
    tagged = DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG]))
    found: list[Schedule] = []
    while True:
        page = client.read_deployments(deployment_filter=tagged, limit=_PAGE, offset=len(found))
        for one in page:
            when = one.parameters.get("when")
            created = one.created.timestamp() if one.created is not None else 0.0
            spec = one.parameters.get("spec")
            found.append(Schedule(
                id=str(one.id), name=one.name, when=when if isinstance(when, dict) else {}, created=created,
                paused=bool(one.paused), folder=str(Path(spec).parent) if isinstance(spec, str) else "",
            ))
        if len(page) < _PAGE:
            return found
