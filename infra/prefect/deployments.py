"""Schedules in Prefect, through its public client: deployments of the flow `regrow`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zoneinfo import ZoneInfo

from regrow.infra.prefect import server as servers
from regrow.infra.prefect.clocks import short_text, triggers_in_short
from regrow.infra.prefect.settings import own_home, settings
from regrow.infra.state.places import Places
from regrow.tasks.errors import UserError
from regrow.tasks.process.variables import within

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.responses import DeploymentResponse

FLOW = TAG = "regrow"
"""The flow whose deployments are schedules, and their tag."""
ENTRYPOINT = "regrow.flows.run.run"
POOL = "regrow"
"""The work pool of scheduled experiments: deployments name it, and the station's worker takes due
runs from it. Its type lets `prefect worker start` take runs from it, too.
"""
BY_HAND = "by hand"
"""The deployment, and a tag, of manually started runs: Prefect's page offers Retry, Cancel and
Suspend only for runs of deployments.
"""
EXPERIMENT = "regrow.experiment"
"""Label of a flow run with the name of its experiment."""
_NEXT, _LAST = 3, 5
"""Most coming times and most past runs that are shown of a schedule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRun:
    """A run of a schedule."""

    id: UUID
    experiment: str
    state: str
    message: str
    due: datetime | None
    """When it was to begin."""
    began: datetime | None
    """None if it has not begun."""
    ended: datetime | None
    """None if it has not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """A schedule."""

    id: UUID
    name: str
    words: str
    """When it runs, for people."""
    paused: bool
    parameters: Mapping[str, Any]
    coming: tuple[datetime, ...]
    """The next times, in its zone; empty while it is paused."""
    runs: tuple[ScheduleRun, ...]
    """The last runs, newest first."""


@contextmanager
def at_home(places: Places) -> Iterator[None]:
    """Set variables for the first import of Prefect within the block: the user's Prefect home is
    not used unless the user's server is configured there.
    """
    with within({**settings(os.environ), **own_home(places)}):
        yield


@contextmanager
def connected(places: Places) -> Iterator[SyncPrefectClient]:
    """Provide a client of the state root's Prefect server (or of the user's), which is started for
    the block if needed.

    In this process Prefect keeps these settings after the block.
    """
    with (
        at_home(places),
        servers.prefect_server(places.prepared().prefect_home) as server,
        within(server.environment()),
    ):
        from prefect import get_client

        from regrow.infra.prefect.private import reread_settings

        reread_settings()
        with get_client(sync_client=True) as client:
            yield client


def ensure_pool(client: SyncPrefectClient) -> None:
    """Create the pool unless it exists."""
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

    try:
        client.read_work_pool(POOL)
    except ObjectNotFound:
        new = WorkPoolCreate(name=POOL, type="process", description="Experiments of regrow")
        with suppress(ObjectAlreadyExists):  # another process was faster
            client.create_work_pool(new)


def make(
    client: SyncPrefectClient,
    name: str,
    *,
    clock: Mapping[str, Any] | None,
    parameters: dict[str, Any],
    form: dict[str, Any],
    description: str = "",
) -> bool:
    """Create the schedule, or replace one of this name; a paused one stays paused. Returns whether
    it existed.

    Args:
        client: client of the Prefect server.
        name: name of the schedule.
        clock: times from `clocks.clock`; None: no times.
        parameters: parameters of the flow.
        form: JSON schema of the flow's parameters.
        description: text for Prefect's page.

    """
    from prefect.client.schemas.actions import DeploymentScheduleCreate

    existing = _find(client, name)
    times = [] if clock is None else [{"schedule": dict(clock), "active": True}]
    _deploy(
        client,
        name,
        schedules=[DeploymentScheduleCreate.model_validate(one) for one in times],
        parameters=parameters,
        tags=[TAG],
        description=description,
        parameter_openapi_schema=form,
        enforce_parameter_schema=True,
        paused=existing is not None and existing.paused,
    )
    return existing is not None


def by_hand(
    client: SyncPrefectClient, name: str, parameters: dict[str, Any], form: dict[str, Any]
) -> FlowRun:
    """Create a flow run that is about to begin in this process, as a run of the deployment for
    manual starts.

    `form`: as for `make`. Runs that are retried in the page are run by the station's worker.
    """
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Pending

    try:
        deployment = client.read_deployment_by_name(f"{FLOW}/{BY_HAND}").id
    except ObjectNotFound:
        about = "What `regrow run`, `regrow resume` and Python start; it has no schedule."
        deployment = _deploy(
            client,
            BY_HAND,
            tags=[TAG, BY_HAND],
            description=f"{about} Retry there wants a station.",
            parameter_openapi_schema=form,
            enforce_parameter_schema=False,
        )
    return client.create_flow_run_from_deployment(
        deployment, name=name, parameters=parameters, state=Pending()
    )


def _deploy(client: SyncPrefectClient, name: str, **settings: Any) -> UUID:
    ensure_pool(client)
    flow = client.create_flow_from_name(FLOW)
    return client.create_deployment(
        flow, name, work_pool_name=POOL, entrypoint=ENTRYPOINT, **settings
    )


def schedule_of(run: FlowRun) -> UUID | None:
    """Return the deployment of a flow run, None for one that was started manually."""
    return None if BY_HAND in run.tags else run.deployment_id


def pause(client: SyncPrefectClient, name: str) -> None:
    """Pause the schedule: its times start nothing. Raises UserError if there is none."""
    client.pause_deployment(known(client, name).id)


def resume(client: SyncPrefectClient, name: str) -> None:
    """Resume a paused schedule. Raises UserError if there is none."""
    found = known(client, name)
    for one in found.schedules:
        if not one.active:  # possible for schedules from a prefect.yaml
            client.update_deployment_schedule(found.id, one.id, active=True)
    client.resume_deployment(found.id)


def delete(client: SyncPrefectClient, name: str) -> None:
    """Delete the schedule and its waiting runs, not its experiments. Raises UserError."""
    client.delete_deployment(known(client, name).id)


def known(client: SyncPrefectClient, name: str) -> DeploymentResponse:
    """Return a schedule's deployment. Raises UserError, naming the schedules, if it is none."""
    if (found := _find(client, name)) is None:
        names = ", ".join(one.name for one in _all(client))
        raise UserError(
            f"there is no schedule {name!r} (there: {names or 'none'}); make one with `regrow"
            " schedule FILE`"
        )
    return found


def listed(client: SyncPrefectClient, root: str | None = None) -> list[Scheduled]:
    """Return the schedules of the state root (None: all) by name, with times and runs."""
    found = [
        one for one in _all(client) if root is None or one.parameters.get("state") in (None, root)
    ]
    return [_scheduled(client, one) for one in sorted(found, key=lambda one: one.name)]


def _scheduled(client: SyncPrefectClient, deployment: DeploymentResponse) -> Scheduled:
    from regrow.infra.prefect.private import next_times

    paused = deployment.paused or (
        bool(deployment.schedules) and not any(one.active for one in deployment.schedules)
    )
    clocks = [
        one.schedule.model_dump(mode="json") for one in deployment.schedules if one.active or paused
    ]
    clocks = [one for one in clocks if {"cron", "interval", "rrule"} & {*one}]
    when = deployment.parameters.get("when")
    when = when if isinstance(when, dict) else {}  # a person may have changed it in Prefect's page
    zone = next((ZoneInfo(one["timezone"]) for one in [when, *clocks] if one.get("timezone")), None)
    coming = [] if paused else sorted(at for one in clocks for at in next_times(one, _NEXT))[:_NEXT]
    words = [*map(short_text, clocks), *triggers_in_short(when, deployment.name)]
    return Scheduled(
        id=deployment.id,
        name=deployment.name,
        words=", ".join(words) or "by hand",
        paused=paused,
        parameters=deployment.parameters,
        coming=tuple(at.astimezone(zone) for at in coming),
        runs=tuple(
            ScheduleRun(
                id=one.id,
                experiment=str(one.labels.get(EXPERIMENT, "")),
                state=(one.state and one.state.name) or "",
                message=(one.state and one.state.message) or "",
                due=one.expected_start_time,
                began=one.start_time,
                ended=one.end_time,
            )
            for one in _last(client, deployment.id)
        ),
    )


def _last(client: SyncPrefectClient, deployment: UUID) -> list[FlowRun]:
    """Return its last runs and those that are due now, newest first."""
    from httpx import HTTPStatusError
    from prefect.client.schemas import filters
    from prefect.client.schemas.sorting import FlowRunSort

    due = filters.FlowRunFilter(
        deployment_id=filters.FlowRunFilterDeploymentId(any_=[deployment]),
        expected_start_time=filters.FlowRunFilterExpectedStartTime.model_validate(
            {"before_": datetime.now(UTC)}
        ),
    )
    try:
        return client.read_flow_runs(
            flow_run_filter=due, sort=FlowRunSort.EXPECTED_START_TIME_DESC, limit=_LAST
        )
    except HTTPStatusError as error:
        if error.response.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
            raise
        # One of the runs has a parameter that the server cannot return. Show the other schedules
        # anyway.
        return []


def _all(client: SyncPrefectClient) -> list[DeploymentResponse]:
    """Return the schedules: deployments of our flow with times, or the parameter `when`."""
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName

    flows = FlowFilter(name=FlowFilterName(any_=[FLOW]))
    found: list[DeploymentResponse] = []
    while page := client.read_deployments(flow_filter=flows, limit=200, offset=len(found)):
        found += page
    return [one for one in found if one.schedules or "when" in one.parameters]


def _find(client: SyncPrefectClient, name: str) -> DeploymentResponse | None:
    return next((one for one in _all(client) if one.name == name), None)
