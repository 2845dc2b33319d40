"""Schedules as Prefect has them: deployments of the flow `regrow`, made, listed, paused and deleted by its public client."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zoneinfo import ZoneInfo

from regrow.infra.prefect import server as servers
from regrow.infra.prefect.clocks import in_short, triggers_in_short
from regrow.infra.prefect.settings import settings
from regrow.infra.state.places import Places
from regrow.tasks.errors import UserError
from regrow.tasks.variables import within

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.responses import DeploymentResponse

FLOW = TAG = "regrow"
"""The flow of which schedules are deployments, and their tag."""
ENTRYPOINT = "regrow.flows.run.run"
BY_HAND = "by hand"
"""The deployment, and a tag, of what people start: Prefect's page has Retry, Cancel and Suspend for runs of deployments alone."""
EXPERIMENT = "regrow.experiment"
"""The label of a flow run with the name of its experiment."""
_NEXT, _LAST = 3, 5
"""How many times and runs of a schedule are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A run of a schedule. `due` is when it was to begin, `began` and `ended` are None for what it has not done."""

    id: UUID
    experiment: str
    state: str
    message: str
    due: datetime | None
    began: datetime | None
    ended: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """A schedule. `coming`: the next times, in its zone, none while it is paused; `runs`: the last ones, the latest first."""

    id: UUID
    name: str
    words: str
    """When it runs."""
    paused: bool
    parameters: Mapping[str, Any]
    coming: tuple[datetime, ...]
    runs: tuple[Ran, ...]


@contextmanager
def at_home(places: Places) -> Iterator[None]:
    """Settings for a first import of Prefect: the user's home is left alone unless the user's own server is said there."""
    home: dict[str, str] = {}
    if servers.configured_api_url() is None:
        home = {"PREFECT_HOME": str(places.prefect_home)}
        places.writable().prefect_home.mkdir(exist_ok=True)
    with within({**settings(os.environ), **home}):
        yield


@contextmanager
def connected(places: Places) -> Iterator[SyncPrefectClient]:
    """A client of the state root's Prefect server (or of the user's own), which is started for the block if need be.

    Prefect is left with these settings in this process.
    """
    with servers.prefect_server(places.writable().prefect_home) as server, at_home(places), within(server.environment()):
        from prefect import get_client

        from regrow.infra.prefect.private import reread_settings

        reread_settings()
        with get_client(sync_client=True) as client:
            yield client


def make(
    client: SyncPrefectClient, name: str, *, clock: Mapping[str, Any] | None, parameters: dict[str, Any], form: dict[str, Any],
    description: str = "",
) -> bool:
    """Makes the schedule, or has one of this name as it is now; one that is paused stays so. Returns whether it was there.

    `clock`: as `clocks.clock` gives it, None for none. `form`: the JSON schema of the flow's parameters.
    """
    from prefect.client.schemas.actions import DeploymentScheduleCreate

    from regrow.infra.prefect.pool import POOL, ensure_pool

    ensure_pool(client)
    there = _find(client, name)
    times = [] if clock is None else [DeploymentScheduleCreate.model_validate({"schedule": dict(clock), "active": True})]
    client.create_deployment(
        client.create_flow_from_name(FLOW), name, schedules=times, parameters=parameters, tags=[TAG], work_pool_name=POOL,
        entrypoint=ENTRYPOINT, description=description, parameter_openapi_schema=form, enforce_parameter_schema=True,
        paused=there is not None and there.paused,
    )
    return there is not None


def by_hand(client: SyncPrefectClient, name: str, parameters: dict[str, Any], form: dict[str, Any]) -> FlowRun:
    """A flow run that is about to begin in this process, as one of the deployment for what people start.

    `form`: as for `make`. Who runs what is retried in the page is the station's worker.
    """
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Pending

    from regrow.infra.prefect.pool import POOL, ensure_pool

    try:
        deployment = client.read_deployment_by_name(f"{FLOW}/{BY_HAND}").id
    except ObjectNotFound:
        ensure_pool(client)
        deployment = client.create_deployment(
            client.create_flow_from_name(FLOW), BY_HAND, tags=[TAG, BY_HAND], work_pool_name=POOL, entrypoint=ENTRYPOINT,
            description="What `regrow run`, `regrow resume` and Python start; it has no schedule. Retry there wants a station.",
            parameter_openapi_schema=form, enforce_parameter_schema=False,
        )
    return client.create_flow_run_from_deployment(deployment, name=name, parameters=parameters, state=Pending())


def schedule_of(run: FlowRun) -> UUID | None:
    """The deployment that a flow run is of, None for what people started."""
    return None if BY_HAND in run.tags else run.deployment_id


def pause(client: SyncPrefectClient, name: str) -> None:
    """Has it start nothing by the clock until it is resumed. Raises UserError where there is none."""
    client.pause_deployment(known(client, name).id)


def resume(client: SyncPrefectClient, name: str) -> None:
    """Has it go on. Raises UserError where there is none."""
    found = known(client, name)
    for one in found.schedules:
        if not one.active:  # as those of a prefect.yaml may be
            client.update_deployment_schedule(found.id, one.id, active=True)
    client.resume_deployment(found.id)


def delete(client: SyncPrefectClient, name: str) -> None:
    """Deletes it, and the runs that it has not begun; its experiments stay. Raises UserError where there is none."""
    client.delete_deployment(known(client, name).id)


def known(client: SyncPrefectClient, name: str) -> DeploymentResponse:
    """The deployment of a schedule. Raises UserError, naming those that are there."""
    if (found := _find(client, name)) is None:
        there = ", ".join(one.name for one in _all(client))
        raise UserError(f"there is no schedule {name!r} (there: {there or 'none'}); make one with `regrow schedule FILE`")
    return found


def listed(client: SyncPrefectClient, root: str | None = None) -> list[Scheduled]:
    """The schedules by name, with what comes and what was; only those of a state root, if `root` is given."""
    found = [one for one in _all(client) if root is None or one.parameters.get("state") in (None, root)]
    return [_scheduled(client, one) for one in sorted(found, key=lambda one: one.name)]


def _scheduled(client: SyncPrefectClient, deployment: DeploymentResponse) -> Scheduled:
    from regrow.infra.prefect.private import next_times

    paused = deployment.paused or (bool(deployment.schedules) and not any(one.active for one in deployment.schedules))
    clocks = [one.schedule.model_dump(mode="json") for one in deployment.schedules if one.active or paused]
    clocks = [one for one in clocks if {"cron", "interval", "rrule"} & {*one}]
    when = deployment.parameters.get("when") or {}
    zone = next((ZoneInfo(one["timezone"]) for one in clocks if one.get("timezone")), None)
    coming = [] if paused else sorted(at for one in clocks for at in next_times(one, _NEXT))[:_NEXT]
    words = [*map(in_short, clocks), *triggers_in_short(when, deployment.name)]
    return Scheduled(
        id=deployment.id, name=deployment.name, words=", ".join(words) or "by hand", paused=paused,
        parameters=deployment.parameters, coming=tuple(at.astimezone(zone) for at in coming),
        runs=tuple(_ran(one) for one in _last(client, deployment.id)),
    )


def _last(client: SyncPrefectClient, deployment: UUID) -> list[FlowRun]:
    """Its last runs, and those that are due by now, the latest first."""
    from prefect.client.schemas import filters
    from prefect.client.schemas.sorting import FlowRunSort

    due = filters.FlowRunFilter(
        deployment_id=filters.FlowRunFilterDeploymentId(any_=[deployment]),
        expected_start_time=filters.FlowRunFilterExpectedStartTime.model_validate({"before_": datetime.now(UTC)}),
    )
    return client.read_flow_runs(flow_run_filter=due, sort=FlowRunSort.EXPECTED_START_TIME_DESC, limit=_LAST)


def _ran(one: FlowRun) -> Ran:
    state = one.state
    return Ran(
        id=one.id, experiment=str(one.labels.get(EXPERIMENT, "")), state="" if state is None else state.name or "",
        message="" if state is None else state.message or "", due=one.expected_start_time, began=one.start_time,
        ended=one.end_time,
    )


def _all(client: SyncPrefectClient) -> list[DeploymentResponse]:
    """The deployments of our flow that start by themselves, or say how their runs follow one another."""
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName

    flows = FlowFilter(name=FlowFilterName(any_=[FLOW]))
    found: list[DeploymentResponse] = []
    while page := client.read_deployments(flow_filter=flows, limit=200, offset=len(found)):
        found += page
    return [one for one in found if one.schedules or "when" in one.parameters]


def _find(client: SyncPrefectClient, name: str) -> DeploymentResponse | None:
    return next((one for one in _all(client) if one.name == name), None)
